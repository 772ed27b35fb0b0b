"""The table ``penstock_marks`` of a database: one row for each output of a table.

A table that an earlier version of penstock made has no column `trail`; it is added when an output is opened, and not before.

Read next: `penstock.sinks.sql_table`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.sinks.sql_databases import Transaction
from penstock.types import Mark

TABLE: Final = "penstock_marks"
THIS: Final = "target = :target AND output = :output"
_TRAIL: Final = "trail TEXT NOT NULL DEFAULT ''"
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (target VARCHAR(255) NOT NULL, output VARCHAR(255) NOT NULL, "
    "flow VARCHAR(255) NOT NULL, run BIGINT NOT NULL, epoch BIGINT NOT NULL, frontier BIGINT NOT NULL, "
    f"positions TEXT NOT NULL, kept TEXT NOT NULL, {_TRAIL}, PRIMARY KEY (target, output))"
)
_FIELDS: Final = ("flow", "run", "epoch", "frontier", "positions", "trail")


def create(transaction: Transaction, database: str) -> None:
    """Make the table, or add what it lacks. Nobody else does so meanwhile: in PostgreSQL the caller holds the setup lock."""
    transaction.run(_CREATE)
    if "trail" not in _columns(transaction, database):  # looked up, since ALTER TABLE would wait for all writers of PostgreSQL
        # DuckDB before 1.3 adds no column with a constraint.
        added = _TRAIL.replace(" NOT NULL", "") if database == "duckdb" else _TRAIL
        transaction.run(f"ALTER TABLE {TABLE} ADD COLUMN {added}")


def read(transaction: Transaction, database: str, target: str, output: str) -> Mark | None:
    """The mark of an output; None if there is none, or no table of marks. Waits for no writer."""
    there = _columns(transaction, database)
    if not there:
        return None
    fields = [field for field in _FIELDS if field in there]
    found = transaction.rows(f"SELECT {', '.join(fields)} FROM {TABLE} WHERE {THIS}", target=target, output=output)  # noqa: S608
    if not found:
        return None
    values: dict[str, Any] = dict(zip(fields, found[0], strict=True))
    return Mark(output=output, **{**values, "positions": json.loads(values["positions"])})


def outputs(transaction: Transaction, database: str, target: str) -> list[str]:
    """Names of the outputs that have stored an epoch in a table."""
    if not _columns(transaction, database):
        return []
    return [
        name
        for (name,) in transaction.rows(
            f"SELECT output FROM {TABLE} WHERE target = :target AND epoch >= 0 ORDER BY output",  # noqa: S608
            target=target,
        )
    ]


def values(mark: Mark, target: str) -> dict[str, object]:
    """A mark as the values of its row."""
    return {
        "target": target,
        "output": mark.output,
        "flow": mark.flow,
        "run": mark.run,
        "epoch": mark.epoch,
        "frontier": mark.frontier,
        "positions": json.dumps(mark.positions, sort_keys=True),
        "trail": mark.trail,
    }


def _columns(transaction: Transaction, database: str) -> set[str]:
    """Names of the columns of the table of marks that statements find; empty if there is none."""
    statement = {
        "sqlite": "SELECT name FROM pragma_table_info(:name)",
        "duckdb": "SELECT column_name FROM information_schema.columns WHERE table_schema = 'main' AND table_name = :name",
        "postgresql": "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped",
    }[database]
    return {name for (name,) in transaction.rows(statement, name=TABLE)}
