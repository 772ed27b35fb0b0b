"""What `penstock status` says of a rescale."""

from __future__ import annotations

import pytest

from penstock.cli.live import rescale_line

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
