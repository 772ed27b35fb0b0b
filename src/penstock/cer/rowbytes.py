"""Rows of an Arrow batch as bytes, one value for each group of rows, column by column.

Columns of fixed width travel as they lie in memory; text and bytes as lengths and data; anything else as one pickle per group. Nulls
are told by a byte per value, only where a group has any. NumPy prepares a column once, so a group costs a few slices.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SIZE = struct.Struct("<I")
_PLAIN, _NULLS = b"\x00", b"\x01"

Ints = NDArray[np.int64]


def encode_rows(rows: pa.RecordBatch, bounds: Ints) -> list[bytes]:
    """One value for each group.

    Args:
        rows: the rows, those of a group together.
        bounds: int64[groups + 1], where each group begins.
    """
    parts = [_encode(column, bounds.tolist()) for column in rows.columns]
    return [b"".join(pieces) for pieces in zip(*parts, strict=True)] if parts else [b""] * (len(bounds) - 1)


def decode_rows(schema: pa.Schema, values: Sequence[memoryview], counts: Sequence[int]) -> pa.RecordBatch:
    """The rows of several groups, one group after the other.

    Args:
        schema: the columns.
        values: of each group what ``encode_rows`` gave.
        counts: how many rows each group has.
    """
    at = [0] * len(values)
    columns = [_decode(field.type, values, counts, at) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _width(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind):
        return None
    try:
        return kind.bit_width // 8
    except ValueError:
        return None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def _encode(column: Any, bounds: list[int]) -> list[bytes]:
    pairs = list(itertools.pairwise(bounds))
    column = pa.concat_arrays([column])  # from offset 0
    width = _width(column.type)
    if width is None and not _is_text(column.type):
        return [_sized(pickle.dumps(column.slice(a, b - a).to_pylist(), protocol=5)) for a, b in pairs]
    if column.null_count:
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)
        present = [int(valid[a:b].all()) for a, b in pairs]
        flags = [
            _PLAIN if all_there else _NULLS + valid[a:b].tobytes() for (a, b), all_there in zip(pairs, present, strict=True)
        ]
    else:
        flags = [_PLAIN] * len(pairs)
    buffers = column.buffers()
    if width is not None:
        raw = memoryview(buffers[1])[: len(column) * width].tobytes() if buffers[1] is not None else bytes(len(column) * width)
        return [flag + raw[a * width : b * width] for flag, (a, b) in zip(flags, pairs, strict=True)]
    offsets = np.frombuffer(buffers[1], np.int32, len(column) + 1) if len(column) else np.zeros(1, np.int32)
    lengths = np.diff(offsets).astype("<i4").tobytes()
    data = b"" if buffers[2] is None else memoryview(buffers[2]).tobytes()
    where = offsets.tolist()
    return [flag + lengths[4 * a : 4 * b] + data[where[a] : where[b]] for flag, (a, b) in zip(flags, pairs, strict=True)]


def _sized(raw: bytes) -> bytes:
    return _SIZE.pack(len(raw)) + raw


def _decode(kind: pa.DataType, values: Sequence[memoryview], counts: Sequence[int], at: list[int]) -> Any:
    width = _width(kind)
    if width is None and not _is_text(kind):
        items: list[object] = []
        for g, value in enumerate(values):
            size = _SIZE.unpack_from(value, at[g])[0]
            begin = at[g] + _SIZE.size
            items += pickle.loads(value[begin : begin + size])
            at[g] = begin + size
        return pa.array(items, kind)
    total = sum(counts)
    valid, data, lengths = [], [], []
    for g, (value, n) in enumerate(zip(values, counts, strict=True)):
        begin = at[g] + 1
        if value[at[g] : begin] == _NULLS:
            valid.append(np.frombuffer(value, np.uint8, n, begin))
            begin += n
        else:
            valid.append(np.ones(n, np.uint8))
        if width is None:
            sizes = np.frombuffer(value, "<i4", n, begin)
            lengths.append(sizes)
            begin += 4 * n
            size = int(sizes.sum())
        else:
            size = n * width
        data.append(value[begin : begin + size])
        at[g] = begin + size
    present = np.concatenate(valid) if valid else np.zeros(0, np.uint8)
    bits = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    body = pa.py_buffer(b"".join(data))
    if width is not None:
        return pa.Array.from_buffers(kind, total, [bits, body])
    offsets = np.concatenate([[0], *lengths]).cumsum().astype("<i4")
    return pa.Array.from_buffers(kind, total, [bits, pa.py_buffer(offsets.tobytes()), body])
