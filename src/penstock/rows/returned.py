"""Return values of users' functions as rows and columns of a declared schema.

Rows become columns in bulk, which is many times as fast. Only if a value does not fit are rows checked one by one, so that the
error names the record.

Read next: `penstock.operators.stateful_map`.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.rows.named import values_by_name

_FRACTIONS: Final = frozenset({float, Decimal, np.float64, np.float32})
_MIDNIGHT: Final = dt.time()


class Unfit(TypeError):  # noqa: N818  (not an error of ours: it becomes the record's)
    """A return value does not fit its schema; the text continues after "it" or the function's name."""


class Returned:
    """Makes rows from the return values of one function.

    Args:
        schema: The declared columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = schema.names
        self._wanted = frozenset(schema.names)
        copiers = [_copier(field.type) for field in schema]
        self._copiers = copiers if any(copiers) else None
        self.plain: bool = self._copiers is None
        """Whether no column is nested, so that a tuple is a row as it is."""

    def rows(self, outputs: Any) -> Sequence[tuple[Any, ...]]:
        """The rows in a return value: None, one row (tuple, dict, or a single value) or an iterable of rows.

        A dict becomes a tuple, and nested values are copied, because the function may change them later.

        Raises:
            Unfit: A dict's keys are not the columns.
        """
        if type(outputs) is tuple:
            given: Sequence[tuple[Any, ...]] = (outputs,)
        elif outputs is None:
            return ()
        elif isinstance(outputs, (tuple, dict)):
            given = (self._row(outputs),)
        elif isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
            given = ((outputs,),)
        else:
            given = [self._row(o) for o in outputs]
        if self._copiers is None:
            return given
        return [
            tuple(v if c is None or v is None else c(v) for c, v in zip(self._copiers, row, strict=True))
            if len(row) == len(self._names)
            else row
            for row in given
        ]

    def _row(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, dict):
            if row.keys() != self._wanted:
                odd = min(row.keys() ^ self._wanted, key=str)
                about = "has no" if odd in self._wanted else "has a"
                raise Unfit(f"returned the row {row!r}, which {about} column {odd!r}; its schema has {', '.join(self._names)}")
            return tuple([row[n] for n in self._names])
        if type(row) is tuple:
            return row
        return values_by_name(row, self._names) if isinstance(row, tuple) else (row,)

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Rows as columns.

        Raises:
            Unfit: A row does not fit the schema; names the column.
        """
        names = self._names
        for row in rows if set(map(len, rows)) - {len(names)} else ():
            if len(row) != len(names):
                raise Unfit(f"returned the row {row!r} of {len(row)} values; its schema has {len(names)}: {', '.join(names)}")
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        arrays = [to_column(values, field) for field, values in zip(self._schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def unfit(self, rows: Sequence[tuple[Any, ...]], first: int = 0) -> list[int]:
        """Indices, from `first`, of rows that do not fit. Bisects, so a few are found in a few passes."""
        try:
            self.batch(rows)
        except Unfit:
            if len(rows) == 1:
                return [first]
            half = len(rows) // 2
            return [*self.unfit(rows[:half], first), *self.unfit(rows[half:], first + half)]
        return []


def to_column(values: Sequence[Any], field: pa.Field[Any]) -> Any:
    """Python values as an Arrow array.

    Raises:
        Unfit: A value does not fit the field's type, or would be changed.
    """
    try:
        return to_array(values, field.type)
    except Exception as error:
        raise Unfit(f"returned a value for column {field.name!r} that is not {field.type}: {error}") from error


def to_array(values: Sequence[Any], kind: Any) -> Any:
    """As `to_column`, for a type without a name.

    Raises:
        Exception: A value does not fit. (A conversion may raise anything.)
    """
    array: Any = pa.array(values, kind)
    if pa.types.is_integer(kind):
        if not _FRACTIONS.isdisjoint(map(type, values)):
            _check_whole(values)
    elif not pa.types.is_floating(kind) and not pa.types.is_boolean(kind):
        _check_rest(array, values, kind)
    return array


def _check_whole(values: Iterable[Any]) -> None:
    for value in values:
        if type(value) in _FRACTIONS and value % 1:
            raise TypeError(f"{value!r} is not a whole number")  # Arrow would truncate it


def _check_rest(array: Any, values: Sequence[Any], kind: Any) -> None:
    """Refuse what Arrow would change, or could not return."""
    if pa.types.is_nested(kind):
        for inner, below in _inner(kind, values):
            if pa.types.is_integer(inner):
                _check_whole(below)
        array.validate(full=True)
    elif pa.types.is_date(kind):
        for value in set(map(type, values)) - {dt.date, type(None)} and values:
            if isinstance(value, dt.datetime) and value.time() != _MIDNIGHT:  # pandas' NaT is no time
                raise TypeError(f"{value!r} has a time of day")
    elif not pa.types.is_temporal(kind) and set(map(type, values)) - {str, type(None)}:
        array.validate(full=True)  # bytes that are not UTF-8


def _inner(kind: Any, values: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
    """The plain values within nested ones, with their types."""
    if not _holds_integer(kind):
        return
    there = [v for v in values if v is not None]
    if pa.types.is_struct(kind):
        for i, field in enumerate(kind):
            fields = [v.get(field.name) if isinstance(v, dict) else v[i] for v in there]
            yield from _inner(field.type, fields)
    elif pa.types.is_map(kind):
        pairs = [p for v in there for p in (v.items() if isinstance(v, dict) else v)]
        yield from _inner(kind.key_type, [p[0] for p in pairs])
        yield from _inner(kind.item_type, [p[1] for p in pairs])
    elif pa.types.is_nested(kind):
        yield from _inner(cast("Any", kind).value_type, [x for v in there for x in v])
    else:
        yield kind, there


def _holds_integer(kind: Any) -> bool:
    return pa.types.is_integer(kind) or any(_holds_integer(kind.field(i).type) for i in range(kind.num_fields))


def _copier(kind: Any) -> Callable[[Any], Any] | None:
    """A copy function for values of a type that could be changed; None: they cannot be."""
    if not pa.types.is_nested(kind):
        return None
    if kind.num_fields == 1 and not pa.types.is_struct(kind) and not pa.types.is_nested(kind.field(0).type):
        return lambda value: value.copy() if type(value) is list else copy.deepcopy(value)
    return copy.deepcopy


__all__ = ["Returned", "Unfit", "to_array", "to_column"]
