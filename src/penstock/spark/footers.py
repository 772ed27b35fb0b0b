"""What the footers of Parquet files say: how many rows there are, and whether a declared column is missing.

Spark takes a column that a file lacks for null and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CheckpointError, RecordError
from penstock.sources.connectors import Files
from penstock.state.files import resolve


def read_footers(source: str, connector: Files, uris: Iterable[str], *, sensitive: bool) -> int:
    """Count the rows of Parquet files, and refuse one without a declared column.

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
    for uri, about in zip(chosen, found, strict=True):
        if about is None:
            continue
        folders = re.findall("/([^/=]+)=", uri)  # columns that folders are named after
        there = {n if sensitive else n.lower() for n in (*about.schema.to_arrow_schema().names, *folders)}
        for name in declared:
            if (name if sensitive else name.lower()) not in there:
                raise RecordError(
                    f"File {unquote(uri)} of source {source!r} has no column {name!r}; write it with all declared columns, or declare "
                    'files(..., missing_columns="null") to have it read as null. The epoch was not committed.'
                )
    return 0 if None in found else sum(about.num_rows for about in found if about is not None)


def _footer(uri: str) -> pq.FileMetaData | None:
    try:
        fs, path = resolve(uri)
        with fs.open_input_file(path) as file:
            return pq.read_metadata(file)
    except (OSError, CheckpointError, pa.ArrowException):
        return None
