"""Rows grouped by key, at sizes where 16 bits are counted and where two hashes share their upper half."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow import columns, grouping
from penstock.rows import rows as rows_module
from penstock.rows.keys import KeyCodec
from penstock.rows.rows import Order, group_rows

MANY_ENOUGH = 1 << 12  # that they are counted
_EDGES = [-(1 << 63), -(1 << 63) + 1, -(1 << 32), -1, 0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]
_HASHES = st.one_of(st.sampled_from(_EDGES), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 40))


@given(st.lists(_HASHES, max_size=60))
def test_counting_sorts_as_comparing_does(drawn):
    hashes = np.array(drawn * (1 + MANY_ENOUGH // max(1, len(drawn))), np.int64)
    assert columns.ascending(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


@pytest.mark.parametrize("alike", [1, 1 << 16, 1 << 32, 1 << 48])
def test_many_rows_are_sorted_by_all_bits_of_their_hashes(alike):
    rng = np.random.default_rng(3)
    hashes = rng.integers(-(1 << 14), 1 << 14, 50_000) * alike  # differing in some sixteen bits, and only there
    assert (columns.ascending(hashes) == np.argsort(hashes, kind="stable")).all()


@pytest.mark.parametrize("bits", [2, 15, 16, 17, 18, 31, 32, 33, 34, 62, 63])
def test_many_values_that_differ_in_the_first_and_last_of_so_many_bits_are_sorted(bits):
    rng = np.random.default_rng(bits)
    values = (rng.integers(0, 2, 50_000) << (bits - 1)) + rng.integers(0, 2, 50_000) - 7
    assert (columns.ascending(values) == np.argsort(values, kind="stable")).all()


@given(st.lists(_HASHES, min_size=1, max_size=60), st.booleans())
def test_few_distinct_values_are_sorted_by_counting_them(drawn, writeable):
    values = np.array(drawn, np.int64)
    values.flags.writeable = writeable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_SHARE", 1)
        patch.setattr(grouping, "_PROBES", 60)
        index = grouping.by_counting(values)
    assert index is not None
    assert index.tolist() == np.argsort(values, kind="stable").tolist()


@given(st.integers(1, 9), st.integers(1, 9), st.randoms())
def test_values_are_counted_only_if_few_enough_are_distinct(most, distinct, random):
    drawn = [*range(distinct), *random.choices(range(distinct), k=40)]
    random.shuffle(drawn)
    values = np.array(drawn, np.int64) << 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_DISTINCT", most)
        patch.setattr(grouping, "_PROBES", 60)
        index = grouping.by_counting(values)
    assert (index is None) == (len(set(values.tolist())) > most)
    assert index is None or index.tolist() == np.argsort(values, kind="stable").tolist()


def test_values_made_to_want_one_place_are_left_to_another_sort():
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    alike = (np.arange(1, 5_001, dtype=np.uint64) * np.uint64(inverse)).view(
        np.int64
    )  # their products with the constant are small
    values = np.random.default_rng(1).permutation(np.repeat(alike, 20))
    assert grouping.by_counting(values) is None
    assert (columns.ascending(values) == np.argsort(values, kind="stable")).all()


@pytest.mark.parametrize("distinct", [1, 2, 40, 10_000, 60_000])
def test_many_values_are_sorted_however_many_are_distinct(distinct):
    rng = np.random.default_rng(distinct)
    values = rng.choice(rng.integers(-(1 << 63), (1 << 63) - 1, distinct), columns.MANY)
    assert (grouping.by_counting(values) is None) == (distinct > columns.MANY // 4)
    assert (columns.ascending(values) == np.argsort(values, kind="stable")).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(_EDGES), st.integers(0, 99)), min_size=1, max_size=60))
def test_rows_are_sorted_by_several_columns_as_numpy_does(drawn):
    some = np.array(drawn, np.int64).T
    assert columns.lexicographic(list(some)).tolist() == np.lexsort(some[::-1]).tolist()


@pytest.mark.parametrize("in_order", [True, False])
def test_many_rows_of_keys_with_one_hash_are_told_apart(in_order):
    rng = np.random.default_rng(5)
    n = 3 * MANY_ENOUGH
    keys = rng.integers(0, 50, n)
    time = np.arange(n) if in_order else rng.permutation(n)
    order = Order(time, np.zeros(n, np.int64), np.arange(n), np.zeros(n, np.int64))
    data = pa.RecordBatch.from_pydict({"k": keys, "t": time})
    codec = KeyCodec(pa.schema([("k", pa.int64())]))
    rows = group_rows(data, order, keys // 2 << 40, [data.column("k")], codec)
    assert sorted(rows.keys.values()) == list(range(50))
    for i, key in enumerate(rows.keys.values()):
        mine = slice(int(rows.starts[i]), int(rows.starts[i + 1]))
        assert set(rows.column("k").to_pylist()[mine]) == {key}
        assert rows.column("t").to_pylist()[mine] == np.sort(time[keys == key]).tolist() == rows.order.time[mine].tolist()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=40), st.booleans())
def test_rows_that_are_chosen_are_grouped_as_if_they_were_alone(drawn, one_hash):
    codec = KeyCodec(pa.schema([("k", pa.int64())]))
    keys, times, chosen = (np.array(c, np.int64) for c in zip(*drawn, strict=True)) if drawn else (np.empty(0, np.int64),) * 3

    def grouped(keys, times, offsets, chosen=None):
        zero = np.zeros(len(keys), np.int64)
        data = pa.RecordBatch.from_pydict({"k": keys, "offset": offsets})
        return group_rows(data, Order(times, zero, offsets, zero), keys * (not one_hash), [data.column("k")], codec, chosen)

    at = np.flatnonzero(chosen)
    offsets = np.arange(len(keys))
    some, alone = grouped(keys, times, offsets, at), grouped(keys[at], times[at], offsets[at])
    assert some.data == alone.data
    assert some.keys.values() == alone.keys.values()
    assert some.starts.tolist() == alone.starts.tolist()
    assert [c.tolist() for c in some.order.columns()] == [c.tolist() for c in alone.order.columns()]


_POSITIONS = list(product(range(3), range(2), range(2), range(2)))
_ROW = st.tuples(st.sampled_from(_POSITIONS), st.integers(0, 1), st.integers(0, 9))  # position, key, whether it is chosen


def grouped_either_way(drawn, hashes_of, chosen):
    """What `group_rows` gives of many rows, and of few; and whether the quick way was taken."""
    codec = KeyCodec(pa.schema([("k", pa.int64())]))
    columns_ = [np.array([row[0][i] for row in drawn], np.int64) for i in range(4)]
    keys = pa.array([row[1] for row in drawn], pa.int64())
    hashes = hashes_of(np.array([-1 if row[1] is None else row[1] for row in drawn], np.int64))
    numbers = range(len(drawn))
    data = pa.RecordBatch.from_arrays(
        [
            keys,
            pa.array(numbers, pa.int64()),
            pa.array([-n for n in numbers], pa.int8()),
            pa.array([None if n % 3 else n for n in numbers], pa.int32()),
            pa.array([str(n) for n in numbers], pa.string()),
            pa.array([n % 2 == 0 for n in numbers], pa.bool_()),
        ],
        names=["k", "row", "small", "with nulls", "text", "flag"],
    )
    quickly, taken = grouping.grouped_runs, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "MANY", 1)
        patch.setattr(grouping, "_SHARE", 1)
        patch.setattr(grouping, "_PROBES", 60)
        patch.setattr(grouping, "grouped_runs", lambda *given: taken.append(quickly(*given)) or taken[-1])
        many = group_rows(data, Order(*columns_), hashes, ["k"], codec, chosen)
        patch.setattr(rows_module, "MANY", 1 << 62)
        few = group_rows(data, Order(*columns_), hashes, ["k"], codec, chosen)
    for at in ([0, len(many) - 1],) * (len(many) > 0):
        assert all(many.some(name, np.array(at)) == few.some(name, np.array(at)) for name in data.schema.names)
    assert many.data == few.data
    assert many.keys.values() == few.keys.values()
    assert many.keys.hashes.tolist() == few.keys.hashes.tolist()
    assert many.starts.tolist() == few.starts.tolist()
    assert [c.tolist() for c in many.order.columns()] == [c.tolist() for c in few.order.columns()]
    return any(found is not None for found in taken)


@pytest.mark.parametrize("alone", [True, False])  # a position has one row, or may have several
@given(st.data(), st.integers(0, 12), st.booleans(), st.booleans())
def test_rows_in_runs_are_grouped_as_by_sorting(alone, data, length, one_hash, some):
    drawn = data.draw(st.lists(_ROW, unique_by=(lambda row: row[0]) if alone else None, max_size=len(_POSITIONS)))
    if length:
        drawn = [row for at in range(0, len(drawn), length) for row in sorted(drawn[at : at + length])]
    chosen = np.array([i for i, row in enumerate(drawn) if row[2]], np.int64) if some else None
    quickly = grouped_either_way(drawn, lambda keys: keys * (not one_hash) * -(1 << 40), chosen)
    if alone and not one_hash:
        assert quickly == (len(drawn if chosen is None else chosen) > 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2)), min_size=1, max_size=40))
def test_rows_of_a_few_files_are_not_sorted(drawn):
    runs = [[], [], []]
    for at, (file, key) in enumerate(drawn):  # every record at a time of its own, in one of three files
        runs[file].append(((at, 0, file << 33 | len(runs[file]), 0), key, 1))
    assert grouped_either_way([row for run in runs for row in run], lambda keys: keys << 40, None)


def test_rows_in_many_runs_are_sorted():
    falling = [((100 - at, 0, at, 0), at % 3, 1) for at in range(65)]
    assert not grouped_either_way(falling, lambda keys: keys, None)
    assert grouped_either_way(falling[1:], lambda keys: keys, None)


def test_rows_without_a_key_are_told_from_those_whose_key_has_their_hash():
    drawn = [((at, 0, at, 0), None if at % 2 else 0, 1) for at in range(6)]
    assert not grouped_either_way(drawn, lambda keys: keys * 0, None)


@pytest.mark.parametrize("rows", [0, 7, 5_000, 200_000])
@pytest.mark.parametrize("some", [False, True])
def test_column_of_event_times_is_that_of_the_positions(rows, some):
    rng = np.random.default_rng(rows)
    key, at = rng.integers(0, 40, rows), np.sort(rng.integers(0, 1 << 40, rows))
    times = pa.array(at).view(pa.timestamp("us", "UTC"))
    data = pa.record_batch({"k": key, "at": times, "n": np.arange(rows)})
    order = Order(at, np.zeros(rows, np.int64), np.arange(rows), np.zeros(rows, np.int64))
    chosen = np.flatnonzero(rng.integers(0, 2, rows)) if some else None
    given_ = [data, order, key, ["k"], KeyCodec(pa.schema([("k", pa.int64())])), chosen]
    known, looked_up = group_rows(*given_, "at"), group_rows(*given_)
    assert known.data.equals(looked_up.data)
    places = np.array([0, len(known) - 1] if len(known) else [], np.int64)
    assert known.some("at", places).equals(looked_up.some("at", places))
