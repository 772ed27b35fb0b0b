"""The exact number of distinct values.

Nulls are not counted; −0.0 and 0.0 are one value, and all NaN are one value. A state holds every distinct value, so its size
grows with their number: `penstock.operators.aggregates.sketches` has a count of bounded size.

Read next: `penstock.operators.aggregates.sketches`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic
from penstock.operators.aggregates.base import (
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
    lengths,
    objects,
    reduce_some,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class CountDistinct(Kernel):
    """Exact number of distinct values that are not null."""

    column: str

    def describe(self) -> str:
        return f"count_distinct({self.column})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        kind = input_of(input_type)
        if _has_map(kind):
            raise refuse("count_distinct", "values that can be compared", self.column, kind)
        return PackedDistinct(kind) if Values(kind).fixed else ObjectDistinct(kind)


@dataclass(frozen=True)
class PackedDistinct(Bound):
    """State for values of fixed width: one object, the sorted distinct values as bytes of little-endian int64."""

    kind: pa.DataType
    output_type = pa.int64()
    fields = (OBJECT,)

    def zero(self, n: int) -> Columns:
        return (objects([b""] * n),)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return self.lift_reduce(values, order, n, np.arange(n, dtype=np.int64))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        data, there = Values(self.kind).split(values)
        return (_packed(bits(data)[there], group_ids(starts, n)[there], len(starts)),)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states = columns[0]
        if len(starts) == len(states):
            return columns
        sizes = _sizes(states) // 8
        data = np.frombuffer(b"".join(states), dtype="<i8").astype(np.int64, copy=False)
        return (_packed(data, np.repeat(group_ids(starts, len(states)), sizes), len(starts)),)

    def finish(self, columns: Columns) -> Any:
        return pa.array(_sizes(columns[0]) // 8, type=pa.int64())

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        return [f"collect_set({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        flat, starts, groups = _flat(arrays[0])
        data, there = Values(self.kind).split(flat)
        return (_packed(bits(data)[there], starts[there], groups),)


@dataclass(frozen=True)
class ObjectDistinct(Bound):
    """State for other values: one object, the tuple of distinct values, sorted so that equal states have equal bytes."""

    kind: pa.DataType
    output_type = pa.int64()
    fields = (OBJECT,)

    def zero(self, n: int) -> Columns:
        return (objects([()] * n),)

    def widened(self, columns: Columns, factor: int) -> Columns:
        return (objects([tuple(item * factor for item in items) for items in columns[0]]),) if factor != 1 else columns

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return (objects([() if item is None else (item,) for item in self._items(values)]),)

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        found = reduce_some(self._each_group, self._items(values), starts)
        return (objects([() if item is None else item for item in found]),)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states = columns[0]
        out: list[tuple[Any, ...]] = []
        for start, size in zip(starts.tolist(), lengths(starts, len(states)).tolist(), strict=True):
            out.append(states[start] if size == 1 else self._tidy(set().union(*states[start : start + size])))
        return (objects(out),)

    def finish(self, columns: Columns) -> Any:
        return pa.array(_sizes(columns[0]), type=pa.int64())

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        return [f"collect_set({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        flat, ids, groups = _flat(arrays[0])
        found: list[set[Any]] = [set() for _ in range(groups)]
        for group, item in zip(ids.tolist(), self._items(flat), strict=True):
            found[group].add(item)
        return (objects([self._tidy(items) for items in found]),)

    def _items(self, values: ArrowValues) -> Array:
        items = Values(self.kind).items(values)
        return (
            objects([None if item is None else _hashable(item) for item in items]) if pa.types.is_nested(self.kind) else items
        )

    def _each_group(self, items: Array, starts: Array) -> Array:
        ends = [*starts[1:].tolist(), len(items)]
        return objects([self._tidy(set(items[a:b].tolist())) for a, b in zip(starts.tolist(), ends, strict=True)])

    def _tidy(self, items: set[Any]) -> tuple[Any, ...]:
        # Nested nulls cannot be compared with values, but texts can, and equal values have equal texts.
        by: Callable[[Any], Any] | None = repr if pa.types.is_nested(self.kind) else None
        return tuple(sorted(items, key=by))


def bits(data: Array) -> Array:
    """Values of fixed width as int64, equal exactly if the values are; −0.0 becomes 0.0, and every NaN one NaN."""
    if data.dtype.kind != "f":
        return data.astype(np.int64)
    plain = data.astype(np.float64) + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain.view(np.int64)


def _packed(data: Array, ids: Array, groups: int) -> Array:
    """Sorted distinct values of each group as bytes."""
    by = lexicographic([ids, data])
    data, ids = data[by], ids[by]
    fresh = np.ones(len(data), dtype=bool)
    fresh[1:] = (data[1:] != data[:-1]) | (ids[1:] != ids[:-1])
    raw = data[fresh].astype("<i8").tobytes()
    ends = (8 * np.cumsum(np.bincount(ids[fresh], minlength=groups))).tolist()
    return objects([raw[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])


def _sizes(states: Array) -> Array:
    return np.fromiter(map(len, states), dtype=np.int64, count=len(states))


def _flat(lists: Any) -> tuple[Any, Array, int]:
    """The values of a list array, the row of each, and the number of rows."""
    array = arrow(lists, lists.type)
    sizes = filled(array.value_lengths(), 0)
    return array.flatten(), np.repeat(np.arange(len(array), dtype=np.int64), sizes), len(array)


def _hashable(item: Any) -> Any:
    """A nested value as nested tuples, equal exactly if the values are."""
    if isinstance(item, list | tuple):
        return tuple(map(_hashable, item))
    if isinstance(item, dict):
        return tuple(map(_hashable, item.values()))
    if isinstance(item, float):
        # NaN differs from itself, and −0.0 has another text than 0.0.
        return "NaN" if math.isnan(item) else item + 0.0
    return item


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    nested = cast("Any", kind)
    return any(_has_map(nested.field(at).type) for at in range(nested.num_fields))
