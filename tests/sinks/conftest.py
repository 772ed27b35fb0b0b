"""One rig per system: how to make a sink there, and how to read back what it holds without penstock."""

from __future__ import annotations

import itertools
import json
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import sinks
from penstock.redis_client.connection import connect
from penstock.sinks import parts
from penstock.types import Mark


@dataclass
class Rig:
    """A place of a test's own in one system."""

    system: str
    url: str
    staged_writes: bool = False
    """Whether all rows of a `write` go the way of staged rows: tasks store them, and what `write` stores is their tokens."""

    def sink(self, table: str = "results", **options: Any) -> sinks.Sink:
        sink: Any = self._sink(table, **options)
        if self.staged_writes:
            attempts = itertools.count(1)

            def write(batches, mark):
                return sink.commit((t for b in [batches] for t in sink.stager(mark)(iter(b), next(attempts))), mark)

            sink.write = write
        return sink

    def _sink(self, table: str, **options: Any) -> sinks.Sink:
        if self.system == "memory":
            return sinks.memory(f"{self.url}/{table}")
        if self.system == "parquet":
            return sinks.parquet(f"{self.url}/{table}")
        if self.system == "redis":
            url, name = self.url.split("|")
            return sinks.redis_stream(url, f"{name} {table}", 1, **options)
        return sinks.sql(self.url, table, **options)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        if self.system == "sqlite":
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            try:
                rows = connection.execute(statement).fetchall()
                connection.commit()
                return rows
            finally:
                connection.close()
        if self.system == "duckdb":
            with duckdb.connect(self.url.removeprefix("duckdb:///")) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.url, autocommit=True, options=None) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str = "results", columns: str = "n, word", order: str | None = None) -> list[tuple[Any, ...]]:
        """What any other program would see."""
        names = [name.strip() for name in columns.split(",")]
        if self.system == "memory":
            return [tuple(row[name] for name in names) for row in sinks.memory(f"{self.url}/{table}").rows()]
        if self.system == "parquet":
            found = pq.read_table(f"{self.url}/{table}").select(names).to_pylist()
            return [tuple(row.values()) for row in found]
        if self.system == "redis":
            url, name = self.url.split("|")
            entries = connect(url).xrange(f"{{{name} {table}:0}}")
            found = [tuple(fields.get(column.encode()) for column in names) for _, fields in entries]
            return [(int(n), word.decode()) for n, word in found] if columns == "n, word" else found
        order = f" ORDER BY {order}" if order else ""
        return self.query(f"SELECT {columns} FROM {table}{order}")

    def has_rows(self, table: str = "results") -> bool:
        if self.system == "parquet":
            return any(Path(self.url, table).glob("*.parquet"))
        return bool(self.rows(table))

    def staged(self, table: str = "results") -> list[str]:
        """Names of what tasks have stored and nothing has committed or removed."""
        if self.system == "parquet":
            return sorted(path.name for path in Path(self.url, table, "_penstock", "staging").iterdir())
        return [
            name for (name,) in self.query(r"SELECT relname FROM pg_class WHERE relname LIKE 'penstock\_part\_%' ORDER BY 1")
        ]

    def remove_staged(self, name: str, table: str = "results") -> None:
        if self.system == "parquet":
            Path(self.url, table, "_penstock", "staging", name).unlink()
        else:
            self.query(f'DROP TABLE "{name}"')

    def stored_epoch(self, table: str = "results") -> int:
        """The epoch of the mark as it is stored."""
        if self.system == "parquet":
            manifests = sorted(Path(self.url, table, "_penstock", "out").glob("mark-*.json"))
            return json.loads(manifests[-1].read_text())["mark"]["epoch"]
        if self.system == "memory":
            return sinks.memory(f"{self.url}/{table}")._held.mark.epoch
        if self.system == "redis":
            url, name = self.url.split("|")
            return json.loads(connect(url).get(f"{{{name} {table}:0}}:mark:out"))["epoch"]
        return self.query("SELECT epoch FROM penstock_marks")[0][0]


def rig_of(system: str, tmp_path: Path, request: Any) -> Rig:
    if system.endswith(STAGED):
        request.getfixturevalue("monkeypatch").setattr(parts, "INLINE_BYTES", 0)
        return replace(rig_of(system.removesuffix(STAGED), tmp_path, request), staged_writes=True)
    if system == "postgresql":
        return Rig(system, request.getfixturevalue("postgres_database"))
    if system == "redis":
        return Rig(system, f"{request.getfixturevalue('redis_url')}|{tmp_path.name} {next(_NUMBERS)}")
    urls = {"sqlite": f"sqlite:///{tmp_path}/r.db", "duckdb": f"duckdb:///{tmp_path}/r.duckdb"}
    return Rig(system, urls.get(system, str(tmp_path)))


STAGED = ", staged"
_NUMBERS = itertools.count()
STAGING = ["parquet", "postgresql"]
SQL = ["sqlite", "duckdb", "postgresql", f"postgresql{STAGED}"]
TABLES = [*SQL, "parquet", f"parquet{STAGED}"]
DURABLE = [*TABLES, "redis"]


@pytest.fixture(params=[*DURABLE, "memory"])
def rig(request, tmp_path):
    return rig_of(request.param, tmp_path, request)


@pytest.fixture(params=DURABLE)
def durable_rig(request, tmp_path):
    return rig_of(request.param, tmp_path, request)


@pytest.fixture(params=TABLES)
def table_rig(request, tmp_path):
    return rig_of(request.param, tmp_path, request)


@pytest.fixture(params=SQL)
def sql_rig(request, tmp_path):
    return rig_of(request.param, tmp_path, request)


@pytest.fixture(params=STAGING)
def staging_rig(request, tmp_path):
    return rig_of(request.param, tmp_path, request)


@pytest.fixture
def parquet_rig(request, tmp_path):
    return rig_of("parquet", tmp_path, request)


@pytest.fixture
def sqlite_rig(request, tmp_path):
    return rig_of("sqlite", tmp_path, request)


@pytest.fixture
def postgres_rig(request, tmp_path):
    return rig_of("postgresql", tmp_path, request)


SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def batch(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def mark(epoch: int, run: int = 1, flow: str = "flow-a", output: str = "out", **more: Any) -> Mark:
    return Mark(flow, output, run, epoch, **more)


@pytest.fixture
def make():
    """The three builders every sink test needs: ``make.batch(rows...)``, ``make.mark(epoch)``, ``make.schema``."""

    class Make:
        pass

    Make.batch, Make.mark, Make.schema = staticmethod(batch), staticmethod(mark), SCHEMA
    return Make
