"""Whether Parquet files have the columns that were declared; Spark takes those that a file lacks for null and says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CheckpointError, RecordError
from penstock.sources.connectors import Files
from penstock.state.files import resolve


def check_columns(source: str, connector: Files, uris: Iterable[str], *, sensitive: bool) -> None:
    """Refuse a Parquet file without a declared column. One that pyarrow cannot open is left to Spark to read, or to refuse.

    Args:
        source: The source's name.
        connector: What it was declared as.
        uris: The files.
        sensitive: Whether names of columns differ by case alone.

    Raises:
        RecordError: A file lacks a column.
    """
    if connector.format != "parquet" or connector.missing_columns == "null":
        return
    declared = connector.schema.names
    for uri in uris:
        try:
            fs, path = resolve(re.sub("^file:/+", "file:///", uri))
            with fs.open_input_file(path) as file:
                there = {n if sensitive else n.lower() for n in pq.read_schema(file).names}
        except (OSError, CheckpointError, pa.ArrowException):
            continue
        there |= {n if sensitive else n.lower() for n in re.findall("/([^/=]+)=", uri)}  # columns that folders are named after
        for name in declared:
            if (name if sensitive else name.lower()) not in there:
                raise RecordError(
                    f"File {path} of source {source!r} has no column {name!r}; write it with all declared columns, or declare "
                    'files(..., missing_columns="null") to have it read as null. The epoch was not committed.'
                )
