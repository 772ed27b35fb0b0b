"""Rows that another flow has stored with their positions, as a source: in the order in which they would have come to it.

The order is (event time, partition, offset, sub-index) over all that the storing flow's frontier has passed: such rows are complete, and none
comes between them any more. So the number of a row in that order is the same whenever and wherever it is read, and is its offset here.

Read next: `penstock.sinks.stored_rows`, `penstock.spark.sources.read_back`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import pyarrow as pa

from penstock.errors import DeclarationError, SinkError
from penstock.sources.base import Source
from penstock.sql_text.schema import as_number, as_schema, as_text
from penstock.types import HIDDEN, MAX_TIME, OFFSET, PART, PARTITION, SUB, TIME, Mark, visible

if TYPE_CHECKING:
    from penstock.sql_text.given import Schema

READ_TIME: Final = f"{HIDDEN}read_time"
"""Event times (µs) of rows that are read again."""
READ_NUMBER: Final = f"{HIDDEN}read_number"
"""int64, their numbers."""
READ_PLACE: Final = tuple(f"{HIDDEN}read_{what}" for what in ("part", "offset", "sub"))
"""int64, the positions with which they are stored: a number is another row's once rows before it are deleted."""
_PAGE_ROWS: Final = 1 << 16


class StoredRows(Protocol):
    """What is asked of a sink's storage. It is pickled to the tasks, claims nothing and changes nothing. All methods raise `SinkError`."""

    target: str
    """What holds the rows, for messages."""
    output: str | None
    """The output; None: the only one there."""

    def columns(self) -> pa.Schema | None:
        """All columns of the rows, as far as their types are known; None: nothing is there."""
        ...

    def held(self) -> Mark | None:
        """The output's mark; None: it was never written."""
        ...

    def count(self, below: int) -> int:
        """How many rows have an event time less than `below` (µs); all, if they have none."""
        ...

    def cuts(self, first: int, last: int, below: int, every: int) -> list[tuple[int, ...]]:
        """Of these, in their order, the positions of row number `first` and of each further one by `every`, up to `last`, which is not in it."""
        ...

    def page(self, schema: pa.Schema, cut: tuple[int, ...], rows: int, below: int) -> pa.Table:
        """Of these, in their order, at most so many from the position `cut` on, in these columns and those of the position."""
        ...


@runtime_checkable
class Readable(Protocol):
    """What a sink offers if its rows can be read back."""

    def stored_rows(self, output: str | None) -> StoredRows:
        """The rows of an output; None: of the only one that is kept there."""
        ...


def read_back(
    sink: Any, schema: Schema | None = None, *, output: str | None = None, max_rows_per_epoch: int | None = None
) -> ReadBack:
    """The rows that a sink holds, as a source: for a flow that goes on from what another one has stored with ``positions=True``.

    Rows come in the order, and with the event times, with which the stream that was stored would have brought them, so a region that reads them gives the
    same results as behind that stream. Rows are given out once the storing flow's frontier has passed them: all of them if that flow has finished. It may
    still be running; then later rows follow. Rows without event time have an order only when their flow has finished, and are refused before.

    Event time is that of the rows, and needs no ``time=``. With ``time=`` a column takes its place (a pattern needs one, to show times).

    Args:
        sink: ``penstock.parquet(…)`` or ``penstock.sql(…)`` with ``mode="append"``.
        schema: The rows' columns, where storage does not tell their types exactly: SQLite has no decimals, SQL knows whole numbers as int64.
        output: Name of the output. Needed if a Parquet folder holds several. A table with rows of several outputs is refused: nothing tells them apart.
        max_rows_per_epoch: At most so many rows per epoch.

    Returns:
        A source that is read in this process and over Spark, there by a task for each 65,536 rows.

    Raises:
        DeclarationError: The sink cannot be read, or its columns are not known: it holds nothing, and is in no flow that was declared here.
        SinkError: The storage cannot be read, or the rows have no positions. Nothing was changed.

    Example:
        >>> import penstock as ps
        >>> totals = ps.parquet("results/totals")
        >>> orders = ps.Flow("first").source("orders", ps.files("orders", "customer string, at timestamp"), time="at")
        >>> stored = orders.key_by("customer").window(ps.tumbling("1 hour")).aggregate(n=ps.count()).sink(totals, positions=True)
        >>> ps.read_back(totals).schema.names
        ['customer', 'window_start', 'window_end', 'n']
    """
    if not isinstance(sink, Readable):
        raise DeclarationError(f"{sink!r} cannot be read back; use penstock.parquet(...), or penstock.sql(...) that appends.")
    if output is not None:
        as_text(output, "The output of read_back")
    if max_rows_per_epoch is not None:
        as_number(max_rows_per_epoch, "max_rows_per_epoch of read_back")
    rows = sink.stored_rows(output)
    there = rows.columns()
    if there is None:
        raise DeclarationError(
            f"{rows.target} holds nothing, so the columns of its rows are not known; declare the flow that writes it first, with this sink object, or start it."
        )
    if PARTITION not in there.names:
        raise SinkError(f"{rows.target} holds rows without positions; store them with .sink(..., positions=True).")
    own = pa.schema([there.field(name) for name in visible(there.names)])
    if schema is not None:
        given = as_schema(schema, "the schema of read_back")
        missing = [name for name in given.names if name not in own.names]
        if missing:
            raise DeclarationError(f"{rows.target} has no column {missing[0]!r}; there are {', '.join(own.names)}.")
        own = given
    unknown = [field.name for field in own if pa.types.is_null(field.type)]
    if unknown:
        raise DeclarationError(
            f"The type of column {unknown[0]!r} of {rows.target} is not known before its flow has stored rows; give read_back a schema."
        )
    return ReadBack(rows, own, READ_TIME if TIME in there.names else None, max_rows_per_epoch)


@dataclass(frozen=True)
class ReadBack(Source):
    """What `read_back` makes.

    Attributes:
        rows: Where they are.
        schema: Their own columns.
        time: The hidden column with their event time, if they have one.
        max_rows_per_epoch: At most so many per epoch; None: all.
        page_rows: So many are read at a time; over Spark by a task.
    """

    rows: StoredRows
    schema: pa.Schema
    time: str | None
    max_rows_per_epoch: int | None = None
    page_rows: int = _PAGE_ROWS
    fingerprint = READ_PLACE
    steady = True

    def describe(self) -> str:
        return "stored rows"

    def meaning(self) -> dict[str, str]:
        return {"kind": "stored rows", "of": self.rows.target, "output": self.rows.output or "the only one"}

    def complete(self) -> int | None:
        """The event time (µs) before which all rows are there, `MAX_TIME` if the storing flow has finished; None: it has stored nothing.

        Raises:
            SinkError: They have none, and it has not finished.
        """
        mark = self.rows.held()
        if mark is not None and self.time is None and mark.frontier < MAX_TIME:
            raise SinkError(
                f"{self.rows.target} holds rows without event time, which have an order only when their flow {mark.flow!r} has finished: drain it first."
            )
        return None if mark is None else mark.frontier

    def until(self, read: int, below: int) -> int:
        """The number after the last row that the next epoch reads.

        Args:
            read: So many have been read.
            below: See `complete`.

        Raises:
            SinkError: There are not so many any more.
        """
        there = self.rows.count(below)
        if there < read:
            raise SinkError(
                f"{self.rows.target} has taken back rows that were read: {read} were, and {there} are there now; its flow has gone back to a "
                "snapshot, or somebody has deleted some. Start this flow anew, with another checkpoint and empty sinks."
            )
        return there if self.max_rows_per_epoch is None else min(there, read + self.max_rows_per_epoch)

    def pages(self, first: int, last: int, below: int) -> list[tuple[int, tuple[int, ...], int]]:
        """Of the rows from one number up to another, which is not among them: each page's first number, its position, and how many."""
        cuts = self.rows.cuts(first, last, below, self.page_rows)
        numbers = range(first, last, self.page_rows)
        return [(n, cut, min(self.page_rows, last - n)) for n, cut in zip(numbers, cuts, strict=True)]

    def page(self, first: int, cut: tuple[int, ...], rows: int, below: int) -> pa.Table:
        """Rows from a position on, with their event times, positions and numbers."""
        found = self.rows.page(self.schema, cut, rows, below)
        numbers = pa.array(range(first, first + found.num_rows), pa.int64())
        table = found.select(self.schema.names)
        if self.time is not None:
            table = table.append_column(READ_TIME, found.column(TIME))
        for name, stored in zip(READ_PLACE, (PART, OFFSET, SUB), strict=True):
            table = table.append_column(name, found.column(stored))
        return table.append_column(READ_NUMBER, numbers)

    def records(self, after: Mapping[str, int]) -> pa.Table | None:
        read = max(after.values(), default=-1) + 1
        below = self.complete()
        if below is None and not read:
            return None
        last = self.until(read, MAX_TIME if below is None else below)
        if below is None or last == read:
            return None
        return pa.concat_tables([self.page(*page, below) for page in self.pages(read, last, below)])
