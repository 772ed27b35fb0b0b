"""Event times of Parquet files: one column, read without a job of Spark's.

Where the least and greatest times in the files' footers show that no record can be late, nothing else is read. Otherwise each file is judged
by itself, from what footers say of those before it: by the tasks that have its rows (`penstock.spark.sources.row_times`), or by the driver, in
a fifth of the time of a job. It is done only where Spark is certain to read the very same times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.arrow.columns import UTC
from penstock.errors import RecordError
from penstock.progress.lateness import Base, Chunk, ChunkId, late_rows
from penstock.rows.keys import Ints
from penstock.spark.sources.footers import CANNOT_READ, THREADS, Footer, columns_of_folders
from penstock.state.files import resolve
from penstock.types import ROW_BITS

Mask = NDArray[np.bool_]
CHUNK_BITS: Final = 12
"""A chunk is so many bits of offsets."""
MANY_LATE: Final = 2_000
"""So many late records are told apart by their offsets; more are not written out in an expression."""
_READ_ROWS: Final = 1 << 20
_YEAR_1901: Final = -2_177_452_800_000_000


class Inexact(Exception):  # noqa: N818  (it never leaves this package)
    """Spark might read some times otherwise, or a file cannot be read."""


class FileTimes:
    """The event times of an epoch's files, all of one partition.

    Args:
        files: By their numbers, in the order in which Spark has them.
        footers: By their numbers.
    """

    def __init__(self, files: Mapping[int, FileColumn], footers: Mapping[int, Footer]) -> None:
        self._files = files
        self._footers = footers

    @classmethod
    def of(cls, files: Mapping[str, int], footers: Mapping[str, Footer | None], column: Any) -> FileTimes | None:
        """Those of some files.

        Args:
            files: By URI, their numbers.
            footers: By URI.
            column: The column of event times as it was declared (``pyarrow.Field``).

        Returns:
            None if Spark might read some of the times otherwise: a column that is no timestamp in UTC, or under more than one name (but for
            case); or if a file could not be opened here.
        """
        if not _is_exact(column.type):
            return None
        found = {number: _file(uri, footers[uri], column.name) for uri, number in files.items()}
        known = {number: file for number, file in found.items() if file is not None}
        there = {number: footer for uri, number in files.items() if (footer := footers[uri]) is not None}
        return cls(known, there) if len(known) == len(found) else None

    def groups(self, part: int) -> tuple[Chunk, ...] | None:
        """What the footers say of each row group, as if it were a chunk; None if they do not, or Spark may move times so old to another calendar.

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

    def late(
        self, bases: Mapping[int, tuple[FileColumn, Base]], part: int, lateness_us: int
    ) -> tuple[Ints, dict[ChunkId, Base]]:
        """As `JudgedFile.offsets`, of all files. Reads the times.

        Args:
            bases: As `bases` gives them.
            part: The partition's number.
            lateness_us: The lateness bound.

        Raises:
            Inexact: A file cannot be read any more.
        """

        def judged(number: int) -> tuple[Ints, dict[ChunkId, Base]]:
            return JudgedFile(*bases[number], lateness_us).offsets(number << ROW_BITS, part)

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(judged, bases))
        before = {chunk: base for _, of_file in found for chunk, base in of_file.items()}
        return np.concatenate([offsets for offsets, _ in found]), before


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


@dataclass
class JudgedFile:
    """A file's times, a piece at a time, and which of them are late.

    Attributes:
        file: The file.
        base: What was seen before it.
        lateness_us: The lateness bound.
        late: Late rows so far.
    """

    file: FileColumn
    base: Base
    lateness_us: int
    late: int = 0
    _begin: int = 0
    _times: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    _late: Mask | None = None
    _before: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        self._pieces = self.file.times()

    def of(self, rows: Ints) -> tuple[Ints, Mask | None]:
        """Times of some rows, and which are late (None: none).

        Args:
            rows: Their numbers in the file, int64, ascending; also from one call to the next.

        Raises:
            RecordError: The file cannot be read any more.
        """
        times: list[Ints] = []
        late: list[Mask] = []
        done = 0
        while done < len(rows):
            upto = int(np.searchsorted(rows, self._begin + len(self._times)))
            here = rows[done:upto] - self._begin
            times.append(self._times[here])
            late.append(np.zeros(len(here), bool) if self._late is None else self._late[here])
            done = upto
            if done < len(rows) and not self._more():
                raise RecordError(
                    f"File {unquote(self.file.uri)} has fewer rows than Spark has read of it; leave files as they are once they are there. "
                    "The epoch was not committed."
                )
        found = np.concatenate(late)
        return np.concatenate(times), found if found.any() else None

    def finish(self) -> int:
        """Look at the rest; how many rows of the file are late."""
        while self._more():
            pass
        return self.late

    def offsets(self, first: int, part: int) -> tuple[Ints, dict[ChunkId, Base]]:
        """Offsets of late rows, of more than `MANY_LATE` the first, and what was seen before each chunk that has some.

        Args:
            first: Offset of the file's first row.
            part: The partition's number.

        Raises:
            Inexact: The file cannot be read any more.
        """
        found, before = np.empty(0, np.int64), {}
        while self._next():
            if self._late is not None and self._late.any():
                offsets = first + self._begin + np.flatnonzero(self._late)
                found = np.append(found, offsets[: MANY_LATE + 1 - len(found)])
                chunks = np.unique(offsets >> CHUNK_BITS)
                latest = self._before[chunks - ((first + self._begin) >> CHUNK_BITS)]
                for chunk, seen in zip(chunks.tolist(), latest.tolist(), strict=True):
                    before[part, chunk] = Base(seen, self.base.late_floor)
        return found, before

    def _more(self) -> bool:
        """As `_next`, told to a person."""
        try:
            return self._next()
        except Inexact as error:
            raise RecordError(
                f"The event times of file {unquote(self.file.uri)} can no longer be read; put the file back as it was. "
                "The epoch was not committed."
            ) from error

    def _next(self) -> bool:
        """Take the next piece; whether there is one."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._begin += len(self._times)
        self._times, self._late = piece, None
        rows = 1 << CHUNK_BITS
        begins = np.append(0, np.arange(-self._begin % rows or rows, len(piece), rows))
        seen = np.maximum.accumulate(np.maximum(np.maximum.reduceat(piece, begins), self.base.latest))
        self._before = np.append(self._before[-1] if self._begin % rows else self.base.latest, seen[:-1])
        if (np.minimum.reduceat(piece, begins) < np.maximum(seen - self.lateness_us, self.base.late_floor)).any():
            one = np.zeros(len(piece), np.int64)
            self._late = late_rows(one, one, np.arange(len(piece)), piece, {(0, 0): self.base}, self.lateness_us)
            self.late += int(self._late.sum())
        self.base = Base(int(seen[-1]), self.base.late_floor)
        return True


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
