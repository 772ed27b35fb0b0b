"""Runs the demo: writes the replay, runs the flow over it, reports, and compares every stored row with pandas.

An interrupted demo continues when it is started again on its folder, and must pass the same comparison.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pandas as pd
from rich.console import Console

from penstock.demo.balance import Balance
from penstock.demo.check import differences, expected_tables, stored_tables
from penstock.demo.data import read_flights, write_replay
from penstock.demo.flow import declare
from penstock.demo.report import Watch, print_balance, print_findings, print_places, print_rescales, print_speed
from penstock.demo.rescale import Rescale
from penstock.errors import PenstockError
from penstock.serve.terminal import watch

_SHOWN: Final = 20
_INTRODUCTION: Final = """\
{flights:,} flights that left New York in 2013, in the order in which they left, go
through a flow in {files} pieces. It follows each aircraft, airport and airline and
keeps six tables in SQLite, which are then compared with pandas. Under way the
number of workers that follow the aircraft is changed twice, live, and Newark's
largest airlines get workers of their own."""


def run_demo(folder: str | None = None, workers: int = 2) -> None:
    """Run the demo and print its report.

    Args:
        folder: The folder of its files; by default a new temporary folder, which is not removed.
        workers: Workers per region, for a new folder.

    Raises:
        MissingToolError: The data or Java are not installed.
        PenstockError: The flow failed, was interrupted, or stored rows that differ from those of pandas; these were printed.
    """
    run_on(read_flights(), Path(folder or tempfile.mkdtemp(prefix="penstock-demo-")).resolve(), workers)


def run_on(flights: pd.DataFrame, folder: Path, workers: int) -> None:
    """Run the demo over some of the flights.

    Args:
        flights: What `penstock.demo.data.read_flights` returned, or its first rows; not modified.
        folder: The folder of its files.
        workers: Workers per region, for a new folder.

    Raises:
        PenstockError: As `run_demo`.
    """
    console, laps = Console(highlight=False), Watch()
    database, checkpoint = folder / "flights.db", folder / "checkpoint"
    resumed = checkpoint.exists()
    with _doing("Writing the replay"):
        files = write_replay(flights, folder / "replay")
    laps.lap("replay")
    console.print(_INTRODUCTION.format(flights=len(flights), files=files))
    console.print(f"Everything is kept in {folder}\n", soft_wrap=True, markup=False)
    with _doing("Starting Spark"):
        from penstock.spark.session.local import session  # noqa: PLC0415  (Spark loads when it is needed)

        spark = session(app_name="penstock demo")
    laps.lap("Spark")
    with _doing("Starting the flow"):
        run = declare(str(folder / "replay"), str(database)).start(
            spark, checkpoint=str(checkpoint), workers=workers, trigger="available_now"
        )
    laps.lap("start")
    rescale, balance = (None, None) if resumed else (Rescale(run, files), Balance(run))
    try:
        watch(run)
    except KeyboardInterrupt:
        raise PenstockError(f"Interrupted; to continue: penstock demo --folder {folder}") from None
    turns = rescale.finish() if rescale is not None else []
    loads = balance.finish() if balance is not None else None
    laps.lap("epochs")
    with _doing("Comparing with pandas"):
        expected, stored = expected_tables(flights), stored_tables(database)
        different = differences(expected, stored)
    laps.lap("pandas")
    print_findings(console, stored)
    print_balance(console, loads)
    print_speed(console, run.progress, laps.laps_s, resumed=resumed)
    print_rescales(console, turns, rescale.missed if rescale is not None else "")
    _judge(console, different, stored)
    print_places(console, database, checkpoint)


def _judge(console: Console, different: list[str], stored: dict[str, pd.DataFrame]) -> None:
    for line in different[:_SHOWN]:
        console.print(line, soft_wrap=True, markup=False)
    if different:
        count = "1 row differs" if len(different) == 1 else f"{len(different):,} rows differ"
        shown = f"the first {_SHOWN} are" if len(different) > _SHOWN else "it is" if len(different) == 1 else "they are"
        raise PenstockError(f"{count} from those that pandas finds; {shown} above.")
    console.print(
        f"\nChecked: all {sum(map(len, stored.values())):,} rows of {len(stored)} tables are equal to pandas.",
        style="bold green",
    )


@contextmanager
def _doing(what: str) -> Iterator[Any]:
    """Announce a slow step, on a terminal only."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield None
        return
    with console.status(f"{what} …") as status:
        yield status
