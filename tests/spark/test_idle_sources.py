"""A source that falls silent, over real Spark: without records there are no epochs, so the run itself must see to it."""

from __future__ import annotations

import time

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def test_rows_when_one_source_falls_silent_come_without_it_and_without_new_records(spark, tmp_path):
    flow, out = ps.Flow("silent"), ps.memory(f"silent {tmp_path}")
    streams = {
        name: flow.source(name, ps.files(str(tmp_path / name), "at timestamp, v long"), time="at", idle_after="1 second")
        for name in ("a", "b")
    }
    both = streams["a"].union(streams["b"]).key_by("v % 1 AS k", name="r")
    both.stateful_map(lambda _, e, s: ((e.v,), s), "v long").sink(out)
    for name, times in {"a": (1, 10), "b": (1, 3)}.items():
        fr.write_parquet(tmp_path / name, [{"at": fr.moment(t), "v": t} for t in times], SCHEMA, 0)
    run = flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="0 seconds")
    deadline = time.monotonic() + 600
    while sorted(r["v"] for r in out.rows()) != [1, 1, 3]:  # that of 10 is where the frontier is
        assert time.monotonic() < deadline, out.rows()
        time.sleep(0.1)
    time.sleep(1)  # the epoch ends a little after its rows are stored
    epoch = run.progress["epoch"]
    time.sleep(2.5)
    assert run.progress["epoch"] == epoch, "epochs go on although nothing can change any more"
    run.shutdown(drain=True, timeout=600)
    assert sorted(r["v"] for r in out.rows()) == [1, 1, 3, 10]


def test_last_window_when_its_source_is_silent_as_a_whole_comes_out_and_what_comes_later_with_its_time_is_late(spark, tmp_path):
    flow, out, late = ps.Flow("closing"), ps.memory(f"closing {tmp_path}"), ps.memory(f"closing late {tmp_path}")
    source = ps.files(str(tmp_path / "a"), "at timestamp, v long")
    rows = flow.source("a", source, time="at", close_after="1 second")
    rows.key_by("v % 1 AS k", name="r").window(ps.tumbling("2 seconds")).aggregate(n=ps.count()).sink(out)
    rows.late.sink(late)
    fr.write_parquet(tmp_path / "a", [{"at": fr.moment(t), "v": t} for t in (1, 2, 3)], SCHEMA, 0)
    run = flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="0 seconds")
    deadline = time.monotonic() + 600
    while [r["n"] for r in out.rows()] != [1, 2]:
        assert time.monotonic() < deadline, out.rows()
        time.sleep(0.1)
    fr.write_parquet(tmp_path / "a", [{"at": fr.moment(t), "v": t} for t in (3, 1_000)], SCHEMA, 1)
    while not late.rows():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.shutdown(drain=True, timeout=600)
    assert [r["v"] for r in late.rows()] == [3]
    assert [r["n"] for r in out.rows()] == [1, 2, 1]
