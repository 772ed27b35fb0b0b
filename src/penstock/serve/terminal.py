"""A running flow in the terminal: a table that is redrawn, or nothing in a pipe."""

from __future__ import annotations

import datetime as dt
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from penstock.checkpoint.figures import FIGURES
from penstock.driver.commands import given_at
from penstock.driver.group_run import GroupRun
from penstock.driver.last_end import how_it_ended
from penstock.driver.run import Run
from penstock.driver.shown import counted, rescale_line, stale_line
from penstock.errors import DeclarationError
from penstock.serve.group_table import member_table

_NAMED: Final = 3
_HOT: Final = 0.05
_TOLD_FOR: Final = dt.timedelta(hours=1)
"""For so long `penstock status` shows that a command was refused."""


def watch(run: Run | GroupRun, *, every: float = 0.5) -> None:
    """Wait for the end of a run, and meanwhile show on a terminal how far it is, as a table that is redrawn.

    Where stderr is no terminal nothing is shown; there the log has a line for each epoch, see the reference.

    Args:
        run: The run, as `Flow.start` gives it.
        every: Seconds between two updates.

    Raises:
        PenstockError: The flow failed; the error says why.
        DeclarationError: It is no run, or the pause between two updates is none.

    Example:
        >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
        >>> ps.watch(flow.start(spark, checkpoint="checkpoint", trigger="available_now"))
    """
    if not callable(getattr(run, "await_termination", None)):
        raise DeclarationError(f"watch({run!r}) needs a run, as flow.start(...) gives it.")
    if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 < every < math.inf:
        raise DeclarationError(f"watch(every={every!r}) must be a number of seconds above 0.")
    console = _console()
    if not console.is_terminal:
        while not run.await_termination(every):
            pass
        return
    show = (lambda: member_table(run)) if isinstance(run, GroupRun) else (lambda: _shown(run))
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while not run.await_termination(every):
            live.update(show())
        live.update(show())


def _console() -> Console:
    return Console(file=sys.stderr, markup=False, emoji=False)  # names that look like markup are the user's


def follow(asked: Any, *, every: float = 0.2, timeout: float | None = None, show: Callable[[], Any] | None = None) -> None:
    """Show a command's progress until it is done; only waits if the output is no terminal.

    Args:
        asked: The command.
        every: Seconds between two updates.
        timeout: Seconds after which to return; None: no limit.
        show: Renders the progress; None: that of the command's rescales.
    """
    try:
        _follow(asked, every, timeout, show)
    except KeyboardInterrupt:
        if not asked.done:
            sys.stderr.write("No longer waited for; the command stays in the flow's log and is obeyed.\n")
        raise


def _follow(asked: Any, every: float, timeout: float | None, show: Callable[[], Any] | None) -> None:
    console = _console()
    if not console.is_terminal:
        asked.wait(timeout)
        return
    until = math.inf if timeout is None else time.monotonic() + timeout
    with Live(console=console, refresh_per_second=5, transient=True) as live:
        while not asked.wait(every) and asked.running() and time.monotonic() < until:
            live.update(show() if show else Group(*(rescale_line(name, figures) for name, figures in asked.progress.items())))


def _shown(run: Run) -> Group:
    """What the live table shows of a run."""
    progress = run.progress
    lines = [*recovery_lines(run.recovery), *balance_lines(progress), *_stored_line(progress)]
    return Group(f"flow {run.name}: {run.state}", progress_table(progress), *lines)


def _stored_line(progress: dict[str, Any]) -> list[str]:
    """Rows that each output has stored in the last epoch, and late and malformed records so far; nothing if there are none."""
    stored = ", ".join(f"{name} {n:,}" for name, n in progress["rows_out"].items() if n)
    parts = [f"stored in this epoch: {stored}"] if stored else []
    for what in ("late", "malformed"):
        n = sum(s[what] for s in progress["sources"].values())
        parts += [f"{counted(n, 'record')} {what} so far"] if n else []
    return ["; ".join(parts)] if parts else []


def recovery_lines(recovery: dict[str, Any] | None) -> list[str]:
    """How far a recomputation is: nothing once it is over.

    Args:
        recovery: As `penstock.driver.recovery.recovery_figures` gives it.
    """
    if recovery is None or not recovery["active"]:
        return []
    left = recovery["seconds_left"]
    about = "" if left is None else f", about {max(1, round(left))} s left"
    waiting = ", ".join(recovery["outputs_suppressed"])
    lines = [f"recomputing: {recovery['rows_replayed']:,} records read{about}; outputs that wait for their marks: {waiting}"]
    for name, at in recovery["partitions"].items():
        lines.append(f"  {name}: from {max(at['start'], 0):,}, now {max(at['now'], 0):,} of {at['end']:,}")
    return lines


def balance_lines(progress: dict[str, Any]) -> list[str]:
    """How the rows of each region were spread over its workers in the last epoch: its strategy, the busiest worker, hot and pinned keys."""
    lines = []
    for name, figures in progress.get("regions", {}).items():
        if not figures.get("strategy"):
            continue  # of a version before
        parts = [figures["strategy"]]
        if any(figures["worker_rows"]):
            parts.append(f"busiest worker {FIGURES['region']['busiest'].text(figures['busiest'])} the mean")
        hot = [k for k in figures["hot_keys"] if k["isolated"] or k["share"] >= _HOT]
        for k in hot[:_NAMED]:
            where = (
                f", on {k['workers']} workers"
                if k["workers"] > 1
                else f", alone on worker {k['worker']}"
                if k["isolated"]
                else ""
            )
            parts.append(f"key {k['key']} has {k['share']:.0%} of the rows{where}")
        parts += [counted(len(hot) - _NAMED, "more hot key")] if len(hot) > _NAMED else []
        users = figures["pinned_keys"] - sum(k["isolated"] for k in figures["hot_keys"])
        parts += [f"{counted(users, 'key')} pinned by users"] if users > 0 else []
        lines.append(f"region {name}: {'; '.join(parts)}")
    return lines


def progress_table(progress: dict[str, Any]) -> Table:
    """An epoch's figures as a table that fits 80 columns."""
    if progress["epoch"] < 0:
        return Table(title="starting: the first epoch is under way", title_justify="left", box=None)
    total = sum(s["rows"] for s in progress.get("sources", {}).values())
    title = f"epoch {progress['epoch']} · {progress.get('frontier', '')} · {total:,} rows so far · {progress.get('epoch_ms', 0):,} ms"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    regions = progress["regions"]
    skipped = any(r["skipped"] for r in regions.values())
    shown = [f for f in FIGURES["region"].values() if f.title and (f.name != "skipped" or skipped)]
    table.add_column("region", no_wrap=True)
    for figure in shown:
        table.add_column(figure.title, justify="right", no_wrap=True)
    for name, r in regions.items():
        table.add_row(name, *(figure.text(r[figure.name]) for figure in shown))
    return table


def status_lines(
    progress: dict[str, Any],
    about: dict[str, Any],
    *,
    alive: bool | None,
    now: dt.datetime,
    recovery: dict[str, Any] | None = None,
) -> list[str]:
    """The lines that `penstock status` prints above the table.

    Args:
        progress: The last epoch's figures.
        about: The newest run's description of itself.
        alive: Whether it runs; None: unknown from here.
        now: The time, with its zone.
        recovery: See `recovery_lines`.
    """
    state = "finished" if progress["finished"] else {True: "running", False: "not running", None: "started"}[alive]
    lines = [f"flow {about['flow']}: {state} (run {about['run']}, process {about.get('pid', '?')} on {about.get('host', '?')})"]
    if how := how_it_ended(about, alive=alive):
        lines.append(f"run {about['run']} {how}")
    for name, s in progress.get("sources", {}).items():
        extra = "".join(f", {s[k]:,} {k}" for k in ("late", "malformed") if s.get(k))
        lines.append(f"source {name}: {s['rows']:,} rows{extra}")
    for name, figures in progress.get("regions", {}).items():
        if "rescale" in figures:
            shown = {"phase": figures["phase"], **figures["rescale"]}
            if alive is False:
                shown["left_ms"] = None
            lines.append(rescale_line(name, shown) + (", goes on when the flow is started again" if alive is False else ""))
    lines += recovery_lines(recovery)
    lines += balance_lines(progress)
    lines += [
        f"went back to snapshot {back['snapshot']}: epochs {back['to'] + 1} to {back['upto']} no longer count"
        for back in progress.get("rolled_back", [])[-1:]
    ]
    if progress.get("rollback_pending"):
        lines.append(f"going back to snapshot {progress['rollback_pending']}")
    recent = [(given_at(name), why) for name, why in progress.get("refused", {}).items()]
    recent = [(at, why) for at, why in recent if at is not None and now - at < _TOLD_FOR]
    lines += [f"refused at {at:%H:%M:%S} UTC: {why}" for at, why in recent[-3:]]
    lines += [stale_line(name, read["failed"]) for name, read in progress.get("tables", {}).items() if read["failed"]]
    for name, skipped in progress.get("skipped", {}).items():
        if skipped:
            first = progress["regions"].get(name, {}).get("first_skipped", "")
            lines.append(
                f"region {name}: {skipped:,} records skipped because a function raised" + (f", last: {first}" if first else "")
            )
    return lines
