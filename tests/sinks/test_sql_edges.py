"""Values at the edge of their types: the same rows, and the same keys, in all three databases."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DeclarationError, SinkError

UTC = pa.timestamp("us", "UTC")
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
EDGES: dict[pa.DataType, list[Any]] = {
    pa.float64(): [
        math.nan,
        -math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        -1.7976931348623157e308,
        1.5,
    ],
    pa.float32(): [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5],
    pa.int64(): [2**63 - 1, -(2**63), 0],
    pa.int8(): [127, -128, 0],
    pa.bool_(): [True, False],
    pa.string(): ["", " ", "NaN", "null", "\\N", "a\tb\n", "é" * 200, "A", "a"],
    pa.binary(): [b"", b"\x00", b"NaN", b"\xff" * 400],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)],
    UTC: [FIRST, LAST, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)],
    pa.timestamp("us"): [FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)],
    pa.decimal128(38, 0): [Decimal(10**38 - 1), Decimal(f"-{10**38 - 1}"), Decimal(0)],
    pa.decimal128(38, 38): [Decimal("1E-38"), Decimal("-1E-38"), Decimal(f"{10**38 - 1}E-38"), Decimal(0)],
    pa.decimal128(10, 7): [Decimal("0.0000001"), Decimal("0.0000000")],
}


def canonical(value: Any, kind: pa.DataType) -> Any:
    """A value as every database should have it, whatever its driver makes of it."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        value = float(value)  # SQLite keeps NaN in a key as text
        return "NaN" if math.isnan(value) else value + 0.0
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_temporal(kind):
        return str(value).removesuffix("+00:00").removesuffix(".000000")
    if pa.types.is_boolean(kind):
        return bool(value)
    return bytes(value) if pa.types.is_binary(kind) else value


@pytest.mark.parametrize("kind", EDGES, ids=str)
def test_upsert_by_any_value_at_an_edge_keeps_a_row_per_key(sql_rig, make, kind):
    values = [*EDGES[kind], None]
    schema = pa.schema([("a", kind), ("b", kind), ("n", pa.int64())])
    sink = sql_rig.sink(mode="upsert", key=["a", "b"])
    sink.validate(schema, updates=True, key=("a", "b"))
    sink.open(make.mark(-1), schema)
    pairs = [(value, values[0]) for value in values] + [(values[0], value) for value in values]
    wanted = {}
    for epoch in range(2):
        rows = [(a, b, 1000 * epoch + n) for n, (a, b) in enumerate(pairs)]
        sink.write([make.batch(*rows[:3], schema=schema), make.batch(*rows[3:], schema=schema)], make.mark(epoch))
        wanted |= {(canonical(a, kind), canonical(b, kind)): n for a, b, n in rows}
    found = sql_rig.rows(columns="a, b, n")
    assert {(canonical(a, kind), canonical(b, kind)): n for a, b, n in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("kind", EDGES, ids=str)
def test_append_of_any_value_at_an_edge_gives_it_back(sql_rig, make, kind):
    values = [*EDGES[kind], None]
    schema = pa.schema([("n", pa.int64()), ("v", kind)])
    sink = sql_rig.sink()
    sink.open(make.mark(-1), schema)
    sink.write([make.batch(*enumerate(values), schema=schema)], make.mark(0))
    found = [canonical(v, kind) for (v,) in sql_rig.rows(columns="v", order="n")]
    wanted = [canonical(v, kind) for v in values]
    if sql_rig.system == "sqlite":  # which has no NaN
        wanted = [None if v == "NaN" and pa.types.is_floating(kind) else v for v in wanted]
    assert found == wanted


def test_text_that_is_not_in_utf_8_is_refused_with_that_as_the_reason_and_nothing_is_stored(sql_rig, make):
    schema = pa.schema([("n", pa.int64()), ("v", pa.string())])
    text = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    sink = sql_rig.sink()
    sink.open(make.mark(-1), schema)
    with pytest.raises(SinkError, match=r"(?i)utf-?8|unicode"):
        sink.write([pa.record_batch([pa.array([1, 2]), text], schema=schema)], make.mark(0))
    sink.write([make.batch((3, "ä"), schema=schema)], make.mark(0))
    assert sql_rig.rows(columns="v", order="n") == [("ä",)]


def test_decimals_in_sqlite_are_plain_text(sqlite_rig, make):
    schema = pa.schema([("d", pa.decimal128(38, 10))])
    sink = sqlite_rig.sink()
    sink.open(make.mark(-1), schema)
    sink.write([make.batch((Decimal("0.0000001"),), (Decimal("-0.0"),), (None,), schema=schema)], make.mark(0))
    assert sqlite_rig.rows(columns="d") == [("0.0000001000",), ("0.0000000000",), (None,)]


def test_times_before_the_year_1_reach_postgresql_as_such(postgres_rig, make):
    schema = pa.schema([("n", pa.int64()), ("t", UTC), ("u", pa.timestamp("us")), ("d", pa.date32())])
    sink = postgres_rig.sink()
    sink.open(make.mark(-1), schema)
    micros = [-62135596800000000 - 1, -62167219200000001, 0]
    days = [-719163, -719529, 0]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([0, 1, 2]),
            pa.array(micros).cast(UTC),
            pa.array(micros).cast(pa.timestamp("us")),
            pa.array(days, pa.int32()).cast(pa.date32()),
        ],
        schema=schema,
    )
    sink.write([batch], make.mark(0))
    found = postgres_rig.rows(columns="t::text, u::text, d::text", order="n")
    assert found[0] == ("0001-12-31 23:59:59.999999+00 BC", "0001-12-31 23:59:59.999999 BC", "0001-12-31 BC")
    assert found[1] == ("0002-12-31 23:59:59.999999+00 BC", "0002-12-31 23:59:59.999999 BC", "0002-12-31 BC")


NESTED = pa.schema(
    [
        ("l", pa.list_(UTC)),
        (
            "s",
            pa.struct(
                [("t", UTC), ("n", pa.timestamp("us")), ("d", pa.date32()), ("m", pa.decimal128(20, 10)), ("b", pa.binary())]
            ),
        ),
        ("m", pa.map_(UTC, pa.list_(pa.struct([("x", pa.float64()), ("t", UTC)])))),
        ("i", pa.map_(pa.int64(), pa.int64())),
    ]
)


def test_times_within_json_are_as_columns_of_sqlite_have_them(sql_rig, make):
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    sink = sql_rig.sink(mode="append")
    sink.validate(NESTED, updates=False, key=())
    sink.open(make.mark(-1), NESTED)
    struct = {"t": noon, "n": LAST.replace(tzinfo=None), "d": dt.date(1, 1, 1), "m": Decimal("0.0000001"), "b": b"x"}
    row = ([noon, None, FIRST, LAST], struct, [(noon, [{"x": math.inf, "t": noon}, None])], [(-(2**63), 2**63 - 1)])
    sink.write([make.batch(row, ([], None, [], None), schema=NESTED)], make.mark(0))
    found = sql_rig.rows(columns="l, s, m, i")
    texts = [[v if v is None or sql_rig.system == "postgresql" else json.loads(v) for v in row] for row in found]
    at = "2026-01-02 12:00:00.000000"
    assert texts[0] == [
        [at, None, "0001-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999"],
        {"t": at, "n": "9999-12-31 23:59:59.999999", "d": "0001-01-01", "m": "0.0000001000", "b": "eA=="},
        {at: [{"x": None, "t": at}, None]},
        {str(-(2**63)): 2**63 - 1},
    ]
    assert texts[1] == [[], None, {}, None]
    if sql_rig.system == "postgresql":
        kinds = sql_rig.query("SELECT DISTINCT data_type FROM information_schema.columns WHERE table_name = 'results'")
        assert kinds == [("jsonb",)]


def test_upsert_by_a_nested_column_is_refused_when_it_is_declared(sql_rig):
    schema = pa.schema([("l", pa.list_(pa.int64())), ("n", pa.int64())])
    with pytest.raises(DeclarationError, match=r"key column 'l' of type list<.*>: make the key a plain value"):
        sql_rig.sink(mode="upsert", key=["l"]).validate(schema, updates=True, key=("l",))
