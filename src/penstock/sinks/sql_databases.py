"""The three databases behind `penstock.sinks.sql`: write transactions, bulk loading, and nothing about flows.

SQLite and PostgreSQL go through SQLAlchemy; DuckDB through its own package (duckdb-engine 0.17 fails with SQLAlchemy 2.1).
Statements are plain SQL that all three understand. Packages are imported when the first transaction starts, so that
declaring a sink needs none of them.

Invariant: inside `Database.transaction`, no other writer can change the mark row between two statements.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa

from penstock.errors import DeclarationError, MissingToolError, SinkError
from penstock.sinks import sql_columns

BUSY_SECONDS: Final = 60
"""How long a writer waits for another one to finish, in SQLite and DuckDB."""


CONNECT_SECONDS: Final = 10
"""How long a task waits for PostgreSQL to answer."""


class Transaction(Protocol):
    """An open write transaction."""

    def run(self, statement: str, **values: object) -> int:
        """Execute a statement; with `values`, ``:name`` in it is a parameter. Returns the number of rows it changed."""
        ...

    def rows(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        ...

    def table(self, statement: str, columns: Sequence[pa.Field[Any]]) -> pa.Table:
        """The rows of a query, whose columns are as `sql_columns.read_sql` has them, in columns of these types."""
        ...

    def load(self, table: str, batch: pa.RecordBatch, kinds: Sequence[str]) -> None:
        """Append a batch to a table (quoted name), column by column name.

        Raises:
            SinkError: A value does not fit.
        """
        ...


class Database(Protocol):
    """One database, identified by its URL. Connects on the first transaction."""

    name: str
    place: str
    identity: tuple[str, ...]
    """Alike for two URLs of one database, as far as their text tells."""
    errors: tuple[type[Exception], ...]

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that is committed at the end of the block, and rolled back if the block raises."""
        ...

    def snapshot(self) -> AbstractContextManager[Transaction | None]:
        """Queries that see one state of the database and change nothing; None if there is no such database, which is not made."""
        ...

    def close(self) -> None:
        """Release connections; the next transaction connects again."""
        ...


def quoted(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def database_of(url: str) -> Database:
    """The database of a URL; nothing is imported or connected.

    Raises:
        DeclarationError: The URL names no database that the sink knows, or one in memory. Nothing was changed.
    """
    scheme, found, rest = url.partition("://")
    system = scheme.split("+")[0]
    if not found or system not in {"sqlite", "duckdb", "postgresql", "postgres"}:
        raise DeclarationError(
            f"{_without_password(url)!r} is no database that sql() knows: "
            "write sqlite:///file.db, duckdb:///file.duckdb or postgresql://user@host/database."
        )
    if system.startswith("postgres"):
        return _Alchemy("postgresql", f"postgresql+psycopg://{rest}", _without_password(url))
    path = rest.removeprefix("/").partition("?")[0]
    if path in {"", ":memory:"}:
        raise DeclarationError(
            f"{url!r} is a database in memory, which would lose rows and mark with the process: name a file, or use memory()."
        )
    return _Duck(path) if system == "duckdb" else _Alchemy("sqlite", url, path)


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)


def _server(url: str) -> tuple[str, ...]:
    """Host, port and database, whoever connects."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    try:
        port = parts.port
    except ValueError:
        port = None  # the driver will say what is wrong with it
    return parts.hostname or given.get("host", ""), str(port or given.get("port", 5432)), parts.path.strip("/")


def libpq_url(url: str) -> str:
    """A PostgreSQL URL as its own library takes it. A host that does not answer is given up soon."""
    _, _, rest = url.partition("://")
    if "connect_timeout=" not in rest:
        rest += f"{'&' if '?' in rest else '?'}connect_timeout={CONNECT_SECONDS}"
    return f"postgresql://{rest}"


_OF_POSTGRES: Final = ("psycopg[binary]", "adbc-driver-postgresql")


def imported(module: str, package: str) -> Any:
    """A module of a package that is needed now.

    Raises:
        MissingToolError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        wanted = "'penstock[postgres]'" if package in _OF_POSTGRES else package
        raise MissingToolError(
            f"The SQL sink needs {package}, which is not installed: run `pip install {wanted}`."
        ) from missing


@contextmanager
def values_refused() -> Iterator[None]:
    """What conversions raise, as the contract wants it."""
    try:
        yield
    except (pa.ArrowException, OverflowError, ValueError) as refused:
        raise SinkError(f"A row cannot be stored because {refused}: convert the column before the sink.") from refused


class _Alchemy:
    """SQLite or PostgreSQL through SQLAlchemy."""

    def __init__(self, name: str, url: str, place: str) -> None:
        self.name, self.place = name, place
        self.identity: tuple[str, ...] = (name, *(_server(url) if name == "postgresql" else (str(Path(place).resolve()),)))
        self.errors: tuple[type[Exception], ...] = ()
        self._url = url
        self._engine: Any = None

    def _connected(self) -> Any:
        if self._engine is None:
            alchemy = imported("sqlalchemy", "sqlalchemy")
            driver = imported("sqlite3", "sqlite3") if self.name == "sqlite" else imported("psycopg", "psycopg[binary]")
            self.errors = (alchemy.exc.SQLAlchemyError, driver.Error)
            if self.name == "sqlite":
                self._engine = _sqlite_engine(alchemy, self._url)
            else:
                # READ COMMITTED: an UPDATE that waited for another writer must see what that one has committed.
                self._engine = alchemy.create_engine(
                    self._url, pool_size=1, pool_pre_ping=True, isolation_level="READ COMMITTED", hide_parameters=True
                )
        return self._engine

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._connected().begin() as connection:
            yield _AlchemyTransaction(connection, self.name)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction | None]:
        engine = self._connected()
        if self.name == "sqlite":
            engine = _sqlite_reader(imported("sqlalchemy", "sqlalchemy"), engine)
            if engine is None:
                yield None
                return
        else:
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.begin() as connection:
            yield _AlchemyTransaction(connection, self.name)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _sqlite_engine(alchemy: Any, url: str) -> Any:
    # No pool: a connection costs microseconds, and none stays open in a thread that has ended.
    engine = alchemy.create_engine(
        url, connect_args={"timeout": BUSY_SECONDS}, poolclass=alchemy.pool.NullPool, hide_parameters=True
    )

    # A transaction that starts with a read and writes later can fail at once with "locked"; one that takes the lock waits.
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    alchemy.event.listen(engine, "begin", begin)
    return engine


def _sqlite_reader(alchemy: Any, writer: Any) -> Any:
    """As `_sqlite_engine`, but it does not wait for a writer that has not begun to commit, and makes no file; None if there is none."""
    (path,), options = writer.dialect.create_connect_args(writer.url)
    path = Path(unquote(path.removeprefix("file:").partition("?")[0]) if options.get("uri") else path).absolute()
    if not path.exists():
        return None
    # Not mode=ro, which could not roll back what a writer that crashed has left.
    uri = f"file:{quote(str(path))}?mode=rw"
    connect = partial(imported("sqlite3", "sqlite3").connect, uri, BUSY_SECONDS, uri=True, check_same_thread=False)
    engine = alchemy.create_engine("sqlite://", creator=connect, poolclass=alchemy.pool.NullPool, hide_parameters=True)
    alchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


class _AlchemyTransaction:
    def __init__(self, connection: Any, name: str) -> None:
        self._connection, self._name = connection, name

    def _execute(self, statement: str, values: dict[str, object]) -> Any:
        if values:
            return self._connection.execute(imported("sqlalchemy", "sqlalchemy").text(statement), values)
        # Not text(): column names may contain ":" or "%", which would be read as parameters.
        return self._connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def run(self, statement: str, **values: object) -> int:
        return int(self._execute(statement, values).rowcount)

    def rows(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._execute(statement, values)]

    def table(self, statement: str, columns: Sequence[pa.Field[Any]]) -> pa.Table:
        found = self.rows(statement)
        values: Any = zip(*found, strict=True) if found else ((),) * len(columns)
        with values_refused():
            arrays = [sql_columns.read_values(v, c, self._name) for v, c in zip(values, columns, strict=True)]
        return pa.table(arrays, schema=pa.schema(columns))

    def load(self, table: str, batch: pa.RecordBatch, kinds: Sequence[str]) -> None:
        names = ", ".join(quoted(name) for name in batch.schema.names)
        cursor = self._connection.connection.cursor()
        try:
            if self._name == "sqlite":
                marks = ", ".join("?" * batch.num_columns)
                with values_refused():
                    columns = [sql_columns.python_values(c, k) for c, k in zip(batch.columns, kinds, strict=True)]
                    cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", zip(*columns, strict=True))  # noqa: S608
            else:
                with values_refused():
                    stream = sql_columns.copy_text(batch.columns, kinds)
                with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                    copy.write(stream)
        finally:
            cursor.close()


# DuckDB lets only one process open a file, but threads of that process run into each other's transactions.
_DUCK_LOCKS: Final[dict[str, threading.Lock]] = {}
_DUCK_LOCKS_GUARD: Final = threading.Lock()


class _Duck:
    """DuckDB. The file is open only during a transaction, so that other processes can read it between epochs."""

    def __init__(self, path: str) -> None:
        self.name, self.place = "duckdb", path
        self.identity: tuple[str, ...] = ("duckdb", str(Path(path).resolve()))
        self.errors: tuple[type[Exception], ...] = ()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        duckdb = imported("duckdb", "duckdb")
        self.errors = (duckdb.Error,)
        path = str(Path(self.place).resolve())
        with _DUCK_LOCKS_GUARD:
            lock = _DUCK_LOCKS.setdefault(path, threading.Lock())
        with lock:
            connection = _duck_connect(duckdb, path)
            try:
                connection.execute("BEGIN")
                yield _DuckTransaction(connection)
                connection.execute("COMMIT")
            finally:
                # Closing rolls back what was not committed.
                connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[Transaction | None]:
        if not Path(self.place).exists():
            yield None
            return
        with self.transaction() as transaction:
            yield transaction

    def close(self) -> None:
        """Nothing is open between transactions."""


def _duck_connect(duckdb: Any, path: str) -> Any:
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return duckdb.connect(path)
        except duckdb.IOException as busy:
            if "lock" not in str(busy).lower() or time.monotonic() > until:
                raise
            time.sleep(0.05)


class _DuckTransaction:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, statement: str, **values: object) -> int:
        found = self.rows(statement, **values)
        # A change answers with one row holding the count, a definition with none.
        return int(found[0][0]) if found and isinstance(found[0][0], int) else 0

    def rows(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        text = re.sub(r":(\w+)", r"$\1", statement) if values else statement
        rows: list[tuple[Any, ...]] = self._connection.execute(text, values or None).fetchall()
        return rows

    def table(self, statement: str, columns: Sequence[pa.Field[Any]]) -> pa.Table:
        found: pa.Table = self._connection.sql(statement).to_arrow_table()
        return found.cast(pa.schema(columns))

    def load(self, table: str, batch: pa.RecordBatch, kinds: Sequence[str]) -> None:
        names = ", ".join(quoted(name) for name in batch.schema.names)
        with values_refused():
            columns = [sql_columns.storable(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
        self._connection.register("penstock_batch", pa.table(columns, names=batch.schema.names))
        try:
            self._connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM penstock_batch")  # noqa: S608
        except Exception:
            with suppress(Exception):  # the transaction is aborted, and that would be told in place of the reason
                self._connection.unregister("penstock_batch")
            raise
        self._connection.unregister("penstock_batch")
