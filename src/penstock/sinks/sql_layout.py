"""The columns of an output's table: what is there, whether rows fit, and columns that are added to a table that exists.

A column is added in the transaction of the first epoch that is stored, before its rows: a flow that stores nothing changes no table. It is looked
for again there, as another flow may have added it since.

Read next: `penstock.sinks.sql_table`.
"""

# ruff: noqa: S608  (statements are built from quoted identifiers; every value is a parameter)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.errors import SinkError
from penstock.sinks import sql_columns
from penstock.sinks.sql_databases import Transaction, quoted
from penstock.types import HIDDEN

SETUP_LOCK: Final = 7_364_779  # an arbitrary number: PostgreSQL's CREATE TABLE IF NOT EXISTS is not safe against itself


def lock_setup(transaction: Transaction, database: str) -> None:
    """Let no other flow make or change tables of PostgreSQL before the transaction ends; the other databases have one writer."""
    if database == "postgresql":
        transaction.rows(f"SELECT pg_advisory_xact_lock({SETUP_LOCK})")


def columns_of(transaction: Transaction, database: str, target: str, *, folded: bool = True) -> dict[str, str]:
    """Name → declared type of a table's columns; empty if there is no table.

    Args:
        transaction: An open transaction.
        database: The system.
        target: The table: in SQLite its name, elsewhere as its mark names it.
        folded: Names are folded where case does not count.
    """
    if database == "sqlite":
        rows = transaction.rows("SELECT name, type FROM pragma_table_info(:name)", name=target)
        return {str(name).lower() if folded else str(name): str(type_) for name, type_ in rows}
    schema, _, table = target.partition(".")
    fold = "lower" if database == "duckdb" else ""
    rows = transaction.rows(
        f"SELECT {fold if folded else ''}(column_name), data_type, numeric_precision, numeric_scale FROM information_schema.columns "
        f"WHERE {fold}(table_schema) = :schema AND {fold}(table_name) = :name ORDER BY ordinal_position",
        schema=schema,
        name=table,
    )
    exact = "numeric({}, {})"
    return {n: exact.format(p, s) if type_ == "numeric" and s is not None else str(type_) for n, type_, p, s in rows}


@dataclass(frozen=True)
class Layout:
    """What an output's rows need of its table.

    Attributes:
        database: The system.
        description: The table, for messages.
        schema: The output's columns.
        key: Those by which rows are replaced.
        evolve: Whether columns may be added.
    """

    database: str
    description: str
    schema: pa.Schema
    key: Sequence[str]
    evolve: bool

    def declared(self) -> dict[str, str]:
        """The columns of a table that is made for the output."""
        return {f.name: sql_columns.column_ddl(f, self.database) for f in self.schema}

    def missing(self, found: Mapping[str, str]) -> dict[str, str]:
        """The columns, with their types, that are to be added to a table that has some; all others fit.

        Raises:
            SinkError: A column is missing and cannot be added, or is of a type that does not hold the output's.
        """
        fold = str if self.database == "postgresql" else str.lower
        declared, out = self.declared(), {}
        for field in self.schema:
            type_ = found.get(fold(field.name))
            if type_ is None:
                self._check_new(field.name, declared[field.name], found)
                out[field.name] = declared[field.name]
            elif not sql_columns.fits(field, type_, self.database):
                adds = "evolve=True adds columns and changes none: " if self.evolve else ""
                raise SinkError(
                    f"{self.description} has column {field.name!r} of type {type_}, which does not hold {field.type} exactly: "
                    f"{adds}make it {declared[field.name]}, or choose another table."
                )
        return out

    def _check_new(self, name: str, ddl: str, found: Mapping[str, str]) -> None:
        """Refuse to add a column."""
        if not self.evolve:
            raise SinkError(
                f"{self.description} has no column {name!r}: let it be added with evolve=True, add it as {ddl}, or choose another table."
            )
        if name in self.key:
            raise SinkError(
                f"{self.description} has no column {name!r}, which is in the key, and evolve=True adds no key: rows that are there would have "
                "none. Choose another table."
            )
        if name.startswith(HIDDEN):
            raise SinkError(
                f"{self.description} has rows without positions, and evolve=True adds none: leave out positions=True, or choose another table."
            )
        if alike := next((n for n in found if n.lower() == name.lower()), None):
            raise SinkError(
                f"{self.description} has column {alike!r}, and PostgreSQL would keep {name!r} beside it, which differs in case only: "
                "rename the column of the output, or that of the table."
            )

    def add(self, transaction: Transaction, table: str, found: Mapping[str, str]) -> None:
        """Add what is missing to a table (quoted name) that has some columns; rows that are there have null in it.

        Raises:
            SinkError: As `missing`: the table has changed since it was asked.
        """
        for name, ddl in self.missing(found).items():
            transaction.run(f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {ddl}")


__all__ = ["Layout", "columns_of", "lock_setup"]
