"""From heaps of runs to matches: walk them, count them, and compare those of one closing event.

A walk visits a heap in a fixed order: the root's own runs, then its right part, then its left part. That order is part of the
contract of ``LIMIT`` and of ranks. Runs outside the window are never entered, so every step leads to a match.

Kernels only; ``recogniser`` owns the arrays and sweeps them. Layout of the nodes: see ``kernel``.
"""

from __future__ import annotations

import numpy as np

from penstock.arrow.jit import jit
from penstock.patterns.recogniser.kernel import descend

DONE, BLOCK_FULL, STACK_FULL, PATH_FULL, TOO_MANY = 0, 1, 2, 3, 4
# counters of a walk, shared with the caller
CLOSING, TOP, MATCHES, POSITIONS, WRITTEN, LAST_EVENT, SKIP, LEFT = 0, 1, 2, 3, 4, 5, 6, 7
WALK_COUNTERS = 8
NO_END = np.iinfo(np.int64).max


@jit
def walk(closings, lows, at_most, too_many, arena, totals, found, offsets, positions, kinds, pending, path, counters):
    """Write matches, closing event by closing event, until all are written or the block is full.

    Args:
        closings: int32[2, n], see ``kernel.recognise``.
        lows: the least start inside the window of each closing, int64[n].
        at_most: the most matches to write of one closing event.
        too_many: the number of matches of one closing event at which to give up.
        arena: the nodes.
        totals: uint64[nodes], the number of matches of each heap, read only while matches are skipped.
        found: int64[3, matches]: index of the closing, number of the first event, number of the closing event.
        offsets: int64[matches + 1]: the first of each match's events in ``positions``.
        positions: int32[n], numbers of the marked events of all matches, ascending within a match. ``kinds``: int16[n], their
            kinds.
        pending: int32[2, n], heaps to visit and the number of marks before them.
        path: int32[2, n], the marks so far, last to first, and their kinds.
        counters: int64[WALK_COUNTERS], the state of the walk, see ``begin``. The first ``SKIP`` matches are skipped, a heap at a
            time; then at most ``LEFT`` are written.

    Returns:
        ``DONE``, ``BLOCK_FULL`` (call again with an empty block), ``STACK_FULL``, ``PATH_FULL`` (call again with larger arrays)
        or ``TOO_MANY``.
    """
    pos, prev, left, right, kind, _, key = arena
    while True:
        if counters[LEFT] == 0:
            return DONE
        if counters[TOP] == 0:
            k = counters[CLOSING]
            if k == closings.shape[1]:
                return DONE
            if closings[0, k] != counters[LAST_EVENT]:
                counters[LAST_EVENT] = closings[0, k]
                counters[WRITTEN] = 0
            counters[CLOSING] = k + 1
            if counters[WRITTEN] < at_most:
                pending[0, 0], pending[1, 0] = closings[1, k], 0
                counters[TOP] = 1
            continue
        k = counters[CLOSING] - 1
        low = lows[k]
        top = counters[TOP] - 1
        n = pending[0, top]
        depth = pending[1, top]
        if counters[SKIP] > 0:
            size = np.int64(totals[n])
            if counters[SKIP] >= size:
                counters[SKIP] -= size
                counters[TOP] = top
                continue
        if top + 3 > pending.shape[1]:
            return STACK_FULL
        if depth + 1 > path.shape[1]:
            return PATH_FULL
        event = pos[n]
        marks = depth
        if event >= 0:
            path[0, depth], path[1, depth] = event, kind[n]
            marks += 1
        if prev[n] == -1 and counters[SKIP] > 0:
            counters[SKIP] -= 1
        elif prev[n] == -1:
            m = counters[MATCHES]
            at = counters[POSITIONS]
            if m == found.shape[1] or at + marks > len(positions):
                return BLOCK_FULL
            if counters[WRITTEN] == too_many:
                return TOO_MANY
            for i in range(marks):
                positions[at + i] = path[0, marks - 1 - i]
                kinds[at + i] = path[1, marks - 1 - i]
            found[0, m] = k
            found[1, m] = event if event >= 0 else -1 - event
            found[2, m] = closings[0, k]
            offsets[m + 1] = at + marks
            counters[MATCHES] = m + 1
            counters[POSITIONS] = at + marks
            counters[WRITTEN] += 1
            counters[LEFT] -= 1
            if counters[WRITTEN] == at_most:
                counters[TOP] = 0
                continue
        if left[n] != -1 and key[left[n]] >= low:
            pending[0, top], pending[1, top] = left[n], depth
            top += 1
        if right[n] != -1 and key[right[n]] >= low:
            pending[0, top], pending[1, top] = right[n], depth
            top += 1
        if prev[n] != -1:
            pending[0, top], pending[1, top] = prev[n], marks
            top += 1
        counters[TOP] = top


def begin(skip: int = 0, left: int = NO_END) -> np.ndarray:
    """The counters of a new walk."""
    counters = np.zeros(WALK_COUNTERS, np.int64)
    counters[LAST_EVENT], counters[SKIP], counters[LEFT] = -1, skip, left
    return counters


@jit
def is_part(a, b) -> bool:
    """Whether the ascending positions ``a`` are a strict subset of ``b``."""
    if len(a) >= len(b):
        return False
    j = 0
    for value in a:
        while j < len(b) and b[j] < value:
            j += 1
        if j == len(b) or b[j] != value:
            return False
        j += 1
    return True


@jit
def maximal(groups, offsets, positions, keep) -> None:
    """Mark the matches of each closing event that are part of no other, over all starts.

    Args:
        groups: the closing event of each match, ascending, int64[matches].
        offsets, positions: see ``walk``.
        keep: bool[matches], written.
    """
    n = len(groups)
    begin = 0
    while begin < n:
        end = begin + 1
        while end < n and groups[end] == groups[begin]:
            end += 1
        for i in range(begin, end):
            mine = positions[offsets[i] : offsets[i + 1]]
            keep[i] = True
            for j in range(begin, end):
                if is_part(mine, positions[offsets[j] : offsets[j + 1]]):
                    keep[i] = False
                    break
        begin = end


def block(matches: int, marks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Empty arrays for ``walk``: found, offsets, positions, kinds."""
    offsets = np.zeros(matches + 1, np.int64)
    return np.empty((3, matches), np.int64), offsets, np.empty(marks, np.int32), np.empty(marks, np.int16)


@jit
def count(roots, lows, arena, totals, done, generation, todo, words) -> None:
    """The number of matches of each heap inside the window, exact up to 127 bits.

    Args:
        roots: int32[n]. ``lows``: int64[n], the least start inside the window.
        arena: the nodes.
        totals: uint64[2, nodes], scratch: low and high word of each node's count.
        done: int64[nodes], scratch: the generation that counted a node; initially zeros.
        generation: a number greater than all in ``done``; root k is counted in generation + k.
        todo: int32[3 * nodes + 3], scratch.
        words: uint64[2, n], written: low and high word of each root's count; the top bit of the high word is set on overflow.
    """
    _, prev, left, right, _, _, key = arena
    one, zero, top_bit = np.uint64(1), np.uint64(0), np.uint64(1 << 63)
    for k in range(len(roots)):
        low, now = lows[k], generation + k
        todo[0] = roots[k]
        top = descend(1, low, now, arena, done, todo)
        while top > 0:
            n = todo[top - 1]
            lower, upper = (one, zero) if prev[n] == -1 else (zero, zero)
            for other in (prev[n], left[n], right[n]):
                if other != -1 and key[other] >= low:
                    summed = lower + totals[0, other]
                    carry = one if summed < lower else zero
                    overflow = (upper | totals[1, other]) & top_bit
                    lower = summed
                    upper = (upper + totals[1, other] + carry) | overflow
            totals[0, n], totals[1, n] = lower, upper
            done[n] = now
            top = descend(top, low, now, arena, done, todo)
        words[0, k], words[1, k] = totals[0, roots[k]], totals[1, roots[k]]
