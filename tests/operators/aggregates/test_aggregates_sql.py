"""Partial states that Spark computes are those that the kernels compute."""

import datetime as dt
import math
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from aggregate_oracle import Rows, heads, merge, tidy

from penstock.operators import aggregates as ps

pytestmark = pytest.mark.spark

COLUMNS = {
    "l": (pa.int64(), lambda r: r.choice([2**63 - 1, -(2**63), r.randrange(-(2**40), 2**40), 3])),
    "i": (pa.int32(), lambda r: r.randrange(-(2**31), 2**31)),
    "b": (pa.bool_(), lambda r: r.random() < 0.5),
    "d": (pa.float64(), lambda r: r.choice([r.gauss(0, 100), 0.0, -0.0, 1e300])),
    "w": (pa.float64(), lambda r: r.choice([0.0, -0.0, math.nan, math.inf, -math.inf, 2.5, r.random()])),
    "f": (pa.float32(), lambda r: float(np.float32(r.choice([r.gauss(0, 1), -0.0, 0.0, math.nan])))),
    "s": (pa.string(), lambda r: r.choice(["", "a", "é", "𝄞", "zz", str(r.randrange(9999))])),
    "y": (pa.binary(), lambda r: bytes([r.randrange(256)])),
    "t": (
        pa.timestamp("us", "UTC"),
        lambda r: dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=r.randrange(10**12)),
    ),
    "a": (pa.date32(), lambda r: dt.date(2020, 1, 1) + dt.timedelta(days=r.randrange(-30000, 30000))),
    "m": (pa.decimal128(10, 2), lambda r: Decimal(r.randrange(-(10**9), 10**9)) / 100),
    "n": (pa.decimal128(28, 3), lambda r: Decimal(r.randrange(-(10**27), 10**27)).scaleb(-3)),
    "x": (pa.struct([("p", pa.int64()), ("q", pa.string())]), lambda r: {"p": r.randrange(3), "q": r.choice([None, "u"])}),
}
NUMBERS, ALL, PLAIN = "lidfmn", "libdwfsytamnx", "libdwfsytamn"
KERNELS = [
    (ps.count(), "l"),
    *((ps.count(name), name) for name in "lx"),
    *((ps.sum(name), name) for name in NUMBERS if name != "l"),
    *((ps.mean(name), name) for name in NUMBERS),
    *((make(name), name) for name in PLAIN for make in (ps.min, ps.max)),
    *((ps.stddev(name), name) for name in "lim"),
    *((make(name), name) for name in ALL for make in (ps.first, ps.last, ps.collect, ps.count_distinct)),
    *((ps.approx_count_distinct(name, error), name) for name in PLAIN for error in (0.02, 0.26, 0.0041)),
]


def table(n):
    random_ = random.Random(20)
    order = list(range(n))
    random_.shuffle(order)
    columns = {
        name: [None if random_.random() < 0.2 else make(random_) for _ in range(n)] for name, (_, make) in COLUMNS.items()
    }
    arrays = {name: pa.array(columns[name], type=kind) for name, (kind, _) in COLUMNS.items()}
    group = [at % 7 if at > 3 else 100 + at for at in range(n)]  # four groups of one row
    chunk = [random_.randrange(3) for _ in range(n)]
    orders = [(at // 50, at % 3, at, at % 2) for at in order]
    return arrays, group, chunk, orders


def same(kernel, left, right):
    if isinstance(left, float) and isinstance(right, float) and math.isfinite(left) and not getattr(kernel, "exact", False):
        return math.isclose(left, right, rel_tol=1e-9)
    return tidy(left) == tidy(right)


def test_spark_partials_when_merged_then_give_what_rows_give(spark):
    arrays, group, chunk, orders = table(400)
    hidden = {f"o{at}": pa.array([order[at] for order in orders], type=pa.int64()) for at in range(4)}
    whole = pa.table({**arrays, "g": pa.array(group), "c": pa.array(chunk), **hidden})
    spark.createDataFrame(whole).createOrReplaceTempView("rows_")
    bounds = [kernel.bind(COLUMNS[name][0]) for kernel, name in KERNELS]
    expressions = [
        bound.sql(kernel.column and f"`{name}`", ("`o0`", "`o1`", "`o2`", "`o3`"))
        for bound, (kernel, name) in zip(bounds, KERNELS, strict=True)
    ]
    for some in np.array_split(np.arange(len(KERNELS)), 4):  # a few large queries are faster than many small ones
        text = ", ".join(f"{text} AS e{at}_{k}" for at in some for k, text in enumerate(expressions[at]))
        partial = spark.sql(f"SELECT g, {text} FROM rows_ GROUP BY g, c").toArrow()
        for at in some:
            (kernel, name), bound = KERNELS[at], bounds[at]
            states = bound.from_sql([partial.column(f"e{at}_{k}").combine_chunks() for k in range(len(expressions[at]))])
            assert tuple(column.dtype for column in states) == bound.fields, kernel
            from_spark = merge(bound, [(partial.column("g").to_numpy(), states)])
            from_rows = Rows(group, orders, arrays[name].to_pylist(), COLUMNS[name][0]).partial(bound)
            assert from_spark[0].tolist() == from_rows[0].tolist()
            left, right = bound.finish(from_spark[1]).to_pylist(), bound.finish(from_rows[1]).to_pylist()
            assert all(same(kernel, a, b) for a, b in zip(left, right, strict=True)), (kernel, name, left, right)


def test_results_when_spark_has_the_same_aggregate_then_agree_with_it(spark):
    arrays, group, _, orders = table(400)
    whole = pa.table({**arrays, "g": pa.array(group)})
    spark.createDataFrame(whole).createOrReplaceTempView("rows_")
    ours = {"sum": ps.sum, "avg": ps.mean, "min": ps.min, "max": ps.max, "stddev_samp": ps.stddev}
    checks = [("sum", "i"), ("sum", "m"), ("sum", "n"), ("avg", "i"), ("avg", "m"), ("avg", "n"), ("avg", "d")]
    checks += [(function, name) for name in PLAIN for function in ("min", "max")] + [("stddev_samp", "i"), ("stddev_samp", "m")]
    text = ", ".join(f"{function}(`{name}`) AS {function}_{name}" for function, name in checks)
    wanted = spark.sql(f"SELECT g, {text} FROM rows_ GROUP BY g ORDER BY g").toArrow()
    for function, name in checks:
        want = wanted.column(f"{function}_{name}")
        kernel = ours[function](name)
        bound = kernel.bind(COLUMNS[name][0])
        got = bound.finish(Rows(group, orders, arrays[name].to_pylist(), COLUMNS[name][0]).partial(bound)[1])
        assert want.type == got.type or pa.types.is_integer(got.type), (function, name, want.type, got.type)
        assert all(same(kernel, a, b) for a, b in zip(got.to_pylist(), want.to_pylist(), strict=True)), (function, name)


def test_int_sum_when_only_a_partial_overflows_then_spark_does_not_raise(spark):
    spark.createDataFrame(pa.table({"l": [2**63 - 1, 2**63 - 1, -(2**63 - 1), -(2**62) + 1]})).createOrReplaceTempView("big")
    bound = ps.sum("l").bind(pa.int64())
    expressions = bound.sql("l", ("", "", "", ""))
    partial = spark.sql("SELECT " + ", ".join(f"{e} AS e{at}" for at, e in enumerate(expressions)) + " FROM big").toArrow()
    states = bound.from_sql([partial.column(at).combine_chunks() for at in range(3)])
    assert bound.finish(bound.reduce(states, heads(np.zeros(1)))).to_pylist() == [2**62]
