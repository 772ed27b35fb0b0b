"""Rows in this process, for tests, notebooks and first steps: nothing survives the process.

Read next: `penstock.sinks.base`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.columns import values_of, within_calendar
from penstock.arrow.html_tables import rows_table
from penstock.errors import DeclarationError, SinkError
from penstock.sinks import marks
from penstock.sinks.base import Sink
from penstock.sql_text.schema import as_text
from penstock.types import Mark, Refusal


@dataclass(slots=True)
class _Held:
    """What one name holds; shared by all sinks of that name."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    mark: Mark | None = None
    table: pa.Table = field(default_factory=lambda: pa.table({}))
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Of rows that are only added: each epoch that had any, and the number of rows held after it."""


_NAMES: Final[dict[str, _Held]] = {}
_NAMES_GUARD: Final = threading.Lock()


def memory(name: str) -> MemorySink:
    """Keep an output in this process, under a name.

    Every ``memory(name)`` of the same name shows the same rows. An output that updates (a running aggregate) keeps the latest row of
    each key, in the order in which they were last written; any other keeps all rows. A flow with another checkpoint starts with an
    empty sink. Rows stay until then, so do not use it for a flow that runs for days.

    Args:
        name: Any text.

    Returns:
        A sink that is not durable, with `MemorySink.table` and `MemorySink.rows`.

    Example:
        >>> memory("nothing yet").rows()
        []
    """
    return MemorySink(name)


class MemorySink:
    """The sink that `memory` makes."""

    durable = False

    def __init__(self, name: str) -> None:
        as_text(name, "The name of memory")
        with _NAMES_GUARD:
            self._held = _NAMES.setdefault(name, _Held())
        self._name, self._target = name, f"Memory sink {name!r}"
        self._key: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"memory({self._name!r})"

    def _repr_html_(self) -> str:
        return rows_table(self.table(), repr(self))

    def table(self) -> pa.Table:
        """All rows that are held, as one Arrow table; without columns if no flow has opened the sink."""
        with self._held.lock:
            return self._held.table

    def rows(self) -> list[dict[str, Any]]:
        """All rows that are held, as dicts. A time outside of the years 1 to 9999 is shown as the nearest that Python has."""
        table = self.table()
        names = table.column_names
        columns = [values_of(within_calendar(column)) for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """See `Sink.validate`. An updating output whose key is not known keeps every row.

        Raises:
            DeclarationError: A key column is missing, or holds lists or structs. Nothing was changed.
        """
        for name in key if updates else ():
            if name not in schema.names:
                raise DeclarationError(f"{self._target} has key column {name!r}, but the output has only {schema.names}.")
            type_: Any = schema.field(name).type
            if pa.types.is_nested(type_):
                raise DeclarationError(f"{self._target} has key column {name!r} of type {type_}: make the key a plain value.")
        self._key = key if updates else ()

    def sharing_refusal(self, other: Sink) -> Refusal | None:
        """See `Sharing.sharing_refusal`: a name keeps the rows of one output."""
        if not isinstance(other, MemorySink) or repr(self) != repr(other):
            return None
        return Refusal(
            f"{self._target} keeps the rows of one output, and in one process; write them to a table or to Parquet files"
        )

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """See `Sink.open`; the rows of another flow are forgotten, not refused.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: The sink is more than one epoch ahead.
            SinkError: The same flow opens it for another output or with other columns. Nothing was changed.
        """
        with self._held.lock:
            held = self._held.mark
            if held is None or held.flow != claim.flow:
                self._held.table, self._held.epochs = schema.empty_table(), []
                self._held.mark = Mark(claim.flow, claim.output, claim.run)
                return None
            if held.output != claim.output:
                raise SinkError(
                    f"{self._target} holds output {held.output!r} of the same flow: give output {claim.output!r} another name."
                )
            marks.refuse_claim(held, claim, target=self._target, remedy="use another name")
            if self._held.table.schema != schema:
                if held.epoch >= 0:
                    raise SinkError(
                        f"{self._target} holds columns {self._held.table.schema.names} of other types: use another name."
                    )
                self._held.table = schema.empty_table()
            self._held.mark = replace(held, flow=claim.flow, run=claim.run)
            return held if held.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`; does not wait for a writer."""
        mark = self._held.mark
        return mark if mark and mark.output == output and mark.epoch >= 0 else None

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened, or rows have other columns. Nothing was stored.
        """
        with self._held.lock:
            if marks.holds_epoch(self._held.mark, mark, target=self._target):
                return 0
            schema: Any = self._held.table.schema
            try:
                new = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
            except (KeyError, pa.ArrowException) as refused:
                raise SinkError(
                    f"{self._target} was opened with other columns than epoch {mark.epoch} has ({refused})."
                ) from refused
            table: Any = pa.concat_tables([self._held.table, new])
            self._held.table = _latest(table, self._key) if self._key else table
            if new.num_rows and not self._key:
                self._held.epochs.append((mark.epoch, table.num_rows))
            self._held.mark = mark
            return new.num_rows

    def rewind_refusal(self) -> Refusal | None:
        """Rows that were added are removed; those of an output that updates are replaced as the flow processes its input again."""
        return None

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`.

        Raises:
            FencedError: As in the contract.
            SinkError: The sink was not opened.
        """
        with self._held.lock:
            if marks.holds_epoch(self._held.mark, mark, target=self._target):
                return
            if not self._key:
                self._held.epochs = [e for e in self._held.epochs if e[0] <= upto]
                rows = self._held.epochs[-1][1] if self._held.epochs else 0
                self._held.table = self._held.table.slice(0, rows)
            self._held.mark = mark

    def close(self) -> None:
        """The rows stay."""


def _latest(table: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The last row of each key; NULL is a key like any other, NaN is one, and so is zero whatever its sign."""
    keys = [_one_key(column) for column in table.select(list(key)).columns]
    numbered = pa.table([*keys, pa.array(np.arange(table.num_rows))], names=[*key, "__ps_given"])
    last: Any = numbered.group_by(list(key)).aggregate([("__ps_given", "max")]).column("__ps_given_max")
    kept: Any = pc.sort_indices(last)
    latest: pa.Table = table.take(last.take(kept))
    return latest


def _one_key(column: Any) -> Any:
    """Values that are one key, alike also in their bits, by which Arrow tells them apart."""
    if not pa.types.is_floating(column.type):
        return column
    nan: Any = pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0, column.type)))
