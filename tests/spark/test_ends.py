"""Ends over real Spark: only an input that was read to its end makes a flow finished."""

from __future__ import annotations

import time

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import FinishedError, OperatorError

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
PER_FILE = 20


def flow_of(folder, out, fn=lambda k, e, s: ((k, e.v), None), *, most=1):
    flow = ps.Flow("ends")
    events = flow.source("events", ps.files(str(folder), "k string, v long", max_files_per_epoch=most))
    events.key_by("k").stateful_map(fn, "k string, v long").sink(out, name="out")
    return flow


def write(folder, files):
    for i in files:
        rows = [{"k": f"k{j % 3}", "v": PER_FILE * i + j} for j in range(PER_FILE)]
        fr.write_parquet(folder, rows, SCHEMA, i)


def values(sink):
    return sorted(r["v"] for r in sink.rows())


def until(true, run):
    deadline = time.monotonic() + 300
    while not true():
        assert run.active, run.exception
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read(run):
    return run.progress["sources"].get("events", {}).get("files", 0)


def test_rows_when_a_drain_is_followed_by_a_drain_or_a_stop_are_all_read_in_the_end(spark, tmp_path):
    write(tmp_path / "in", range(24))
    out = ps.memory("ends.again")
    options = {"checkpoint": str(tmp_path / "c"), "trigger": "100 milliseconds", "workers": 1}
    run = flow_of(tmp_path / "in", out).start(spark, **options)
    until(lambda: read(run) >= 2, run)
    run.shutdown(drain=True, timeout=0)
    until(lambda: read(run) >= 4, run)
    run.shutdown(drain=True, timeout=0)  # changes nothing
    until(lambda: read(run) >= 8, run)
    run.shutdown(drain=False, timeout=300)
    assert not run.active
    assert not run.progress["finished"]
    assert read(run) < 24, "the test wants files to be left"
    run = flow_of(tmp_path / "in", out).start(spark, **options)  # the stop came later: the drain is withdrawn
    until(lambda: read(run) == 24, run)
    time.sleep(1)
    assert run.active
    run.shutdown(drain=True, timeout=300)
    assert run.progress["finished"]
    assert values(out) == [*range(24 * PER_FILE)]


def test_files_that_came_after_the_end_failed_are_read_after_the_restart(spark, tmp_path):
    schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
    files = ps.files(str(tmp_path / "in"), "k string, v long, at timestamp", max_files_per_epoch=1)
    out = ps.memory("ends.mended")

    def put(i):
        fr.write_parquet(tmp_path / "in", [{"k": "k", "v": i, "at": fr.moment(i)}], schema, i)

    def mended(k, e, s):
        return (k, e.v), None

    def broken(k, e, s):
        if e.v == 2:  # it waits until the input ends
            raise ValueError("broken")
        return (k, e.v), None

    def run(fn):
        flow = ps.Flow("mended")
        keyed = flow.source("events", files, time="at").key_by("k")
        keyed.stateful_map(fn, "k string, v long").sink(out, name="out")
        return flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now", workers=1)

    for i in range(3):
        put(i)
    with pytest.raises(OperatorError, match="broken"):
        run(broken).await_termination(300)
    assert values(out) == [0, 1]
    for i in range(3, 6):
        put(i)
    ended = run(mended)
    assert ended.await_termination(300)
    assert values(out) == [*range(6)]
    assert ended.progress["finished"]
    assert not ended.progress["sources"]["events"]["late"]


def test_flow_that_has_finished_when_files_have_come_since_says_how_many(spark, tmp_path):
    write(tmp_path / "in", range(2))
    out = ps.memory("ends.unread")
    options = {"checkpoint": str(tmp_path / "c"), "trigger": "available_now", "workers": 1}
    assert flow_of(tmp_path / "in", out).start(spark, **options).await_termination(300)
    run = flow_of(tmp_path / "in", out).start(spark, **options)
    assert not run.active
    write(tmp_path / "in", range(2, 5))
    for trigger in ("available_now", "1 second"):
        with pytest.raises(FinishedError, match=r"3 files of source 'events'.*drain=False"):
            flow_of(tmp_path / "in", out).start(spark, **{**options, "trigger": trigger})
    assert values(out) == [*range(2 * PER_FILE)]
