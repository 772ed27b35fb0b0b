"""The trail of a source: which of its waypoints are kept, and what a mark carries of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.progress.lateness import Chunk, print_after
from penstock.progress.source_state import PartitionState, SourceState, Waypoint
from penstock.progress.trail import (
    MOST_STRAYS,
    Trail,
    chained,
    extended,
    file_print,
    of_chunks,
    of_files,
    placed,
    same_input,
    thinned,
)
from penstock.types import MIN_TIME, ROW_BITS, Mark

EPOCHS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


def grown(epochs: list[int]) -> tuple[list[Waypoint], int]:
    """A trail after epochs with so many points each, and how many there were."""
    points: list[Waypoint] = []
    offset = 0
    for n in epochs:
        points = extended(points, [Waypoint(0, offset + i) for i in range(1, n + 1)])
        offset += n
    return points, offset


@given(EPOCHS)
def test_kept_waypoints_are_never_farther_apart_than_a_quarter_of_their_age(epochs):
    points, _ = grown(epochs)
    last = points[-1].number if points else 0
    for before, after in zip([0, *(w.number for w in points)], [w.number for w in points], strict=False):
        assert after - before <= max(1, (last - before) / 4)


@given(EPOCHS)
def test_trail_ends_with_the_last_waypoint_and_is_in_order(epochs):
    points, offset = grown(epochs)
    assert not points or points[-1].offset == offset
    for before, after in pairwise(points):
        assert before.number < after.number
        assert before.offset < after.offset


@given(EPOCHS)
def test_number_of_waypoints_grows_with_the_logarithm(epochs):
    points, _ = grown(epochs)
    assert len(points) <= 8 * (1 + math.log2(1 + (points[-1].number if points else 0)))


@given(st.integers(0, 3000))
def test_thinning_step_by_step_keeps_what_thinning_at_once_keeps(n):
    by_step: list[Waypoint] = []
    for i in range(1, n + 1):
        by_step = thinned([*by_step, Waypoint(i)])
    assert by_step == thinned([Waypoint(i) for i in range(1, n + 1)])


@pytest.mark.parametrize("new", [1, 63, 64, 65, 128, 129, 6400, 6401])
def test_epoch_adds_at_most_64_waypoints_and_its_last_one(new):
    points = extended([Waypoint(7, 5)], [Waypoint(0, 5 + i) for i in range(1, new + 1)])
    assert points[-1].offset == 5 + new
    assert points[-1].number - 7 <= 64
    assert points[-1].number - 7 >= min(new, 33)


def test_epoch_without_records_adds_no_waypoint():
    assert extended([], []) == []
    assert extended([Waypoint(1, 5)], []) == [Waypoint(1, 5)]


def test_waypoint_of_a_chunk_has_the_greatest_time_and_all_records_until_there():
    chunks = [Chunk("0", 0, 2, least=3, greatest=9, last_offset=11, rows=4), Chunk("0", 0, 3, 1, 5, 14, 2)]
    assert of_chunks(PartitionState(0, latest=7, offset=7, rows=8), chunks) == [Waypoint(0, 11, 9, 12), Waypoint(0, 14, 9, 14)]
    assert of_chunks(None, chunks[1:]) == [Waypoint(0, 14, 5, 2)]


def test_waypoint_of_a_file_has_its_number_and_the_digest_of_all_files_until_there():
    def chunk(number: int, greatest: int, rows: int) -> Chunk:
        return Chunk("files", 0, number << ROW_BITS, 0, greatest, (number << ROW_BITS) + rows - 1, rows)

    before = SourceState(files=2, digest="d", partitions={"files": PartitionState(0, latest=50, rows=10)})
    found = of_files(before, [chunk(2, 40, 3), chunk(4, 60, 5)], ["a", "b", "c"])  # the second one is empty
    assert [(w.files, w.latest, w.rows) for w in found] == [(3, 50, 13), (4, 50, 13), (5, 60, 18)]
    assert found[1].digest == chained(chained("d", "a"), "b")
    assert [w.offset for w in found] == [(n << ROW_BITS) - 1 for n in (3, 4, 5)]


@pytest.mark.parametrize("other", [("b", 1, 2), ("a", 2, 2), ("a", 1, 3)])
def test_print_of_a_file_when_name_size_or_time_differs_is_another(other):
    assert file_print("a", 1, 2) != file_print(*other)
    assert chained("", file_print("a", 1, 2)) != chained("", file_print(*other))


def test_files_read_behind_one_of_a_greater_place_are_strays():
    reached, strays = placed(SourceState(files=1, reached=[10, "x"]), [(11, "a"), (10, "z"), (11, "b"), (9, "c")])
    assert reached == [11, "b"]
    assert strays == [[2, "z"], [4, "c"]]


def test_strays_are_the_last_few():
    _, strays = placed(SourceState(reached=[10, "x"]), [(1, str(n)) for n in range(MOST_STRAYS + 5)])
    assert len(strays) == MOST_STRAYS
    assert strays[-1] == [MOST_STRAYS + 4, str(MOST_STRAYS + 4)]


def a_trail(offset: int = 9, rows: int = 5, digest: str = "", files: int = 0) -> Trail:
    partition = PartitionState(3, 7, offset, 2, 1, True, rows, [Waypoint(1, offset, 7, rows, print=-3)], [[4, 2]], 8)
    state = SourceState(5, files, rows, digest=digest, partitions={"ü": partition}, names=["n"], order={"reached": [1, "a"]})
    return Trail.of("flow", {"in": state}, {"r": [5, -3]}, ["out"], finished=True)


def test_trail_that_a_sink_has_kept_is_what_the_mark_carried_without_names():
    trail = a_trail()
    found = Trail.from_text(trail.to_text())
    assert found == trail
    assert "\n" not in trail.to_text()
    assert found.sources["in"].names == []
    assert found.sources["in"].order == {}


def test_print_of_records_some_of_which_a_version_without_prints_read_is_not_known():
    chunk = Chunk("0", 0, 2, 3, 9, 11, 4, print=6)
    assert print_after(PartitionState(0, rows=3), chunk) is None
    assert [w.print for w in of_chunks(PartitionState(0, rows=3, print=5), [chunk, chunk])] == [3, 5]
    assert [w.print for w in of_chunks(None, [chunk, replace(chunk, print=None), chunk])] == [6, None, None]
    assert Waypoint.from_json([1, 2, 3, 4]).print is None


def test_mark_without_a_trail_has_none():
    assert Trail.from_text("") is None


@pytest.mark.parametrize(
    "other",
    [a_trail(offset=10), a_trail(rows=6), a_trail(digest="d"), a_trail(files=1)],
    ids=["offset", "rows", "digest", "files"],
)
def test_marks_when_one_has_come_farther_or_another_way_are_not_of_the_same_input(other):
    mark = Mark("f", "out", 1, 2, 5, {"in/ü": 9}, a_trail().to_text())
    assert same_input(mark, Mark("f", "other", 3, 4, MIN_TIME, {}, a_trail().to_text()))
    assert not same_input(mark, Mark("f", "out", 1, 2, 5, {"in/ü": 9}, other.to_text()))


def test_marks_without_trails_are_compared_by_their_positions():
    assert same_input(Mark("f", "out", 1, 2, 5, {"a/0": 9}), Mark("f", "out", 1, 2, 5, {"a/0": 9}))
    assert not same_input(Mark("f", "out", 1, 2, 5, {"a/0": 9}), Mark("f", "out", 1, 2, 5, {"a/0": 8}))
