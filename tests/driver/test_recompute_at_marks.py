"""A recomputation with nothing to read before a mark, or after the last one: it needs no record to go on, and none to end."""

from __future__ import annotations

import shutil
import sqlite3

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.errors import RecoveryError, SinkAheadError
from penstock.sources.base import Source
from penstock.testing import Harness
from penstock.testing.harness import Crash

ROWS = [{"p": 0, "o": i, "k": "ab"[i % 2], "at": 3_000_000 * i, "v": i} for i in range(12)]


class Numbers(Source):
    schema = pa.schema(
        [("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64())]
    )


def flow_of(path, *, windows):
    flow = ps.Flow("marks")
    events = flow.source("events", Numbers(), time="at", lateness="5 seconds", partitions=(0,), position=("p", "o"))
    if windows:
        counts = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count())
        counts.sink(ps.sql(f"sqlite:///{path}", "windows"), name="windows")
    events.where("v > 3").sink(ps.sql(f"sqlite:///{path}", "some"), name="some")
    return flow


def held(path, *tables):
    with sqlite3.connect(path) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}")) for table in tables]


def test_state_when_nothing_before_the_mark_is_needed_and_nothing_came_after_it_is_computed_and_the_input_ends(tmp_path):
    for name, rows in (("clean", ROWS), ("lost", ROWS)):
        with Harness(flow_of(tmp_path / name, windows=False)) as harness:
            harness.push("events", rows)
            harness.epoch()
    with Harness(flow_of(tmp_path / "lost", windows=False), checkpoint=str(tmp_path / "c"), recover="recompute") as harness:
        assert not harness.record.recovery.active
        harness.push("events", ROWS)
        harness.finish()
    assert held(tmp_path / "lost", "some") == held(tmp_path / "clean", "some")


def test_checkpoint_when_lost_between_two_sinks_as_the_input_ends_then_the_recomputation_ends_too(tmp_path):
    def stop(name):
        if name == "compute some" and harness.record.sources:  # the last epoch, in which the windows are stored
            raise Crash(name)

    with Harness(flow_of(tmp_path / "clean", windows=True)) as harness:
        harness.push("events", ROWS)
        harness.epoch()
        harness.finish()
    with Harness(flow_of(tmp_path / "lost", windows=True), on_step=stop) as harness:
        harness.push("events", ROWS)
        harness.epoch()
        with pytest.raises(Crash):
            harness.finish()
    with Harness(flow_of(tmp_path / "lost", windows=True), checkpoint=str(tmp_path / "c"), recover="recompute") as harness:
        harness.available()  # a source of files would give nothing either
        assert harness.record.finished
    assert held(tmp_path / "lost", "windows", "some") == held(tmp_path / "clean", "windows", "some")


def test_checkpoint_when_it_is_a_copy_of_before_the_sinks_were_claimed_again_is_taken_over(tmp_path):
    with Harness(flow_of(tmp_path / "db", windows=False), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("events", ROWS[:6])
        harness.epoch()
        shutil.copytree(tmp_path / "c", tmp_path / "copy", ignore=shutil.ignore_patterns("local"))
        for _ in range(3):
            harness.restart()
    with Harness(flow_of(tmp_path / "db", windows=False), checkpoint=str(tmp_path / "copy"), recover="recompute") as harness:
        assert harness.record.recovery is None
        harness.push("events", ROWS[6:])
        harness.finish()
    assert [v for *_, v in held(tmp_path / "db", "some")[0]] == list(range(4, 12))


@pytest.mark.parametrize("stopped", [False, True])
def test_log_when_a_run_over_what_there_is_has_read_it_and_it_is_too_short_then_it_says_so_unless_it_was_stopped(
    tmp_path, stopped
):
    with Harness(flow_of(tmp_path / "out", windows=True)) as harness:
        harness.push("events", ROWS[:9])
        harness.epoch()
    before = held(tmp_path / "out", "windows", "some")

    def stop(name):
        if stopped and name.startswith("commit"):
            Commander(Checkpoint(str(tmp_path / "c"))).stop()

    flow, about = flow_of(tmp_path / "out", windows=True), {"checkpoint": str(tmp_path / "c"), "recover": "recompute"}
    with Harness(flow, on_step=stop, **about) as harness:
        harness.push("events", ROWS[:8])
        if stopped:
            assert harness.available(drain=False).recovery.active
        else:
            with pytest.raises(
                RecoveryError, match="'0' of source 'events' ends at position 7, and the mark stands at 8; the log is shorter"
            ):
                harness.available(drain=False)
    assert held(tmp_path / "out", "windows", "some") == before
    with Harness(flow_of(tmp_path / "out", windows=True), **about) as harness:
        harness.push("events", ROWS)
        assert not harness.available(drain=False).recovery.active
        harness.finish()
    with Harness(flow_of(tmp_path / "clean", windows=True)) as harness:
        harness.push("events", ROWS)
        harness.finish()
    assert held(tmp_path / "out", "windows", "some") == held(tmp_path / "clean", "windows", "some")


def restored(tmp_path, *, while_computing_anew):
    """Sinks that another checkpoint has given more since a checkpoint was copied, in epochs of numbers that are not greater. Gives the copy's name."""

    def run(name, *pieces):
        with Harness(flow_of(tmp_path / "db", windows=True), checkpoint=str(tmp_path / name), recover="recompute") as harness:
            for rows in pieces:
                harness.push("events", rows)
                harness.epoch()
            return harness.record

    assert run("first", ROWS[:4]).epoch == 0
    shutil.copy(tmp_path / "db", tmp_path / "db of before")
    copied = run("first", *([row] for row in ROWS[4:9]))
    if while_computing_anew:
        copied = run("second", *([row] for row in ROWS[:4]))
        assert copied.recovery.active
    shutil.copy(tmp_path / "db of before", tmp_path / "db")
    pieces = (
        [ROWS[:4], ROWS[4:6], *([row] for row in ROWS[6:10])]
        if while_computing_anew
        else [ROWS[:4], *([row] for row in ROWS[4:7])]
    )
    assert 5 <= run("third", *pieces).epoch <= copied.epoch
    return "second" if while_computing_anew else "first"


@pytest.mark.parametrize("while_computing_anew", [True, False])
def test_copy_of_a_checkpoint_when_the_sinks_hold_epochs_of_another_computes_anew_from_their_marks(
    tmp_path, while_computing_anew
):
    name = restored(tmp_path, while_computing_anew=while_computing_anew)
    with Harness(flow_of(tmp_path / "clean", windows=True)) as harness:
        harness.push("events", ROWS)
        harness.finish()
    with Harness(flow_of(tmp_path / "db", windows=True), checkpoint=str(tmp_path / name), recover="recompute") as harness:
        assert any("of another checkpoint" in notice for notice in harness.notices)
        harness.push("events", ROWS)
        harness.finish()
    assert held(tmp_path / "db", "windows", "some") == held(tmp_path / "clean", "windows", "some")


@pytest.mark.parametrize("while_computing_anew", [True, False])
def test_copy_of_a_checkpoint_when_the_sinks_hold_epochs_of_another_is_refused_without_recompute(
    tmp_path, while_computing_anew
):
    name = restored(tmp_path, while_computing_anew=while_computing_anew)
    with pytest.raises(SinkAheadError, match="of another checkpoint"):
        Harness(flow_of(tmp_path / "db", windows=True), checkpoint=str(tmp_path / name))


def test_output_that_holds_nothing_when_another_one_went_is_not_taken_for_that_one(tmp_path):
    def flow(*names):
        made = ps.Flow("marks")
        events = made.source("events", Numbers(), time="at", partitions=(0,), position=("p", "o"))
        for name in names:
            events.sink(ps.sql(f"sqlite:///{tmp_path}/db", name), name=name)
        return made

    def stop(name):
        if name == "compute some":
            raise Crash(name)

    with Harness(flow("first", "second", "some"), on_step=stop) as harness:
        harness.push("events", ROWS)
        with pytest.raises(Crash):
            harness.epoch()
    with Harness(flow("first", "some"), checkpoint=str(tmp_path / "c"), recover="recompute") as harness:
        harness.push("events", ROWS)
        harness.finish()
    first, some = held(tmp_path / "db", "first", "some")
    assert first == some
