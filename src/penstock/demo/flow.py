"""The demo's flow: what one aircraft's delay does to its next flights, and how airports and airlines fare.

Five tables of one database, from four regions; the third reads what the first finds. Everything here is what a user would write.

Read next: `penstock.demo.check`, the same tables in pandas.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import penstock as ps
from penstock.demo.data import SCHEMA
from penstock.flow.flow import Flow

LATENESS: Final = "6 hours"
LATE_MINUTES: Final = 15
WORST_MINUTES: Final = 60
LEAST_LINKS: Final = 3
NEIGHBOURS: Final = dt.timedelta(hours=12)

CASCADE: Final = (
    "tailnum string, origin string, started timestamp, ended timestamp, broken_at timestamp, links int, "
    "worst_delay int, lost_minutes int, route string"
)
CHAIN: Final = "origin string, started timestamp, ended timestamp, links int, worst_delay int, lost_minutes int, route string"
Chain = tuple[str | None, dt.datetime | None, dt.datetime, int, int, int, str]


def follow_aircraft(tailnum: str, flight: Any, chain: Any) -> tuple[Any, Chain | None]:
    """Find the delay cascades of an aircraft, one departure after the other.

    A cascade is a departure that is at most 15 minutes late, then three or more in a row that are later than that, each scheduled
    at most 12 hours after the one before it, the worst later than an hour. It is given out when the next departure breaks it: one
    that is not late, or comes after more than 12 hours. One that no departure breaks is not given out.

    Args:
        tailnum: The aircraft.
        flight: Its next departure from New York by scheduled time (``at``, ``origin``, ``dep_delay``).
        chain: The late departures since it was last on time (`CHAIN`); None if it has not been on time lately.

    Returns:
        The cascade that this departure breaks (`CASCADE`) or None, and the chain after it.
    """
    late = flight.dep_delay > LATE_MINUTES
    if chain is not None and late and flight.at - chain.ended <= NEIGHBOURS:
        return None, (
            chain.origin or flight.origin,
            chain.started or flight.at,
            flight.at,
            chain.links + 1,
            max(chain.worst_delay, flight.dep_delay),
            chain.lost_minutes + flight.dep_delay,
            f"{chain.route} {flight.origin}".lstrip(),
        )
    found = None
    if chain is not None and chain.links >= LEAST_LINKS and chain.worst_delay > WORST_MINUTES:
        found = (tailnum, chain.origin, chain.started, chain.ended, flight.at, *chain[3:])
    return found, None if late else (None, None, flight.at, 0, 0, 0, "")


def declare(replay: str, database: str) -> Flow:
    """The flow.

    Args:
        replay: Folder with Parquet files of flights, each read in an epoch of its own.
        database: SQLite file for the five tables.
    """
    url = f"sqlite:///{database}"
    flow: Flow = ps.Flow("flights")
    flights = flow.source("flights", ps.files(replay, SCHEMA, max_files_per_epoch=1), time="at", lateness=LATENESS)

    # A cancelled flight moves no aircraft, and some name none.
    flown = flights.where("tailnum IS NOT NULL AND dep_delay IS NOT NULL")
    cascades = flown.key_by("tailnum").stateful_map(follow_aircraft, CASCADE, state=CHAIN)

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

    cascades.sink(ps.sql(url, "cascades"))
    airport_hours.sink(ps.sql(url, "airport_hours"))
    cascade_days.sink(ps.sql(url, "cascade_days"))
    airlines.sink(ps.sql(url, "airlines", mode="upsert", key="carrier"))
    flights.late.sink(ps.sql(url, "late_flights"))
    return flow
