"""The files of an epoch: in which order they count, and what the footers of Parquet files say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.driver.input_files import InputFile
from penstock.errors import CheckpointError, RecordError
from penstock.sources.files import Files
from penstock.state.files import resolve
from penstock.types import Refusal

THREADS: Final = 16
"""How many files are looked at a time: one on an object store takes a while to answer."""
CANNOT_READ: Final = (OSError, CheckpointError, pa.ArrowException)


def look_at(uris: Iterable[str]) -> dict[str, InputFile]:
    """Files as they are now, by URI; without those that are not there, or that pyarrow cannot look at."""

    def found(uri: str) -> InputFile | None:
        try:
            system, path = resolve(uri)
            info = system.get_file_info(path)
        except (OSError, CheckpointError):
            return None
        if not info.is_file or info.mtime_ns is None:
            return None
        return InputFile(uri, info.size, info.mtime_ns // 1_000_000)

    chosen = list(uris)
    with ThreadPoolExecutor(THREADS) as pool:
        return {file.uri: file for file in pool.map(found, chosen) if file is not None}


def number_files(files: Iterable[InputFile], before: int) -> dict[str, int]:
    """Numbers of an epoch's files by URI, in the order of (modification time, name); files of earlier epochs come first."""
    return {file.uri: before + i for i, file in enumerate(sorted(files, key=lambda f: f.place))}


def parquet_refusal(file: InputFile) -> Refusal | None:
    """Why a file is certainly no whole Parquet file, as the rest of a sentence; None: it may be one."""
    if not file.size:
        return Refusal("is empty, where a Parquet file has columns even without rows")
    try:
        system, path = resolve(file.uri)
        with system.open_input_file(path) as opened:
            opened.seek(max(0, file.size - 4))
            end = opened.read()
    except CANNOT_READ:
        return None
    return None if end in (b"PAR1", b"PARE") else Refusal("is no Parquet file, or was not written to its end")


@dataclass(frozen=True, slots=True)
class Footer:
    """What is kept of a Parquet file's footer, which may itself be large.

    Attributes:
        rows: The number of rows.
        schema: The columns.
        groups: The rows of each row group with the column's least and greatest value, as they are stored; None for these if they are not
            told, or a value is null. Empty if no column was asked for.
    """

    rows: int
    schema: pa.Schema
    groups: tuple[tuple[int, tuple[Any, Any] | None], ...]


def read_footers(uris: Iterable[str], column: str | None) -> dict[str, Footer | None]:
    """The footers of Parquet files; None of a file that pyarrow cannot open, which is left to Spark to read, or to refuse.

    Args:
        uris: The files.
        column: Of which least and greatest values are wanted.
    """
    chosen = list(uris)
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(chosen, pool.map(lambda uri: _footer(uri, column), chosen), strict=True))


def check_columns(source: str, connector: Files, footers: Mapping[str, Footer | None], *, sensitive: bool) -> None:
    """Refuse a Parquet file without a declared column: Spark takes that for null and says nothing.

    Args:
        source: The source's name.
        connector: What it was declared as.
        footers: By URI.
        sensitive: Whether names of columns differ by case alone.

    Raises:
        RecordError: A file lacks a column.
    """
    declared = connector.schema.names if connector.missing_columns == "fail" else ()
    for uri, footer in footers.items():
        if footer is None:
            continue
        there = {n if sensitive else n.lower() for n in (*footer.schema.names, *columns_of_folders(uri))}
        for name in declared:
            if (name if sensitive else name.lower()) not in there:
                raise RecordError(
                    f"File {unquote(uri)} of source {source!r} has no column {name!r}; write it with all declared columns, or declare "
                    'files(..., missing_columns="null") to have it read as null. The epoch was not committed.'
                )


def short_name(uri: str) -> str:
    """A file's name for people, with the folders that columns are named after.

    Example:
        >>> short_name("file:///data/day%3D1/a%20b.csv")
        'day=1/a b.csv'
    """
    *folders, name = unquote(uri).split("/")
    while folders and "=" in folders[-1]:
        name = f"{folders.pop()}/{name}"
    return name


def columns_of_folders(uri: str) -> list[str]:
    """The columns that the folders of a file are named after (``day=1``), as their names are spelled and as they may be meant."""
    folder = unquote(uri.rpartition("/")[0])  # Spark itself escapes what a folder's name cannot have
    return re.findall("/([^/=]+)=", folder) + re.findall("/([^/=]+)=", unquote(folder))


def _footer(uri: str, column: str | None) -> Footer | None:
    try:
        fs, path = resolve(uri)
        with fs.open_input_file(path) as file:
            about = pq.read_metadata(file)
            return Footer(about.num_rows, about.schema.to_arrow_schema(), tuple(_groups(about, column)))
    except CANNOT_READ:
        return None


def _groups(about: Any, column: str | None) -> Iterator[tuple[int, tuple[Any, Any] | None]]:
    leaf = next((i for i in range(about.num_columns) if about.schema.column(i).path == column), None)
    for i in range(about.num_row_groups if leaf is not None else 0):
        group = about.row_group(i)
        told = group.column(leaf).statistics
        known = told is not None and told.has_min_max and told.has_null_count and not told.null_count
        yield group.num_rows, (told.min_raw, told.max_raw) if known else None
