"""Stateless steps that penstock does not know, over Spark: in SQL, over batches in a module that workers cannot import, over frames."""

from __future__ import annotations

import importlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import RecordError
from penstock.flow.steps import Sql, StatelessStep

pytestmark = pytest.mark.spark

OF_A_USER = """
from dataclasses import dataclass
import pyarrow as pa
from penstock.flow.steps import StatelessStep

@dataclass(frozen=True)
class Repeated(StatelessStep):
    times: int
    kind = "repeated"

    def batch_function(self):
        return self.repeat

    def repeat(self, batch):
        rows = [i for i in range(batch.num_rows) for _ in range(self.times)]
        return batch.take(pa.array(rows)).append_column("_row", pa.array(rows))
"""


class Tenth(StatelessStep):
    kind = "tenth"

    def output_schema(self, before):
        return before.append(pa.field("t", pa.int64()))

    def sql(self, before):
        return Sql("v > 0", (*((n, f"`{n}`") for n in before.names), ("t", "cast(10 / (v - 4) as bigint)")))


class Marked(StatelessStep):
    kind = "marked"
    schema = "k string, v long, t long, mark string"

    def frame_function(self):
        return lambda frame: frame.selectExpr("*", "concat(k, v) as mark")


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()

    def write(*values):
        pq.write_table(pa.table({"k": ["a"] * len(values), "v": [*values]}), tmp_path / "in" / "1.parquet")
        flow = ps.Flow("outside")
        return flow, flow.source("events", ps.files(str(tmp_path / "in"), "k string, v long"))

    return write


def test_steps_from_outside_when_run_over_spark_give_their_rows_in_order(spark, tmp_path, monkeypatch, source):
    (tmp_path / "steps_of_a_user.py").write_text(OF_A_USER)
    monkeypatch.syspath_prepend(tmp_path)  # of this process, not of the workers
    repeated = importlib.import_module("steps_of_a_user").Repeated
    out = ps.memory(f"{tmp_path}-steps")
    flow, events = source(0, 5, 3)
    rows = events.apply(Tenth()).apply(Marked()).apply(repeated(2))
    counted = rows.key_by("k").stateful_map(
        lambda _, e, n: ({"n": (n or 0) + 1, "t": e.t, "mark": e.mark}, (n or 0) + 1), "n long, t long, mark string"
    )
    counted.sink(out)
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    assert run.await_termination(300)
    assert [tuple(r.values())[-3:] for r in out.rows()] == [(1, 10, "a5"), (2, 10, "a5"), (3, -10, "a3"), (4, -10, "a3")]


def test_step_from_outside_when_its_sql_fails_over_spark_is_named_with_the_record(spark, tmp_path, source):
    flow, stream = source(1, 4)
    stream.apply(Tenth()).sink(ps.noop())
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    with pytest.raises(RecordError, match=r"tenth failed on the record at events: 1\.parquet row 2"):
        run.await_termination(300)
