"""A Spark Column becomes SQL text that Spark reads as the same expression, or is refused; a flow of Columns is the flow of their texts."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import pytest
from flow_runs import difference, in_harness, moment, over_spark, write_parquet
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)
from pyspark.sql import types as t

import penstock as ps
from penstock.errors import DeclarationError
from penstock.spark.column_text import text_of
from penstock.sql_text.schema import as_schema

pytestmark = pytest.mark.spark

ROWS = """
    SELECT CAST(id AS int) AS a, concat('x', id) AS s, id / 3D AS d, named_struct('p', id, 'q x', 2) AS st, map('k', id) AS m,
        array(1, 2) AS arr, timestamp_seconds(id * 4000) AS at, 5 + id AS `x.y`, id % 2 = 0 AS b, 7 AS `it``s`, id AS `select`,
        date_add(date'2024-01-01', CAST(id AS int)) AS dd, CAST(id AS decimal(10, 2)) AS n FROM range(4)
"""
VALUES = [
    None, True, False, 0, -1, 5, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), 0.0, -0.0, 2.5, -2.5, 1e300, 1e-300, 5e-324,
    math.nan, math.inf, -math.inf, "", "it's", "a\\b", 'q"', "`", "é\n\t", "%_", "(", "--", Decimal("1.50"), Decimal("-0.001"), Decimal("0.00"),
    Decimal("1E+3"), Decimal("123456789012345678901234567890.12345678"), dt.date(1583, 1, 1), dt.date(2024, 2, 29),
    dt.datetime(2024, 1, 1, 1, 2, 3, 456789, dt.UTC), dt.datetime(1950, 1, 1, tzinfo=dt.UTC),
    b"ab", b"", [1, 2], ["a"],
]  # fmt: skip
COLUMNS = [
    lambda: F.col("`x.y`") / 60, lambda: F.col("st.p"), lambda: F.col("st")["q x"], lambda: F.col("m")["k"], lambda: F.col("arr")[0],
    lambda: F.when(F.col("a") > 1, "x").when(F.col("b"), "y").otherwise("z"), lambda: F.when(F.col("a") > 1, "x"),
    lambda: F.col("a").cast(t.DecimalType(10, 2)), lambda: F.col("s").try_cast("int"), lambda: F.col("st").cast("struct<p:long,`q x`:int>"),
    lambda: F.expr("a + 1") * 2, lambda: F.expr("a + -- more\n1") * 2, lambda: F.expr("(a) + (a)") * 2,
    lambda: F.col("a").isin(1, 2), lambda: F.col("a").isin([1]), lambda: F.col("a").isin([]), lambda: F.col("a").between(1, 2),
    lambda: ~(F.col("a") == 1), lambda: F.negative(-F.col("a")), lambda: F.col("a") - (-1), lambda: 10 - F.col("a"), lambda: 2 ** F.col("a"),
    lambda: F.transform("arr", lambda x: x + F.col("a")), lambda: F.aggregate("arr", F.lit(0), lambda x, y: x + y),
    lambda: F.col("s").like("x%"), lambda: F.col("s").rlike("[01]"), lambda: F.col("s").ilike("X1"), lambda: F.col("`it``s`") + 1,
    lambda: F.col("select") + 1, lambda: F.concat_ws(",", "a", "s"), lambda: F.col("s").substr(1, 2), lambda: F.col("s").startswith("x"),
    lambda: F.col("a").bitwiseAND(3), lambda: F.bitwise_not("a"), lambda: F.struct(F.col("a").alias("n"), "s"), lambda: F.coalesce("a", F.lit(0)),
    lambda: F.col("s").eqNullSafe("x1"), lambda: F.isnan("d"), lambda: F.col("d").isNaN(), lambda: F.col("a").isNotNull(),
    lambda: F.hour("at"), lambda: F.col("at") > dt.datetime(1970, 1, 1, 2, tzinfo=dt.UTC), lambda: F.col("at") + F.expr("interval 1 hour"),
    lambda: F.col("at") - dt.timedelta(minutes=5), lambda: F.col("at") + F.lit(dt.timedelta(days=-3, microseconds=-1)), lambda: F.col("dd") == dt.date(2024, 1, 2), lambda: F.create_map("s", "a"),
    lambda: F.from_json("s", "p int"), lambda: F.date_trunc("hour", "at"), lambda: F.call_function("upper", F.col("s")),
    lambda: F.col("b") & ~F.col("b") | F.col("b"), lambda: F.greatest("a", "d"), lambda: F.xxhash64("s"), lambda: F.col("n") * Decimal("0.5"),
]  # fmt: skip
REFUSED = [
    (lambda: F.udf(lambda x: x)("a"), "is a Column that calls a Python function, <lambda>"),
    (lambda: F.col("st").withField("z", F.lit(1)), "is a Column that has a part without SQL"),
    (lambda: F.col("st.*"), "is a Column that takes the fields of a struct apart"),
    (lambda: F.lit(dt.date(1582, 12, 31)), "is a Column that has a value without SQL, 1582-12-31"),
    (lambda: F.lit(dt.datetime(1582, 12, 31, tzinfo=dt.UTC)), "is a Column that has a value without SQL"),
    (lambda: F.col("a").desc(), "is a Column that has a part without SQL"),
]


@pytest.fixture(scope="module")
def frame(spark):
    return spark.sql(ROWS).cache()


def same(frame, column):
    text = text_of(column, "it")
    found, wanted = frame.select(F.expr(text).alias("it")), frame.select(column.alias("it"))
    assert found.schema["it"].dataType == wanted.schema["it"].dataType, text
    assert repr(found.collect()) == repr(wanted.collect()), text


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_value_as_text_is_that_value_of_that_type(frame, value):
    same(frame, F.lit(value))


@pytest.mark.parametrize("at", range(len(COLUMNS)))
def test_column_as_text_is_that_column(frame, at):
    same(frame, COLUMNS[at]())


def test_column_of_a_frame_as_text_is_its_name(frame):
    same(frame, (frame.a > 1) & (frame["`x.y`"] < 8))


@pytest.mark.parametrize(("column", "sentence"), REFUSED)
def test_column_without_text_is_refused(frame, column, sentence):
    with pytest.raises(DeclarationError, match=sentence):
        text_of(column(), "where")


def drawn(chance, depth):
    """A number, a condition, each of a random tree of operators."""
    if not depth:
        leaf = chance.choice(["a", "d", "x.y", "n", 3, -2, 2.5, None])
        return F.col(f"`{leaf}`") if isinstance(leaf, str) else F.lit(leaf).cast("int") if leaf is None else F.lit(leaf)
    one, two = drawn(chance, depth - 1), drawn(chance, depth - 1)
    test = chance.choice(
        [one < two, one.isNull(), one == two, ~(one > two), one.eqNullSafe(two), one.isin(1, 2), (one != two) | two.isNotNull()]
    )
    return chance.choice(
        [
            one + two,
            one - two,
            one * two,
            one / (two * two + 1),
            one % 7,
            -one,
            F.when(test, one).otherwise(two),
            F.coalesce(one, two),
        ]
    )


def test_random_columns_as_text_are_those_columns(frame):
    chance = random.Random(43)
    columns = [drawn(chance, chance.randint(1, 4)) for _ in range(60)]
    texts = [text_of(c, "it") for c in columns]
    found = frame.select(*(F.expr(text).alias(f"c{i}") for i, text in enumerate(texts)))
    wanted = frame.select(*(c.alias(f"c{i}") for i, c in enumerate(columns)))
    assert found.schema == wanted.schema
    assert repr(found.collect()) == repr(wanted.collect())


SCHEMA = "k string, at timestamp, v long, x double"


def test_flow_of_columns_gives_the_same_in_process_and_over_spark_as_that_of_texts(spark, tmp_path):
    rows = [{"k": "abA"[i % 3], "at": moment(i), "v": i if i % 5 else None, "x": i / 7} for i in range(40)]
    write_parquet(tmp_path / "in", rows, as_schema(SCHEMA, "it"), 0)

    def columns(sinks):
        flow = ps.Flow("habits")
        events = flow.source("s", ps.files(tmp_path / "in", spark.read.parquet(str(tmp_path / "in")).schema), time=F.col("at"))
        kept = events.filter(F.col("v").isNotNull() & ~F.col("v").isin(3, 4)).with_columns({"w": F.col("v") * 2.5})
        keyed = kept.select(
            "*", F.lower("k").alias("low"), later=F.col("at") > dt.datetime(2024, 3, 10, 7, tzinfo=dt.UTC)
        ).key_by([F.col("low")])
        keyed.window(ps.tumbling("10 sec")).aggregate(
            F.count("*").alias("n"),
            F.count_distinct("v").alias("c"),
            w=F.avg("w"),
            most=F.max(F.col("V") * F.col("v")),
            e=ps.sum(F.col("x")),
        ).sink(sinks("windows"))
        kept.split(big=F.col("w") > 50)["big"].drop(F.col("x")).sink(sinks("big"))
        return flow

    def texts(sinks):
        flow = ps.Flow("habits")
        events = flow.source("s", ps.files(tmp_path / "in", SCHEMA), time="at")
        kept = events.where("v IS NOT NULL AND NOT v IN (3, 4)").with_columns(w="v * 2.5D")
        wide = kept.with_columns(low="lower(k)", later="at > timestamp'2024-03-10 07:00:00Z'", vv="v * v")
        wide.key_by("low").window(ps.tumbling("10 seconds")).aggregate(
            n=ps.count(), c=ps.count_distinct("v"), w=ps.mean("w"), most=ps.max("vv"), e=ps.sum("x")
        ).sink(sinks("windows"))
        kept.where("w > 50").select("k", "at", "v", "w").sink(sinks("big"))
        return flow

    wanted = in_harness(texts, {"s": rows})
    assert all(wanted.values())
    assert not difference(in_harness(columns, {"s": rows}), wanted)
    assert not difference(over_spark(spark, tmp_path / "c1", columns), wanted)


def test_pattern_whose_types_are_columns_finds_what_that_of_texts_finds(spark):
    frame = spark.sql("SELECT id AS at, id % 3 AS v FROM range(9)")
    query = "SELECT * WHERE A ; B WITHIN 2 EVENTS"
    found = ps.match(frame, query, order_by="at", define={"A": F.col("v") == 0, "B": F.col("v") == 1}).collect()
    assert found == ps.match(frame, query, order_by="at", define={"A": "v = 0", "B": "v = 1"}).collect()
    assert len(found) == 3
