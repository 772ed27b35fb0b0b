"""The partitions of a flow in a group as a table: those of one application, or all, as their checkpoints have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from penstock.driver.group_run import GroupRun
from penstock.group.figures import FIGURES


def partitions_table(partitions: Mapping[int, Mapping[str, Any]], owners: Mapping[int, str] | None = None) -> Table:
    """One row for each partition.

    Args:
        partitions: By number, its figures as `penstock.checkpoint.record.progress_of` gives them.
        owners: By number, who works on it; None: whoever asks.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("partition", *(["application"] if owners is not None else [])):
        table.add_column(title)
    for title in ("epoch", "rows so far", "rows out", "epoch took", "frontier"):
        table.add_column(title, justify="right")
    for number, progress in sorted(partitions.items()):
        out = sum(progress["rows_out"].values())
        rows = sum(s["rows"] for s in progress["sources"].values())
        took = f"{progress['epoch_ms']:,} ms"
        frontier = "ended" if progress["finished"] else progress["frontier"]
        who = [owners.get(number, "nobody")] if owners is not None else []
        table.add_row(str(number), *who, str(progress["epoch"]), f"{rows:,}", f"{out:,}", took, str(frontier))
    return table


def member_table(run: GroupRun) -> Table:
    """An application's partitions, with the figures of its membership above them."""
    of, figures = FIGURES["application"], run.figures
    table = partitions_table(run.progress)
    table.title = " · ".join(f"{of[name].title} {of[name].text(v)}" for name, v in figures.items() if v is not None)
    return table


__all__ = ["member_table", "partitions_table"]
