"""Outputs that tasks stage over Spark: no row of theirs comes to the driver."""

from __future__ import annotations

import datetime as dt

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.sinks import parts as staged_parts
from penstock.sinks.parquet import ParquetSink
from penstock.spark.engine import SparkBackend

pytestmark = pytest.mark.spark

ROWS = 60_000
SCHEMA = pa.schema([("k k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.string())])


def numbered(key, event, state):
    n = (state or 0) + 1
    return (key, n, event.at, event.v), n


def flow_of(folder, sink):
    flow = ps.Flow("staged")
    events = flow.source("events", ps.files(str(folder), "`k k` long, at timestamp, v string"), time="at")
    events.where("`k k` = 3").sink(sink("stateless"), name="stateless")
    keyed = events.key_by("k k").stateful_map(numbered, "`k k` long, n long, at timestamp, `v.v` string")
    keyed.sink(sink("keyed"), name="keyed")
    return flow


def test_rows_of_a_staged_output_when_run_over_spark_then_the_driver_gets_tokens_and_the_files_are_as_collected(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    at = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    rows = [{"k k": n % 50, "at": at + dt.timedelta(seconds=n), "v": f"{n:x}" * 12} for n in range(ROWS)]
    fr.write_parquet(tmp_path / "in", rows, SCHEMA, 0)

    def run(name):
        flow = flow_of(tmp_path / "in", lambda output: ps.parquet(tmp_path / name / output))
        options = {"checkpoint": str(tmp_path / f"c-{name}"), "workers": 2, "trigger": "available_now"}
        assert flow.start(spark, **options).await_termination(600)

    stager = ParquetSink.stager
    with monkeypatch.context() as patch:
        patch.delattr(ParquetSink, "stager")  # a sink of the first contract
        run("collected")

    tokens = {}
    commit = ParquetSink.commit

    def noted(self, given, mark):
        def each():
            for token in given:
                tokens.setdefault(mark.output, []).append(staged_parts.decoded(token))
                yield token

        return commit(self, each(), mark)

    def refused(*_):
        raise AssertionError("the driver asked for rows")

    assert ParquetSink.stager is stager
    monkeypatch.setattr(ParquetSink, "commit", noted)
    monkeypatch.setattr(SparkBackend, "collect", refused)
    run("staged")

    *parts, last = tokens["keyed"]
    assert [type(t) for t in parts] == [staged_parts.Part] * 2  # one of each worker
    assert sum(t.rows for t in parts) == ROWS - 1
    assert last.num_rows == 1  # in the epoch that ends the flow
    assert all(isinstance(t, pa.Table) for t in tokens["stateless"])  # they are few
    for output in ("keyed", "stateless"):
        names, tables = [], []
        for run_ in ("collected", "staged"):
            files = sorted((tmp_path / run_ / output).glob("*.parquet"))
            names.append([f.name for f in files])
            tables.append(pa.concat_tables(pq.read_table(f) for f in files))
        assert names[0] == names[1]
        assert tables[0].equals(tables[1])
        assert not [*(tmp_path / "staged" / output / "_penstock" / "staging").iterdir()]
    assert spark.read.parquet(str(tmp_path / "staged" / "keyed")).distinct().count() == ROWS
