"""`penstock.read_back` over Spark: from a storing flow to one that reads, each in epochs, gives what one flow gives in process."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import SinkError
from penstock.spark.internals.python_sources import TOLD
from penstock.testing import Harness

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not TOLD, reason="sources in Python need PySpark 4.2")]

SCHEMA = pa.schema(
    [("p", pa.string()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())]
)
COLUMNS = "p string, o long, k string, at timestamp, v long"
ROWS = [{"p": f"part {o % 3}", "o": o, "k": "abc"[o % 3], "at": fr.moment(o // 4 - o % 2), "v": o % 11} for o in range(160)]


def twice(key, event, state):
    n = (state or 0) + 1
    return [(event.v, event.at, n), (-event.v, event.at, n)][: 1 + event.v % 2], n


def listed(key, event, state):
    state = [*(state or []), event.v][-20:]
    return (str(state),), state


def first(flow, source):
    rows = flow.source(
        "s", source, time="at", lateness="1 second", position=("p", "o"), partitions=["part 0", "part 1", "part 2"]
    )
    return {
        "map": rows.key_by("k", name="one").stateful_map(twice, "v long, at timestamp, n long"),
        "windows": rows.key_by("k", name="w").window(ps.sliding("4 seconds", "2 seconds")).aggregate(v=ps.sum("v")),
    }


def second(rows, name, out):
    two = rows.with_columns(half="v % 3").key_by("half", name=f"two {name}")
    two.stateful_map(listed, "seen string").sink(out(f"{name} listed"), name=f"{name} listed")
    two.window(ps.tumbling("6 seconds")).aggregate(vs=ps.collect("v"), z=ps.last("v")).sink(
        out(f"{name} vs"), name=f"{name} vs"
    )
    two.window(ps.session("3 seconds")).aggregate(n=ps.count(), z=ps.last("v")).sink(out(f"{name} n"), name=f"{name} n")


@pytest.mark.parametrize(
    ("system", "other"), [("parquet", "sqlite"), pytest.param("duckdb", "parquet", marks=pytest.mark.soak)]
)  # the kinds of sinks each by itself: in process
def test_region_behind_stored_rows_over_spark_gives_what_it_gives_behind_the_stream_in_process(
    system, other, spark, tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    whole, wanted = ps.Flow("whole"), fr.Sinks()
    for name, rows in first(whole, ps.files("none", SCHEMA)).items():
        second(rows, name, wanted)
    with Harness(whole) as harness:
        harness.push("s", ROWS)
        harness.finish()

    def place(name):
        kind = system if name == "map" else other
        return ps.parquet(tmp_path / name) if kind == "parquet" else ps.sql(f"{kind}:///{tmp_path}/{name}.db", "t")

    for i in range(2):
        fr.write_parquet(tmp_path / "in", ROWS[80 * i : 80 * i + 80], SCHEMA, i)
    sinks = {name: place(name) for name in ("map", "windows")}
    for end in (False, True):
        storing = ps.Flow("storing")
        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        for name, rows in first(storing, stream).items():
            sinks[name] = place(name)
            rows.sink(sinks[name], name=name, positions=True)
        run = storing.start(spark, checkpoint=str(tmp_path / "c1"), workers=2, trigger="available_now", drain=end)
        assert run.await_termination(600)
        again, found = ps.Flow("again"), fr.Sinks()
        found.prefix = wanted.prefix + "again"
        for name, sink in sinks.items():
            source = replace(ps.read_back(sink, max_rows_per_epoch=70 if name == "map" else None), page_rows=30)
            second(again.source(name, source), name, found)
        run = again.start(spark, checkpoint=str(tmp_path / "c2"), workers=2, trigger="available_now", drain=end)
        assert run.await_termination(600)
        read = run.progress["sources"]
        assert read["map"]["rows"] > 0
    assert found.content() == wanted.content()
    assert sum(source["late"] for source in read.values()) == 0


def test_rows_that_are_taken_back_after_they_were_read_over_spark_stop_the_flow(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    sink = ps.sql(f"sqlite:///{tmp_path}/kept.db", "t")
    storing = ps.Flow("storing")
    rows = storing.source(
        "s", ps.files("none", SCHEMA), time="at", position=("p", "o"), partitions=["part 0", "part 1", "part 2"]
    )
    rows.sink(sink, name="out", positions=True)
    out = fr.Sinks()
    with Harness(storing) as harness:
        harness.push("s", [{**row, "at": fr.moment(row["o"])} for row in ROWS[:60]])
        harness.epoch()
        for step in range(2):
            again = ps.Flow("again")
            again.source("back", ps.read_back(sink)).key_by("k").stateful_map(listed, "seen string").sink(out("x"))
            run = again.start(spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="available_now", drain=False)
            if step == 0:
                assert run.await_termination(600)
                assert run.progress["sources"]["back"]["rows"] == 57
                with sqlite3.connect(tmp_path / "kept.db") as database:
                    database.execute("DELETE FROM t WHERE o < 9")
                harness.push("s", [{**row, "at": fr.moment(row["o"])} for row in ROWS[60:64]])
                harness.epoch()
            else:
                with pytest.raises(SinkError, match=r"has taken back rows that were read: 57 were, and 52 are there now"):
                    run.await_termination(600)
