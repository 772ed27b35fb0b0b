"""A partitioned stream of Redis or Valkey, declared as a source.

Partition p of stream ``orders`` is the Redis stream ``{orders:p}``. A record's position is its partition and its entry's id as a whole number
(`penstock.redis_client.entry_ids`): the same whenever it is read again.

Read next: `penstock.redis_client.stream_log`, `penstock.spark.sources.redis_streams`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import DeclarationError, RecordError
from penstock.redis_client.connection import connect, shown, translated
from penstock.redis_client.entries import shown as shown_entry
from penstock.redis_client.entries import to_columns
from penstock.redis_client.entry_ids import FIRST, Id, of_offset, parsed, to_offset, written
from penstock.redis_client.keys import partition_key
from penstock.redis_client.stream_log import PartitionLog, Position, agreed_partitions, begin, counted, end, end_of, gap
from penstock.redis_client.values import refusal
from penstock.sources.base import MALFORMED, Shared, Source
from penstock.sql_text.schema import as_number, as_schema, as_text
from penstock.types import HIDDEN

if TYPE_CHECKING:
    from penstock.sql_text.given import Schema

ENTRY_PARTITION: Final = f"{HIDDEN}entry_partition"
"""int64, the partition of an entry."""
ENTRY_OFFSET: Final = f"{HIDDEN}entry_offset"
"""int64, its offset: `to_offset`."""


def redis_streams(
    url: str,
    stream: str,
    partitions: int,
    schema: Schema,
    *,
    max_rows_per_epoch: int = 100_000,
    on_trim: Literal["fail", "skip"] = "fail",
    other_fields: Literal["malformed", "ignore"] = "malformed",
) -> RedisStreams:
    """A partitioned stream of Redis or Valkey: partition p of ``"orders"`` is the Redis stream ``{orders:p}``, as `penstock.redis_stream` writes it.

    A record is an entry; its columns are the entry's fields, written as `penstock.redis_client.values` has it. A field that an entry lacks is null. An
    entry with a field of another name, or twice, or one whose text is no value of its type is malformed: ``on_error=`` of `Flow.source` says
    what becomes of it. Reading begins with the first entry that is there.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``; with TLS ``rediss://…``.
        stream: Name of the stream.
        partitions: Number of its partitions.
        schema: Columns and types, ``"customer string, amount long"``.
        max_rows_per_epoch: At most so many entries per epoch; each partition has an equal share of it, and at least one.
        on_trim: What becomes of a gap: entries that were removed (XTRIM, MAXLEN, XDEL) before they were read. The flow stops and names partition, position and
            the first entry there (``"fail"``), or the gap is one malformed record, which ``on_error=`` of `Flow.source` counts or keeps (``"skip"``).
            A stream that is gone, or another one than before, always stops the flow.
        other_fields: What becomes of an entry with a field that is no column: it is malformed, or the field is passed over.

    Raises:
        DeclarationError: An argument is none, or a column has a type without a text form.

    Example:
        >>> redis_streams("redis://localhost", "orders", 8, "customer string, amount long").schema.names
        ['customer', 'amount']
    """
    connect(url)
    as_text(stream, "The stream of redis_streams")
    if "{" in stream or "}" in stream:
        raise DeclarationError(
            f"redis_streams({stream!r}) has a brace in its name, which names of keys use: choose another name."
        )
    as_number(partitions, "partitions of redis_streams")
    as_number(max_rows_per_epoch, "max_rows_per_epoch of redis_streams")
    if on_trim not in ("fail", "skip"):
        raise DeclarationError(f'redis_streams(on_trim={on_trim!r}) is not known; use "fail" or "skip".')
    if other_fields not in ("malformed", "ignore"):
        raise DeclarationError(f'redis_streams(other_fields={other_fields!r}) is not known; use "malformed" or "ignore".')
    columns = as_schema(schema, f"the schema of redis_streams({stream!r})")
    for column in columns:
        if why := refusal(column.type) or ("has no type" if pa.types.is_null(column.type) else ""):
            raise DeclarationError(f"Column {column.name!r} of redis_streams({stream!r}) {why}.")
    return RedisStreams(url, stream, partitions, columns, max_rows_per_epoch, on_trim, other_fields == "ignore")


@dataclass(frozen=True)
class RedisStreams(Source):
    """What `redis_streams` makes.

    Attributes:
        url: The server's.
        stream: Name of the stream.
        partitions: Number of its partitions.
        schema: Columns and types.
        max_rows_per_epoch: At most so many per epoch, of all partitions that are read.
        on_trim: See `redis_streams`.
        other_fields: Whether fields that are no columns are passed over.
        partition: The only one that is read; None: all are.
    """

    url: str
    stream: str
    partitions: int
    schema: pa.Schema
    max_rows_per_epoch: int
    on_trim: str = "fail"
    other_fields: bool = False
    partition: int | None = None
    position = (ENTRY_PARTITION, ENTRY_OFFSET)
    steady = True

    def __repr__(self) -> str:
        return f"redis_streams({shown(self.url)!r}, {self.stream!r}, {self.partitions})"

    def shared(self) -> Shared:
        return Shared(self.stream, self.partitions)

    def only(self, partition: int) -> RedisStreams:
        """The source that reads one partition only, under its own number.

        Raises:
            DeclarationError: There is no such partition.

        Example:
            >>> orders = redis_streams("redis://localhost:6379", "orders", partitions=4, schema="customer string, amount double")
            >>> orders.only(2).schema.names
            ['customer', 'amount']
        """
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise DeclarationError(f"{self!r} has partitions 0 to {self.partitions - 1}, not {partition!r}.")
        return replace(self, partition=partition)

    def describe(self) -> str:
        return "Redis streams"

    def position_name(self, offset: int) -> str:
        return written(of_offset(offset))

    def meaning(self) -> dict[str, str]:
        read = "all" if self.partition is None else str(self.partition)
        return {"kind": "redis streams", "stream": self.stream, "partitions": str(self.partitions), "partitions read": read}

    @property
    def read_partitions(self) -> tuple[int, ...]:
        """The partitions that are read."""
        return tuple(range(self.partitions)) if self.partition is None else (self.partition,)

    @property
    def share(self) -> int:
        """How many entries an epoch reads at most of each partition."""
        return max(1, self.max_rows_per_epoch // len(self.read_partitions))

    def log(self, partition: int) -> PartitionLog:
        """A partition on the server."""
        return PartitionLog(connect(self.url), partition_key(self.stream, partition))

    def reading(self) -> AbstractContextManager[None]:
        """Raises what the server raises as `RecordError`."""
        return translated(self.url, RecordError, f"Reading stream {self.stream!r}")

    def check_partitions(self) -> None:
        """Refuse a number of partitions that is not the one that producers and groups have settled on.

        Raises:
            RecordError: It is not.
        """
        agreed = agreed_partitions(connect(self.url), self.stream)
        if agreed not in (None, self.partitions):
            raise RecordError(
                f"Stream {self.stream!r} has {agreed} partitions, and {self.partitions} are declared: declare {agreed}. Nothing was read."
            )

    def next_end(self, position: Position, partition: int, log: PartitionLog) -> Position | None:
        """Where the next epoch ends; None: there is no stream yet.

        Args:
            position: Where it begins.
            partition: The partition.
            log: The partition on the server.

        Raises:
            RecordError: Entries are gone, unless that is to be passed over; or the stream is another one.
        """
        stream, there = log.look(position)
        found = gap(position, stream, there=there)
        if found is not None and (found.another or self.on_trim == "fail"):
            raise self.missing(partition, position.entry, found.sentence, another=found.another)
        if stream is None:
            return None
        target = end_of(stream)
        to_offset(target.entry, log.key)
        ends = end(position, stream, target, self.share)
        if ends is not None:
            return ends
        n, last = log.count(position, target, self.share)
        return counted(position, stream, n, last, target=target if n < self.share else None)

    def missing(self, partition: int, after: Id, why: str, *, another: bool) -> RecordError:
        """The error that a stream does not have what must be read."""
        way = (
            "start this flow anew, with another checkpoint and empty sinks"
            if another
            else 'declare on_trim="skip" to go on without'
        )
        return RecordError(
            f"Partition {partition} of stream {self.stream!r}, read up to entry {written(after)}, {why}; {way}. The epoch was not committed."
        )

    def tables(self, partition: int, start: Id, until: Id, log: PartitionLog, page: int | None = None) -> Iterator[pa.Table]:
        """The entries behind `start` up to `until`, with `position` and `MALFORMED`, page by page. `page`: entries of the first one.

        Raises:
            RecordError: An entry's id is no position.
        """
        for ids, fields in log.entries(start, until, page):
            found = to_columns(fields, self.schema, other_fields=self.other_fields)
            offsets = np.fromiter((to_offset(parsed(entry), log.key) for entry in ids), np.int64, len(ids))
            malformed: list[str | None] = [None] * len(ids)
            for row, why in found.malformed.items():
                malformed[row] = f"{why}: {shown_entry(fields[row])}"
            yield self.placed(found.table, partition, offsets, malformed)

    def placed(self, table: pa.Table, partition: int, offsets: Any, malformed: list[str | None]) -> pa.Table:
        """Columns with those of `position` and `MALFORMED`."""
        rows = table.num_rows
        return (
            table.append_column(ENTRY_PARTITION, pa.array(np.full(rows, partition, np.int64)))
            .append_column(ENTRY_OFFSET, pa.array(offsets, pa.int64()))
            .append_column(MALFORMED, pa.array(malformed, pa.string()))
        )

    def records(self, after: Mapping[str, int]) -> pa.Table | None:
        """See `Source.records`. How many entries there were up to a position is not known here; so entries that are gone show only with the last one read."""
        tables: list[pa.Table] = []
        with self.reading():
            if not after:
                self.check_partitions()
            for partition in self.read_partitions:
                log, last = self.log(partition), of_offset(after.get(str(partition), -1))
                position = begin(log.stream()) if last == FIRST else Position(last, None, None)
                ends = self.next_end(position, partition, log)
                if ends is not None and ends.entry > last:
                    tables += self.tables(partition, last, ends.entry, log)
        return pa.concat_tables(tables) if tables else None


__all__ = ["ENTRY_OFFSET", "ENTRY_PARTITION", "RedisStreams", "redis_streams"]
