"""Rows of an Arrow batch as bytes, one value per group of rows, column by column.

Columns of fixed width keep their memory layout; text and bytes are lengths and data; anything else is one pickle per group.
Nulls take a byte per value, only in groups that have any. NumPy prepares a column once, so a group costs a few slices.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import concat

_SIZE = struct.Struct("<I")
_PLAIN, _NULLS = b"\x00", b"\x01"

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def encode_rows(rows: pa.RecordBatch, bounds: Ints) -> Any:
    """One value per group, as an Arrow array (large_binary).

    Args:
        rows: the rows, grouped.
        bounds: int64[groups + 1], the first row of each group.
    """
    parts = [part for column in rows.columns for part in _encode(column, bounds)]
    return concat(*parts) if parts else stretches(b"", np.zeros(len(bounds), np.int64))


def stretches(raw: Any, bounds: Ints) -> Any:
    """Ranges of some bytes as an Arrow array (large_binary); the i-th goes from ``bounds[i]`` to ``bounds[i + 1]``."""
    ends: Any = np.ascontiguousarray(bounds, np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(ends), pa.py_buffer(raw)])


def decode_rows(schema: pa.Schema, raw: Bytes, at: Ints, counts: Ints) -> pa.RecordBatch:
    """The rows of several groups, one group after the other.

    Args:
        schema: the columns.
        raw: uint8, all bytes.
        at: int64[groups], the start of each group's value from ``encode_rows``; moved to its end.
        counts: int64[groups], the number of rows per group.
    """
    return pa.RecordBatch.from_arrays([_decode(field.type, raw, at, counts) for field in schema], schema=schema)


def pieces(raw: Bytes, at: Ints, sizes: Ints) -> Bytes:
    """The bytes of several ranges, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    found: Bytes = raw[np.arange(total) + np.repeat(at - (ends - sizes), sizes)]
    return found


def _width(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind):
        return None
    try:
        return kind.bit_width // 8
    except ValueError:
        return None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def _encode(column: Any, bounds: Ints) -> list[Any]:
    """Each group's bytes of a column, in parts to be joined."""
    column = pa.concat_arrays([column])  # from offset 0
    width = _width(column.type)
    if width is None and not _is_text(column.type):
        groups = [column.slice(a, b - a).to_pylist() for a, b in itertools.pairwise(bounds.tolist())]
        return [pa.array([_sized(pickle.dumps(group, protocol=5)) for group in groups], pa.large_binary())]
    flags = _flags(column, bounds)
    buffers = column.buffers()
    if width is not None:
        return [flags, stretches(buffers[1] or bytes(len(column) * width), bounds * width)]
    offsets = np.frombuffer(buffers[1], np.int32, len(column) + 1) if len(column) else np.zeros(1, np.int32)
    lengths = stretches(np.diff(offsets).astype("<i4"), bounds * 4)
    return [flags, lengths, stretches(buffers[2] or b"", offsets[bounds].astype(np.int64))]


def _flags(column: Any, bounds: Ints) -> Any:
    """Whether each group has nulls in a column, and where."""
    if not column.null_count:
        count = len(bounds) - 1
        return stretches(_PLAIN * count, np.arange(count + 1))
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    groups = [valid[a:b] for a, b in itertools.pairwise(bounds.tolist())]
    return pa.array([_PLAIN if group.all() else _NULLS + group.tobytes() for group in groups], pa.large_binary())


def _sized(raw: bytes) -> bytes:
    return _SIZE.pack(len(raw)) + raw


def _decode(kind: pa.DataType, raw: Bytes, at: Ints, counts: Ints) -> Any:
    width = _width(kind)
    if width is None and not _is_text(kind):
        return _decode_objects(kind, raw, at)
    total = int(counts.sum())
    some_null = raw[at] == _NULLS[0]
    at += 1
    valid = np.ones(total, np.uint8)
    if some_null.any():
        valid[np.repeat(some_null, counts)] = pieces(raw, at[some_null], counts[some_null])
        at[some_null] += counts[some_null]
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    if width is not None:
        body = pieces(raw, at, counts * width)
        at += counts * width
        return pa.Array.from_buffers(kind, total, [bits, pa.py_buffer(body.tobytes())])
    lengths = pieces(raw, at, 4 * counts).view("<i4")
    at += 4 * counts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.cumsum(counts)
    sizes = offsets[ends] - offsets[ends - counts]
    body = pieces(raw, at, sizes)
    at += sizes
    return pa.Array.from_buffers(
        kind, total, [bits, pa.py_buffer(offsets.astype("<i4").tobytes()), pa.py_buffer(body.tobytes())]
    )


def _decode_objects(kind: pa.DataType, raw: Bytes, at: Ints) -> Any:
    items: list[object] = []
    for group, begin in enumerate(at.tolist()):
        size = int.from_bytes(raw[begin : begin + 4].tobytes(), "little")
        items += pickle.loads(raw[begin + 4 : begin + 4 + size].tobytes())
        at[group] = begin + 4 + size
    return pa.array(items, kind)
