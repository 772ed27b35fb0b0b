"""Aggregate states to bytes and back, for all aggregates of an operator at once.

One value per row: a head (version 1 byte, generation 1 byte, layout 2 bytes), then all columns of fixed width, little-endian,
packed in declaration order, then one pickle of the row's objects, if there are object columns. The layout is a checksum of the
aggregates' state columns, so states of other aggregates are refused. The generation is the number of the value's layout among
those that the operator had in this checkpoint: aggregates may be added and removed, and an added one begins empty.

Read next: `penstock.operators.aggregates.base`.
"""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.errors import StateError
from penstock.operators.aggregates.base import OBJECT, Array, Bound, Columns, objects
from penstock.operators.layouts import KEPT_AS, kept_fields, scaled_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Fields = tuple[str, tuple[np.dtype[Any], ...]]
"""What an aggregate's state is: the name of its kernels' class, the types of its columns."""
_HEAD = 4
VERSION = 1


class Codec:
    """States of some aggregates to bytes and back, also from values written with other aggregates.

    Args:
        names: The aggregates' names.
        bounds: The aggregates.
        layouts: All layouts (`layout`) that the operator ever had, the present one last; empty: no other.
    """

    def __init__(self, names: Sequence[str], bounds: Sequence[Bound], layouts: Sequence[Mapping[str, str]] = ()) -> None:
        self._names, self._bounds = tuple(names), tuple(bounds)
        self._layouts = [dict(old) for old in layouts[:-1]]
        self._now = layouts[-1] if layouts else {}
        self._generation = len(self._layouts)

    def encode(self, columns: Sequence[Columns]) -> list[bytes]:
        """See `encode`."""
        return encode(self._bounds, columns, self._generation)

    def decode(self, values: list[bytes]) -> list[Columns]:
        """See `decode`. Aggregates that a value lacks get the state of no rows.

        Raises:
            StateError: As `decode`. Nothing was changed.
        """
        if not self._generation:
            return decode(self._bounds, values)
        generations = np.fromiter((value[1] if len(value) > 1 else 0 for value in values), np.int64, len(values))
        if (generations == self._generation).all():
            return decode(self._bounds, values, self._generation)
        parts, where = [], []
        for generation in np.unique(generations).tolist():
            at = np.flatnonzero(generations == generation)
            chosen = [values[i] for i in at.tolist()]
            parts.append(self._of_generation(generation, chosen))
            where.append(at)
        back = np.argsort(np.concatenate(where), kind="stable")
        return [tuple(np.concatenate(f)[back] for f in zip(*states, strict=True)) for states in zip(*parts, strict=True)]

    def _of_generation(self, generation: int, values: list[bytes]) -> list[Columns]:
        if generation == self._generation:
            return decode(self._bounds, values, generation)
        if generation > self._generation:
            _refuse(list(map(_fields, self._bounds)), values, 0, self._generation)
        old = self._layouts[generation]
        found = dict(zip(old, _decode([kept_fields(text) for text in old.values()], values, generation), strict=True))
        since = self._layouts[generation:]
        n = len(values)
        return [
            self._wide(name, bound, found[name], old[name])
            if all(name in layout for layout in since)
            else bound.zero(n)  # one that was removed in between starts empty
            for name, bound in zip(self._names, self._bounds, strict=True)
        ]

    def _wide(self, name: str, bound: Bound, columns: Columns, was: str) -> Columns:
        """States as the aggregate has them now, perhaps over a wider type."""
        if was == self._now[name]:
            return columns
        wide = tuple(column.astype(dtype) for column, dtype in zip(columns, bound.fields, strict=True))
        return bound.widened(wide, scaled_by(was, self._now[name]))


def layout(described: Mapping[str, str], bounds: Sequence[Bound]) -> dict[str, str]:
    """The content of a value: each aggregate with the types of its state columns.

    Args:
        described: By the aggregate's name, its description.
        bounds: The aggregates, in the same order.
    """
    return {
        name: f"{text}{KEPT_AS}{_describe([_fields(bound)])}"
        for (name, text), bound in zip(described.items(), bounds, strict=True)
    }


def _fields(bound: Bound) -> Fields:
    return type(bound).__name__, bound.fields


def encode(bounds: Sequence[Bound], columns: Sequence[Columns], generation: int = 0) -> list[bytes]:
    """State rows as bytes.

    Args:
        bounds: The aggregates.
        columns: The state columns of each, all of the same length n.
        generation: The number of the operator's layout.

    Returns:
        n values.

    Raises:
        StateError: An object of a state cannot be pickled. Nothing was changed.

    Cost:
        About 0.1 µs per row without object columns, one pickle per row with them.
    """
    fields = list(map(_fields, bounds))
    matrix = np.empty(len(columns[0][0]) if columns else 0, dtype=_row(fields))
    matrix["version"], matrix["generation"], matrix["layout"] = VERSION, generation, _layout(fields)
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


def decode(bounds: Sequence[Bound], values: list[bytes], generation: int = 0) -> list[Columns]:
    """State columns from values of `encode`.

    Args:
        bounds: The aggregates that the values were written for.
        values: n values.
        generation: The number of their layout.

    Returns:
        The state columns of each aggregate, n rows; writable and owned by the caller.

    Raises:
        StateError: The values were written by another version or for other aggregates, or are damaged. Nothing was changed.

    Cost:
        About 0.1 µs per row without object columns, one unpickling per row with them.
    """
    return _decode(list(map(_fields, bounds)), values, generation)


def _decode(fields: Sequence[Fields], values: list[bytes], generation: int) -> list[Columns]:
    row = _row(fields)
    width, dtypes = row.itemsize, [dtype for _, each in fields for dtype in each]
    has_objects = OBJECT in dtypes
    raw = b"".join([value[:width] for value in values] if has_objects else values)
    plain = len(raw) == width * len(values) and (has_objects or set(map(len, values)) <= {width})
    matrix = np.frombuffer(raw, dtype=row) if plain else np.empty(0, dtype=row)
    head = (("version", VERSION), ("generation", generation), ("layout", _layout(fields)))
    if not plain or any((matrix[name] != wanted).any() for name, wanted in head):
        _refuse(fields, values, width, generation)
    try:
        loose = [pickle.loads(memoryview(value)[width:]) for value in values] if has_objects else []
    except Exception as error:
        raise StateError(f"a stored aggregate state cannot be unpickled ({error}); restore an older snapshot.") from error
    out: list[Columns] = []
    at = taken = 0
    for _, each in fields:
        held: list[Array] = []
        for dtype in each:
            if dtype == OBJECT:
                held.append(objects([items[taken] for items in loose]))
                taken += 1
            else:
                held.append(matrix[f"f{at}"].astype(dtype))
            at += 1
        out.append(tuple(held))
    return out


def _row(fields: Sequence[Fields]) -> np.dtype[Any]:
    """The packed row of the head and all columns of fixed width; names count all columns."""
    parts: list[tuple[str, Any]] = [("version", "u1"), ("generation", "u1"), ("layout", "<u2")]
    dtypes = [dtype for _, each in fields for dtype in each]
    parts += [(f"f{at}", dtype.newbyteorder("<")) for at, dtype in enumerate(dtypes) if dtype != OBJECT]
    return np.dtype(parts)


def _layout(fields: Sequence[Fields]) -> int:
    return zlib.crc32(_describe(fields).encode()) & 0xFFFF


def _describe(fields: Sequence[Fields]) -> str:
    return ", ".join(f"{name}({' '.join(dtype.name for dtype in each)})" for name, each in fields)


def _refuse(fields: Sequence[Fields], values: list[bytes], width: int, generation: int) -> NoReturn:
    """The error for values that were written for other aggregates."""
    wanted = _layout(fields).to_bytes(2, "little")
    for at, value in enumerate(values):
        if len(value) >= _HEAD and value[0] != VERSION:
            raise StateError(
                f"stored aggregate state {at} has version {value[0]}, this penstock reads version {VERSION}; use the release that wrote it."
            )
        if len(value) >= _HEAD and value[1] != generation:
            raise StateError(
                f"stored aggregate state {at} is of generation {value[1]}, and this operator's is {generation}; restore an older snapshot."
            )
        if len(value) >= _HEAD and value[2:_HEAD] != wanted:
            raise StateError(
                f"stored aggregate state {at} was written for other aggregates than {_describe(fields)}; "
                "give the changed step a new name or start from a new checkpoint."
            )
    raise StateError(
        f"a stored aggregate state of {_describe(fields)} is truncated or too long (sizes {sorted(set(map(len, values)))[:3]}, "
        f"expected {width}); restore an older snapshot."
    )
