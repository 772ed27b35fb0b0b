"""What the workers of a region had to do lately, for strategies that pin keys by themselves. Frozen values, kept in the epoch record.

Each worker counts its rows and names its hottest keys; the driver adds them up over a **round**: epochs that together have rows enough to
prove something.

Read next: `penstock.routing.isolate`, and `penstock.protocol.rescale.own_pins`, which carries out what a strategy wants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.routing.table import Routing

MOST_REPORTED: Final = 32
"""A worker reports at most so many keys of an epoch."""
MOST_COUNTED: Final = 1_000
"""So many keys of a region are counted, the hottest."""
_BUCKET_BITS: Final = 16


class HotKey(NamedTuple):
    """A key in a worker's report: its hash, the worker's rows of it in the epoch, its value as text."""

    key: int
    rows: int
    text: str


@dataclass(frozen=True)
class Watch:
    """What is known of a region's load.

    Attributes:
        own: Keys (hashes) that the strategy has pinned; their workers are those of the pins.
        spared: Keys that the strategy had pinned and a user has moved home.
        closed: Workers that have no bins, since each has a key of its own.
        workers: By worker, its rows in this round.
        keys: By key (hash), its rows in this round.
        streaks: By key, the number of rounds in a row that have said the same of it.
        texts: By key, its value as text; of `own` and `keys`.
    """

    own: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    workers: Mapping[int, int] = field(default_factory=dict)
    keys: Mapping[int, int] = field(default_factory=dict)
    streaks: Mapping[int, int] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)

    def plus(self, rows: Mapping[int, int], hot: Iterable[HotKey]) -> Watch:
        """The round with one more epoch.

        Args:
            rows: By worker, its rows.
            hot: What the workers report of their keys.
        """
        workers, keys, texts = dict(self.workers), dict(self.keys), dict(self.texts)
        for worker, n in rows.items():
            workers[worker] = workers.get(worker, 0) + n
        for found in hot:
            keys[found.key] = keys.get(found.key, 0) + found.rows
            texts[found.key] = found.text
        if len(keys) > MOST_COUNTED:
            keys = dict(sorted(keys.items(), key=lambda k: (-k[1], k[0]))[:MOST_COUNTED])
        known = {k: t for k, t in texts.items() if k in keys or k in self.own}
        return replace(self, workers=workers, keys=keys, texts=known)

    def taken(self, keys: Collection[int], *, home: bool) -> Watch:
        """Without keys that a user has moved: those sent home are spared."""
        users = {k for k in (*self.own, *self.spared) if k in keys}
        if not users:
            return self
        spared = {k for k in self.spared if k not in users} | (users if home else set())
        return replace(self, own=tuple(k for k in self.own if k not in users), spared=tuple(sorted(spared)))

    def anew(self, streaks: Mapping[int, int]) -> Watch:
        """The next round, before its first epoch."""
        own = {k: t for k, t in self.texts.items() if k in self.own}
        return replace(self, workers={}, keys={}, streaks=streaks, texts=own)


@dataclass(frozen=True)
class Placed:
    """Where a region's keys are.

    Attributes:
        workers: Number of workers.
        routing: The table.
        own: By key (hash), the worker to which the strategy has pinned it.
        users: Likewise, of the keys that users have pinned.
    """

    workers: int
    routing: Routing
    own: Mapping[int, int]
    users: Mapping[int, int]


def hottest(hashes: npt.NDArray[np.int64], share: float) -> list[tuple[int, int, int]]:
    """The keys that have at least a share of the rows: (hash, rows, index of the first of them), the hottest first.

    Args:
        hashes: By row, its key's hash (int64, n).
        share: The share; at most `MOST_REPORTED` keys are given.

    Cost: two passes over the rows, and a sort of those whose keys may be hot.

    Example:
        >>> hottest(np.array([5, 7, 5, 9]), 0.5)
        [(5, 2, 0)]
    """
    least, size = max(1, math.ceil(share * len(hashes))), 1 << min(len(hashes).bit_length(), _BUCKET_BITS)
    buckets = (hashes >> 16) & (size - 1)  # the lowest bits say which bin: a worker has few of these
    rows = np.flatnonzero(np.bincount(buckets, minlength=size)[buckets] >= least)
    near = hashes[rows]
    keys, counts = np.unique(near, return_counts=True)
    found = [(int(keys[i]), int(counts[i]), int(rows[np.argmax(near == keys[i])])) for i in np.flatnonzero(counts >= least)]
    return sorted(found, key=lambda k: (-k[1], k[0]))[:MOST_REPORTED]
