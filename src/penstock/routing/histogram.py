"""The epoch's exact histogram: every key at home, and what overflows goes elsewhere, the largest keys first.

A pure function of the epoch's counts, so an epoch that runs again routes alike whatever was sent before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from penstock.errors import DeclarationError
from penstock.routing.choices import choose
from penstock.routing.strategy import MERGING, ByCounts, Hashes, Parts, Router, Strategy
from penstock.routing.table import Routing

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Histogram(Strategy):
    """Each key has one worker, but of the largest keys of workers with more than their part, some messages go to workers with room.

    Of n workers none gets more than ceil((1 + slack) · m / n) of the m messages of an epoch, whatever the keys. It is for steps that
    merge: windows and aggregates. Over Spark, keys with few rows stay whole, and so do all keys in an epoch with fewer than 65,536 records.

    Args:
        slack: By which share a worker may have more than its part; more slack splits fewer keys.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.Histogram(), keys, workers=4)).tolist()
        [250, 250, 250, 250]
    """

    slack: float = 0.0

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING
    rests: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.slack, (int, float)) or not 0 <= self.slack < float("inf"):
            raise DeclarationError(f"Histogram(slack={self.slack!r}): give a number from 0 on.")

    def router(self, workers: int) -> Router:
        """Nothing is remembered."""
        return Overflow(workers, self.table(workers), self.slack)


class Overflow(ByCounts):
    """Home, and what overflows goes elsewhere.

    Args:
        workers: Number of workers.
        home: Where each key is at home.
        slack: By which share a worker may have more than its part.
    """

    def __init__(self, workers: int, home: Routing, slack: float) -> None:
        super().__init__(workers, home)
        self._slack = slack

    def divide(self, keys: Hashes, counts: Ints, loads: Ints) -> dict[int, Parts]:
        """Of workers with too much the largest keys first; ties by hash."""
        loads = loads.copy()
        most = int(np.ceil((1 + self._slack) * int(loads.sum()) / self.workers))
        divided: dict[int, Parts] = {}
        over = np.flatnonzero(loads > most)
        if not len(over):
            return divided
        homes = self.home.workers_of(keys)
        concerned = np.flatnonzero((loads > most)[homes])
        largest_first = concerned[np.lexsort((keys[concerned], -counts[concerned], homes[concerned]))]
        begins = np.searchsorted(homes[largest_first], [*over, self.workers])
        for worker, begin, end in zip(over.tolist(), begins[:-1].tolist(), begins[1:].tolist(), strict=True):
            for at in largest_first[begin:end].tolist():
                if loads[worker] <= most:
                    break
                shed = min(int(loads[worker]) - most, int(counts[at]))
                loads[worker] -= shed
                stays = int(counts[at]) - shed
                parts = _place(int(keys[at]), shed, loads, most)
                divided[int(keys[at])] = [(worker, stays), *parts] if stays else parts
        return divided


def _place(key: int, messages: int, loads: Ints, most: int) -> Parts:
    """Put messages of a key on workers with room, along its further choices; `loads` is changed."""
    workers, parts = len(loads), []
    drawn = np.empty(1, np.int32)
    at, step = 0, 0
    while messages:
        step += 1
        if step <= 2 * workers:
            choose(np.array([key]), step, workers, drawn)
            at = int(drawn[0])
        else:  # whatever the draws left out
            at = (at + 1) % workers
        room = most - int(loads[at])
        if room > 0:
            put = min(room, messages)
            loads[at] += put
            messages -= put
            parts.append((at, put))
    return parts
