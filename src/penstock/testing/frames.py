"""Frames in this process: a step's SQL by DuckDB, rows within bounds, and rows in the columns of a region's ports."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.driver.engine import Bounds
from penstock.errors import DeclarationError, RecordError
from penstock.flow import plan as p
from penstock.flow.steps import Beside, Sql
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.rows import with_order
from penstock.sql_text.schema import run_sql, to_duckdb
from penstock.types import HASH, OFFSET, ORDER, PARTITION, SUB, visible
from penstock.worker.spec import PORT, Port, RegionSpec


def by_sql(node: p.StepNode, table: pa.Table, sql: Sql) -> pa.Table:
    """Run a step's SQL.

    Raises:
        DeclarationError: DuckDB cannot run it at all.
        RecordError: It fails on a record.
    """
    if sql.beside is not None:
        table = beside(table, sql.beside)
        if sql == Sql(beside=sql.beside):
            return table

    def query() -> str:
        shown = "* EXCLUDE (" + ", ".join(ORDER) + ")"
        if sql.columns is not None:
            shown = ", ".join(f"{to_duckdb(expression)} AS {_quoted(name)}" for name, expression in sql.columns)
        hidden = ", ".join(f"{sql.sub} AS {SUB}" if sql.sub and name == SUB else name for name in ORDER)
        return f"SELECT {shown}, {hidden} FROM t" + (f" WHERE {to_duckdb(sql.where)}" if sql.where else "")

    try:
        return run_sql(table, query())
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line]
        first = re.match(r"(?:[A-Z][\w ]* Error: )?(.+?)(?:[.!](?= |$)|$)", lines[0]) if lines else None
        told = first[1] if first else type(error).__name__
        if not table.num_rows or _fails(table.slice(0, 0), query):
            raise DeclarationError(
                f"{node.step.describe()} cannot be run in this process, where DuckDB runs the SQL ({told}); test this flow over Spark."
            ) from error
        rows = (table.slice(i, 1) for i in range(table.num_rows))
        row = next((row for row in rows if _fails(row, query)), table.slice(0, 1)).to_pylist()[0]
        names = " and ".join(repr(n.name) for n in p.upstream_of(p.SourceNode, node))
        shown = {name: row[name] for name in visible(row)}
        raise RecordError(
            f"{node.step.describe()} failed on the record {shown} of source {names}: {told}; leave such records out with a where(…) before it. "
            "The epoch was not committed."
        ) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def beside(table: pa.Table, of: Beside) -> pa.Table:
    """Rows with the columns of a table's row of the same key."""
    keys = pa.schema([table.schema.field(name) for name in of.on])
    found, at = of.table.for_keys(keys), of.table.at([table.column(name) for name in of.on], keys)
    if of.inner:
        table, at = table.filter(pa.array(at >= 0)), at[at >= 0]
    index = pa.array(at, mask=at < 0)
    visible_names = visible(table.column_names)
    added = {new: found.column(old).take(index) for old, new in of.columns}
    columns: dict[str, Any] = {n: table.column(n) for n in visible_names} | added | {n: table.column(n) for n in ORDER}
    return pa.table(columns)


def _fails(table: pa.Table, query: Callable[[], str]) -> bool:
    try:
        run_sql(table, query())
    except Exception:  # noqa: BLE001  (DuckDB's own, of many kinds)
        return True
    return False


def within(table: pa.Table, bounds: Bounds) -> tuple[pa.Table, bool]:
    """The records within bounds, and whether there are some behind them."""
    names = [str(name) for name in table.column(PARTITION).to_pylist()]
    offsets = table.column(OFFSET).to_numpy()
    other = (-1, (1 << 63) - 1 if bounds.others else -1)
    after, upto = np.array([bounds.partitions.get(name, other) for name in names], np.int64).reshape(-1, 2).T
    return table.filter(pa.array((offsets > after) & (offsets <= upto))), bool((offsets > upto).any())


def empty(schema: pa.Schema) -> pa.Table:
    """No rows in some columns and those of their order."""
    return with_order(schema).empty_table()


def as_port(port: Port, index: int, keys: pa.Schema, table: pa.Table, ports: int) -> tuple[pa.Table, Any]:
    """A port's columns, prefixed if there are several ports; and the hashes of the keys."""
    hashes = (
        spark_xxhash64([table.column(n).cast(keys.field(n).type) for n in keys.names])
        if table.num_rows and keys.names
        else np.zeros(table.num_rows, np.int64)
    )
    out = table.select([*port.schema.names, *(n for n in port.hidden if n != HASH)])
    if ports > 1:
        out = out.rename_columns([f"{index}.{n}" for n in out.column_names])
        out = out.add_column(0, PORT, pa.array(np.full(table.num_rows, index, np.int32)))
    return out, hashes


def sent(table: pa.Table, spec: RegionSpec) -> list[pa.RecordBatch]:
    """Rows in the columns of a task's input."""
    return [b.cast(spec.in_schema) for b in widen(table, spec.in_schema).to_batches()]


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the columns of other ports as nulls."""
    columns = [table.column(f.name) if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.table(columns, names=schema.names)
