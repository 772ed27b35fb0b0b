"""Committed changes that a local store does not hold yet, in the memory of the process that runs the tasks.

An epoch mostly changes what the last one changed. To put each epoch's changes into LMDB took a task a tenth of its time; held back for a few
epochs, most are replaced before they get there. Nothing is lost with a process: the deltas are in the checkpoint.

Invariant: a layer is never changed, so a state that reads from one may go on while the next is made. What it holds, and over what, is told by
lineages, as of the store itself.

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
_HELD_ROWS: Final = 1 << 16
_HELD_BYTES: Final = 4 << 20  # as they are compressed in the files
_LAYERS: Final = 8  # of a process; the one that was used last goes last


@dataclass(frozen=True, slots=True)
class Layer:
    """Changes over a version.

    Attributes:
        below: Lineage of the version under it.
        lineage: Lineage of the version with it.
        changes: What was committed between the two.
    """

    below: str
    lineage: str
    changes: Overlay

    def with_rows(self, batches: Iterable[pa.RecordBatch], lineage: str) -> Layer:
        """The layer with the rows of further deltas, after which the state has `lineage`."""
        changes = self.changes.copy()
        for batch in batches:
            changes.put_rows(batch)
        return Layer(self.below, lineage, changes)


_held: dict[str, Layer] = {}


def may_be_held(deltas: Sequence[FileRef]) -> bool:
    """Whether these are few enough."""
    rows, size = sum(delta.rows for delta in deltas), sum(delta.bytes for delta in deltas)
    return len(deltas) <= HELD_DELTAS and rows <= _HELD_ROWS and size <= _HELD_BYTES


def held(directory: str) -> Layer | None:
    """What this process holds over the store in a directory."""
    return _held.get(directory)


def hold(directory: str, layer: Layer) -> Layer:
    """Hold a layer instead of the one before."""
    _held.pop(directory, None)
    _held[directory] = layer
    if len(_held) > _LAYERS:
        del _held[next(iter(_held))]
    return layer


def let_go(directory: str) -> None:
    """Hold nothing over the store in a directory."""
    _held.pop(directory, None)
