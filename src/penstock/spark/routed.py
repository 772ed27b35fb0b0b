"""Which worker a row has, as Spark SQL and for whole batches of the rows that a region is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.routing.table import SUBS, Routing
from penstock.spark.columns import array_sql
from penstock.worker.spec import RegionSpec, key_columns, key_hashes


def routing_sql(table: Routing, hashed: str) -> str:
    """The table as Spark SQL over a key's hash.

    An even table is an array too, as other code would have to be compiled in the epoch in which bins begin to move.
    """
    at = f"pmod({hashed}, {len(table.owners)})"
    out = f"element_at({array_sql(table.owners, 'int')}, cast({at} as int) + 1)"
    if table.splits:
        cases = " ".join(
            f"when {b}L then if(shiftright({hashed}, 12) & {SUBS - 1}L < {s.upto}L, {s.to}, {table.owners[b]})"
            for b, s in table.splits.items()
        )
        out = f"case {at} {cases} else {out} end"
    if table.pinned_keys:
        found = f"array_position({array_sql(table.pinned_keys)}, {hashed})"
        out = f"coalesce(get({array_sql(table.pinned_keys.values(), 'int')}, cast({found} as int) - 1), {out})"
    return out


def routing_of(spec: RegionSpec, table: Routing) -> Callable[[pa.RecordBatch], Any]:
    """Gives the worker of each row, as `routing_sql`, of batches in the columns of `port_frame`."""
    ports = key_columns(spec)
    return lambda rows: table.workers_of(key_hashes(ports, rows))


def hash_sql(spec: RegionSpec) -> str:
    """SQL of the hash of a row's key, over columns as of `port_frame`."""
    ports = key_columns(spec)
    hashes = [f"xxhash64({', '.join(f'c{i}' for i in columns)})" for columns in ports]
    if len(ports) == 1:
        return hashes[0]
    return f"case c0 {' '.join(f'when {port} then {sql}' for port, sql in enumerate(hashes))} end"


__all__ = ["hash_sql", "routing_of", "routing_sql"]
