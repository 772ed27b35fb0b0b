"""The files of an epoch: which belong to a source, in which order they count, and what the footers of Parquet files say."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CheckpointError, RecordError
from penstock.sources.connectors import Files
from penstock.state.files import resolve

_GLOB: Final = {"*": "[^/]*", "?": "[^/]", "{": "(?:", ",": "|", "}": ")"}


def is_below(uri: str, path: str) -> bool:
    """Whether a file that Spark names by `uri` is what `path` (a folder or file, with Hadoop's wildcards) says, or below it."""
    wanted_host, pattern = _below(path)
    host, there = _split(uri)
    if wanted_host and host and wanted_host != host:
        return False
    return pattern.fullmatch(unquote(there)) is not None


@lru_cache(maxsize=256)
def _below(path: str) -> tuple[str, re.Pattern[str]]:
    """The host of a source's path, and the pattern of the paths below it."""
    host, wanted = _split(path)
    pattern, braces = "", 0
    for part in re.findall(r"\\.|\[[^\]]+\]|.", posixpath.normpath(wanted), re.DOTALL):
        braces += (part == "{") - (part == "}")
        if part[0] == "[" and len(part) > 1:
            pattern += "[^" + part[2:] if part[1] in "^!" else part
        elif part in _GLOB and (part != "," or braces):
            pattern += _GLOB[part]
        else:
            pattern += re.escape(part[-1])
    return host, re.compile(f"{pattern}(?:/.*)?", re.DOTALL)


def _split(uri: str) -> tuple[str, str]:
    """Host and path of a URI, or of a plain path."""
    found = re.match("^[A-Za-z][A-Za-z0-9+.-]*:(?://([^/]*))?(/.*)$", uri, re.DOTALL)
    return (found[1] or "", found[2]) if found else ("", uri)


def number_files(files: Sequence[str], before: int) -> dict[str, int]:
    """Numbers of an epoch's files, in the order of (modification time, name); files of earlier epochs come first."""

    def place(uri: str) -> tuple[int, str]:
        try:
            system, path = resolve(uri)
            moment = system.get_file_info(path).mtime_ns
        except (OSError, CheckpointError):
            moment = None
        return ((moment or 0) // 1_000_000, uri)

    plain = {re.sub("^file:/+", "file:///", uri) for uri in files}
    return {uri: before + i for i, uri in enumerate(sorted(plain, key=place))}


def read_footers(source: str, connector: Files, uris: Iterable[str], *, sensitive: bool) -> int:
    """Count the rows of Parquet files, and refuse one without a declared column: Spark takes that for null and says nothing.

    A file that pyarrow cannot open is left to Spark to read, or to refuse.

    Args:
        source: The source's name.
        connector: What it was declared as.
        uris: The files.
        sensitive: Whether names of columns differ by case alone.

    Returns:
        The number of rows; 0 if it is not known: files of another format, or one that cannot be opened.

    Raises:
        RecordError: A file lacks a column.
    """
    declared = connector.schema.names if connector.missing_columns == "fail" else ()
    chosen = list(uris) if connector.format == "parquet" else []
    with ThreadPoolExecutor(16) as pool:  # a file on an object store takes a while to answer
        found = list(pool.map(_footer, chosen))
    total = 0
    for uri, about in zip(chosen, found, strict=True):
        if about is None:
            continue
        rows, columns = about
        total += rows
        there = {n if sensitive else n.lower() for n in (*columns, *columns_of_folders(uri))}
        for name in declared:
            if (name if sensitive else name.lower()) not in there:
                raise RecordError(
                    f"File {unquote(uri)} of source {source!r} has no column {name!r}; write it with all declared columns, or declare "
                    'files(..., missing_columns="null") to have it read as null. The epoch was not committed.'
                )
    return 0 if None in found else total


def columns_of_folders(uri: str) -> list[str]:
    """The columns that the folders of a file are named after (``day=1``), as their names are spelled and as they may be meant."""
    folder = unquote(uri.rpartition("/")[0])  # Spark itself escapes what a folder's name cannot have
    return re.findall("/([^/=]+)=", folder) + re.findall("/([^/=]+)=", unquote(folder))


def _footer(uri: str) -> tuple[int, list[str]] | None:
    """The number of rows and the names of the columns; not the footer itself, which may be large."""
    try:
        fs, path = resolve(uri)
        with fs.open_input_file(path) as file:
            about = pq.read_metadata(file)
            return about.num_rows, about.schema.to_arrow_schema().names
    except (OSError, CheckpointError, pa.ArrowException):
        return None
