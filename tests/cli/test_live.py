"""What `penstock status` says of a rescale."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock.serve.terminal import rescale_line, status_lines

MANY = {
    "phase": "move", "to_workers": 5, "moved_bins": 364, "bins_left": 250, "keys_left": 2, "moved_keys": 1010, "moved_bytes": 159642,
    "held_keys": 2, "queued_bytes": 2048, "left_ms": 1400,
}  # fmt: skip
ONE = {
    **MANY,
    "to_workers": 1,
    "moved_bins": 0,
    "bins_left": 1,
    "keys_left": 1,
    "moved_keys": 1,
    "held_keys": 1,
    "left_ms": None,
}


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (
            MANY,
            (
                "region k: move to 5 workers, 364 of 614 bins, 2 single keys to go, 1,010 keys moved, 155.9 KiB, "
                "2 large keys on hold with 2.0 KiB queued, about 1 s left"
            ),
        ),
        (
            ONE,
            (
                "region k: move to 1 worker, 0 of 1 bin, 1 single key to go, 1 key moved, 155.9 KiB, "
                "1 large key on hold with 2.0 KiB queued"
            ),
        ),
        (
            {**MANY, "moved_bins": 0, "bins_left": 0, "keys_left": 3, "held_keys": 0, "left_ms": None},
            "region k: move to 5 workers, 3 single keys to go, 1,010 keys moved, 155.9 KiB",
        ),
        ({"phase": "interrogate", "bins_left": None}, "region k: interrogate"),
    ],
    ids=["many", "one", "no bins", "measuring"],
)
def test_line_of_a_rescale_when_numbers_are_one_or_none_reads_well(figures, line):
    assert rescale_line("k", figures) == line


STATUS = {"epoch": 7, "finished": False, "regions": {"k": {"phase": "move", "rescale": MANY}}}
ABOUT = {"flow": "f", "run": 1, "pid": 5, "host": "h"}
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("alive", "ending"),
    [(True, "about 1 s left"), (None, "about 1 s left"), (False, "2.0 KiB queued, goes on when the flow is started again")],
)
def test_status_of_a_rescale_when_the_flow_does_not_run_names_no_time(alive, ending):
    lines = status_lines(STATUS, ABOUT, alive=alive, now=NOON)
    assert lines[1].endswith(ending)
    assert ("left" in lines[1]) is (alive is not False)


def test_status_of_refused_commands_says_when_and_is_silent_after_an_hour():
    def given(minutes):
        return f"{int((NOON - dt.timedelta(minutes=minutes)).timestamp()) * 10**9:020d}-0000005-000001.json"

    progress = {
        "epoch": 7,
        "finished": False,
        "refused": {given(300): "old", given(61): "late", given(59): "Too many workers.", "x": "?"},
    }
    assert status_lines(progress, ABOUT, alive=True, now=NOON)[1:] == ["refused at 11:01:00 UTC: Too many workers."]
    later = NOON + dt.timedelta(minutes=2)
    assert status_lines(progress, ABOUT, alive=True, now=later)[1:] == []


def test_time_left_of_a_rescale_that_is_nearly_done_is_not_nothing():
    assert rescale_line("k", {**MANY, "left_ms": 200}).endswith("about 1 s left")
