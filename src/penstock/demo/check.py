"""The demo's tables computed in plain pandas, and compared with what the flow stored.

It shares with the flow only the names of columns and the numbers in its definition: a regular expression over each aircraft's
whole year finds cascades.

Read next: `penstock.demo.report`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from penstock.demo.flow import AWFUL_MINUTES, DAYS, LATE_MINUTES, LATENESS, LEAST_IN_A_ROW

_LEFT: Final = {"left_only": "is missing", "right_only": "should not be there"}


@dataclass(frozen=True)
class Table:
    """How a table is compared.

    Attributes:
        key: Columns that identify a row.
        times: Times that are stored as text.
        within: Columns that may differ, with the relative error allowed.
    """

    key: tuple[str, ...]
    times: tuple[str, ...] = ()
    within: Mapping[str, float] = field(default_factory=dict)


TABLES: Final = {
    "cascades": Table(("tailnum", "started"), ("started", "ended", "broken_at")),
    "late_in_a_row": Table(("carrier", "started"), ("started", "ended")),
    "airport_hours": Table(("origin", "window_start"), ("window_start", "window_end"), {"mean_delay": 1e-9, "p90_delay": 0.01}),
    "cascade_days": Table(("origin", "window_start"), ("window_start", "window_end")),
    "airlines": Table(("carrier",), (), {"mean_delay": 1e-9}),
    "late_flights": Table(("at", "carrier", "flight"), ("at",)),
}


def expected_tables(flights: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Every table as pandas computes it.

    Args:
        flights: All flights in the order of their reports; not modified.
    """
    flights = flights.drop(columns="heard_at").astype({"dep_delay": "float64"})
    newest = flights["at"].cummax().shift()
    late = flights["at"] < newest - pd.Timedelta(LATENESS)
    known = flights[~late].sort_values("at", kind="stable")
    cascades = find_cascades(known)
    return {
        "cascades": cascades,
        "late_in_a_row": _late_in_a_row(known),
        "airport_hours": _airport_hours(known),
        "cascade_days": _cascade_days(cascades),
        "airlines": _airlines(known),
        "late_flights": flights[late],
    }


def find_cascades(flights: pd.DataFrame) -> pd.DataFrame:
    """All cascades, by a regular expression: ``o`` on time, ``l`` late, ``L`` awfully late.

    Args:
        flights: Sorted by scheduled time; not modified.
    """
    found: list[dict[str, Any]] = []
    for tailnum, rows in flights[flights["dep_delay"].notna()].groupby("tailnum"):
        delay, nth = rows["dep_delay"], 0
        text = "".join(np.select([delay > AWFUL_MINUTES, delay > LATE_MINUTES], ["L", "l"], "o"))
        for hit in re.finditer("oL[lL]+(?=o)", text):
            before, breaker, chain = rows.iloc[hit.start()], rows.iloc[hit.end()], rows.iloc[hit.start() + 1 : hit.end()]
            if breaker["at"] - before["at"] <= pd.Timedelta(days=DAYS):
                nth += 1
                times = {"started": chain["at"].iloc[0], "ended": chain["at"].iloc[-1], "broken_at": breaker["at"]}
                delays = {"worst_delay": int(chain["dep_delay"].max()), "lost_minutes": int(chain["dep_delay"].sum())}
                route = {"origin": chain["origin"].iloc[0], "route": " ".join(chain["origin"])}
                found.append({"tailnum": tailnum, "nth": nth, "links": len(chain), **times, **delays, **route})
    return pd.DataFrame(found)


def _late_in_a_row(flights: pd.DataFrame) -> pd.DataFrame:
    """Newark's late flights of an airline, between two that were on time; those after the last one on time are not told."""
    newark = flights[(flights["origin"] == "EWR") & flights["dep_delay"].notna()].copy()
    newark["late"] = newark["dep_delay"] > LATE_MINUTES
    newark["on_time"] = (~newark["late"]).groupby(newark["carrier"]).cumsum()
    newark = newark[newark["late"] & (newark["on_time"] < newark.groupby("carrier")["on_time"].transform("max"))]
    by = newark.groupby(["carrier", "on_time"], sort=False)
    found = by.agg(started=("at", "first"), ended=("at", "last"), flights=("at", "size"), lost_minutes=("dep_delay", "sum"))
    return found[found["flights"] >= LEAST_IN_A_ROW].reset_index().drop(columns="on_time")


def _airport_hours(flights: pd.DataFrame) -> pd.DataFrame:
    by = flights.assign(window_start=flights["at"].dt.floor("h")).groupby(["origin", "window_start"])["dep_delay"]
    found = pd.DataFrame({"flights": by.size(), "mean_delay": by.mean(), "worst_delay": by.max()})
    found["cancelled"] = found["flights"] - by.count()
    found["p90_delay"] = by.quantile(0.9, interpolation="lower")
    found = found.reset_index()
    return found.assign(window_end=found["window_start"] + pd.Timedelta(hours=1))


def _cascade_days(cascades: pd.DataFrame) -> pd.DataFrame:
    """The days on which cascades ended."""
    by = cascades.assign(window_start=cascades["broken_at"].dt.floor("D")).groupby(["origin", "window_start"])
    found = by.agg(cascades=("links", "size"), lost_minutes=("lost_minutes", "sum"), longest=("links", "max")).reset_index()
    return found.assign(window_end=found["window_start"] + pd.Timedelta(days=1))


def _airlines(flights: pd.DataFrame) -> pd.DataFrame:
    by = flights.groupby("carrier")
    delay = by["dep_delay"]
    found = {"flights": by.size(), "departed": delay.count(), "mean_delay": delay.mean(), "worst_delay": delay.max()}
    return pd.DataFrame({**found, "aircraft": by["tailnum"].nunique()}).reset_index()


def stored_tables(database: Path) -> dict[str, pd.DataFrame]:
    """Every table as the flow stored it."""
    found = {}
    with closing(sqlite3.connect(database)) as connection:
        for name, table in TABLES.items():
            rows = pd.read_sql_query(f'SELECT * FROM "{name}"', connection)  # noqa: S608  (our own names)
            found[name] = rows.assign(
                **{c: pd.to_datetime(rows[c], utc=True, format="%Y-%m-%d %H:%M:%S.%f") for c in table.times}
            )
    return found


def differences(expected: Mapping[str, pd.DataFrame], stored: Mapping[str, pd.DataFrame]) -> list[str]:
    """All rows that differ, one line each: missing, superfluous (also a row stored twice), or with other values."""
    return [line for name, table in TABLES.items() for line in _compare(name, table, expected[name], stored[name])]


def _compare(name: str, table: Table, expected: pd.DataFrame, stored: pd.DataFrame) -> list[str]:
    if set(expected.columns) != set(stored.columns):
        return [f"{name}: columns are {sorted(stored.columns)}, not {sorted(expected.columns)}"]
    key = [*table.key, "_copy"]
    both = _numbered(expected, table).merge(_numbered(stored, table), "outer", key, suffixes=("", "_stored"), indicator="_in")
    lines = {int(i): [_LEFT[str(both["_in"][i])]] for i in both.index[both["_in"] != "both"]}
    paired = both[both["_in"] == "both"]
    for column in expected.columns.difference(key):
        wanted, got = paired[column], paired[f"{column}_stored"]
        same = (wanted == got) | (wanted.isna() & got.isna())
        if column in table.within:
            same |= (wanted - got).abs() <= table.within[column] * wanted.abs() + 1e-9
        for i in paired.index[~same]:
            lines.setdefault(int(i), []).append(f"{column} is {got[i]}, not {wanted[i]}")
    return [f"{name} {_words([both[c][i] for c in table.key])}: {', '.join(lines[i])}" for i in sorted(lines)]


def _numbered(rows: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Rows with a number per key, so that a row that was stored twice has no partner."""
    return rows.assign(_copy=rows.groupby(list(table.key), dropna=False).cumcount())


def _words(key: list[Any]) -> str:
    return " ".join(f"{v:%Y-%m-%d %H:%M}" if isinstance(v, pd.Timestamp) else str(v) for v in key)
