"""Events in order, in memory and over files, against Python's own sort."""

from __future__ import annotations

import math
from datetime import date, datetime
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from penstock.errors import RecordError
from penstock.patterns import sorting
from penstock.patterns.sorting import Sorting, is_sortable, is_whole
from penstock.routing.hashing import spark_xxhash64

ROW_BYTES = 24


def batches_of(rows, cuts, kind):
    columns = {"hash": pa.int64(), "key": pa.int64(), "at": kind}
    table = pa.table({name: pa.array([row[i] for row in rows], t) for i, (name, t) in enumerate(columns.items())})
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    whole = table.combine_chunks()
    for begin, end in pairwise(places):
        yield from whole.slice(begin, end - begin).to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]


def rows_of(batches):
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


KINDS = st.sampled_from(
    [
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]))),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.float32(), st.floats(allow_nan=False, width=32)),
        (pa.timestamp("us"), st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))),  # noqa: DTZ001
        (pa.date32(), st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    ]
)


@st.composite
def cases(draw):
    kind, values = draw(KINDS)
    hashes = draw(st.sampled_from([1, 2, 50]))
    rows = draw(st.lists(st.tuples(st.integers(0, 6), values), max_size=60))
    return kind, [(key % hashes - 1, key, at) for key, at in rows]


@given(cases(), st.lists(st.integers(0, 60), max_size=4), st.integers(1, 25))
def test_sorted_events_are_all_events_key_by_key_in_order(case, cuts, held_rows):
    kind, rows = case
    by_hash = Sorting(("hash", "at"), ("key",), held_bytes=held_rows * ROW_BYTES)
    try:
        found = rows_of(by_hash.sorted(batches_of(rows, cuts, kind)))
    except RecordError:
        event("keys of one hash, and too many")
        longest = max(len(list(group)) for _, group in groupby(sorted(row[0] for row in rows)))
        assert longest > held_rows / 3
        return
    assert sorted(found) == sorted(rows)
    assert [row[0] for row in found] == sorted(row[0] for row in rows)
    stretches = [(key, [row[2] for row in group]) for key, group in groupby(found, lambda row: row[1])]
    assert len(stretches) == len({key for key, _ in stretches})
    assert all(times == sorted(times) for _, times in stretches)
    event("over files" if len(rows) > held_rows else "in memory")


@given(cases(), st.integers(1, 25))
def test_sorted_events_without_keys_are_in_order(case, held_rows):
    kind, rows = case
    found = rows_of(Sorting(("at",), held_bytes=held_rows * ROW_BYTES).sorted(batches_of(rows, [7, 20], kind)))
    assert sorted(found) == sorted(rows)
    assert [row[2] for row in found] == sorted(row[2] for row in rows)


@given(st.lists(st.tuples(st.sampled_from(["a", "bb", ""]), st.integers(0, 9)), max_size=60), st.integers(1, 25))
def test_events_that_lack_the_hash_of_their_keys_get_it(rows, held_rows):
    key, at = pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())
    batches = pa.table({"key": key, "at": at}).to_batches(max_chunksize=7)
    found = rows_of(Sorting(("hash", "at"), ("key",), held_bytes=held_rows * 13).sorted(batches))
    hashes = spark_xxhash64([key]).tolist()
    assert [row[::-1] for row in found] == sorted((h, at, key) for h, (key, at) in zip(hashes, rows, strict=True))


def test_keys_of_one_hash_when_few_then_are_not_mixed():
    rows = [(5, key, at) for at in range(4) for key in (1, 2, 3)]
    found = rows_of(Sorting(("hash", "at"), ("key",)).sorted(batches_of(rows, [], pa.int64())))
    assert found == [(5, key, at) for key in (1, 2, 3) for at in range(4)]


def test_keys_of_one_hash_when_more_than_is_held_then_are_refused():
    rows = [(5, key, at) for at in range(100) for key in (1, 2)]
    with pytest.raises(RecordError, match=r"Two keys, \{'hash': 5, 'key': . *\} and .* name a further column in PARTITION BY"):
        list(Sorting(("hash", "at"), ("key",), held_bytes=20 * ROW_BYTES).sorted(batches_of(rows, [30, 90], pa.int64())))


def test_nan_comes_last_and_any_nan_is_the_same():
    other = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    times = [math.nan, 1.0, math.inf, other, -0.0, -math.inf]
    batch = pa.RecordBatch.from_arrays([pa.array(times)], names=["at"])
    (found,) = Sorting(("at",)).sorted([batch])
    assert found.column(0).to_pylist()[:4] == [-math.inf, 0.0, 1.0, math.inf]


def test_nan_keys_of_one_hash_are_one_key():
    batch = pa.RecordBatch.from_pydict({"hash": [1, 1, 1], "key": [math.nan, 2.0, math.nan], "at": [3, 2, 1]})
    found = [row for batch in Sorting(("hash", "at"), ("key",)).sorted([batch]) for row in batch.to_pylist()]
    assert [row["at"] for row in found] == [2, 1, 3]


def test_nulls_of_the_order_do_no_harm():
    batch = pa.RecordBatch.from_arrays([pa.array([3, None, 1])], names=["at"])
    (found,) = Sorting(("at",)).sorted([batch])
    assert sorted(found.column(0).drop_null().to_pylist()) == [1, 3]
    assert found.num_rows == 3


def test_what_is_held_is_bounded_and_files_are_gone(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    rows, held = 200_000, 10_000
    seen = []

    def watched(runs, begins, ends, joined=sorting._joined):
        assert len(list(tmp_path.rglob("*"))) > len(runs)
        seen.append(sum(ends) - sum(begins))
        return joined(runs, begins, ends)

    monkeypatch.setattr(sorting, "_joined", watched)
    keys = rng.integers(0, 50, rows)
    keys[: rows // 2] = 7  # more than can be held
    whole = pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(rng.permutation(rows)), pa.array(keys)], names=["key", "at", "other"]
    )
    parts = [whole.slice(i, 1000) for i in range(0, rows, 1000)]
    given = Sorting(("key", "at"), held_bytes=held * ROW_BYTES).sorted(iter(parts), str(tmp_path))
    found = np.concatenate([np.stack([b.column(i).to_numpy() for i in range(2)]) for b in given], axis=1)
    order = np.lexsort((whole.column(1).to_numpy(), keys))
    assert (found == np.stack([keys[order], whole.column(1).to_numpy()[order]])).all()
    assert len(seen) > 10
    assert max(seen) < 3 * held
    assert not list(tmp_path.iterdir())


def test_files_are_gone_when_nobody_reads_on(tmp_path):
    batches = [pa.RecordBatch.from_arrays([pa.array(range(1000))], names=["at"]) for _ in range(9)]
    given = Sorting(("at",), held_bytes=4000).sorted(iter(batches), str(tmp_path))
    next(given)
    given.close()
    assert not list(tmp_path.iterdir())


def test_no_events_give_none():
    assert list(Sorting(("at",)).sorted([])) == []


@pytest.mark.parametrize(
    ("kind", "whole", "sortable"),
    [
        (pa.int8(), True, True),
        (pa.timestamp("us", "UTC"), True, True),
        (pa.float32(), False, True),
        (pa.string(), False, False),
        (pa.decimal128(10, 2), False, False),
        (pa.bool_(), False, False),
        (pa.duration("us"), False, False),
    ],
)
def test_types_by_which_events_are_sorted(kind, whole, sortable):
    assert is_whole(kind) == whole
    assert is_sortable(kind) == sortable


MANY = 9 << 13  # from 65,536 on runs are merged


def in_blocks(rng):
    """Places in the order, of which those of each block ascend and no two blocks overlap, as of files that were written in turn."""
    blocks = np.split(np.sort(rng.integers(0, 1 << 40, MANY)), 9)
    return np.concatenate([blocks[i] for i in rng.permutation(9)])


def sorted_by_key_and_at(key, at):
    batch = pa.record_batch([key, at, np.arange(len(key))], names=["key", "at", "came"])
    third = len(key) // 3
    return (
        pa.Table.from_batches(Sorting(("key", "at")).sorted([batch.slice(0, third), batch.slice(third)]))
        .column("came")
        .to_pylist()
    )


@pytest.mark.parametrize(
    "kind", ["keys of any sign", "one key", "a key each", "runs that overlap", "in no order", "ties", "ties within runs"]
)
def test_many_events_are_sorted_as_numpy_sorts_them_whatever_runs_they_come_in(kind):
    rng = np.random.default_rng(5)
    key, at = rng.integers(-(1 << 62), 1 << 62, 50)[rng.integers(0, 50, MANY)], in_blocks(rng)
    match kind:
        case "one key":
            key = np.full(MANY, -7)
        case "a key each":
            key = np.arange(MANY)
        case "runs that overlap":
            at = np.concatenate([np.sort(part) for part in np.split(rng.permutation(MANY), 9)])
        case "in no order":
            at = rng.permutation(MANY)
        case "ties":
            at = at >> 34
        case "ties within runs":
            at = at & ~7
    assert sorted_by_key_and_at(key, at) == np.lexsort([at, key]).tolist()


def test_runs_of_many_events_are_merged_and_not_sorted(monkeypatch):
    monkeypatch.setattr(sorting, "lexicographic", None)
    key, at = np.arange(MANY) % 100 - 50, in_blocks(np.random.default_rng(6))
    assert sorted_by_key_and_at(key, at) == np.lexsort([at, key]).tolist()


def test_runs_of_many_events_of_hashed_keys_are_merged_too(monkeypatch):
    monkeypatch.setattr(sorting, "lexicographic", None)
    key, at = np.arange(MANY) % 100, in_blocks(np.random.default_rng(6))
    batch = pa.record_batch({"key": pa.array(key).cast(pa.string()), "at": at, "came": np.arange(MANY)})
    found = pa.Table.from_batches(Sorting(("hash", "at"), ("key",)).sorted([batch])).column("came").to_numpy()
    hashes = spark_xxhash64([batch.column("key")])
    assert found.tolist() == np.lexsort([at, hashes]).tolist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.date32()])
@pytest.mark.parametrize("by", [("at",), ("at", "nth"), ("nth", "at", "same")])
def test_columns_of_any_type_go_with_their_events(monkeypatch, kind, by):
    monkeypatch.setattr(sorting, "lexicographic", None)
    monkeypatch.setattr(sorting, "GIVEN_ROWS", 10_007)
    rng = np.random.default_rng(7)
    some, number = rng.random(MANY) < 0.3, rng.integers(-(1 << 62), 1 << 62, MANY)
    columns = {
        "text": pa.array([f"{n:x}" for n in number.tolist()], mask=some),
        "key": pa.array(rng.integers(0, 100, MANY) - 50).cast(pa.int32()).cast(kind),
        "at": pa.array(in_blocks(rng).view("datetime64[us]"), pa.timestamp("us", "UTC")),
        "nth": pa.array(np.arange(MANY)),
        "same": pa.array(np.full(MANY, 3, np.int16)),
        "float": pa.array(number / 3),
        "short": pa.array((number >> 48).astype(np.int16)),
        "with nulls": pa.array(number, mask=some),
        "flag": pa.array(some),
        "money": pa.array(np.arange(MANY)).cast(pa.decimal128(20)),
        "list": pa.ListArray.from_arrays(pa.array(np.arange(MANY + 1), pa.int32()), pa.array(number)),
    }
    whole = pa.record_batch(columns)
    found = pa.Table.from_batches(Sorting(("key", *by)).sorted([whole.slice(0, 9), whole.slice(9)]))
    order = [columns[name].cast(pa.int64()) if name == "at" else columns[name] for name in by]
    key = columns["key"].cast(pa.int32())
    index = np.lexsort([*(column.to_numpy() for column in reversed(order)), key.to_numpy()])
    assert found.equals(pa.Table.from_batches([whole.take(pa.array(index))]))
