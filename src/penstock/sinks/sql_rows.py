"""Rows of a table that were stored with their positions; see `penstock.sinks.stored_rows`."""

# ruff: noqa: S608  (statements are built from quoted identifiers and whole numbers)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import SinkError
from penstock.sinks import sql_columns
from penstock.sinks.sql_databases import Transaction, quoted
from penstock.sinks.stored_rows import OrderedRows
from penstock.types import Mark


@dataclass(frozen=True)
class TableRows(OrderedRows):
    """The rows of an output in a table.

    Attributes:
        make: Makes a sink of the table, which connects anew.
        output: The output; None: the only one there.
        database: ``sqlite``, ``duckdb`` or ``postgresql``.
    """

    make: Callable[[], Any] = field(repr=False)
    output: str | None
    database: str
    schema: pa.Schema | None
    target: str
    table: str

    def held(self) -> Mark | None:
        """See `StoredRows.held`.

        Raises:
            SinkError: As in the contract; also if rows of several outputs are there.
        """
        sink = self.make()
        try:
            outputs = sink.outputs()
            if len(outputs) > 1:
                raise SinkError(
                    f"{self.target} holds rows of outputs {' and '.join(map(repr, outputs))}, and none of its columns tells them apart: "
                    "give each its own table to read it back."
                )
            held: Mark | None = sink.held(outputs[0]) if outputs and self.output in (None, outputs[0]) else None
            return held
        finally:
            sink.close()

    def numbers(self, statement: str) -> list[tuple[int, ...]]:
        """See `OrderedRows.numbers`."""
        with self._looking() as transaction:
            return transaction.rows(statement)

    def rows(self, columns: Sequence[pa.Field[Any]], rest: str) -> pa.Table:
        """See `OrderedRows.rows`."""
        kinds = [sql_columns.kind_of(column, self.database) for column in columns]
        chosen = ", ".join(
            sql_columns.read_sql(quoted(c.name), kind, self.database) for c, kind in zip(columns, kinds, strict=True)
        )
        with self._looking() as transaction:
            return transaction.table(f"SELECT {chosen} FROM {self.table} {rest}", columns)

    @contextmanager
    def _looking(self) -> Iterator[Transaction]:
        sink = self.make()
        try:
            with sink.looking("read its rows") as transaction:
                if transaction is None:
                    raise SinkError(f"{self.target} is not there: tasks read it where they run, so each host needs the file.")
                yield transaction
        finally:
            sink.close()
