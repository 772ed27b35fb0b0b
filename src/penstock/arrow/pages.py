"""Rows divided into pages, one column after the other, for the workers of a shuffle: Spark moves pages instead of rows.

Spark spends most of a shuffle on each row: it writes it, reads it and converts it to Arrow value by value. A page holds some
thousand rows of one worker; Spark moves it as one row. Whole numbers take only the bytes that their range needs (frame of
reference).

A page, in machine words: the number of rows; for each column its least value, and 16 times the bytes of a value plus whether
nulls are marked; then each column's values, less the least one, its marks of a byte per row, and for text, whose values are
lengths, its bytes. Each part begins at a whole word.

Source: J. Goldstein, R. Ramakrishnan, U. Shaft, "Compressing Relations and Indexes" (1998), for the frame of reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrow.columns import GATHERED_BYTES, coalesce_batches

BLOCK_ROWS: Final = 1 << 18
OPENED_ROWS: Final = 1 << 18
_WRITTEN_BYTES: Final = 64 << 20
TO: Final = "to"
_FIELDS: Final[list[Any]] = [pa.field(TO, pa.int32()), pa.field("data", pa.binary())]
PAGES: Final = pa.schema(_FIELDS)
_WORD: Final = 8
_MARKED: Final = 16
_INTS: Final = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}

Values = NDArray[Any]


def is_paged(kind: pa.DataType) -> bool:
    """Whether a column of the type fits in pages: text, bytes, or values of one fixed width of at most eight bytes.

    Times only in µs: Spark hands over no others, and a page has numbers, not units.
    """
    types = pa.types
    times = types.is_date32(kind) or (types.is_timestamp(kind) and kind.unit == "us")
    fixed = types.is_integer(kind) or types.is_floating(kind) or times
    return (fixed and kind.bit_width in (8, 16, 32, 64)) or types.is_boolean(kind) or _is_text(kind)


def page_overhead(columns: int) -> int:
    """The most bytes of a page of so many columns that are not rows: its head and padding."""
    return _WORD * (1 + 2 * columns + 3 * columns)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def _bits(kind: pa.DataType) -> int:
    """The bits of the whole number that represents a value; for text that is the length."""
    return 32 if _is_text(kind) else 8 if pa.types.is_boolean(kind) else kind.bit_width


def _small(column: Any) -> Any:
    """Text and bytes with 32-bit offsets, also in sessions with ``useLargeVarTypes``."""
    kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
    return column


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a block, with the rows of each worker together.

    Attributes:
        least: The least value, which is subtracted from the others.
        values: Whole numbers, n; lengths for text. None: all are the least.
        marks: int8, n: whether there is a value; None: always.
        ends: int64, n + 1, for text: the start of each row, and the end.
        text: uint8: the bytes.
    """

    least: int
    values: Values | None
    marks: Values | None
    ends: Values | None = None
    text: Values | None = None

    @property
    def how(self) -> int:
        """The column's encoding, as a page states it."""
        return (0 if self.values is None else self.values.itemsize) + (0 if self.marks is None else _MARKED)

    def pieces(self, begin: int, end: int) -> Iterator[Values]:
        """The bytes of some rows, as a page has them."""
        for part in (self.values, self.marks):
            if part is not None:
                yield part[begin:end].view(np.uint8)
        if self.ends is not None and self.text is not None:
            yield self.text[self.ends[begin] : self.ends[end]]


def encode_pages(
    batches: Iterable[pa.RecordBatch], worker_of: Callable[[pa.RecordBatch], Values], workers: int, page_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Divide rows into pages for workers; the rows of one worker stay in order.

    Args:
        batches: Rows of columns all of which `is_paged`.
        worker_of: The worker of each row of a batch, whole numbers from 0.
        workers: The number of workers.
        page_bytes: The largest size of a page; larger ones have one row.

    Yields:
        Batches of `PAGES`.
    """
    for block in coalesce_batches(batches, BLOCK_ROWS):
        to = worker_of(block).astype(np.int32, copy=False)
        counts = np.bincount(to, minlength=workers)
        columns = _placed(block, to, np.cumsum(counts) - counts)
        head = np.array([block.num_rows, *(number for column in columns for number in (column.least, column.how))], np.int64)
        yield from _written(head, columns, counts, page_bytes)


def _placed(block: pa.RecordBatch, to: NDArray[np.int32], begins: NDArray[np.int64]) -> list[_Column]:
    """A block's columns with the rows of each worker together. `begins`: the first row of each worker."""
    from penstock.arrow.grouping import scattered  # noqa: PLC0415  (numba takes a fifth of a second to load)

    index: Any = None
    columns = []
    for column in block.columns:
        found: Any = _small(column)
        marks = None
        if found.null_count:
            marks = scattered(np.asarray(found.is_valid().to_numpy(zero_copy_only=False)).view(np.int8), to, begins)
        if _is_text(found.type):
            if index is None:
                index = pa.array(scattered(np.arange(block.num_rows), to, begins))
            columns.append(_text(found.take(index), marks))
        else:
            values, least = _narrowed(_filled(found))
            columns.append(_Column(least, None if values is None else scattered(values, to, begins), marks))
    return columns


def _text(column: Any, marks: Values | None) -> _Column:
    """Text with its rows grouped by worker."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    values, least = _narrowed(np.diff(ends).astype(np.int32))
    return _Column(least, values, marks, ends, np.frombuffer(data or b"", np.uint8))


def _narrowed(values: Values) -> tuple[Values | None, int]:
    """Values less the least of them, in as few bytes as they need, and the least. None: all are the least."""
    least, most = int(values.min()), int(values.max())
    if least == most:
        return None, least
    bits = (most - least).bit_length()
    width = next(width for width in _INTS if width >= bits)
    if width >= 8 * values.itemsize:
        return values, 0
    unsigned = f"u{values.itemsize}"
    above = values.view(unsigned) - np.array(least, values.dtype).view(unsigned)
    return above.astype(f"u{width // 8}").view(_INTS[width]), least


def _filled(column: Any) -> Values:
    """A column's values as whole numbers; nulls get the bits of an existing value, or 0."""
    truth = pa.types.is_boolean(column.type)
    whole = column.cast(pa.int8()) if truth else column.view(f"int{column.type.bit_width}")
    if column.null_count:
        known = whole.drop_null()
        whole = pc.fill_null(whole, known[0] if len(known) else pa.scalar(0, whole.type))
    values: Values = whole.to_numpy()
    return values


def _written(head: Values, columns: Sequence[_Column], counts: Values, page_bytes: int) -> Iterator[pa.RecordBatch]:
    """The pages of a block, some at a time."""
    fixed = sum(part.itemsize for column in columns for part in (column.values, column.marks) if part is not None)
    weights = np.arange(int(counts.sum()) + 1) * fixed  # of the previous rows
    for column in columns:
        weights += 0 if column.ends is None else column.ends
    room = page_bytes - head.nbytes - 3 * _WORD * len(columns)
    gap = np.zeros(_WORD, np.uint8)
    to: list[int] = []
    sizes = [0]
    parts: list[Values] = []
    written = 0
    ends = np.cumsum(counts).tolist()
    for worker in np.flatnonzero(counts).tolist():
        begin, end = ends[worker] - int(counts[worker]), ends[worker]
        while begin < end:
            upto = min(end, max(begin + 1, int(np.searchsorted(weights, weights[begin] + room, "right")) - 1))
            own = head.copy()
            own[0] = upto - begin
            pieces = [own.view(np.uint8)]
            for column in columns:
                for piece in column.pieces(begin, upto):
                    pieces += [piece, gap[: -len(piece) % _WORD]]
            parts += pieces
            to.append(worker)
            sizes.append(sum(map(len, pieces)))
            written += sizes[-1]
            begin = upto
            if written >= _WRITTEN_BYTES:
                yield _pages(to, sizes, parts)
                to, sizes, parts, written = [], [0], [], 0
    if to:
        yield _pages(to, sizes, parts)


def _pages(to: Sequence[int], sizes: Sequence[int], parts: Sequence[Values]) -> pa.RecordBatch:
    buffers: list[Any] = [np.cumsum(sizes).astype(np.int32), np.concatenate(parts)]
    data = pa.Array.from_buffers(pa.binary(), len(to), [None, *map(pa.py_buffer, buffers)])
    return pa.RecordBatch.from_arrays([pa.array(to, pa.int32()), data], schema=PAGES)


def decode_pages(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of pages, in order.

    Args:
        batches: Batches of `PAGES`.
        schema: The columns of the rows, all of which `is_paged`.
    """
    words = 1 + 2 * len(schema)
    row_bytes = sum(_bits(field.type) for field in schema) // 8
    has_text = any(_is_text(field.type) for field in schema)
    for batch in batches:
        column = _small(batch.column(1))
        _, offsets, data = column.buffers()
        at = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].tolist()
        whole = np.frombuffer(data, np.uint8)
        held: list[tuple[list[int], int]] = []
        rows = size = 0
        for begin, end in pairwise(at):
            head = whole[begin : begin + words * _WORD].view(np.int64).tolist()
            here = head[0] * row_bytes + has_text * (end - begin)  # an upper bound: of the text it counts all
            if held and (rows >= OPENED_ROWS or size + here > GATHERED_BYTES):
                yield _read(whole, held, rows, schema)
                held, rows, size = [], 0, 0
            held.append((head, begin + words * _WORD))
            rows += head[0]
            size += here
        if held:
            yield _read(whole, held, rows, schema)


def _read(whole: Values, pages: Sequence[tuple[list[int], int]], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of some pages, given their heads and the start of their values."""
    begins = [begin for _, begin in pages]
    arrays = []
    for i, field in enumerate(schema):
        text = _is_text(field.type)
        values = np.empty(rows, _INTS[_bits(field.type)])
        marks = np.ones(rows, np.bool_) if any(head[2 + 2 * i] & _MARKED for head, _ in pages) else None
        parts: list[Values] = []
        upto = 0
        for number, (head, _) in enumerate(pages):
            count, least, how = head[0], head[1 + 2 * i], head[2 + 2 * i]
            here = values[upto : upto + count]
            if width := how % _MARKED:
                kind = f"{'i' if width == values.itemsize else 'u'}{width}"
                here[:] = whole[begins[number] : begins[number] + count * width].view(kind)
                here += values.dtype.type(least)
                begins[number] += count * width + -count * width % _WORD
            else:
                here[:] = least
            if marks is not None and how & _MARKED:
                marks[upto : upto + count] = whole[begins[number] : begins[number] + count].view(np.bool_)
                begins[number] += count + -count % _WORD
            if text:
                size = int(here.sum(dtype=np.int64))
                parts.append(whole[begins[number] : begins[number] + size])
                begins[number] += size + -size % _WORD
            upto += count
        arrays.append(_as_text(values, marks, parts, field.type) if text else _as_numbers(values, marks, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_numbers(values: Values, marks: Values | None, kind: pa.DataType) -> Any:
    array: Any = pa.array(values, mask=None if marks is None else ~marks)
    return array.cast(kind) if pa.types.is_boolean(kind) else array.view(kind)


def _as_text(lengths: Values, marks: Values | None, parts: Sequence[Values], kind: pa.DataType) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers: list[Any] = [offsets, np.concatenate(parts)]
    array: Any = pa.Array.from_buffers(kind, len(lengths), [None, *map(pa.py_buffer, buffers)])
    return array if marks is None else pc.if_else(pa.array(marks), array, pa.scalar(None, kind))


__all__ = ["PAGES", "TO", "decode_pages", "encode_pages", "is_paged", "page_overhead"]
