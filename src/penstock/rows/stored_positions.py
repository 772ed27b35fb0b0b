"""Positions of rows as columns that a sink stores with them: what ``.sink(…, positions=True)`` adds.

Pure; the same in the driver, which stores rows, and in tasks, which stage them.

Read next: `penstock.types.ORDER`, `penstock.sources.read_back`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.types import OFFSET, ORDER, PART, PART_BITS, PARTITION, SUB, TIME, whole_partition

STORED_ORDER: Final = (PART, OFFSET, SUB)
"""The stored columns that order the rows of one event time."""


def stored_columns(schema: pa.Schema, *, timed: bool) -> pa.Schema:
    """The columns of an output whose positions are stored: its own, then those of the position.

    Args:
        schema: The output's own columns.
        timed: Whether its rows have an event time. It is stored in µs since 1970: not every database has every time.

    Returns:
        Besides, `PARTITION`: the source and its partition, as `Mark.positions` names them, or the step whose result at the frontier the row is.
    """
    numbers = [pa.field(name, pa.int64()) for name in ((TIME,) * timed + STORED_ORDER)]
    return pa.schema([*schema, *numbers, pa.field(PARTITION, pa.string())])


@dataclass(frozen=True)
class PartitionNames:
    """Names of what rows come from; it is pickled to tasks.

    Attributes:
        sources: Names of the sources, by ordinal.
        hashed: Ordinals of sources whose partitions are text of which only the hash is known.
        known: By `PART`, the names of source partitions and of steps.
        timed: Whether the rows have an event time.
    """

    sources: tuple[str, ...]
    hashed: frozenset[int] = frozenset()
    known: Mapping[int, str] = field(default_factory=dict)
    timed: bool = True

    def name(self, part: int) -> str:
        """The name of a `PART`.

        Example:
            >>> PartitionNames(("orders",)).name(3)
            'orders/3'
        """
        ordinal = part >> PART_BITS
        if part in self.known:
            return self.known[part]
        return f"{self.sources[ordinal]}/{'#' * (ordinal in self.hashed)}{whole_partition(part)}"

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch whose last columns are `ORDER`, in the columns of `stored_columns`."""
        own = [name for name in batch.schema.names if name not in ORDER]
        kept = [*own, *((TIME,) * self.timed + STORED_ORDER)]
        parts, at = np.unique(batch.column(PART).to_numpy(), return_inverse=True)
        names: Any = pa.array([self.name(int(part)) for part in parts], pa.string())
        return pa.RecordBatch.from_arrays(
            [*(batch.column(n) for n in kept), names.take(pa.array(at))], names=[*kept, PARTITION]
        )


@dataclass(frozen=True)
class StoredStager:
    """A sink's stager that is given rows with their positions as they are stored.

    Attributes:
        stager: The sink's own (`penstock.sinks.base.Stager`).
        names: Names of what the rows come from.
    """

    stager: Callable[[Iterable[pa.RecordBatch], int], Iterator[bytes]]
    names: PartitionNames

    def __call__(self, batches: Iterable[pa.RecordBatch], attempt: int) -> Iterator[bytes]:
        """See `penstock.sinks.base.Stager`."""
        return self.stager(map(self.names.stored, batches), attempt)
