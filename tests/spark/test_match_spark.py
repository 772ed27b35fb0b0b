"""Columns of `match` over Spark, the values that come through it, and what it refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from functools import partial

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.errors import DeclarationError, QueryError
from penstock.patterns.sorting import Sorting
from penstock.spark import exchange

pytestmark = pytest.mark.spark

EVENT = "at timestamp, kind string, k string, v double"
ROWS = [("A", "x", 1.0), ("B", "x", None), ("A", "y", 2.0), ("A", None, 3.0), (None, "y", 4.0), ("B", "y", 5.0)]
EVENT_TYPE = pa.struct([("at", pa.timestamp("us", "UTC")), ("kind", pa.string()), ("k", pa.string()), ("v", pa.float64())])
TIME = pa.timestamp("us", "UTC")


def at(second):
    return dt.datetime(2024, 3, 10, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def frame(spark, rows=ROWS):
    return spark.createDataFrame([(at(i), *row) for i, row in enumerate(rows)], EVENT)


def match(df, query, **options):
    return ps.match(df, query, **{"order_by": "at", "type": "kind", **options})


def typed(schema):
    """Names and types, without what Spark calls the items of a list."""
    return {field.name: _plain(field.type) for field in schema}


def _plain(kind):
    return [_plain(kind.value_type)] if pa.types.is_list(kind) else kind


def rows_of(found):
    return sorted(found.toArrow().to_pylist(), key=lambda row: (row["match_end"], str(row)))


# ---------------------------------------------------------------------------------------------------------------- streams


def test_matches_of_several_streams_are_of_their_events_in_order_and_columns_they_lack_are_null(spark):
    buys = frame(spark, [("A", "x", 1.0), ("B", "x", 2.0), ("A", "x", 3.0)])
    asks = spark.createDataFrame([(at(0.5), "A", "x", 7), (at(1.5), "B", "x", 8)], "at timestamp, kind string, k string, n int")
    streams = {
        "buys": buys,
        "it's": asks,
        "other": buys.where("v = 2").withColumn("at", F.expr("at + interval 250 milliseconds")),
    }

    def told(query):
        found = rows_of(match(streams, query))
        return sorted([(e["at"] - at(0)).total_seconds() for e in row["events"]] for row in found), found

    assert told("SELECT * WHERE buys>A ; buys>B WITHIN 1 SECOND")[0] == [[0, 1]]
    assert told("SELECT * WHERE A ; B WITHIN 1 SECOND")[0] == [[0, 1], [0.5, 1], [0.5, 1.25], [0.5, 1.5]]
    assert told("SELECT * WHERE A : B")[0] == [[0.5, 1]]
    assert told("SELECT * FROM buys WHERE A : B")[0] == [[0, 1]]
    places, found = told("SELECT * FROM `it's`, buys WHERE `it's`>A ; buys>A FILTER `it's`>A[n = 7] PARTITION BY [k]")
    assert places == [[0.5, 2]]
    assert found[0]["events"] == [
        {"at": at(0.5), "kind": "A", "k": "x", "v": None, "n": 7},
        {"at": at(2), "kind": "A", "k": "x", "v": 3.0, "n": None},
    ]
    counted = match(streams, "SELECT COUNT(*) WHERE buys>A ; `it's`>B WITHIN 3 EVENTS")
    assert [row["matches"] for row in rows_of(counted)] == []
    counted = match(streams, "SELECT COUNT(*) FROM buys, `it's` WHERE buys>A ; `it's`>B WITHIN 3 EVENTS")
    assert [row["matches"] for row in rows_of(counted)] == [1]


def test_stream_without_the_column_of_types_or_of_order_is_refused(spark):
    whole, untyped = frame(spark), frame(spark).drop("kind")
    for options, name in (
        ({"type": "kind"}, "kind"),
        ({"order_by": ["at", "kind"], "type": None, "define": {"A": "v > 0"}}, "kind"),
    ):
        with pytest.raises(DeclarationError) as caught:
            match({"S": whole, "T": untyped}, "SELECT * WHERE A", **options)
        assert str(caught.value) == f"Stream 'T' has no column {name!r}, which every stream must have."
    assert match({"S": whole, "T": untyped}, "SELECT * FROM S WHERE A").count() == 3


def said(error):
    """The sentence of an error, without the place that it shows."""
    sentence, *shown = str(error).split("\n")
    assert len(shown) in {0, 2}
    return sentence.partition(": ")[2] if shown else sentence


@pytest.mark.parametrize(
    ("streams", "query", "message"),
    [
        ({}, "SELECT * WHERE A", "match needs at least one stream, but the dict of DataFrames is empty."),
        ({"S": 1}, "SELECT * WHERE A", "match reads a DataFrame of Spark, not builtins.int."),
        ({3: 1}, "SELECT * WHERE A", "The name of a stream must be text, not 3."),
        ({"S": "v"}, "SELECT * FROM T WHERE A", "the query reads stream 'T', but match was given others: S."),
        (
            {"S": "v", "T": "int(v) v"},
            "SELECT * WHERE A",
            "Column 'v' is double in stream 'S' and int in stream 'T'; cast one of them.",
        ),
        (
            {"S": "v", "T": "v V"},
            "SELECT * WHERE A",
            "Stream 'T' has column 'V', which stream 'S' spells 'v'; rename one.",
        ),
    ],
)
def test_streams_that_do_not_fit_are_refused_with_a_sentence(spark, streams, query, message):
    frames = {n: frame(spark).selectExpr("at", "kind", v) if isinstance(v, str) else v for n, v in streams.items()}
    with pytest.raises(DeclarationError) as caught:
        match(frames, query)
    assert said(caught.value) == message


# ---------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT * WHERE A ; B", {"match_start": TIME, "match_end": TIME, "events": [EVENT_TYPE]}),
        (
            "SELECT * WHERE (A AS x) ; B AS y",
            {"match_start": TIME, "match_end": TIME, "events": [EVENT_TYPE], "x": [EVENT_TYPE], "y": [EVENT_TYPE]},
        ),
        ("SELECT NONE WHERE A ; B", {"match_start": TIME, "match_end": TIME}),
        (
            "SELECT B[v, at], A WHERE A ; B",
            {"match_start": TIME, "match_end": TIME, "B": [pa.struct([("v", pa.float64()), ("at", TIME)])], "A": [EVENT_TYPE]},
        ),
        ("SELECT COUNT(*) WHERE A ; B", {"match_end": TIME, "matches": pa.decimal128(38, 0)}),
        (
            "SELECT COUNT(*) WHERE A ; B PARTITION BY [k], [v]",
            {"k": pa.string(), "v": pa.float64(), "match_end": TIME, "matches": pa.decimal128(38, 0)},
        ),
        ("SELECT NONE WHERE A ; B PARTITION BY [kind, k]", {"kind_k": pa.string(), "match_start": TIME, "match_end": TIME}),
    ],
)
@pytest.mark.parametrize("rows", [ROWS, []], ids=["events", "no events"])
def test_result_has_the_columns_of_its_projection_in_order_even_if_it_is_empty(spark, query, columns, rows):
    found = match(frame(spark, rows), query).toArrow()
    assert found.schema.names == [*columns]
    assert typed(found.schema) == columns
    assert rows or not found.num_rows


def test_result_shows_its_key_its_interval_and_its_events_in_order(spark):
    found = rows_of(match(frame(spark), "SELECT * WHERE (A+ AS first) ; B PARTITION BY [k]"))
    event = lambda i: dict(zip(("at", "kind", "k", "v"), (at(i), *ROWS[i]), strict=True))  # noqa: E731
    assert found == [
        {"k": "x", "match_start": at(0), "match_end": at(1), "events": [event(0), event(1)], "first": [event(0)]},
        {"k": "y", "match_start": at(2), "match_end": at(5), "events": [event(2), event(5)], "first": [event(2)]},
    ]


def test_key_is_the_first_attribute_that_an_event_has_and_events_without_are_left_out(spark):
    df = spark.createDataFrame(
        [(1, "A", None, 7), (2, "B", 7, None), (3, "A", 7, 8), (4, "B", None, None)], "at int, kind string, a int, b int"
    )
    found = rows_of(match(df, "SELECT B[at] WHERE A ; B PARTITION BY [a, b]"))
    assert found == [{"a_b": 7, "match_start": 1, "match_end": 2, "B": [{"at": 2}]}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["a", "b"]),
        ("int", [1, 2]),
        ("decimal(10,2)", [decimal.Decimal("0.50"), decimal.Decimal("1.00")]),
        ("timestamp", [at(0), at(1)]),
        ("date", [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        ("double", [0.5, 1.5]),
    ],
)
def test_events_may_be_ordered_by_a_column_of_any_ordered_type(spark, kind, values):
    df = spark.createDataFrame([(values[1], "B"), (values[0], "A")], f"o {kind}, kind string")
    found = match(df, "SELECT A[o] WHERE A : B", order_by="o")
    assert dict(found.dtypes)["match_start"] == dict(df.dtypes)["o"]
    assert rows_of(found) == [{"match_start": values[0], "match_end": values[1], "A": [{"o": values[0]}]}]


# ----------------------------------------------------------------------------------------------------------------- values

MANY = (
    "s string, i tinyint, l long, f float, d double, m decimal(20,5), t timestamp, n timestamp_ntz, y date, o boolean, b binary, "
    "a array<string>, r struct<x: int, deep: array<struct<z: timestamp>>>, p map<string, long>, `a b.c` string"
)
VALUES = (
    "ünï\n", -128, 2**63 - 1, 0.5, -0.0, decimal.Decimal("123456789012345.67890"), at(0.123456), dt.datetime(1900, 1, 1),  # noqa: DTZ001
    dt.date(9999, 12, 31), True, b"\x00\xff", ["", None], {"x": None, "deep": [{"z": at(5)}, None]}, {"q": 2**40}, "`",
)  # fmt: skip


@pytest.mark.parametrize("split", [None, ps.CountedSplit(0)], ids=["told where found", "handed over"])
def test_values_of_every_type_come_through_exactly(spark, split):
    names = [*spark.createDataFrame([], MANY).columns]
    rows = [(1, "A", *VALUES), (2, "B", *[None] * len(VALUES))]
    df = spark.createDataFrame(rows, f"at long, kind string, {MANY}").repartition(2)
    found = match(df, "SELECT * WHERE A ; B AS last", enumerate_with=split)
    assert found.schema["events"].dataType.elementType.fieldNames() == ["at", "kind", *names]
    assert [f.dataType for f in found.schema["events"].dataType.elementType] == [f.dataType for f in df.schema]
    [row] = found.selectExpr("events[0] AS whole", "last[0] AS nothing").selectExpr("whole.*", "nothing").collect()
    [told] = df.where("at = 1").collect()
    assert [row[name] for name in df.columns] == [told[name] for name in df.columns]
    assert math.copysign(1, row["d"]) == -1
    assert [row["nothing"][name] for name in names] == [None] * len(names)


def test_chosen_attributes_with_odd_names_are_found(spark):
    df = spark.createDataFrame([(1, "A", 5, "x")], "at long, kind string, `a b.c` int, `it``s` string")
    found = match(
        df, "SELECT A[`a b.c`] WHERE A FILTER A[`a b.c` = 5] PARTITION BY [`it``s`]", where=lambda row: row["it`s"] == "x"
    )
    assert [row.asDict(recursive=True) for row in found.collect()] == [
        {"it`s": "x", "match_start": 1, "match_end": 1, "A": [{"a b.c": 5}]}
    ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [math.nan, 0.0, -0.0, math.nan, math.inf]),
        ("decimal(5,1)", [decimal.Decimal(1), decimal.Decimal(2), decimal.Decimal(2), decimal.Decimal(1), decimal.Decimal(3)]),
        ("boolean", [True, False, False, True, None]),
        ("binary", [b"", b"a", b"a", b"", b"b"]),
        ("timestamp", [at(0), at(1), at(1), at(0), at(2)]),
        ("date", [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 2), dt.date(2024, 1, 1), dt.date(1900, 1, 1)]),
    ],
)
@pytest.mark.parametrize("consume", ["NONE", "ANY"])
def test_keys_of_any_type_are_equal_as_they_are_in_sql(spark, kind, values, consume):
    kinds = "AABBA"
    df = spark.createDataFrame([(i, kinds[i], v) for i, v in enumerate(values)], f"at int, kind string, k {kind}").repartition(
        3
    )
    found = match(df, f"SELECT NONE WHERE A ; B PARTITION BY [k] CONSUME BY {consume}").collect()
    assert sorted((row.match_start, row.match_end) for row in found) == ([(0, 3), (1, 2)] if consume == "NONE" else [(1, 2)])


@pytest.mark.parametrize("split", [None, ps.CountedSplit(0)], ids=["told where found", "handed over"])
def test_session_in_another_time_zone_gives_the_same_moments(spark, split):
    df = frame(spark)
    query = "SELECT * WHERE A ; B PARTITION BY [k] WITHIN 3 SECONDS"
    wanted = rows_of(match(df, query))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = rows_of(match(df, query, enumerate_with=split, where=lambda row: row.match_start is not None))
        counted = match(df, "SELECT COUNT(*) WHERE A ; B").count()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == wanted
    assert len(found) == counted == 2


# ------------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT * WHERE A FILTER A[w = 1]",
            "the filter A[w = 1] names column 'w', which does not exist; there are at, kind, k, v.",
        ),
        ("SELECT A[kin] WHERE A", "SELECT A[kin] names column 'kin', which does not exist; did you mean 'kind'?"),
        ("SELECT * WHERE A PARTITION BY [w]", "PARTITION BY names column 'w', which does not exist; there are at, kind, k, v."),
        ("SELECT * WHERE A WITHIN 3 [w]", "WITHIN names column 'w', which does not exist; there are at, kind, k, v."),
        ("SELECT * WHERE A WITHIN 3 [k]", "WITHIN 3 [k] needs a column of numbers, but 'k' is string."),
        ("SELECT * WHERE A FILTER A[k = 1]", "the filter A[k = 1] compares a string with a number: k = 1."),
        (
            "SELECT * WHERE A PARTITION BY [k, v]",
            "PARTITION BY [k, v] needs attributes of one type, but they are double and string.",
        ),
        (
            "SELECT * FROM S, T WHERE A",
            "the query reads streams S, T, but the DataFrame is one stream; give a dict of DataFrames by name.",
        ),
        ("SELECT * WHERE A WITHIN 1 HOUR 3 EVENTS", "a window is measured in EVENTS or in time, not in both."),
        (
            "SELECT COUNT(*) WHERE A LIMIT 3",
            "LIMIT has no meaning with COUNT(*), which gives one row per closing event; leave it out.",
        ),
        (
            "SELECT * WHERE A AS match_end",
            "the result would have two columns 'match_end'; name the variable differently with AS.",
        ),
        (
            "SELECT * WHERE A AS k PARTITION BY [k]",
            "the result would have two columns 'k'; name the variable differently with AS.",
        ),
        (
            "SELECT * WHERE A FILTER A[k LIKE '(a']",
            "LIKE '(a' is not a regular expression: Unclosed group.",
        ),
        (
            "SELECT * WHERE A : NOT(B FILTER B[k LIKE '[']) : A",
            "LIKE '[' is not a regular expression: Unclosed character class.",
        ),
        ("SELECT * WHERE A FILTER A[k LIKE '(?x)a # c']", "LIKE '(?x)a # c' is not a regular expression: Unclosed group."),
        ("SELECT * WHERE A FILTER A[k LIKE '\\Qab']", "LIKE '\\\\Qab' is not a regular expression: Unclosed group."),
    ],
)
def test_query_that_does_not_fit_is_refused_with_a_sentence(spark, query, message):
    with pytest.raises(DeclarationError) as caught:
        match(frame(spark), query)
    assert said(caught.value) == message


def test_column_with_a_name_of_penstocks_own_is_refused(spark):
    with pytest.raises(
        DeclarationError, match="Column '__PS_mask0' has a name that is penstock's own; rename what begins with __ps_"
    ):
        match(frame(spark).withColumn("__PS_mask0", F.lit(1)), "SELECT * WHERE A")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order_by": "att"}, "order_by names column 'att', which does not exist; did you mean 'at'?"),
        ({"order_by": ["at", "x"]}, "order_by names column 'x', which does not exist; there are at, kind, k, v."),
        ({"order_by": []}, "order_by needs a column that orders the events."),
        ({"type": "kin"}, "type names column 'kin', which does not exist; did you mean 'kind'?"),
        (
            {"type": None},
            "match needs to know the type of an event: give type='column', or define={'name': 'SQL condition'}, and not both.",
        ),
        ({"type": None, "define": {"A": "v > 0"}}, "event type 'B' is not defined; define= has A."),
        ({"type": None, "define": {"A": "v > 0", "B": "v"}}, "define needs a condition, but 'v' is of type double."),
        ({"strategy_scope": "all"}, "strategy_scope='all' is not known; use 'end' or 'interval'."),
        ({"events_window": "all"}, "events_window='all' is not known; use 'global' or 'key'."),
        ({"max_matches_per_event": 0}, "max_matches_per_event must be a whole number from 1, not 0."),
        ({"order_by": None}, "order_by must be a column's name, or a list of them, not None."),
        (
            {"type": "v"},
            "type names column 'v' of double, but a type's name is text; cast it, or use define={'name': 'condition'}.",
        ),
        ({"enumerate_with": "x"}, "enumerate_with must be CountedSplit(), MaximalDisjoint() or Maximal(), not 'x'."),
        ({"where": 3}, "where needs a function fn(match), not 3."),
    ],
)
def test_argument_that_does_not_fit_is_refused_with_a_sentence(spark, options, message):
    with pytest.raises(DeclarationError) as caught:
        match(frame(spark), "SELECT * WHERE A ; B", **options)
    assert said(caught.value) == message


def test_what_is_no_batch_of_events_is_refused_with_a_sentence(spark):
    with pytest.raises(DeclarationError, match=r"match reads a DataFrame of Spark, not pandas\.[a-z.]*DataFrame"):
        match(frame(spark).toPandas(), "SELECT * WHERE A")
    with pytest.raises(DeclarationError, match=r"a stream is matched in a flow: \.key_by\('column'\)\.match\(query"):
        match(spark.readStream.format("rate").load(), "SELECT * WHERE A")
    with pytest.raises(DeclarationError, match="The DataFrame has two columns named 'kind'; rename one"):
        match(frame(spark).selectExpr("*", "k AS kind"), "SELECT * WHERE A")
    with pytest.raises(DeclarationError, match=r"order_by names column 'at' of list<.*>, which gives no order of events"):
        match(frame(spark).selectExpr("array(at) AS at", "kind"), "SELECT * WHERE A")


def test_condition_in_python_that_fails_tells_the_match(spark):
    found = match(frame(spark), "SELECT * WHERE A", where=lambda match: match.events[0].v > 1)
    sentence = told(found)
    assert "The function of where failed on Row(match_start=" in sentence
    assert "AttributeError: 'dict' object has no attribute 'v' (test_match_spark.py, line " in sentence


def test_window_of_time_over_numbers_is_refused_with_advice(spark):
    df = spark.createDataFrame([(1, "A")], "at long, kind string")
    with pytest.raises(QueryError) as caught:
        match(df, "SELECT * WHERE A WITHIN 3 SECONDS")
    assert said(caught.value) == (
        "WITHIN 3 SECONDS needs events ordered by a time, but 'at' is int64; measure in its own unit: WITHIN number [at]."
    )


def told(found):
    """What a worker raises, without where."""
    with pytest.raises(PythonException) as caught:
        found.collect()
    return str(caught.value).strip().splitlines()[-1]


def test_two_events_of_one_key_in_one_place_are_refused_by_name(spark):
    df = spark.createDataFrame([(1, "A", "x"), (2, "A", "x"), (2, "B", "x"), (1, "B", "y")], "at int, kind string, k string")
    assert told(match(df, "SELECT NONE WHERE A ; B PARTITION BY [k]")) == (
        "penstock.errors.RecordError: Two events (at 2, k x) have the same position in the order by at; name a "
        "further column in order_by that distinguishes them."
    )


@pytest.mark.parametrize("clause", ["WITHIN 3 EVENTS", "CONSUME BY ANY"])
def test_two_events_of_different_keys_in_one_place_are_refused_where_their_order_matters(spark, clause):
    df = spark.createDataFrame([(1, "A", "x"), (1, "A", "y"), (2, "B", "x")], "at int, kind string, k string")
    with pytest.raises(Exception, match=r"have the same position in the order by at.*name a further column in order_by"):
        match(df, f"SELECT NONE WHERE A ; B PARTITION BY [k] {clause}").collect()
    assert match(df, "SELECT NONE WHERE A ; B PARTITION BY [k] WITHIN 3 EVENTS", events_window="key").count() == 1


@pytest.mark.parametrize("kind", ["int", "timestamp", "double"])
def test_event_without_a_place_is_refused(spark, kind):
    df = spark.createDataFrame([(None, "A"), (1, "B")], "at int, kind string").selectExpr(f"cast(at as {kind}) at", "kind")
    assert told(match(df, "SELECT NONE WHERE A ; B")) == (
        "penstock.errors.RecordError: Event (at None) has no value of 'at', which orders the events; leave such events out."
    )


def test_event_without_what_its_window_measures_or_going_back_in_it_is_refused(spark):
    df = spark.createDataFrame([(1, "A", 5), (2, "B", None), (3, "B", 4)], "at int, kind string, n int")
    query = "SELECT NONE WHERE A ; B WITHIN 3 [n]"
    said = "penstock.errors.RecordError: Event (at 2) has no value of 'n', which its window needs, or NaN or infinity; leave such events out."
    assert told(match(df, query)) == said
    assert told(match(df.where("n IS NOT NULL"), query)) == (
        "penstock.errors.RecordError: A window of 'n' needs values that do not decrease within a key while a match "
        "is under way, but that of (at 3) is less than the one before; measure in another column, or correct the data."
    )


@pytest.mark.parametrize("key", ["id * 7919 % 97", "cast(id * 7919 % 97 as string)", "1"])
def test_matches_are_the_same_when_events_are_sorted_over_files(spark, monkeypatch, key):
    kinds = "element_at(array('A', 'B', 'C'), 1 + cast(xxhash64(id) & 1 as int)) as kind"
    df = spark.range(20_000).orderBy(F.expr("xxhash64(id)")).selectExpr("id as at", f"{key} as k", kinds)

    def found():
        rows = match(df, "SELECT A[at], B[at] WHERE A : B PARTITION BY [k]", order_by="at", type="kind").collect()
        return sorted((row.k, row.match_start, row.match_end) for row in rows)

    in_memory = found()
    assert len(in_memory) > 2000
    monkeypatch.setattr("penstock.spark.patterns.match.Sorting", partial(Sorting, held_bytes=40_000))
    assert found() == in_memory


@pytest.mark.parametrize(
    ("records", "columns", "paged"),
    [(2048, 400, True), (2048, 500, False), (32_768, 3, True), (65_536, 3, False), (0, 3, False)],
)
def test_rows_are_paged_only_where_a_page_is_large_against_its_head(spark, records, columns, paged):
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, records)
    try:
        schema = pa.schema([pa.field(f"c{i}", pa.int64()) for i in range(columns)])
        assert exchange.can_be_paged(spark, schema) == paged
    finally:
        spark.conf.set(setting, before)


@pytest.mark.parametrize("between", [":", ";"])
@pytest.mark.parametrize("key", ["k", "f", "at", "name"])
def test_matches_are_the_same_whether_events_are_shuffled_in_pages_or_as_rows(spark, monkeypatch, key, between):
    """Keys and attributes with nulls, NaN and both zeros, in many small pages; where Spark joins partitions, rows stay rows."""
    odd = "element_at(array(0d, -0d, double('nan'), 1.5d, null), cast(pmod(hash(id, 2), 5) as int) + 1) AS f"
    attributes = (
        "pmod(hash(id), 3) AS kind",
        "nullif(pmod(hash(id, 1), 11), 3) AS k",
        "if(id % 50 = 0, null, id / 7) AS v",
        "if(id % 9 = 0, null, repeat('é', cast(id % 5 as int))) AS t",
        "nullif(id % 3 = 0, id % 4 = 0) AS yes",
        odd,
    )
    events = (
        spark.range(0, 3000, 1, 4)
        .selectExpr("id", *attributes)
        .selectExpr("*", "timestamp_seconds(k) AS at", "concat('k', k) AS name")
    )
    define = {name: f"kind = {i}" for i, name in enumerate("ABC")}
    steps = f" {between} ".join(("A AS a", "B AS b", "C AS c"))
    query = f"SELECT a[v, t], b[id, yes], c[id] WHERE {steps} PARTITION BY [{key}] WITHIN 40 [id]"
    monkeypatch.setattr(exchange, "HANDED_BYTES", 1 << 21)
    monkeypatch.setattr(exchange, "_LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(exchange, "_HEADS", 1)

    def told():
        return sorted(map(repr, ps.match(events, query, order_by="id", define=define).toArrow().to_pylist()))

    cuts, in_pages = [], exchange.in_pages
    monkeypatch.setattr(exchange, "in_pages", lambda *given: cuts.append(given) or in_pages(*given))
    paged = told()
    assert len(cuts) == 1
    assert len(paged) > 20
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        assert told() == paged
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert len(cuts) == 1
