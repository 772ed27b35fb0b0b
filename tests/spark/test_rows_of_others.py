"""A task refuses rows that belong to another worker; no matter by which of a region's ports they come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.record import Version
from penstock.driver.compile import compile_flow
from penstock.errors import StateError
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.table import Routing
from penstock.spark.task import _checked
from penstock.worker.run import Assignment

ROUTING = Routing.even(2)
KEYS = pa.array([None, *(f"key {i}" for i in range(200))])
WORKERS = ROUTING.workers_of(spark_xxhash64(KEYS))


def assignment(several: bool) -> Assignment:
    flow = ps.Flow("checked")
    keyed = flow.source("a", ps.files("a", "k string, at timestamp"), time="at").key_by("k")
    if several:
        other = flow.source("b", ps.files("b", "n long, k string, at timestamp"), time="at")
        result = keyed.join(other, within="1 minute")
    else:
        result = keyed.stateful_map(lambda key, event, state: ((key,), None), "k string")
    result.sink(ps.memory("checked"))
    regions = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None).regions
    (compiled,) = regions.values()
    return Assignment("none", "checked", compiled.spec, 1, 1, ROUTING, ((), ()), (Version(), Version()), "none")


def rows(given: Assignment, keys: pa.Array, port: int) -> pa.RecordBatch:
    """As Spark hands them over: columns of all ports side by side, named by place."""
    schema = given.spec.in_schema
    own = "k" if len(given.spec.ports) == 1 else f"{port}.k"
    columns = [keys if f.name == own else pa.nulls(len(keys), f.type) for f in schema]
    if len(given.spec.ports) > 1:
        columns[0] = pa.array(np.full(len(keys), port, np.int32))
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(schema))])


@pytest.mark.parametrize(("several", "port"), [(False, 0), (True, 0), (True, 1)])
def test_rows_of_another_worker_are_refused(several, port):
    given = assignment(several)
    assert len(given.spec.ports) == 1 + several
    for worker in (0, 1):
        own = rows(given, KEYS.filter(pa.array(worker == WORKERS)), port)
        assert list(_checked([own], worker, given)) == [own]
        with pytest.raises(StateError, match=f"worker {1 - worker} got rows of another worker"):
            list(_checked([own], 1 - worker, given))


def test_more_tasks_than_workers_are_refused():
    with pytest.raises(StateError, match="has 2 workers, but a task of it ran as number 2"):
        list(_checked([], 2, assignment(False)))
