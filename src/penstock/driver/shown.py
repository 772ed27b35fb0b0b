"""A run, its epochs, and a rescale, as lines of text and a run as HTML for notebooks, from the last epoch's figures. Every text of the user's is escaped.

Read next: `penstock.serve.terminal`, the same in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.arrow.html_tables import escaped, html_table
from penstock.checkpoint.figures import FIGURES
from penstock.checkpoint.record import EpochRecord
from penstock.types import time_text

_SOURCES = ("rows", "late", "ahead", "malformed")


def run_line(flow: str, progress: Mapping[str, Any], state: str) -> str:
    """A run in a line.

    Args:
        flow: The flow's name.
        progress: As `penstock.checkpoint.record.progress_of` gives it.
        state: ``running``, or how it has ended.
    """
    return f"Run of flow {flow!r}: {state}; {_figures(progress)}"


def run_html(flow: str, progress: Mapping[str, Any], state: str) -> str:
    """A run as a line and tables of its regions, sources and outputs; arguments as of `run_line`."""
    figures = FIGURES["region"].values()
    shown = [f for f in figures if f.title]
    regions = html_table(
        ["region", *(f.title for f in shown), "strategy", "phase"],
        [
            [name, *(f.text(region[f.name]) for f in shown), region["strategy"], region["phase"]]
            for name, region in progress["regions"].items()
        ],
    )
    sources = html_table(
        ["source", *(FIGURES["source"][n].help for n in _SOURCES)],
        [[name, *(source[n] for n in _SOURCES)] for name, source in progress["sources"].items()],
    )
    outputs = html_table(["output", "rows stored in the last epoch"], list(progress["rows_out"].items()))
    about = f"<b>{escaped(flow)}</b>: {escaped(state)}<br>{escaped(_figures(progress))}"
    return f"<div>{about}</div>{sources}{regions}{outputs}"


def start_line(checkpoint: str, run: int, epoch: int, workers: Mapping[str, int], ui: str | None) -> str:
    """A run that starts, in a line: where its state is, its number, the last epoch before it, the workers of its regions, Spark's web interface."""
    regions = ", ".join(f"{name} ({counted(n, 'worker')})" for name, n in workers.items())
    after = "begins" if epoch < 0 else f"goes on after epoch {epoch}"
    shown = "" if ui is None else f"; Spark UI {ui}"
    return f"run {run} on {checkpoint} {after}; {f'regions {regions}' if regions else 'no regions'}{shown}"


def epoch_line(before: EpochRecord, record: EpochRecord) -> str:
    """What an epoch has done, in a line; empty if it has done nothing: it read and gave out nothing, and heard no command."""
    figures = record.figures
    out = {name: n for name, n in figures.rows_out.items() if n}
    rescales = {n: r.rescaled() for n, r in figures.regions.items() if r.rescale is not None}
    heard = [name for name in record.control if name not in before.control]
    if not (figures.rows_in or out or rescales or heard):
        return ""
    parts = [f"epoch {record.epoch}: {counted(figures.rows_in, 'row')} in"]
    parts.append(
        f"{counted(sum(out.values()), 'row')} out" + (f" ({', '.join(f'{n} {k:,}' for n, k in out.items())})" if out else "")
    )
    for what in ("late", "ahead", "malformed"):
        new = sum(getattr(s, what) - getattr(before.sources.get(n), what, 0) for n, s in record.sources.items())
        parts += [f"{counted(new, 'record')} {what}"] if new else []
    skipped = sum(r.skipped for r in figures.regions.values())
    parts += [f"{counted(skipped, 'record')} skipped"] if skipped else []
    parts += [counted(len(heard), "command")] if heard else []
    parts += [f"frontier {time_text(figures.frontier)}", f"{figures.epoch_ms:,} ms"]
    parts += [f"refused: {why}" for name, why in record.refused.items() if name in heard]
    return "; ".join([", ".join(parts), *(rescale_line(name, moved) for name, moved in rescales.items())])


def stale_lines(before: EpochRecord, record: EpochRecord) -> list[str]:
    """A sentence for each table that an epoch tried to read again and could not."""
    failed = [(name, read) for name, read in record.tables.items() if read.failed and read != before.tables.get(name)]
    return [stale_line(name, read.failed) for name, read in failed]


def stale_line(name: str, failed: str) -> str:
    """That a table could not be read again, and why."""
    return f"the table of {name} was not refreshed, and records keep meeting its rows of before: {failed}"


def group_html(line: str, partitions: Mapping[int, Any]) -> str:
    """A run in a group: a line, then each partition's run in a line."""
    rows = [[number, run.progress["epoch"], run.progress["frontier"], run.state] for number, run in partitions.items()]
    return f"<div>{escaped(line)}</div>{html_table(['partition', 'epoch', 'frontier', 'state'], rows)}"


def rescale_line(region: str, figures: Mapping[str, Any]) -> str:
    """A rescale in progress in one line."""
    if figures.get("bins_left") is None:
        return f"region {region}: {figures['phase']}"
    done, left = figures["moved_bins"], figures["bins_left"]
    moved, queued = (FIGURES["rescale"][name].text(figures[name]) for name in ("moved_bytes", "queued_bytes"))
    bins = f"{done:,} of {counted(done + left, 'bin')}, " if done + left else ""
    keys = f"{counted(figures['keys_left'], 'single key')} to go, " if figures["keys_left"] else ""
    time_left = "" if not figures.get("left_ms") else f", about {max(1, round(figures['left_ms'] / 1000))} s left"
    held = ""
    if figures["held_keys"]:
        held = f", {counted(figures['held_keys'], 'large key')} on hold with {queued} queued"
    return (
        f"region {region}: {figures['phase']} to {counted(figures['to_workers'], 'worker')}, {bins}{keys}"
        f"{counted(figures['moved_keys'], 'key')} moved, {moved}{held}{time_left}"
    )


def counted(n: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "key"), counted(1234, "key")
        ('1 key', '1,234 keys')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def _figures(progress: Mapping[str, Any]) -> str:
    if progress["epoch"] < 0:
        return "no epoch yet"
    rows = sum(s["rows"] for s in progress["sources"].values())
    return f"epoch {progress['epoch']}, {rows:,} rows read, frontier {progress['frontier']}, {progress['epoch_ms']:,} ms"


__all__ = [
    "counted",
    "epoch_line",
    "group_html",
    "rescale_line",
    "run_html",
    "run_line",
    "stale_line",
    "stale_lines",
    "start_line",
]
