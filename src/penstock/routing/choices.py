"""Compiled: the workers that a key may go to, and the least loaded of them.

The i-th choice of a key is a hash of its hash; choices of different i are independent. Ties go to the choice, or the worker, that comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrow.grouping import GOLDEN
from penstock.arrow.jit import inlined, jit

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


@inlined
def choice(key: Any, i: Any, n: Any) -> Any:
    """The i-th choice among n, of a key's hash. Source: the finaliser of SplitMix64, on the i-th of its states."""
    h = np.uint64(key) + np.uint64(i + 1) * GOLDEN
    h = (h ^ (h >> np.uint64(30))) * _M1
    h = (h ^ (h >> np.uint64(27))) * _M2
    h ^= h >> np.uint64(31)
    return np.int64(((h >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@inlined
def other_choice(key: Any, first: Any, n: Any) -> Any:
    """A second choice that is not the first; the first if there is one worker only."""
    if n == 1:
        return first
    second = choice(key, 1, n - 1) + 1
    return np.int64(0) if second == first else second


@inlined
def distinct_choices(key: Any, d: Any, n: Any, out: Any) -> Any:
    """Write different workers, d of n, to the beginning of `out` (n). The first two are those of `other_choice`; more begin with fewer.

    Source: R. Durstenfeld, Random Permutation, 1964.
    """
    for i in range(n):
        out[i] = i
    for i in range(d):
        at = i + choice(key, i, n - i)
        out[i], out[at] = out[at], out[i]


@inlined
def lesser_of_two(key: Any, loads: Any, n: Any) -> Any:
    """The less loaded of a key's two distinct choices."""
    first = choice(key, 0, n)
    second = other_choice(key, first, n)
    return second if loads[second] < loads[first] else first


@inlined
def least_loaded(loads: Any, lowest: Any) -> Any:
    """The least loaded worker, the first of equals.

    Loads only grow, so the search goes on where the last one ended: a message costs a constant time on average.

    Args:
        loads: By worker.
        lowest: The least load when last looked at, and the worker up to which all have more (int64, 2); changed.
    """
    while True:
        while lowest[1] < len(loads):
            if loads[lowest[1]] <= lowest[0]:
                return lowest[1]
            lowest[1] += 1
        lowest[0] += 1
        lowest[1] = 0


@jit
def choose(keys: Any, i: Any, n: Any, out: Any) -> Any:
    """The i-th choice of each key."""
    for at in range(len(keys)):
        out[at] = choice(keys[at], i, n)
