"""Late records, judged all at once, are those of the rule applied record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.driver.epoch import part_number
from penstock.operators.base import Context
from penstock.progress.lateness import Base, Chunk, begun, behind, check_lateness, late_rows
from penstock.progress.source_state import PartitionState, SourceState
from penstock.rows.keys import KeyCodec
from penstock.rows.rows import Order
from penstock.types import MAX_TIME, MIN_TIME, whole_partition

SMALL = st.integers(0, 12)
TIMES = st.one_of(SMALL, st.sampled_from([MIN_TIME, MIN_TIME + 1, MAX_TIME]))


def one_by_one(rows, candidate_chunks, lateness):
    late, seen = {}, {chunk: base.latest for chunk, base in candidate_chunks.items()}
    for i in sorted(range(len(rows)), key=lambda i: (rows[i][:2], rows[i][2], i)):
        part, chunk, _, time = rows[i]
        base = candidate_chunks.get((part, chunk))
        late[i] = base is not None and time < max(behind(seen[part, chunk], lateness), base.late_floor)
        if base is not None:
            seen[part, chunk] = max(seen[part, chunk], time)
    return [late[i] for i in range(len(rows))]


def judged_alike(given_rows, candidate_chunks, lateness, in_order=0):
    rows = [(part, offset // 4, offset, time) for part, offset, time in given_rows]
    rows.sort(key=lambda row: row[:in_order])
    columns = [np.array([r[i] for r in rows], np.int64) for i in range(4)]
    assert late_rows(*columns, candidate_chunks, lateness).tolist() == one_by_one(rows, candidate_chunks, lateness)


@given(
    st.lists(st.tuples(st.integers(-1, 1), SMALL, TIMES), max_size=40),
    st.dictionaries(st.tuples(st.integers(-1, 1), st.integers(0, 3)), st.builds(Base, TIMES, TIMES)),
    st.integers(0, 5),
)
def test_late_rows_when_found_together_are_those_found_one_by_one(given_rows, candidate_chunks, lateness):
    judged_alike(given_rows, candidate_chunks, lateness)


@settings(max_examples=1_000)
@given(
    st.lists(st.tuples(st.integers(0, 1), SMALL, TIMES), max_size=40),
    st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 3)), st.builds(Base, TIMES, TIMES), min_size=4),
    st.integers(0, 5),
    st.sampled_from([0, 1, 2, 3]),
)
def test_late_rows_when_rows_are_all_but_in_order_are_those_found_one_by_one(given_rows, candidate_chunks, lateness, in_order):
    judged_alike(given_rows, candidate_chunks, lateness, in_order)  # by partition, chunk, offset: by the first so many of them


@given(st.integers(0, 100), st.one_of(st.none(), st.integers(1 - (1 << 47), (1 << 47) - 1), st.text()))
def test_number_of_a_partition_tells_its_source_and_a_whole_number_is_read_back(ordinal, partition):
    part = part_number(ordinal, partition)
    assert part >> 48 == ordinal
    if not isinstance(partition, str):
        assert whole_partition(part) == partition


def test_position_of_a_row_names_its_partition_as_the_source_does():
    partitions = [None, -3, 4, -(1 << 47) + 1]
    same = np.full(len(partitions), 7)
    order = Order(same, np.array([part_number(1, p) for p in partitions]), same, same)
    context = Context("r", 0, 0, KeyCodec(pa.schema([])), (), pa.schema([]), sources=("a", "b"))
    assert [context.position_text(order, row) for row in range(len(partitions))] == [f"b/{p} @ 7" for p in partitions]


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(("late_floor", "frontier"), [(3, 7), (7, 3)])
def test_judgement_of_a_partition_begins_where_that_of_its_first_chunk_does(idle, late_floor, frontier):
    known = {"0": PartitionState(5, latest=9, late_floor=late_floor, idle=idle)}
    for before in (SourceState(partitions=known, frontier=frontier), SourceState(frontier=frontier)):
        chunk = Chunk("0", 5, 0, -100, 20, 1, 2)
        found = check_lateness(before, [chunk], lateness_us=1, idle_after_us=None, declared=(), now_us=0)
        assert begun(before, "0") == found.candidate_chunks[5, 0]
