"""Event times of Parquet files, found by the driver: one column, without a job of Spark's.

Where the least and greatest times in the files' footers show that no record can be late, nothing else is read. Otherwise the times are:
for an epoch of some million records that takes a fifth of what a job takes that looks at them. It is done only where Spark is certain to
read the very same times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.arrow.columns import UTC
from penstock.progress.lateness import Base, Chunk, ChunkId
from penstock.rows.keys import Ints
from penstock.spark.sources.footers import CANNOT_READ, THREADS, Footer, columns_of_folders
from penstock.state.files import resolve
from penstock.types import ROW_BITS

"""A record's offset is its file's number, shifted left by so many bits, and its row in the file: as many as Spark's own ids have for rows."""
CHUNK_BITS: Final = 12
"""A chunk is so many bits of offsets."""
HELD_ROWS: Final = 1 << 23
"""The times (8 bytes) of an epoch of so many rows are held; those of a larger one are read again where they are asked for."""
_READ_ROWS: Final = 1 << 20
_YEAR_1901: Final = -2_177_452_800_000_000


class Inexact(Exception):  # noqa: N818  (it never leaves this package)
    """Spark might read some times otherwise, or a file cannot be read."""


class FileTimes:
    """The event times of an epoch's files, all of one partition.

    Args:
        files: By their numbers, in the order in which Spark has them.
        footers: By their numbers.
        held_rows: See `HELD_ROWS`.
    """

    def __init__(self, files: Mapping[int, FileColumn], footers: Mapping[int, Footer], held_rows: int = HELD_ROWS) -> None:
        self._files = files
        self._footers = footers
        self._held: dict[int, list[Ints]] = {}
        self._holds = sum(footer.rows for footer in footers.values()) <= held_rows

    @classmethod
    def of(
        cls, files: Mapping[str, int], footers: Mapping[str, Footer | None], column: Any, held_rows: int = HELD_ROWS
    ) -> FileTimes | None:
        """Those of some files.

        Args:
            files: By URI, their numbers.
            footers: By URI.
            column: The column of event times as it was declared (``pyarrow.Field``).
            held_rows: See `HELD_ROWS`.

        Returns:
            None if Spark might read some of the times otherwise: a column that is no timestamp in UTC, or under more than one name (but for
            case); or if a file could not be opened here.
        """
        if not _is_exact(column.type):
            return None
        found = {number: _file(uri, footers[uri], column.name) for uri, number in files.items()}
        known = {number: file for number, file in found.items() if file is not None}
        there = {number: footer for uri, number in files.items() if (footer := footers[uri]) is not None}
        return cls(known, there, held_rows) if len(known) == len(found) else None

    def groups(self, part: int) -> tuple[Chunk, ...] | None:
        """What the footers say of each row group, as if it were a chunk; None if they do not, or if `chunks` gives None.

        Args:
            part: The partition's number.
        """
        found: list[Chunk] = []
        for number, file in self._files.items():
            first = number << ROW_BITS
            for rows, stored in self._footers[number].groups:
                if rows:
                    if stored is None or (least := stored[0] * file.scale) < _YEAR_1901:
                        return None
                    found.append(Chunk("0", part, first >> CHUNK_BITS, least, stored[1] * file.scale, first + rows - 1, rows))
                first += rows
        return tuple(found)

    def bases(self, groups: Iterable[Chunk], base: Base) -> dict[int, tuple[FileColumn, Base]]:
        """The files by their numbers, and where the judgement of each starts.

        Args:
            groups: As `groups` gives them.
            base: Where that of the first one does.
        """
        greatest: dict[int, int] = {}
        for group in groups:
            number = group.last_offset >> ROW_BITS
            greatest[number] = max(group.greatest, greatest.get(number, group.greatest))
        found = {}
        for number, file in sorted(self._files.items()):
            found[number] = (file, base)
            base = Base(max(base.latest, greatest.get(number, base.latest)), base.late_floor)
        return found

    def chunks(self, part: int) -> tuple[Chunk, ...] | None:
        """What there is of each chunk. Reads the times.

        Args:
            part: The partition's number.

        Returns:
            None if Spark might read some times otherwise: with nulls, or with times so old that Spark may move them to another
            calendar; or if a file cannot be read here any more.
        """
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                return tuple(chunk for of_file in pool.map(lambda n: self._chunks(n, part), self._files) for chunk in of_file)
        except Inexact:
            return None

    def _chunks(self, number: int, part: int) -> list[Chunk]:
        """Those of one file; its times are held if they may be."""
        ids, least, greatest = [], [], []
        held: list[Ints] = []
        row = 0
        for at in self._files[number].times():
            begins = np.append(0, np.arange(-row % (1 << CHUNK_BITS) or 1 << CHUNK_BITS, len(at), 1 << CHUNK_BITS))
            ids.append((row + begins) >> CHUNK_BITS)
            least.append(np.minimum.reduceat(at, begins))
            if least[-1].min() < _YEAR_1901:
                raise Inexact
            greatest.append(np.maximum.reduceat(at, begins))
            if self._holds:
                held.append(at)
            row += len(at)
        if not row:
            return []
        if self._holds:
            self._held[number] = held
        every = np.concatenate(ids)
        starts = np.flatnonzero(np.diff(every, prepend=-1))
        begins, ends = every[starts] << CHUNK_BITS, np.append(every[starts][1:] << CHUNK_BITS, row)
        times = (np.minimum.reduceat(np.concatenate(least), starts), np.maximum.reduceat(np.concatenate(greatest), starts))
        first = number << ROW_BITS
        return [
            Chunk("0", part, (first + begin) >> CHUNK_BITS, oldest, newest, first + end - 1, end - begin)
            for begin, end, oldest, newest in zip(*(column.tolist() for column in (begins, ends, *times)), strict=True)
        ]

    def rows(self, chunks: Iterable[ChunkId]) -> tuple[Ints, Ints, Ints] | None:
        """Partition, offset and time of the rows of some chunks, of which there must be one, by ascending offset.

        None if the times are not held, and a file cannot be read any more.
        """
        chosen = sorted(chunks)
        wanted: dict[int, list[int]] = {}
        for _, chunk in chosen:
            number, row = divmod(chunk << CHUNK_BITS, 1 << ROW_BITS)
            wanted.setdefault(number, []).append(row)
        offsets, found = [], []
        try:
            for number, rows in wanted.items():
                for row, at in self._pieces(number, rows):
                    offsets.append((number << ROW_BITS) + row + np.arange(len(at)))
                    found.append(at)
        except Inexact:
            return None
        offset = np.concatenate(offsets)
        return np.full(len(offset), chosen[0][0]), offset, np.concatenate(found)

    def _pieces(self, number: int, rows: Sequence[int]) -> Iterator[tuple[int, Ints]]:
        """The times of a file's chunks that begin at some rows (ascending), each with the row it begins at; a chunk may come in two pieces."""
        begin = 0
        for at in self._held.get(number) or self._files[number].times():
            end = begin + len(at)
            for row in rows:
                here = at[max(0, row - begin) : max(0, row - begin + (1 << CHUNK_BITS))]
                if len(here):
                    yield max(row, begin), here
            begin = end


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A file whose column of times Spark reads as we do."""

    uri: str
    column: str
    scale: int  # µs

    def times(self) -> Iterator[Ints]:
        """The times (µs) in order of rows, a piece at a time.

        Raises:
            Inexact: There are nulls, or the file cannot be read.
        """
        try:
            fs, path = resolve(self.uri)
            with fs.open_input_file(path) as file:
                parquet = pq.ParquetFile(file, pre_buffer=True)
                for batch in parquet.iter_batches(_READ_ROWS, columns=[self.column]):
                    column: Any = batch.column(0)
                    at: Ints = column.cast(UTC).cast(pa.int64()).to_numpy(zero_copy_only=False)
                    if column.null_count:
                        raise Inexact
                    yield at
        except CANNOT_READ as error:
            raise Inexact from error


def _file(uri: str, footer: Footer | None, column: str) -> FileColumn | None:
    """None if Spark might read the file's times otherwise."""
    if footer is None or column.lower() in map(str.lower, columns_of_folders(uri)):  # the folder's name would be the value
        return None
    schema = footer.schema
    if [n for n in schema.names if n.lower() == column.lower()] != [column] or not _is_exact(schema.field(column).type):
        return None
    return FileColumn(uri, column, 1 if schema.field(column).type.unit == "us" else 1000)


def _is_exact(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit in ("us", "ms")
