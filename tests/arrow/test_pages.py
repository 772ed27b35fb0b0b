"""Rows cut into pages and opened again are the same rows, each with its worker, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrow import pages
from penstock.arrow.pages import PAGES, TO, decode_pages, encode_pages, is_paged

UTC = pa.timestamp("us", "UTC")
TEXTS = [pa.string(), pa.binary()]
KINDS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.date32(), UTC]


def whole(kind: pa.DataType) -> pa.DataType:
    """A type whose values tell all bits."""
    if kind in TEXTS or kind == pa.bool_():
        return kind
    return pa.from_numpy_dtype(np.dtype(f"i{kind.bit_width // 8}"))


def as_kind(array: Any, kind: pa.DataType) -> Any:
    return array if array.type == kind else array.view(kind)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Bits of any value, near each other or not; any text, of the same length or not."""
    if kind == pa.bool_():
        return st.booleans()
    if kind == pa.string():
        return st.one_of(st.sampled_from(["T0", "T1"]), st.text(max_size=300))
    if kind == pa.binary():
        return st.binary(max_size=20)
    least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    return st.one_of(st.integers(0, 3), st.integers(least, most), st.integers(max(0, most - 300), most))


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch], int]:
    kinds = draw(st.lists(st.sampled_from([*KINDS, *TEXTS, pa.bool_()]), min_size=1, max_size=4))
    workers = draw(st.integers(1, 4))
    schema = pa.schema([*(pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)), pa.field("last", pa.int32())])
    batches = []
    for n in draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)):
        arrays: list[Any] = []
        for kind in kinds:
            part = values(kind) if draw(st.booleans()) else st.one_of(st.none(), values(kind))
            arrays.append(as_kind(pa.array(draw(st.lists(part, min_size=n, max_size=n)), whole(kind)), kind))
        to: Any = pa.array(draw(st.lists(st.integers(0, workers - 1), min_size=n, max_size=n)), pa.int32())
        batches.append(pa.RecordBatch.from_arrays([*arrays, to], schema=schema))
    return schema, batches, workers


def rows(batches: list[pa.RecordBatch], schema: pa.Schema) -> tuple[int, list[list[Any]]]:
    """How many, and their values by bits, as NaN are not equal."""
    count, found = 0, [[] for _ in schema]  # type: tuple[int, list[list[Any]]]
    for batch in batches:
        count += batch.num_rows
        for i, field in enumerate(schema):
            array: Any = batch.column(schema.get_field_index(field.name))
            found[i] += as_kind(array, whole(field.type)).to_pylist()
    return count, found


def last(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1).to_numpy()


def of(batches: list[pa.RecordBatch], name: str, worker: int) -> list[pa.RecordBatch]:
    return [batch.filter(pa.array(np.asarray(batch.column(name)) == worker)) for batch in batches]


@given(tables(), st.sampled_from([1, 100, 400, 1 << 16]))
def test_rows_come_back(made: tuple[pa.Schema, list[pa.RecordBatch], int], page_bytes: int) -> None:
    schema, batches, workers = made
    cuts = list(encode_pages(batches, last, workers, page_bytes))
    for worker in range(workers):
        told = list(decode_pages(of(cuts, TO, worker), schema))
        assert all(batch.schema == schema for batch in told)
        assert rows(told, schema) == rows(of(batches, "last", worker), schema)


def test_pages_are_no_larger_than_they_may_be_and_narrow() -> None:
    n = 100_000
    ids, keys = pa.array(np.arange(n) + (1 << 40)), pa.array(np.arange(n) % 200)
    batch = pa.RecordBatch.from_arrays([ids, keys], names=["id", "k"])
    (sent,) = encode_pages([batch], lambda rows: np.zeros(rows.num_rows, np.int64), 1, 4096)
    lengths = [len(page.as_py()) for page in sent.column(1)]
    assert sent.schema == PAGES
    assert max(lengths) <= 4096
    assert sum(lengths) < 1.1 * n * (4 + 1)  # 17 bits and 8
    own = pa.schema([pa.field("id", pa.int64()), pa.field("k", pa.int64())])
    told = pa.Table.from_batches(decode_pages([sent.slice(0, 3), sent.slice(3)], own))
    assert told.equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize("limit", ["_WRITTEN_BYTES", "GATHERED_BYTES"])
def test_much_text_comes_in_several_batches(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    texts: Any = pa.array([str(i) * (i % 70) if i % 9 else None for i in range(500)])
    batch = pa.RecordBatch.from_arrays([texts, pa.array(np.arange(500) % 3, pa.int32())], names=["t", "last"])
    monkeypatch.setattr(pages, limit, 2000)
    cuts = list(pages.encode_pages([batch], last, 3, 1000))
    assert len(cuts) > 10 or limit == "GATHERED_BYTES"
    for worker in range(3):
        told = list(decode_pages(of(cuts, TO, worker), batch.schema))
        assert len(told) > 4
        assert rows(told, batch.schema) == rows(of([batch], "last", worker), batch.schema)


def test_opened_batches_are_bounded_by_what_they_hold_not_by_what_pages_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "GATHERED_BYTES", 200_000)
    wide = pa.RecordBatch.from_arrays(
        [pa.array(np.arange(20_000) % 50 + i) for i in range(20)], names=[f"c{i}" for i in range(20)]
    )
    (sent,) = encode_pages([wide], lambda rows: np.zeros(rows.num_rows, np.int64), 1, 8192)
    told = list(decode_pages([sent], wide.schema))
    assert pa.Table.from_batches(told).equals(pa.Table.from_batches([wide]))
    assert max(batch.nbytes for batch in told) <= 200_000


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_times_are_paged_in_micros_only_as_others_are_other_numbers(unit: str) -> None:
    kind = pa.timestamp(unit, "UTC")
    assert not is_paged(kind)
    source = ps.files("unused", pa.schema([pa.field("at", kind), pa.field("l", pa.list_(kind))]))
    assert source.schema == pa.schema([pa.field("at", micros := pa.timestamp("us", "UTC")), pa.field("l", pa.list_(micros))])


def test_text_with_long_offsets_is_the_same_text() -> None:
    texts = ["ab", None, "", "c" * 400]
    large, usual = (pa.record_batch({"t": pa.array(texts, kind)}) for kind in (pa.large_string(), pa.string()))
    (cuts,) = encode_pages([large], lambda batch: np.zeros(batch.num_rows, np.int32), 1, 100)
    sent = cuts.set_column(1, "data", cuts.column(1).cast(pa.large_binary()))  # type: ignore[attr-defined]
    assert pa.Table.from_batches(decode_pages([sent], usual.schema)).equals(pa.Table.from_batches([usual]))


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.list_(pa.int64()), pa.null(), pa.large_string()])
def test_other_types_are_not_paged(kind: pa.DataType) -> None:
    assert not is_paged(kind)


@pytest.mark.parametrize("kind", [*KINDS, *TEXTS, pa.bool_()])
def test_types_are_paged(kind: pa.DataType) -> None:
    assert is_paged(kind)
