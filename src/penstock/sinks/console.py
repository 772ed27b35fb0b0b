"""Rows on the screen, for a first look at a flow.

Read next: `penstock.sinks.base`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.sinks import marks
from penstock.sinks.base import Sink
from penstock.sql_text.schema import as_number
from penstock.types import Mark, Refusal


def console(limit: int = 20) -> Sink:
    """Print an output's rows, epoch by epoch: as a table on a terminal, as tab-separated lines in a pipe.

    An epoch without rows prints nothing. An epoch that runs again after a restart of the process is printed again.

    Args:
        limit: Rows shown of each epoch; the rest is counted.

    Returns:
        A sink that is not durable.

    Raises:
        DeclarationError: `limit` is negative, or no number. Nothing was changed.

    Example:
        >>> console(limit=5)
        console(limit=5)
    """
    return ConsoleSink(limit)


class ConsoleSink:
    """The sink that `console` makes."""

    durable = False

    def __init__(self, limit: int = 20) -> None:
        self._limit = as_number(limit, "The limit of console", 0)
        self._mark: Mark | None = None

    def __repr__(self) -> str:
        return f"console(limit={self._limit})"

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """Anything can be printed."""

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:  # noqa: ARG002  (the contract's)
        """See `Sink.open`; knows only what this object has printed.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: It has printed more than the checkpoint knows of.
        """
        held = self._mark if self._mark and (self._mark.flow, self._mark.output) == (claim.flow, claim.output) else None
        marks.refuse_claim(held, claim, target="The console", remedy="declare a new one")
        self._mark = replace(held or claim, run=claim.run, epoch=held.epoch if held else -1)
        return held if held and held.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`; knows only what this object was given."""
        return self._mark if self._mark and self._mark.output == output and self._mark.epoch >= 0 else None

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened. Nothing was printed.
        """
        if marks.holds_epoch(self._mark, mark, target="The console"):
            return 0
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            _show(pa.Table.from_batches(filled), f"{mark.output} · epoch {mark.epoch}", self._limit)
        self._mark = mark
        return sum(batch.num_rows for batch in filled)

    def rewind_refusal(self) -> Refusal | None:
        """What was printed stays on the screen, which is no store."""
        return None

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`. Says on the screen which epochs no longer count.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened.
        """
        if not marks.holds_epoch(self._mark, mark, target="The console"):
            print(f"# {mark.output} · back to epoch {upto}: what was printed since no longer counts", flush=True)  # noqa: T201
            self._mark = mark

    def close(self) -> None:
        """Nothing to release."""


def _show(table: pa.Table, title: str, limit: int) -> None:
    shown = [["" if value is None else str(value) for value in row.values()] for row in table.slice(0, limit).to_pylist()]
    rest = table.num_rows - len(shown)
    caption = f"{rest:,} more rows" if rest else ""
    if not sys.stdout.isatty():
        lines = ["\t".join(row) for row in [table.schema.names, *(list(map(_one_line, row)) for row in shown)]]
        print(f"# {title}", *lines, *([f"# {caption}"] if caption else []), sep="\n", flush=True)  # noqa: T201  (that is what it is for)
        return
    from rich.console import Console  # noqa: PLC0415  (only who prints to a terminal needs it)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    # Text, not str: a value such as "[red]" is no markup.
    drawn = Table(title=Text(title), caption=caption or None, title_justify="left")
    for field in table.schema:
        type_: Any = field.type
        number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        drawn.add_column(Text(field.name), justify="right" if number else "left")
    for row in shown:
        drawn.add_row(*(Text(value) for value in row))
    Console().print(drawn)


def _one_line(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
