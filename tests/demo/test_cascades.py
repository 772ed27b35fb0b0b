"""The query for cascades against the regular expression of the check, without Spark."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.demo.check import find_cascades
from penstock.demo.data import SCHEMA
from penstock.demo.flow import CASCADE, CASCADES, KINDS, describe
from penstock.testing import Harness

START = pd.Timestamp("2013-01-01", tz="UTC")
NUMBERS = itertools.count()  # memory sinks are shared by name
SCHEDULE = SCHEMA.empty_table().select(["at", "tailnum", "origin", "dep_delay"]).schema


def schedule(delays, gaps_hours, tailnum="N1"):
    """Departures of one aircraft: how late each is, in minutes, and how long after the one before it."""
    at = START + pd.to_timedelta(np.cumsum(gaps_hours), unit="h")
    airports = itertools.cycle(["EWR", "JFK", "LGA"])
    return pd.DataFrame(
        {"at": at, "tailnum": tailnum, "origin": [a for _, a in zip(at, airports, strict=False)], "dep_delay": delays}
    )


def cascades_of(flights, epochs=1, workers=1):
    """What the flow finds."""
    flow, found = ps.Flow("test"), ps.memory(f"cascades {next(NUMBERS)}")
    source = flow.source("flights", ps.files("nowhere", SCHEDULE), time="at")
    source.key_by("tailnum").match(CASCADES, define=KINDS).stateful_map(describe, CASCADE, state="nth int").sink(found)
    with Harness(flow, workers=workers) as harness:
        for rows in np.array_split(np.arange(len(flights)), epochs):
            harness.push("flights", pa.Table.from_pandas(flights.iloc[rows], SCHEDULE, preserve_index=False))
            harness.epoch()
        harness.finish()
    return found.table().to_pandas()


def test_cascade_when_broken_by_punctual_departure_then_given_out():
    found = cascades_of(schedule([0, 90, 20, 16, 15], [0, 5, 5, 5, 5]))
    assert found.drop(columns=["started", "ended", "broken_at"]).to_dict("records") == [
        {"tailnum": "N1", "nth": 1, "origin": "JFK", "links": 3, "worst_delay": 90, "lost_minutes": 126, "route": "JFK LGA EWR"}
    ]
    assert [found[name][0] - START for name in ("started", "ended", "broken_at")] == [
        dt.timedelta(hours=hours) for hours in (5, 15, 20)
    ]


def test_departure_that_breaks_a_cascade_may_be_the_one_before_the_next():
    flights = schedule([0, 61, 16, 0, 61, 16, 0], [0, 5, 5, 5, 5, 5, 5])
    assert list(cascades_of(flights)["nth"]) == [1, 2]
    assert list(find_cascades(flights)["nth"]) == [1, 2]


@pytest.mark.parametrize(
    ("delays", "gaps_hours", "why"),
    [
        ([0, 90, 20, 16], [0, 5, 5, 5], "nothing has broken it"),
        ([0, 60, 20, 16, 0], [0, 5, 5, 5, 5], "the first is no later than an hour"),
        ([0, 90, 0, 20], [0, 5, 5, 5], "nothing follows from it"),
        ([0, 20, 90, 16, 0], [0, 5, 5, 5, 5], "a departure between is late already"),
        ([90, 20, 16, 0], [0, 5, 5, 5], "it does not begin with one on time"),
        ([0, 90, 20, 0], [0, 20, 20, 9], "it takes more than two days"),
    ],
)
def test_what_is_no_cascade_is_not_given_out(delays, gaps_hours, why):
    flights = schedule(delays, gaps_hours)
    assert cascades_of(flights).empty, why
    assert find_cascades(flights).empty, why


@pytest.mark.parametrize(("epochs", "workers"), [(1, 1), (7, 3)])
def test_random_schedules_give_the_cascades_that_pandas_finds(epochs, workers):
    random = np.random.default_rng(13)
    aircraft = []
    for number in range(40):
        delays = random.choice([-5, 15, 16, 40, 61, 300], 60, p=[0.2, 0.1, 0.2, 0.2, 0.2, 0.1])
        aircraft.append(schedule(delays, random.choice([0, 1, 6, 12, 13], 60), f"N{number}"))
    flights = pd.concat(aircraft).sort_values("at", kind="stable", ignore_index=True)
    expected = find_cascades(flights).sort_values(["tailnum", "started"], ignore_index=True)
    found = cascades_of(flights, epochs, workers).sort_values(["tailnum", "started"], ignore_index=True)
    assert len(expected) > 90
    pd.testing.assert_frame_equal(found, expected[found.columns], check_dtype=False)
