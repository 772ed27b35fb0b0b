"""The demo's flow: what one aircraft's delay does to its next flights, and how airports and airlines perform.

Six tables of one database, from five regions; the third reads the output of the first. All of this is what a user would write.

Read next: `penstock.demo.check`, the same tables in pandas.
"""

from __future__ import annotations

from typing import Any, Final

import penstock as ps
from penstock.demo.data import SCHEMA
from penstock.flow.flow import Flow

LATENESS: Final = "6 hours"
LATE_MINUTES: Final = 15
AWFUL_MINUTES: Final = 60
LEAST_IN_A_ROW: Final = 10
DAYS: Final = 2

KINDS: Final = {
    "on_time": f"dep_delay <= {LATE_MINUTES}",
    "late": f"dep_delay > {LATE_MINUTES}",
    "awful": f"dep_delay > {AWFUL_MINUTES}",
}
CASCADES: Final = f"""
    SELECT cause[at, origin, dep_delay], knock_on[at, origin, dep_delay]
    WHERE on_time : awful AS cause : late:+ AS knock_on : on_time
    WITHIN {DAYS} DAYS
"""
"""What one awful delay of an aircraft does to its next departures, up to the first that is on time again. ``:`` is "right after"."""

CASCADE: Final = (
    "tailnum string, nth int, origin string, started timestamp, ended timestamp, broken_at timestamp, links int, "
    "worst_delay int, lost_minutes int, route string"
)


def describe(tailnum: str, match: Any, before: Any) -> tuple[Any, Any]:
    """One row per cascade, numbered among those of its aircraft.

    Args:
        tailnum: The aircraft.
        match: A match of `CASCADES`: arrays of events, and the interval.
        before: The number of this aircraft's earlier cascades (``nth``); None: none.

    Returns:
        The row (`CASCADE`), and the new state.
    """
    nth = before.nth + 1 if before else 1
    chain = [*match.cause, *match.knock_on]
    first, last, delays = chain[0], chain[-1], [flight["dep_delay"] for flight in chain]
    route = " ".join(flight["origin"] for flight in chain)
    times = (first["at"], last["at"], match.match_end)
    return (tailnum, nth, first["origin"], *times, len(chain), max(delays), sum(delays), route), (nth,)


STREAK: Final = "carrier string, started timestamp, ended timestamp, flights int, lost_minutes int"


def count_late(carrier: str, flight: Any, before: Any) -> tuple[Any, Any]:
    """One row when an airline has a flight on time after `LEAST_IN_A_ROW` late ones or more.

    Args:
        carrier: The airline.
        flight: A flight that was not cancelled.
        before: Its late flights since the last one on time (``started``, ``ended``, ``flights``, ``lost_minutes``); None: none.

    Returns:
        The row (`STREAK`) or None, and the new state.
    """
    if flight.dep_delay > LATE_MINUTES:
        started, n, minutes = (before.started, before.flights, before.lost_minutes) if before else (flight.at, 0, 0)
        return None, (started, flight.at, n + 1, minutes + flight.dep_delay)
    return ((carrier, *before) if before and before.flights >= LEAST_IN_A_ROW else None), None


def declare(replay: str, database: str) -> Flow:
    """The flow.

    Args:
        replay: Folder with Parquet files of flights, one per epoch.
        database: SQLite file for the six tables.
    """
    url = f"sqlite:///{database}"
    flow: Flow = ps.Flow("flights")
    flights = flow.source("flights", ps.files(replay, SCHEMA, max_files_per_epoch=1), time="at", lateness=LATENESS)

    # A cancelled flight moves no aircraft, and some flights have none.
    flown = flights.where("tailnum IS NOT NULL AND dep_delay IS NOT NULL")
    cascades = flown.key_by("tailnum").match(CASCADES, define=KINDS).stateful_map(describe, CASCADE, state="nth int")

    # United and ExpressJet have three quarters of Newark's flights. This step must see all flights of an airline, so their rows cannot be
    # divided; but nothing else needs to be at the workers that have them.
    newark = flights.where("origin = 'EWR' AND dep_delay IS NOT NULL").key_by(
        "carrier", name="newark", workers=3, distribute=ps.Isolate()
    )
    late_in_a_row = newark.stateful_map(
        count_late, STREAK, state="started timestamp, ended timestamp, flights int, lost_minutes int"
    )

    airport_hours = (
        flights.with_columns(cancelled="CAST(dep_delay IS NULL AS int)")
        .key_by("origin")
        .window(ps.tumbling("1 hour"))
        .aggregate(
            flights=ps.count(),
            cancelled=ps.sum("cancelled"),
            mean_delay=ps.mean("dep_delay"),
            p90_delay=ps.quantile("dep_delay", 0.9),
            worst_delay=ps.max("dep_delay"),
        )
    )
    cascade_days = (
        cascades.key_by("origin", name="cascades")
        .window(ps.tumbling("1 day"))
        .aggregate(cascades=ps.count(), lost_minutes=ps.sum("lost_minutes"), longest=ps.max("links"))
    )
    airlines = flights.key_by("carrier").aggregate(
        flights=ps.count(),
        departed=ps.count("dep_delay"),
        mean_delay=ps.mean("dep_delay"),
        worst_delay=ps.max("dep_delay"),
        aircraft=ps.count_distinct("tailnum"),
    )

    late_in_a_row.sink(ps.sql(url, "late_in_a_row"))
    cascades.sink(ps.sql(url, "cascades"))
    airport_hours.sink(ps.sql(url, "airport_hours"))
    cascade_days.sink(ps.sql(url, "cascade_days"))
    airlines.sink(ps.sql(url, "airlines", mode="upsert", key="carrier"))
    flights.late.sink(ps.sql(url, "late_flights"))
    return flow
