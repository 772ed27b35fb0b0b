"""What the footers of Parquet files say: how many rows there are, and whether a declared column is missing.

Spark takes a column that a file lacks for null and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    rows, all_known = 0, True
    for uri in uris if connector.format == "parquet" else ():
        try:
            fs, path = resolve(re.sub("^file:/+", "file:///", uri))
            with fs.open_input_file(path) as file:
                about = pq.read_metadata(file)
                there = {n if sensitive else n.lower() for n in about.schema.to_arrow_schema().names}
                rows += about.num_rows
        except (OSError, CheckpointError, pa.ArrowException):
            all_known = False
            continue
        there |= {n if sensitive else n.lower() for n in re.findall("/([^/=]+)=", uri)}  # columns that folders are named after
        for name in declared:
            if (name if sensitive else name.lower()) not in there:
                raise RecordError(
                    f"File {path} of source {source!r} has no column {name!r}; write it with all declared columns, or declare "
                    'files(..., missing_columns="null") to have it read as null. The epoch was not committed.'
                )
    return rows if all_known else 0
