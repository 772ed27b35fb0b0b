"""Rows cut into pages and opened again are the same rows, each with its worker, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pages import PAGES, TO, cut, is_paged, opened

UTC = pa.timestamp("us", "UTC")
KINDS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.date32(), UTC]


def whole(kind: pa.DataType) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(f"i{kind.bit_width // 8}"))


def values(kind: pa.DataType) -> st.SearchStrategy[int]:
    """Bits of any value, near each other or not."""
    least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    return st.one_of(st.integers(0, 3), st.integers(least, most), st.integers(max(0, most - 300), most))


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch], int]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    workers = draw(st.integers(1, 4))
    schema = pa.schema([*(pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)), pa.field("last", pa.int32())])
    batches = []
    for n in draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)):
        arrays: list[Any] = []
        for kind in kinds:
            part = values(kind) if draw(st.booleans()) else st.one_of(st.none(), values(kind))
            arrays.append(pa.array(draw(st.lists(part, min_size=n, max_size=n)), whole(kind)).view(kind))
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
            found[i] += array.view(whole(field.type)).to_pylist()
    return count, found


def last(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1).to_numpy()


def of(batches: list[pa.RecordBatch], name: str, worker: int) -> list[pa.RecordBatch]:
    return [batch.filter(pa.array(np.asarray(batch.column(name)) == worker)) for batch in batches]


@given(tables(), st.sampled_from([1, 100, 400, 1 << 16]))
def test_rows_come_back(made: tuple[pa.Schema, list[pa.RecordBatch], int], page_bytes: int) -> None:
    schema, batches, workers = made
    pages = list(cut(batches, last, workers, page_bytes))
    for worker in range(workers):
        told = list(opened(of(pages, TO, worker), schema))
        assert all(batch.schema == schema for batch in told)
        assert rows(told, schema) == rows(of(batches, "last", worker), schema)


def test_pages_are_no_larger_than_they_may_be_and_narrow() -> None:
    n = 100_000
    ids, keys = pa.array(np.arange(n) + (1 << 40)), pa.array(np.arange(n) % 200)
    batch = pa.RecordBatch.from_arrays([ids, keys], names=["id", "k"])
    (pages,) = cut([batch], lambda rows: np.zeros(rows.num_rows, np.int64), 1, 4096)
    lengths = [len(page.as_py()) for page in pages.column(1)]
    assert pages.schema == PAGES
    assert max(lengths) <= 4096
    assert sum(lengths) < 1.1 * n * (4 + 1)  # 17 bits and 8
    own = pa.schema([pa.field("id", pa.int64()), pa.field("k", pa.int64())])
    told = pa.Table.from_batches(opened([pages.slice(0, 3), pages.slice(3)], own))
    assert told.equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.decimal128(38, 0), pa.list_(pa.int64()), pa.null()])
def test_other_types_are_not_paged(kind: pa.DataType) -> None:
    assert not is_paged(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_one_width_are_paged(kind: pa.DataType) -> None:
    assert is_paged(kind)
