"""Sums that leave their type on the way, or for good; and times at both ends of the calendar: the same wherever epochs are cut."""

from __future__ import annotations

import datetime as dt
import itertools
import sqlite3
from dataclasses import dataclass
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import OperatorError, StateError
from penstock.testing import Harness

NUMBERS = itertools.count()
NINES = Decimal(10**38 - 1)
KINDS = {"int64": (pa.int64(), 2**62, 2**63 - 1), "decimal": (pa.decimal128(38, 0), Decimal(6 * 10**37), NINES)}
WINDOWS = {"tumbling": ps.tumbling("1 hour"), "sliding": ps.sliding("1 hour", "20 minutes"), "session": ps.session("1 hour")}


@dataclass
class Reader:
    """In place of a connector: only a schema."""

    schema: pa.Schema


def moment(minutes: float = 0) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minutes)


def sums(values: list, kind: pa.DataType, *, one_by_one: bool, window=None, emit="final", times=None) -> list[dict]:
    """What a sink of sum and mean holds in the end."""
    flow, sink = ps.Flow("sums"), ps.memory(f"sums{next(NUMBERS)}")
    schema = pa.schema([("k", pa.string()), ("v", kind), ("at", pa.timestamp("us", "UTC"))])
    keyed = flow.source("s", Reader(schema), time="at", lateness="1 day").key_by("k")
    aggregates = {"total": ps.sum("v"), "average": ps.mean("v"), "n": ps.count()}
    if window is None:
        keyed.aggregate(**aggregates).sink(sink)
    else:
        keyed.window(window).aggregate(emit=emit, **aggregates).sink(sink)
    with Harness(flow) as harness:
        for i, value in enumerate(values):
            harness.push("s", [{"k": "a", "v": value, "at": times[i] if times else moment(i)}])
            if one_by_one:
                harness.epoch()
        harness.finish()
    return sink.rows()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, *WINDOWS])
@pytest.mark.parametrize("sign", [1, -1])
def test_sum_that_leaves_its_type_on_the_way_is_the_same_wherever_epochs_are_cut(kind, window, sign):
    type_, half, _ = KINDS[kind]
    values = [sign * half, sign * half, -sign * half, None]
    found = [sums(values, type_, one_by_one=cut, window=WINDOWS.get(window)) for cut in (False, True)]
    assert found[0] == found[1]
    whole = [row for row in found[0] if row["n"] == 4]
    assert [row["total"] for row in whole] == [sign * half] * (1 if window != "sliding" else len(whole))
    assert whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, "tumbling", "sliding"])
def test_running_sum_that_does_not_fit_is_null_until_it_fits_again(kind, window):
    type_, half, _ = KINDS[kind]
    for values in ([half, half], [half, half, half]):
        found = [sums(values, type_, one_by_one=cut, window=WINDOWS.get(window), emit="update") for cut in (False, True)]
        assert found[0] == found[1]
        assert [row["total"] for row in found[0]][:1] == [None]
        assert found[0][0]["average"] == half


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_sum_of_a_window_that_does_not_fit_is_an_error_that_names_the_key(kind, window, one_by_one):
    type_, half, _ = KINDS[kind]
    remedy = (
        r"int64; cast the column to decimal\(38, 0\)" if kind == "int64" else r"decimal128\(38, 0\); cast the column to fewer"
    )
    with pytest.raises(StateError, match=rf"aggregate\(total, .*\) of region 'k' for key 'a' does not fit in {remedy}"):
        sums([half, half], type_, one_by_one=one_by_one, window=WINDOWS[window])


@pytest.mark.parametrize("kind", KINDS)
def test_sum_and_mean_of_the_greatest_and_the_least_number(kind):
    type_, _, most = KINDS[kind]
    least = -most - 1 if kind == "int64" else most.copy_negate()
    for values, total, average in (
        ([most], most, most),
        ([least], least, least),
        ([most, least, None], -1 if kind == "int64" else 0, None),
        ([most, 0, 0], most, None),
        ([], None, None),
        ([None], None, None),
    ):
        for cut in (False, True):
            rows = sums(values, type_, one_by_one=cut, window=WINDOWS["tumbling"])
            assert [row["total"] for row in rows] == ([total] if values else [])
            if average is not None:
                assert [row["average"] for row in rows] == [float(average) if kind == "int64" else average]


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (38, 38), (36, 2), (34, 30), (1, 0), (28, 28)])
def test_mean_of_decimals_always_fits_in_its_type(precision, scale):
    most = Decimal(f"{10**precision - 1}e-{scale}")
    with_four_more = pa.decimal128(min(38, precision + 4), scale + min(38, precision + 4) - precision)
    bound = ps.mean("v").bind(pa.decimal128(precision, scale))
    assert bound.output_type == with_four_more
    least = most.copy_negate()
    for values, average in (([most, most], most), ([least, least], least), ([most, least], 0)):
        found = [
            bound.finish(bound.reduce(bound.lift(pa.array(values, pa.decimal128(precision, scale)), None, 2), np.zeros(1, int)))
        ]
        assert found[0].to_pylist() == [average]


def test_combining_before_the_shuffle_is_for_decimals_whose_sums_fit_there():
    assert ps.sum("v").bind(pa.decimal128(28, 2)).sql("v", ("", "", "", "")) is not None
    assert ps.sum("v").bind(pa.decimal128(29, 2)).sql("v", ("", "", "", "")) is None


LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
BOUNDS = {
    "tumbling": ("1 day", None, [(LAST.replace(hour=0, minute=0, second=0, microsecond=0), LAST)], [(FIRST, FIRST + DAY)]),
    "sliding": (
        "1 day",
        "12 hours",
        [(LAST - DAY / 2 + dt.timedelta(microseconds=1), LAST), (LAST - DAY + dt.timedelta(microseconds=1), LAST)],
        [(FIRST, FIRST + DAY), (FIRST, FIRST + DAY / 2)],  # the second starts in a year that Python does not have
    ),
    "session": ("1 day", None, [(LAST, LAST)], [(FIRST, FIRST + DAY)]),
}


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_windows_at_both_ends_of_the_calendar_hold_their_records(kind, one_by_one, tmp_path):
    size, slide, *bounds = BOUNDS[kind]
    window = ps.session(size) if kind == "session" else ps.sliding(size, slide or size)
    for moment_, wanted in zip((LAST, FIRST), bounds, strict=True):
        rows = sums([1, 2], pa.int64(), one_by_one=one_by_one, window=window, times=[moment_, moment_])
        assert sorted((row["window_start"], row["window_end"]) for row in rows) == sorted(wanted)
        assert {(row["total"], row["n"]) for row in rows} == {(3, 2)}


@pytest.mark.parametrize("moment_", [LAST, FIRST])
def test_function_in_a_window_at_an_end_of_the_calendar_sees_times_of_the_calendar(moment_):
    flow, sink = ps.Flow("ends"), ps.memory(f"ends{next(NUMBERS)}")
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    keyed = flow.source("s", Reader(schema), time="at").key_by("k").window(ps.sliding("1 day", "12 hours"))
    seen = "start timestamp, stop timestamp, n long"
    keyed.stateful_map(lambda k, e, n: ((e.window_start, e.window_end, (n or 0) + 1), (n or 0) + 1), seen).sink(sink)
    with Harness(flow) as harness:
        for _ in range(2):
            harness.push("s", [{"k": "a", "at": moment_}])
            harness.epoch()
        harness.finish()
    assert sorted(row["n"] for row in sink.rows()) == [1, 1, 2, 2]
    assert all(FIRST <= row["start"] <= moment_ <= row["stop"] <= LAST for row in sink.rows())


def test_windows_at_both_ends_of_the_calendar_are_stored_in_sqlite_and_duckdb(tmp_path):
    for system in ("sqlite", "duckdb"):
        flow = ps.Flow("ends")
        schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
        keyed = flow.source("s", Reader(schema), time="at").key_by("k").window(ps.sliding("1 day", "12 hours"))
        key = ["k", "window_start"]
        keyed.aggregate(n=ps.count(), emit="update").sink(
            ps.sql(f"{system}:///{tmp_path}/{system}.db", "t", mode="upsert", key=key)
        )
        with Harness(flow) as harness:
            harness.push("s", [{"k": "a", "at": LAST}], partition=1)
            harness.push("s", [{"k": "a", "at": FIRST}], partition=2)
            harness.finish()
    with sqlite3.connect(tmp_path / "sqlite.db") as held:
        found = held.execute("SELECT window_start, window_end, n FROM t ORDER BY 1").fetchall()
    assert [row[0][:13] for row in found] == ["0000-12-31 12", "0001-01-01 00", "9999-12-31 00", "9999-12-31 12"]
    assert [row[1] for row in found][2:] == ["9999-12-31 23:59:59.999999"] * 2
    with duckdb.connect(str(tmp_path / "duckdb.db")) as held:
        assert held.execute("SELECT count(*), sum(n) FROM t").fetchall() == [(4, 4)]


def test_time_that_python_does_not_have_is_told_in_a_sentence():
    flow = ps.Flow("beyond")
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    flow.source("s", Reader(schema)).key_by("k").stateful_map(lambda k, e, s: (None, s), "n long").sink(ps.memory("beyond"))
    with Harness(flow) as harness:
        harness.push("s", pa.table({"k": ["a"], "at": pa.array([2**60]).cast(pa.timestamp("us", "UTC"))}, schema=schema))
        with pytest.raises(
            OperatorError, match=r"a time is outside of the years 1 to 9999, .* leave such records out with where"
        ):
            harness.finish()


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("window", [None, *WINDOWS])
@pytest.mark.filterwarnings("error")
def test_exact_sum_of_infinity_and_of_what_is_too_large_is_infinity(window, one_by_one):
    flow, sink = ps.Flow("sums"), ps.memory(f"sums{next(NUMBERS)}")
    schema = pa.schema([("k", pa.string()), ("v", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    keyed = flow.source("s", Reader(schema), time="at", lateness="1 day").key_by("k")
    if window is not None:
        keyed = keyed.window(WINDOWS[window])
    keyed.aggregate(total=ps.sum("v", exact=True), average=ps.mean("v", exact=True)).sink(sink)
    with Harness(flow) as harness:
        for v in (1.6e308, -np.inf, 1.6e308):
            harness.push("s", [{"k": "a", "v": v, "at": moment()}])
            if one_by_one:
                harness.epoch()
        harness.finish()
    assert {(row["total"], row["average"]) for row in sink.rows()[-1:]} == {(-np.inf, -np.inf)}
