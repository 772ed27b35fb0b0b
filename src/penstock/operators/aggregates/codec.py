"""Aggregate states to bytes and back, for all aggregates of an operator at once.

One value per row: a head (version 1 byte, layout 2 bytes), then all columns of fixed width, little-endian, packed in declaration
order; then, if there are object columns, one pickle of the list of the row's objects. The layout is a checksum of the aggregates'
state columns, so that states of other aggregates are refused instead of misread.

Read next: `penstock.operators.aggregates.base`.
"""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.errors import StateError
from penstock.operators.aggregates.base import OBJECT, Bound, Columns, objects

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1


def encode(bounds: Sequence[Bound], columns: Sequence[Columns]) -> list[bytes]:
    """State rows as bytes.

    Args:
        bounds: The aggregates.
        columns: The state columns of each, all of the same length n.

    Returns:
        n values.

    Raises:
        StateError: An object of a state cannot be pickled. Nothing was changed.

    Cost:
        About 0.1 µs per row without object columns, one pickle per row with them.
    """
    matrix = np.empty(len(columns[0][0]) if columns else 0, dtype=_row(bounds))
    matrix["version"], matrix["layout"] = VERSION, _layout(bounds)
    loose = []
    for at, column in enumerate(column for each in columns for column in each):
        if column.dtype == OBJECT:
            loose.append(column)
        else:
            matrix[f"f{at}"] = column
    raw, width = matrix.tobytes(), matrix.dtype.itemsize
    heads = [raw[at : at + width] for at in range(0, len(raw), width)]
    if not loose:
        return heads
    try:
        return [head + pickle.dumps(row, protocol=5) for head, *row in zip(heads, *loose, strict=True)]
    except Exception as error:
        raise StateError(f"an aggregate's state cannot be pickled ({error}); keep plain picklable values in it.") from error


def decode(bounds: Sequence[Bound], values: list[bytes]) -> list[Columns]:
    """State columns from what `encode` wrote.

    Args:
        bounds: The aggregates that the values were written for.
        values: n values.

    Returns:
        The state columns of each aggregate, n rows; writable and owned by the caller.

    Raises:
        StateError: The values were written by another version or for other aggregates, or are damaged. Nothing was changed.

    Cost:
        About 0.1 µs per row without object columns, one unpickling per row with them.
    """
    row = _row(bounds)
    width, dtypes = row.itemsize, [dtype for bound in bounds for dtype in bound.fields]
    has_objects = OBJECT in dtypes
    raw = b"".join([value[:width] for value in values] if has_objects else values)
    plain = len(raw) == width * len(values) and (has_objects or set(map(len, values)) <= {width})
    matrix = np.frombuffer(raw, dtype=row) if plain else np.empty(0, dtype=row)
    if not plain or (matrix["version"] != VERSION).any() or (matrix["layout"] != _layout(bounds)).any():
        _refuse(bounds, values, width)
    try:
        loose = [pickle.loads(memoryview(value)[width:]) for value in values] if has_objects else []
    except Exception as error:
        raise StateError(f"a stored aggregate state cannot be unpickled ({error}); restore an older snapshot.") from error
    out: list[Columns] = []
    at = taken = 0
    for bound in bounds:
        held = []
        for dtype in bound.fields:
            if dtype == OBJECT:
                held.append(objects([items[taken] for items in loose]))
                taken += 1
            else:
                held.append(matrix[f"f{at}"].astype(dtype))
            at += 1
        out.append(tuple(held))
    return out


def _row(bounds: Sequence[Bound]) -> np.dtype[Any]:
    """The packed row of the head and all columns of fixed width; names count all columns."""
    parts: list[tuple[str, Any]] = [("version", "u1"), ("layout", "<u2")]
    dtypes = [dtype for bound in bounds for dtype in bound.fields]
    parts += [(f"f{at}", dtype.newbyteorder("<")) for at, dtype in enumerate(dtypes) if dtype != OBJECT]
    return np.dtype(parts)


def _layout(bounds: Sequence[Bound]) -> int:
    return zlib.crc32(_describe(bounds).encode()) & 0xFFFF


def _describe(bounds: Sequence[Bound]) -> str:
    return ", ".join(f"{type(bound).__name__}({' '.join(dtype.name for dtype in bound.fields)})" for bound in bounds)


def _refuse(bounds: Sequence[Bound], values: list[bytes], width: int) -> NoReturn:
    """Say what is wrong with values that this version did not write for these aggregates."""
    layout = _layout(bounds).to_bytes(2, "little")
    for at, value in enumerate(values):
        if len(value) >= 3 and value[0] != VERSION:
            raise StateError(
                f"stored aggregate state {at} has version {value[0]}, this penstock reads version {VERSION}; use the release that wrote it."
            )
        if len(value) >= 3 and value[1:3] != layout:
            raise StateError(
                f"stored aggregate state {at} was written for other aggregates than {_describe(bounds)}; "
                "give the changed operator a new name or start from a new checkpoint."
            )
    raise StateError(
        f"a stored aggregate state of {_describe(bounds)} is cut off or too long (sizes {sorted(set(map(len, values)))[:3]}, "
        f"expected {width}); restore an older snapshot."
    )
