"""Rows that a sink stored with their positions, in their order: what `penstock.read_back` reads.

A table and a folder are asked in the same SQL; a folder's files are a table for DuckDB.

Read next: `penstock.sources.read_back`, `penstock.sinks.sql_rows`, `penstock.sinks.parquet_rows`.
"""

# ruff: noqa: S608  (statements are built from quoted identifiers and whole numbers)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import SinkError
from penstock.sinks.sql_databases import quoted
from penstock.types import MAX_TIME, ORDER, TIME


class OrderedRows:
    """The part of `penstock.sources.read_back.StoredRows` that is the same for all. A subclass runs the SQL, and has the mark.

    Attributes:
        target: What holds the rows, for messages.
        schema: All columns of the rows.
        table: What the rows are called in SQL.
    """

    target: str
    schema: pa.Schema | None
    table: str

    def numbers(self, statement: str) -> list[tuple[int, ...]]:
        """The rows of a query that gives whole numbers."""
        raise NotImplementedError

    def rows(self, columns: Sequence[pa.Field[Any]], rest: str) -> pa.Table:
        """Some columns of the rows. `rest`: what follows the table in the query."""
        raise NotImplementedError

    def columns(self) -> pa.Schema | None:
        """See `StoredRows.columns`."""
        return self.schema

    def count(self, below: int) -> int:
        """See `StoredRows.count`."""
        return self.numbers(f"SELECT COUNT(*) FROM {self.table} WHERE {self._before(below)}")[0][0]

    def cuts(self, first: int, last: int, below: int, every: int) -> list[tuple[int, ...]]:
        """See `StoredRows.cuts`.

        Cost: the database orders the positions of all rows, unless an index has done so.
        """
        order = _listed(self.order)
        return self.numbers(
            f"SELECT {order} FROM (SELECT {order}, ROW_NUMBER() OVER (ORDER BY {order}) - 1 AS nth FROM {self.table} WHERE {self._before(below)}) "
            f"AS numbered WHERE nth >= {first} AND nth < {last} AND (nth - {first}) % {every} = 0 ORDER BY {order}"
        )

    def page(self, schema: pa.Schema, cut: tuple[int, ...], rows: int, below: int) -> pa.Table:
        """See `StoredRows.page`.

        Raises:
            SinkError: As in the contract; also if there are fewer rows, or two of one position.
        """
        order, given = _listed(self.order), ", ".join(map(str, cut))
        # The first condition is for engines that pass over files and pages by the range of one column only.
        after = f"{quoted(self.order[0])} >= {cut[0]} AND ({order}) >= ({given})"
        fields = [*schema, *(pa.field(name, pa.int64()) for name in self.order)]
        found = self.rows(fields, f"WHERE {after} AND {self._before(below)} ORDER BY {order} LIMIT {rows}")
        if found.num_rows != rows:
            raise SinkError(
                f"{self.target} has lost rows while they were read ({found.num_rows} of {rows} are left): start again."
            )
        positions = np.stack([found.column(name).to_numpy() for name in self.order], axis=1)
        again = np.flatnonzero((positions[1:] == positions[:-1]).all(axis=1))
        if len(again):
            shown = ", ".join(f"{name} {value}" for name, value in zip(self.order, positions[again[0]].tolist(), strict=True))
            raise SinkError(
                f"{self.target} holds two rows of one position ({shown}), as when its flow went back to a snapshot and kept its output: read it back "
                "after those of the first time are deleted."
            )
        return found

    @property
    def order(self) -> list[str]:
        """The columns that order the rows."""
        return [name for name in ORDER if self.schema is None or name in self.schema.names]

    def _before(self, below: int) -> str:
        return f"{quoted(TIME)} < {below}" if self.order[0] == TIME and below < MAX_TIME else "1 = 1"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
