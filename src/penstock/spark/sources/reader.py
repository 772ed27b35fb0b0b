"""A source over Spark: the contract of its reader, and what all readers share: positions, malformed records, late ones.

A reader of its own names a subclass of `Reader` in `penstock.spark.sources.readers`. It must give the streaming DataFrame; what else it knows of
its records it says by overriding.

Read next: `penstock.spark.sources.rate`, `penstock.spark.sources.files`, `penstock.spark.sources.late_records`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.driver.engine import Bounds, Scan, SourceFrames
from penstock.driver.epoch import part_number
from penstock.driver.input_files import InputFile
from penstock.errors import DeclarationError, PenstockError
from penstock.flow.plan import SourceNode
from penstock.progress.ahead import Aside, in_question, put_aside
from penstock.progress.lateness import Base, Chunk, ChunkId
from penstock.progress.source_state import SourceState
from penstock.sources.base import MALFORMED
from penstock.spark.columns import array_sql, own_columns
from penstock.spark.failures import OURS
from penstock.spark.internals.plans import as_rdd, select_sql
from penstock.spark.sources.ahead_records import times_in, told_apart
from penstock.spark.sources.file_times import CHUNK_BITS, FileColumn
from penstock.spark.sources.late_records import CHUNK, LATE, Late, find_late, is_one_of, marked
from penstock.spark.sources.slices import ROW, Slices
from penstock.sql_text.schema import quoted, sql_text
from penstock.types import (
    HIDDEN,
    NULL_PARTITION,
    OFFSET,
    ORDER,
    PART,
    PART_BITS,
    PART_MASK,
    ROW_BITS,
    SUB,
    TIME,
    whole_partition,
)

if TYPE_CHECKING:
    from penstock.spark.sources.kept_input import KeptInput
    from penstock.spark.sources.planned import Planned

_EPOCHS_BITS: Final = 27  # of an offset that is local to its epoch: at five epochs per second almost a year
_PARTS_BITS: Final = 10
_ROWS_BITS: Final = 26
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
BAD: Final = "__ps_bad"
CORRUPT: Final = MALFORMED
"""Column with the text of a record that could not be parsed, of streams that have such."""
_FOUND: Final = ("least", "greatest", "last", "rows", "print")


class Reader:
    """Reads one source: its stream in a run, and in each epoch, as an object of the epoch's own, its records.

    Args:
        slices: The epoch's input.
        source: The source.
        ordinal: Its number.
        epoch: The epoch's number.
        kept: What the epoch has read before, and where to note what it reads.
        leave_times: Says, of a number of records and one of their files, whether late ones may be left to the tasks that get them (`RowTimes`).
        bounds: Which records are read; None: all of the epoch's.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """Columns of the stream that `offset` reads."""
    whole_chunks: ClassVar[bool] = False
    """Whether records with neighbouring offsets, as `offset` gives them, are read by one task."""

    def __init__(
        self,
        slices: Slices,
        source: SourceNode,
        ordinal: int,
        epoch: int,
        kept: KeptInput | None = None,
        leave_times: Callable[[int, str], bool] = lambda *_: False,
        bounds: Bounds | None = None,
    ) -> None:
        self._bounds = bounds
        self._slices = slices
        self._source = source
        self._ordinal = ordinal
        self._epoch = epoch
        self._kept_input = kept
        self._leave_times = leave_times
        self.left: dict[int, tuple[FileColumn, Base]] = {}
        """Files whose late records are left to tasks, and what was seen before each."""
        self._kept: list[DataFrame] = []
        self._asides: tuple[Aside, ...] = ()
        self._rows_by_chunk: dict[ChunkId, int] = {}
        self._forget()

    @staticmethod
    def check(spark: SparkSession, source: SourceNode) -> Sequence[str]:
        """A sentence for each thing to know of a source before it is read; a `DeclarationError` if it cannot be, as it was declared."""
        del spark, source
        return ()

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        """The streaming DataFrame, each epoch of which is as large as the source was declared to have it.

        Args:
            spark: A session as `penstock.spark.session.own.query_session` makes it.
            source: The source.
        """
        raise NotImplementedError

    @staticmethod
    def planned(source: SourceNode) -> Planned | None:
        """What plans and reads the source's epochs in the driver, without a streaming query; None: only a query of Spark's can.

        Args:
            source: The source.
        """
        del source
        return None

    @staticmethod
    def unread(spark: SparkSession, source: SourceNode, state: SourceState | None, given: Collection[str]) -> int:
        """How many files a flow that has ended has not read; 0 of a source that is none of files.

        Args:
            spark: A session.
            source: The source.
            state: Its state after the last epoch.
            given: Files that Spark has given the flow.
        """
        del spark, source, state, given
        return 0

    @staticmethod
    def listed(spark: SparkSession, source: SourceNode) -> Sequence[InputFile] | None:
        """The files that a source of files finds now; None: it is none.

        Args:
            spark: A session.
            source: The source.
        """
        del spark, source
        return None

    @staticmethod
    def leaves_times(source: SourceNode) -> bool:
        """Whether late records may be left to tasks (`penstock.spark.sources.row_times`)."""
        del source
        return False

    def offset(self) -> str:
        """SQL of each row's offset where the user names no position; of an offset local to the epoch if nothing better is known.

        It has the epoch's number, then that of the scan's partition, then that of the row in it.
        """
        name = sql_text(f"{OURS}Source {self._source.name!r}")
        if self._epoch >> _EPOCHS_BITS:
            raise PenstockError(
                f"Source {self._source.name!r} has been read in {self._epoch:,} epochs, more than positions of a source without "
                "position= can tell; start again with a new checkpoint, or declare position=."
            )
        part, place = f"shiftright({ROW}, {ROW_BITS})", f"({ROW} & {(1 << ROW_BITS) - 1}L)"
        # Always the first of one: the epoch's number as an array, so that the next epoch needs no other code.
        begin = f"get({array_sql([self._epoch << (_PARTS_BITS + _ROWS_BITS)])}, cast(shiftright({ROW}, 63) as int))"
        many = (
            f"{name} has more than {1 << _PARTS_BITS} partitions or {1 << _ROWS_BITS} records of one partition in an epoch; "
            "read less per epoch, or declare position=."
        )
        fits = f"{part} < {1 << _PARTS_BITS}L and {place} < {1 << _ROWS_BITS}L"
        return f"if({fits}, {begin} + shiftleft({part}, {_ROWS_BITS}) + {place}, cast(raise_error('{many}') as bigint))"

    def offset_bits_left(self) -> int:
        """How many of the upper bits of each `offset` in this epoch are 0, the sign's bit not counted."""
        return _EPOCHS_BITS - self._epoch.bit_length()

    def rows_known(self) -> int:
        """Number of the epoch's records; 0: it is not known without reading them."""
        return 0

    def statistics(self, before: SourceState) -> Future[tuple[Chunk, ...] | None] | None:
        """Begin to find out event times without a job of Spark's; None, then or at once: a job must find out.

        Args:
            before: The source's state after the epoch before.
        """
        del before
        return None

    def judged(self) -> tuple[Late, dict[ChunkId, Base]] | None:
        """Late records and the chunks that have some, where `statistics` found them, too; None: it did not."""
        return None

    def numbered(self, frame: DataFrame) -> DataFrame:
        """Rows as `offset` needs them."""
        return frame

    def _columns(self, columns: Sequence[str]) -> list[str] | None:
        """What of the stream must be read for some columns of it; None: all."""
        return list(dict.fromkeys([*columns, *self.needs]))

    def _parsed(self) -> bool:
        """Whether each record must be looked at to know whether it is malformed, also of a source without event time."""
        return False

    def _place(self, frame: DataFrame) -> str:
        """SQL of where a malformed record is, for people."""
        del frame
        if self._source.position is None:
            return f"format_string('%d @ %d', {PART} & {PART_MASK}L, {OFFSET})"
        return f"format_string('%s @ %s', {', '.join(f'cast({quoted(c)} as string)' for c in self._source.position)})"

    def _forget(self) -> None:
        """Forget frames, as what they read is another now."""
        self._sliced: DataFrame | None = None
        self._whole: DataFrame | None = None
        self._usual: DataFrame | None = None
        self._times: DataFrame | None = None

    @property
    def steady(self) -> bool:
        """Whether positions are the same when records are read again."""
        return self._source.position is not None or self._source.connector.steady

    @property
    def lateness_us(self) -> int:
        """The source's lateness bound."""
        return self._source.lateness_us

    def bits_left(self) -> int:
        """As `offset_bits_left`, of positions; 0 where that is not known."""
        return self.offset_bits_left() if self._source.position is None else 0

    def _slice(self, columns: Sequence[str] | None = None) -> DataFrame:
        """The source's rows as Spark reads them. `columns`: those wanted; None: all."""
        return self._slices.rows(self._ordinal + 1, None if columns is None else self._columns(columns))

    def _rows(self, frame: DataFrame, *, usual: bool = False) -> DataFrame:
        """Rows with hidden columns, and `BAD` where they can be malformed. One projection, made as SQL text.

        Args:
            frame: The rows as Spark reads them.
            usual: Without columns that only malformed rows need.
        """
        own = own_columns(frame)
        frame = self.numbered(frame)
        time = self._time()
        causes = [self._corrupt(frame)] * (CORRUPT in frame.columns) + [f"{time} is null"] * (self._source.time is not None)
        bad = f"({' or '.join(causes)})" if causes else "false"
        part, offset = self._position(frame, bad)
        hidden = [f"{time} as {TIME}", f"{part} as {PART}", f"{offset} as {OFFSET}", f"0L as {SUB}"]
        if not usual:
            own += [c for c in frame.columns if c in (*self.needs, CORRUPT) and c.startswith(HIDDEN)]
            hidden += [f"{bad} as {BAD}"] * bool(causes)
        rows = select_sql(frame, [*own, *hidden])
        within = self._within()
        return rows.where(within) if within else rows

    def _corrupt(self, frame: DataFrame) -> str:
        """SQL of whether a record of a text file is malformed.

        Spark parses only the columns that a plan reads, so this reads all: the second half is never true, which Spark cannot know.
        """
        kinds = {quoted(name): kind for name, kind in frame.dtypes}
        read = ", ".join(f"to_json({name})" if "map<" in kinds[name] else name for name in own_columns(frame))
        return f"({CORRUPT} is not null or (xxhash64({read}) & 1L) = 2L)"

    def _within(self) -> str:
        """SQL of whether a row is within the bounds; empty: each is."""
        bounds = self._bounds
        if bounds is None or not self.steady:
            return ""
        cases = " ".join(
            f"when {part_number(self._ordinal, self._partition_of(name))}L then {OFFSET} > {after}L and {OFFSET} <= {upto}L"
            for name, (after, upto) in bounds.partitions.items()
        )
        others = "true" if bounds.others else "false"
        return f"coalesce(case {PART} {cases} else {others} end, true)" if cases else others

    def _partition_of(self, name: str) -> int | str | None:
        """What `part_number` knows a partition by, whose name is as `Chunk.partition` has it."""
        if self._source.position is None:
            return 0  # the only one
        whole = self._source.whole_partitions
        return None if name == "None" and whole else int(name) if whole else name

    def _left(self) -> bool:
        """Whether the epoch has records behind the bounds."""
        bounds = self._bounds
        if bounds is None or not self.steady or bounds.others:
            return False
        last = {part_number(self._ordinal, self._partition_of(n)): upto for n, (_, upto) in bounds.partitions.items()}
        self._bounds = None
        try:
            rows = self._rows(self._slice([c for c in (self._source.time, *(self._source.position or ())) if c]))
            found = rows.groupBy(PART).agg(F.max(OFFSET).alias("last")).collect()
        finally:
            self._bounds = bounds
        return any(row["last"] is not None and row["last"] > last.get(row[PART], -1) for row in found)

    def _time(self) -> str:
        """SQL of each row's event time, in µs."""
        name = self._source.time
        if name is None:
            return "0L"
        return quoted(name) if name == self._source.connector.time else f"unix_micros(cast({quoted(name)} as timestamp))"

    def _position(self, frame: DataFrame, bad: str) -> tuple[str, str]:
        """SQL of each row's partition number and offset. `bad`: whether it is malformed, and so needs none."""
        source, base = self._source, self._ordinal << PART_BITS
        if source.position is None:
            return f"{base}L", self.offset()
        partition, offset = source.position
        text = self._name_of_partition(frame)
        number = (
            self._whole_number(partition, bad)
            if text is None
            else f"if({text} is null, {NULL_PARTITION}L, xxhash64({text}) & {NULL_PARTITION - 1}L)"
        )
        lacks = sql_text(
            f"{OURS}Source {source.name!r} has a record without an offset: column {offset!r} is null; give every record one, or "
            "leave such records out of the DataFrame with a where(…)."
        )
        none = f"if({bad}, cast(null as bigint), cast(raise_error('{lacks}') as bigint))"
        return f"({base}L + {number})", f"coalesce(cast({quoted(offset)} as bigint), {none})"

    def _whole_number(self, column: str, bad: str) -> str:
        """SQL of the number of a partition that is a whole number or null: see `whole_partition`."""
        value, name = f"cast({quoted(column)} as bigint)", sql_text(f"{OURS}Source {self._source.name!r}")
        wrong = f"concat('{name} has partition ', {value}, '; whole numbers must lie within ±2^47; cast it to string.')"
        return (
            f"case when {value} is null then {NULL_PARTITION}L when {value} between {1 - NULL_PARTITION}L and {NULL_PARTITION - 1}L "
            f"then {value} & {PART_MASK}L when {bad} then null else cast(raise_error({wrong}) as bigint) end"
        )

    def _name_of_partition(self, frame: DataFrame) -> str | None:
        """SQL of the name of each row's partition; None: partitions are numbers, which are their names."""
        position = self._source.position
        if position is None or dict(frame.dtypes)[position[0]] in _INTEGERS:
            return None
        return f"cast({quoted(position[0])} as string)"

    def _name_of(self, part: int) -> str:
        """The name of a partition that is a whole number or null."""
        return str(whole_partition(part))

    def scan(self, before: SourceState) -> Scan:
        """Times and offsets per chunk, and malformed records. At most one Spark job.

        Args:
            before: The source's state after the epoch before.
        """
        source = self._source
        if source.time is None and not self._parsed():
            return Scan(rows=self.rows_known())
        reading = None if source.time is None or source.position is not None else self.statistics(before)
        if reading is not None:
            self._on_time()  # meanwhile
            found = reading.result()
            if found is not None:
                return Scan(found)
        self._times = self._rows(self._slice([c for c in (source.time, *(source.position or ())) if c]))
        chunks, bad = self._grouped(self._times)
        self._rows_by_chunk = {(c.part, c.number): c.rows for c in chunks}
        chunks, ahead = self._judge_ahead(before, chunks, self._seen_in)
        return Scan(chunks, bad, self._first_malformed() if bad else "", left=self._left(), ahead=ahead)

    def _judge_ahead(
        self, before: SourceState, chunks: tuple[Chunk, ...], seen: Callable[[set[ChunkId]], Sequence[Any]]
    ) -> tuple[tuple[Chunk, ...], int]:
        """The chunks without the times of records that are ahead, and how many are. `seen`: see `put_aside`, of some chunks."""
        bound = self._source.ahead_us
        asked, some = (set[ChunkId](), False) if bound is None else in_question(before, chunks, bound)
        if bound is None or not some:
            return chunks, 0
        chunks, self._asides, rows = put_aside(before, chunks, bound, seen(asked), 1 << CHUNK_BITS)
        return chunks, rows

    def _seen_in(self, chunks: set[ChunkId]) -> list[Any]:
        """Partition, offset and time of the records of some chunks. A job, if there are any."""
        assert self._times is not None
        rows = self._times.where(f"not {BAD}") if BAD in self._times.columns else self._times
        return times_in(rows, chunks)

    def _grouped(self, rows: DataFrame) -> tuple[tuple[Chunk, ...], int]:
        """What there is of each chunk, and how many records are malformed."""
        # To group by numbers is faster; the name of a partition that is a number follows from it.
        by_text = self._name_of_partition(rows)
        name = [] if by_text is None else [f"{by_text} as __ps_name"]
        told = ", ".join((OFFSET, TIME, *self._source.connector.fingerprint))
        print_ = f"if({BAD}, null, xxhash64({told}))" if self.steady else "cast(null as bigint)"
        more = (f"if({BAD}, null, {TIME}) as time", f"{print_} as print")
        groups = rows.selectExpr(*name, PART, f"shiftright({OFFSET}, {CHUNK_BITS}) as {CHUNK}", *more, OFFSET, BAD).groupBy(
            *(["__ps_name"] if name else []), PART, CHUNK
        )
        found = groups.agg(
            F.expr("min(time) as least"),
            F.expr("max(time) as greatest"),
            F.expr(f"max({OFFSET}) as last"),
            F.expr(f"count_if(not {BAD}) as rows"),
            F.expr("bit_xor(print) as print"),
            F.expr(f"count_if({BAD}) as bad"),
        ).collect()
        chunks = tuple(
            Chunk(str(r["__ps_name"]) if name else self._name_of(r[PART]), *(r[c] for c in (PART, CHUNK, *_FOUND)))
            for r in found
            if r["rows"]
        )
        return chunks, sum(r["bad"] for r in found)

    def _first_malformed(self) -> str:
        row = self._malformed_rows().orderBy("position").limit(1).collect()[0]
        return f"at {row['position']}: {row['error']}: {row['record']}"

    def malformed(self) -> DataFrame:
        """Malformed records, as text."""
        return self._malformed_rows()

    def _malformed_rows(self) -> DataFrame:
        rows = self._all().where(BAD)
        shown = ", ".join(own_columns(rows))
        record, error = f"to_json(struct({shown}))", f"'{sql_text(self._source.time or '')} is null'"
        if CORRUPT in rows.columns:
            record = f"coalesce({CORRUPT}, {record})"
            error = f"if({CORRUPT} is not null, 'malformed', {error})"
        name, place = sql_text(self._source.name), self._place(rows)
        record = f"make_valid_utf8({record})"  # what it is malformed by must not be what its sink fails at
        return rows.selectExpr(f"'{name}' as source", f"{place} as position", f"{error} as error", f"{record} as record")

    def _read(self) -> DataFrame:
        """All rows as Spark reads them, with all columns."""
        if self._sliced is None:
            self._sliced = self._slice()
        return self._sliced

    def _all(self) -> DataFrame:
        """The same with hidden columns."""
        if self._whole is None:
            self._whole = self._rows(self._read())
        return self._whole

    def _on_time(self) -> DataFrame:
        """The epoch's records if none is late or malformed."""
        if self._usual is None:
            self._usual = self._rows(self._read(), usual=True)
        return self._usual

    def frames(self, candidate_chunks: dict[ChunkId, Base], *, malformed: bool) -> SourceFrames:
        """The epoch's records; late ones, which can only be in the chunks `candidate_chunks`, told apart exactly."""
        kept = [*own_columns(self._read()), *ORDER]
        marks = malformed and BAD in self._all().columns
        rows = select_sql(self._all().where(f"not {BAD}"), kept) if marks else self._on_time()
        bad = self.malformed() if malformed else None
        rows, ahead = told_apart(rows, self._asides)
        if not candidate_chunks or self.left:
            return SourceFrames(rows, None, bad, ahead=ahead)
        late, chunks = self.judged() or self._found(rows, candidate_chunks)
        if not chunks:
            return SourceFrames(rows, None, bad, ahead=ahead)
        if late.all and self.steady:
            is_late = is_one_of(late)
            return SourceFrames(rows.where(f"not {is_late}"), rows.where(is_late), bad, len(late.part), ahead)
        both = as_rdd(marked(rows, chunks, self.lateness_us)).persist()
        self._kept.append(both)
        found = both.where(LATE)
        return SourceFrames(both.where(f"not {LATE}").selectExpr(*kept), found.selectExpr(*kept), bad, found.count(), ahead)

    def _found(self, rows: DataFrame, suspects: dict[ChunkId, Base]) -> tuple[Late, dict[ChunkId, Base]]:
        """Late records, and the chunks that have some."""
        if self._times is not None:
            rows = self._times.where(f"not {BAD}") if BAD in self._times.columns else self._times
            rows, _ = told_apart(rows, self._asides)
        whole = self.whole_chunks and self._source.position is None
        late = find_late(rows, self._rows_by_chunk, suspects, self.lateness_us, whole=whole)
        having = late.chunks()
        return late, {chunk: base for chunk, base in suspects.items() if chunk in having}

    def done(self) -> None:
        """Forget what was kept for this epoch."""
        for frame in self._kept:
            frame.unpersist()


def unreadable(source: SourceNode, given: Any) -> DeclarationError:
    """What to say of a source that nothing reads over Spark."""
    return DeclarationError(f"Source {source.name!r} is {given!r}, which penstock cannot read over Spark.")


__all__ = ["CORRUPT", "Reader", "unreadable"]
