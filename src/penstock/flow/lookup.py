"""Columns of a table beside each row: `Stream.lookup`.

The table is a part of the declaration: a flow with other rows in it is a changed flow, and is treated as one with another condition in `where` is.
Each row has one row of the table or none, so a row stays at the position of its record.

Read next: `penstock.flow.tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow.steps import Beside, Sql, StatelessStep
from penstock.flow.tables import Refresh, Table, check_types, read_table, refreshed
from penstock.sql_text.given import as_name, flat, known_column
from penstock.types import Duration, duration_us


@dataclass(frozen=True)
class Lookup(StatelessStep):
    """Rows with the columns of a table's row of the same key."""

    beside: Beside
    refresh: Refresh | None = None
    kind = "lookup"

    def sql(self, before: pa.Schema) -> Sql:
        return Sql(beside=self.beside)

    def output_schema(self, before: pa.Schema) -> pa.Schema:
        added = (pa.field(new, self.beside.table.rows.schema.field(old).type) for old, new in self.beside.columns)
        return pa.schema([*before, *added])

    def describe(self, column: str | None = None) -> str:
        return f"lookup({', '.join(self.beside.on)})"

    def identity(self) -> str:
        table = self.beside.table
        how = "inner" if self.beside.inner else "left"
        rows = f"of {table.rows.schema.remove_metadata()}" if self.refresh else table.fingerprint
        return f"Lookup {how} {self.beside.on} {table.keys} {self.beside.columns} {rows}"

    def tables(self) -> Mapping[str, str]:
        if self.refresh:  # the run knows which rows it has met
            return {}
        table = self.beside.table
        return {self.describe(): f"{table.rows.num_rows:,} rows, {table.fingerprint}"}

    def with_table(self, table: Table) -> Lookup:
        return replace(self, beside=replace(self.beside, table=table))

    def user_functions(self) -> Iterable[Any]:
        return ()


def looked_up(before: pa.Schema, table: Any, on: Any, how: str, refresh: Duration | None = None) -> Lookup:
    """The step of `penstock.flow.stream.Stream.lookup`, see there."""
    if how not in ("left", "inner"):
        raise DeclarationError(f"lookup(how={how!r}) is not known; use 'left' or 'inner'.")
    pairs = [(_name(a), _name(b)) for a, b in on.items()] if isinstance(on, Mapping) else [(_name(n),) * 2 for n in flat([on])]
    if not pairs:
        raise DeclarationError(
            "lookup needs the columns to look up by: on='column', on=['a', 'b'] or on={'of the stream': 'of the table'}."
        )
    mine = tuple(known_column(a, before.names, "lookup") for a, _ in pairs)
    found = read_table(table, tuple(b for _, b in pairs))
    for a, b in zip(mine, found.keys, strict=True):
        check_types(found.rows.schema.field(b), before.field(a))
    columns = [(n, n) for n in found.rows.schema.names if n not in found.keys]
    again = None if refresh is None else refreshed(table, duration_us(refresh, "lookup's refresh"), found)
    return Lookup(Beside(found, mine, tuple(_renamed(columns, before.names)), how == "inner"), again)


def _name(given: Any) -> str:
    return as_name(given, "A column in lookup's on")


def _renamed(columns: Sequence[tuple[str, str]], there: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Columns of the table with the names that they get beside those of the stream: as in a join."""
    taken = {n.lower() for n in there}
    own = {n.lower() for n, _ in columns}
    for old, _ in columns:
        new = f"{old}_right" if old.lower() in taken else old
        if new != old and new.lower() in taken | own:
            raise DeclarationError(f"lookup would give two columns named {new!r}; rename one of them before.")
        yield old, new


__all__ = ["Lookup", "looked_up"]
