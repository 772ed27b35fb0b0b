"""From maximal matches to all matches: the sizes of their parts, and a walk that emits each part of some sizes once.

Kernels only; ``maximal`` decides who walks what.
"""

from __future__ import annotations

import numpy as np

from penstock.arrow.jit import jit

DONE, BLOCK_FULL, TOO_MANY = 0, 1, 2
# counters of a walk, shared with the caller
JOB, LEVEL, MATCHES, MARKS, CLOSING, EMITTED = 0, 1, 2, 3, 4, 5
BEGUN = -1
_NONE = np.int64(1 << 40)


def counters_of() -> np.ndarray:
    """The counters of a new walk."""
    return np.array([0, BEGUN, 0, 0, -1, 0], np.int64)


@jit
def configurations(runs, groups, jobs, sizes, costs, scratch):
    """Write every combination of sizes that a match of each group has room for, with an upper bound of its matches.

    Args:
        scratch: int64[2, items].

    Returns:
        How many were written; with an empty ``jobs``, an upper bound.
    """
    items = runs.shape[1] - 1
    largest, now = scratch[0], scratch[1]
    used = 0
    for g in range(len(groups) - 1):
        largest[:] = 0
        combinations = 1
        for i in range(items):
            for m in range(groups[g], groups[g + 1]):
                largest[i] = max(largest[i], runs[m, i + 1] - runs[m, i])
            combinations = min(combinations * largest[i], 1 << 40)
        if len(jobs) == 0:
            used += combinations
            continue
        now[:] = 1
        for _ in range(combinations):
            cost = 0.0
            for m in range(groups[g], groups[g + 1]):
                ways = 1.0
                for i in range(items):
                    n, k = runs[m, i + 1] - runs[m, i], now[i]
                    if i == items - 1:  # the closing event is chosen already
                        n, k = n - 1, k - 1
                    if k > n:
                        ways = 0.0
                        break
                    for j in range(k):
                        ways *= (n - j) / (j + 1)
                cost += ways
            if cost > 0.0:
                jobs[used], costs[used] = g, cost
                for i in range(items):
                    sizes[used, i] = now[i]
                used += 1
            for i in range(items):
                now[i] += 1
                if now[i] <= largest[i]:
                    break
                now[i] = 1
    return used


@jit
def submatches(
    positions, kinds, runs, groups, jobs, sizes, most, active, at, levels, counters, starts, ends, offsets, out, out_kinds
):
    """Write the parts of some maximal matches, configuration by configuration, each once.

    An event is chosen level by level. ``active`` holds the matches with all chosen events, ``at`` the place where each
    continues. The next choice is the least event of any of them that leaves enough for the remaining levels, so every step
    leads to a match.

    Args:
        active, at: int64[levels + 1, matches of a group]. ``levels``: int64[5, levels + 1]: variable, its remaining events,
            number of active matches, the event chosen, its kind.
        counters: job, level, matches and marks written, the last job's closing event, its matches so far.

    Returns:
        ``DONE``, ``BLOCK_FULL`` (call again with an empty block) or ``TOO_MANY``.
    """
    items = runs.shape[1] - 1
    item, need, many, chosen, kind = levels[0], levels[1], levels[2], levels[3], levels[4]
    while counters[JOB] < len(jobs):
        g, c = jobs[counters[JOB]], sizes[counters[JOB]]
        depth = c.sum()
        if counters[LEVEL] == BEGUN:
            level = 0
            for i in range(items):
                for j in range(c[i]):
                    item[level], need[level] = i, c[i] - j
                    level += 1
            n = 0
            for m in range(groups[g], groups[g + 1]):
                fits = True
                for i in range(items):
                    fits = fits and runs[m, i + 1] - runs[m, i] >= c[i]
                if fits:
                    active[0, n] = m
                    at[0, n] = runs[m, 1] - 1 if items == 1 and c[0] == 1 else runs[m, 0]
                    n += 1
            many[0] = n
            counters[LEVEL] = 0
            closing = positions[runs[groups[g], items] - 1]
            if counters[CLOSING] != closing:
                counters[CLOSING], counters[EMITTED] = closing, 0
        level = counters[LEVEL]
        i = item[level]
        best = _NONE
        for j in range(many[level]):
            if at[level, j] <= runs[active[level, j], i + 1] - need[level]:
                best = min(best, np.int64(positions[at[level, j]]))
        if best == _NONE:
            counters[LEVEL] -= 1
            if counters[LEVEL] == BEGUN:
                counters[JOB] += 1
            continue
        if level == depth - 1 and (counters[MATCHES] == len(starts) or counters[MARKS] + depth > len(out)):
            return BLOCK_FULL
        n = 0
        for j in range(many[level]):
            m, p = active[level, j], at[level, j]
            if p <= runs[m, i + 1] - need[level] and positions[p] == best:
                at[level, j] = p + 1
                kind[level] = kinds[p]
                if level < depth - 1:
                    then = p + 1 if item[level + 1] == i else runs[m, i + 1]
                    if level + 2 == depth:  # only the closing event is left to choose
                        then = runs[m, items] - 1
                    active[level + 1, n], at[level + 1, n] = m, then
                    n += 1
        chosen[level] = best
        if level < depth - 1:
            many[level + 1] = n
            counters[LEVEL] = level + 1
            continue
        counters[EMITTED] += 1
        if counters[EMITTED] > most:
            return TOO_MANY
        k, a = counters[MATCHES], counters[MARKS]
        for d in range(depth):
            out[a + d], out_kinds[a + d] = chosen[d], kind[d]
        starts[k], ends[k], offsets[k + 1] = chosen[0], best, a + depth
        counters[MATCHES], counters[MARKS] = k + 1, a + depth
    return DONE
