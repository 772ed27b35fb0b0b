"""Sorting of values of which few are distinct, compiled: they are numbered as they are met, counted, and each brought to its place.

Apart from `penstock.columns`, as numba takes a fifth of a second to load.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.jit import jit

_DISTINCT: Final = 1 << 17  # of more, what is counted no longer fits in a processor's cache, and numpy's sorts are as fast
_SHARE: Final = 4  # values for each distinct one, or nothing is won
_PROBES: Final = 4  # for each value, on average; random values need one or two
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Knuth's multiplicative hashing

Ints = NDArray[np.int64]


def by_counting(values: Ints) -> Ints | None:
    """The permutation that sorts values and keeps the order of equal ones; None if more are distinct than pays.

    Args:
        values: int64, n.
    """
    n = len(values)
    most = max(1, min(_DISTINCT, n // _SHARE))
    bits = most.bit_length() + 1  # at most half of the table is filled
    table = np.full(1 << bits, -1, np.int32)
    numbers, distinct = np.empty(n, np.int32), np.empty(most, np.int64)
    found = _number(values, 64 - bits, table, distinct, numbers)
    if found < 0:
        return None
    counts = np.bincount(numbers, minlength=found)
    by_value = np.argsort(distinct[:found])
    nexts = np.empty(found, np.int64)
    nexts[by_value] = np.cumsum(counts[by_value]) - counts[by_value]
    index = np.empty(n, np.int64)
    _place(numbers, nexts, index)
    return index


@jit
def _number(values: Ints, shift: int, table: NDArray[np.int32], distinct: Ints, numbers: NDArray[np.int32]) -> Any:
    """Number values in the order in which they are first met.

    Args:
        values: n.
        shift: 64 less the bits of a place in the table.
        table: -1 everywhere, of a power of two; holds the numbers afterwards, with linear probing.
        distinct: Room for the distinct values.
        numbers: n; holds each value's number afterwards.

    Returns:
        How many are distinct; -1 if there is no room for them, or if too many of them want the same places.
    """
    count, mask = 0, len(table) - 1
    left = _PROBES * len(values)
    for i in range(len(values)):
        value = values[i]
        at = np.int64((np.uint64(value) * _GOLDEN) >> np.uint64(shift))
        number = table[at]
        while number >= 0 and distinct[number] != value:
            at = (at + 1) & mask
            left -= 1
            number = table[at]
        if number < 0:
            if count == len(distinct):
                return -1
            number = np.int32(count)
            table[at], distinct[count] = number, value
            count += 1
        if left < 0:
            return -1
        numbers[i] = number
    return count


@jit
def _place(numbers: NDArray[np.int32], nexts: Ints, index: Ints) -> None:
    """Write each row's number to the next place of its value; `nexts` is changed."""
    for i in range(len(numbers)):
        number = numbers[i]
        index[nexts[number]] = i
        nexts[number] += 1


__all__ = ["by_counting"]
