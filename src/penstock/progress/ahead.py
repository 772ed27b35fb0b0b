"""Which records lie too far ahead of their source partition, so that they are put aside: pure functions of positions and times.

A record is ahead if, in offset order, its time is more than the bound after the greatest time that its partition had before it. It does not count as
that: neither lateness nor the frontier knows of it. The first record of a partition has nothing before it and is never ahead.

As with lateness, statistics of chunks say what need not be looked at: a chunk none of whose records can be ahead, or all of whose records are. Only
the others are looked at record by record (`in_question`), all of an epoch at once.

Read next: `penstock.progress.lateness`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.arrow.columns import lexicographic
from penstock.progress.lateness import Chunk, ChunkId
from penstock.progress.source_state import SourceState
from penstock.rows.keys import Ints
from penstock.types import MAX_TIME, MIN_TIME


@dataclass(frozen=True)
class Aside:
    """Records that are ahead: those of a partition within a range of offsets, both inclusive, with a time after the bound (µs)."""

    part: int
    first: int
    last: int
    bound: int


def in_question(before: SourceState, chunks: Iterable[Chunk], ahead_us: int) -> tuple[set[ChunkId], bool]:
    """The chunks in which some records may be ahead and others not, and whether any record of the epoch may be ahead.

    Args:
        before: The source's state after the previous epoch.
        chunks: The epoch's records.
        ahead_us: The bound.
    """
    found: set[ChunkId] = set()
    some = False
    lowest: dict[str, int] = {}  # of what the greatest time before a chunk can be
    highest: dict[str, int] = {}
    for chunk in _in_order(chunks):
        name = chunk.partition
        if name not in lowest:
            known = before.partitions.get(name)
            lowest[name] = highest[name] = MIN_TIME if known is None else known.latest
        if lowest[name] == MIN_TIME:  # its first record is not ahead, whatever its time
            first = highest[name] == MIN_TIME  # else it has had a time that stands for none
            within = first and chunk.greatest <= _after(chunk.least, ahead_us)
            found |= set() if within else {(chunk.part, chunk.number)}
            lowest[name] = chunk.greatest if within else chunk.least if first else MIN_TIME
            highest[name] = max(highest[name], chunk.greatest)
            continue
        if chunk.least > _after(highest[name], ahead_us):
            some = True
        elif chunk.greatest > _after(lowest[name], ahead_us):
            found.add((chunk.part, chunk.number))
            if chunk.least <= _after(lowest[name], ahead_us):
                lowest[name] = max(lowest[name], chunk.least)
            highest[name] = max(highest[name], chunk.greatest)
        else:
            lowest[name], highest[name] = max(lowest[name], chunk.greatest), max(highest[name], chunk.greatest)
    return found, some or bool(found)


def put_aside(
    before: SourceState, chunks: Iterable[Chunk], ahead_us: int, seen: Sequence[Ints], chunk_rows: int
) -> tuple[tuple[Chunk, ...], tuple[Aside, ...], int]:
    """The records of an epoch that are ahead.

    Args:
        before: The source's state after the previous epoch.
        chunks: The epoch's records.
        ahead_us: The bound.
        seen: Of all records of the chunks `in_question`, in any order, their partitions' numbers, offsets and event times (µs), int64 of shape (n,).
            Records with one partition and offset count in the order of their times.
        chunk_rows: So many offsets are a chunk.

    Returns:
        The chunks without the times of records that are ahead (one without others has the least time `MAX_TIME` and the greatest `MIN_TIME`), which
        records these are, and how many.

    Example:
        >>> at = np.array([10, 12, 99, 13])
        >>> first = Chunk("0", 0, 0, 10, 99, 3, 4)
        >>> put_aside(SourceState(), [first], 5, [at * 0, np.arange(4), at], 4)[1:]
        ((Aside(part=0, first=2, last=2, bound=17),), 1)
    """
    part, offset, time = seen
    index = lexicographic([part, offset, time])
    part, offset, time = part[index], offset[index], time[index]
    begins = np.flatnonzero(np.append(True, (np.diff(part) != 0) | (np.diff(offset // chunk_rows) != 0))[: len(part)])
    spans = zip(begins.tolist(), [*begins[1:].tolist(), len(part)][: len(begins)], strict=True)
    there = {(int(part[a]), int(offset[a]) // chunk_rows): slice(a, b) for a, b in spans}
    latest = {name: known.latest for name, known in before.partitions.items()}
    found: list[Chunk] = []
    asides: list[Aside] = []
    rows = 0
    for chunk in _in_order(chunks):
        top, kept = latest.get(chunk.partition, MIN_TIME), chunk
        here = there.get((chunk.part, chunk.number))
        if here is not None:
            runs = runs_ahead(time[here], top, ahead_us)
            ahead = np.zeros(here.stop - here.start, bool)
            for first, end, bound in runs:
                ahead[first:end] = True
                asides.append(Aside(chunk.part, int(offset[here][first]), int(offset[here][end - 1]), bound))
            kept, rows = _with_times(chunk, time[here][~ahead]), rows + int(ahead.sum())
        elif top != MIN_TIME and chunk.least > (bound := _after(top, ahead_us)):
            begin = chunk.number * chunk_rows
            asides.append(Aside(chunk.part, begin, begin + chunk_rows - 1, bound))
            kept, rows = _with_times(chunk, time[:0]), rows + chunk.rows
        latest[chunk.partition] = max(top, kept.greatest)
        found.append(kept)
    return tuple(found), tuple(_joined(asides)), rows


def is_aside(asides: Iterable[Aside], part: Ints, offset: Ints, time: Ints) -> Any:
    """Which records are put aside: a mask of shape (n,).

    Args:
        asides: From `put_aside`.
        part: Their partitions' numbers, int64 of shape (n,).
        offset: Their offsets, likewise.
        time: Their event times (µs), likewise.
    """
    found = np.zeros(len(part), bool)
    for one in asides:
        found |= (part == one.part) & (offset >= one.first) & (offset <= one.last) & (time > one.bound)
    return found


def runs_ahead(time: Ints, top: int, ahead_us: int) -> list[tuple[int, int, int]]:
    """Records in order that are ahead, as (first, end, bound) of each run without others between.

    Args:
        time: Their times (µs), int64 of shape (n,).
        top: The greatest time before them; `MIN_TIME`: there is none.
        ahead_us: The bound.
    """
    found, at = [], 0
    while at < len(time):
        if top == MIN_TIME:
            top, at = int(time[at]), at + 1
            continue
        rest = time[at:]
        before = np.append(top, np.maximum.accumulate(np.maximum(rest, top))[:-1])
        beyond = np.flatnonzero(rest > np.minimum(before, MAX_TIME - ahead_us) + ahead_us)
        if not len(beyond):
            break
        first, top = at + int(beyond[0]), int(before[beyond[0]])
        bound = _after(top, ahead_us)
        within = np.flatnonzero(time[first:] <= bound)
        at = first + int(within[0]) if len(within) else len(time)
        found.append((first, at, bound))
    return found


def _after(time: int, ahead_us: int) -> int:
    """The latest time that is not ahead of another one."""
    return min(time + ahead_us, MAX_TIME)


def _with_times(chunk: Chunk, time: Ints) -> Chunk:
    """A chunk whose records that count have these times."""
    least, greatest = (int(time.min()), int(time.max())) if len(time) else (MAX_TIME, MIN_TIME)
    return replace(chunk, least=least, greatest=greatest)


def _in_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    return sorted(chunks, key=lambda c: (c.partition, c.number))


def _joined(asides: Iterable[Aside]) -> Iterator[Aside]:
    """The same with neighbours as one, so that a partition of which all is ahead needs no list of its chunks."""
    last: Aside | None = None
    for one in asides:
        if last is not None and (last.part, last.bound, last.last + 1) == (one.part, one.bound, one.first):
            last = replace(last, last=one.last)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


__all__ = ["Aside", "in_question", "is_aside", "put_aside", "runs_ahead"]
