"""Aggregates with an order: the least and greatest value, the first and last, and all of them as a list.

`Extreme` orders the values; NaN is greater than any number, as in Spark. The others use the order of records: (time, part,
offset, sub). It is part of the state, so partial states may be merged in any order. For `Edge` a null is a value like any other
(as in Spark's ``first``); `Collect` skips nulls (as Spark's ``collect_list``) and returns an empty list if there is nothing
else.

Read next: `penstock.operators.aggregates.sets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic
from penstock.errors import StateError
from penstock.operators.aggregates.base import (
    BOOL,
    INT64,
    OBJECT,
    Array,
    ArrowValues,
    Bound,
    Columns,
    Kernel,
    Order,
    Values,
    arrow,
    filled,
    group_ids,
    input_of,
    is_some,
    lengths,
    none,
    objects,
    reduce_some,
    refuse,
    scaled,
    starts_of,
)

_PLAIN = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_NAMES = ("t", "p", "o", "s")


@dataclass(frozen=True, slots=True)
class Extreme(Kernel):
    """The least or greatest value."""

    column: str
    greatest: bool

    def describe(self) -> str:
        return f"{'max' if self.greatest else 'min'}({self.column})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        kind = input_of(input_type)
        plain = any(test(kind) for test in _PLAIN)
        if not (Values(kind).fixed or plain or pa.types.is_decimal128(kind) or pa.types.is_null(kind)):
            raise refuse("max" if self.greatest else "min", "values that have an order", self.column, kind)
        return ExtremeBound(kind, self.greatest)


@dataclass(frozen=True)
class ExtremeBound(Bound):
    """State: the value (fixed width, or a Python object or None), and for fixed width whether there is one (bool)."""

    output_type: pa.DataType
    greatest: bool

    @property
    def fields(self) -> tuple[np.dtype[Any], ...]:  # type: ignore[override]  # depends on the type; read-only is enough
        return Values(self.output_type).fields()

    def zero(self, n: int) -> Columns:
        return self.lift(none(n, self.output_type), None, n)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        columns = Values(self.output_type).split(values)
        if len(columns) == 1:
            return columns
        data, there = columns
        if pa.types.is_floating(self.output_type):
            data = data + data.dtype.type(0)  # −0.0 becomes 0.0: they are equal, so the order would decide between them
        return self._with_identity(data, there)

    def _with_identity(self, data: Array, there: Array) -> Columns:
        return np.where(there, data, self._identity(data.dtype)).astype(data.dtype), there

    def widened(self, columns: Columns, factor: int) -> Columns:
        return (scaled(columns[0], factor),) if len(columns) == 1 else self._with_identity(*columns)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        if len(columns) == 1:
            return (reduce_some((np.maximum if self.greatest else np.minimum).reduceat, columns[0], starts),)
        # NaN is the greatest: maximum keeps it, and fmin returns it only if there is nothing else.
        pick = np.maximum if self.greatest else np.fmin
        return pick.reduceat(columns[0], starts), np.logical_or.reduceat(columns[1], starts)

    def finish(self, columns: Columns) -> Any:
        return Values(self.output_type).join(columns)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        return [f"{'max' if self.greatest else 'min'}({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        return self.lift(arrays[0], None, len(arrays[0]))

    def _identity(self, dtype: np.dtype[Any]) -> Any:
        if dtype == BOOL:
            return not self.greatest
        if dtype.kind == "f":
            return -np.inf if self.greatest else np.nan
        limits = np.iinfo(dtype)
        return limits.min if self.greatest else limits.max


@dataclass(frozen=True, slots=True)
class Edge(Kernel):
    """The value of the first or the last record."""

    column: str
    last: bool

    def describe(self) -> str:
        return f"{'last' if self.last else 'first'}({self.column})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        return EdgeBound(input_of(input_type), self.last)


@dataclass(frozen=True)
class EdgeBound(Bound):
    """State: the record's four order columns (int64), then its value as `Values` holds it."""

    output_type: pa.DataType
    last: bool

    @property
    def fields(self) -> tuple[np.dtype[Any], ...]:  # type: ignore[override]  # depends on the type; read-only is enough
        return (INT64,) * 4 + Values(self.output_type).fields()

    def zero(self, n: int) -> Columns:
        far = np.full(n, np.iinfo(np.int64).min if self.last else np.iinfo(np.int64).max)  # after any record
        return far, far, far, far, *Values(self.output_type).split(none(n, self.output_type))

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return (*_known(order), *Values(self.output_type).split(values))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        known = _known(order)
        rows = self._pick(known, starts)
        chosen = arrow(values, self.output_type).take(pa.array(rows))
        return (*(column[rows] for column in known), *Values(self.output_type).split(chosen))

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        rows = self._pick(columns[:4], starts)
        return tuple(column[rows] for column in columns)

    def finish(self, columns: Columns) -> Any:
        return Values(self.output_type).join(columns[4:])

    def widened(self, columns: Columns, factor: int) -> Columns:
        return columns if columns[-1].dtype == BOOL else (*columns[:-1], scaled(columns[-1], factor))

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        order = _struct(order_sql)
        return [f"{'max_by' if self.last else 'min_by'}(named_struct({order}, 'v', {column_sql}), named_struct({order}))"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        *order, value = arrays[0].flatten()
        return (*(filled(arrow(column, pa.int64()), 0) for column in order), *Values(self.output_type).split(value))

    def _pick(self, order: Columns, starts: Array) -> Array:
        """The first (or last) row of each group: by the first order column, then the next among ties."""
        best_of = np.maximum.reduceat if self.last else np.minimum.reduceat
        rows = np.arange(len(order[0]), dtype=np.int64)
        heads = starts
        for column in order:
            if len(rows) == len(starts):
                break
            held = column[rows]
            keep = held == np.repeat(best_of(held, heads), lengths(heads, len(rows)))
            kept = np.add.reduceat(keep.astype(np.int64), heads)
            rows, heads = rows[keep], starts_of(kept)
        return rows[heads]


@dataclass(frozen=True, slots=True)
class Collect(Kernel):
    """All values that are not null, as a list in the order of their records."""

    column: str

    def describe(self) -> str:
        return f"collect({self.column})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        return CollectBound(input_of(input_type))


@dataclass(frozen=True)
class CollectBound(Bound):
    """State: one object, (order as bytes of little-endian int64 rows of four, list of values), sorted by order."""

    kind: pa.DataType
    fields = (OBJECT,)

    @property
    def output_type(self) -> pa.DataType:  # type: ignore[override]  # depends on `kind`; read-only is all that users need
        return pa.list_(self.kind)

    def zero(self, n: int) -> Columns:
        return (objects([(b"", []) for _ in range(n)]),)

    def widened(self, columns: Columns, factor: int) -> Columns:
        if not pa.types.is_decimal(self.kind):
            return columns
        return (objects([(order, [item * factor for item in items]) for order, items in columns[0]]),)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return self.lift_reduce(values, order, n, np.arange(n, dtype=np.int64))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        items = Values(self.kind).items(values)
        return self._sorted(items, np.stack(_known(order), axis=1), group_ids(starts, n), len(starts))

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states = columns[0]
        if len(starts) == len(states):
            return columns
        sizes = np.fromiter((len(items) for _, items in states), dtype=np.int64, count=len(states))
        order = np.frombuffer(b"".join(rows for rows, _ in states), dtype="<i8").reshape(-1, 4)
        items = objects(list(chain.from_iterable(items for _, items in states)))
        return self._sorted(items, order, np.repeat(group_ids(starts, len(states)), sizes), len(starts))

    def finish(self, columns: Columns) -> Any:
        lists = [items for _, items in columns[0]]
        offsets = np.cumsum([0, *map(len, lists)])
        if len(offsets) and offsets[-1] >= 2**31:
            raise StateError("collect holds 2**31 values or more in one batch of results; use a window or a smaller one.")
        flat = Values(self.kind).from_items(objects(list(chain.from_iterable(lists))))
        return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), flat, type=self.output_type)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        record = f"named_struct({_struct(order_sql)}, 'v', {column_sql})"
        return [f"collect_list(CASE WHEN {column_sql} IS NOT NULL THEN {record} END)"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        array = arrow(arrays[0], arrays[0].type)
        *order, value = array.flatten().flatten()
        rows = np.stack([filled(arrow(column, pa.int64()), 0) for column in order], axis=1)
        sizes = filled(array.value_lengths(), 0)
        ids = np.repeat(np.arange(len(array), dtype=np.int64), sizes)
        return self._sorted(Values(self.kind).items(value), rows, ids, len(array))

    def _sorted(self, items: Array, order: Array, ids: Array, groups: int) -> Columns:
        """One state per group from items, their order (n by 4) and their group ids."""
        some = is_some(items)
        if not some.all():
            items, order, ids = items[some], order[some], ids[some]
        if not _is_sorted([ids, *order.T]):
            by = lexicographic([ids, *order.T])
            items, order = items[by], order[by]
        packed, held = np.ascontiguousarray(order, dtype="<i8").tobytes(), items.tolist()
        ends = np.cumsum(np.bincount(ids, minlength=groups)).tolist()
        heads = [0, *ends[:-1]]
        return (objects([(packed[32 * a : 32 * b], held[a:b]) for a, b in zip(heads, ends, strict=True)]),)


def _is_sorted(columns: list[Array]) -> bool:
    """Whether rows ascend by the columns, most significant first. New records usually follow held ones, so the check pays."""
    tied = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in columns:
        if (tied & (column[1:] < column[:-1])).any():
            return False
        tied &= column[1:] == column[:-1]
    return True


def _known(order: Order | None) -> Order:
    if order is None:
        raise StateError("first, last and collect need the order of the records; pass the columns time, part, offset and sub.")
    return order


def _struct(order_sql: tuple[str, str, str, str]) -> str:
    return ", ".join(f"'{name}', cast({expression} as bigint)" for name, expression in zip(_NAMES, order_sql, strict=True))
