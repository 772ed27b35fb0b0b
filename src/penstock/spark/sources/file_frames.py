"""The DataFrames of files: those of a source, as a stream and once more as a batch, and of the control log.

Read next: `penstock.spark.sources.files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.sources.files import Files
from penstock.spark.columns import spark_schema
from penstock.spark.internals.plans import columns_of_its_folders, select_sql
from penstock.spark.sources.reader import CORRUPT

FILE: Final = "__ps_file"
FILE_NAME: Final = f"url_decode(replace(element_at(split({FILE}, '/'), -1), '+', '%2B'))"
"""SQL of the name of a row's file, as it is spelled in its folder."""
RFC_4180: Final = {"escape": '"'}
"""A quote inside a quoted field of CSV is doubled; Spark by itself takes a backslash before it."""
EVERY_FILE: Final = {
    # Spark forgets files that are a week older than the newest it has seen, and never reads such files that come later.
    "maxFileAge": f"{1 << 62}ms",
}
_FORCED: Final = {
    **EVERY_FILE,
    # Of the files that it has listed Spark remembers all that are left, so that those of one moment are known: `found_files.unread`.
    "maxCachedFiles": str((1 << 31) - 1),
    "discardCachedInputRatio": "0",
    # The session's own settings would have a file that vanishes or is damaged read as none.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "ignoreInvalidPartitionPaths": "false",
}


def read_control(spark: SparkSession, uri: str, *, moved: bool) -> DataFrame:
    """The streaming DataFrame of the control log: each file as one row. `moved`: Spark has seen files of it in another folder."""
    # Of a folder Spark refuses files that lie elsewhere, which it may be about to give again; of a pattern it does not.
    folder = f"{_escaped(uri[:-1])}[{uri[-1]}]" if moved else _escaped(uri)
    log = spark.readStream.format("text").option("wholetext", "true").options(**EVERY_FILE).load(folder)
    return log.select("value", F.col("_metadata.file_name").alias("name"))


def read_files(spark: SparkSession, files: Files) -> DataFrame:
    """The streaming DataFrame of files, with `FILE`, and `CORRUPT` of those that are text.

    Args:
        spark: A session as `penstock.spark.session.own.query_session` makes it.
        files: The source.
    """
    reader = _reader(spark.readStream, files)
    if files.max_files_per_epoch is not None:
        reader = reader.option("maxFilesPerTrigger", files.max_files_per_epoch)
    frame = reader.load(files.path)
    if columns_of_its_folders(frame):
        _with_columns.add(files.path)
    return _with_file(frame)


_with_columns: set[str] = set()
"""Paths of sources of whose folders a stream has got columns. One too many costs time, no more."""


def has_to_be_split(files: Files, uris: Sequence[str]) -> bool:
    """Whether Spark's stream would not read all of these files, as some lie beside folders that columns are named after.

    If it is given both kinds it reads those in the folders and says nothing of the others; if it is given only others it fails.
    """
    groups = by_columns_of_folders(uris)
    if len(groups) == 1 and files.path in _with_columns:
        return _columns_of(groups[0][0].rpartition("/")[0]) == _columns_of(files.path)
    return len(groups) > 1


def _reader(reader: Any, files: Files) -> Any:
    """A reader of a stream's or a batch's files as a source was declared."""
    schema = spark_schema(files.schema)
    reader = reader.format(files.format)
    if files.format in ("csv", "json"):
        schema = schema.add(CORRUPT, "string")
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
    if files.format == "csv":
        # Column pruning would parse only some columns, so whether a record is malformed would depend on what is read.
        reader = reader.option("header", "true").option("enforceSchema", "false").option("columnPruning", "false")
        reader = reader.options(**RFC_4180)
    return reader.options(**files.options).options(**_FORCED).schema(schema)


def read_again(spark: SparkSession, files: Files, uris: Sequence[str]) -> DataFrame:
    """The rows of some files of a source as those of a batch, in the columns of its stream.

    Args:
        spark: A session as `penstock.spark.session.own.query_session` makes it.
        files: The source.
        uris: The files.
    """
    return joined(read_alike(spark, files, uris))


def read_alike(spark: SparkSession, files: Files, uris: Sequence[str]) -> list[DataFrame]:
    """As `read_again`, one DataFrame for all files whose folders give the same columns; at least one."""
    if uris:
        return [_with_file(frame) for frame in _at(lambda: _reader(spark.read, files), files, uris)]
    schema = spark_schema(files.schema)
    schema = schema.add(CORRUPT, "string") if files.format in ("csv", "json") else schema
    return [spark.createDataFrame([], schema.add(FILE, "string"))]


def joined(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all; a column that the folders of some give is null in the others."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def read_records(spark: SparkSession, files: Files, uris: Sequence[str], *, header: bool = True) -> DataFrame:
    """The records of CSV files of any columns: ``text``, with `FILE`; without `header` including their first lines."""

    def reader() -> Any:
        return _reader(spark.read, files).options(enforceSchema=True, header=header).schema(f"text string, {CORRUPT} string")

    frames = _at(reader, files, uris)
    return joined([f.selectExpr(f"coalesce({CORRUPT}, text, '') as text", f"_metadata.file_path as {FILE}") for f in frames])


def by_columns_of_folders(uris: Sequence[str]) -> list[list[str]]:
    """The files in groups: those whose folders are named after the same columns."""
    found: dict[tuple[str, ...], list[str]] = {}
    columns = {folder: _columns_of(folder) for folder in {uri.rpartition("/")[0] for uri in uris}}
    for uri in uris:
        found.setdefault(columns[uri.rpartition("/")[0]], []).append(uri)
    return list(found.values())


def _columns_of(folder: str) -> tuple[str, ...]:
    return tuple(name for name, given, _ in (unquote(f).partition("=") for f in folder.split("/")) if given)


def _at(reader: Callable[[], Any], files: Files, uris: Sequence[str]) -> list[DataFrame]:
    """What a new reader each time reads of files, by the columns of their folders."""
    frames = []
    for alike in by_columns_of_folders(uris):
        each = reader()
        if any("=" in uri.rpartition("/")[0] for uri in alike) and not re.search(r"[*?{\[]", files.path):
            each = each.option("basePath", files.path)  # as for a stream: folders below it give columns
        frames.append(each.load([_escaped(unquote(uri)) for uri in alike]))  # a path is no URI
    return frames


def _escaped(path: str) -> str:
    """A path in which what would be a wildcard is not meant as such."""
    return re.sub(r"([\\\[\]{}*?^])", r"\\\1", path)


def _with_file(frame: DataFrame) -> DataFrame:
    return select_sql(frame, ["*", f"_metadata.file_path as {FILE}"])


__all__ = [
    "by_columns_of_folders",
    "has_to_be_split",
    "joined",
    "read_again",
    "read_alike",
    "read_control",
    "read_files",
    "read_records",
]
