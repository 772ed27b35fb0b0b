"""Every worker of a region runs once in every epoch, whatever Spark knows of its input and whoever writes into its folders."""

from __future__ import annotations

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.spark.engine import SparkBackend

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
COLUMNS = "k long, v long"


@pytest.mark.parametrize("paged", [False, True])
def test_region_when_spark_knows_that_it_gets_nothing_can_be_rescaled(spark, tmp_path, monkeypatch, paged):
    monkeypatch.setattr(SparkBackend, "_in_pages", lambda *_: paged)
    fr.write_parquet(tmp_path / "in", [{"k": 1, "v": 1}], SCHEMA, 0)
    flow = ps.Flow("nothing")
    rows = flow.source("rows", ps.files(str(tmp_path / "in"), COLUMNS)).where("1 = 0")
    keyed = rows.key_by("k")
    # Partial aggregates are never paged.
    out = keyed.stateful_map(lambda key, row, state: ([], state), COLUMNS) if paged else keyed.aggregate(n=ps.count())
    out.sink(ps.memory(f"nothing {tmp_path}"))
    run = flow.start(spark, checkpoint=tmp_path / "run", workers=1, trigger="100 milliseconds")
    try:
        assert run.scale("k", 3).wait(120)
    finally:
        run.shutdown(drain=False, timeout=120)


def test_functions_when_the_application_writes_into_the_folder_of_the_source_are_called_once_per_record(spark, tmp_path):
    inbox, calls = str(tmp_path / "in"), tmp_path / "calls"
    spark.createDataFrame([(k, k) for k in range(6)], COLUMNS).coalesce(1).write.parquet(inbox)

    def called(key, row, state):
        with calls.open("a") as file:
            file.write(f"{key}\n")
        return (key, row.v), state

    def before(step):
        if step.startswith("stored"):  # the other output's rows are not read yet
            spark.createDataFrame([(100, 1)], COLUMNS).coalesce(1).write.mode("append").parquet(inbox)

    low, high = (ps.memory(f"{n} {tmp_path}") for n in ("low", "high"))
    flow = ps.Flow("beside")
    out = flow.source("rows", ps.files(inbox, COLUMNS)).key_by("k").stateful_map(called, COLUMNS)
    out.where("v < 3").sink(low, name="low")
    out.where("v >= 3").sink(high, name="high")
    run = flow.start(spark, checkpoint=tmp_path / "run", workers=2, trigger="available_now", on_step=before)
    run.await_termination(600)
    assert sorted(row["v"] for row in low.rows() if row["k"] < 100) == [0, 1, 2]
    assert sorted(row["v"] for row in high.rows()) == [3, 4, 5]
    assert sorted(n for n in map(int, calls.read_text().split()) if n < 100) == list(range(6))
