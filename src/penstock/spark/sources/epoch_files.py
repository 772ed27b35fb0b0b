"""The files that a source reads in one epoch: which, in which order, and which of them are none.

Read next: `penstock.driver.input_files`, `penstock.spark.sources.files`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.driver.input_files import InputFile, Order, changed, choose, cut, first_difference, gone
from penstock.errors import PenstockError, RecordError
from penstock.flow.plan import SourceNode
from penstock.progress.source_state import SourceState
from penstock.sources.files import Files
from penstock.spark.columns import array_sql, case_counts
from penstock.spark.internals.found_files import Found, listed, normal, unread
from penstock.spark.sources.file_frames import (
    FILE,
    FILE_NAME,
    has_to_be_split,
    joined,
    read_again,
    read_alike,
    read_records,
)
from penstock.spark.sources.footers import (
    Footer,
    check_columns,
    columns_of_folders,
    look_at,
    number_files,
    parquet_refusal,
    read_footers,
    short_name,
)
from penstock.spark.sources.kept_input import KeptInput
from penstock.spark.sources.slices import ROW, Slices
from penstock.sql_text.schema import sql_text

_MANY_FILES: Final = 16
_FAILED: Final = re.compile(
    r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (.+?)\.\s*(?:SQLSTATE|$)", re.MULTILINE
)
_CAUSE: Final = re.compile(r"^Caused by: (?!.*FAILED_READ_FILE)[\w.$]+: (.+)$", re.MULTILINE)
_HEADER: Final = re.compile(r"^ Header: (.*)$", re.MULTILINE)
_NOT_THERE: Final = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.\s*(?:SQLSTATE|$)")


class EpochFiles:
    """The files of one source in one epoch.

    Args:
        slices: The epoch's input.
        source: The source, which must be one of files.
        tag: Its tag there.
        epoch: Number of the epoch.
        kept: What the epoch has read before, and where to note what it reads.
        upto: Up to how many files the flow has read after it; None: all that it is given.
    """

    def __init__(
        self, slices: Slices, source: SourceNode, tag: int, epoch: int, kept: KeptInput, upto: int | None = None
    ) -> None:
        assert isinstance(source.connector, Files)
        self._spark, self._slices, self._source, self._tag = slices.session, slices, source, tag
        self._connector = source.connector
        self._epoch, self._kept, self._upto = epoch, kept, upto
        self.left: bool = False
        """Whether it is given files that it does not read."""
        self._given: set[str] = set()
        self._files: tuple[InputFile, ...] = ()
        self._left_out: dict[str, str] = {}
        self._headless: dict[str, str] = {}
        self._records: list[Any] | None = None
        self._batch: DataFrame | None = None
        self.order = Order()
        """How far the source's files have been read after this epoch."""
        self.numbers: dict[str, int] = {}
        """Of all files, by URI."""
        self.footers: dict[str, Footer | None] = {}
        """Of Parquet files that are read."""

    def find(self, before: SourceState) -> None:
        """Find the files and number them; look at what Parquet files say of themselves.

        Args:
            before: The source's state after the epoch before.

        Raises:
            RecordError: A file that must be read is gone, or another one than when the epoch ran before; or it is none, or lacks a
                column, and the source does not skip such.
        """
        found = self._found()
        order = Order.from_json(before.order)
        self._given = {f.uri for f in found.files}
        lost = [uri for uri in found.gone if uri not in order.ahead and not self._kept.was_refused(uri)]
        if lost:
            raise gone(self._source.name, self._epoch, lost[0])
        kept = self._kept.before(self._source.name)
        self._files, self.order = kept or choose(found.files, self._rest(found, order), order)
        if self._upto is not None:
            every = self._files if kept is None else choose(found.files, self._rest(found, order), order)[0]
            self._files, self.order, self.left = cut(every, self.order, order, self._upto - before.files)
        self._compare({f.uri: f for f in found.files}, begun=kept is not None)
        self.numbers = number_files(self._files, before.files)
        if self._connector.format == "parquet":
            self._look_into()
        if found.doubled or self.read.keys() != self._given or has_to_be_split(self._connector, list(self.read)):
            self._read_instead()
        self._kept.add(self._source.name, self._files, self.order)

    @property
    def chosen(self) -> Sequence[InputFile]:
        """All files, in the order of their numbers."""
        return self._files

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files for people, in the order of their numbers."""
        return tuple(map(short_name, sorted(self.numbers, key=self.numbers.__getitem__)))

    @property
    def read(self) -> dict[str, int]:
        """Numbers of the files that are read, by URI: all but those that are none."""
        return {uri: n for uri, n in self.numbers.items() if uri not in self._left_out and uri not in self._headless}

    @property
    def rows(self) -> int:
        """Number of records of Parquet files; 0 if it is not known."""
        rows = [footer.rows for footer in self.footers.values() if footer is not None]
        return sum(rows) if len(rows) == len(self.footers) else 0

    def _found(self) -> Found:
        found = self._slices.files(self._tag)
        if found is None:
            rows = self._slices.rows(self._tag, [FILE]).select(FILE).distinct().collect()
            found = Found(tuple(look_at(normal(row[0]) for row in rows).values()))
        return found

    def _rest(self, found: Found, order: Order) -> Sequence[InputFile]:
        """Files that Spark could as well have given in place of some that it gave."""
        most, files = self._connector.max_files_per_epoch, found.files
        by_bytes = any(name.lower() == "maxbytespertrigger" for name in self._connector.options)
        if found.stream is None or not files or not (by_bytes or (most is not None and len(files) >= most)):
            return ()
        known = {*self._given, *order.ahead}
        moment = max(f.mtime_ms for f in files)
        number = len(files) + len(order.ahead)
        try:
            return unread(
                self._spark, found.stream, moment, order.reached or (0, ""), known, number, listed=not self._kept.first
            )
        except Exception:  # noqa: BLE001  (internals of Spark; without them its order stands)
            return ()

    def _compare(self, now: dict[str, InputFile], *, begun: bool) -> None:
        """Refuse files that are not what they were when they were found first.

        `begun`: this epoch has run before. Otherwise nobody has read them: one that Spark gave to an earlier epoch, which left it to this one, may
        have another length since, and is read as it is.
        """
        if any(f.uri not in now for f in self._files):
            now = self._as_listed([f.uri for f in self._files])
        if not begun:
            self._files = tuple(now[f.uri] if f.uri in now and now[f.uri].place == f.place else f for f in self._files)
        wrong = first_difference(self._files, now)
        if wrong is not None:
            was, is_now = wrong
            name = self._source.name
            raise gone(name, self._epoch, was.uri) if is_now is None else changed(name, self._epoch, was, is_now)

    def _as_listed(self, uris: Sequence[str]) -> dict[str, InputFile]:
        """Files of which Spark does not give all in this epoch, as it finds them now."""
        try:
            frames = read_alike(self._spark, self._connector, uris)
            self._batch = joined(frames)
            return {f.uri: f for frame in frames for f in listed(frame).files}
        except Exception as error:
            missing = _NOT_THERE.search(str(error))
            if missing is None:
                raise
            told = unquote(normal(missing[1]))
            lost = next((uri for uri in uris if unquote(uri) == told), told)
            raise gone(self._source.name, self._epoch, lost) from None

    def _look_into(self) -> None:
        self.footers = read_footers(self.numbers, self._source.time if self._source.position is None else None)
        for file in self._files:
            if self.footers[file.uri] is None and (refused := parquet_refusal(file)):
                self._refuse(file.uri, refused.sentence)
                del self.footers[file.uri]
                self._left_out[file.uri] = f"the file {refused.sentence}"
        check_columns(self._source.name, self._connector, self.footers, sensitive=case_counts(self._slices.session))

    def _refuse(self, uri: str, why: str) -> None:
        """Stop at a file that is none, unless the source skips such."""
        if self._source.on_error == "fail":
            self._kept.refuse(uri)
            raise RecordError(
                f'File {unquote(uri)} of source {self._source.name!r} {why}; fix or remove it, or declare on_error="skip" or a sink '
                "for what cannot be read. The epoch was not committed."
            )

    def _read_instead(self) -> None:
        read = self.read
        whole = self._batch if len(read) == len(self._files) else None
        self._slices.read_instead(self._tag, whole or read_again(self._spark, self._connector, list(read)))

    def numbered(self, frame: DataFrame) -> DataFrame:
        """Rows as `number_sql` needs them: of many files with their file's number, from a table, as a long list would be searched from its start
        for each row.
        """
        if len(self.read) <= _MANY_FILES:
            return frame
        table = frame.sparkSession.createDataFrame(self._spelled(), f"{FILE} string, __ps_number long")
        return frame.join(F.broadcast(table), FILE, "left")

    def number_sql(self) -> str:
        """SQL of the number of a row's file: the same code in every epoch of as many files.

        Compiled into comparisons of texts, which differ in length mostly; a map would be searched by slower ones.
        """
        if len(self.read) > _MANY_FILES:
            return "__ps_number"
        spelled = self._spelled()
        if not spelled:
            return "cast(null as bigint)"
        cases = " ".join(f"when '{sql_text(uri)}' then {i}" for i, (uri, _) in enumerate(spelled, 1))
        return f"element_at({array_sql(number for _, number in spelled)}, case {FILE} {cases} end)"

    def _spelled(self) -> list[tuple[str, int]]:
        """Files and their numbers, local files both ways that Spark may write them: to fix the text of each row would cost more."""
        read = self.read
        both = [(uri.replace("file:///", "file:/", 1), number) for uri, number in read.items() if uri.startswith("file:///")]
        return [*read.items(), *both]

    def leave_out(self, error: BaseException) -> bool:
        """Leave out the file that Spark could not read, if the source skips what cannot be read; gives whether it did.

        Raises:
            RecordError: The file has other columns than declared, and the source does not skip.
        """
        text = str(error)
        failed = _FAILED.search(text)
        if failed is None or isinstance(error, PenstockError):
            return False
        told = unquote(normal(failed[1]))
        uri = next((uri for uri in self.read if unquote(uri) == told), None)
        if uri is None:
            return False
        if "CSV header" in text:
            why = self._header(uri, text)
            self._refuse(uri, why)
            self._headless[uri] = f"the file {why}"
        elif self._source.on_error == "fail":
            return False
        else:
            causes = _CAUSE.findall(text)
            self._left_out[uri] = f"the file cannot be read: {causes[-1].rstrip('.:') if causes else 'Spark says no more'}"
        self._read_instead()
        return True

    def _header(self, uri: str, text: str) -> str:
        folders = {name.lower() for name in columns_of_folders(uri)}
        declared = ", ".join(name for name in self._connector.schema.names if name.lower() not in folders)
        told = _HEADER.search(text)
        found = told[1].strip() if told else self._first_line(uri)
        return f"does not have the declared columns: its first line names {found}, where {declared} is expected"

    def _first_line(self, uri: str) -> str:
        """The columns that a CSV file names."""
        first = read_records(self._spark, self._connector, [uri], header=False).limit(1).collect()
        return ", ".join(str(first[0]["text"]).split(",")) if first else "nothing"

    def count(self) -> int:
        """Number of records that are malformed because their file is none: those of a CSV file with other columns, else one of each."""
        if self._headless and self._records is None:
            rows = read_records(self._spark, self._connector, list(self._headless))
            self._records = rows.groupBy(FILE).count().collect()
        counted = {normal(row[FILE]): row["count"] for row in self._records or ()}
        return len(self._left_out) + sum(int(counted.get(uri, 1)) for uri in self._headless)

    @property
    def first(self) -> str:
        """One of them, for the error."""
        uri, why = next(iter({**self._left_out, **self._headless}.items()))
        return f"{unquote(uri)}: {why}"

    def malformed(self) -> list[DataFrame]:
        """These records as `Reader.malformed` gives them."""
        frames, name = [], sql_text(self._source.name)
        counted = {normal(row[FILE]) for row in self._records or ()}
        whole = {**self._left_out, **{uri: why for uri, why in self._headless.items() if uri not in counted}}
        if whole:
            rows = [(self._source.name, unquote(uri.rpartition("/")[2]), why, "") for uri, why in whole.items()]
            frames.append(self._spark.createDataFrame(rows, "source string, position string, error string, record string"))
        if counted:
            spelled = [(s, why) for uri, why in self._headless.items() for s in {uri, uri.replace("file:///", "file:/", 1)}]
            table = self._spark.createDataFrame(spelled, f"{FILE} string, error string")
            rows_of = read_records(self._spark, self._connector, list(self._headless)).withColumn(
                ROW, F.monotonically_increasing_id()
            )
            place = f"format_string('%s row %d', {FILE_NAME}, ({ROW} & {(1 << 33) - 1}L) + 1)"
            joined = rows_of.join(F.broadcast(table), FILE)
            frames.append(joined.selectExpr(f"'{name}' as source", f"{place} as position", "error", "text as record"))
        return frames


__all__ = ["EpochFiles"]
