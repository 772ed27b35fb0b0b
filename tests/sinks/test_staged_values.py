"""What a task stores in PostgreSQL by binary COPY is, value for value, what the driver stores by COPY of text; and what the one refuses the other does."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from dataclasses import replace
from decimal import Decimal

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import SinkError
from penstock.sinks import parts

FIRST = -210_866_803_200_000_000  # 4714-11-24 BC, with which PostgreSQL begins
LAST = 971_890_963_199_999_999  # and 32767-12-31, with which Arrow's text ends
NUMBERS = itertools.count()


@pytest.fixture
def both(postgres_rig, monkeypatch):
    """The same sink twice, once with rows that go through the driver, once with rows that tasks store."""
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    return postgres_rig, replace(postgres_rig, staged_writes=True)


def stored(rig, make, rows, ddl=None):
    """What a new table holds of the rows, as text; or what the sink says."""
    table = f"t{next(NUMBERS)}"
    if ddl:
        rig.query(f"CREATE TABLE {table} ({ddl})")
    sink = rig.sink(table)
    sink.open(make.mark(-1, output=table), rows.schema)
    try:
        assert sink.write([rows.slice(0, 1), rows.slice(1)], make.mark(0, output=table)) == rows.num_rows
    except SinkError as refused:
        assert rig.query(f"SELECT count(*) FROM {table}") == [(0,)]
        assert ddl or rig.staged() == []  # what a part holds, and the table does not take, is removed when the sink is opened
        return str(refused).replace(table, "TABLE")
    finally:
        sink.close()
    return rig.query(f"SELECT t::text FROM {table} AS t ORDER BY {rows.schema.names[0]}")


def micros(values, zone=None):
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", zone))


def test_rows_of_odd_types_when_tasks_store_them_then_they_are_as_the_driver_stores_them(both, make):
    nested = [{"t": 0, "m": Decimal("0.10"), "l": [1.5, None, float("nan")]}, None, {"t": None, "m": None, "l": []}]
    kind = pa.struct([("t", pa.timestamp("us", "UTC")), ("m", pa.decimal128(9, 2)), ("l", pa.list_(pa.float64()))])
    rows = pa.record_batch(
        {
            "n": pa.array([1, 2, 3], pa.uint64()),
            "half": pa.array(np.array([0.1, -0.0, np.nan], np.float16)),
            "single": pa.array([0.1, 3.4028235e38, -np.inf], pa.float32()),
            "encoded": pa.array(["a", None, "a"]).dictionary_encode(),
            "wide": pa.array([Decimal(10**60) / 1000, None, Decimal("-0.001")], pa.decimal256(70, 3)),
            "unknown": pa.nulls(3),
            "seconds": pa.array([0, -1, None], pa.timestamp("s", "Europe/Berlin")),
            "view": pa.array(["x", "", None], pa.string_view()),
            "fixed": pa.array([b"\0\xff", None, b"\\x"], pa.binary(2)),
            "json": pa.array(nested, kind),
            "map": pa.array([[(1, dt.date(1, 1, 1))], [], None], pa.map_(pa.int32(), pa.date32())),
            'odd "%s:x" $1': pa.array([True, None, False]),
        }
    )
    by_driver, by_tasks = (stored(rig, make, rows) for rig in both)
    assert len(by_driver) == 3, by_driver
    assert by_tasks == by_driver


def test_rows_when_a_table_has_narrower_columns_then_tasks_and_driver_store_the_same(both, make):
    ddl = (
        "n integer, small smallint, count numeric(20, 3), name varchar(3), fixed char(4), f real, at timestamptz(3), m numeric(9, 4), "
        "j json, t text, more integer DEFAULT 7, nothing integer DEFAULT 8"
    )
    rows = pa.record_batch(
        {
            "n": [1, 2, 3],
            "small": [-(2**15), 2**15 - 1, None],
            "count": [2**40, None, 0],
            "name": ["abc", "a", "abc   "],
            "fixed": ["a", "abcd", None],
            "f": pa.array([0.1, 1e-45, None], pa.float32()),
            "at": micros([1, 499, 1501], "UTC"),
            "m": pa.array([Decimal("1.5"), None, Decimal("-99999.9999")], pa.decimal128(9, 4)),
            "j": pa.array([[1], [], None], pa.list_(pa.int64())),
            "t": pa.array([[1], [], None], pa.list_(pa.int64())),
            "nothing": pa.nulls(3),
        }
    )
    by_driver, by_tasks = (stored(rig, make, rows, ddl) for rig in both)
    assert len(by_driver) == 3, by_driver
    assert by_tasks == by_driver


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        (pa.array(["a\0b"]), None),
        (pa.array(["abcd"]), "n bigint, v varchar(3)"),
        (pa.array([2**63], pa.uint64()), None),
        (pa.array([2**31]), "n bigint, v integer"),
        (pa.array([1], pa.timestamp("ns")), None),
        (micros([-(2**63) + 946_684_800_000_000]), None),  # which binary COPY would take for minus infinity
        (micros([FIRST - 1], "UTC"), None),
        (pa.array([-(2**31) + 10_957], pa.int32()).cast(pa.date32()), None),  # likewise
        (pa.array([-2_440_589], pa.int32()).cast(pa.date32()), None),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), None),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else None,
)
def test_value_that_does_not_fit_when_a_task_stores_it_then_it_is_refused_as_by_the_driver(both, make, values, ddl):
    rows = pa.RecordBatch.from_arrays([pa.array([1]), values], names=["n", "v"])
    by_driver, by_tasks = (stored(rig, make, rows, ddl) for rig in both)
    assert isinstance(by_driver, str), by_driver
    assert isinstance(by_tasks, str), by_tasks
    if values.type == pa.string() and not ddl:
        assert by_tasks == by_driver
        assert 'refused to store epoch 0 (invalid byte sequence for encoding "UTF8": 0x00): correct that' in by_tasks


def floats(kind):
    size = struct.calcsize(kind)
    return st.binary(min_size=size, max_size=size).map(lambda b: struct.unpack(kind, b)[0])


def whole(first, last):
    return st.one_of(st.integers(first, last), st.sampled_from([first, last]), st.just(max(first, 0)))


VALUES = {
    "f": (floats("d"), lambda v: pa.array(v, pa.float64())),
    "g": (floats("f"), lambda v: pa.array(np.array([np.nan if x is None else x for x in v], np.float32))),
    "i": (whole(-(2**63), 2**63 - 1), lambda v: pa.array(v, pa.int64())),
    "u": (whole(0, 2**64 - 1), lambda v: pa.array(v, pa.uint64())),
    "at": (whole(FIRST - 2, LAST + 2), lambda v: micros(v, "UTC")),
    "wall": (whole(FIRST, LAST), micros),
    "day": (whole(-2_440_590, 11_248_740), lambda v: pa.array(v, pa.int32()).cast(pa.date32())),
    "m": (whole(-(10**38) + 1, 10**38 - 1), lambda v: pa.array([x if x is None else Decimal((x < 0, tuple(map(int, str(abs(x)))), -9)) for x in v], pa.decimal128(38, 9))),
    "s": (st.text(st.characters(codec="utf-8"), max_size=5), lambda v: pa.array(v, pa.string())),
    "x": (st.binary(max_size=5), lambda v: pa.array(v, pa.binary())),
}  # fmt: skip


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_values_when_tasks_store_them_then_they_are_as_the_driver_stores_them(both, make, data):
    name = data.draw(st.sampled_from([*VALUES]))
    values, column = VALUES[name]
    drawn = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=30))
    rows = pa.record_batch({"n": pa.array(range(len(drawn))), "v": column(drawn)})
    by_driver, by_tasks = (stored(rig, make, rows) for rig in both)
    if isinstance(by_driver, list):
        assert by_tasks == by_driver
    else:
        assert isinstance(by_tasks, str), by_driver
        with psycopg.connect(both[0].url) as connection:
            assert connection.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'penstock_part%'").fetchone() == (0,)
