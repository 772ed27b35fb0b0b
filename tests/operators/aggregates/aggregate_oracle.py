"""What every aggregate must give, written slowly and obviously, and the ways to split and merge rows."""

import datetime as dt
import math
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.operators import aggregates as ps
from penstock.operators.aggregates.codec import decode, encode


def tidy(value):
    """A hashable stand-in that is equal exactly if the values are one value: NaN is NaN, −0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(map(tidy, value))
    if isinstance(value, dict):
        return tuple(tidy(item) for _, item in sorted(value.items()))
    return value


def some(rows):
    return [value for _, value in rows if value is not None]


def o_sum(rows):
    values = some(rows)
    return sum(values) if values else None


def o_sum_decimal(rows):
    values = some(rows)
    return sum(values, Decimal(0)) if values else None


def o_mean(rows):
    values = some(rows)
    return float(sum(map(Fraction, values)) / len(values)) if values else None


def o_mean_decimal(rows):
    values = some(rows)
    if not values:
        return None
    exact = sum(map(Fraction, values)) / len(values)
    # To 90 digits first: far beyond the one rounding that counts, so that a tie stays a tie.
    long = Context(prec=90).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return long.quantize(Decimal(1).scaleb(-6), rounding=ROUND_HALF_UP, context=Context(prec=90))


def o_exact(rows):
    values = some(rows)
    if not values:
        return None
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return sum(special)
    try:
        return math.fsum(values)
    except OverflowError:  # of a partial sum; the whole may still fit
        exact = sum(map(Fraction, values))
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def o_exact_mean(rows):
    return o_exact(rows) / len(some(rows)) if some(rows) else None


def nan_last(value):
    return (isinstance(value, float) and math.isnan(value), value)


def o_min(rows):
    return min(some(rows), key=nan_last, default=None)


def o_max(rows):
    return max(some(rows), key=nan_last, default=None)


def o_stddev(rows):
    values = [Fraction(value) for value in some(rows)]
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def in_order(rows):
    return [value for _, value in sorted(rows, key=lambda row: row[0])]


def o_first(rows):
    return in_order(rows)[0]


def o_last(rows):
    return in_order(rows)[-1]


def o_collect(rows):
    return [value for value in in_order(rows) if value is not None]


def o_distinct(rows):
    return len(set(map(tidy, some(rows))))


class Digest(ps.Aggregate):
    """Associative but not commutative, and it counts its values: merging twice, or in another order, shows."""

    type = "struct<n: bigint, text: string>"

    def zero(self):
        return [0, ""]

    def add(self, state, value):
        return [state[0] + 1, state[1] + str(value)]

    def merge(self, a, b):
        return [a[0] + b[0], a[1] + b[1]]

    def finish(self, state):
        return {"n": state[0], "text": state[1]}


class Total(ps.Aggregate):
    type = "bigint"

    def zero(self):
        return [0]

    def add(self, state, value):
        state[0] += value
        return state

    def merge(self, a, b):
        a[0] += b[0]
        return a

    def finish(self, state):
        return state[0]


INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
SMALL_INTS = st.integers(-(2**50), 2**50)
TAME = st.floats(-1e6, 1e6, allow_subnormal=False)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
FINITE = st.floats(allow_nan=False, allow_infinity=False) | TAME
TEXT = st.text(max_size=3)
BYTES = st.binary(max_size=3)
SHORT = st.decimals(-(10**6), 10**6, places=2)
LONG = st.integers(-(10**26), 10**26).map(lambda n: Context(prec=40).scaleb(Decimal(n), -2))
TIMES = st.datetimes(timezones=st.just(dt.UTC))
DATES = st.dates()
STRUCTS = st.fixed_dictionaries(
    {"a": st.none() | st.integers(0, 2), "b": st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5])}
)

i64, f64, s, ts = pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "UTC")
d28, d38 = pa.decimal128(28, 2), pa.decimal128(10, 2)
struct = pa.struct([("a", pa.int64()), ("b", pa.float64())])
lists = pa.list_(pa.int32())
LISTS = st.lists(st.none() | st.integers(0, 3), max_size=2)

# name: kernel, type, values, oracle, how to compare ("same": equal; "close": up to rounding)
CASES = {
    "count": (ps.count("x"), s, TEXT, lambda rows: len(some(rows)), "same"),
    "count of no column": (ps.count(), i64, INTS, len, "same"),
    "sum int64": (ps.sum("x"), i64, SMALL_INTS, o_sum, "same"),
    "sum int16": (ps.sum("x"), pa.int16(), st.integers(-(2**15), 2**15 - 1), o_sum, "same"),
    "sum double": (ps.sum("x"), f64, TAME, o_sum, "close"),
    "sum decimal": (ps.sum("x"), d38, SHORT, o_sum_decimal, "same"),
    "sum long decimal": (ps.sum("x"), d28, LONG, o_sum_decimal, "same"),
    "sum exact": (ps.sum("x", exact=True), f64, FLOATS, o_exact, "same"),
    "sum exact finite": (ps.sum("x", exact=True), f64, FINITE, o_exact, "same"),
    "sum exact float": (ps.sum("x", exact=True), pa.float32(), st.floats(width=32), o_exact, "same"),
    "mean int64": (ps.mean("x"), i64, INTS, o_mean, "same"),
    "mean double": (ps.mean("x"), f64, TAME, o_mean, "close"),
    "mean decimal": (ps.mean("x"), d38, SHORT, o_mean_decimal, "same"),
    "mean long decimal": (ps.mean("x"), d28, LONG, o_mean_decimal, "same"),
    "mean exact": (ps.mean("x", exact=True), f64, FLOATS, o_exact_mean, "same"),
    "min int64": (ps.min("x"), i64, INTS, o_min, "same"),
    "max int64": (ps.max("x"), i64, INTS, o_max, "same"),
    "min double": (ps.min("x"), f64, FLOATS, o_min, "same"),
    "max double": (ps.max("x"), f64, FLOATS, o_max, "same"),
    "min float": (ps.min("x"), pa.float32(), st.floats(width=32), o_min, "same"),
    "min boolean": (ps.min("x"), pa.bool_(), st.booleans(), o_min, "same"),
    "max boolean": (ps.max("x"), pa.bool_(), st.booleans(), o_max, "same"),
    "min string": (ps.min("x"), s, TEXT, o_min, "same"),
    "max string": (ps.max("x"), s, TEXT, o_max, "same"),
    "max binary": (ps.max("x"), pa.binary(), BYTES, o_max, "same"),
    "min timestamp": (ps.min("x"), ts, TIMES, o_min, "same"),
    "max date": (ps.max("x"), pa.date32(), DATES, o_max, "same"),
    "max decimal": (ps.max("x"), d28, LONG, o_max, "same"),
    "stddev double": (ps.stddev("x"), f64, TAME, o_stddev, "close"),
    "stddev int32": (ps.stddev("x"), pa.int32(), st.integers(-1000, 1000), o_stddev, "close"),
    "stddev int64": (ps.stddev("x"), i64, INTS, o_stddev, "close"),
    "stddev decimal": (ps.stddev("x"), d38, SHORT, o_stddev, "close"),
    "first string": (ps.first("x"), s, TEXT, o_first, "same"),
    "first double": (ps.first("x"), f64, FLOATS, o_first, "same"),
    "last timestamp": (ps.last("x"), ts, TIMES, o_last, "same"),
    "last decimal": (ps.last("x"), d28, LONG, o_last, "same"),
    "last struct": (ps.last("x"), struct, STRUCTS, o_last, "same"),
    "collect int64": (ps.collect("x"), i64, INTS, o_collect, "same"),
    "collect timestamp": (ps.collect("x"), ts, TIMES, o_collect, "same"),
    "collect string": (ps.collect("x"), s, TEXT, o_collect, "same"),
    "collect list": (ps.collect("x"), lists, LISTS, o_collect, "same"),
    "count_distinct int64": (ps.count_distinct("x"), i64, INTS, o_distinct, "same"),
    "count_distinct double": (ps.count_distinct("x"), f64, FLOATS, o_distinct, "same"),
    "count_distinct boolean": (ps.count_distinct("x"), pa.bool_(), st.booleans(), o_distinct, "same"),
    "count_distinct string": (ps.count_distinct("x"), s, st.text("ab", max_size=2), o_distinct, "same"),
    "count_distinct decimal": (ps.count_distinct("x"), d38, SHORT, o_distinct, "same"),
    "count_distinct struct": (ps.count_distinct("x"), struct, STRUCTS, o_distinct, "same"),
    "count_distinct list": (ps.count_distinct("x"), lists, LISTS, o_distinct, "same"),
    # Eleven values at most: at 2**12 registers the estimate is then the number itself.
    "approx_count_distinct": (ps.approx_count_distinct("x"), s, st.sampled_from("abcdefghijk"), o_distinct, "same"),
    "user": (Total("x"), i64, SMALL_INTS, lambda rows: sum(some(rows)), "same"),
}


def check(case, got, rows):
    """The result of one group is what the oracle says."""
    _, _, _, oracle, how = CASES[case]
    want = oracle(rows)
    if how == "close" and want is not None:
        values = some(rows)
        room = 1e-9 * max(1.0, float(max(map(abs, values)))) * len(values)
        assert got is not None
        assert math.isclose(got, want, rel_tol=1e-9, abs_tol=room), (got, want)
    else:
        assert tidy(got) == tidy(want), (got, want)


def heads(ids):
    """First row of each group of sorted group ids."""
    return np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))).astype(np.int64)


class Rows:
    """Rows of one column with their groups and orders, sorted by group as the operator hands them over."""

    def __init__(self, ids, orders, values, kind):
        by = sorted(range(len(ids)), key=lambda at: ids[at])
        self.ids = np.array([ids[at] for at in by], dtype=np.int64)
        order = np.array([orders[at] for at in by], dtype=np.int64).reshape(-1, 4)
        self.order = tuple(np.ascontiguousarray(order[:, at]) for at in range(4))
        self.values = pa.array([values[at] for at in by], type=kind)
        self.n = len(by)

    def partial(self, bound, in_one_step=True):
        starts = heads(self.ids)
        if in_one_step:
            return self.ids[starts], bound.lift_reduce(self.values, self.order, self.n, starts)
        return self.ids[starts], bound.reduce(bound.lift(self.values, self.order, self.n), starts)


def merge(bound, partials):
    """Merge partial states (group ids, columns), as the operator does with stored state."""
    ids = np.concatenate([ids for ids, _ in partials])
    columns = tuple(np.concatenate(parts) for parts in zip(*(columns for _, columns in partials), strict=True))
    by = np.argsort(ids, kind="stable")
    starts = heads(ids[by])
    return ids[by][starts], bound.reduce(tuple(column[by] for column in columns), starts)


def stored(bound, partial):
    """The partial state after a trip through the store."""
    return partial[0], decode([bound], encode([bound], [partial[1]]))[0]
