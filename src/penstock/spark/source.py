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
_PLACE: Final = "__ps_place"


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

    def _rows(self, before: SourceState | None, columns: Sequence[str] | None = None) -> DataFrame:
        """The source's rows with hidden columns, `CORRUPT` as a flag of malformed ones."""
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
        if is_files:
            frame = self._numbered(frame)
        part, offset = self._position(frame)
        time = F.unix_micros(named(self._source.time).cast("timestamp")) if self._source.time else F.lit(0).cast("long")
        bad = F.lit(False)
        if CORRUPT in frame.columns:
            bad = F.col(CORRUPT).isNotNull()
        if self._source.time:
            bad = bad | time.isNull()
        hidden = {TIME: time, PART: part, OFFSET: offset, SUB: F.lit(0).cast("long"), "__ps_bad": bad}
        return frame.withColumns(hidden)

    def _position(self, frame: DataFrame) -> tuple[Column, Column]:
        """Partition number and offset of each row."""
        source, base = self._source, self._ordinal << 48
        row = F.monotonically_increasing_id()
        if source.position is not None:
            partition, offset = source.position
            if dict(frame.dtypes)[partition] in ("tinyint", "smallint", "int", "bigint"):
                return F.lit(base).cast("long") + named(partition).cast("long"), named(offset).cast("long")
            hashed = F.xxhash64(named(partition).cast("string")).bitwiseAND(F.lit(_MASK48))
            return F.lit(base).cast("long") + hashed, named(offset).cast("long")
        if isinstance(source.connector, Rate):
            return F.lit(base).cast("long"), F.col("value")
        if isinstance(source.connector, Files):
            # One partition of the scan per file, so the lower bits of the id are the row's number in its file.
            return F.lit(base).cast("long"), F.col(_PLACE)
        low = row.bitwiseAND(F.lit((1 << _EPOCH_BITS) - 1))
        return F.lit(base).cast("long"), F.lit(self._epoch << _EPOCH_BITS).cast("long") + low

    def _numbered(self, frame: DataFrame) -> DataFrame:
        """Rows of files with their offset: the file's number, then the row's in it."""
        row = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
        uri = F.regexp_replace(FILE, "^file:/+", "file:///")
        if len(self._files) <= _MANY_FILES:
            pairs = [F.lit(x) for item in self._files.items() for x in item]
            number = F.element_at(F.create_map(*pairs), uri) if pairs else F.lit(None)
            return frame.withColumn(_PLACE, F.shiftleft(_known(number, uri), _ROW_BITS) + row)
        table = frame.sparkSession.createDataFrame(list(self._files.items()), "__ps_uri string, __ps_number long")
        joined = frame.withColumns({"__ps_row": row, "__ps_uri": uri}).join(F.broadcast(table), "__ps_uri", "left")
        return joined.withColumn(_PLACE, F.shiftleft(_known(F.col("__ps_number"), uri), _ROW_BITS) + F.col("__ps_row"))

    def scan(self, before: SourceState) -> Scan:
        """Times and offsets per chunk, and malformed records. One Spark job; none if there is nothing to look for."""
        source = self._source
        text = isinstance(source.connector, Files) and source.connector.format in ("csv", "json")
        if source.time is None and not text:
            self._rows(before, [])
            return Scan(files=len(self._files))
        columns = [c for c in (source.time, *(source.position or ())) if c]
        rows = self._rows(before, columns)
        name = named(source.position[0]).cast("string") if source.position else F.lit("0")
        chunk = F.shiftright(F.col(OFFSET), CHUNK_BITS)
        good = ~F.col("__ps_bad")
        found = (
            rows.groupBy(name.alias("name"), F.col(PART), chunk.alias("chunk"))
            .agg(
                F.min(F.when(good, F.col(TIME))).alias("least"),
                F.max(F.when(good, F.col(TIME))).alias("greatest"),
                F.max(OFFSET).alias("last"),
                F.count(F.when(good, 1)).alias("rows"),
                F.count(F.when(F.col("__ps_bad"), 1)).alias("bad"),
            )
            .collect()
        )
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
        rows = self._rows(None).where("__ps_bad")
        shown = [c for c in rows.columns if not c.startswith("__ps_")]
        record = F.to_json(F.struct(*(named(c) for c in shown)))
        error = F.lit(f"{self._source.time} is null" if self._source.time else "malformed")
        if CORRUPT in rows.columns:
            record = F.coalesce(F.col(CORRUPT), record)
            error = F.when(F.col(CORRUPT).isNotNull(), F.lit("malformed")).otherwise(error)
        place = F.format_string("%d @ %d", F.col(PART).bitwiseAND(F.lit(_MASK48)), F.col(OFFSET))
        if FILE in rows.columns:
            row = F.col(OFFSET).bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
            place = F.format_string("%s row %d", F.element_at(F.split(FILE, "/"), -1), row + 1)
        return rows.select(
            F.lit(self._source.name).alias("source"), place.alias("position"), error.alias("error"), record.alias("record")
        )

    def frames(self, bases: dict[int, Base] | None, *, malformed: bool) -> SourceFrames:
        """The epoch's records; with `bases`, late ones told apart exactly."""
        rows = self._rows(None).where("not __ps_bad")
        shown = [c for c in rows.columns if not c.startswith("__ps_")]
        kept = [named(c) for c in (*shown, TIME, PART, OFFSET, SUB)]
        bad = self.malformed() if malformed else None
        if bases is None:
            return SourceFrames(rows.select(*kept), None, bad)
        marked = self._marked(rows, bases).select(*kept, "__ps_late").persist()
        self._kept.append(marked)
        late_rows = marked.where("__ps_late").count()
        on_time = marked.where("not __ps_late").select(*kept)
        return SourceFrames(on_time, marked.where("__ps_late").select(*kept) if late_rows else None, bad, late_rows)

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


def _known(number: Column, uri: Column) -> Column:
    """A file's number; a file without one would be processed out of order, so it is an error."""
    missing = F.raise_error(F.concat(F.lit("penstock does not know the file "), uri))
    return F.coalesce(number, missing.cast("long")).cast("long")


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
