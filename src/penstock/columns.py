"""Small helps with Arrow's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import OperatorError


def places(index: Any) -> Any:
    """Row numbers as Arrow's ``take`` wants them."""
    return pa.array(index)


def whole(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """The rows of all batches, one after the other.

    Args:
        batches: Of one schema.
        schema: Which, if there may be no batch.

    Raises:
        OperatorError: A column of text is more than an Arrow array can address. (A table would go on in a second chunk.)
    """
    if len(batches) == 1:
        return batches[0]
    if not batches:
        assert schema is not None
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    except pa.ArrowInvalid as error:
        if "overflow" not in str(error):
            raise
        rows = sum(batch.num_rows for batch in batches)
        raise OperatorError(
            f"{rows:,} rows that one worker gets at once have more than 2 GiB of text in one column; "
            "read less per epoch (max_files_per_epoch) or use more workers."
        ) from error
    return joined
