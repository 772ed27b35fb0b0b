"""An output in a table: the mark in ``penstock_marks``, the checks of the table, and its rows by mode.

Each epoch is one transaction. It first moves the mark forward with a conditional UPDATE; only the writer whose run owns the mark, and whose epoch
is new, changes a row there and goes on to store rows.

Read next: `penstock.sinks.sql`, `penstock.sinks.sql_databases`, `penstock.sinks.sql_columns`.
"""

# ruff: noqa: S608  (statements are built from quoted identifiers; every value is a parameter)

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from penstock.errors import DeclarationError, SinkError
from penstock.sinks import marks, sql_columns, sql_marks
from penstock.sinks.base import Sink
from penstock.sinks.sql_databases import Database, Transaction, database_of, quoted
from penstock.sinks.sql_layout import Layout, columns_of, lock_setup
from penstock.sinks.sql_rows import TableRows
from penstock.sql_text.given import spelled_in
from penstock.sql_text.schema import as_text
from penstock.types import ORDER, PARTITION, Mark, Refusal

Mode = Literal["append", "upsert", "replace"]

_STAGE: Final = "penstock_stage"
ROW: Final = "__ps_row"


class SqlSink:
    """The sink that `sql` makes. Not thread-safe; several sinks may share a database, in one process or many."""

    durable = True

    def __init__(
        self, url: str, table: str, mode: Mode = "append", key: str | Sequence[str] | None = None, *, evolve: bool = False
    ) -> None:
        as_text(table, "The table of sql")
        self._url = as_text(url, "The URL of sql")
        self._database: Database = database_of(self._url)
        self._key = (key,) if isinstance(key, str) else tuple(as_text(k, "A key column of sql") for k in key or ())
        self._mode, self._evolve = mode, evolve
        self._parts = _table_parts(table, self._database.name)
        self._table = ".".join(quoted(part) for part in self._parts)
        self._shown_table = table
        self._description = f"Table {table!r} in {self._database.place}"
        shown_url = self._database.place if self._database.name == "postgresql" else url  # without the password
        self._shown = f"sql({shown_url!r}, {table!r}, mode={mode!r})"
        self._schema: pa.Schema | None = None
        self._types: dict[str, str] = {}
        self._target = ""
        self._grows: Layout | None = None
        self.declared: pa.Schema | None = None
        if mode not in get_args(Mode):
            raise DeclarationError(f"{self._description} has mode {mode!r}: write 'append', 'upsert' or 'replace'.")
        if self._key and mode != "upsert":
            raise DeclarationError(f'{self._description} has a key but mode {mode!r}, which ignores it: add mode="upsert".')

    def __repr__(self) -> str:
        return self._shown

    def __copy__(self) -> SqlSink:  # with a connection of its own
        return type(self)(self._url, self._shown_table, self._mode, self._key or None, evolve=self._evolve)

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """See `Sink.validate`. Besides, an updating output must be upserted by exactly its own key.

        Raises:
            DeclarationError: As in the contract. Nothing was changed.
        """
        if self._mode == "append":
            marks.refuse_updates(updates, target=self._description, key=key)
        if self._mode == "replace" and updates:
            raise DeclarationError(
                f"{self._description} would keep only the keys that changed in the last epoch, because the output is a running "
                'aggregate: write mode="upsert" with its key.'
            )
        if self._mode == "upsert" and not self._key:
            shown = ", ".join(repr(name) for name in key) or "..."
            raise DeclarationError(f"{self._description} has mode='upsert' but no key: write key=[{shown}].")
        given = tuple(dict.fromkeys(spelled_in(name, schema.names) or name for name in self._key))
        if updates and key and set(key) != set(given):
            raise DeclarationError(
                f"{self._description} has key {list(self._key)}, but the output's rows are one per {list(key)}: write key={list(key)}."
            )
        if self._mode != "append" and PARTITION in schema.names:
            raise DeclarationError(
                f"{self._description} has mode {self._mode!r}, which takes rows away, and positions=True is for rows that stay: leave out one of them."
            )
        for name in given:
            if name not in schema.names:
                raise DeclarationError(f"{self._description} has key column {name!r}, but the output has only {schema.names}.")
            if pa.types.is_nested(schema.field(name).type):
                raise DeclarationError(
                    f"{self._description} has key column {name!r} of type {schema.field(name).type}: make the key a plain value."
                )
        for index, name in enumerate(schema.names):
            if name in schema.names[:index]:
                raise DeclarationError(f"Column {name!r} is twice in the output for {self._description}: rename one.")
            if self._database.name == "postgresql" and len(name.encode()) > 63:
                raise DeclarationError(f"Column {name!r} is longer than the 63 bytes that PostgreSQL keeps: rename it.")
            sql_columns.kind_of(schema.field(index), self._database.name)
        self.declared, self._key = schema, given

    @property
    def identity(self) -> tuple[str, ...]:
        """Alike for two spellings of one table, as far as the declaration tells."""
        return (*self._database.identity, self._folded())

    @property
    def kept(self) -> str:
        """How the rows are kept, so that other outputs of the table know."""
        return self._mode if self._mode != "upsert" else f"upsert by {', '.join(sorted(self._key))}"

    def sharing_refusal(self, other: Sink) -> Refusal | None:
        """See `Sharing.sharing_refusal`."""
        if not isinstance(other, SqlSink) or self.identity != other.identity:
            return None
        refused = marks.table_refusal(self.kept, other.kept)
        return refused and Refusal(f"{self._description} cannot keep two outputs because {refused.sentence}")

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """See `Sink.open`: mark and table are checked, and created if missing, in one transaction.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: As in the contract.
            SinkError: The database is not reachable or refuses, a column of the table is missing or of another type, or the
                table is gone while its mark says that it held rows. Nothing was changed.
            DeclarationError: A column has a type that the database cannot store. Nothing was changed.
        """
        with self._reported(f"open it for output {claim.output!r}"), self._database.transaction() as transaction:
            lock_setup(transaction, self._database.name)
            self._target = self._canonical(transaction)
            sql_marks.create(transaction, self._database.name)
            held = self._locked_mark(transaction, claim.output)
            remedy = f"delete the table and its row in penstock_marks (target {self._target!r}, output {claim.output!r})"
            marks.refuse_claim(held, claim, target=self._description, remedy=remedy)
            self._sweep(transaction, claim.output)
            self._refuse_others(transaction, claim)
            self._prepare(transaction, schema, held)
            if held is None:
                transaction.run(
                    "INSERT INTO penstock_marks (target, output, flow, run, epoch, frontier, positions, trail, kept) "
                    "VALUES (:target, :output, :flow, :run, :epoch, :frontier, :positions, :trail, :kept)",
                    kept=self.kept,
                    **sql_marks.values(Mark(claim.flow, claim.output, claim.run), self._target),
                )
            else:
                transaction.run(
                    f"UPDATE penstock_marks SET flow = :flow, run = :run, kept = :kept WHERE {sql_marks.THIS}",
                    flow=claim.flow,
                    run=claim.run,
                    kept=self.kept,
                    target=self._target,
                    output=claim.output,
                )
        self._schema = schema
        return held if held is not None and held.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`; waits for no writer of PostgreSQL, and for one of SQLite or DuckDB as long as `open` would.

        Raises:
            SinkError: The database is not reachable, or the table is gone while its mark says that it held rows.
        """
        with self.looking(f"read the mark of output {output!r}") as transaction:
            if transaction is None:
                return None
            target = self._canonical(transaction)
            held = sql_marks.read(transaction, self._database.name, target, output)
            if held is None or held.epoch < 0:
                return None
            if not self._columns(transaction, target):
                raise self._gone(held, target)
            return held

    @contextmanager
    def looking(self, doing: str) -> Iterator[Transaction | None]:
        """Queries that change nothing; None: there is no such database."""
        with self._reported(doing), self._database.snapshot() as transaction:
            yield transaction

    def outputs(self) -> list[str]:
        """Names of the outputs that have stored an epoch in the table.

        Raises:
            SinkError: As `held`.
        """
        with self.looking("read its marks") as transaction:
            return (
                [] if transaction is None else sql_marks.outputs(transaction, self._database.name, self._canonical(transaction))
            )

    def stored_rows(self, output: str | None) -> TableRows:
        """See `penstock.sources.read_back.Readable`.

        Raises:
            DeclarationError: The sink does not append, or a column is nested.
            SinkError: As `held`.
        """
        if self._mode != "append":
            raise DeclarationError(
                f"{self._description} has mode {self._mode!r}, so rows go; only what is appended can be read back."
            )
        columns = self._stored_columns()
        for column in columns or ():
            if sql_columns.kind_of(column, self._database.name) == "json":
                raise DeclarationError(
                    f"{self._description} keeps column {column.name!r} as JSON, which does not tell its type: read it back from parquet(...), or "
                    "leave it out of what is stored."
                )
        make = partial(type(self), self._url, self._shown_table)
        return TableRows(make, output, self._database.name, columns, self._description, self._table)

    def _stored_columns(self) -> pa.Schema | None:
        """The columns of the rows: as they were declared, or as the table has them; None: neither is known."""
        if self.declared is not None and not any(pa.types.is_null(column.type) for column in self.declared):
            return self.declared
        with self.looking("read its columns") as transaction:
            found = {} if transaction is None else self._columns(transaction, self._canonical(transaction), folded=False)
        types = {name: sql_columns.arrow_type(type_, self._database.name) for name, type_ in found.items()}
        return pa.schema([*types.items()]) if types else self.declared

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`.

        If the connection breaks while the transaction is being committed, a SinkError is raised although the rows may be
        stored; the mark then says so when the epoch is written again.

        Raises:
            FencedError: As in the contract.
            SinkError: As in the contract; also if an exception of `batches` is one of the database's.
        """
        return self._store(self._ready(batches, self._opened(mark)), mark)

    def _opened(self, mark: Mark) -> pa.Schema:
        if self._schema is None:
            raise SinkError(f"{self._description} was not opened before epoch {mark.epoch} was written: call open() first.")
        return self._schema

    def _store(self, pieces: Iterable[Any], mark: Mark) -> int:
        """Store an epoch's rows, which come in pieces that `_append` knows, and its mark."""
        schema = self._opened(mark)
        with self._reported(f"store epoch {mark.epoch}"), self._database.transaction() as transaction:
            if not self._moved(transaction, mark):
                if marks.holds_epoch(self._locked_mark(transaction, mark.output), mark, target=self._description):
                    self._sweep(transaction, mark.output)
                    return 0
                raise SinkError(f"{self._description} changed its mark while epoch {mark.epoch} was written: write it again.")
            if self._grows is not None:
                lock_setup(transaction, self._database.name)
                self._grows.add(transaction, self._table, self._columns(transaction, self._target))
            stored = self._store_rows(transaction, pieces, schema)
            self._sweep(transaction, mark.output)
        self._grows = None
        return stored

    def _sweep(self, transaction: Transaction, output: str) -> None:
        """Remove what was staged of the output; called in transactions of the run that owns the mark."""

    def rewind_refusal(self) -> Refusal | None:
        """Rows of `upsert` and `replace` are replaced in time; a row that was appended does not say which epoch it is of."""
        why = f'{self._description} cannot take back rows, because with mode="append" a row does not say which epoch it is of'
        return Refusal(why) if self._mode == "append" else None

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`: only the mark moves.

        Raises:
            FencedError: As in the contract.
            SinkError: As in the contract.
        """
        if self._schema is None:
            raise SinkError(f"{self._description} was not opened before it went back to epoch {upto}: call open() first.")
        with self._reported(f"go back to epoch {upto}"), self._database.transaction() as transaction:
            if not self._moved(transaction, mark):
                marks.holds_epoch(self._locked_mark(transaction, mark.output), mark, target=self._description)

    def close(self) -> None:
        """Release the connection; table and mark stay."""
        self._database.close()
        self._schema = None

    # -- the mark

    def _canonical(self, transaction: Transaction) -> str:
        """One name for one table, however the declaration spells it."""
        if self._database.name != "postgresql":
            return self._folded()
        schema = self._parts[0] if len(self._parts) > 1 else str(transaction.rows("SELECT current_schema()")[0][0])
        return f"{schema}.{self._parts[-1]}"

    def _folded(self) -> str:
        """As `_canonical`, as far as the declaration tells: in PostgreSQL case counts, and the user's schema is not known."""
        if self._database.name == "sqlite":
            return self._parts[0].lower()
        return ".".join(("main", *self._parts)[-2:]).lower() if self._database.name == "duckdb" else ".".join(self._parts)

    def _moved(self, transaction: Transaction, mark: Mark) -> bool:
        """Move the mark forward, if this run owns it and the epoch is new."""
        changed = transaction.run(
            "UPDATE penstock_marks SET epoch = :epoch, frontier = :frontier, positions = :positions, trail = :trail "
            f"WHERE {sql_marks.THIS} AND flow = :flow AND run = :run AND epoch < :epoch",
            **sql_marks.values(mark, self._target),
        )
        return changed > 0

    def _locked_mark(self, transaction: Transaction, output: str) -> Mark | None:
        """The mark, which nobody changes before the transaction ends."""
        # Changes nothing, but waits for a writer that is committing, so that the mark read next is the last one.
        transaction.run(f"UPDATE penstock_marks SET run = run WHERE {sql_marks.THIS}", target=self._target, output=output)
        return sql_marks.read(transaction, self._database.name, self._target, output)

    def _gone(self, held: Mark, target: str) -> SinkError:
        return SinkError(
            f"{self._description} is gone, but its mark says that it held output {held.output!r} up to epoch {held.epoch}: "
            f"restore it, or delete its row in penstock_marks (target {target!r}) and start afresh."
        )

    def _refuse_others(self, transaction: Transaction, claim: Mark) -> None:
        """Refuse to share the table with an output that would lose rows, or take some away."""
        others = transaction.rows(
            "SELECT output, flow, run, epoch, kept FROM penstock_marks WHERE target = :target AND output <> :output",
            target=self._target,
            output=claim.output,
        )
        for output, flow, run, epoch, kept in others:
            refused = marks.table_refusal(self.kept, kept)
            if refused and (epoch >= 0 or (flow, run) == (claim.flow, claim.run)):
                raise SinkError(
                    f"{self._description} holds output {output!r} too, and cannot keep {claim.output!r} beside it because {refused.sentence}: "
                    f"give one of them another table, or, if {output!r} is no more, delete its row in penstock_marks (target {self._target!r})."
                )

    # -- the table

    def _prepare(self, transaction: Transaction, schema: pa.Schema, held: Mark | None) -> None:
        """Check the table's columns, or create it."""
        name, layout = self._database.name, Layout(self._database.name, self._description, schema, self._key, self._evolve)
        declared, found = layout.declared(), self._columns(transaction, self._target)
        if not found:
            self._types = declared
            if held is not None and held.epoch >= 0:
                raise self._gone(held, self._target)
            transaction.run(f"CREATE TABLE {self._table} ({', '.join(f'{quoted(n)} {ddl}' for n, ddl in declared.items())})")
            # By the key of an upsert, or by the order in which rows are read back.
            indexed = self._key or (tuple(n for n in ORDER if n in declared) if PARTITION in declared else ())
            if indexed and name != "duckdb":  # DuckDB scans faster than its index grows
                digest = hashlib.blake2b(repr((self._target, indexed)).encode(), digest_size=6).hexdigest()
                transaction.run(f"CREATE INDEX {quoted(f'penstock_key_{digest}')} ON {self._table} ({listed(indexed)})")
            return
        missing = layout.missing(found)
        self._types, self._grows = {**found, **missing}, layout if missing else None

    def _columns(self, transaction: Transaction, target: str, *, folded: bool = True) -> dict[str, str]:
        name = self._database.name
        return columns_of(transaction, name, self._parts[-1] if name == "sqlite" else target, folded=folded)

    # -- the rows

    def _ready(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                missing = [name for name in schema.names if name not in batch.schema.names]
                if missing:
                    raise SinkError(
                        f"{self._description} was given rows without column {missing[0]!r}, which it was opened with."
                    )
                yield batch.select(schema.names)

    def _store_rows(self, transaction: Transaction, pieces: Iterable[Any], schema: pa.Schema) -> int:
        kinds = [sql_columns.kind_of(field, self._database.name) for field in schema]
        if self._database.name == "sqlite":  # where NaN becomes NULL, which is another key
            kinds = [
                sql_columns.FLOAT_KEY if n in self._key and k == "float" else k
                for n, k in zip(schema.names, kinds, strict=True)
            ]
        if self._mode == "upsert":
            return self._upsert(transaction, pieces, kinds, schema.names)
        stored = 0
        for piece in pieces:
            if not stored and self._mode == "replace":
                transaction.run(f"DELETE FROM {self._table}")
            stored += self._append(transaction, self._table, piece, kinds)
        return stored

    def _append(self, transaction: Transaction, table: str, piece: Any, kinds: Sequence[str], first: int | None = None) -> int:
        """Append a piece of the rows to a table, numbered from `first` on if that is given; gives their number."""
        if first is None:
            transaction.load(table, piece, kinds)
        else:
            transaction.load(table, numbered(piece, first), [*kinds, "int"])
        return int(piece.num_rows)

    def _upsert(self, transaction: Transaction, pieces: Iterable[Any], kinds: list[str], names: list[str]) -> int:
        """Stage the rows, delete the keys they have, insert the last row of each key."""
        columns, seen = listed(names), 0
        for piece in pieces:
            if not seen:
                transaction.run(
                    f"CREATE TEMPORARY TABLE {_STAGE} AS SELECT {columns}, CAST(0 AS BIGINT) AS {ROW} FROM {self._table} WHERE 1 = 0"
                )
            seen += self._append(transaction, _STAGE, piece, kinds, seen)
        if not seen:
            return 0
        if self._database.name == "postgresql":
            transaction.run(f"ANALYZE {_STAGE}")  # without it the planner thinks that the stage is tiny
        self._delete_staged(transaction)
        stored = transaction.run(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM (SELECT {columns}, {ROW}, ROW_NUMBER() OVER "
            f"(PARTITION BY {listed(self._key)} ORDER BY {ROW} DESC) AS __ps_nth FROM {_STAGE}) AS latest "
            f"WHERE __ps_nth = 1 ORDER BY {ROW}"
        )
        transaction.run(f"DROP TABLE {_STAGE}")
        return stored

    def _delete_staged(self, transaction: Transaction) -> None:
        """Delete the rows whose key is staged, NULL being a key, through an index if there is one."""
        if self._database.name == "sqlite":
            # IS uses an index here; (a, b) IN (...) would use its first column only. CROSS JOIN keeps the stage outside.
            same = " AND ".join(f"held.{quoted(name)} IS staged.{quoted(name)}" for name in self._key)
            transaction.run(
                f"DELETE FROM {self._table} WHERE rowid IN "
                f"(SELECT held.rowid FROM {_STAGE} AS staged CROSS JOIN {self._table} AS held WHERE {same})"
            )
            return
        # `=` finds no NULL, and IS NOT DISTINCT FROM uses no index: so one DELETE per combination of NULLs that occurs.
        tests = ", ".join(f"{quoted(name)} IS NULL" for name in self._key)
        for nulls in transaction.rows(f"SELECT DISTINCT {tests} FROM {_STAGE}"):
            given = listed([name for name, null in zip(self._key, nulls, strict=True) if not null])
            absent = (
                " AND ".join(f"{quoted(name)} IS NULL" for name, null in zip(self._key, nulls, strict=True) if null) or "1 = 1"
            )
            present = f" AND ({given}) IN (SELECT {given} FROM {_STAGE} WHERE {absent})" if given else ""
            transaction.run(f"DELETE FROM {self._table} WHERE {absent}{present}")

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        """What the database raises, as a SinkError of one sentence."""
        try:
            yield
        except Exception as broken:
            if not isinstance(broken, self._database.errors):
                raise
            raise refused(
                self._description, doing, str(getattr(broken, "orig", None) or broken).strip() or type(broken).__name__
            ) from broken


def refused(description: str, doing: str, said: str) -> SinkError:
    """The error that tells what a database said."""
    return SinkError(f"{description} refused to {doing} ({said.splitlines()[0]}): correct that and start again.")


def numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The rows with their numbers in a column more."""
    order: Any = pa.array(np.arange(first, first + batch.num_rows))
    return pa.RecordBatch.from_arrays([*batch.columns, order], names=[*batch.schema.names, ROW])


def listed(names: Iterable[str]) -> str:
    """Names of columns, quoted."""
    return ", ".join(quoted(name) for name in names)


def _table_parts(table: str, database: str) -> tuple[str, ...]:
    parts = tuple(table.split("."))
    if not all(parts) or len(parts) > (1 if database == "sqlite" else 2):
        raise DeclarationError(
            f"{table!r} cannot name a table in {database}: write {'a name without a dot' if database == 'sqlite' else 'table or schema.table'}."
        )
    if database == "postgresql" and any(len(part.encode()) > 63 for part in parts):
        raise DeclarationError(f"Table name {table!r} is longer than the 63 bytes that PostgreSQL keeps: choose a shorter one.")
    return parts
