"""The epoch's exact histogram: every key at home, and what overflows goes elsewhere, the largest keys first.

A pure function of the epoch's counts, so an epoch that runs again routes alike whatever was sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.routing.choices import choose
from penstock.routing.strategy import Hashes, Router, Strategy, Workers

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Histogram(Strategy):
    """Each key has one worker, but of the largest keys of workers with more than their part, some messages go to workers with room.

    Of n workers none gets more than ceil((1 + slack) · m / n) of the m messages of an epoch, whatever the keys.

    Args:
        slack: By which share a worker may have more than its part; more slack splits fewer keys.
    """

    slack: float = 0.0

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = "steps that merge"

    def __post_init__(self) -> None:
        if not 0 <= self.slack < float("inf"):
            raise DeclarationError(f"Histogram(slack={self.slack!r}): give a number from 0 on.")

    def router(self, workers: int) -> Router:
        """Nothing is remembered."""
        return _Overflow(workers, self.slack)


class _Overflow(Router):
    def __init__(self, workers: int, slack: float) -> None:
        self._workers, self._slack = workers, slack

    def route(self, senders: Sequence[Hashes]) -> list[Workers]:
        """By the counts of all senders together; rows of a split key are numbered by sender and position."""
        hashes = np.concatenate([*senders, np.empty(0, np.int64)])
        encoded = pa.array(hashes).dictionary_encode()
        keys, found = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        counts = np.bincount(found, minlength=len(keys))
        homes, split = overflow(keys, counts, self._workers, self._slack)
        out = homes[found]
        if split:
            is_split = np.zeros(len(keys), bool)
            is_split[list(split)] = True
            rows = np.flatnonzero(is_split[found])
            rows = rows[np.argsort(found[rows], kind="stable")]
            parts = [part for key in sorted(split) for part in split[key]]
            out[rows] = np.repeat([w for w, _ in parts], [size for _, size in parts])
        return np.split(out, np.cumsum([len(h) for h in senders])[:-1]) if senders else []


def overflow(keys: Hashes, counts: Ints, workers: int, slack: float) -> tuple[Workers, dict[int, list[tuple[int, int]]]]:
    """Where each key's messages go.

    Args:
        keys: Different hashes (int64, k), in any order: the result does not depend on it.
        counts: By key, its messages in the epoch.
        workers: Number of workers.
        slack: By which share a worker may have more than its part.

    Returns:
        By key its home (int32, k), and for each split key, by its place in `keys`: (worker, how many of its messages), in order.
    """
    homes = np.empty(len(keys), np.int32)
    choose(keys, 0, workers, homes)
    loads = np.bincount(homes, weights=counts, minlength=workers).astype(np.int64)
    most = int(np.ceil((1 + slack) * int(counts.sum()) / workers))
    split: dict[int, list[tuple[int, int]]] = {}
    over = np.flatnonzero(loads > most)
    if not len(over):
        return homes, split
    concerned = np.flatnonzero((loads > most)[homes])
    largest_first = concerned[np.lexsort((keys[concerned], -counts[concerned], homes[concerned]))]
    begins = np.searchsorted(homes[largest_first], over)
    for worker, begin in zip(over.tolist(), begins.tolist(), strict=True):
        at = begin
        while loads[worker] > most:
            key = int(largest_first[at])
            at += 1
            shed = min(int(loads[worker]) - most, int(counts[key]))
            loads[worker] -= shed
            stays = int(counts[key]) - shed
            parts = _place(int(keys[key]), shed, loads, most)
            split[key] = [(worker, stays), *parts] if stays else parts
    return homes, split


def _place(key: int, messages: int, loads: Ints, most: int) -> list[tuple[int, int]]:
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
