"""What a recomputation makes of parts of a flow that are new, or that feed no output: behind the marks, what the new code gives over the whole log."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

import penstock as ps
from penstock.errors import RecoveryError
from penstock.testing import Harness

COLUMNS = "p long, o long, k string, at timestamp, v long"
ALL = 120
RECORDS = [{"p": 0, "o": v, "k": "ab"[v % 2], "at": 1_000_000 * v, "v": v} for v in range(ALL)]
UPTO = 87
"""So many records the first version has read."""


def count(key, event, n):
    return (event.v, (n or 0) + 1), (n or 0) + 1


def flow_of(folder, *parts):
    """A flow of some parts, each of which but `silent` has an output: windows, sums with an aggregate more, and functions with state."""
    flow = ps.Flow("grows")
    rows = flow.source("s", ps.files("none", COLUMNS), time="at", position=("p", "o"), partitions=[0])
    region = rows.key_by("k", name="r")
    for part in parts:
        name, *more = part.split()
        if name == "windows":
            stream = rows.key_by("k", name="w").window(ps.tumbling(f"{more[0]} seconds")).aggregate(n=ps.count())
        elif name == "sums":
            aggregates = {"n": ps.sum("v")} | ({"least": ps.min("v")} if more else {})
            stream = rows.key_by("k", name="a").window(ps.tumbling("40 seconds")).aggregate(**aggregates)
        elif name == "plain":
            stream = rows.select("v")
        elif name == "some":
            some = rows.where(f"v % {more[0]} = 0").key_by("k", name="s")
            stream = some.stateful_map(count, "v long, n long", name="some")
        else:  # steps of one region
            stream = region.stateful_map(count, "v long, n long", name="one" if name == "silent" else name)
        if name != "silent":
            stream.sink(ps.sql(f"sqlite:///{folder}", name, evolve=True), name=name)
    return flow


def run(flow, checkpoint, first=0, upto=ALL, *, finish=False, **options):
    """Read records; gives what the start said, and the recomputation."""
    with Harness(flow, checkpoint=str(checkpoint), **options) as harness:
        notices, recovery = " ".join(harness.notices), harness.record.recovery
        for at in range(0 if recovery else first, upto, 7):
            harness.push("s", RECORDS[at : min(at + 7, upto)])
            harness.epoch()
        if finish:
            harness.finish()
        return notices, recovery


def rows_of(database, table):
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}"))


def changed(folder, before, now, **options):
    """The first version, then the second one; gives what its start said."""
    run(flow_of(folder / "clean", *now), folder / "c0", finish=True)
    run(flow_of(folder / "out", *before), folder / "c", upto=UPTO)
    return run(flow_of(folder / "out", *now), folder / "c", UPTO, finish=True, **options)


def behind(folder, table):
    """What the new code gives for the records behind the mark; the last one before it still waits there."""
    return [row for row in rows_of(folder / "clean", table) if row[0] >= UPTO - 1]


def test_step_without_output_is_given_its_whole_state_and_an_output_later(tmp_path):
    run(flow_of(tmp_path / "out", "plain", "silent"), tmp_path / "lost", upto=UPTO)
    assert run(flow_of(tmp_path / "out", "plain", "silent"), tmp_path / "c", upto=UPTO, recover="recompute")[1]
    run(flow_of(tmp_path / "out", "plain", "one"), tmp_path / "c", UPTO, finish=True)
    run(flow_of(tmp_path / "clean", "one"), tmp_path / "c0", finish=True)
    assert rows_of(tmp_path / "out", "one") == behind(tmp_path, "one")


@pytest.mark.parametrize("before", [("windows 10",), ("windows 10", "two")], ids=str)
def test_region_or_step_that_is_new_where_a_window_changes_gives_what_it_gives_over_the_whole_log(tmp_path, before):
    notices, _ = changed(tmp_path, before, ("windows 5", *before[1:], "one"), recover="recompute")
    assert notices.startswith("State is computed anew from the log: ")
    assert "keeps its state" not in notices
    assert rows_of(tmp_path / "out", "one") == behind(tmp_path, "one")


@pytest.mark.parametrize("part", ["one", "sums more"])
def test_part_that_is_new_is_rebuilt_by_a_start_that_may_recompute_and_begins_empty_in_another(tmp_path, part):
    before = ("two", "sums") if part == "sums more" else ("two",)
    told = "In step 'aggregate' of region 'a' 'least' is new" if part == "sums more" else "Step 'one' of region 'r' is new"
    now, table = ("two", part), part.split()[0]
    for name in ("rebuilt", "empty"):
        (tmp_path / name).mkdir()
    notices, recovery = changed(tmp_path / "rebuilt", before, now, recover="recompute")
    assert recovery is not None
    assert f"State is computed anew from the log: {told}." in notices
    found, clean = rows_of(tmp_path / "rebuilt/out", table), rows_of(tmp_path / "rebuilt/clean", table)
    if part == "one":
        assert found == behind(tmp_path / "rebuilt", "one")
    else:  # per key two windows were stored before, and the third one, which began before the mark, holds all its records
        assert [row[-1] is None for row in found] == [True, True, False] * 2
        assert [row for row in found if row[-1] is not None] == clean[2::3]
    notices, recovery = changed(tmp_path / "empty", before, now)
    assert recovery is None
    assert f"{told} and starts empty." in notices
    assert rows_of(tmp_path / "empty/out", table) != found


def test_new_part_that_no_replay_can_fill_is_refused_with_what_else_can_be_done(tmp_path):
    def untimed(*parts):
        flow = ps.Flow("untimed")
        keyed = flow.source("s", ps.files("none", COLUMNS), position=("p", "o"), partitions=[0, 1]).key_by("k", name="r")
        keyed.aggregate(n=ps.count()).sink(ps.sql(f"sqlite:///{tmp_path / 'out'}", "n", mode="upsert", key=["k"]), name="n")
        for part in parts:
            keyed.stateful_map(count, "v long, n long", name=part).sink(
                ps.sql(f"sqlite:///{tmp_path / 'out'}", part), name=part
            )
        return flow

    run(untimed(), tmp_path / "c", upto=UPTO)
    with pytest.raises(RecoveryError) as refused:
        run(untimed("one"), tmp_path / "c", UPTO, recover="recompute")
    assert "depends on the order of rows" in str(refused.value)
    assert "A start without recover='recompute' goes on, and what is new starts empty. Nothing was changed." in str(
        refused.value
    )
    assert "Step 'one' of region 'r' is new and starts empty." in run(untimed("one"), tmp_path / "c", UPTO)[0]
    assert rows_of(tmp_path / "out", "one")[0] == (UPTO, 1)


def test_new_output_of_steps_without_state_is_given_the_rows_behind_the_mark_and_nothing_is_computed_anew(tmp_path):
    notices, recovery = changed(tmp_path, ("one",), ("one", "plain"), recover="recompute")
    assert (notices, recovery) == ("", None)
    assert rows_of(tmp_path / "out", "plain") == [(v,) for v in range(UPTO, ALL)]


def test_region_whose_rows_come_by_other_steps_is_computed_anew_where_another_one_is(tmp_path):
    notices, _ = changed(tmp_path, ("windows 10", "some 3", "one"), ("windows 5", "some 2", "one"), recover="recompute")
    assert "Region 's' is computed anew." in notices
    assert "Region 'r' keeps its state." in notices
    clean = {row for row in rows_of(tmp_path / "clean", "some") if row[0] >= UPTO - 1}
    assert {row for row in rows_of(tmp_path / "out", "some") if row[0] >= UPTO - 1} == clean
    assert rows_of(tmp_path / "out", "one") == rows_of(tmp_path / "clean", "one")


def test_region_whose_rows_come_by_other_steps_goes_on_where_nothing_else_changes(tmp_path):
    _, recovery = changed(tmp_path, ("some 3",), ("some 2",), recover="recompute")
    assert recovery is None


def test_snapshot_of_before_a_part_was_there_is_no_state_to_begin_with(tmp_path):
    with Harness(flow_of(tmp_path / "out", "two"), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("s", RECORDS[:50])
        harness.epoch()
        harness.snapshot("early")
    shutil.copy(tmp_path / "out", tmp_path / "copy")
    run(flow_of(tmp_path / "out", "two"), tmp_path / "c", 50, UPTO)
    shutil.copy(tmp_path / "copy", tmp_path / "out")
    assert (
        "It begins with the state of snapshot 'early'"
        in run(flow_of(tmp_path / "out", "two"), tmp_path / "c", recover="recompute")[0]
    )
    shutil.copy(tmp_path / "copy", tmp_path / "out")
    notices, _ = run(flow_of(tmp_path / "out", "two", "one"), tmp_path / "c", finish=True, recover="recompute")
    assert "remembers without end" in notices
    run(flow_of(tmp_path / "clean", "two", "one"), tmp_path / "c0", finish=True)
    for table in ("one", "two"):
        found = rows_of(tmp_path / "out", table)
        assert found == rows_of(tmp_path / "clean", table)[-len(found) :]
