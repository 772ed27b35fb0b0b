"""Partial results: of rows before the shuffle, in SQL, and of rows of a key that are handled apart.

Read next: `penstock.operators.base`, whose operators offer and merge them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import to_indices
from penstock.rows.keys import Ints
from penstock.rows.rows import Keys

PANE = "__ps_pane"
FROM: Final = "__ps_from"
"""int64, the worker of a split stage that made a partial result."""
VALUE: Final = "__ps_value"
"""A partial result that a split stage has made."""


@dataclass(frozen=True)
class Partials:
    """Partial results that the engine computes in SQL before the shuffle: one row per key, or per key and pane.

    Attributes:
        columns: SQL aggregate expressions over the columns of the input and its order (`penstock.types.ORDER`).
        pane: SQL of the int64 that groups rows beside their key; empty: only the key does.
    """

    columns: tuple[str, ...]
    pane: str = ""


@dataclass(frozen=True)
class Parts:
    """Partial results of some rows, as one `Operator.lift` gives and `Operator.on_parts` merges.

    Attributes:
        keys: The distinct keys.
        group: int64, n: the key of each partial result, ascending.
        panes: int64, n: tells partial results of a key apart, ascending within a key; what it means is the operator's.
        values: n values, as bytes.
    """

    keys: Keys
    group: Ints
    panes: Ints
    values: Sequence[bytes]

    def batch(self, worker: int, schema: pa.Schema) -> pa.RecordBatch:
        """As they go from a worker of the split stage to the region, in the columns of `parts_schema`."""
        at = to_indices(self.group)
        columns = [c.take(at).cast(f.type) for c, f in zip(self.keys.columns, schema, strict=False)]
        made_by = np.full(len(self.group), worker, np.int64)
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array(self.panes), pa.array(made_by), pa.array(self.values, pa.binary())], schema=schema
        )


def parts_schema(keys: pa.Schema) -> pa.Schema:
    """The columns of partial results between a split stage and its region."""
    return pa.schema([*keys, pa.field(PANE, pa.int64()), pa.field(FROM, pa.int64()), pa.field(VALUE, pa.binary())])


__all__ = ["FROM", "PANE", "VALUE", "Partials", "Parts", "parts_schema"]
