"""Feeds batches of events of many keys to the kernel and returns matches in blocks.

Owns the memory: the arena of nodes, the heads of the keys, the numbers of the events that matches may still need. The windows
of open runs bound it: when the arena is full, the matches found are emitted first, then it is swept. It grows only if more than
half is still in use.

Read next: ``kernel`` (the loop), ``matches`` (the walk), ``tables`` (the automaton as arrays).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import OperatorError
from penstock.patterns.recogniser import choosing, kernel, matches
from penstock.patterns.recogniser.tables import Tables

NODE = np.dtype(
    [("pos", "<i4"), ("prev", "<i4"), ("left", "<i4"), ("right", "<i4"), ("kind", "<i2"), ("rank", "<i2"), ("key", "<i8")]
)
ARRAYS = ("pos", "prev", "left", "right", "kind", "rank", "key")  # in the kernels' order
COMPARED = 1 << 22  # most matches of one event that are compared, though fewer may remain
_NO_LIMIT = np.iinfo(np.int64).max
_CONSUME = {"NONE": kernel.KEEP, "PARTITION": kernel.CONSUME_KEY, "ANY": kernel.CONSUME_ALL, "EXPIRED": kernel.EXPIRE}
BEST = {"NEXT": choosing.NEXT, "LAST": choosing.LAST}


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in the order of recognition.

    Attributes:
        letters: int32[events], from ``Tables.letters``.
        when: int64[events]: the start of a run that begins with the event, in the window's unit.
        low: int64[events]: the least start inside the window of a match that ends with the event.
        segments: int64[ranges + 1]: the first event of each range of one key. ``rows``: int64[ranges], the row of its key.
        back: int64[n], ascending: events with a lesser ``when`` than their key's previous event; its ``low`` is in ``edges``.
        refused: the error if a run was inside its window at the event before one of these.
    """

    letters: NDArray[np.int32]
    when: NDArray[np.int64]
    low: NDArray[np.int64]
    segments: NDArray[np.int64]
    rows: NDArray[np.int64]
    back: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    edges: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    refused: Callable[[int], Exception] | None = None

    def part(self, start: int, end: int) -> Batch:
        a, b = np.searchsorted(self.segments, start, "right") - 1, np.searchsorted(self.segments, end, "left")
        here = slice(start, end)
        stretches = np.clip(self.segments[a : b + 1], start, end) - start
        return Batch(self.letters[here], self.when[here], self.low[here], stretches, self.rows[a:b])

    def row(self, event: int) -> int:
        return int(self.rows[np.searchsorted(self.segments, event, "right") - 1])


@dataclass(frozen=True, slots=True)
class Block:
    """Matches, as numbers of events.

    Attributes:
        starts, ends: int64[matches]: the first and the last event of each match's interval.
        offsets: int64[matches + 1], the first of each match's marked events in ``positions``.
        positions: int32[marks]: the marked events, ascending within a match. ``kinds``: int16[marks], see ``Automaton.kinds``.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    positions: NDArray[np.int32]
    kinds: NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of matches of each closing event.

    Attributes:
        ends: int64[n], the closing events, ascending; the counts of equal ones are to be added.
        words: uint64[2, n]: low and high word of each count; the top bit is set beyond 127 bits.
    """

    ends: NDArray[np.int64]
    words: NDArray[np.uint64]


class Arena:
    """The nodes of all runs; see ``kernel`` for their layout."""

    def __init__(self, room: int) -> None:
        self.arrays = _arena(room)
        self.count = 0

    @property
    def room(self) -> int:
        return len(self.arrays[0])

    def grow(self) -> None:
        larger = _arena(2 * self.room)
        for new, old in zip(larger, self.arrays, strict=True):
            new[: self.count] = old[: self.count]
        self.arrays = larger

    def copy(self) -> Arena:
        other = Arena(max(1, self.count))
        for new, old in zip(other.arrays, self.arrays, strict=True):
            new[: self.count] = old[: self.count]
        other.count = self.count
        return other

    def get(self) -> np.ndarray:
        """A copy of the nodes, as rows."""
        out = np.empty(self.count, NODE)
        for name, array in zip(ARRAYS, self.arrays, strict=True):
            out[name] = array[: self.count]
        return out

    def put(self, nodes: np.ndarray) -> None:
        """Add nodes, given as rows; their links count from the first of them."""
        while self.count + len(nodes) > self.room:
            self.grow()
        for name, array in zip(ARRAYS, self.arrays, strict=True):
            array[self.count : self.count + len(nodes)] = nodes[name]
        self.count += len(nodes)

    def sweep(self, roots: NDArray[np.int32], lows: NDArray[np.int64], settled: int = 0) -> None:
        """Keep what ``roots`` reach, and the ``settled`` oldest nodes; they are renumbered in place."""
        self.count = kernel.sweep(roots, lows, settled, self.count, self.arrays, np.empty(self.count - settled, np.int64))

    def counted(self, roots: NDArray[np.int32], lows: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The number of matches of each heap inside its window, as low and high words (uint64[2, roots]).

        And the low words of all heaps (uint64[heaps]), as for the last root.
        """
        totals, done = np.zeros((2, self.count), np.uint64), np.zeros(self.count, np.int64)
        words = np.empty((2, len(roots)), np.uint64)
        matches.count(roots, lows, self.arrays, totals, done, 1, np.empty(3 * self.count + 3, np.int32), words)
        return words, totals[0]


def _arena(room: int) -> tuple[np.ndarray, ...]:
    return tuple(np.empty(room, NODE[name].newbyteorder("=")) for name in ARRAYS)


def _expiry(room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scratch arrays of ``kernel.without``."""
    return np.zeros(room, np.int64), np.empty(room, np.int32), np.empty(3 * room + 3, np.int32)


class Recogniser:
    """Recognises one query in the events of any number of keys.

    Args:
        tables: the query's automaton.
        strategy: the query's selection strategy.
        consume: ``"NONE"``, ``"PARTITION"`` or ``"ANY"``; ``"EXPIRED"``: see ``kernel.EXPIRE``.
        limit: the most matches of one closing event, if limited.
        scope: ``"end"`` compares the matches of one closing event, ``"interval"`` only those that also begin together.
        max_matches_per_event: more matches of one closing event are an error.
        block_matches: the most matches in a block.
        room: nodes to begin with.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        strategy: str = "ALL",
        consume: str = "NONE",
        limit: int | None = None,
        scope: str = "end",
        max_matches_per_event: int = _NO_LIMIT,
        block_matches: int = 1 << 16,
        room: int = 1 << 20,
    ) -> None:
        self.tables = tables
        self._strategy, self._consume, self._scope = strategy, _CONSUME[consume], scope
        self._limit, self._too_many = limit, max_matches_per_event
        self._block_matches = block_matches
        self.arena = Arena(room)
        self.heads: NDArray[np.int32] = np.full((1, tables.width), -1, np.int32)
        self._seen: NDArray[np.int64] = np.zeros(1, np.int64)
        self._counters = np.zeros(kernel.COUNTERS, np.int64)
        self._stack = np.empty(kernel.DEPTH, np.int32)
        self._closings = np.empty((2, 1 << 18), np.int32)
        self._expiry = _expiry(0)
        self._full_at = -1
        self._settled = 0  # nodes that the next sweep skips
        self.first = 0  # the number of the next event

    def rows(self, count: int) -> None:
        """Make room for the heads of ``count`` keys; existing keys keep their rows."""
        have, width = self.heads.shape
        if count > have or self.tables.width > width:
            larger = np.full((max(count, have), self.tables.width), -1, np.int32)
            larger[:have, :width] = self.heads
            seen = np.full(len(larger), self._counters[kernel.GENERATION], np.int64)
            seen[:have] = self._seen
            self.heads, self._seen = larger, seen

    def count(self, batch: Batch) -> Iterator[Counts]:
        """As ``feed``, but only count the matches, without enumerating them if the strategy allows it."""
        for closings, lows in self.closings(batch):
            if self.compares:
                for block in self._emit_matches(closings, lows):
                    ends, counts = np.unique(block.ends, return_counts=True)
                    yield Counts(ends, np.stack([counts.astype(np.uint64), np.zeros(len(ends), np.uint64)]))
                continue
            yield Counts(closings[0].astype(np.int64), self.arena.counted(closings[1], lows)[0])

    @property
    def compares(self) -> bool:
        """Whether the matches of one closing event must be compared."""
        return self._strategy in ({"NEXT", "LAST", "MAX", "ANY"} if self._scope == "end" else {"ANY"})

    def feed(self, batch: Batch) -> Iterator[Block]:
        """Read events; yield the matches that end with them.

        Args:
            batch: the events. They get the numbers from ``first`` on.

        Yields:
            Blocks of matches; the closing events ascend in the order of the batch.

        Raises:
            OperatorError: an event closes more matches than allowed. Matches of earlier events may have been yielded.
        """
        for closings, lows in self.closings(batch):
            yield from self._emit_matches(closings, lows)

    def closings(self, batch: Batch) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Read events like ``feed``; yield what they close, not enumerated. It is valid until the next is requested."""
        start = 0
        for event, edge in zip(batch.back.tolist(), batch.edges.tolist(), strict=True):
            yield from self._read(batch.part(start, event))
            self._step_back(batch, event, edge)
            start = event
        yield from self._read(batch.part(start, len(batch.letters)) if start else batch)

    def _step_back(self, batch: Batch, event: int, edge: int) -> None:
        """A decrease of ``when`` is allowed only without open runs: those that had left their windows might be inside again."""
        row = batch.row(event)
        self._forget_consumed()
        heads = self.heads[row]
        if (self.arena.arrays[6][heads[heads >= 0]] >= edge).any():
            assert batch.refused is not None
            raise batch.refused(event)
        heads[:] = -1

    def _read(self, batch: Batch) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        counters = self._counters
        counters[[kernel.EVENT, kernel.SEGMENT, kernel.CLOSINGS]] = 0
        while True:
            tables = self.tables
            self.rows(len(self.heads))
            counters[kernel.NODES] = self.arena.count
            live = np.empty((2, tables.width), np.int32)
            if self._consume == kernel.EXPIRE and len(self._expiry[0]) != self.arena.room:
                self._expiry = _expiry(self.arena.room)
            code = kernel.recognise(
                batch.letters, batch.when, batch.low, self.first, batch.segments, batch.rows, self._consume,
                tables.step, tables.react, tables.reacts, tables.spans, self.heads, self._seen, live,
                self.arena.arrays, self._closings, counters, self._stack, *self._expiry,
            )  # fmt: skip
            self.arena.count = int(counters[kernel.NODES])
            if code == kernel.UNKNOWN_STEP:
                tables.learn(int(counters[kernel.ASKED_NODE]), int(counters[kernel.ASKED_LETTER]))
                continue
            found = int(counters[kernel.CLOSINGS])
            if found:
                closings = self._closings[:, :found]
                yield closings, batch.low[closings[0] - self.first]
                counters[kernel.CLOSINGS] = 0
            if code == kernel.DONE:
                break
            if code == kernel.ARENA_FULL:
                self._make_room(batch)
        self.first += len(batch.letters)

    def _make_room(self, batch: Batch) -> None:
        lows = np.full(len(self.heads), kernel.NEVER)
        now = lows.copy()
        if self._consume != kernel.EXPIRE:
            stretch = int(self._counters[kernel.SEGMENT])
            last = np.append(batch.segments[1 : stretch + 1] - 1, self._counters[kernel.EVENT])
            rows = batch.rows[: stretch + 1]  # later ranges of a row overwrite earlier ones
            lows[rows], now[rows] = batch.low[last], batch.when[last]
        self.sweep(lows, self._settled, now)  # most nodes of a batch are needed briefly, the others for long
        if self._settled and self.arena.count > self.arena.room // 2:
            self.sweep(lows, now=now)
        self._settled = self.arena.count
        # The second time at one event: it needs more than a sweep can free.
        again = self._full_at == self.first + self._counters[kernel.EVENT]
        self._full_at = self.first + int(self._counters[kernel.EVENT])
        if again or self.arena.count > self.arena.room // 2:
            self.arena.grow()

    def sweep(self, lows: NDArray[np.int64], settled: int = 0, now: NDArray[np.int64] | None = None) -> None:
        """Remove nodes that no run needs.

        Args:
            lows: the least start that may still be inside a window, per row, int64[rows].
            settled: this many nodes, the oldest, stay.
            now: ``when`` of the last event, per row, int64[rows]; the least number if it is not known.
        """
        rows, nodes = np.nonzero(self.heads >= settled)
        roots = self.heads[rows, nodes]
        edges = lows[rows] if now is None else self.tables.edges(nodes, lows[rows], now[rows])
        self.arena.sweep(roots, edges, settled)
        self.heads[rows, nodes] = roots

    def keep(self, rows: NDArray[np.int64], lows: NDArray[np.int64], now: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """End a batch: keep some keys only, and renumber the events that their runs need.

        Args:
            rows: the rows to keep, int64[n]; the i-th becomes row i.
            lows: the least start that may still be inside a window, for each of them, int64[n].
            now: ``when`` of the last event of each of them, int64[n].

        Returns:
            The numbers of the events still needed, ascending; they become 0, 1, 2 and so on, and the next event follows them.
        """
        self.heads, self._seen = self.heads[rows], self._seen[rows]
        self._forget_consumed()
        self.sweep(lows, now=now)
        self._settled = self.arena.count
        pos = self.arena.arrays[0][: self.arena.count]
        numbers = np.where(pos < 0, -1 - pos, pos)
        needed, place = np.unique(numbers, return_inverse=True)
        pos[:] = np.where(pos < 0, -1 - place, place)
        self.first = len(needed)
        return needed.astype(np.int64)

    def _forget_consumed(self) -> None:
        """Drop runs that a match of any key has consumed, in rows that no event has reached since."""
        if self._consume == kernel.CONSUME_ALL:
            self.heads[self._seen != self._counters[kernel.GENERATION]] = -1

    def _emit_matches(self, closings: NDArray[np.int32], lows: NDArray[np.int64]) -> Iterator[Block]:
        if self._scope == "end" and self._strategy in BEST:
            yield from self._best(closings, lows)
        elif self._strategy == ("MAX" if self._scope == "end" else "ANY"):
            block = self._chosen(joined(list(self._walk(closings, lows, None, max(self._too_many, COMPARED)))))
            check_number(block.ends, self._too_many)
            yield block
        else:
            yield from self._walk(closings, lows, 1 if self._strategy == "ANY" else self._limit, self._too_many)

    def _walk(self, closings: NDArray[np.int32], lows: NDArray[np.int64], at_most: int | None, most: int) -> Iterator[Block]:
        return walk(self.arena, closings, lows, at_most=at_most, too_many=most, block_matches=self._block_matches)

    def _best(self, closings: NDArray[np.int32], lows: NDArray[np.int64]) -> Iterator[Block]:
        """The one match of each closing event that the strategy keeps."""
        nodes, counters = self.arena.count, matches.begin()
        firsts, known = np.empty(nodes, np.int64), np.zeros(nodes, np.int64)
        heaps, todo, path = np.empty(3 * nodes + 3, np.int32), np.empty((3, 1024), np.int64), np.empty((4, 256), np.int32)

        def fill(*block: np.ndarray) -> int:
            nonlocal todo, path
            strategy, arena = BEST[self._strategy], self.arena.arrays
            while True:
                code = choosing.choose(closings, lows, strategy, arena, firsts, known, heaps, todo, path, *block, counters)
                if code != matches.PATH_FULL:
                    return int(code)
                todo, path = _doubled(todo), _doubled(path)

        return _blocks(fill, counters, self._block_matches)

    def _chosen(self, block: Block) -> Block:
        """The matches of each closing event that remain after comparison."""
        keep = np.zeros(len(block.ends), np.bool_)
        if self._strategy == "ANY":  # the first of each interval
            keep[np.unique(np.stack([block.ends, block.starts]), axis=1, return_index=True)[1]] = True
        else:
            matches.maximal(block.ends, block.offsets, block.positions, keep)
        if self._limit is not None:
            keep &= place_in_group(block.ends, keep) < self._limit
        return filtered(block, keep)


def walk(
    arena: Arena,
    closings: NDArray[np.int32],
    lows: NDArray[np.int64],
    *,
    at_most: int | None = None,
    too_many: int = _NO_LIMIT,
    block_matches: int = 1 << 16,
    skip: int = 0,
    left: int = _NO_LIMIT,
    totals: NDArray[np.uint64] | None = None,
) -> Iterator[Block]:
    """The matches of some closings, in blocks.

    Args:
        arena: the nodes.
        closings, lows: see ``matches.walk``.
        at_most: the most matches of one closing event, if limited.
        too_many: the number of matches of one closing event at which to give up.
        block_matches: the most matches in a block.
        skip: how many matches to skip first. ``left``: how many to return after that.
        totals: uint64[nodes], needed to skip: the number of matches of each heap.

    Raises:
        OperatorError: an event closes too many matches.
    """
    counters = matches.begin(skip, left)
    pending, path = np.empty((2, 1024), np.int32), np.empty((2, 256), np.int32)
    sizes = np.zeros(1, np.uint64) if totals is None else totals

    def fill(*block: np.ndarray) -> int:
        nonlocal pending, path
        most = _NO_LIMIT if at_most is None else at_most
        while True:
            code = matches.walk(closings, lows, most, too_many, arena.arrays, sizes, *block, pending, path, counters)
            if code == matches.STACK_FULL:
                pending = _doubled(pending)
            elif code == matches.PATH_FULL:
                path = _doubled(path)
            elif code == matches.TOO_MANY:
                raise too_many_matches(too_many)
            else:
                return int(code)

    return _blocks(fill, counters, block_matches)


def _blocks(fill: Callable[..., int], counters: np.ndarray, block_matches: int) -> Iterator[Block]:
    """A kernel's output, block by block. ``fill`` writes into the arrays of one and returns whether it is done."""
    marks = 8 * block_matches
    while True:
        found, offsets, positions, kinds = matches.block(block_matches, marks)
        counters[[matches.MATCHES, matches.POSITIONS]] = 0
        code = fill(found, offsets, positions, kinds)
        n, used = int(counters[matches.MATCHES]), int(counters[matches.POSITIONS])
        if n:
            yield Block(found[1, :n], found[2, :n], offsets[: n + 1], positions[:used], kinds[:used])
        elif code == matches.BLOCK_FULL:
            marks *= 2  # not even one match fits
        if code == matches.DONE:
            return


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.empty_like(array)], axis=1)


def check_number(ends: NDArray[np.int64], most: int) -> None:
    """Refuse more than ``most`` matches of one closing event.

    Raises:
        OperatorError: There are more.
    """
    if len(ends) > most and np.unique(ends, return_counts=True)[1].max() > most:
        raise too_many_matches(most)


def too_many_matches(limit: int) -> OperatorError:
    """The error for an event that closes too many matches."""
    return OperatorError(
        f"One event closes more than {limit:,} matches; narrow the pattern or its window, use LIMIT or COUNT(*), or raise "
        "max_matches_per_event."
    )


def joined(blocks: list[Block]) -> Block:
    """Blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    lengths = np.concatenate([np.diff(block.offsets) for block in blocks])
    return Block(
        np.concatenate([b.starts for b in blocks]),
        np.concatenate([b.ends for b in blocks]),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([b.positions for b in blocks]),
        np.concatenate([b.kinds for b in blocks]),
    )


def filtered(block: Block, keep: NDArray[np.bool_]) -> Block:
    """Some of the matches."""
    lengths = np.diff(block.offsets)
    marks = np.repeat(keep, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[keep])])
    return Block(block.starts[keep], block.ends[keep], offsets, block.positions[marks], block.kinds[marks])


def place_in_group(groups: NDArray[np.int64], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each match, the number of kept ones before it in its group."""
    before: NDArray[np.int64] = np.cumsum(keep) - keep
    first = np.concatenate([[True], groups[1:] != groups[:-1]])
    return before - np.maximum.accumulate(np.where(first, before, 0))
