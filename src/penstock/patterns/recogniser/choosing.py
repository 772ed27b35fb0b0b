"""The one match of each closing event that ``NEXT`` or ``LAST`` keeps, found without building the others.

The determiniser leaves one match of each start. ``NEXT`` selects the one whose marked events are earliest: the earliest first
mark of the runs in every heap is computed once per node, and then only what leads to the earliest is walked. ``LAST`` selects
the one whose marked events are latest: from the closing event backwards, only the latest of the last marks in a heap are
followed.

Kernels only. Layout of the nodes: see ``kernel``.
"""

from __future__ import annotations

import numpy as np

from penstock.arrow.jit import jit
from penstock.patterns.recogniser.kernel import descend
from penstock.patterns.recogniser.matches import BLOCK_FULL, CLOSING, DONE, MATCHES, PATH_FULL, POSITIONS

NEXT, LAST = 0, 1
_UNMARKED = np.int64(1) << np.int64(40)  # of runs without a mark: after all others


@jit
def choose(closings, lows, strategy, arena, firsts, known, heaps, todo, path, found, offsets, positions, kinds, counters):
    """Write the best match of each closing event, until all are written or the block is full.

    Args:
        closings: int32[2, n], see ``kernel.recognise``; those of one event are adjacent.
        lows: the least start inside the window of each closing, int64[n].
        strategy: ``NEXT`` or ``LAST``.
        arena: the nodes.
        firsts: int64[nodes], scratch. ``known``: int64[nodes], initially zeros. ``heaps``: int32[3 * nodes + 3], scratch.
        todo: int64[3, n], scratch.
        path: int32[4, n], scratch: marked events and their kinds, last to first.
        found, offsets, positions, kinds: see ``matches.walk``.
        counters: int64[WALK_COUNTERS], the state of the walk, see ``matches.begin``.

    Returns:
        ``DONE``, ``BLOCK_FULL`` (call again with an empty block) or ``PATH_FULL`` (call again with larger ``todo`` and
        ``path``).
    """
    while counters[CLOSING] < closings.shape[1]:
        begin = counters[CLOSING]
        end = begin + 1
        while end < closings.shape[1] and closings[0, end] == closings[0, begin]:
            end += 1
        m, at = counters[MATCHES], counters[POSITIONS]
        if m == found.shape[1]:
            return BLOCK_FULL
        if strategy == NEXT:
            marks, start = earliest(closings[1, begin:end], lows[begin], begin + 1, arena, firsts, known, heaps, todo, path)
        else:
            marks, start = latest(closings[1, begin:end], lows[begin], arena, todo, path)
        if marks == -1:
            return PATH_FULL
        if at + marks > len(positions):
            return BLOCK_FULL
        for i in range(marks):
            positions[at + i] = path[0, marks - 1 - i]
            kinds[at + i] = path[1, marks - 1 - i]
        found[0, m], found[1, m], found[2, m] = begin, start, closings[0, begin]
        offsets[m + 1] = at + marks
        counters[MATCHES] = m + 1
        counters[POSITIONS] = at + marks
        counters[CLOSING] = end
    return DONE


@jit
def earliest(roots, low, now, arena, firsts, known, heaps, todo, path):
    """The best match of ``NEXT`` in some heaps: the one that marks at the first difference wins.

    Args:
        roots: int32[n]. ``low``: the least start inside the window.
        now: a number greater than all in ``known``.
        arena, firsts, known, heaps, todo, path: see ``choose``.

    Returns:
        The number of its marks, in ``path``, and the number of its first event; -1 marks: there is no room.
    """
    pos, prev, left, right, kind, _, key = arena
    target = _UNMARKED
    for root in roots:
        first_marks(root, low, now, arena, firsts, known, heaps)
        target = min(target, firsts[root])
    best, start = -1, -1
    for root in roots:
        if firsts[root] != target:
            continue
        todo[0, 0], todo[1, 0], todo[2, 0] = root, 0, target
        top = 1
        while top > 0:
            top -= 1
            n, depth, wanted = todo[0, top], todo[1, top], todo[2, top]
            if top + 3 > todo.shape[1] or depth + 1 > path.shape[1]:
                return -1, 0
            for other in (left[n], right[n]):
                if other != -1 and key[other] >= low and firsts[other] == wanted:
                    todo[0, top], todo[1, top], todo[2, top] = other, depth, wanted
                    top += 1
            before = _UNMARKED if prev[n] == -1 else firsts[prev[n]]
            own = pos[n] if pos[n] >= 0 else _UNMARKED
            if min(before, own) != wanted:
                continue
            marks = depth
            if pos[n] >= 0:
                path[2, depth], path[3, depth] = pos[n], kind[n]
                marks += 1
            if prev[n] != -1:
                todo[0, top], todo[1, top], todo[2, top] = prev[n], marks, before
                top += 1
            elif best == -1 or comes_first(path[2, :marks], path[0, :best]):
                best = marks
                for i in range(marks):
                    path[0, i], path[1, i] = path[2, i], path[3, i]
                start = pos[n] if pos[n] >= 0 else -1 - pos[n]
    return best, start


@jit
def comes_first(a, b):
    """Whether the descending positions ``a`` beat ``b`` for ``NEXT``."""
    for i in range(1, min(len(a), len(b)) + 1):
        if a[-i] != b[-i]:
            return a[-i] < b[-i]
    return len(a) > len(b)


@jit
def first_marks(root, low, now, arena, firsts, known, todo) -> None:
    """Write to ``firsts`` the earliest first mark of the runs in a heap and in all that it reaches."""
    pos, prev, left, right, _, _, key = arena
    todo[0] = root
    top = descend(1, low, now, arena, known, todo)
    while top > 0:
        n = todo[top - 1]
        first = pos[n] if pos[n] >= 0 else _UNMARKED
        for other in (prev[n], left[n], right[n]):  # what precedes a mark is earlier
            if other != -1 and key[other] >= low:
                first = min(first, firsts[other])
        firsts[n], known[n] = first, now
        top = descend(top, low, now, arena, known, todo)


@jit
def latest(roots, low, arena, todo, path):
    """The best match of ``LAST`` in some heaps: the last difference decides. See ``earliest``.

    ``todo[0]`` holds the heaps to visit; ``todo[1]`` the nodes with the latest mark so far, level by level; ``todo[2]`` the
    place of the node that each continues to.
    """
    pos, prev, left, right, kind, _, key = arena
    room = todo.shape[1]
    begin, end, level = 0, 0, 0  # the nodes of the previous level
    while True:
        latest_mark, kept = -1, end
        for parent in range(begin, end) if level > 0 else range(len(roots)):
            root = prev[todo[1, parent]] if level > 0 else roots[parent]
            if root == -1:
                continue
            todo[0, 0], top = root, 1
            while top > 0:
                top -= 1
                n = todo[0, top]
                if top + 2 > room or kept == room:
                    return -1, 0
                for other in (left[n], right[n]):
                    if other != -1 and key[other] >= low:
                        todo[0, top] = other
                        top += 1
                mark = max(pos[n], -1)
                if mark > latest_mark or kept == end:
                    latest_mark, kept = mark, end
                if mark == latest_mark:
                    todo[1, kept], todo[2, kept] = n, parent
                    kept += 1
        if kept == end:
            break
        begin, end, level = end, kept, level + 1
    if level > path.shape[1]:
        return -1, 0
    place = begin  # no heap is left, so all of them are first events
    first = pos[todo[1, place]]
    for depth in range(level - 1, -1, -1):  # from the first event, the only one that may lack a mark, to the last
        n = todo[1, place]
        path[0, depth], path[1, depth] = pos[n], kind[n]
        place = todo[2, place]
    return (level, first) if first >= 0 else (level - 1, -1 - first)
