"""The routing table of a region: which worker has a key.

The usual unit is the bin. A moving bin is split by a range of hashes, and single keys can be pinned. All three are looked up by
the key's hash alone, so the JVM, a task and a simulator agree.

Invariant: a key has exactly one worker in every table. A table is a frozen value; a change returns a new one.

Read next: `penstock.protocol.rescale`, which changes tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.types import BINS

Ints = npt.NDArray[np.int64]

SUB_BITS: Final = 20
SUBS: Final = 1 << SUB_BITS
"""Parts that a bin can be cut into: ``(hash >> 12) mod 2^20``."""
_SHIFT: Final = 12


def sub_of(key: Any) -> Any:
    """The part of its bin that a hash (an int or an int64 array) belongs to."""
    return (key >> _SHIFT) & (SUBS - 1)


@dataclass(frozen=True, slots=True)
class Split:
    """A moving bin: keys with ``sub < upto`` already belong to worker `to`, the others still to the bin's owner."""

    to: int
    upto: int


@cache
def _even(workers: int, bins: int) -> tuple[int, ...]:
    return tuple((np.arange(bins) * workers // bins).tolist())


@dataclass(frozen=True)
class Routing:
    """A region's table.

    Attributes:
        owners: The worker of each bin.
        splits: By bin, for moving bins.
        pinned_keys: By hash, the worker of single keys that do not follow their bin.

    Example:
        >>> table = Routing.even(2)
        >>> table.worker_of(2047), table.worker_of(2048)
        (0, 1)
    """

    owners: tuple[int, ...]
    splits: Mapping[int, Split] = field(default_factory=dict)
    pinned_keys: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def even(workers: int, bins: int = BINS) -> Routing:
        """Equal ranges of bins, in the order of the workers."""
        return Routing(_even(workers, bins))

    def home_of(self, key: int) -> int:
        """The worker of a hash if it follows its bin."""
        at = key % len(self.owners)
        split = self.splits.get(at)
        return split.to if split is not None and sub_of(key) < split.upto else self.owners[at]

    def worker_of(self, key: int) -> int:
        """The worker of a hash."""
        return self.pinned_keys[key] if key in self.pinned_keys else self.home_of(key)

    def workers_of(self, hashes: Ints) -> Ints:
        """The worker of each hash (int64, n)."""
        count = len(self.owners)
        bins = hashes & (count - 1) if count.bit_count() == 1 else hashes % count  # NumPy would divide, ten times slower
        out = self._owners[bins]
        for at, split in self.splits.items():
            out[(bins == at) & (sub_of(hashes) < split.upto)] = split.to
        for key, worker in self.pinned_keys.items():
            out[hashes == key] = worker
        return out

    @cached_property
    def _owners(self) -> Ints:
        return np.array(self.owners, np.int64)

    @property
    def used(self) -> int:
        """The number of workers that the table needs: 1 + the greatest worker in it."""
        return 1 + max(*self.owners, *(s.to for s in self.splits.values()), *self.pinned_keys.values(), 0)

    def with_owners(self, bins: Mapping[int, int]) -> Routing:
        """The table with some whole bins at other workers."""
        owners = list(self.owners)
        for at, worker in bins.items():
            owners[at] = worker
        return replace(self, owners=tuple(owners), splits={b: s for b, s in self.splits.items() if b not in bins})

    def with_split(self, at: int, split: Split) -> Routing:
        """The table with one bin cut."""
        return replace(self, splits={**self.splits, at: split})

    def with_pinned(self, keys: Mapping[int, int]) -> Routing:
        """The table with single keys pinned, also those that are at home for now."""
        return replace(self, pinned_keys={**self.pinned_keys, **keys})

    def to_json(self) -> dict[str, Any]:
        """The table as plain values; bins as runs ``worker*count``."""
        starts = np.flatnonzero(np.diff(self._owners, prepend=-1))
        lengths = np.diff(starts, append=len(self.owners))
        return {
            "owners": " ".join(f"{self.owners[a]}*{n}" for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)),
            "splits": {str(b): [s.to, s.upto] for b, s in self.splits.items()},
            "pinned_keys": {str(k): w for k, w in self.pinned_keys.items()},
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Routing:
        """Read what `to_json` returned."""
        owners: list[int] = []
        for run in raw["owners"].split():
            worker, _, count = run.partition("*")
            owners += [int(worker)] * int(count)
        splits = {int(b): Split(*s) for b, s in raw["splits"].items()}
        return Routing(tuple(owners), splits, {int(k): w for k, w in raw["pinned_keys"].items()})
