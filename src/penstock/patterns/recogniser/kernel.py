"""The recogniser's inner loop: all events of a batch, all keys, one call.

**Match structure.** The marks of a run are never copied. A *node* holds one marked event, the set of runs that it extends and
the start of its run. A set of runs is a *leftist heap* of nodes ordered by start, newest on top. Joining two sets takes a few
steps, and every step of a walk that stops at the window's edge meets a node of a match: the delay of enumeration is linear in
the match, whatever the window. Nodes never change, so sets can share them. (The published structure, tECS, uses bounded union
nodes; heaps need no nodes without an event, and half the memory. Decision 0013.)

**Layout.** Nodes are rows of parallel arrays (``pos, prev, left, right: int32; kind, rank: int16; key: int64``), owned by the
caller:

* ``pos``: the number of the marked event; ``-1 - number`` if a run begins with an event that it does not mark.
* ``kind``: the variables that the event is bound to, see ``Automaton.kinds``.
* ``prev``: the heap of runs that this event extends, -1 where a run begins.
* ``key``: the greatest start of the runs through the node. ``left``, ``right``: the rest of the heap. ``rank``: leftist rank.

``heads[row, d]`` is the heap of the runs of key ``row`` that are in node ``d`` of the deterministic automaton, or -1.

**Expiry.** If runs time out (``timeouts``), the oldest must be on top: then ``when`` and keys are negated starts, no run is
dropped because of its start, and emitted runs are removed from the heaps.

**Determinism.** Heaps depend only on the key's events: sets are joined in the order of the automaton's nodes as tuples (the
order of ``react``), and runs that have left the window count as absent whether or not they were removed.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.arrow.jit import inlined, jit

DONE, UNKNOWN_STEP, ARENA_FULL, CLOSINGS_FULL = 0, 1, 2, 3
# counters, shared with the caller
EVENT, NODES, CLOSINGS, ASKED_NODE, ASKED_LETTER, SEGMENT, GENERATION, EXPIRIES = 0, 1, 2, 3, 4, 5, 6, 7
COUNTERS = 8
KEEP, CONSUME_KEY, CONSUME_ALL, EXPIRE = 0, 1, 2, 3
NEVER = np.iinfo(np.int64).min
UNKNOWN = -1  # a step not yet computed; otherwise (target + 1) * 2 + accepts
DEPTH = 64  # of a leftist heap: the logarithm of the arena's nodes, with room
_NODES_PER_JOIN = DEPTH + 2


@jit
def join(a, b, low, arena, counters, stack):
    """The union of two disjoint heaps, without runs that start before ``low``. Cost: the logarithm of their sizes."""
    pos, prev, left, right, kind, rank, key = arena
    depth = 0
    while True:
        if a == -1 or key[a] < low:
            joined = -1 if b == -1 or key[b] < low else b
            break
        if b == -1 or key[b] < low:
            joined = a
            break
        if key[b] > key[a]:
            a, b = b, a
        stack[depth] = a
        depth += 1
        a = right[a]
    n = counters[NODES]
    while depth > 0:
        depth -= 1
        a = stack[depth]
        other = left[a]
        if other != -1 and key[other] < low:
            other = -1
        pos[n], prev[n], kind[n], key[n] = pos[a], prev[a], kind[a], key[a]
        other_rank = 0 if other == -1 else rank[other]
        joined_rank = 0 if joined == -1 else rank[joined]
        if other_rank >= joined_rank:
            left[n], right[n], rank[n] = other, joined, joined_rank + 1
        else:
            left[n], right[n], rank[n] = joined, other, other_rank + 1
        joined = n
        n += 1
    counters[NODES] = n
    return joined


@inlined
def add(heap, event, choice, before, start, low, arena, counters, stack):
    """A heap with one more node. Cost: one step if its start is the newest, the usual case."""
    pos, prev, left, right, kind, rank, key = arena
    n = counters[NODES]
    counters[NODES] = n + 1
    pos[n], prev[n], kind[n], key[n], left[n], right[n], rank[n] = event, before, choice, start, -1, -1, 1
    if heap == -1 or key[heap] < low:
        return n
    if start >= key[heap]:
        left[n] = heap
        return n
    return join(heap, n, low, arena, counters, stack)


@inlined
def close(event, root, closings, counters) -> None:
    """Note that all runs of a heap end in a match at this event."""
    n = counters[CLOSINGS]
    closings[0, n] = event
    closings[1, n] = root
    counters[CLOSINGS] = n + 1


@inlined
def within(span, start, low):
    """The least start of a run in a node with this span, see ``recognise``, when an event with ``start`` comes."""
    return low if span < 0 else max(low, start - span)


@inlined
def advance(event, letter, start, low, begins, found, step, spans, mine, live, arena, closings, counters, stack) -> None:
    """One event of one key: take the heaps of the nodes that move, then give each to its targets."""
    key = arena[6]
    choices = step.shape[2]
    for k in range(found):
        d = live[0, k]
        live[1, k] = mine[d]
        mine[d] = -1
    for k in range(-1 if begins else 0, found):  # the run that begins here is first: it has the newest start
        root = -1 if k == -1 else live[1, k]
        d = 0 if k == -1 else live[0, k]
        since = start if k == -1 else key[root]
        if since < within(spans[d], start, low):
            continue
        for choice in range(choices - 1, -1, -1):
            goal = step[d, letter, choice]
            if goal == 0:
                continue
            target = (goal >> 1) - 1
            if choice == 0 and k >= 0:
                if goal & 1:
                    close(event, root, closings, counters)
                if target >= 0:  # usually nothing is there, and passing the arena's arrays costs more than this test
                    there = mine[target]
                    least = within(spans[target], start, low)
                    mine[target] = root if there == -1 else join(there, root, least, arena, counters, stack)
            else:
                number = event if choice > 0 else -1 - event
                if goal & 1:  # the match is this node without the rest of the heap
                    alone = add(-1, number, choice, root, since, low, arena, counters, stack)
                    close(event, alone, closings, counters)
                    if target >= 0:
                        mine[target] = join(mine[target], alone, within(spans[target], start, low), arena, counters, stack)
                else:
                    least = within(spans[target], start, low)
                    mine[target] = add(mine[target], number, choice, root, since, least, arena, counters, stack)


@inlined
def descend(top, low, now, arena, known, todo):
    """Descend to a node whose references, from the key ``low`` on, are all known by ``now``.

    Returns:
        The stack's height, with that node on top; 0: all are known.
    """
    _, prev, left, right, _, _, key = arena
    while top > 0:
        n = todo[top - 1]
        if known[n] == now:
            top -= 1
            continue
        deeper = top
        for other in (prev[n], left[n], right[n]):
            if other != -1 and key[other] >= low and known[other] != now:
                todo[deeper] = other
                deeper += 1
        if deeper == top:
            break
        top = deeper
    return top


@jit
def without(root, edge, arena, counters, stack, known, left_of, todo):
    """A heap without the runs whose key is at least ``edge``. Cost: the nodes of such runs.

    Args:
        root: the heap.
        edge: the least key that is removed.
        arena, counters, stack: see ``recognise``.
        known: int64[nodes], the expiry for which ``left_of`` (int32[nodes]) has the rest of a node's heap.
        todo: int32[3 * nodes + 3], scratch.

    Returns:
        The heap; -2: the arena is full.
    """
    pos, prev, left, right, kind, _rank, key = arena
    if root == -1 or key[root] < edge:
        return root
    now = counters[EXPIRIES]
    todo[0] = root
    top = descend(1, edge, now, arena, known, todo)
    while top > 0:
        n = todo[top - 1]
        if counters[NODES] + 2 * _NODES_PER_JOIN > len(pos):
            return -2
        some = left[n] if left[n] == -1 or key[left[n]] < edge else left_of[left[n]]
        others = right[n] if right[n] == -1 or key[right[n]] < edge else left_of[right[n]]
        before = prev[n] if prev[n] == -1 or key[prev[n]] < edge else left_of[prev[n]]
        rest = join(some, others, NEVER, arena, counters, stack)
        if before != -1:
            rest = add(rest, pos[n], kind[n], before, key[before], NEVER, arena, counters, stack)
        left_of[n], known[n] = rest, now
        top = descend(top, edge, now, arena, known, todo)
    return left_of[root]


@jit
def expire(event, letter, edge, react, reacts, mine, live, arena, closings, counters, stack, known, left_of, todo):
    """The end of a window: emit the runs with a key of at least ``edge`` in nodes that it moves, then remove such runs
    everywhere.

    Returns:
        Whether the arena had room; otherwise nothing was changed.
    """
    key = arena[6]
    counters[EXPIRIES] += 1
    nodes = counters[NODES]
    for d in range(len(mine)):
        live[1, d] = without(mine[d], edge, arena, counters, stack, known, left_of, todo)
        if live[1, d] == -2:
            counters[NODES] = nodes
            return False
    for k in range(reacts[letter]):
        root = mine[react[letter, k]]
        if root != -1 and key[root] >= edge:
            close(event, root, closings, counters)
    for d in range(len(mine)):
        mine[d] = live[1, d]
    return True


@jit
def recognise(
    letters, when, low, first, segments, rows, consume, step, react, reacts, spans, heads, seen, live, arena, closings, counters,
    stack, known, left_of, todo,
):  # fmt: skip
    """Read events until all are read or something is needed.

    Args:
        letters: the letter of each event, int32[events].
        when: the start of a run that begins with the event, int64[events].
        low: the least start inside the window when a match closes with the event, int64[events].
        first: the number of the first event; the i-th has ``first + i``.
        segments: the first event of each range of one key, int64[ranges + 1].
        rows: the row of ``heads`` of each range, int64[ranges].
        consume: ``KEEP``, ``CONSUME_KEY`` or ``CONSUME_ALL``; ``EXPIRE``: events with a ``low`` are ends of windows, see
            ``expire``.
        step: int32[nodes, letters, choices], see ``UNKNOWN``; choice 0 skips the event. Runs begin in node 0.
        react: for each letter the automaton nodes that it moves, in order, int32[letters, nodes]; ``reacts``: how many.
        spans: int64[nodes]: how long after their start the runs in a node can go on, in the unit of ``when``; -1: as long as ``low`` says.
        heads: int32[rows, nodes]. ``seen``: int64[rows], the generation of each row (for ``CONSUME_ALL``).
        live: int32[2, nodes], scratch.
        arena: the nodes, see the module: ``(pos, prev, left, right, kind, rank, key)``.
        closings: int32[2, n]: the matches found, as event number and heap; several columns if an event ends runs in several
            nodes.
        counters: int64[COUNTERS]: where to continue, and what is needed.
        stack: int32[DEPTH], scratch. ``known``, ``left_of``, ``todo``: see ``without``; empty unless runs expire.

    Returns:
        ``DONE``, or what is missing; then ``counters[EVENT]`` is the first unread event, and nothing of it was changed.
    """
    room = len(arena[0])
    choices = step.shape[2]
    while counters[SEGMENT] < len(rows):
        segment = counters[SEGMENT]
        row = rows[segment]
        mine = heads[row]
        end = segments[segment + 1]
        if consume == CONSUME_ALL and seen[row] != counters[GENERATION]:
            mine[:] = -1
            seen[row] = counters[GENERATION]
        for i in range(max(counters[EVENT], segments[segment]), end):
            letter = letters[i]
            if step[0, letter, 0] == UNKNOWN:
                counters[EVENT], counters[ASKED_NODE], counters[ASKED_LETTER] = i, 0, letter
                return UNKNOWN_STEP
            found = 0
            for k in range(reacts[letter]):
                d = react[letter, k]
                if mine[d] != -1:
                    if step[d, letter, 0] == UNKNOWN:
                        counters[EVENT], counters[ASKED_NODE], counters[ASKED_LETTER] = i, d, letter
                        return UNKNOWN_STEP
                    live[0, found] = d
                    found += 1
            begins = False
            for choice in range(choices):
                begins |= step[0, letter, choice] != 0
            if consume == EXPIRE and low[i] != NEVER:
                if counters[CLOSINGS] + found > closings.shape[1]:
                    counters[EVENT] = i
                    return CLOSINGS_FULL
                if not expire(
                    first + i, letter, low[i], react, reacts, mine, live, arena, closings, counters, stack, known, left_of, todo
                ):  # fmt: skip
                    counters[EVENT] = i
                    return ARENA_FULL
                continue
            if found == 0 and not begins:
                continue
            most = choices * (found + 1)
            if counters[NODES] + most * _NODES_PER_JOIN > room:
                counters[EVENT] = i
                return ARENA_FULL
            if counters[CLOSINGS] + most > closings.shape[1]:
                counters[EVENT] = i
                return CLOSINGS_FULL
            before = counters[CLOSINGS]
            advance(
                first + i, letter, when[i], low[i], begins, found, step, spans, mine, live, arena, closings, counters, stack
            )
            if counters[CLOSINGS] > before and consume != KEEP:
                mine[:] = -1
                if consume == CONSUME_ALL:
                    counters[GENERATION] += 1
                    seen[row] = counters[GENERATION]
        counters[EVENT] = end
        counters[SEGMENT] = segment + 1
    return DONE


@jit
def sweep(roots, lows, settled, count, arena, renumbered):
    """Keep what ``roots`` reach inside their windows, and close the gaps.

    Args:
        roots: heaps to keep, int32[n]; replaced by their new numbers (-1: all of it has left the window).
        lows: the least start that each root still needs, int64[n].
        settled: this many nodes, the oldest, stay; they refer only to each other.
        count: the number of nodes.
        arena: the nodes; changed in place.
        renumbered: int64[count - settled], scratch.

    Returns:
        The number of nodes left.
    """
    pos, prev, left, right, kind, rank, key = arena
    nobody = numba.int64(0x7FFFFFFFFFFFFFFF)
    renumbered[: count - settled] = nobody  # first: the least start that any root needs of a node
    for k in range(len(roots)):
        if roots[k] >= settled:
            renumbered[roots[k] - settled] = min(renumbered[roots[k] - settled], lows[k])
    for n in range(count - 1, settled - 1, -1):  # a node is younger than those it refers to
        low = renumbered[n - settled]
        if low == nobody or key[n] < low:
            renumbered[n - settled] = nobody
            continue
        for other in (prev[n], left[n], right[n]):
            if other >= settled:
                renumbered[other - settled] = min(renumbered[other - settled], low)
    kept = settled
    for n in range(settled, count):
        if renumbered[n - settled] == nobody:
            renumbered[n - settled] = -1
            continue
        renumbered[n - settled] = kept
        pos[kept], kind[kept], rank[kept], key[kept] = pos[n], kind[n], rank[n], key[n]
        prev[kept] = prev[n] if prev[n] < settled else renumbered[prev[n] - settled]
        left[kept] = left[n] if left[n] < settled else renumbered[left[n] - settled]
        right[kept] = right[n] if right[n] < settled else renumbered[right[n] - settled]
        kept += 1
    for k in range(len(roots)):
        if roots[k] >= settled:
            roots[k] = renumbered[roots[k] - settled]
    return kept
