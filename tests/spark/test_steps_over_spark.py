"""Over Spark: a step with several sinks runs once, `transform` is any function of DataFrames, `ps.rate` counts without a gap."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import flow_runs as fr
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.errors import DeclarationError
from penstock.rows.rows import with_order
from penstock.spark.columns import spark_schema
from penstock.spark.engine import partial_schema, port_frame, schema_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
ROWS = [{"k": f"k{i % 7}", "at": fr.moment(i), "v": i} for i in range(60)]


@pytest.fixture(autouse=True)
def _local_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))


@pytest.fixture
def events(tmp_path):
    """Declares the source of a flow: the rows in two files, an epoch each."""
    for i in range(2):
        fr.write_parquet(tmp_path / "in", ROWS[30 * i : 30 * i + 30], SCHEMA, i)
    files = ps.files(str(tmp_path / "in"), "k string, at timestamp, v long", max_files_per_epoch=1)
    return lambda flow: flow.source("events", files, time="at")


@pytest.mark.parametrize("sinks", [2, 3])
def test_function_over_spark_when_several_sinks_hang_on_its_step_is_called_once_per_record(spark, tmp_path, events, sinks):
    log = str(tmp_path / "called")

    def noted(key, event, state):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d\n" % event.v)
        os.close(file)
        return (key, event.v), (state or 0) + 1

    def declare(sink):
        flow = ps.Flow("once")
        keyed = events(flow).key_by("k")
        mapped = keyed.stateful_map(noted, "k string, v long")
        mapped.sink(sink("all"))
        mapped.where("v % 2 = 0").sink(sink("even"))
        if sinks == 3:
            mapped.local().key_by("v", name="behind").aggregate(n=ps.count()).sink(sink("behind"))
            keyed.deduplicate("k").sink(sink("beside"))
        return flow

    found = fr.over_spark(spark, tmp_path / "c", declare, workers=2)
    assert Counter(map(int, Path(log).read_text().split())) == {r["v"]: 1 for r in ROWS}
    assert found["all"] == fr.multiset({"k": r["k"], "v": r["v"]} for r in ROWS)
    assert found["even"] == fr.multiset({"k": r["k"], "v": r["v"]} for r in ROWS if r["v"] % 2 == 0)


def test_transform_when_it_keeps_the_hidden_columns_is_a_step_like_any_other(spark, tmp_path, events):
    def banded(frame):
        return frame.withColumn("band", F.floor(F.col("v") / 20).cast("long")).drop("k").where("v <> 5")

    def declare(sink):
        flow = ps.Flow("transformed")
        stream = events(flow).transform(banded, "at timestamp, v long, band long")
        stream.key_by("band").window(ps.tumbling("1 day")).aggregate(n=ps.count(), last=ps.last("v")).sink(sink("bands"))
        return flow

    [bands] = fr.over_spark(spark, tmp_path / "c", declare).values()
    assert {(dict(r)["band"], dict(r)["n"], dict(r)["last"]) for r in bands} == {(0, 19, 19), (1, 20, 39), (2, 20, 59)}

    def lost(sink):
        flow = ps.Flow("lost")
        events(flow).transform(lambda frame: frame.select("k", "v"), "k string, v long").sink(sink("out"))
        return flow

    with pytest.raises(DeclarationError, match="it must keep the columns that begin with __ps_"):
        fr.over_spark(spark, tmp_path / "lost", lost)


def test_rate_when_the_flow_is_stopped_and_started_again_counts_on_without_a_gap(spark, tmp_path):
    out, counts = ps.memory(f"{tmp_path}-ticks"), ps.memory(f"{tmp_path}-counts")
    flow = ps.Flow("ticks")
    ticks = flow.source("ticks", ps.rate(50), time="timestamp")
    ticks.select("value").sink(out)
    ticks.key_by("value % 3 AS third").stateful_map(
        lambda k, e, s: ((e.value, (s or 0) + 1), (s or 0) + 1), "value long, n long"
    ).sink(counts)
    for round_ in (1, 2):
        run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="100 milliseconds")
        deadline = time.monotonic() + 600
        while len(counts.rows()) < 100 * round_:
            assert time.monotonic() < deadline
            assert run.active, run.exception
            time.sleep(0.1)
        run.shutdown(drain=round_ == 2, timeout=600)
    values = [r["value"] for r in out.rows()]
    assert sorted(values) == list(range(len(values)))
    assert {(r["value"], r["n"]) for r in counts.rows()} == {(v, v // 3 + 1) for v in values}, "in order, once each"


@pytest.mark.parametrize("timed", [False, True])
def test_partial_aggregates_of_order_know_the_event_time_but_not_the_epochs_in_which_rows_came(spark, tmp_path, timed):
    flow = ps.Flow("partial")
    files = ps.files(str(tmp_path), "k string, at timestamp, v long")
    keyed = flow.source("events", files, time="at" if timed else None).key_by("k")
    keyed.aggregate(first=ps.first("v"), emit="update").sink(ps.memory("partial"))
    compiled = compile_flow(flow.plan(), schema_of(spark), partial_schema(spark))
    rows = [("a", None, 1, 0, 0, 1, 0), ("a", None, 2, -3, 0, 2, 0)]  # the second waited for three epochs in a region before
    frame = spark.createDataFrame(rows, spark_schema(with_order(SCHEMA)))
    found = port_frame(compiled.regions["k"].spec, 0, frame).collect()
    assert [[*row.c1][-1] for row in found] == [2 if timed else 1]
