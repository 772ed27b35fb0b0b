"""Sources over Spark: the positions of their records, and which are late.

Read next: `penstock.spark.sources.streams`, `penstock.spark.sources.slices`, `penstock.spark.sources.file_times`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.driver.engine import Scan, SourceFrames
from penstock.errors import PenstockError
from penstock.flow.plan import SourceNode
from penstock.progress.lateness import Base, Chunk, ChunkId, begun, behind, chunks_of, falls_of, late_rows, none_suspect
from penstock.progress.source_state import SourceState
from penstock.rows.keys import Ints
from penstock.sources.connectors import Files, Rate
from penstock.spark.columns import array_sql, own_columns, select_sql
from penstock.spark.failures import OURS
from penstock.spark.sources.epoch_files import EpochFiles
from penstock.spark.sources.file_times import CHUNK_BITS, HELD_ROWS, FileColumn, FileTimes
from penstock.spark.sources.slices import ROW, Slices, as_rdd
from penstock.spark.sources.streams import CORRUPT, FILE, FILE_NAME
from penstock.sql_text.schema import quoted, sql_text
from penstock.types import MIN_TIME, NULL_PARTITION, OFFSET, ORDER, PART, PART_BITS, PART_MASK, SUB, TIME, whole_partition
from penstock.types import ROW_BITS as _ROW_BITS

_EPOCHS_BITS: Final = 27  # of an offset that is local to its epoch: at five epochs per second almost a year
_PARTS_BITS: Final = 10
_ROWS_BITS: Final = 26
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
BAD: Final = "__ps_bad"
_FOUND: Final = ("least", "greatest", "last", "rows")
_FEW: Final = 16
_SMALL_ROWS: Final = 1 << 18  # of so many rows partition, offset and time (24 bytes) are looked at by the driver
_MANY_LATE: Final = 2_000  # more are not written out in an expression
_CHUNK: Final = "__ps_chunk"
_KNOWN: Final = "__ps_known"
_READING: Final = ThreadPoolExecutor(4, "penstock-times")  # each uses several threads more


class SourceReader:
    """Reads one source in one epoch.

    Args:
        slices: The epoch's input.
        source: The source.
        ordinal: Its number.
        epoch: The epoch's number.
        files: The epoch's files, of a source of files.
        leave_times: Says, of a number of records and one of their files, whether late ones may be left to the tasks that get them (`RowTimes`).
    """

    def __init__(
        self,
        slices: Slices,
        source: SourceNode,
        ordinal: int,
        epoch: int,
        files: EpochFiles | None = None,
        leave_times: Callable[[int, str], bool] = lambda *_: False,
    ) -> None:
        self._slices = slices
        self._source = source
        self._ordinal = ordinal
        self._epoch = epoch
        self._leave_times = leave_times
        self.left: dict[int, tuple[FileColumn, Base]] = {}
        """Files whose late records are left to tasks, and what was seen before each."""
        self._of_files = files
        self._kept: list[DataFrame] = []
        self._sliced: DataFrame | None = None
        self._whole: DataFrame | None = None
        self._usual: DataFrame | None = None
        self._times: DataFrame | None = None
        self._seen: tuple[Ints, Ints, Ints] | None = None
        self._in_files: FileTimes | None = None
        self._rows_by_chunk: dict[ChunkId, int] = {}

    @property
    def lateness_us(self) -> int:
        """The source's lateness bound."""
        return self._source.lateness_us

    def _slice(self, columns: Sequence[str] | None = None) -> DataFrame:
        """The source's rows as Spark reads them. `columns`: those wanted; None: all."""
        connector = self._source.connector
        is_files = isinstance(connector, Files)
        wanted = None
        if columns is not None and not (is_files and connector.format in ("csv", "json")):
            extra = [FILE] if is_files else ["value"] if isinstance(connector, Rate) else []
            wanted = list(dict.fromkeys([*columns, *extra]))
        return self._slices.rows(self._ordinal + 1, wanted)

    @property
    def _files(self) -> dict[str, int]:
        """Numbers of the epoch's files that are read, by URI."""
        return self._of_files.read if self._of_files is not None else {}

    def _rows(self, frame: DataFrame, *, usual: bool = False) -> DataFrame:
        """Rows with hidden columns, and `BAD` where they can be malformed. One projection, made as SQL text.

        Args:
            frame: The rows as Spark reads them.
            usual: Without columns that only malformed rows need.
        """
        own = own_columns(frame)
        if self._of_files is not None:
            frame = self._of_files.numbered(frame)
        time = f"unix_micros(cast({quoted(self._source.time)} as timestamp))" if self._source.time else "0L"
        causes = [_corrupt(frame)] * (CORRUPT in frame.columns) + [f"{time} is null"] * (self._source.time is not None)
        bad = f"({' or '.join(causes)})" if causes else "false"
        part, offset = self._position(frame, bad)
        hidden = [f"{time} as {TIME}", f"{part} as {PART}", f"{offset} as {OFFSET}", f"0L as {SUB}"]
        if not usual:
            own += [c for c in frame.columns if c in (FILE, CORRUPT)]
            hidden += [f"{bad} as {BAD}"] * bool(causes)
        return select_sql(frame, [*own, *hidden])

    def _position(self, frame: DataFrame, bad: str) -> tuple[str, str]:
        """SQL of each row's partition number and offset. `bad`: whether it is malformed, and so needs none."""
        source, base = self._source, self._ordinal << PART_BITS
        if source.position is not None:
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
        if isinstance(source.connector, Rate):
            return f"{base}L", "value"
        if isinstance(source.connector, Files):
            # One partition of the scan per file, so the lower bits of the id are the row's number in its file.
            row = f"({ROW} & {(1 << _ROW_BITS) - 1}L)"
            assert self._of_files is not None
            # A file without a number would be processed out of order, so it is an error.
            told = f"concat('{OURS}The file ', {FILE}, ' came while the epoch was planned; start the flow again.')"
            known = f"coalesce({self._of_files.number_sql()}, cast(raise_error({told}) as bigint))"
            return f"{base}L", f"(shiftleft({known}, {_ROW_BITS}) + {row})"
        return f"{base}L", self._local_offset()

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

    def bits_left(self) -> int:
        """How many of the upper bits of every offset in this epoch are 0, the sign's bit not counted; 0 where that is not known."""
        connector = self._source.connector
        if self._source.position is not None or isinstance(connector, Rate):
            return 0
        if isinstance(connector, Files):
            return 63 - _ROW_BITS - max(self._files.values(), default=0).bit_length()
        return _EPOCHS_BITS - self._epoch.bit_length()

    def _local_offset(self) -> str:
        """SQL of an offset of this epoch's own: its number, then that of the scan's partition, then that of the row in it."""
        name = sql_text(f"{OURS}Source {self._source.name!r}")
        if self._epoch >> _EPOCHS_BITS:
            raise PenstockError(
                f"Source {self._source.name!r} has been read in {self._epoch:,} epochs, more than positions of a source without "
                "position= can tell; start again with a new checkpoint, or declare position=."
            )
        part, place = f"shiftright({ROW}, {_ROW_BITS})", f"({ROW} & {(1 << _ROW_BITS) - 1}L)"
        # Always the first of one: the epoch's number as an array, so that the next epoch needs no other code.
        begin = f"get({array_sql([self._epoch << (_PARTS_BITS + _ROWS_BITS)])}, cast(shiftright({ROW}, 63) as int))"
        many = (
            f"{name} has more than {1 << _PARTS_BITS} partitions or {1 << _ROWS_BITS} records of one partition in an epoch; "
            "read less per epoch, or declare position=."
        )
        fits = f"{part} < {1 << _PARTS_BITS}L and {place} < {1 << _ROWS_BITS}L"
        return f"if({fits}, {begin} + shiftleft({part}, {_ROWS_BITS}) + {place}, cast(raise_error('{many}') as bigint))"

    def scan(self, before: SourceState) -> Scan:
        """Times and offsets per chunk, and malformed records. At most one Spark job; none for most Parquet files."""
        files = self._of_files
        if files is None:
            return self._scan(before)
        files.find(before)
        while True:
            try:
                found = self._scan(before)
            except Exception as error:
                if not files.leave_out(error):
                    raise
                self._sliced = self._whole = self._usual = self._times = self._seen = None
            else:
                none = files.count()
                first = found.first_malformed or files.first if none else found.first_malformed
                order = files.order.to_json()
                names = files.names
                return replace(
                    found, malformed=found.malformed + none, first_malformed=first, files=len(names), names=names, order=order
                )

    def _scan(self, before: SourceState) -> Scan:
        source, connector = self._source, self._source.connector
        text = isinstance(connector, Files) and connector.format in ("csv", "json")
        if source.time is None and not text:
            return Scan(rows=self._file_rows)
        reading = self._read_times(before)
        if reading is not None:
            self._on_time()  # meanwhile
            found = reading.result()
            if found is not None:
                return Scan(found)
        rows = self._times = self._rows(self._slice([c for c in (source.time, *(source.position or ())) if c]))
        few = 0 < self._file_rows <= _SMALL_ROWS and source.position is None
        chunks, bad = self._grouped_here(rows) if few else self._grouped_there(rows)
        self._rows_by_chunk = {(c.part, c.number): c.rows for c in chunks}
        return Scan(chunks, bad, self._first_malformed() if bad else "")

    @property
    def _file_rows(self) -> int:
        """Number of records of Parquet files; 0: it is not known."""
        return self._of_files.rows if self._of_files is not None else 0

    def _read_times(self, before: SourceState) -> Future[tuple[Chunk, ...] | None] | None:
        """Begin to read the times of Parquet files; None: of these files Spark reads them."""
        if self._source.time is None or self._source.position is not None or not self._file_rows:
            return None
        return _READING.submit(self._chunks_of_files, before, self._leave_times(self._file_rows, next(iter(self._files))))

    def _chunks_of_files(self, before: SourceState, leave: bool) -> tuple[Chunk, ...] | None:
        """What there is of each chunk, or row group, of Parquet files, without a job; None: a job must find out.

        Args:
            before: The source's state after the epoch before.
            leave: Whether late records may be left to tasks.
        """
        assert self._source.time is not None
        assert self._of_files is not None
        column = self._source.connector.schema.field(self._source.time)
        files = FileTimes.of(self._files, self._of_files.footers, column, HELD_ROWS)
        if files is None:
            return None
        part = self._ordinal << PART_BITS
        coarse = files.groups(part)
        if coarse is not None and none_suspect(before, coarse, self._source.lateness_us):
            return coarse
        if coarse is not None and leave:
            self.left = files.bases(coarse, begun(before, "0"))
            return coarse
        chunks = files.chunks(part)
        if chunks is not None:
            self._in_files = files
        return chunks

    def _grouped_here(self, rows: DataFrame) -> tuple[tuple[Chunk, ...], int]:
        """What there is of each chunk, and how many records are malformed: by the driver, without a shuffle; kept for a closer look."""
        table: Any = rows.select(PART, OFFSET, TIME, BAD).toArrow()
        good = table.filter(pc.invert(table.column(BAD)))
        part, offset, time = self._seen = tuple(good.column(name).to_numpy() for name in (PART, OFFSET, TIME))
        chunks = chunks_of(part, offset >> CHUNK_BITS, offset, time, self._name_of)
        return chunks, table.num_rows - good.num_rows

    def _grouped_there(self, rows: DataFrame) -> tuple[tuple[Chunk, ...], int]:
        """The same, by Spark."""
        # To group by numbers is faster; the name of a partition that is a number follows from it.
        by_text = self._name_of_partition(rows)
        name = [] if by_text is None else [f"{by_text} as __ps_name"]
        groups = rows.selectExpr(
            *name, PART, f"shiftright({OFFSET}, {CHUNK_BITS}) as {_CHUNK}", f"if({BAD}, null, {TIME}) as time", OFFSET, BAD
        ).groupBy(*(["__ps_name"] if name else []), PART, _CHUNK)
        found = groups.agg(
            F.expr("min(time) as least"),
            F.expr("max(time) as greatest"),
            F.expr(f"max({OFFSET}) as last"),
            F.expr(f"count_if(not {BAD}) as rows"),
            F.expr(f"count_if({BAD}) as bad"),
        ).collect()
        chunks = tuple(
            Chunk(str(r["__ps_name"]) if name else self._name_of(r[PART]), *(r[c] for c in (PART, _CHUNK, *_FOUND)))
            for r in found
            if r["rows"]
        )
        return chunks, sum(r["bad"] for r in found)

    def _first_malformed(self) -> str:
        row = self._malformed_rows().orderBy("position").limit(1).collect()[0]
        return f"at {row['position']}: {row['error']}: {row['record']}"

    def malformed(self) -> DataFrame:
        """Malformed records, as text."""
        frames = [self._malformed_rows()] if BAD in self._all().columns else []
        return reduce(DataFrame.unionAll, [*frames, *(self._of_files.malformed() if self._of_files is not None else [])])

    def _malformed_rows(self) -> DataFrame:
        rows = self._all().where(BAD)
        shown = ", ".join(own_columns(rows))
        record, error = f"to_json(struct({shown}))", f"'{sql_text(self._source.time or '')} is null'"
        if CORRUPT in rows.columns:
            record = f"coalesce({CORRUPT}, {record})"
            error = f"if({CORRUPT} is not null, 'malformed', {error})"
        place = f"format_string('%d @ %d', {PART} & {PART_MASK}L, {OFFSET})"
        if self._source.position is not None:
            place = f"format_string('%s @ %s', {', '.join(f'cast({quoted(c)} as string)' for c in self._source.position)})"
            place = f"concat({FILE_NAME}, ' ', {place})" if FILE in rows.columns else place
        elif FILE in rows.columns:
            place = f"format_string('%s row %d', {FILE_NAME}, ({OFFSET} & {(1 << _ROW_BITS) - 1}L) + 1)"
        name = sql_text(self._source.name)
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
        late_chunks: dict[ChunkId, Base] = {}
        if candidate_chunks and not self.left:
            found = self._looked_at(candidate_chunks)
            if found is not None and sum(map(len, found.values())) <= _MANY_LATE:
                return _told_apart(rows, found, bad)
            late_chunks = self._guilty(rows, candidate_chunks) if found is None else _chunks_with(found, candidate_chunks)
        if not late_chunks:
            return SourceFrames(rows, None, bad)
        marked = as_rdd(self._marked(rows, late_chunks)).persist()
        self._kept.append(marked)
        late_rows = marked.where("__ps_late").count()
        late = marked.where("__ps_late").selectExpr(*kept)
        return SourceFrames(marked.where("not __ps_late").selectExpr(*kept), late, bad, late_rows)

    def _looked_at(self, candidate_chunks: dict[ChunkId, Base]) -> dict[int, Ints] | None:
        """By partition, the offsets of late records, found by the driver in at most one job without a shuffle; None: not for this epoch.

        Offsets must be the same when the rows are read again, and tell records apart.
        """
        seen = self._seen_of(candidate_chunks)
        if seen is None:
            return None
        part, offset, time = seen
        late = late_rows(part, offset >> CHUNK_BITS, offset, time, candidate_chunks, self._source.lateness_us)
        found: dict[int, Ints] = {}
        for number in np.unique(part[late]).tolist():
            mine = found[number] = offset[late & (part == number)]
            if self._in_files is not None:
                continue  # these offsets were counted by us
            if np.isin(offset[(part == number) & ~late], mine).any() or len(np.unique(mine)) < len(mine):
                return None
        return found

    def _seen_of(self, candidate_chunks: dict[ChunkId, Base]) -> tuple[Ints, Ints, Ints] | None:
        """Partition, offset and time of the suspects' records, or of all, if they are few enough for the driver."""
        if self._in_files is not None:
            few = len(candidate_chunks) << CHUNK_BITS <= HELD_ROWS
            return self._in_files.rows(candidate_chunks) if few else None
        steady = self._source.position is not None or isinstance(self._source.connector, (Files, Rate))
        every = sum(self._rows_by_chunk.values()) <= _SMALL_ROWS
        some = len(candidate_chunks) < _FEW and sum(self._rows_by_chunk[c] for c in candidate_chunks) <= _SMALL_ROWS
        if not steady or self._times is None or not (every or some):
            return None
        if self._seen is None:
            rows = self._times if BAD not in self._times.columns else self._times.where(f"not {BAD}")
            if not every:
                places = (f"{PART} = {p}L and shiftright({OFFSET}, {CHUNK_BITS}) = {c}L" for p, c in candidate_chunks)
                rows = rows.where(" or ".join(places))
            columns: Any = rows.select(PART, OFFSET, TIME).toArrow()
            self._seen = tuple(c.to_numpy() for c in columns.columns)
        return self._seen

    def _guilty(self, rows: DataFrame, candidate_chunks: dict[ChunkId, Base]) -> dict[ChunkId, Base]:
        """The suspects that do hold late records: how far does a record fall behind the greatest time before it in its chunk?

        The walk is done in Python: two numbers per record cross over, which is several times faster than Spark's own
        higher-order functions and needs no sort where a chunk is read by one task, as those of files are.
        """
        chosen = rows.selectExpr(PART, f"shiftright({OFFSET}, {CHUNK_BITS}) as {_CHUNK}", OFFSET, TIME)
        if len(candidate_chunks) < _FEW:  # else looking at all chunks is cheaper than picking some
            chosen = self._in_chunks(chosen, candidate_chunks).select(PART, _CHUNK, OFFSET, TIME)
        if not isinstance(self._source.connector, Files):
            chosen = chosen.repartition(PART, _CHUNK)
        found = chosen.mapInArrow(_falls, f"{PART} long, {_CHUNK} long, least long, fall long").collect()
        late_chunks = {}
        for row in found:
            base = candidate_chunks.get((row[PART], row[_CHUNK]))
            if base is None:
                continue
            if row["fall"] > self._source.lateness_us or row["least"] < max(
                behind(base.latest, self._source.lateness_us), base.late_floor
            ):
                late_chunks[row[PART], row[_CHUNK]] = base
        return late_chunks

    def _in_chunks(self, rows: DataFrame, chunks: dict[ChunkId, Base], how: str = "inner") -> DataFrame:
        """Rows of some chunks, with the number of their chunk and what is known before it (null for `MIN_TIME`)."""
        table = [
            (part, chunk, _or_null(base.latest), _or_null(base.late_floor), True) for (part, chunk), base in chunks.items()
        ]
        schema = f"{PART} long, {_CHUNK} long, __ps_latest long, __ps_floor long, {_KNOWN} boolean"
        known = F.broadcast(rows.sparkSession.createDataFrame(table, schema))
        return rows.withColumn(_CHUNK, F.expr(f"shiftright({OFFSET}, {CHUNK_BITS})")).join(known, [PART, _CHUNK], how)

    def _marked(self, rows: DataFrame, late_chunks: dict[ChunkId, Base]) -> DataFrame:
        """Rows with `__ps_late`: in the guilty chunks in offset order against the running maximum, elsewhere false."""
        inside = self._in_chunks(rows, late_chunks, "left")
        order = Window.partitionBy(PART, _CHUNK).orderBy(OFFSET).rowsBetween(Window.unboundedPreceding, -1)
        accused = inside.where(f"{_KNOWN} is not null").withColumn("__ps_top", F.max(TIME).over(order))
        bound = f"greatest(greatest(__ps_top, __ps_latest) - {self._source.lateness_us}L, __ps_floor)"
        marked = accused.selectExpr(*(quoted(c) for c in rows.columns), f"coalesce({TIME} < {bound}, false) as __ps_late")
        others = inside.where(f"{_KNOWN} is null").selectExpr(*(quoted(c) for c in rows.columns), "false as __ps_late")
        return marked.unionByName(others)

    def done(self) -> None:
        """Forget what was kept for this epoch."""
        for frame in self._kept:
            frame.unpersist()


def _chunks_with(late: dict[int, Ints], among: dict[ChunkId, Base]) -> dict[ChunkId, Base]:
    """Of some chunks those that have one of the late records, by partition and offset."""
    having = {(part, chunk) for part, offsets in late.items() for chunk in np.unique(offsets >> CHUNK_BITS).tolist()}
    return {chunk: base for chunk, base in among.items() if chunk in having}


def _told_apart(rows: DataFrame, late: dict[int, Ints], bad: DataFrame | None) -> SourceFrames:
    """The rows without and with those at the offsets `late`, by partition."""
    if not late:
        return SourceFrames(rows, None, bad)
    among = (f"({PART} = {p}L and {OFFSET} in ({', '.join(f'{o}L' for o in offsets.tolist())}))" for p, offsets in late.items())
    marked = f"coalesce({' or '.join(among)}, false)"
    return SourceFrames(rows.where(f"not {marked}"), rows.where(marked), bad, sum(map(len, late.values())))


def _corrupt(frame: DataFrame) -> str:
    """SQL of whether a record of a text file is malformed.

    Spark parses only the columns that a plan reads, so this reads all: the second half is never true, which Spark cannot know.
    """
    kinds = {quoted(name): kind for name, kind in frame.dtypes}
    read = ", ".join(f"to_json({name})" if "map<" in kinds[name] else name for name in own_columns(frame))
    return f"({CORRUPT} is not null or (xxhash64({read}) & 1L) = 2L)"


def _falls(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `falls_of`, in a task."""
    if tables := [b for b in batches if b.num_rows]:
        found = falls_of(*(c.to_numpy() for c in pa.Table.from_batches(tables).columns))
        yield pa.RecordBatch.from_arrays(list(map(pa.array, found)), names=[PART, _CHUNK, "least", "fall"])


def _or_null(time: int) -> int | None:
    return None if time == MIN_TIME else time


__all__ = ["SourceReader"]
