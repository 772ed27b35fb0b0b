"""A changed flow over Spark: what the checkpoint and Spark's own log know of the flow before."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil

import pyarrow as pa
import pytest
from flow_runs import write_parquet

import penstock as ps
from penstock.errors import ChangedFlowError

pytestmark = pytest.mark.spark
NUMBERS = itertools.count()
SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
WIDER = SCHEMA.append(pa.field("z", pa.int64()))
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def row(x, **more):
    return {"k": "a", "x": x, "at": BEGIN + dt.timedelta(seconds=x)} | more


def count(key, event, state):
    n = (0 if state is None else state[0]) + 1
    return (event.x, n), (n,)


class Flow:
    """One checkpoint and one table."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.table = f"changed flow {next(NUMBERS)}"

    def start(self, before=lambda s: s, *, name="s", data="data", schema=SCHEMA, time="at", drain=False, more=(), keyed=None):
        flow = ps.Flow("changed")
        for other in more:
            (self.folder / other).mkdir(exist_ok=True)
            flow.source(other, ps.files(self.folder / other, schema), time="at").sink(ps.noop())
        files = ps.files(self.folder / data, schema, missing_columns="null")
        stream = before(flow.source(name, files, time=time, lateness="10 seconds")).key_by("k")
        (keyed or (lambda k: k.stateful_map(count, "x long, n long", "n long")))(stream).sink(ps.memory(self.table))
        run = flow.start(self.spark, checkpoint=str(self.folder / "checkpoint"), trigger="available_now", drain=drain)
        run.await_termination()
        return run

    def rows(self):
        return [(r["x"], r["n"]) for r in ps.memory(self.table).rows()]


@pytest.fixture
def flow(spark, tmp_path):
    write_parquet(tmp_path / "data", [row(1), row(2), row(3)], SCHEMA, 1)
    return Flow(spark, tmp_path)


def test_rows_that_wait_when_the_source_gets_a_column_and_a_step_is_put_before_are_processed(flow, tmp_path):
    flow.start()
    assert flow.rows() == []
    write_parquet(tmp_path / "data", [row(5, z=1)], WIDER, 2)
    run = flow.start(
        lambda s: s.with_columns(y="x + 1").where("x > 0"),
        schema=WIDER,
        drain=True,
        keyed=lambda k: k.deduplicate("x").stateful_map(count, "x long, n long", "n long"),
    )
    assert flow.rows() == [(1, 1), (2, 2), (3, 3), (5, 4)]
    assert run.changes == ("Step 'deduplicate' of region 'k' is new and starts empty.",)


def test_sources_when_they_are_others_are_refused_before_spark_sees_them(flow, tmp_path):
    flow.start()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    kept = sorted(p.name for p in (tmp_path / "checkpoint" / "runs").iterdir())
    refused = [
        ({"name": "t"}, "had the sources s, in this order, and now has t"),
        ({"time": None}, "Source 's' .* had the event time 'at' and now has 'none'"),
        ({"data": "moved"}, "Source 's' .* had the path '.*/data' and now has '.*/moved'"),
        ({"more": ["other"]}, "had the sources s, in this order, and now has other, s"),
    ]
    for options, sentence in refused:
        with pytest.raises(ChangedFlowError, match=sentence):
            flow.start(**options)
    assert sorted(p.name for p in (tmp_path / "checkpoint" / "runs").iterdir()) == kept
    flow.start(drain=True)
    assert flow.rows() == [(1, 1), (2, 2), (3, 3)]


def test_sources_when_they_are_others_after_a_first_epoch_that_failed_are_refused(flow, tmp_path):
    def fails(key, event, state):
        raise ValueError("first epoch")

    with pytest.raises(ps.PenstockError, match="first epoch"):
        flow.start(drain=True, keyed=lambda k: k.stateful_map(fails, "x long, n long", "n long"))
    with pytest.raises(ChangedFlowError, match="had the sources s, in this order, and now has other, s"):
        flow.start(more=["other"])
    flow.start(drain=True)
    assert flow.rows() == [(1, 1), (2, 2), (3, 3)]
