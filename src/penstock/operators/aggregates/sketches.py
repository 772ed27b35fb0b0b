"""Approximate aggregates of bounded size: distinct counts (HyperLogLog) and quantiles (buckets of constant relative width).

Both states depend only on the set or multiset of values: neither the order of rows nor the grouping of merges changes a bit,
and no logarithm is used whose last bit could differ between machines.

Read next: `penstock.operators.aggregates.user`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.operators.aggregates.base import (
    OBJECT,
    Array,
    ArrowValues,
    Bound,
    Columns,
    Kernel,
    Order,
    arrow,
    filled,
    floats,
    group_ids,
    input_of,
    none,
    objects,
    refuse,
    valid,
)
from penstock.routing.hashing import spark_xxhash64

_RANK_BITS = 6
_ENTRY_BITS = 16 + _RANK_BITS
_SPARSE_BYTES = 4  # per entry; a register takes one byte


@dataclass(frozen=True, slots=True)
class ApproxCountDistinct(Kernel):
    """Number of distinct values that are not null, with a standard error of at most `relative_error`."""

    column: str
    relative_error: float

    def __post_init__(self) -> None:
        if not 1.04 / math.sqrt(2**16) <= self.relative_error <= 0.26:
            raise DeclarationError(
                f"approx_count_distinct({self.column!r}) has relative_error {self.relative_error}; "
                "choose between 0.0041 and 0.26, or count_distinct for the exact number."
            )

    def bind(self, input_type: pa.DataType | None) -> Bound:
        kind = input_of(input_type)
        try:
            spark_xxhash64(pa.array([], type=kind))
        except DeclarationError:
            raise refuse("approx_count_distinct", "a value that has a hash", self.column, kind) from None
        bits = next(p for p in range(4, 17) if 1.04 / math.sqrt(2**p) <= self.relative_error)
        return HyperLogLog(kind, bits)


@dataclass(frozen=True)
class HyperLogLog(Bound):
    """State: one object, 2**bits registers as bytes.

    A few filled registers are stored sparsely: as entries (register << 6 | rank, little-endian uint32, ascending), as long as
    these are shorter than the registers, so the length distinguishes the two. A value's register is the high `bits` bits of its
    hash, its rank one more than the number of trailing zeros of the others.

    Source: P. Flajolet et al. (2007); the estimator is algorithm 6 of O. Ertl (2017), which needs no tables. We rank by
    trailing zeros, which Spark SQL computes exactly.
    """

    kind: pa.DataType
    bits: int
    output_type = pa.int64()
    widens = False  # hashes depend on the type
    fields = (OBJECT,)

    def zero(self, n: int) -> Columns:
        return self.lift(none(n, self.kind), None, n)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return self.lift_reduce(values, order, n, np.arange(n, dtype=np.int64))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        array = arrow(values, self.kind)
        there = valid(array)
        hashes = spark_xxhash64(array)[there].view(np.uint64)
        sentinel = np.uint64(1 << (64 - self.bits))
        rest = (hashes & (sentinel - np.uint64(1))) | sentinel
        lowest = rest & (~rest + np.uint64(1))
        rank = np.frexp(lowest.astype(np.float64))[1].astype(np.int64)  # the logarithm of a power of two, plus one; exact
        entries = ((hashes >> np.uint64(64 - self.bits)).astype(np.int64) << _RANK_BITS) | rank
        return (self._states(entries, group_ids(starts, n)[there], len(starts)),)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states = columns[0]
        if len(starts) == len(states):
            return columns
        rows, entries = self._entries(states)
        return (self._states(entries, group_ids(starts, len(states))[rows], len(starts)),)

    def finish(self, columns: Columns) -> Any:
        states, most = columns[0], 64 - self.bits + 1
        rows, entries = self._entries(states)
        cells = rows * (most + 1) + (entries & ((1 << _RANK_BITS) - 1))
        counts = np.bincount(cells, minlength=len(states) * (most + 1)).reshape(len(states), most + 1).astype(np.float64)
        counts[:, 0] = 2**self.bits - counts.sum(axis=1)
        return pa.array(np.rint(_estimate(counts, 2**self.bits)).astype(np.int64))

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        low = 64 - self.bits
        hashed = f"xxhash64({column_sql})"
        rest = f"({hashed} & {(1 << low) - 1}L | {1 << low}L)"  # never the least bigint, so it can be negated
        rank = f"cast(round(log2({rest} & -{rest})) as bigint) + 1L"
        entry = f"shiftleft(shiftrightunsigned({hashed}, {low}), {_RANK_BITS}) | ({rank})"
        return [f"collect_set(CASE WHEN {column_sql} IS NOT NULL THEN {entry} END)"]

    def from_sql(self, arrays: list[Any]) -> Columns:
        array = arrow(arrays[0], pa.list_(pa.int64()))
        sizes = filled(array.value_lengths(), 0)
        ids = np.repeat(np.arange(len(array), dtype=np.int64), sizes)
        return (self._states(filled(array.flatten(), 0), ids, len(array)),)

    def _entries(self, states: Array) -> tuple[Array, Array]:
        """All filled registers: the row of each and its entry (int64)."""
        sizes = np.fromiter(map(len, states), dtype=np.int64, count=len(states))
        dense = sizes == 2**self.bits
        sparse = np.flatnonzero(~dense)
        rows = np.repeat(sparse, sizes[sparse] // _SPARSE_BYTES)
        entries = np.frombuffer(b"".join(states[sparse]), dtype="<u4").astype(np.int64)
        if not dense.any():
            return rows, entries
        registers = np.frombuffer(b"".join(states[dense]), dtype=np.uint8).reshape(-1, 2**self.bits)
        row, register = np.nonzero(registers)
        more = (register.astype(np.int64) << _RANK_BITS) | registers[row, register]
        return np.concatenate((rows, np.flatnonzero(dense)[row])), np.concatenate((entries, more))

    def _states(self, entries: Array, ids: Array, groups: int) -> Array:
        """The states of groups, from their entries in any order: the greatest rank of each register wins."""
        ranked = np.sort((ids << _ENTRY_BITS) | entries)
        last = np.ones(len(ranked), dtype=bool)
        last[:-1] = (ranked[1:] >> _RANK_BITS) != (ranked[:-1] >> _RANK_BITS)
        ranked = ranked[last]
        kept = ranked & ((1 << _ENTRY_BITS) - 1)
        sizes = np.bincount(ranked >> _ENTRY_BITS, minlength=groups)
        raw, ends = kept.astype("<u4").tobytes(), np.cumsum(sizes)
        out = [raw[_SPARSE_BYTES * (b - k) : _SPARSE_BYTES * b] for b, k in zip(ends.tolist(), sizes.tolist(), strict=True)]
        for group in np.flatnonzero(_SPARSE_BYTES * sizes >= 2**self.bits).tolist():
            registers = np.zeros(2**self.bits, dtype=np.uint8)
            mine = kept[ends[group] - sizes[group] : ends[group]]
            registers[mine >> _RANK_BITS] = mine & ((1 << _RANK_BITS) - 1)
            out[group] = registers.tobytes()
        return objects(out)


def _estimate(counts: Array, registers: int) -> Array:
    """Ertl's estimate, from the number of registers of each rank (columns) in each state (rows)."""
    most = counts.shape[1] - 1
    total = registers * _tau(1 - counts[:, most] / registers)
    for rank in range(most - 1, 0, -1):
        total = 0.5 * (total + counts[:, rank])
    with np.errstate(divide="ignore"):
        found: Array = registers * registers / (2 * math.log(2)) / (total + registers * _sigma(counts[:, 0] / registers))
    return found


def _sigma(x: Array) -> Array:
    power, factor, total = x, 1.0, x
    with np.errstate(invalid="ignore", over="ignore"):
        while True:
            power, before = power * power, total
            total = total + power * factor
            factor += factor
            if (total == before)[x < 1].all():
                return np.where(x < 1, total, np.inf)


def _tau(x: Array) -> Array:
    root, factor, total = x, 1.0, 1 - x
    while True:
        root, before, factor = np.sqrt(root), total, factor / 2
        total = total - (1 - root) ** 2 * factor
        if (total == before).all():
            return np.where((x == 0) | (x == 1), 0.0, total) / 3


_BUCKET = np.dtype([("id", "<i4"), ("n", "<i8")])
_ZERO_OFFSET = 1 << 30
_NAN_ID = 2**31 - 1
_INF_ID = _NAN_ID - 1


@dataclass(frozen=True, slots=True)
class Quantile(Kernel):
    """A quantile of a number column, within a relative error."""

    column: str
    q: float
    relative_error: float

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise DeclarationError(
                f"quantile({self.column!r}) has q {self.q}; choose between 0 and 1, for example 0.5 for the median."
            )
        if not 1e-6 <= self.relative_error <= 0.5:
            raise DeclarationError(
                f"quantile({self.column!r}) has relative_error {self.relative_error}; choose between 0.000001 and 0.5."
            )

    def bind(self, input_type: pa.DataType | None) -> Bound:
        kind = input_of(input_type)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise refuse("quantile", "a number", self.column, kind)
        return QuantileBound(self.q, self.relative_error)


@dataclass(frozen=True)
class QuantileBound(Bound):
    """State: one object, the filled buckets as bytes: id (little-endian int32, ascending) and count (int64) of each.

    A bucket holds the numbers of one sign whose magnitude is between two bounds whose ratio is at most (1 + e) / (1 − e); ids
    ascend with the values. Zero, each infinity and NaN have their own buckets; NaN is the greatest, as in Spark. The result is
    a value within e of the value at rank floor(q · (n − 1)) of the sorted values, null for no value. Subnormal numbers are as
    exact as possible.

    Source: DDSketch (C. Masson, J. Rim, H. Lee, 2019). Our bounds divide each octave linearly, which takes up to 1.44 times the
    buckets, but needs no logarithm. Buckets are never collapsed, so their number has no limit.
    """

    q: float
    relative_error: float
    output_type = pa.float64()
    fields = (OBJECT,)

    def zero(self, n: int) -> Columns:
        return self.lift(none(n, pa.float64()), None, n)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return self.lift_reduce(values, order, n, np.arange(n, dtype=np.int64))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        data, there = floats(values)
        ids = self._ids(data[there])
        return (_buckets(ids, np.ones(len(ids), dtype=np.int64), group_ids(starts, n)[there], len(starts)),)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states = columns[0]
        if len(starts) == len(states):
            return columns
        held, sizes = _opened(states)
        groups = np.repeat(group_ids(starts, len(states)), sizes)
        return (_buckets(held["id"].astype(np.int64), held["n"].astype(np.int64), groups, len(starts)),)

    def finish(self, columns: Columns) -> Any:
        held, sizes = _opened(columns[0])
        ends = np.cumsum(sizes)
        seen = np.concatenate(([0], np.cumsum(held["n"])))
        before, after = seen[ends - sizes], seen[ends]
        empty = sizes == 0
        rank = before + np.floor(self.q * np.maximum(after - before - 1, 0)).astype(np.int64)
        found = np.searchsorted(seen[1:], rank, side="right")
        ids = np.zeros(len(sizes), dtype=np.int64)
        ids[~empty] = held["id"][found[~empty]]
        return pa.array(self._value(ids), mask=empty)

    def _ids(self, data: Array) -> Array:
        magnitude = np.abs(data)
        finite = np.isfinite(data) & (data != 0)
        fraction, exponent = np.frexp(np.where(finite, magnitude, 1.0))
        # Octave number plus how far into the octave: steeper than the logarithm by a factor of at most 1 / ln 2, never flatter.
        place = (exponent - 1) + (2 * fraction - 1)
        ids = np.floor(place / (2 * self.relative_error)).astype(np.int64) + _ZERO_OFFSET
        ids = np.where(finite, ids, np.where(np.isinf(data), _INF_ID, 0))
        return np.where(np.isnan(data), _NAN_ID, np.where(data < 0, -ids, ids))

    def _value(self, ids: Array) -> Array:
        width = 2 * self.relative_error
        place = np.abs(ids) - _ZERO_OFFSET
        plain = (ids != 0) & (np.abs(ids) < _INF_ID)
        low, high = (_magnitude(np.where(plain, place + step, 0) * width) for step in (0, 1))
        middle = low * (2 / (1 + low / high))  # relatively equidistant from both ends
        out = np.where(plain, middle, np.where(ids == 0, 0.0, np.inf)) * np.where(ids < 0, -1.0, 1.0)
        return np.where(ids == _NAN_ID, np.nan, out)


def _magnitude(place: Array) -> Array:
    octave = np.floor(place)
    with np.errstate(over="ignore", under="ignore"):
        found = np.ldexp(1 + (place - octave), octave.astype(np.int32))
    least_to_greatest: Array = np.clip(found, np.nextafter(0.0, 1.0), np.finfo(np.float64).max)
    return least_to_greatest


def _opened(states: Array) -> tuple[Array, Array]:
    """All buckets of the states in order, and the number per state."""
    sizes = np.fromiter(map(len, states), dtype=np.int64, count=len(states)) // _BUCKET.itemsize
    return np.frombuffer(b"".join(states), dtype=_BUCKET), sizes


def _buckets(ids: Array, counts: Array, groups: Array, total: int) -> Array:
    """The states of groups from buckets in any order; equal buckets are summed."""
    keys = (groups << 32) + ids + 2**31  # ids are above −2**31, so they fit in the low half
    if len(keys) == 0:
        return objects([b""] * total)
    by = np.argsort(keys, kind="stable")
    keys, counts = keys[by], counts[by]
    heads = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    held = np.empty(len(heads), dtype=_BUCKET)
    held["id"] = (keys[heads] & (2**32 - 1)) - 2**31
    held["n"] = np.add.reduceat(counts, heads)
    raw = held.tobytes()
    ends = (_BUCKET.itemsize * np.cumsum(np.bincount(keys[heads] >> 32, minlength=total))).tolist()
    return objects([raw[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])
