"""Rows cut into pages, one column after the other, for workers of a shuffle: Spark then moves pages instead of rows.

Spark spends most of a shuffle on each row: it writes it, reads it and takes it to Arrow one value at a time. A page holds some thousand
rows of one worker; Spark moves it as one row. Whole numbers take as many bytes in it as their range needs (frame of reference).

A page, in machine words: the number of rows; for each column its least value, and 16 times the bytes of a value plus whether nulls are
marked; then each column's values, less the least one, and its marks of a byte for each row. Each begins at a whole word.

Source: J. Goldstein, R. Ramakrishnan, U. Shaft, "Compressing Relations and Indexes" (1998), for the frame of reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.columns import gathered

BLOCK_ROWS: Final = 1 << 18
OPENED_ROWS: Final = 1 << 18
TO: Final = "to"
_FIELDS: Final[list[Any]] = [pa.field(TO, pa.int32()), pa.field("data", pa.binary())]
PAGES: Final = pa.schema(_FIELDS)
_WORD: Final = 8
_MARKED: Final = 16
_INTS: Final = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_ARROW: Final[dict[int, Any]] = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}

Values = NDArray[Any]


def is_paged(kind: pa.DataType) -> bool:
    """Whether a column of the type can be in a page: its values are of one fixed width of whole bytes."""
    types = pa.types
    fixed = types.is_integer(kind) or types.is_floating(kind) or types.is_date32(kind) or types.is_timestamp(kind)
    return fixed and kind.bit_width in _ARROW


def cut(
    batches: Iterable[pa.RecordBatch], worker_of: Callable[[pa.RecordBatch], Values], workers: int, page_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Cut rows into pages for workers; the rows of one worker stay in order.

    Args:
        batches: Rows of columns all of which `is_paged`.
        worker_of: Gives the worker of each row of a batch, whole numbers from 0.
        workers: How many there are.
        page_bytes: How large a page may be; larger ones have one row.

    Yields:
        Batches of `PAGES`.
    """
    from penstock.counting import scattered  # noqa: PLC0415  (numba takes a fifth of a second to load)

    for block in gathered(batches, BLOCK_ROWS):
        to = worker_of(block).astype(np.int32, copy=False)
        counts = np.bincount(to, minlength=workers)
        begins = np.cumsum(counts) - counts
        heads, columns = [block.num_rows], []
        for column in block.columns:
            values, least = _narrowed(column)
            parts = [values] if values is not None else []
            if column.null_count:
                parts.append(np.asarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.int8))
            heads += [least, (0 if values is None else values.itemsize) + (_MARKED if column.null_count else 0)]
            columns += [scattered(part, to, begins) for part in parts]
        head = np.array(heads, np.int64)
        row_bytes = sum(column.itemsize for column in columns)
        most = max(1, (page_bytes - head.nbytes - _WORD * len(columns)) // max(1, row_bytes))
        yield _written(head, columns, counts, begins, most)


def _narrowed(column: Any) -> tuple[Values | None, int]:
    """A column's values less the least of them, in as few bytes as they need, and that one. None: all are the least."""
    values = _filled(column)
    least, most = int(values.min()), int(values.max())
    if least == most:
        return None, least
    bits = (most - least).bit_length()
    width = next(width for width in _INTS if width >= bits)
    if width >= column.type.bit_width:
        return values, 0
    unsigned = f"u{values.itemsize}"
    above = values.view(unsigned) - np.array(least, values.dtype).view(unsigned)
    return above.astype(f"u{width // 8}").view(_INTS[width]), least


def _filled(column: Any) -> Values:
    """The bits of a column's values as whole numbers; in the places of nulls those of one that is there, or 0."""
    whole = column.view(_ARROW[column.type.bit_width])
    if column.null_count:
        known = whole.drop_null()
        whole = pc.fill_null(whole, known[0] if len(known) else pa.scalar(0, whole.type))
    values: Values = whole.to_numpy()
    return values


def _written(head: Values, columns: Sequence[Values], counts: Values, begins: Values, most: int) -> pa.RecordBatch:
    """The pages of a block, of at most so many rows each."""
    to: list[int] = []
    sizes = [0]
    parts: list[Values] = []
    gap = np.zeros(_WORD, np.uint8)
    for worker in np.flatnonzero(counts).tolist():
        end = int(begins[worker] + counts[worker])
        for begin in range(int(begins[worker]), end, most):
            upto = min(begin + most, end)
            own = head.copy()
            own[0] = upto - begin
            parts.append(own.view(np.uint8))
            size = own.nbytes
            for column in columns:
                piece = column[begin:upto].view(np.uint8)
                rest = -len(piece) % _WORD
                parts += [piece, gap[:rest]] if rest else [piece]
                size += len(piece) + rest
            to.append(worker)
            sizes.append(size)
    buffers: list[Any] = [np.cumsum(sizes).astype(np.int32), np.concatenate(parts)]
    data = pa.Array.from_buffers(pa.binary(), len(to), [None, *map(pa.py_buffer, buffers)])
    return pa.RecordBatch.from_arrays([pa.array(to, pa.int32()), data], schema=PAGES)


def opened(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of pages, in order.

    Args:
        batches: Batches of `PAGES`.
        schema: The columns of the rows, all of which `is_paged`.
    """
    words = 1 + 2 * len(schema)
    for batch in batches:
        column: Any = batch.column(1)
        _, offsets, data = column.buffers()
        at = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].tolist()
        whole = np.frombuffer(data, np.uint8)
        held: list[tuple[list[int], int]] = []
        rows = 0
        for begin in at[:-1]:
            head = whole[begin : begin + words * _WORD].view(np.int64).tolist()
            held.append((head, begin + words * _WORD))
            rows += head[0]
            if rows >= OPENED_ROWS:
                yield _read(whole, held, rows, schema)
                held, rows = [], 0
        if held:
            yield _read(whole, held, rows, schema)


def _read(whole: Values, pages: Sequence[tuple[list[int], int]], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of some pages, given as their heads and where their values begin."""
    begins = [begin for _, begin in pages]
    arrays = []
    for i, field in enumerate(schema):
        values = np.empty(rows, _INTS[field.type.bit_width])
        marks = np.ones(rows, np.bool_) if any(head[2 + 2 * i] & _MARKED for head, _ in pages) else None
        upto = 0
        for number, (head, _) in enumerate(pages):
            count, least, how = head[0], head[1 + 2 * i], head[2 + 2 * i]
            here = values[upto : upto + count]
            if width := how % _MARKED:
                here[:] = whole[begins[number] : begins[number] + count * width].view(
                    f"{'i' if width == values.itemsize else 'u'}{width}"
                )
                here += values.dtype.type(least)
                begins[number] += count * width + -count * width % _WORD
            else:
                here[:] = least
            if marks is not None and how & _MARKED:
                marks[upto : upto + count] = whole[begins[number] : begins[number] + count].view(np.bool_)
                begins[number] += count + -count % _WORD
            upto += count
        array: Any = pa.array(values, mask=None if marks is None else ~marks)
        arrays.append(array.view(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


__all__ = ["PAGES", "TO", "cut", "is_paged", "opened"]
