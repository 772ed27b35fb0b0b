"""A run, and a rescale, as a line of text and a run as HTML for notebooks, from the last epoch's figures. Every text of the user's is escaped.

Read next: `penstock.serve.terminal`, the same in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.arrow.html_tables import escaped, html_table
from penstock.checkpoint.figures import FIGURES

_SOURCES = ("rows", "late", "malformed")


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


__all__ = ["counted", "group_html", "rescale_line", "run_html", "run_line"]
