"""Compiled: which keys are hot, by SpaceSaving, with counts that decay.

Source: A. Metwally et al., Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005. A count is never less than the
key's true one and at most N/capacity above it. When the total N reaches twice the window, N and all counts are halved, so that a
drift of the hot keys is followed; that goes by the number of messages, not by epochs, of which some have three messages.

Layout, all int64: ``keys`` and ``counts`` by counter; ``slots`` is a hash table (linear probing, 0: free) from key to 1 + its counter,
``slot_of`` the way back; ``totals`` is (counters in use, N), and ``least`` is what `penstock.routing.choices.least_loaded` remembers: counts
only grow, so the least one is found in constant time on average. The caller owns them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import inlined, jit
from penstock.routing.choices import choice, least_loaded

PER_WORKER = 10
"""Counters per worker: N/capacity must be well below the threshold of a hot key, N/(5n)."""
WINDOW = 1_000
"""Messages per worker after which counts are halved first."""


def new_sketch(workers: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an empty sketch."""
    capacity = PER_WORKER * workers
    table = 1 << (4 * capacity - 1).bit_length()
    sizes = {"keys": capacity, "counts": capacity, "slot_of": capacity, "slots": table, "totals": 2, "least": 2}
    return {name: np.zeros(size, np.int64) for name, size in sizes.items()}


@inlined
def _find(keys: Any, slots: Any, key: Any) -> Any:
    """The slot where a key is, or the free one where it would be."""
    at = choice(key, 0, len(slots))
    while slots[at] != 0 and keys[slots[at] - 1] != key:
        at = (at + 1) & (len(slots) - 1)
    return at


@jit
def _free(keys: Any, slots: Any, slot_of: Any, hole: Any) -> Any:
    """Empty a slot; those behind it that would no longer be found move up."""
    mask = len(slots) - 1
    at = (hole + 1) & mask
    while slots[at] != 0:
        wanted = choice(keys[slots[at] - 1], 0, len(slots))
        if ((at - wanted) & mask) >= ((at - hole) & mask):
            slots[hole] = slots[at]
            slot_of[slots[at] - 1] = hole
            hole = at
        at = (at + 1) & mask
    slots[hole] = 0


@inlined
def count_key(keys: Any, counts: Any, slot_of: Any, slots: Any, totals: Any, least: Any, key: Any, window: Any) -> Any:
    """Count a message; the counter of its key. ``totals[1]`` is N, this message included."""
    slot = _find(keys, slots, key)
    if slots[slot] == 0:
        if totals[0] < len(keys):
            at = totals[0]
            totals[0] += 1
        else:  # the least counted key gives its count to the new one
            at = least_loaded(counts, least)
            _free(keys, slots, slot_of, slot_of[at])
            slot = _find(keys, slots, key)
        keys[at] = key
        slot_of[at] = slot
        slots[slot] = at + 1
    at = slots[slot] - 1
    counts[at] += 1
    totals[1] += 1
    if totals[1] >= 2 * window:
        totals[1] = totals[1] // 2
        for i in range(totals[0]):
            counts[i] //= 2
        least[0], least[1] = least[0] // 2, 0
    return at
