"""Users' functions over record batches: they see their own columns, and their rows keep their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import to_indices
from penstock.errors import OperatorError, raised
from penstock.types import ORDER, SUB, visible


def map_batch(what: str, fn: Any, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Run a function of `map_batches` and give its rows the positions of their input rows.

    Args:
        what: The step, for messages.
        fn: The function.
        batch: Rows with hidden columns.
        schema: Columns of the result, without hidden ones.

    Raises:
        OperatorError: It raised, or returned rows of unknown origin, or other columns than declared.
    """
    try:
        out = fn(batch.select(visible(batch.schema.names)))
    except Exception as error:
        raise OperatorError(f"{what} failed on a batch of {batch.num_rows} rows: {raised(error)}; fix the function.") from error
    if not isinstance(out, pa.RecordBatch):
        raise OperatorError(f"{what} gave {type(out).__name__}; it must give a pyarrow.RecordBatch.")
    rows = np.arange(batch.num_rows)
    sub = batch.column(batch.schema.get_field_index(SUB)).to_numpy()
    if "_row" in out.schema.names:
        rows = out.column(out.schema.get_field_index("_row")).to_numpy().astype(np.int64)
        index = np.argsort(rows, kind="stable")
        out, rows = out.take(to_indices(index)), rows[index]
        first = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1]))) if len(rows) else rows
        nth = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows)))) if len(rows) else rows
        sub = (sub[rows] << 16) + nth
    elif out.num_rows != batch.num_rows:
        raise OperatorError(
            f"{what} gave {out.num_rows} rows for {batch.num_rows}; add a column _row that says which row each came from."
        )
    missing = [n for n in schema.names if n not in out.schema.names]
    if missing:
        raise OperatorError(f"{what} gave no column {missing[0]!r}; its schema has {', '.join(schema.names)}.")
    arrays: list[Any] = []
    for field in schema:
        try:
            arrays.append(out.column(out.schema.get_field_index(field.name)).cast(field.type))
        except pa.ArrowException as error:
            raise OperatorError(f"{what} gave column {field.name!r}, which is not {field.type}: {error}.") from error
    taken = [batch.column(batch.schema.get_field_index(n)).take(to_indices(rows)) for n in ORDER[:3]]
    return pa.RecordBatch.from_arrays([*arrays, *taken, pa.array(sub)], names=[*schema.names, *ORDER])
