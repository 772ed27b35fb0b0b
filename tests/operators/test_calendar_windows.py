from __future__ import annotations

import datetime as dt
import itertools
import re
import zoneinfo
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DeclarationError
from penstock.operators.zones import LOOK, zone
from penstock.testing import Harness

SCHEMA = pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()})
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ODD = [  # put back over midnight, by half an hour, by a day; in Ramadan; with seconds; for less than a week; never; by 14 hours
    *("America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein", "Africa/Casablanca", "Africa/Monrovia"),
    *("America/Boa_Vista", "Africa/Freetown"),
    *("Asia/Kolkata", "Pacific/Kiritimati", "Europe/Berlin", "America/New_York", "UTC", "Asia/Tehran", "Europe/Dublin", "America/Asuncion"),
]  # fmt: skip


def us(moment):
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def midnight(date, rules):
    """When a local date begins: as Python's zones have it, the first time that the clock shows midnight, or passes over it."""
    return us(dt.datetime.combine(date, dt.time(), rules).astimezone(dt.UTC))


def near_changes(name):
    """Moments around those at which a zone's clock is put forth or back, and others."""
    changes = [c for c in zone(name).changes if c < us(dt.datetime(2190, 1, 1, tzinfo=dt.UTC))] or [0]
    near = st.builds(
        lambda c, hours, more: c + hours * 1_800_000_000 + more,
        st.sampled_from(changes),
        st.integers(-60, 60),
        st.integers(-1, 1),
    )
    return near | st.integers(us(dt.datetime(1901, 1, 1, tzinfo=dt.UTC)), us(dt.datetime(2190, 1, 1, tzinfo=dt.UTC)))


zones_and_times = st.sampled_from(ODD).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(near_changes(name), min_size=1, max_size=8))
)


@given(zones_and_times)
@settings(max_examples=150, deadline=None)
def test_offsets_of_a_zone_are_those_of_python(drawn):
    name, times = drawn
    rules, table = zoneinfo.ZoneInfo(name), zone(name)
    for time in times:
        shown = (EPOCH + dt.timedelta(microseconds=time)).astimezone(rules).utcoffset()
        at = np.searchsorted(np.array(table.changes, np.int64), time, "right")
        assert dt.timedelta(microseconds=table.offsets[at]) == shown


@pytest.mark.parametrize("name", ODD)
def test_clock_that_is_put_forth_and_back_is_looked_at_in_between(name):
    apart = np.diff(zone(name).changes)
    assert not len(apart) or apart.min() > LOOK // dt.timedelta(microseconds=1)


@given(zones_and_times)
@settings(max_examples=150, deadline=None)
def test_days_of_a_zone_are_its_local_dates(drawn):
    name, times = drawn
    rules, window = zoneinfo.ZoneInfo(name), ps.tumbling("1 day", zone=name)
    found = window.panes(np.array(times, np.int64))
    ends = window.ends(found)
    for time, start, end in zip(times, found.tolist(), ends.tolist(), strict=True):
        date = (EPOCH + dt.timedelta(microseconds=time)).astimezone(rules).date()
        if midnight(date + dt.timedelta(1), rules) <= time:  # put back over midnight: the next day has begun before
            date += dt.timedelta(1)
        assert start == midnight(date, rules)
        following = next(m for n in itertools.count(1) if (m := midnight(date + dt.timedelta(n), rules)) > start)
        assert end == following


@given(zones_and_times, st.sampled_from([("1 month", 1), ("1 quarter", 3), ("1 year", 12), ("2 months", 2)]), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_months_of_a_zone_are_its_local_months(drawn, size, later):
    (name, times), (text, months) = drawn, size
    later %= months
    rules, window = zoneinfo.ZoneInfo(name), ps.tumbling(text, zone=zoneinfo.ZoneInfo(name), offset=f"{later} months")
    found = window.panes(np.array(times, np.int64))
    for time, start, end in zip(times, found.tolist(), window.ends(found).tolist(), strict=True):
        date = (EPOCH + dt.timedelta(microseconds=time)).astimezone(rules).date()
        if midnight(date + dt.timedelta(1), rules) <= time:
            date += dt.timedelta(1)
        number = ((date.year - 1970) * 12 + date.month - 1 - later) // months * months + later
        first, last = (dt.date(1970 + n // 12, n % 12 + 1, 1) for n in (number, number + months))
        assert (start, end) == (midnight(first, rules), midnight(last, rules))


@given(
    zones_and_times,
    st.sampled_from(
        [("1 hour", None), ("6 hours", "2 hours"), ("1 day", "7 hours"), ("45 minutes", "30 minutes"), ("7 days", "1 day")]
    ),
    st.sampled_from([None, "4 days", "10 minutes", "11 hours"]),
)
@settings(max_examples=150, deadline=None)
def test_windows_of_a_time_are_those_of_its_pane_and_hold_it(drawn, size, offset):
    (name, times), (long, slide) = drawn, size
    window = ps.sliding(long, slide or long, zone=name, offset=offset)
    panes = window.panes(np.array(times, np.int64))
    index, starts = window.spread(panes)
    ends = window.ends(starts)
    given_times = np.array(times, np.int64)[index]
    assert ((starts <= given_times) & (given_times < ends)).all()
    assert (ends - starts <= window.longest_us).all()
    assert len(set(zip(index.tolist(), starts.tolist(), strict=True))) == len(starts)
    assert set(index.tolist()) == set(range(len(times)))
    assert (window.panes(starts) == starts).all()


@given(
    zones_and_times,
    st.sampled_from(["1 hour", "1 day", "1 month", "45 minutes", "40 seconds"]),
    st.sampled_from([None, "10 minutes", "90 seconds"]),
)
@settings(max_examples=100, deadline=None)
def test_spans_that_java_groups_by_lie_within_one_pane(drawn, size, offset):
    (name, times) = drawn
    window = ps.tumbling(size, zone=name, offset=offset)
    sql = window.pane_sql("t").replace("pmod", "floormod")
    sql = re.sub(r"([0-9])L", r"\1", sql)
    floored = (
        duckdb.connect()
        .execute(
            f"CREATE MACRO floormod(a, b) AS ((a % b) + b) % b; SELECT {sql} FROM (SELECT unnest(?::BIGINT[]) AS t)", [times]
        )
        .fetchall()
    )
    fine = np.array([row[0] for row in floored], np.int64)
    assert (fine <= np.array(times, np.int64)).all()
    assert (window.panes(fine) == window.panes(np.array(times, np.int64))).all()


@pytest.mark.parametrize("name", ["2024-03-31", "2024-10-27"])
def test_day_when_the_clock_is_put_forth_or_back_has_23_or_25_hours(name):
    window = ps.tumbling("1 day", zone="Europe/Berlin")
    start = window.panes(np.array([us(dt.datetime.fromisoformat(f"{name}T12:00:00+00:00"))], np.int64))
    assert (window.ends(start) - start)[0] == {"2024-03-31": 23, "2024-10-27": 25}[name] * 3_600_000_000


def test_windows_of_a_zone_without_changes_are_those_without_a_zone():
    times = np.arange(-(10**12), 10**12, 7_654_321_987, dtype=np.int64)
    for size, slide, offset in (("1 hour", "1 hour", None), ("5 hours", "3 hours", "2 hours"), ("7 days", "1 day", "4 days")):
        plain, zoned = ps.sliding(size, slide, offset=offset), ps.sliding(size, slide, offset=offset, zone="UTC")
        (i, starts), (j, same) = plain.spread(plain.panes(times)), zoned.spread(zoned.panes(times))
        assert i.tolist() == j.tolist()
        assert starts.tolist() == same.tolist()
        assert plain.ends(starts).tolist() == zoned.ends(starts).tolist()


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: ps.tumbling("1 day", zone="Europe/Berlinn"), "zone='Europe/Berlinn' is not the name of a time zone"),
        (lambda: ps.tumbling("1 day", zone="../etc/passwd"), "is not the name of a time zone"),
        (lambda: ps.tumbling("1 day", zone="+05:30"), "offset= for a fixed difference"),
        (lambda: ps.tumbling("1 day", zone=""), "is not the name of a time zone"),
        (lambda: ps.tumbling("1 day", zone=5), "is not the name of a time zone"),
        (lambda: ps.tumbling("1 day", zone=dt.timezone(dt.timedelta(hours=1))), "is not the name of a time zone"),
        (lambda: ps.tumbling("0 months"), "is empty"),
        (lambda: ps.sliding("1 month", "1 day"), "mix months with another unit"),
        (lambda: ps.sliding("1 month", "1 quarter"), "would leave records out"),
        (lambda: ps.tumbling("1 day", offset="1 month"), "in months, but the windows"),
        (lambda: ps.tumbling("1 month", offset="40 days"), "less than 28 days"),
        (lambda: ps.tumbling("1 month and a half"), "is not a duration"),
        (lambda: ps.tumbling("9999 years"), "is too long"),
    ],
)  # fmt: skip
def test_declaration_when_it_makes_no_windows_is_refused(declare, sentence):
    with pytest.raises(DeclarationError, match=sentence.replace("+", r"\+")):
        declare()


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def test_windows_that_end_together_follow_one_another_by_their_starts():
    """The clock passes over the ends of windows that begin at one and at half past one: both end when it shows three."""
    night = dt.datetime(2024, 3, 31, tzinfo=dt.UTC)
    for minutes in ([(5,), (35,), (100,)], [(5, 35, 100)], [(35, 5), (100,)]):
        out, flow, offsets = ps.memory(f"rows per half hour {minutes}"), ps.Flow("night"), itertools.count()
        by_key = flow.source("s", Reader(), time="at", position=("k", "n"), lateness="1 hour").key_by("k")
        hours = by_key.window(ps.sliding("1 hour", "30 minutes", zone="Europe/Berlin")).aggregate(rows=ps.count())
        halves = hours.window(ps.tumbling("30 minutes"))
        halves.aggregate(all=ps.collect("rows"), first=ps.first("window_start"), last=ps.last("window_start")).sink(out)
        with Harness(flow) as harness:
            for times in minutes:
                rows = [{"k": "a", "at": night + dt.timedelta(minutes=m), "n": next(offsets)} for m in times]
                harness.push("s", pa.Table.from_pylist(rows, schema=SCHEMA))
                harness.epoch()
            harness.finish()
        (found,) = (row for row in out.rows() if len(row["all"]) > 1)
        assert found["all"] == [2, 1]
        assert [found[name] - night for name in ("first", "last")] == [dt.timedelta(minutes=m) for m in (0, 30)]


def test_zone_of_pythons_own_utc_is_utc():
    assert ps.tumbling("1 day", zone=dt.UTC) == ps.tumbling("1 day", zone="UTC")
    with pytest.raises(DeclarationError, match="offset= for a fixed difference"):
        ps.tumbling("1 day", zone=dt.timezone(dt.timedelta(hours=1)))
