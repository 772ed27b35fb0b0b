"""Redis streams as a source over Spark: the driver plans where an epoch ends, a task for each partition reads the entries.

An offset of Spark's is, by partition, a `Position`: the entry up to which is read, and how many entries the stream had been given by then. So an epoch
that runs again, also in another process, reads the same entries or says that some are missing. An epoch's entries are read once and kept in
Spark's memory while it runs, however often it looks at them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.driver.engine import Scan
from penstock.driver.epoch import part_number
from penstock.errors import DeclarationError
from penstock.flow.plan import SourceNode
from penstock.progress.ahead import is_aside
from penstock.progress.lateness import Base, ChunkId, chunks_of
from penstock.progress.source_state import SourceState
from penstock.redis_client.entry_ids import SEQUENCE_BITS, Id, to_offset, written
from penstock.redis_client.stream_log import Position, Target, begin, end_of
from penstock.rows.keys import Ints
from penstock.sources.base import MALFORMED
from penstock.sources.redis_streams import ENTRY_OFFSET, ENTRY_PARTITION, RedisStreams
from penstock.spark.columns import spark_schema
from penstock.spark.internals.python_sources import ReadLimit, SupportsTriggerAvailableNow, refuse_where_not_told
from penstock.spark.sources.file_times import CHUNK_BITS
from penstock.spark.sources.late_records import Late, late_among
from penstock.spark.sources.planned import Planned
from penstock.spark.sources.reader import Reader

_numbers: Final = itertools.count()
FEW_ENTRIES: Final = 5_000
_FEW_BYTES: Final = 1 << 20
"""An epoch with no more entries than this is read by the driver: in 15 ms, where a job takes 50 or more."""
_FEW_PAGE: Final = 100
"""The first entries tell how large they are."""


class RedisStreamsReader(Reader):
    """See `penstock.redis_streams`."""

    needs = (ENTRY_PARTITION, ENTRY_OFFSET)

    @staticmethod
    def check(spark: SparkSession, source: SourceNode) -> Sequence[str]:
        del spark
        refuse_where_not_told(source.name, "redis_streams")
        streams: Any = source.connector
        if source.position != streams.position:
            raise DeclarationError(
                f"Source {source.name!r} has position={source.position!r}, but entries of a stream have positions of their own: leave it out."
            )
        if streams.on_trim == "skip" and source.on_error == "fail":
            raise DeclarationError(
                f'Source {source.name!r} has on_trim="skip", which makes a gap a malformed record, and on_error="fail", which stops at one: '
                'declare on_error="skip" or a sink for them.'
            )
        return ()

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        name = f"penstock_redis_streams_{next(_numbers)}"
        spark.dataSource.register(data_source(name, source.connector))
        return spark.readStream.format(name).load()

    @staticmethod
    def planned(source: SourceNode) -> Planned:
        streams: Any = source.connector
        return Planned(spark_schema(_columns(streams)), EntryReader(streams))

    def _parsed(self) -> bool:
        return True

    def _corrupt(self, frame: DataFrame) -> str:
        del frame
        return f"({MALFORMED} is not null)"

    def _place(self, frame: DataFrame) -> str:
        del frame
        mask = (1 << SEQUENCE_BITS) - 1
        return f"format_string('%d @ %d-%d', {ENTRY_PARTITION}, shiftright({ENTRY_OFFSET}, {SEQUENCE_BITS}), {ENTRY_OFFSET} & {mask}L)"

    _once: DataFrame | None = None
    _seen: tuple[Ints, Ints, Ints] | None = None

    def _slice(self, columns: Sequence[str] | None = None) -> DataFrame:
        del columns
        if self._once is None:
            self._once = super()._slice()
            if self._slices.few(self._ordinal + 1) is None:
                self._once = self._once.persist()
                self._kept.append(self._once)
        return self._once

    def scan(self, before: SourceState) -> Scan:
        few = self._slices.few(self._ordinal + 1) if self._bounds is None else None
        if few is None or few.column(MALFORMED).null_count < few.num_rows:
            return super().scan(before)
        time = np.zeros(few.num_rows, np.int64)
        if self._source.time is not None:
            column = few.column(self._source.time)
            if column.null_count or not (pa.types.is_timestamp(column.type) and column.type.unit == "us"):
                return super().scan(before)
            time = column.cast(pa.int64()).to_numpy()
        numbers, offset = (few.column(name).to_numpy() for name in (ENTRY_PARTITION, ENTRY_OFFSET))
        part = numbers + part_number(self._ordinal, 0)
        chunks = chunks_of(part, offset >> CHUNK_BITS, offset, time, self._name_of)
        seen = (part, offset, time)
        self._rows_by_chunk = {(c.part, c.number): c.rows for c in chunks}
        chunks, ahead = self._judge_ahead(before, chunks, lambda _: seen)
        near = ~is_aside(self._asides, *seen)
        self._seen = (part[near], offset[near], time[near])
        return Scan(chunks, ahead=ahead)

    def _found(self, rows: DataFrame, suspects: dict[ChunkId, Base]) -> tuple[Late, dict[ChunkId, Base]]:
        if self._seen is None:
            return super()._found(rows, suspects)
        late = late_among(self._seen, suspects, self.lateness_us)
        having = late.chunks()
        return late, {chunk: base for chunk, base in suspects.items() if chunk in having}


def data_source(name: str, streams: Any) -> type[DataSource]:
    """The kind of source that Spark knows by a name. What it reads is no option of it, since options are shown, and a URL may hold a password."""

    class Streams(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return spark_schema(_columns(streams))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
            del schema
            return EntryReader(streams)

    return Streams


def _columns(streams: RedisStreams) -> pa.Schema:
    hidden = (pa.field(ENTRY_PARTITION, pa.int64()), pa.field(ENTRY_OFFSET, pa.int64()), pa.field(MALFORMED, pa.string()))
    return pa.schema([*streams.schema, *hidden])


@dataclass
class EntryRange(InputPartition):
    """Some entries: a task's.

    Attributes:
        partition: Their partition.
        start: The id behind which they are.
        until: The last one's.
        expected: How many they are; None: that is not known.
    """

    partition: int
    start: Id
    until: Id
    expected: int | None


class EntryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads epochs.

    Args:
        streams: The source.
    """

    def __init__(self, streams: RedisStreams) -> None:
        self._streams = streams
        self._fixed: dict[int, Target | None] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with self._streams.reading():
            self._streams.check_partitions()
            return {str(p): begin(self._streams.log(p).stream()).to_json() for p in self._streams.read_partitions}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._streams.reading():
            found = {p: self._streams.log(p).stream() for p in self._streams.read_partitions}
        self._fixed = {p: None if stream is None else end_of(stream) for p, stream in found.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        del limit
        ends = dict(start)
        with self._streams.reading():
            for name, raw in start.items():
                partition, position = int(name), Position.from_json(raw)
                found = self._streams.next_end(position, partition, self._streams.log(partition))
                if found is not None:
                    ends[name] = self._within(partition, position, found).to_json()
        return ends

    def _within(self, partition: int, position: Position, found: Position) -> Position:
        """An end that is not behind what there was when reading what there is began."""
        if self._fixed is None:
            return found
        target = self._fixed[partition]
        if target is None:
            return position
        if found.entry <= target.entry:
            return found
        if target.entry <= position.entry and (target.added or 0) <= (position.added or 0):
            return position
        return Position(max(target.entry, position.entry), target.added, position.since)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        made = []
        for name, raw in end.items():
            begins, ends = Position.from_json(start[name]), Position.from_json(raw)
            if begins != ends:
                made.append(EntryRange(int(name), begins.entry, ends.entry, ends.expected(begins)))
        return made

    def few(self, parts: Sequence[Any]) -> list[pa.RecordBatch] | None:
        """All entries of some ranges, if they are few and small; None: they are not."""
        expected = [part.expected for part in parts]
        if None in expected or sum(expected) > FEW_ENTRIES:
            return None
        found, size = [], 0
        for part in parts:
            for batch in self.read(part, page=_FEW_PAGE):
                found.append(batch)
                size += batch.nbytes
                if size > _FEW_BYTES:
                    return None
        return found

    def read(self, partition: InputPartition, page: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read a range. `page`: so many entries are asked for first; None: many."""
        part: Any = partition
        found, log = 0, self._streams.log(part.partition)
        with self._streams.reading():
            for table in self._streams.tables(part.partition, part.start, part.until, log, page):
                found += table.num_rows
                yield from table.combine_chunks().to_batches()
            if part.expected is None or found == part.expected:
                return
            stream = log.stream()
        first = "there is none" if stream is None or stream.first is None else f"the first one there is {written(stream.first)}"
        lost, another = part.expected - found, found > part.expected
        why = (
            f"has {found:,} entries up to {written(part.until)}, not {part.expected:,}: it was deleted and created anew"
            if another
            else f"lacks {lost:,} of {part.expected:,} entries up to {written(part.until)} that were not read: {first}"
        )
        if another or self._streams.on_trim == "fail":
            raise self._streams.missing(part.partition, part.start, why, another=another)
        row = self._streams.schema.empty_table()
        nulls = pa.table([pa.nulls(1, field.type) for field in row.schema], schema=row.schema)
        gap = self._streams.placed(nulls, part.partition, [to_offset(part.start, log.key)], [f"the stream {why}"])
        yield from gap.combine_chunks().to_batches()


__all__ = ["EntryReader", "RedisStreamsReader"]
