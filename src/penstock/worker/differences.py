"""The first difference between what two computations gave: rows with their positions, and state by key. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import to_indices
from penstock.types import MAX_TIME

_BLOCK: Final = 4096
NOTHING: Final = "nothing"
_PLAIN: Final = (int, str, bytes, frozenset, set, dt.date, dt.time, dt.timedelta, Decimal, type, Enum)
Row = tuple[Any, ...]


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same. NaN is the same as NaN, a set is what it contains; other objects are what they consist of."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return len(a) == len(b) and all(key in b and same(value, b[key]) for key, value in a.items())
    if isinstance(a, _PLAIN):
        return bool(a == b)
    return same(a.__reduce_ex__(5), b.__reduce_ex__(5))


def different_rows(first: pa.RecordBatch, second: pa.RecordBatch, width: int, ids: int) -> tuple[Row, Any, Any] | None:
    """The first row that only one of two tables has.

    Args:
        first: A table: `width` columns of values; `ids` columns of whole numbers that say which row it is, in the order of which rows
            are compared; then any others. Rows of the same numbers are compared as multisets.
        second: Another one.
        width: See above.
        ids: See above.

    Returns:
        The whole row that is known of it; its values in the first and in the second table, `NOTHING` if it has none. None: there is
        no difference.
    """
    if first.equals(second) or (first := _sorted(first, width, ids)).equals(second := _sorted(second, width, ids)):
        return None
    one, other = (groupby(_rows(table), lambda row: row[width : width + ids]) for table in (first, second))
    a, b = _next(one), _next(other)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            return a[1][0], a[1][0][:width], NOTHING  # type: ignore[index]  # one of them is there
        if a is None or b[0] < a[0]:
            return b[1][0], NOTHING, b[1][0][:width]
        only_a, only_b = _apart([row[:width] for row in a[1]], [row[:width] for row in b[1]])
        if only_a or only_b:
            return a[1][0], only_a[0] if only_a else NOTHING, only_b[0] if only_b else NOTHING
        a, b = _next(one), _next(other)
    return None


def _next(groups: Any) -> tuple[Row, list[Row]] | None:
    found = next(groups, None)
    return None if found is None else (found[0], list(found[1]))


def _sorted(table: pa.RecordBatch, width: int, ids: int) -> pa.RecordBatch:
    return table.take(to_indices(np.lexsort([table.column(i).to_numpy() for i in range(width, width + ids)][::-1])))


def _rows(table: pa.RecordBatch) -> Iterator[Row]:
    for start in range(0, table.num_rows, _BLOCK):
        yield from zip(*(column.to_pylist() for column in table.slice(start, _BLOCK).columns), strict=True)


def _apart(a: list[Row], b: list[Row]) -> tuple[list[Row], list[Row]]:
    """What is only in one of two multisets."""
    left = list(b)
    only: list[Row] = []
    for row in a:
        at = next((i for i, other in enumerate(left) if same(row, other)), None)
        if at is None:
            only.append(row)
        else:
            del left[at]
    return only, left


Entries = Mapping[bytes, tuple[bytes | None, int]]
"""By name, value (None: deleted) and timer."""


def entries_of(changes: pa.RecordBatch, moved: Sequence[pa.RecordBatch]) -> dict[bytes, tuple[bytes | None, int]]:
    """A worker's changed entries, with those that went to other workers as they went."""
    found: dict[bytes, tuple[bytes | None, int]] = {}
    for rows in (changes, *moved):
        columns: list[list[Any]] = [rows.column(n).to_pylist() for n in ("key", "value", "timer")]
        found.update((name, (value, timer)) for name, value, timer in zip(*columns, strict=True))
    return found


def different_entry(first: Entries, second: Entries, slot: int, before: Any, show: Any) -> tuple[bytes, Any, Any] | None:
    """The first entry of an operator that differs.

    Args:
        first: The changed entries of one computation.
        second: Those of the other.
        slot: The operator's number.
        before: Gives the entries, as a snapshot does, before either computation: what only one has written may be what was there.
        show: Decodes a value.

    Returns:
        Its name, and its value and timer after the first and the second computation; None: there is no difference.
    """
    for name in sorted(n for n in first.keys() | second.keys() if n[2] == slot):
        if first.get(name) == second.get(name):
            continue
        was: tuple[bytes | None, int] = (None, MAX_TIME)
        if name not in first or name not in second:
            was = next(((value, timer) for n, value, timer in before(name) if n == name), was)
        (a, at), (b, bt) = first.get(name, was), second.get(name, was)
        if a is None and b is None:
            continue
        if a is not None and b is not None and at == bt and (a == b or same(show(a), show(b))):
            continue
        shown = [NOTHING if v is None else show(v) for v in (a, b)]
        return name, shown[0], shown[1]
    return None
