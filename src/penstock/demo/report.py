"""The demo's final report: findings, load, speed, next commands. At most 80 columns wide."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.checkpoint.figures import FIGURES
from penstock.demo.balance import Loads
from penstock.demo.data import read_airlines
from penstock.demo.flow import LATENESS
from penstock.demo.rescale import Turn

_AIRPORTS: Final = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
_LEAST_DEPARTED: Final = 10


@dataclass
class Watch:
    """A stopwatch with named laps, in seconds."""

    laps_s: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=monotonic)

    def lap(self, name: str) -> None:
        """End a lap; the next begins."""
        now = monotonic()
        self.laps_s[name], self._since = now - self._since, now


def print_findings(console: Console, tables: Mapping[str, pd.DataFrame]) -> None:
    """The most remarkable rows of the tables.

    Args:
        console: The output.
        tables: The stored tables by name.
    """
    for shown in (
        _cascades(tables["cascades"]),
        _worst_hours(tables["airport_hours"]),
        _airlines(tables["airlines"]),
        _late_in_a_row(tables["late_in_a_row"]),
    ):
        console.print(shown)
        console.print()


def _cascades(cascades: pd.DataFrame) -> Table:
    title = f"Delay cascades, one aircraft late time after time: 5 of {len(cascades):,}"
    shown = _table(title, ("aircraft", "first late (UTC)"), ("flights", "worst", "in all"))
    shown.add_column("from")
    for row in _worst_first(cascades, "lost_minutes").head(5).to_dict("records"):
        when, delays = f"{row['started']:%Y-%m-%d %H:%M}", (_minutes(row["worst_delay"]), _minutes(row["lost_minutes"]))
        shown.add_row(row["tailnum"], when, str(row["links"]), *delays, row["route"])
    return shown


def _worst_hours(hours: pd.DataFrame) -> Table:
    title = f"Worst hour of each airport, of {len(hours):,} hours in all"
    shown = _table(title, ("airport", "hour (UTC)"), ("flights", "cancelled", "mean", "90 % by", "worst"))
    busy = _worst_first(hours[hours["flights"] - hours["cancelled"] >= _LEAST_DEPARTED], "mean_delay")
    for row in busy.drop_duplicates("origin").to_dict("records"):
        delays = (_minutes(minutes) for minutes in (row["mean_delay"], row["p90_delay"], row["worst_delay"]))
        airport = f"{row['origin']} {_AIRPORTS.get(row['origin'], '')}"
        shown.add_row(airport, f"{row['window_start']:%Y-%m-%d %H:%M}", str(row["flights"]), str(row["cancelled"]), *delays)
    return shown


def _airlines(airlines: pd.DataFrame) -> Table:
    shown = _table(f"Latest of the {len(airlines)} airlines", ("airline",), ("flights", "aircraft", "mean delay", "worst"))
    names = read_airlines()
    for row in _worst_first(airlines, "mean_delay").head(3).to_dict("records"):
        mean, airline = f"{row['mean_delay']:.1f} min", f"{row['carrier']} {names.get(row['carrier'], '')}"
        shown.add_row(airline, f"{row['flights']:,}", f"{row['aircraft']:,}", mean, _minutes(row["worst_delay"]))
    return shown


def _late_in_a_row(streaks: pd.DataFrame) -> Table:
    title = f"Most late departures of an airline in a row, at Newark: 3 of {len(streaks):,}"
    shown = _table(title, ("airline", "first late (UTC)"), ("flights", "in all"))
    names = read_airlines()
    for row in _worst_first(streaks, "flights").head(3).to_dict("records"):
        airline, when = f"{row['carrier']} {names.get(row['carrier'], '')}", f"{row['started']:%Y-%m-%d %H:%M}"
        shown.add_row(airline, when, str(row["flights"]), _minutes(row["lost_minutes"]))
    return shown


def print_balance(console: Console, loads: tuple[Loads, Loads] | None) -> None:
    """The load of the workers that follow Newark's airlines.

    Args:
        console: The output.
        loads: Before hot airlines had workers of their own, and after; None: nothing is shown.
    """
    if loads is None:
        return
    before, after = loads
    title = "Share of Newark's flights by worker, balanced live by Isolate()"
    shown = _table(title, ("worker",), tuple(f"epochs {each.first} to {each.last}" for each in loads))
    shown.add_column("then has for itself")
    names, alone = read_airlines(), {worker: carrier for carrier, worker in after.alone.items()}
    for worker, shares in enumerate(zip(before.shares, after.shares, strict=True)):
        carrier = alone.get(worker, "")
        shown.add_row(str(worker), *(f"{share:.0%}" for share in shares), f"{carrier} {names.get(carrier, '')}".strip())
    console.print(shown)
    console.print()


def print_speed(console: Console, progress: Mapping[str, Any], laps_s: Mapping[str, float], *, resumed: bool) -> None:
    """Rows, epochs, seconds and state.

    Args:
        console: The output.
        progress: `Run.progress` at the end.
        laps_s: The seconds of each lap.
        resumed: Whether an earlier process ran epochs, so that a rate would be wrong.
    """
    source, epochs, took_s = progress["sources"]["flights"], progress["epoch"] + 1, laps_s["epochs"]
    speed = f"{epochs} epochs" if resumed else f"{epochs} epochs, {took_s:.0f} s: {source['rows'] / took_s:,.0f} a second"
    others = ", ".join(f"{name} {took_s:.0f} s" for name, took_s in laps_s.items() if name != "epochs")
    size = FIGURES["region"]["state_bytes"].text
    states = ", ".join(f"{name} {size(region['state_bytes'])}" for name, region in progress["regions"].items())
    shown = Table.grid("", "", padding=(0, 2, 0, 0))
    shown.add_row("[bold]Speed", f"{source['rows']:,} records in {speed}\n(besides: {others})")
    shown.add_row("[bold]Late", f"{source['late']:,} records, over {LATENESS} behind, went to the table late_flights alone")
    shown.add_row("[bold]State", states)
    console.print(shown)


def print_rescales(console: Console, turns: Sequence[Turn], missed: str = "") -> None:
    """The rescales of the run.

    Args:
        console: The output.
        turns: The rescales, in order.
        missed: Why there are no more of them; empty if none is missing.
    """
    for turn in turns:
        console.print(
            f"[bold]Live[/]   {turn.before} to {turn.after} workers in epochs {turn.first_epoch} to {turn.last_epoch}: "
            f"{turn.keys:,} aircraft, {turn.bytes / 1024:,.0f} KiB"
        )
    if missed:
        console.print(f"[bold]Live[/]   not done: {escape(missed)}")


def print_places(console: Console, database: Path, checkpoint: Path) -> None:
    """Commands that show more."""
    folder, file = shlex.quote(str(checkpoint)), shlex.quote(str(database))
    console.print("\nLook further", style="bold")
    query = "SELECT tailnum, links, route FROM cascades ORDER BY links DESC LIMIT 9"
    for command in (
        f"penstock status --checkpoint {folder}",
        f"penstock state tailnum --checkpoint {folder}",
        f'sqlite3 -box {file} "{query}"',
    ):
        console.print(f"  {command}", soft_wrap=True, markup=False)


def _worst_first(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sorted by a column, ties by the key, which comes first."""
    return rows.sort_values([column, *rows.columns[:2]], ascending=[False, True, True])


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    shown = Table(
        *left,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in right:
        shown.add_column(name, justify="right")
    return shown


def _minutes(value: float) -> str:
    """Minutes as people read them."""
    whole = round(value)
    return f"{whole} min" if whole < 100 else f"{whole // 60}:{whole % 60:02d} h"
