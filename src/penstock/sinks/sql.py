"""Rows in a table of SQLite, DuckDB or PostgreSQL, exactly once: the mark lives in the same database, in ``penstock_marks``.

Each epoch is one transaction (`penstock.sinks.sql_table`). Into PostgreSQL the tasks store the rows of large epochs where they are, each
attempt into a table of its own, `penstock_part_…`, and the transaction moves them.

What survives: nulls, any text and binary, infinities, times in µs. Lists, structs and maps become JSON: ``jsonb`` in PostgreSQL,
text elsewhere; times and decimals inside them are written as SQLite's columns have them, binary as base64, NaN and infinities as
null. Not kept: NaN in SQLite becomes NULL (it has no NaN), but in a key column of an upsert the text ``NaN``, so that it stays a key
of its own as elsewhere; PostgreSQL refuses text with the character NUL and times before 4713 BC; SQLite takes times of years 0 to
9999 only. In SQLite a timestamp is text ``YYYY-MM-DD HH:MM:SS.ffffff`` in UTC, always that wide, so text order is time order; a
decimal is exact text. In PostgreSQL and DuckDB a timestamp with a zone is TIMESTAMPTZ, without one TIMESTAMP.

Read next: `penstock.sinks.sql_table`, `penstock.sinks.parts`.
"""

# ruff: noqa: S608  (statements are built from quoted identifiers; every value is a parameter)

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import SinkError
from penstock.sinks import sql_columns
from penstock.sinks.base import Sink
from penstock.sinks.parts import Part, PartWriter, decoded
from penstock.sinks.sql_databases import Transaction, database_of, imported, libpq_url, quoted, values_refused
from penstock.sinks.sql_table import ROW, Mode, SqlSink, listed, numbered, refused
from penstock.sql_text.given import as_name, is_column
from penstock.sql_text.schema import as_text
from penstock.types import Mark

if TYPE_CHECKING:
    from penstock.sql_text.given import Expression


def sql(
    url: str, table: str, mode: Mode = "append", key: Expression | Sequence[Expression] | None = None, *, evolve: bool = False
) -> Sink:
    """Keep an output in a database table, exactly once.

    The table is created if it is missing; a table that exists must have the output's columns with types that hold them
    exactly, and may have more. With ``evolve=True`` columns that it lacks are added to it, in the transaction of the first epoch that is
    stored; rows that are there have null in them. Two outputs, or two flows with outputs of different names, may append to one table, or upsert by one key;
    otherwise one would delete rows of the other, and is refused.

    Args:
        url: ``sqlite:///file.db``, ``duckdb:///file.duckdb``, or ``postgresql://user:password@host/database``.
        table: The table; ``schema.table`` in PostgreSQL and DuckDB.
        mode: ``append`` adds each epoch's rows. ``upsert`` replaces rows of the same key, the last row of an epoch wins, and
            NULL is a key like any other. ``replace`` keeps the rows of the last epoch that had any.
        key: The key columns of ``upsert``, by name (in any case of letters, as in Spark) or as Spark Columns. A table that the sink creates gets an index on them; give your own table one.
        evolve: Add columns that the table lacks; none is changed or dropped, and no key is added.

    Returns:
        A durable sink. It connects when the flow starts.

    Raises:
        DeclarationError: URL, table, mode or key cannot work. Nothing was changed.

    Cost:
        One transaction per epoch, also for an empty one. While it runs, other writers of a SQLite or DuckDB file wait. A DuckDB
        file is open only during that transaction, and a reader in another process that holds it open delays the flow.

    Example:
        >>> sql("sqlite:///totals.db", "totals", mode="upsert", key=["customer"])
        sql('sqlite:///totals.db', 'totals', mode='upsert')
    """
    kind = PostgresSink if database_of(as_text(url, "The URL of sql")).name == "postgresql" else SqlSink
    one = isinstance(key, str) or is_column(key) or not isinstance(key, Iterable)
    given: Iterable[Any] = () if key is None else [key] if one else key  # type: ignore[assignment]  # then it is iterable
    return kind(url, table, mode, [as_name(k, "A key column of sql") for k in given], evolve=evolve)


class PostgresSink(SqlSink):
    """`SqlSink` in PostgreSQL, where tasks can store rows, too; see `Staging`."""

    def stager(self, mark: Mark) -> PartWriter:
        """See `Staging.stager`: a task's rows become a table of their own, or, if they are few, its token."""
        schema = self._opened(mark)
        owner = {"target": self._target, "output": mark.output, "flow": mark.flow}
        store = PartTables(libpq_url(self._url), self._description, schema, self._mode == "upsert", owner)
        return PartWriter(store, f"{self._prefix(mark.output)}{mark.run}-{mark.epoch}", schema, mark.epoch)

    def commit(self, tokens: Iterable[bytes], mark: Mark) -> int:
        """See `Staging.commit`; raises as `write`."""
        self._opened(mark)
        return self._store(_pieces(tokens), mark)

    def _append(self, transaction: Transaction, table: str, piece: Any, kinds: Sequence[str], first: int | None = None) -> int:
        if not isinstance(piece, Part):
            return super()._append(transaction, table, piece, kinds, first)
        assert self._schema is not None
        into = listed(self._schema.names)
        columns = ", ".join(
            sql_columns.moved_sql(quoted(name), kind, self._types[name])
            for name, kind in zip(self._schema.names, kinds, strict=True)
        )
        if first is not None:
            columns, into = f"{columns}, {ROW} + {first}", f"{into}, {ROW}"
        moved = transaction.run(f"INSERT INTO {table} ({into}) SELECT {columns} FROM {quoted(piece.name)}")
        if moved != piece.rows:
            raise SinkError(
                f"{self._description} has lost rows that a task had stored for it ({moved} of {piece.rows} are left), as when the server "
                "crashes: start again."
            )
        return moved

    def _prefix(self, output: str) -> str:
        digest = hashlib.blake2b(repr((self._target, output)).encode(), digest_size=6).hexdigest()
        return f"penstock_part_{digest}-"

    def _sweep(self, transaction: Transaction, output: str) -> None:
        # Tables that others look at, such as a backup, are left for the next time: to drop one would wait for them.
        found = transaction.rows(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(current_schema()) AND relkind = 'r' AND relname LIKE :mine "
            "AND NOT EXISTS (SELECT FROM pg_locks WHERE relation = pg_class.oid AND pid <> pg_backend_pid())",
            mine=self._prefix(output).replace("_", r"\_") + "%",
        )
        if found:
            transaction.run(f"DROP TABLE {listed(name for (name,) in found)}")


def _pieces(tokens: Iterable[bytes]) -> Iterator[Part | pa.RecordBatch]:
    for piece in map(decoded, tokens):
        if isinstance(piece, Part):
            yield piece
        else:
            yield from piece.combine_chunks().to_batches()


@dataclass(frozen=True)
class PartTables:
    """Parts as tables beside the output's, filled by ADBC's binary COPY; see `penstock.sinks.parts.PartStore`.

    A part's table is made and filled in one transaction, so a task that fails leaves none. It is not logged: after a crash of the server it
    is empty, and the commit refuses it.

    Attributes:
        url: The database, as libpq takes it.
        target: What will hold the rows, for messages.
        schema: The output's columns.
        number: Whether the rows are numbered.
        owner: Columns of the mark, with their values.
    """

    url: str = field(repr=False)
    target: str
    schema: pa.Schema
    number: bool
    owner: dict[str, str]

    @contextmanager
    def reported(self, doing: str) -> Iterator[None]:
        """See `PartStore.reported`."""
        try:
            yield
        except _adbc().Error as broken:
            said = dict(broken.details).get(b"PG_DIAG_MESSAGE_PRIMARY", str(broken).encode())
            raise refused(self.target, doing, said.decode(errors="replace")) from broken

    def reachable(self) -> bool:
        """Whether the mark is there: the same URL may name another server on another host."""
        this = " AND ".join(f"{column} = ${n}" for n, column in enumerate(self.owner, 1))
        adbc = _adbc()
        try:
            with adbc.connect(self.url) as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM penstock_marks WHERE {this}", tuple(self.owner.values()))
                return cursor.fetchone() is not None
        except adbc.Error:
            return False

    def write(self, name: str, groups: Iterator[pa.Table]) -> Part:
        """Make a table of the rows."""
        kinds = {column.name: sql_columns.kind_of(column, "postgresql") for column in self.schema}
        ddl = [f"{quoted(column.name)} {sql_columns.part_ddl(column)}" for column in self.schema]
        rows = 0
        with _adbc().connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {quoted(name)}")  # of an epoch that failed, and is run again by the same run
            number = [f"{ROW} BIGINT"] * self.number
            cursor.execute(
                f"CREATE UNLOGGED TABLE {quoted(name)} ({', '.join([*ddl, *number])}) WITH (autovacuum_enabled = off)"
            )
            for batch in (b for group in groups for b in group.combine_chunks().to_batches()):  # each is a COPY
                with values_refused():
                    values = [sql_columns.binary_values(c, k) for c, k in zip(batch.columns, kinds.values(), strict=True)]
                ready = pa.RecordBatch.from_arrays(values, names=[*kinds])
                cursor.adbc_ingest(name, numbered(ready, rows) if self.number else ready, mode="append")
                rows += batch.num_rows
            connection.commit()
        return Part(name, rows)


def _adbc() -> Any:
    return imported("adbc_driver_postgresql.dbapi", "adbc-driver-postgresql")
