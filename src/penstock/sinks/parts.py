"""Rows that tasks store where they are, out of sight of readers: what the sinks that offer `Staging` have in common.

A finished attempt of a task gives tokens. A token names a *part*, rows that the task has put into the sink's `PartStore`; or it holds the
rows themselves, if they are few or the store is out of reach there.

Read next: `penstock.sinks.base`, then `penstock.sinks.parquet_parts` or `penstock.sinks.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa

from penstock.errors import SinkError

INLINE_BYTES: Final = 1 << 20
"""A task with fewer bytes of rows than this hands them over in its token: a part would cost more."""
GROUP_BYTES: Final = 16 << 20
"""So many bytes of rows are written at a time."""
_ROWS, _PART = b"R", b"P"


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: its name in the store, and its number of rows."""

    name: str
    rows: int


class PartStore(Protocol):
    """Where the parts of an output are; it is pickled to the tasks."""

    @property
    def target(self) -> str:
        """What will hold the rows, for messages."""
        ...

    def reported(self, doing: str) -> AbstractContextManager[None]:
        """Raises what the storage raises as `SinkError`."""
        ...

    def reachable(self) -> bool:
        """Whether this host sees the very place in which the driver looks for parts."""
        ...

    def write(self, name: str, groups: Iterator[pa.Table]) -> Part:
        """Store a part. If it raises, what is left of the part has no token, and is removed like that of a dead attempt."""
        ...


@dataclass(frozen=True)
class PartWriter:
    """What a task calls with its rows, see `Staging.stager`; it is pickled.

    Attributes:
        store: Where parts are put.
        prefix: What the names of the epoch's parts begin with.
        schema: The output's columns.
        epoch: Number of the epoch.
        inline_bytes: Fewer bytes of rows than this go into the token.
    """

    store: PartStore
    prefix: str
    schema: pa.Schema
    epoch: int
    inline_bytes: int = field(default_factory=lambda: INLINE_BYTES)

    def __call__(self, batches: Iterable[pa.RecordBatch], attempt: int) -> Iterator[bytes]:
        """Store the rows of one attempt of a task.

        Raises:
            SinkError: The storage refused, or the rows have other columns. A part that no token names may be there.
        """
        groups = row_groups(batches, self.schema, self.store.target)
        first = next(groups, None)
        if first is None:
            return
        with self.store.reported(f"store epoch {self.epoch}"):
            if first.nbytes < self.inline_bytes or not self.store.reachable():
                yield from map(_inline, chain([first], groups))
                return
            part = self.store.write(f"{self.prefix}-{attempt}", chain([first], groups))
            yield json.dumps([part.name, part.rows]).encode() + _PART


def _inline(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes() + _ROWS


def decoded(token: bytes) -> Part | pa.Table:
    """What a token of a `PartWriter` stands for: a part, or the rows themselves."""
    if token.endswith(_PART):
        return Part(*json.loads(token[: -len(_PART)]))
    return pa.ipc.open_stream(token).read_all()  # which ends before the letter


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: str) -> Iterator[pa.Table]:
    """The rows in the columns of `schema`, in tables of at least `GROUP_BYTES` (but for the last one) and at least one row.

    Raises:
        SinkError: They have other columns.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= GROUP_BYTES:
            yield _fitted(held, schema, target)
            held, size = [], 0
    if held:
        yield _fitted(held, schema, target)


def _fitted(batches: list[pa.RecordBatch], schema: pa.Schema, target: str) -> pa.Table:
    try:
        return pa.Table.from_batches(batches).select(schema.names).cast(schema)
    except (KeyError, pa.ArrowException) as refused:
        raise SinkError(f"{target} was opened with other columns than these rows have ({refused}): open it again.") from refused
