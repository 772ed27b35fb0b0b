"""A function that fails on a state without its older records: a replay from the middle of the log meets such states, and begins anew with the first record."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import sqlite3

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import OperatorError
from penstock.testing import Crash, Harness

COLUMNS = "p long, o long, k string, at timestamp, v long"
SECOND = 1_000_000


def after_the_first(key, event, state):
    """Fails if it has not seen the first event of a window, or of a burst."""
    if state is None and event.v % 10:
        raise ValueError(f"{event.v} came first")
    return [(event.v, (state or 0) + event.v)], (state or 0) + event.v


def windowed(rows):
    return rows.key_by("k").window(ps.tumbling("10 seconds")).stateful_map(after_the_first, "v long, t long")


def living(rows):
    return rows.key_by("k").stateful_map(after_the_first, "v long, t long", ttl="2 seconds")


def share(batch):
    """Fails on a window that lacks records."""
    assert set(batch["n"].to_pylist()) <= {10}
    return pa.record_batch({"k": batch["k"], "part": pc.divide(1.0, batch["n"])})


def divided(rows):
    counted = (
        rows.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).map_batches(share, "k string, part double")
    )
    return counted.key_by("k", name="long").window(ps.tumbling("35 seconds")).aggregate(parts=ps.sum("part"))


KINDS = {"windowed": (windowed, 7), "living": (living, 7), "divided": (divided, 9)}
"""By kind, the steps, and how many records an epoch reads, so that a replay begins within a window."""


def records(upto, wrong=None):
    """Ten events, one in a second, in each ten seconds of a key: the first one has a number that ends with 0; a pause between bursts."""
    found = [{"p": 0, "o": v, "k": "a", "at": SECOND * (v // 10 * 20 + v % 10), "v": v} for v in range(upto)]
    if wrong is not None:
        found[wrong]["v"] += 1
    return found


def flow_of(kind, database):
    flow = ps.Flow("failing")
    rows = flow.source("s", ps.files("none", COLUMNS), time="at", position=("p", "o"), partitions=[0])
    KINDS[kind][0](rows).sink(ps.sql(f"sqlite:///{database}", "t"), name="t")
    return flow


def held(database):
    with sqlite3.connect(database) as connection:
        return sorted(map(repr, connection.execute("SELECT * FROM t")))


def run(flow, checkpoint, rows, size, **options):
    with Harness(flow, checkpoint=str(checkpoint), recover="recompute", **options) as harness:
        for at in range(0, len(rows), size):
            harness.push("s", rows[at : at + size])
            harness.epoch()
        harness.finish()
        return [*harness.notices], harness.record


def lost(tmp_path, kind):
    """A flow that has read 85 records, and its checkpoint is gone; gives what its table holds."""
    with Harness(flow_of(kind, tmp_path / "out"), checkpoint=str(tmp_path / "lost")) as harness:
        size = KINDS[kind][1]
        for at in range(0, 85, size):
            harness.push("s", records(100)[at : at + size])
            harness.epoch()
    return held(tmp_path / "out")


@pytest.mark.parametrize("crashes", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_function_that_fails_on_what_a_replay_lacks_is_given_all_records(tmp_path, kind, crashes):
    run(flow_of(kind, tmp_path / "clean"), tmp_path / "c0", records(100), 100)
    assert lost(tmp_path, kind)
    dice, notices = random.Random(crashes), []
    for start in range(crashes + 1):
        left = [dice.randrange(3, 25) if start < crashes else 0]

        def step(_, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        with contextlib.suppress(Crash):
            notices, record = run(flow_of(kind, tmp_path / "out"), tmp_path / "new", records(100), 7, on_step=step)
    assert crashes or "A replay from the middle of the log failed" in notices[0]
    assert record.recovery.starts["s/0"] == -1
    assert held(tmp_path / "out") == held(tmp_path / "clean")


def test_function_that_fails_with_all_records_too_is_an_error_and_nothing_is_stored(tmp_path):
    before = lost(tmp_path, "windowed")
    with pytest.raises(OperatorError, match="ValueError: 1 came first"):
        run(flow_of("windowed", tmp_path / "out"), tmp_path / "new", records(100, wrong=0), 7)
    assert held(tmp_path / "out") == before


def test_function_that_fails_in_a_replay_from_a_time_that_was_given_is_an_error(tmp_path):
    before = lost(tmp_path, "windowed")
    since = dt.datetime(1970, 1, 1, 0, 2, 45, tzinfo=dt.UTC)
    with pytest.raises(OperatorError, match="ValueError: 84 came first"):
        run(flow_of("windowed", tmp_path / "out"), tmp_path / "new", records(100), 7, since=since)
    assert held(tmp_path / "out") == before


def test_function_that_fails_behind_the_marks_is_an_error(tmp_path):
    lost(tmp_path, "windowed")
    with pytest.raises(OperatorError, match="101 came first"):
        run(flow_of("windowed", tmp_path / "out"), tmp_path / "new", records(110, wrong=100), 7)
