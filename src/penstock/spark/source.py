"""Sources over Spark: how each is read as a stream, and the positions of its records.

All sources and the control log are one streaming DataFrame: a tag, and per source a struct that is null for the others' rows. In
an epoch every source is cut out of it again (`Slices`), so that reading one does not run the others, and only the columns that
are needed are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import DeclarationError
from penstock.flow.plan import SourceNode
from penstock.runtime.driver import Scan, SourceFrames
from penstock.runtime.lateness import Base, Chunk
from penstock.runtime.record import SourceState
from penstock.schema import quoted
from penstock.sources.connectors import Files, Rate
from penstock.spark.columns import named, spark_schema
from penstock.types import MIN_TIME, OFFSET, PART, SUB, TIME

CORRUPT: Final = "__ps_corrupt"
FILE: Final = "__ps_file"
CHUNK_BITS: Final = 12
_ROW_BITS: Final = 33
_EPOCH_BITS: Final = 43
_MASK48: Final = (1 << 48) - 1
_MANY_FILES: Final = 64
BAD: Final = "__ps_bad"
_URI: Final = f"regexp_replace({FILE}, '^file:/+', 'file:///')"


def read_stream(spark: SparkSession, source: SourceNode) -> DataFrame:
    """The streaming DataFrame of a source, with what its positions need."""
    connector: Any = source.connector
    if isinstance(connector, Files):
        return _read_files(spark, connector)
    if isinstance(connector, Rate):
        return spark.readStream.format("rate").option("rowsPerSecond", connector.rows_per_second).load()
    if isinstance(connector, DataFrame) or hasattr(connector, "isStreaming"):
        frame: DataFrame = connector
        return frame
    raise DeclarationError(f"Source {source.name!r} is {connector!r}, which penstock cannot read over Spark.")


def _read_files(spark: SparkSession, files: Files) -> DataFrame:
    schema = spark_schema(files.schema)
    reader = spark.readStream.format(files.format)
    if files.format in ("csv", "json"):
        schema = schema.add(CORRUPT, "string")
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
    if files.format == "csv":
        # Column pruning would parse only some columns, so whether a record is malformed would depend on what is read.
        reader = reader.option("header", "true").option("enforceSchema", "false").option("columnPruning", "false")
    if files.max_files_per_epoch is not None:
        reader = reader.option("maxFilesPerTrigger", files.max_files_per_epoch)
    frame = reader.options(**files.options).schema(schema).load(files.path)
    return frame.select(*(named(c) for c in frame.columns), F.col("_metadata.file_path").alias(FILE))


def tagged(frame: DataFrame, tag: int) -> DataFrame:
    """Rows of one source for the common stream."""
    return frame.select(F.lit(tag).alias("tag"), F.struct(*(named(c) for c in frame.columns)).alias(f"s{tag}"))


class Slices:
    """One epoch's input, source by source.

    Spark hands ``foreachBatch`` a DataFrame that can only be run as a whole. The plan behind it, with this epoch's offsets, is
    asked of the running query, so that each source can be read alone and by the columns that are needed. Where Spark does not
    give it (another version), the whole DataFrame is used: slower, the same rows.

    Args:
        frame: What ``foreachBatch`` got.
        query: The running query (its Java object), or None.
    """

    def __init__(self, frame: DataFrame, query: Any) -> None:
        self._frame = frame
        self._plan = self._logical_plan(query) if query is not None else None

    def _logical_plan(self, query: Any) -> DataFrame | None:
        try:
            session = self._frame.sparkSession
            logical = query.streamingQuery().lastExecution().logical().child()
            jvm: Any = session._jvm
            return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._frame._jdf.sparkSession(), logical), session)
        except Exception:  # noqa: BLE001  (internals of Spark; the public way below gives the same rows)
            return None

    def rows(self, tag: int, columns: Sequence[str] | None = None) -> tuple[DataFrame, list[str]]:
        """Rows of one source as a batch DataFrame, and the files they come from if they come from files.

        Args:
            tag: The source's tag.
            columns: Its columns; None: all.
        """
        chosen = [f"s{tag}.*"] if columns is None else [f"s{tag}.`{c}`" for c in columns]
        if self._plan is None:
            return self._frame.where(f"tag = {tag}").select(*chosen), []
        streaming = self._plan.where(f"tag = {tag}").select(*chosen)
        jdf: Any = streaming._jdf
        files = [str(f) for f in jdf.inputFiles()]
        batch = self._frame._jdf.sparkSession().internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)
        return DataFrame(batch, self._frame.sparkSession), files


class SourceReader:
    """Reads one source in one epoch.

    Args:
        slices: The epoch's input.
        source: The source.
        ordinal: Its number.
        epoch: The epoch's number.
    """

    def __init__(self, slices: Slices, source: SourceNode, ordinal: int, epoch: int) -> None:
        self._slices = slices
        self._source = source
        self._ordinal = ordinal
        self._epoch = epoch
        self._files: dict[str, int] = {}
        self._kept: list[DataFrame] = []
        self._whole: DataFrame | None = None

    def _rows(self, before: SourceState | None, columns: Sequence[str] | None = None) -> DataFrame:
        """The source's rows with hidden columns, and `BAD` where rows can be malformed. One projection, made as SQL text.

        Args:
            before: The source's state, where files are to be numbered; None: they have been.
            columns: The columns wanted; None: all.
        """
        connector = self._source.connector
        is_files = isinstance(connector, Files)
        wanted = None
        if columns is not None:
            extra = [FILE] if is_files else ["value"] if isinstance(connector, Rate) else []
            if is_files and connector.format in ("csv", "json"):
                extra.append(CORRUPT)
            wanted = list(dict.fromkeys([*columns, *extra]))
        frame, files = self._slices.rows(self._ordinal + 1, wanted)
        if before is not None and is_files:
            self._files = number_files(files or [r[0] for r in frame.select(FILE).distinct().collect()], before.files)
        if is_files and len(self._files) > _MANY_FILES:
            frame = self._joined(frame)
        time = f"unix_micros(cast({quoted(self._source.time)} as timestamp))" if self._source.time else "0L"
        part, offset = self._position(frame)
        shown = [quoted(c) for c in frame.columns if not c.startswith("__ps_") or c in (FILE, CORRUPT)]
        hidden = [f"{time} as {TIME}", f"{part} as {PART}", f"{offset} as {OFFSET}", f"0L as {SUB}"]
        causes = [f"{CORRUPT} is not null"] * (CORRUPT in frame.columns) + [f"{time} is null"] * (self._source.time is not None)
        if causes:
            hidden.append(f"({' or '.join(causes)}) as {BAD}")
        return frame.selectExpr(*shown, *hidden)

    def _position(self, frame: DataFrame) -> tuple[str, str]:
        """SQL of each row's partition number and offset."""
        source, base = self._source, self._ordinal << 48
        if source.position is not None:
            partition, offset = source.position
            number = f"cast({quoted(partition)} as bigint)"
            if dict(frame.dtypes)[partition] not in ("tinyint", "smallint", "int", "bigint"):
                number = f"(xxhash64(cast({quoted(partition)} as string)) & {_MASK48}L)"
            return f"({base}L + {number})", f"cast({quoted(offset)} as bigint)"
        if isinstance(source.connector, Rate):
            return f"{base}L", "value"
        if isinstance(source.connector, Files):
            # One partition of the scan per file, so the lower bits of the id are the row's number in its file.
            row = f"(monotonically_increasing_id() & {(1 << _ROW_BITS) - 1}L)"
            number = "__ps_number"
            if len(self._files) <= _MANY_FILES:
                pairs = ", ".join(f"'{sql_text(uri)}', {number}L" for uri, number in self._files.items())
                number = f"element_at(map({pairs}), {_URI})" if pairs else "cast(null as bigint)"
            else:
                row = "__ps_row"
            # A file without a number would be processed out of order, so it is an error.
            known = f"coalesce({number}, cast(raise_error(concat('penstock does not know the file ', {FILE})) as bigint))"
            return f"{base}L", f"(shiftleft({known}, {_ROW_BITS}) + {row})"
        return f"{base}L", f"({self._epoch << _EPOCH_BITS}L + (monotonically_increasing_id() & {(1 << _EPOCH_BITS) - 1}L))"

    def _joined(self, frame: DataFrame) -> DataFrame:
        """Rows of many files with their file's number, from a table: a literal map would be searched from its start for each row."""
        row = f"monotonically_increasing_id() & {(1 << _ROW_BITS) - 1}L as __ps_row"
        table = frame.sparkSession.createDataFrame(list(self._files.items()), "__ps_uri string, __ps_number long")
        return frame.selectExpr("*", row, f"{_URI} as __ps_uri").join(F.broadcast(table), "__ps_uri", "left")

    def scan(self, before: SourceState) -> Scan:
        """Times and offsets per chunk, and malformed records. One Spark job; none if there is nothing to look for."""
        source = self._source
        text = isinstance(source.connector, Files) and source.connector.format in ("csv", "json")
        if source.time is None and not text:
            self._whole = self._rows(before)
            return Scan(files=len(self._files))
        columns = [c for c in (source.time, *(source.position or ())) if c]
        rows = self._rows(before, columns)
        name = f"cast({quoted(source.position[0])} as string)" if source.position else "'0'"
        groups = rows.selectExpr(
            f"{name} as name",
            PART,
            f"shiftright({OFFSET}, {CHUNK_BITS}) as chunk",
            f"if({BAD}, null, {TIME}) as time",
            OFFSET,
            BAD,
        ).groupBy("name", PART, "chunk")
        found = groups.agg(
            F.expr("min(time) as least"),
            F.expr("max(time) as greatest"),
            F.expr(f"max({OFFSET}) as last"),
            F.expr(f"count_if(not {BAD}) as rows"),
            F.expr(f"count_if({BAD}) as bad"),
        ).collect()
        bad = sum(r["bad"] for r in found)
        chunks = tuple(
            Chunk(str(r["name"]), r[PART], r["chunk"], r["least"], r["greatest"], r["last"], r["rows"])
            for r in found
            if r["rows"]
        )
        return Scan(chunks, bad, self._first_malformed() if bad else "", len(self._files))

    def _first_malformed(self) -> str:
        row = self.malformed().orderBy("position").limit(1).collect()[0]
        return f"at {row['position']}: {row['error']}: {row['record']}"

    def malformed(self) -> DataFrame:
        """Malformed records, as text."""
        rows = self._all().where(BAD)
        shown = ", ".join(quoted(c) for c in rows.columns if not c.startswith("__ps_"))
        record, error = f"to_json(struct({shown}))", f"'{sql_text(self._source.time or '')} is null'"
        if CORRUPT in rows.columns:
            record = f"coalesce({CORRUPT}, {record})"
            error = f"if({CORRUPT} is not null, 'malformed', {error})"
        place = f"format_string('%d @ %d', {PART} & {_MASK48}L, {OFFSET})"
        if FILE in rows.columns:
            place = f"format_string('%s row %d', element_at(split({FILE}, '/'), -1), ({OFFSET} & {(1 << _ROW_BITS) - 1}L) + 1)"
        name = sql_text(self._source.name)
        return rows.selectExpr(f"'{name}' as source", f"{place} as position", f"{error} as error", f"{record} as record")

    def _all(self) -> DataFrame:
        """All rows with all columns; read once per epoch."""
        if self._whole is None:
            self._whole = self._rows(None)
        return self._whole

    def frames(self, bases: dict[int, Base] | None, *, malformed: bool) -> SourceFrames:
        """The epoch's records; with `bases`, late ones told apart exactly."""
        rows = self._all()
        kept = [quoted(c) for c in rows.columns if not c.startswith("__ps_")] + [TIME, PART, OFFSET, SUB]
        bad = self.malformed() if malformed else None
        if malformed:
            rows = rows.where(f"not {BAD}")
        if bases is None:
            return SourceFrames(rows.selectExpr(*kept) if len(rows.columns) > len(kept) else rows, None, bad)
        marked = self._marked(rows, bases).selectExpr(*kept, "__ps_late").persist()
        self._kept.append(marked)
        late_rows = marked.where("__ps_late").count()
        on_time = marked.where("not __ps_late").selectExpr(*kept)
        return SourceFrames(on_time, marked.where("__ps_late").selectExpr(*kept) if late_rows else None, bad, late_rows)

    def _marked(self, rows: DataFrame, bases: dict[int, Base]) -> DataFrame:
        """Rows with `__ps_late`: in offset order per partition, against the running maximum."""
        lateness = self._source.lateness_us
        order = Window.partitionBy(PART).orderBy(OFFSET).rowsBetween(Window.unboundedPreceding, -1)
        latest = F.greatest(F.max(TIME).over(order), _by_part({k: b.latest for k, b in bases.items()}))
        bound = F.greatest(latest - F.lit(lateness), _by_part({k: b.floor for k, b in bases.items()}))
        return rows.withColumn("__ps_late", F.coalesce(F.col(TIME) < bound, F.lit(False)))

    def done(self) -> None:
        """Forget what was kept for this epoch."""
        for frame in self._kept:
            frame.unpersist()


def sql_text(text: str) -> str:
    """Text for between single quotes in Spark SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _by_part(values: dict[int, int]) -> Column:
    """A value per partition; null where nothing has been seen."""
    pairs = [F.lit(x).cast("long") for part, v in values.items() if v != MIN_TIME for x in (part, v)]
    return F.element_at(F.create_map(*pairs), F.col(PART)) if pairs else F.lit(None).cast("long")


def number_files(files: Sequence[str], before: int) -> dict[str, int]:
    """Numbers of an epoch's files, in the order of (modification time, name); files of earlier epochs come first."""
    from pyarrow import fs as pafs

    def place(uri: str) -> tuple[int, str]:
        try:
            system, path = pafs.FileSystem.from_uri(uri)
            moment = system.get_file_info(path).mtime_ns
        except (OSError, ValueError):
            moment = None
        return ((moment or 0) // 1_000_000, uri)

    plain = {re.sub("^file:/+", "file:///", uri) for uri in files}
    return {uri: before + i for i, uri in enumerate(sorted(plain, key=place))}


__all__ = ["Slices", "SourceReader", "read_stream", "tagged"]
