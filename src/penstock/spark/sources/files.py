"""Files over Spark: their rows' places are their offsets, and of Parquet files the footers say much without a job.

Read next: `penstock.spark.sources.epoch_files`, `penstock.spark.sources.file_times`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, Final

import numpy as np
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock.driver.engine import Scan
from penstock.driver.input_files import InputFile, Order
from penstock.errors import RecoveryError
from penstock.flow.plan import SourceNode
from penstock.progress.ahead import in_question
from penstock.progress.lateness import Base, Chunk, ChunkId, begun, none_suspect
from penstock.progress.source_state import SourceState
from penstock.spark.columns import spark_schema
from penstock.spark.failures import OURS
from penstock.spark.internals.found_files import listed, normal
from penstock.spark.internals.local_files import encoding_of_names
from penstock.spark.sources.epoch_files import EpochFiles
from penstock.spark.sources.file_frames import FILE, FILE_NAME, read_files
from penstock.spark.sources.file_times import MANY_LATE, FileTimes, Inexact
from penstock.spark.sources.late_records import Late
from penstock.spark.sources.overlooked import check_folder, overlooked
from penstock.spark.sources.reader import BAD, Reader
from penstock.spark.sources.slices import ROW
from penstock.types import OFFSET, PART_BITS, ROW_BITS

_READING: Final = ThreadPoolExecutor(4, "penstock-times")  # each uses several threads more


class FilesReader(Reader):
    """See `penstock.files`."""

    needs = (FILE,)
    whole_chunks = True

    @staticmethod
    def check(spark: SparkSession, source: SourceNode) -> Sequence[str]:
        files: Any = source.connector
        check_folder(source.name, files)
        return overlooked(source.name, files, encoding_of_names(spark))

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        files: Any = source.connector
        return read_files(spark, files)

    @staticmethod
    def unread(spark: SparkSession, source: SourceNode, state: SourceState | None, given: Collection[str]) -> int:
        order = Order() if state is None else Order.from_json(state.order)
        read = (set(given) | {normal(uri) for uri in order.ahead}) - {normal(file.uri) for file in order.owed}
        return len({normal(path) for path in _there(spark, source.connector)} - read)

    @staticmethod
    def listed(spark: SparkSession, source: SourceNode) -> Sequence[InputFile] | None:
        if source.position is not None:
            raise RecoveryError(
                f"The state of a flow cannot be computed from the log while source {source.name!r} reads files and takes its positions from columns; leave out "
                "position= in flows that are to be recomputed. Nothing was changed."
            )
        return all_files(spark, source.connector)

    def _within(self) -> str:
        return ""  # whole files are left out

    def _left(self) -> bool:
        return False

    @staticmethod
    def leaves_times(source: SourceNode) -> bool:
        connector: Any = source.connector
        return bool(connector.format == "parquet")

    @cached_property
    def files(self) -> EpochFiles:
        """The epoch's files."""
        assert self._kept_input is not None
        upto = None if self._bounds is None else self._bounds.files
        return EpochFiles(self._slices, self._source, self._ordinal + 1, self._epoch, self._kept_input, upto)

    def offset(self) -> str:
        # One partition of the scan per file, so the lower bits of the id are the row's number in its file.
        row = f"({ROW} & {(1 << ROW_BITS) - 1}L)"
        # A file without a number would be processed out of order, so it is an error.
        told = f"concat('{OURS}The file ', {FILE}, ' came while the epoch was planned; start the flow again.')"
        known = f"coalesce({self.files.number_sql()}, cast(raise_error({told}) as bigint))"
        return f"(shiftleft({known}, {ROW_BITS}) + {row})"

    def offset_bits_left(self) -> int:
        return 63 - ROW_BITS - max(self.files.read.values(), default=0).bit_length()

    def numbered(self, frame: DataFrame) -> DataFrame:
        return self.files.numbered(frame)

    def rows_known(self) -> int:
        return self.files.rows

    def _parsed(self) -> bool:
        connector: Any = self._source.connector
        return connector.format in ("csv", "json")

    def _columns(self, columns: Sequence[str]) -> list[str] | None:
        return None if self._parsed() else super()._columns(columns)

    def _place(self, frame: DataFrame) -> str:
        if self._source.position is not None:
            return f"concat({FILE_NAME}, ' ', {super()._place(frame)})"
        return f"format_string('%s row %d', {FILE_NAME}, ({OFFSET} & {(1 << ROW_BITS) - 1}L) + 1)"

    def scan(self, before: SourceState) -> Scan:
        files = self.files
        files.find(before)
        while True:
            try:
                found = super().scan(before)
            except Exception as error:
                if not files.leave_out(error):
                    raise
                self._forget()
            else:
                none, names = files.count(), files.names
                first = found.first_malformed or (files.first if none else "")
                order = files.order.to_json()
                return replace(
                    found,
                    malformed=found.malformed + none,
                    first_malformed=first,
                    files=len(names),
                    names=names,
                    order=order,
                    places=tuple(f.place for f in files.chosen),
                    sizes=tuple(f.size for f in files.chosen),
                    left=files.left,
                )

    def malformed(self) -> DataFrame:
        frames = [super().malformed()] if BAD in self._all().columns else []
        return reduce(DataFrame.unionAll, [*frames, *self.files.malformed()])

    def statistics(self, before: SourceState) -> Future[tuple[Chunk, ...] | None] | None:
        if not self.files.rows:
            return None
        leave = self._leave_times(self.files.rows, next(iter(self.files.read)))
        return _READING.submit(self._chunks_of_files, before, leave)

    def _chunks_of_files(self, before: SourceState, leave: bool) -> tuple[Chunk, ...] | None:
        """What there is of each row group of Parquet files, without a job; None: a job must find out."""
        assert self._source.time is not None
        column = self._source.connector.schema.field(self._source.time)
        times = FileTimes.of(self.files.read, self.files.footers, column)
        part = self._ordinal << PART_BITS
        groups = None if times is None else times.groups(part)
        bound = self._source.ahead_us
        if groups is not None and bound is not None and in_question(before, groups, bound)[1]:
            return None  # a job looks at single records
        if times is None or groups is None or none_suspect(before, groups, self.lateness_us):
            return groups
        bases = times.bases(groups, begun(before, "0"))
        if leave:
            self.left = bases
            return groups
        try:
            offsets, chunks = times.late(bases, part, self.lateness_us)
        except Inexact:
            return None
        self._judged = Late(np.full(len(offsets), part), offsets, len(offsets) <= MANY_LATE), chunks
        return groups

    _judged: tuple[Late, dict[ChunkId, Base]] | None = None

    def judged(self) -> tuple[Late, dict[ChunkId, Base]] | None:
        return self._judged


def _there(spark: SparkSession, files: Any) -> list[str]:
    """The files as Spark lists them when it follows the folder."""
    return [file.uri for file in all_files(spark, files)]


def all_files(spark: SparkSession, files: Any) -> Sequence[InputFile]:
    """The files of a source as Spark lists them when it follows the folder, in any order."""
    try:
        reader = spark.read.format(files.format).options(**files.options).schema(spark_schema(files.schema))
        frame = reader.load(files.path)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return ()
        raise
    return listed(frame).files


__all__ = ["FilesReader"]
