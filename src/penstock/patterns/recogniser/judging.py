"""Matches of one closing event compared after they were enumerated: equal ones, and the one that a strategy keeps.

For patterns with conditions between events (``relations``). Kernels only; others that compare matches are in ``matches`` and ``choosing``.
"""

from __future__ import annotations

from penstock.arrow.jit import jit
from penstock.patterns.recogniser.choosing import NEXT


@jit
def drop_repeated(order, ends, starts, hashes, offsets, positions, ways, keep) -> None:
    """Of matches of the same interval and events, keep the one bound in the preferred way; of equal ways the first.

    Args:
        order: int64[matches], the matches ordered by end, start and hash.
        ends, starts, hashes: int64[matches]; equal events have equal hashes.
        offsets, positions: see ``matches.walk``. ``ways``: int64[marks], the rank of what each mark binds.
        keep: bool[matches], written.
    """
    n = len(order)
    begin = 0
    while begin < n:
        first = order[begin]
        end = begin + 1
        while end < n:
            other = order[end]
            if ends[other] != ends[first] or starts[other] != starts[first] or hashes[other] != hashes[first]:
                break
            end += 1
        for i in range(begin, end):
            one = order[i]
            if not keep[one]:
                continue
            for j in range(i + 1, end):
                other = order[j]
                length = offsets[one + 1] - offsets[one]
                if not keep[other] or offsets[other + 1] - offsets[other] != length:
                    continue
                equal, better = True, 0
                for k in range(length):
                    a, b = offsets[one] + k, offsets[other] + k
                    if positions[a] != positions[b]:
                        equal = False
                        break
                    if better == 0 and ways[a] != ways[b]:
                        better = 1 if ways[b] < ways[a] else -1
                if equal and better == 1:
                    keep[one] = False
                    break
                if equal:
                    keep[other] = False
        begin = end


@jit
def keep_best(groups, offsets, positions, strategy, keep) -> None:
    """Keep the one match of each group that ``NEXT`` or ``LAST`` prefers; of equal ones the first.

    Args:
        groups: int64[matches]; equal ones are adjacent.
        offsets, positions: see ``matches.walk``.
        strategy: ``choosing.NEXT`` or ``choosing.LAST``.
        keep: bool[matches], all False; written.
    """
    n = len(groups)
    best = 0
    for i in range(n):
        if i > 0 and groups[i] != groups[i - 1]:
            keep[best] = True
            best = i
        if i == best:
            continue
        mine, its = offsets[i + 1] - offsets[i], offsets[best + 1] - offsets[best]
        wins = mine > its  # if all others are the same
        for k in range(min(mine, its)):
            if strategy == NEXT:
                a, b = positions[offsets[i] + k], positions[offsets[best] + k]
            else:
                b, a = positions[offsets[i + 1] - 1 - k], positions[offsets[best + 1] - 1 - k]
            if a != b:  # the least, or the greatest, that only one has
                wins = a < b
                break
        if wins:
            best = i
    if n > 0:
        keep[best] = True


__all__ = ["drop_repeated", "keep_best"]
