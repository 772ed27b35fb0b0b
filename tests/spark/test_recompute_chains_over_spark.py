"""A session that began long before the marks is computed anew over Spark: the replay notices that it began too late, and begins anew before any output."""

from __future__ import annotations

import datetime as dt

import pytest
import recomputed

import penstock as ps
from penstock.errors import OperatorError

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def a_flow(folder, sink):
    flow = ps.Flow("chains")
    events = flow.source(
        "events", ps.files(str(folder), recomputed.SCHEMA, max_files_per_epoch=2), time="at", lateness="2 seconds"
    )
    sessions = events.key_by("k").window(ps.session("5 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    sessions.sink(sink("sessions"), name="sessions")
    events.key_by("k", name="first").deduplicate(within="4 seconds").sink(sink("kept"), name="kept")
    return flow


def test_session_when_it_began_long_before_the_mark_is_computed_from_where_it_began(spark, tmp_path):
    """One record a second for a minute, a pause, and one a second from then on: four links of five seconds are too few, sixteen are enough."""
    seconds = [*range(60), *range(70, 190)]
    rows = [{"k": "a", "at": recomputed.BEGIN + dt.timedelta(seconds=s), "v": s} for s in seconds]
    files = [rows[i : i + 10] for i in range(0, len(rows), 10)]
    recomputed.write(tmp_path / "in", files[:12])
    lost = recomputed.sqlite(tmp_path / "lost.db")
    assert recomputed.run(a_flow(tmp_path / "in", lost), spark, tmp_path / "c", drain=False)
    recomputed.write(tmp_path / "in", files[12:], 12)
    steps = []
    run = recomputed.recompute(a_flow(tmp_path / "in", lost), spark, tmp_path / "new", on_step=steps.append)
    assert steps.count("recompute: commit") == 2
    at = run.recovery["partitions"]["events"]
    assert (at["mark"], at["end"]) == (12, 12)
    assert 0 < at["start"] < 6
    recomputed.run(a_flow(tmp_path / "in", recomputed.sqlite(tmp_path / "clean.db")), spark, tmp_path / "clean")
    assert recomputed.held(tmp_path / "lost.db") == recomputed.held(tmp_path / "clean.db")


def whole(key, event, state):
    """Fails if it has not seen the first event of a window."""
    if state is None and event.v % 25:
        raise ValueError(f"{event.v} came first")
    return [(event.v, (state or 0) + event.v)], (state or 0) + event.v


def function_fails(events):
    return events.key_by("k").window(ps.tumbling("25 seconds")).stateful_map(whole, "v long, total long")


def expression_fails(events):
    counted = events.key_by("k").window(ps.tumbling("25 seconds")).aggregate(n=ps.count())
    parts = counted.with_columns(part="1 / (CASE WHEN n = 25 THEN 1 ELSE 0 END)")
    return parts.key_by("k", name="long").window(ps.tumbling("10 seconds")).aggregate(parts=ps.sum("part"))


@pytest.mark.parametrize(("steps", "there"), [(function_fails, True), (function_fails, False), (expression_fails, True)])
def test_function_when_it_fails_on_a_window_that_lacks_records_then_the_replay_begins_with_the_first_record_if_it_is_there(
    spark, tmp_path, steps, there
):
    def flow(sink):
        made = ps.Flow("failing")
        source = ps.files(str(tmp_path / "in"), recomputed.SCHEMA, max_files_per_epoch=2)
        steps(made.source("events", source, time="at", lateness="2 seconds")).sink(sink("t"), name="t")
        return made

    rows = [{"k": "a", "at": recomputed.BEGIN + dt.timedelta(seconds=s), "v": s} for s in range(200)]
    files = [rows[i : i + 10] for i in range(0, len(rows), 10)]
    recomputed.write(tmp_path / "in", files[:12])
    assert recomputed.run(flow(recomputed.sqlite(tmp_path / "lost.db")), spark, tmp_path / "c", drain=False)
    recomputed.write(tmp_path / "in", files[12:], 12)
    if not there:
        before = recomputed.held(tmp_path / "lost.db")
        (tmp_path / "in/001.parquet").unlink()
        with pytest.raises(OperatorError, match="90 came first"):
            recomputed.recompute(flow(recomputed.sqlite(tmp_path / "lost.db")), spark, tmp_path / "new")
        assert recomputed.held(tmp_path / "lost.db") == before
        return
    run = recomputed.recompute(flow(recomputed.sqlite(tmp_path / "lost.db")), spark, tmp_path / "new")
    assert "a replay from the middle of the log failed" in run.recovery["why"]
    assert run.recovery["partitions"]["events"]["start"] == -1
    recomputed.run(flow(recomputed.sqlite(tmp_path / "clean.db")), spark, tmp_path / "clean")
    assert recomputed.held(tmp_path / "lost.db") == recomputed.held(tmp_path / "clean.db")
