"""What users of PySpark write out of habit, beside penstock's own spelling: the same flow."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import pickle
import sqlite3

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import penstock as ps
from penstock.errors import DeclarationError
from penstock.rows.named import row_type
from penstock.sql_text.schema import as_schema
from penstock.testing import Harness
from penstock.types import duration_us

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
COLUMNS = "k string, at timestamp, v long, class string, _x long, `a b` long"


def events(name="s", flow=None):
    flow = flow or ps.Flow("f")
    return flow.source(name, ps.files("none", COLUMNS), time="at")


def given(declare, request, rows=6):
    """Rows that come out of a flow in process."""
    out = ps.memory(request.node.name)
    flow = ps.Flow("f")
    declare(events("s", flow)).sink(out)
    with Harness(flow) as harness:
        data = [
            {
                "k": "aAb"[i % 3],
                "at": BEGIN + dt.timedelta(minutes=i),
                "v": i,
                "class": f"c{i % 2}",
                "_x": -i,
                "a b": 10 * i,
            }
            for i in range(rows)
        ]
        harness.push("s", data[: rows // 2])
        harness.epoch()
        harness.push("s", data[rows // 2 :])
        harness.finish()
    return sorted(out.rows(), key=repr)


@pytest.mark.parametrize(
    ("spelled", "us"),
    [
        ("5m", 300_000_000),
        ("10 sec", 10_000_000),
        ("1h", 3_600_000_000),
        ("1h 30m", 5_400_000_000),
        ("200ms", 200_000),
        ("2 days, 1 hour", 176_400_000_000),
        ("1.5 hours", 5_400_000_000),
        (10, 10_000_000),
        (0.25, 250_000),
        (np.int64(3), 3_000_000),
        (dt.timedelta(minutes=1), 60_000_000),
        (0, 0),
    ],
)
def test_duration_when_it_is_spelled_as_elsewhere_is_read(spelled, us):
    assert duration_us(spelled) == us


@pytest.mark.parametrize("wrong", ["10", "", "5 fortnights", True, -1, float("nan"), float("inf"), 1e30, None, "m", "1h foo"])
def test_duration_when_it_is_none_is_refused(wrong):
    with pytest.raises(DeclarationError):
        duration_us(wrong, "the size")


def test_duration_when_it_lacks_a_unit_names_the_two_ways_out():
    with pytest.raises(DeclarationError, match="a number alone is of seconds: write 10 without quotes"):
        duration_us("10", "the size")


def count_by(keyed):
    return keyed.window(ps.tumbling("2 minutes")).aggregate(n=ps.count(), m=ps.mean("v"))


EQUAL = {
    "filter": (lambda s: s.where("v > 2"), lambda s: s.filter("V > 2")),
    "drop": (lambda s: s.select("k", "at", "v"), lambda s: s.drop("CLASS", ["_x"], "a b")),
    "list of columns": (lambda s: s.select("k", "v"), lambda s: s.select(["k", "v"])),
    "dict of columns": (lambda s: s.with_columns(w="v * 2"), lambda s: s.with_columns({"w": "v * 2"})),
    "column in another case replaced": (
        lambda s: s.drop("v").with_columns(V="k"),
        lambda s: s.with_columns(V="k"),
    ),
    "list of keys": (
        lambda s: count_by(s.key_by("k", "v")),
        lambda s: count_by(s.key_by(["K", "V"])),
    ),
    "list of what makes equal": (
        lambda s: s.key_by("k").deduplicate("class", "v"),
        lambda s: s.key_by("k").deduplicate(["Class", "V"]),
    ),
    "avg, and count of a star": (
        lambda s: count_by(s.key_by("k")),
        lambda s: s.key_by("k").window(ps.tumbling("2m")).aggregate(n=ps.count("*"), m=ps.avg("V")),
    ),
    "aggregates as text": (
        lambda s: count_by(s.key_by("k")),
        lambda s: s.key_by("k").window(ps.tumbling(120)).aggregate(n="count(*)", m="avg(v)"),
    ),
    "aggregates as text with names": (
        lambda s: count_by(s.key_by("k")),
        lambda s: s.key_by("k").window(ps.tumbling(dt.timedelta(minutes=2))).aggregate("count(1) AS n", "mean(v) AS m"),
    ),
    "aggregate of an expression": (
        lambda s: s.with_columns(w="v * v").key_by("k").window(ps.session("1h")).aggregate(n=ps.sum("w")),
        lambda s: s.key_by("k").window(ps.session("1h")).aggregate(n=ps.sum("v * v")),
    ),
    "distinct as text": (
        lambda s: s.key_by("k").window(ps.session("1h")).aggregate(n=ps.count_distinct("class")),
        lambda s: s.key_by("k").window(ps.session("1h")).aggregate(n="count(DISTINCT class)"),
    ),
    "schema of Spark": (
        lambda s: s.key_by("k").stateful_map(lambda _, e, n: ((e.v,), None), "w long"),
        lambda s: s.key_by("k").stateful_map(
            lambda _, e, n: ((e.v,), None), t.StructType([t.StructField("w", t.LongType(), nullable=False)])
        ),
    ),
    "key as an expression of its own name": (
        lambda s: count_by(s.with_columns(k="lower(k)").key_by("k")),
        lambda s: count_by(s.key_by("lower(k) AS k")),
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), EQUAL.values(), ids=EQUAL)
def test_habit_when_it_is_penstocks_in_other_words_gives_the_same_rows(ours, theirs, request):
    expected = given(ours, request)
    assert expected
    assert given(theirs, request) == expected


@pytest.mark.parametrize(
    ("how", "same"),
    [
        ("outer", "full"),
        ("full_outer", "full"),
        ("left_outer", "left"),
        ("LEFT", "left"),
        ("right", "right"),
        ("rightouter", "right"),
    ],
)
def test_join_when_its_kind_is_spelled_as_in_spark_is_that_kind(how, same):
    def step(kind):
        flow = ps.Flow("f")
        joined = events("s", flow).key_by("k").join(events("t", flow).key_by("k", name="t"), 60, kind)
        joined.sink(ps.noop())
        return flow.plan().regions[-1].steps[-1].operator

    assert step(how) == step(same)


def test_right_join_gives_what_the_left_one_gives_from_the_other_side(request):
    def rows(how, swapped):
        flow, out = ps.Flow("f"), ps.memory(request.node.name + how)
        a, b = (
            flow.source(n, ps.files("none", f"k string, at timestamp, {n} long"), time="at").key_by("k", name=n) for n in "ab"
        )
        (b if swapped else a).join(a if swapped else b, "1m", how).select("k", "a", "b").sink(out)
        with Harness(flow) as harness:
            harness.push("a", [{"k": "x", "at": BEGIN, "a": 1}, {"k": "y", "at": BEGIN, "a": 2}])
            harness.push(
                "b", [{"k": "x", "at": BEGIN, "b": 3}, {"k": "z", "at": BEGIN, "b": 4}, {"k": None, "at": BEGIN, "b": 5}]
            )
            harness.finish()
        return sorted(out.rows(), key=repr)

    assert rows("right", swapped=False) == rows("left", swapped=True)
    assert {r["b"] for r in rows("right", swapped=False)} == {3, 4, 5}


def test_event_keeps_the_names_of_its_columns(request):
    names = ["_x", "class"]

    def fn(_, event, seen):
        return (getattr(event, names[1]), getattr(event, names[0]), event["a b"], event.a_b, event["class"]), None

    rows = given(lambda s: s.key_by("k").stateful_map(fn, "a string, b long, c long, d long, e string"), request)
    assert sorted((r["a"], r["b"], r["c"], r["d"], r["e"]) for r in rows) == sorted(
        (f"c{i % 2}", -i, 10 * i, 10 * i, f"c{i % 2}") for i in range(6)
    )


@pytest.mark.parametrize("state", [None, COLUMNS])
def test_event_that_is_returned_as_state_is_the_state_of_the_next_call(state, request):
    def fn(_, event, last):
        before = None if last is None else (last.v, last["_x"], last["class"], last["a b"])
        return (event.v, str(before)), event

    rows = given(lambda s: s.key_by("upper(k) AS key").stateful_map(fn, "v long, last string", state), request)
    assert {r["v"]: r["last"] for r in rows} == {
        0: "None",
        1: "(0, 0, 'c0', 0)",
        2: "None",
        3: "(1, -1, 'c1', 10)",
        4: "(3, -3, 'c1', 30)",
        5: "(2, -2, 'c0', 20)",
    }


def test_row_whose_names_are_those_of_its_methods_still_works():
    names = ("_fields", "_asdict", "count", "index", "__class__", "1a", "a b", "a_b")
    row = row_type("Event", names)(range(8))
    assert [row[n] for n in names] == list(range(8))
    assert (row.count, row.index, row.a_b, tuple(row), row[-1]) == (2, 3, 7, tuple(range(8)), 7)
    again = pickle.loads(pickle.dumps(row))
    assert again == row
    assert [again[n] for n in names] == list(range(8))
    with pytest.raises(AttributeError, match="the event has no column 'ab'; did you mean 'a_b'"):
        _ = row.ab
    assert not hasattr(row, "__len__x__")


def test_schema_of_spark_when_nested_is_that_of_its_text():
    inner = t.StructType(
        [t.StructField("odd name, really", t.IntegerType()), t.StructField("m", t.MapType(t.StringType(), t.DateType()))]
    )
    spark = t.StructType(
        [
            t.StructField("a", t.ArrayType(inner)),
            t.StructField("d", t.DecimalType(12, 3)),
            t.StructField("at", t.TimestampType()),
            t.StructField("n", t.TimestampNTZType()),
            t.StructField("b", t.BinaryType()),
        ]
    )
    text = "a array<struct<`odd name, really`: int, m: map<string, date>>>, d decimal(12,3), at timestamp, n timestamp_ntz, b binary"
    assert as_schema(spark, "it") == as_schema(text, "it")
    with pytest.raises(DeclarationError, match="Column 'v' of it has the type"):
        as_schema(t.StructType([t.StructField("v", t.VariantType())]), "it")


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda s: s.drop("kk"), "drop names column 'kk', which does not exist; did you mean 'k'"),
        (lambda s: s.drop(*s.columns), "drop would leave no column"),
        (lambda s: s.with_columns("v"), "with_columns needs a name for each column, not 'v'"),
        (lambda s: s.select("v", V="k"), "select gives two columns the name"),
        (lambda s: s.key_by("k").with_columns(K="v"), "is the key of region 'k' and cannot be replaced"),
        (
            lambda s: s.key_by("k").aggregate(n="kurtosis(v)"),
            "is 'kurtosis\\(v\\)', which is none that penstock has; there are count",
        ),
        (lambda s: s.key_by("k").aggregate(n="v"), "Aggregate 'n' is 'v', which is none"),
        (lambda s: s.key_by("k").aggregate(n="sum(v) / count(*)"), "which is none that penstock has"),
        (lambda s: s.key_by("k").aggregate("count(*) AS n", n="sum(v)"), "two aggregates named 'n'"),
        (lambda s: s.key_by("k").deduplicate("v").aggregate(n=ps.sum("v + 1")), "can be read right after key_by only"),
        (lambda s: s.key_by("k").aggregate(n=ps.sum("w")), "reads column 'w', which does not exist"),
        (lambda s: s.key_by("k").aggregate(n=ps.sum("w + 1")), "names column 'w', which does not exist"),
        (lambda s: s.key_by("k").aggregate(K=ps.count()), "Aggregate 'K' has the name of a key or window column"),
        (
            lambda s: s.key_by("k").aggregate(N=ps.count(), n=ps.count()),
            "Aggregates 'N' and 'n' have names that are the same to SQL",
        ),
        (lambda s: s.key_by("k").join(s.key_by("k", name="x"), "1m", "semi"), "use 'inner', 'left', 'right' or 'full'"),
    ],
)
def test_habit_when_it_means_nothing_here_is_refused_in_a_sentence(declare, sentence):
    with pytest.raises(DeclarationError, match=sentence):
        declare(events())


def test_name_with_a_quote_is_a_name_in_process_too():
    flow, out = ps.Flow("f"), ps.memory("quoted")
    stream = events("s", flow).select("k", "at", **{'a"b': "v", '"': "v + 1"})
    stream.where('`a"b` > 1').key_by("k").window(ps.tumbling("1 hour")).aggregate(**{'n"': ps.sum('"')}).sink(out)
    with Harness(flow) as harness:
        harness.push("s", [{"k": "a", "at": BEGIN, "v": n, "class": "c", "_x": 1, "a b": 1} for n in (1, 2)])
        harness.finish()
    assert [row['n"'] for row in out.rows()] == [3]


@pytest.mark.parametrize("how", ["left", "asof"])
def test_join_when_names_differ_in_case_only_tells_them_apart(how):
    stream = events()
    others = stream.select(z="k", K="k", V="v", at2="at").key_by("z")
    joined = (
        stream.select("k", "v", "at").key_by("k").join(others, how=how, **({} if how == "asof" else {"within": "1 minute"}))
    )
    assert joined.columns == ["k", "v", "at", "K_right", "V_right", "at2"]


def test_source_when_its_columns_are_named_in_another_case_finds_them():
    flow = ps.Flow("f")
    stream = flow.source("s", ps.files("none", "p long, o long, at timestamp"), time="AT", position=("P", "O"))
    stream.sink(ps.noop())
    assert (flow.plan().sources[0].time, flow.plan().sources[0].position) == ("at", ("p", "o"))
    assert stream.columns == ["p", "o", "at"]
    assert isinstance(stream.schema, pa.Schema)


@pytest.mark.parametrize("key", ["K", ["K"], ("k", "K"), iter(["K"])])
def test_key_of_a_table_is_found_whatever_its_case(key, tmp_path):
    flow = ps.Flow("f")
    url = f"sqlite:///{tmp_path}/out.db"
    events("s", flow).key_by("k").aggregate(n=ps.count()).sink(ps.sql(url, "t", "upsert", key))
    with Harness(flow) as harness:
        for n in (1, 2):
            harness.push("s", [{"k": "a", "at": BEGIN, "v": n, "class": "c", "_x": 1, "a b": 1}])
            harness.epoch()
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("SELECT k, n FROM t").fetchall() == [("a", 2)]


def test_key_of_a_table_that_is_no_column_is_refused_as_ever(tmp_path):
    counts = events("s", ps.Flow("f")).key_by("k").aggregate(n=ps.count())
    with pytest.raises(
        DeclarationError, match=r"has key \['x'\], but the output's rows are one per \['k'\]: write key=\['k'\]"
    ):
        counts.sink(ps.sql(f"sqlite:///{tmp_path}/out.db", "t", "upsert", "x"))
    with pytest.raises(DeclarationError, match="A key column of sql"):
        ps.sql(f"sqlite:///{tmp_path}/out.db", "t", "upsert", 5)


def test_key_of_a_redis_stream_is_found_whatever_its_case():
    sink = ps.redis_stream("redis://nobody", "t", 2, key="K")
    events("s", ps.Flow("f")).sink(sink)
    with pytest.raises(DeclarationError, match="is placed by column 'x', but the output has only k, at"):
        events("s", ps.Flow("f")).sink(ps.redis_stream("redis://nobody", "t", 2, key="x"))


def test_types_of_rows_are_made_whenever_python_collects():
    """The getters that a type takes from a class went with that class, when Python collected it in between."""
    usual = gc.get_threshold()
    gc.set_threshold(1)
    try:
        kinds = [row_type("Event", (f"collected {n}", "v")) for n in range(300)]
    finally:
        gc.set_threshold(*usual)
    assert [kind((n, -n)).v for n, kind in enumerate(kinds)] == [-n for n in range(300)]
