"""Counts, sums, means and the standard deviation.

Nulls are ignored, as in SQL: the sum or mean of no value is null. Integers and decimals are exact whatever the order. A sum is
checked against its type only when it is read, so no division of the rows makes it overflow. Float sums add in the order of
partial states and may differ in the last bits; ``exact=True`` prevents that. NaN makes a sum NaN.

Read next: `penstock.operators.aggregates.ordered`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from penstock.errors import StateError
from penstock.operators.aggregates.base import (
    FLOAT64,
    INT64,
    OBJECT,
    Array,
    ArrowValues,
    Bound,
    Columns,
    Kernel,
    Order,
    arrow,
    decimals,
    filled,
    floats,
    input_of,
    is_some,
    lengths,
    objects,
    refuse,
    unscaled,
    valid,
)

_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Count(Kernel):
    """Number of rows, or of values that are not null."""

    column: str | None = None

    def describe(self) -> str:
        return f"count({self.column or ''})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        return CountBound(self.column is not None)


@dataclass(frozen=True)
class CountBound(Bound):
    """State: n (int64)."""

    skip_nulls: bool
    output_type = pa.int64()
    fields = (INT64,)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        if values is None or not self.skip_nulls:
            return (np.ones(n, dtype=np.int64),)
        return (valid(_whole(values)).astype(np.int64),)

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        if values is None or not self.skip_nulls or values.null_count == 0:
            return (lengths(starts, n),)
        return self.reduce(self.lift(values, order, n), starts)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        return (np.add.reduceat(columns[0], starts),)

    def finish(self, columns: Columns) -> Any:
        return pa.array(columns[0], type=pa.int64())

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        return [f"count({column_sql})" if self.skip_nulls else "count(1)"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        return (_ints(arrays[0]),)


@dataclass(frozen=True, slots=True)
class Sum(Kernel):
    """Sum of a number column; int64 for integers, Spark's wider decimal for decimals, else float64."""

    column: str
    exact: bool = False

    def describe(self) -> str:
        return f"sum({self.column}{', exact' * self.exact})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        return _bind_sum("sum", self.column, input_of(input_type), self.exact, mean=False)


@dataclass(frozen=True, slots=True)
class Mean(Kernel):
    """Mean of a number column; Spark's wider decimal for decimals, else float64."""

    column: str
    exact: bool = False

    def describe(self) -> str:
        return f"mean({self.column}{', exact' * self.exact})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        return _bind_sum("mean", self.column, input_of(input_type), self.exact, mean=True)


def _bind_sum(function: str, column: str, kind: pa.DataType, exact: bool, *, mean: bool) -> Bound:
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return IntSum(column, mean, kind)
    if pa.types.is_decimal128(kind):
        return DecimalSum(kind, mean)
    if pa.types.is_floating(kind) or pa.types.is_null(kind):
        return ExactSum(mean) if exact else FloatSum(mean)
    raise refuse(function, "a number", column, kind)


@dataclass(frozen=True)
class IntSum(Bound):
    """State: the sum as high and low (0 ≤ low < 2**32) halves, so that it cannot overflow, and n (all int64)."""

    column: str
    mean: bool
    kind: pa.DataType
    fields = (INT64, INT64, INT64)

    @property
    def output_type(self) -> pa.DataType:  # type: ignore[override]  # depends on `mean`; read-only is all that users need
        return pa.float64() if self.mean else pa.int64()

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        array = arrow(values, pa.int64())
        data = filled(array, 0)
        return data >> 32, data & _LOW, valid(array).astype(np.int64)

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        array = arrow(values, pa.int64())
        data = filled(array, 0)
        if n and max(int(data.max()), -int(data.min())) * int(lengths(starts, n).max()) >= 2**63:
            return self.reduce(self.lift(values, order, n), starts)
        counts = lengths(starts, n) if array.null_count == 0 else np.add.reduceat(valid(array).astype(np.int64), starts)
        total = np.add.reduceat(data, starts)
        return total >> 32, total & _LOW, counts

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        high, low, counts = (np.add.reduceat(column, starts) for column in columns)
        return high + (low >> 32), low & _LOW, counts

    remedy: ClassVar[str] = "cast the column to decimal(38, 0)"

    def too_great(self, columns: Columns) -> Array | None:
        high, _, counts = columns
        return None if self.mean else (counts > 0) & ((high < -(2**31)) | (high >= 2**31))

    def finish(self, columns: Columns) -> Any:
        high, low, counts = columns
        none = counts == 0
        fits = none | (high >= -(2**31)) & (high < 2**31)
        if self.mean:
            if fits.all():
                total = (high << 32) | low
                small = np.abs(total) < 2**53  # float64 holds it exactly, so the division rounds once
            else:
                total, small = high, np.zeros(len(high), dtype=bool)
            out = np.where(small, total, 0) / np.maximum(counts, 1)
            for row in np.flatnonzero(~small & ~none):
                out[row] = ((int(high[row]) << 32) + int(low[row])) / int(counts[row])
            return pa.array(out, mask=none)
        if not fits.all():
            raise StateError(f"the sum of column {self.column!r} does not fit in 64 bits; cast the column to decimal(38, 0).")
        return pa.array((high << 32) | low, mask=none)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        whole = f"cast({column_sql} as bigint)"
        if cast("Any", self.kind).bit_width <= 32:  # 2**31 rows of these cannot overflow a bigint
            return [f"sum({whole})", f"count({column_sql})"]
        return [f"sum(shiftright({whole}, 32))", f"sum({whole} & {_LOW}L)", f"count({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        if len(arrays) == 2:
            total = _ints(arrays[0])
            return total >> 32, total & _LOW, _ints(arrays[1])
        high, low, counts = (_ints(array) for array in arrays)
        return high + (low >> 32), low & _LOW, counts


@dataclass(frozen=True)
class FloatSum(Bound):
    """State: sum (float64), n (int64)."""

    mean: bool
    output_type = pa.float64()
    fields = (FLOAT64, INT64)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        data, there = floats(values)
        return data, there.astype(np.int64)

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        array = arrow(values, pa.float64())
        counts = lengths(starts, n) if array.null_count == 0 else np.add.reduceat(valid(array).astype(np.int64), starts)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.add.reduceat(filled(array, 0.0), starts), counts

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        with np.errstate(invalid="ignore", over="ignore"):  # inf − inf is NaN, as in Spark
            return np.add.reduceat(columns[0], starts), np.add.reduceat(columns[1], starts)

    def finish(self, columns: Columns) -> Any:
        total, counts = columns
        total = total + 0.0  # −0.0 is 0.0, with or without nulls
        return pa.array(total / np.maximum(counts, 1) if self.mean else total, mask=counts == 0)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        return [f"sum(cast({column_sql} as double))", f"count({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        return floats(arrays[0])[0], _ints(arrays[1])


@dataclass(frozen=True)
class ExactSum(Bound):
    """The correctly rounded sum of floats, equal to ``math.fsum`` whatever the order and the grouping.

    State: the sum of the finite values as an integer (Python int) times 2**exponent (int64), the sum of those that are not finite
    (float64: 0, ±inf or NaN), and n (int64). A sum beyond float64 is ±inf; the mean is the rounded sum divided by n.
    """

    mean: bool
    output_type = pa.float64()
    fields = (OBJECT, INT64, FLOAT64, INT64)

    def zero(self, n: int) -> Columns:
        return objects([0] * n), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        data, there = floats(values)
        finite = np.isfinite(data)
        fraction, exponent = np.frexp(np.where(finite, data, 0.0))
        whole = np.ldexp(fraction, 53).astype(np.int64)
        exponents = exponent.astype(np.int64) - 53
        return whole.astype(object), exponents, np.where(finite, 0.0, data), there.astype(np.int64)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        whole, exponents, special, counts = columns
        common = np.minimum.reduceat(exponents, starts)
        shift = exponents - np.repeat(common, lengths(starts, len(exponents)))
        with np.errstate(invalid="ignore"):
            rest = np.add.reduceat(special, starts)
        return np.add.reduceat(whole << shift.astype(object), starts), common, rest, np.add.reduceat(counts, starts)

    def finish(self, columns: Columns) -> Any:
        whole, exponents, special, counts = columns
        finite = np.fromiter(map(_rounded, whole, exponents.tolist()), dtype=np.float64, count=len(whole))
        total = np.where(special == 0, finite, special)  # what is finite is nothing beside infinity, also where it is too large
        return pa.array(total / np.maximum(counts, 1) if self.mean else total, mask=counts == 0)


def _rounded(whole: int, exponent: int) -> float:
    try:
        return float(whole << exponent) if exponent >= 0 else whole / (1 << -exponent)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


@dataclass(frozen=True)
class DecimalSum(Bound):
    """State: sum of the unscaled numbers (Python int), n (int64)."""

    kind: pa.DataType
    mean: bool
    fields = (OBJECT, INT64)

    remedy: ClassVar[str] = "cast the column to fewer digits"

    @property
    def output_type(self) -> pa.DataType:  # type: ignore[override]  # depends on `kind`; read-only is all that users need
        kind = cast("Any", self.kind)
        if self.mean:  # no more digits before the point than the values, so it always fits
            precision = min(38, kind.precision + 4)
            return pa.decimal128(precision, kind.scale + precision - kind.precision)
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)

    def zero(self, n: int) -> Columns:
        return objects([0] * n), np.zeros(n, np.int64)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        items = unscaled(arrow(values, self.kind))
        there = is_some(items)
        return np.where(there, items, 0), there.astype(np.int64)

    def widened(self, columns: Columns, factor: int) -> Columns:
        return columns[0] * factor, columns[1]

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        return np.add.reduceat(columns[0], starts), np.add.reduceat(columns[1], starts)

    def too_great(self, columns: Columns) -> Array | None:
        total, counts = columns
        most = 10 ** cast("Any", self.output_type).precision
        if self.mean or not len(total) or max(total.max(), -total.min()) < most:
            return None
        return cast("Array", (counts > 0) & (np.abs(total) >= most).astype(bool))

    def finish(self, columns: Columns) -> Any:
        total, counts = columns
        out = np.full(len(total), None, dtype=object)
        there = counts > 0
        out[there] = total[there]
        if self.mean and there.any():
            more = 10 ** (cast("Any", self.output_type).scale - cast("Any", self.kind).scale)
            n = counts[there].astype(object)
            twice = 2 * np.abs(out[there]) * more + n  # half away from zero, as in Spark
            out[there] = np.where(out[there] < 0, -1, 1).astype(object) * (twice // (2 * n))
        return decimals(out, self.output_type)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        if cast("Any", self.kind).precision > 28:  # the JVM's sum has 38 digits: not even two rows of so many digits fit
            return None
        return [f"sum({column_sql})", f"count({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        scale = cast("Any", self.kind).scale
        items = unscaled(arrow(arrays[0], pa.decimal128(38, scale)))
        return np.where(is_some(items), items, 0), _ints(arrays[1])


@dataclass(frozen=True, slots=True)
class Stddev(Kernel):
    """Standard deviation of a sample (divisor n − 1) as float64; null for fewer than two values."""

    column: str

    def describe(self) -> str:
        return f"stddev({self.column})"

    def bind(self, input_type: pa.DataType | None) -> Bound:
        kind = input_of(input_type)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise refuse("stddev", "a number", self.column, kind)
        return StddevBound()


@dataclass(frozen=True)
class StddevBound(Bound):
    """State: n (int64), mean and sum of squared distances from it (float64), merged as by Chan, Golub and LeVeque (1979)."""

    output_type = pa.float64()
    fields = (INT64, FLOAT64, FLOAT64)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        data, there = floats(values)
        with np.errstate(invalid="ignore"):
            return there.astype(np.int64), data, data * 0.0  # 0, or NaN without a finite distance

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        n, mean, squares = columns
        sizes = lengths(starts, len(n))
        total = np.add.reduceat(n, starts)
        with np.errstate(invalid="ignore", over="ignore"):
            # Relative to the group's first mean, so that a large common offset costs no digits.
            first = mean[starts + _first(n > 0, starts, sizes)]
            moved = np.where(n > 0, mean - np.repeat(first, sizes), 0.0)
            shift = np.add.reduceat(n * moved, starts) / np.maximum(total, 1)
            apart = moved - np.repeat(shift, sizes)
            spread = np.add.reduceat(squares, starts) + np.add.reduceat(n * apart * apart, starts)
            return total, np.where(total > 0, first + shift, 0.0), np.where(total > 0, spread, 0.0)

    def finish(self, columns: Columns) -> Any:
        n, _, squares = columns
        with np.errstate(invalid="ignore"):
            return pa.array(np.sqrt(squares / np.maximum(n - 1, 1)), mask=n < 2)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        number = f"cast({column_sql} as double)"
        return [f"count({column_sql})", f"avg({number})", f"var_pop({number}) * count({column_sql})"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        return _ints(arrays[0]), floats(arrays[1])[0], floats(arrays[2])[0]


def _first(there: Array, starts: Array, sizes: Array) -> Array:
    """Offset within each group of the first row that is not null; 0 if there is none."""
    position = np.arange(len(there), dtype=np.int64) - np.repeat(starts, sizes)
    best = np.minimum.reduceat(np.where(there, position, len(there)), starts)
    return np.where(best == len(there), 0, best)


def _ints(array: Any) -> Array:
    return filled(arrow(array, pa.int64()), 0)


def _whole(values: ArrowValues) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
