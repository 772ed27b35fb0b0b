"""Enumeration as work for others: counted, divided into equal parts, each with only the runs and events that it needs.

``CountedSplit`` counts the matches of some closing events inside their windows and divides their ranks into ranges of equal
length. Whoever gets a range enumerates it directly. Ranges are disjoint, so no match is repeated or missing.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import to_indices
from penstock.patterns.recogniser.recogniser import Arena, Block, too_many_matches, walk

LIGHT = 1 << 17  # up to here matches are enumerated where they are found: handing over costs more
LIGHT_JUDGED = 1 << 8  # the same if a Python function checks each
PIECE = 1 << 20  # most matches of a part, unless there would be more parts than `MOST_PIECES`
MOST_PIECES = 1 << 10

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CountedSplit:
    """Spread enumeration by ranges of ranks.

    Attributes:
        light: how many matches a worker enumerates itself before it counts and spreads them; by default fewer if ``where`` is a
            Python function.

    Example:
        >>> events = spark.createDataFrame([(1, "A"), (2, "B"), (3, "B")], "at int, kind string")
        >>> found = ps.match(events, "SELECT * WHERE A ; B+", order_by="at", type="kind", enumerate_with=ps.CountedSplit())
        >>> found.count()
        3
    """

    light: int = LIGHT


@dataclass(frozen=True, slots=True)
class EnumerationTask:
    """Matches to enumerate: those of rank ``skip`` to ``skip + left`` among the matches of some closings."""

    nodes: np.ndarray
    closings: NDArray[np.int32]
    lows: Ints
    events: pa.RecordBatch
    skip: int
    left: int

    def blocks(self, block_matches: int) -> Iterator[Block]:
        """The matches; event number i is row i of ``events``."""
        arena = Arena(max(1, len(self.nodes)))
        arena.put(self.nodes)
        totals = None
        if self.skip:
            totals = arena.counted(self.closings[1, :1], self.lows[:1])[1]
        return walk(arena, self.closings, self.lows, block_matches=block_matches, skip=self.skip, left=self.left, totals=totals)

    def dump(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.events.schema) as writer:
            writer.write_batch(self.events)
        parts = (self.nodes, self.closings, self.lows, sink.getvalue().to_pybytes(), self.skip, self.left)
        return pickle.dumps(parts, protocol=5)


def load_work(raw: bytes) -> EnumerationTask:
    """Read what ``EnumerationTask.dump`` returned."""
    nodes, closings, lows, events, skip, left = pickle.loads(raw)
    return EnumerationTask(nodes, closings, lows, pa.ipc.open_stream(events).read_next_batch(), skip, left)


def split(
    arena: Arena, closings: NDArray[np.int32], lows: Ints, events: pa.RecordBatch, workers: int, most: int
) -> Iterator[EnumerationTask]:
    """Divide the matches of some closings into parts of equal size.

    Args:
        arena: the nodes; not modified.
        closings, lows: see ``matches.walk``.
        events: event number i is row i.
        workers: how many share the work; the number of parts is a multiple of it.
        most: more matches of one closing event are an error.

    Raises:
        OperatorError: an event closes more than ``most`` matches.
    """
    words = arena.counted(closings[1], lows)[0]
    huge = (words[1] > 0) | (words[0] > np.uint64(1 << 62))
    sizes = np.where(huge, np.uint64(1 << 62), words[0]).astype(np.int64)
    _, group = np.unique(closings[0], return_inverse=True)
    if huge.any() or (np.bincount(group, sizes.astype(np.float64)) > most).any():
        raise too_many_matches(most)
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    pieces = workers * min(-(-total // (PIECE * workers)), max(1, MOST_PIECES // workers))
    cuts = [total * i // pieces for i in range(pieces + 1)]
    for low, high in itertools.pairwise(cuts):
        if high > low:
            a = int(np.searchsorted(ends, low, "right"))
            b = int(np.searchsorted(ends, high, "left")) + 1
            yield _part(arena, closings[:, a:b], lows[a:b], events, low - int(ends[a] - sizes[a]), high - low)


def _part(
    arena: Arena, closings: NDArray[np.int32], lows: Ints, events: pa.RecordBatch, skip: int, left: int
) -> EnumerationTask:
    """The work with only what it needs, renumbered."""
    own = arena.copy()
    roots = closings[1].copy()
    own.sweep(roots, lows)
    nodes = own.get()
    numbers = np.where(nodes["pos"] < 0, -1 - nodes["pos"], nodes["pos"])
    needed, place = np.unique(np.concatenate([numbers, closings[0]]), return_inverse=True)
    at, ends = place[: len(numbers)], place[len(numbers) :]
    nodes["pos"] = np.where(nodes["pos"] < 0, -1 - at, at)
    return EnumerationTask(nodes, np.stack([ends.astype(np.int32), roots]), lows, events.take(to_indices(needed)), skip, left)
