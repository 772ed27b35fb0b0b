"""Committed changes that a local store does not have yet, in the memory of the process that runs the tasks.

An epoch mostly changes what the last one changed. Writing each epoch's changes to LMDB took a tenth of a task's time. After a
few epochs most of them have been replaced. The deltas are in the checkpoint, so nothing is lost with a process.

Invariant: a layer is never changed, so a state can read from one while the next is made. Lineages identify what it holds, and
over what.

Read next: `penstock.state.store`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.state.deltas import FileRef
from penstock.state.overlay import Overlay

HELD_DELTAS: Final = 8
"""A store may lack so many of the last deltas. No base is made of these, or the store could not be caught up any more."""
READ_DELTAS: Final = 4
"""So many a process reads that does not hold them; of more it is cheaper to put them into the store, once for all processes of the host."""
_HELD_ROWS: Final = 1 << 16
_HELD_FILES: Final = 4 << 20  # bytes
_HELD_BYTES: Final = 8 << 20  # keys and values
_LAYERS: Final = 8  # per process; most recently used last


@dataclass(frozen=True, slots=True)
class Layer:
    """Changes over a version.

    Attributes:
        below: Lineage of the version under it.
        lineage: Lineage of the version with it.
        changes: What was committed between the two.
        bytes: Size of the keys and values added; some may have been replaced since.
    """

    below: str
    lineage: str
    changes: Overlay
    bytes: int = 0

    def with_rows(self, batches: Iterable[pa.RecordBatch], lineage: str) -> Layer | None:
        """The layer with the rows of further deltas, after which the state has `lineage`; None if that is too large."""
        changes, size = self.changes.copy(), self.bytes
        for batch in batches:
            size += batch.nbytes
            if size > _HELD_BYTES:
                return None
            changes.put_rows(batch)
        return Layer(self.below, lineage, changes, size)


_held: dict[str, Layer] = {}


def may_be_held(deltas: Sequence[FileRef]) -> bool:
    """Whether the deltas are few enough to hold, by their references. If so, the last of them are."""
    rows, size = sum(delta.rows for delta in deltas), sum(delta.bytes for delta in deltas)
    return len(deltas) <= HELD_DELTAS and rows <= _HELD_ROWS and size <= _HELD_FILES


def held(directory: str) -> Layer | None:
    """The layer that this process holds over the store in a directory."""
    return _held.get(directory)


def hold(directory: str, layer: Layer) -> Layer:
    """Hold a layer instead of the previous one."""
    _held.pop(directory, None)
    _held[directory] = layer
    if len(_held) > _LAYERS:
        del _held[next(iter(_held))]
    return layer


def evict(directory: str) -> None:
    """Hold nothing over the store in a directory."""
    _held.pop(directory, None)
