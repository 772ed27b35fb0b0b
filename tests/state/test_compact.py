from __future__ import annotations

import importlib
import random
import tempfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_rows import rows, versions, write

from penstock.errors import StateError
from penstock.state import FileRef, Metadata, Version, compact, deltas, iterate, read_batches, should_compact
from penstock.state.deltas import BATCH_ROWS
from penstock.types import MAX_TIME


def live(fs, root, version):
    return {row["key"]: (row["value"], row["timer"]) for batch in iterate(fs, root, version) for row in batch.to_pylist()}


def test_iterate_when_keys_are_rewritten_and_deleted_then_last_wins(fs, root):
    version = versions(fs, root, {b"a": b"1", b"b": (b"1", 5), b"c": b"1"}, {b"a": b"2", b"b": None}, {b"b": b"3", b"c": None})[
        -1
    ]
    assert live(fs, root, version) == {b"a": (b"2", MAX_TIME), b"b": (b"3", MAX_TIME)}


def test_iterate_when_state_is_empty_then_no_batches(fs, root):
    assert list(iterate(fs, root, Version())) == []


def test_compact_when_many_batches_then_sorted_full_batches_and_same_lineage(fs, root):
    dice = random.Random(7)
    everything = {dice.randbytes(6): dice.randbytes(3) for _ in range(150_000)}
    ordered = sorted(everything)
    parts = [rows({key: everything[key] for key in ordered[at : at + 40_000]}) for at in range(0, len(ordered), 40_000)]
    base = write(fs, root, "b0", parts, 0, "base")
    version = Version(0, base)
    for number in (1, 2):
        changes = {key: dice.choice([None, b"new"]) for key in dice.sample(ordered, 20_000)}
        changes |= {dice.randbytes(6): b"added" for _ in range(5_000)} | {b"": b"first", b"\xff" * 7: b"last"}
        version = version.with_delta(write(fs, root, f"d{number}", changes, number), number)
        everything |= changes
    made = compact(fs, root, version, "b1", Metadata("base", "me", 2), "s")
    batches = list(read_batches(fs, root, made))
    keys = [key for batch in batches for key in batch.column("key").to_pylist()]
    want = {key: value for key, value in everything.items() if value is not None}
    assert keys == sorted(want)
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [want[key] for key in keys]
    assert [batch.num_rows for batch in batches[:-1]] == [BATCH_ROWS] * (len(batches) - 1)
    assert made.rows == len(want)
    assert made.lineage == version.lineage()
    assert live(fs, root, version.with_base(made)) == live(fs, root, version)


def test_compact_when_base_has_an_empty_batch_then_the_rest_is_kept(fs, root):
    base = write(fs, root, "b0", [rows({}), rows({b"a": b"1"}), rows({})], 0, "base")
    assert live(fs, root, Version(0, base)) == {b"a": (b"1", MAX_TIME)}


KEYS = st.binary(max_size=2)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=40) | st.tuples(st.binary(max_size=3), st.integers(0, 9)))


@given(base=st.dictionaries(KEYS, st.binary(max_size=40)), changed=st.lists(st.tuples(CHANGES, st.booleans()), max_size=6))
def test_compact_when_batches_are_tiny_then_equals_a_dict(base, changed):
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        for module in (deltas, importlib.import_module("penstock.state.compaction")):
            patch.setattr(module, "BATCH_ROWS", 4)
            patch.setattr(module, "BATCH_BYTES", 100)
        compare_with_a_dict(pafs.LocalFileSystem(), root, base, changed)


def compare_with_a_dict(fs, root, base, changed):
    want = dict(base)
    version = Version(0, write(fs, root, "b0", base, 0, "base"))
    for number, (changes, gone) in enumerate(changed, 1):
        file = write(fs, root, f"d{number}", changes, number)
        version = version.with_delta(replace(file, role="gone") if gone else file, number)
        want |= dict.fromkeys(changes) if gone else changes
    batches = list(iterate(fs, root, version))
    found = [(row["key"], (row["value"], row["timer"])) for batch in batches for row in batch.to_pylist()]
    want = {key: value if isinstance(value, tuple) else (value, MAX_TIME) for key, value in want.items() if value is not None}
    assert found == sorted(want.items())
    assert all(batch.num_rows <= 4 for batch in batches)
    made = compact(fs, root, version, "b1", Metadata("base", "me", 9), "s")
    assert [row for batch in read_batches(fs, root, made) for row in batch.to_pylist()] == [
        {"key": key, "value": value, "timer": timer} for key, (value, timer) in sorted(want.items())
    ]


def test_compact_when_files_are_large_then_two_batches_of_each_are_in_memory(fs, root, monkeypatch):
    monkeypatch.setattr(deltas, "_WHOLE_BYTES", 0)
    dice = random.Random(3)
    version = Version()
    for number in range(8):
        changes = {b"%09d" % dice.randrange(10**9): dice.randbytes(120) for _ in range(60_000)}
        version = version.with_delta(write(fs, root, f"d{number}", changes, number), number)
    del changes
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        compact(fs, root, version, "b", Metadata("base", "me", 9), "s")
    finally:
        pa.set_memory_pool(before)
    total = sum(delta.bytes for delta in version.deltas)
    assert total > 50 << 20
    assert 2 << 20 < pool.max_memory() < total / 2


def test_compact_when_one_key_is_larger_than_a_batch_then_it_is_merged_alone(fs, root):
    large = [bytes([n]) * (3 << 20) for n in range(5)]
    version = versions(fs, root, *({b"a": b"1", b"big": value, b"z": b"2"} for value in large))[-1]
    batches = list(iterate(fs, root, version))
    assert [row["key"] for batch in batches for row in batch.to_pylist()] == [b"a", b"big", b"z"]
    assert {row["value"] for batch in batches for row in batch.to_pylist()} == {b"1", large[-1], b"2"}
    assert [b.num_rows for b in read_batches(fs, root, version.deltas[0])] == [1, 1, 1]


@pytest.mark.parametrize(
    ("base_bytes", "delta_bytes", "deltas", "want"),
    [
        (0, 1, 63, False),
        (0, 1, 64, True),
        (0, 4 << 20, 1, False),
        (0, (4 << 20) + 1, 1, True),
        (9 << 20, 9 << 20, 1, False),
        (9 << 20, (9 << 20) + 1, 1, True),
    ],
)
def test_should_compact_when_at_the_bounds_then_only_beyond(base_bytes, delta_bytes, deltas, want):
    base = FileRef("b", 0, base_bytes, 1, "x") if base_bytes else None
    assert should_compact(Version(9, base, (FileRef("d", 1, delta_bytes, 1, "y"),) * deltas)) is want


def test_compact_when_delta_is_torn_then_no_base_is_left(fs, root):
    version = versions(fs, root, {b"a": b"1"})[0]
    fs.delete_file(f"{root}/d0")
    with pytest.raises(Exception, match="d0 is missing") as wrong:
        compact(fs, root, version, "b", Metadata("base", "me", 0), "s")
    assert not isinstance(wrong.value, StateError)
    assert fs.get_file_info(f"{root}/b").type.name == "NotFound"
