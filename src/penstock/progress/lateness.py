"""Which records are late, and where the frontier is: pure functions of positions and times.

A record is late if, in offset order, it lies more than the lateness bound behind the greatest time that its own source
partition had before it. Nothing else matters, neither epochs nor other partitions. The source's frontier is the least
``greatest time − lateness`` of its partitions.

An idle partition does not hold back its source. An idle source takes the lowest frontier of the active sources in its region.
If all are idle, the highest frontier counts. A source that is closed, because it was silent as a whole, has a frontier that goes on by the clock.

A scan of an epoch gives times per chunk of consecutive offsets. Chunks that may hold a late record are candidates; only in
these does the backend check single records, starting from what is known before the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic
from penstock.progress.source_state import PartitionState, SourceState, Waypoint, floors_after
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import Ints
from penstock.rows.rows import running_max
from penstock.types import MAX_TIME, MIN_TIME

ChunkId = tuple[int, int]
"""A partition's number and a chunk's."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one partition: least and greatest event time (µs), greatest offset, number of records.

    `print` tells them from others of other offsets or times: an exclusive or over all of them of Spark's ``xxhash64(offset, time)``, whatever their
    order, with further columns of sources that have some (`penstock.sources.Source.fingerprint`). None: it is not known, as where offsets are others
    when records are read again.
    """

    partition: str
    part: int
    number: int
    least: int
    greatest: int
    last_offset: int
    rows: int
    print: int | None = None


def chunks_of(
    part: Ints, chunk: Ints, offset: Ints, time: Ints, name_of: Callable[[int], str], fingerprint: Sequence[Ints] = ()
) -> tuple[Chunk, ...]:
    """The chunks of some records.

    Args:
        part: The records' partitions' numbers, int64 of shape (n,). Likewise the numbers of their chunks, offsets and times
            (µs).
        chunk: See there.
        offset: See there.
        time: See there.
        name_of: Returns a partition's name for its number.
        fingerprint: What else tells each record from others.
    """
    if not len(part):
        return ()
    index = lexicographic([part, chunk])
    part, chunk, offset, time = part[index], chunk[index], offset[index], time[index]
    first = np.flatnonzero(np.concatenate(([True], (part[1:] != part[:-1]) | (chunk[1:] != chunk[:-1]))))
    found = (part[first], chunk[first], np.minimum.reduceat(time, first), np.maximum.reduceat(time, first))
    told = [offset, time, *(column[index] for column in fingerprint)]
    prints = np.bitwise_xor.reduceat(spark_xxhash64([pa.array(column) for column in told]), first)
    rest = (np.maximum.reduceat(offset, first), np.diff(np.append(first, len(part))), prints)
    rows = zip(*(column.tolist() for column in (*found, *rest)), strict=True)
    return tuple(Chunk(name_of(row[0]), *row) for row in rows)


def print_after(before: PartitionState | Waypoint | None, chunk: Chunk) -> int | None:
    """The print of a partition's records with those of a chunk; None: that of some is not known."""
    known = 0 if before is None or not before.rows else before.print
    return None if known is None or chunk.print is None else known ^ chunk.print


@dataclass
class Base:
    """The start of a chunk's check: the greatest time of its partition before it, and the floor (µs)."""

    latest: int
    late_floor: int


@dataclass
class Judgement:
    """The result of an epoch's chunks.

    Attributes:
        state: The source's state after the epoch.
        candidate_chunks: Chunks that may hold late records, by (partition number, chunk number).
    """

    state: SourceState
    candidate_chunks: dict[ChunkId, Base] = field(default_factory=dict)


def behind(latest: int, lateness: int) -> int:
    """``latest − lateness``, or `MIN_TIME` if nothing was seen."""
    return MIN_TIME if latest == MIN_TIME else max(latest - lateness, MIN_TIME)


def check_lateness(
    before: SourceState,
    chunks: Sequence[Chunk],
    *,
    lateness_us: int,
    idle_after_us: int | None,
    declared: Sequence[tuple[str, int]],
    now_us: int,
    close_after_us: int | None = None,
    resumed: bool = False,
) -> Judgement:
    """Check one epoch of one source.

    Args:
        before: The source's state after the previous epoch; not modified.
        chunks: The epoch's records.
        lateness_us: The lateness bound.
        idle_after_us: The time without records after which a partition, or the whole source, is idle; None: never.
        declared: Partitions that must have records first, as (name, number).
        now_us: Clock time of the epoch, for idleness and silence only.
        close_after_us: The time without records after which the frontier of the source goes on by the clock, from where its records have brought
            it: by as much as it has been silent for longer. None: never.
        resumed: Whether another run had the epoch before: silence counts only while a run could have heard something.
    """
    # What else there is in them is replaced, never changed.
    state = replace(before, partitions={name: replace(known) for name, known in before.partitions.items()})
    if chunks or not state.heard_us:
        state.heard_us = now_us
    if chunks or resumed or not state.quiet_us:
        state.quiet_us = now_us
    for name, part in declared:
        state.partitions.setdefault(name, PartitionState(part, heard_us=now_us))
    candidate_chunks: dict[ChunkId, Base] = {}
    for chunk in sorted(chunks, key=lambda c: (c.partition, c.number)):
        known = state.partitions.setdefault(chunk.partition, PartitionState(chunk.part, late_floor=before.frontier))
        known.idle, known.late_floor = False, _floor(known, before)
        if chunk.least < known.late_floor:
            known.floors = floors_after(known.floors, known.offset, known.late_floor)
        latest = max(known.latest, chunk.greatest)
        if chunk.least < max(behind(latest, lateness_us), known.late_floor):
            candidate_chunks[chunk.part, chunk.number] = Base(known.latest, known.late_floor)
        known.latest, known.offset, known.heard_us = latest, max(known.offset, chunk.last_offset), now_us
        known.print = print_after(known, chunk)
        known.rows += chunk.rows
        state.rows += chunk.rows

    def silent(one: SourceState | PartitionState) -> bool:
        return idle_after_us is not None and now_us - one.heard_us > idle_after_us

    state.idle = silent(state)
    for known in state.partitions.values():
        if (known.idle and not silent(known)) or (
            before.closed and chunks
        ):  # by another clock, or another one has records again
            known.late_floor = _floor(known, before)
        known.idle = silent(known)
    reached = _least([(max(behind(k.latest, lateness_us), k.late_floor), k.idle) for k in state.partitions.values()])
    gone_on_us = 0 if close_after_us is None or reached == MIN_TIME else max(now_us - state.quiet_us - close_after_us, 0)
    state.closed = not chunks and (before.closed or gone_on_us > 0)
    state.frontier = max(before.frontier, min(reached + gone_on_us, max(reached, MAX_TIME - 1)))
    return Judgement(state, candidate_chunks)


def _floor(known: PartitionState, before: SourceState) -> int:
    """The floor of a partition's records; what the frontier has passed while it was idle, or its source closed, cannot be undone."""
    return max(known.late_floor, before.frontier) if known.idle or before.closed else known.late_floor


def begun(before: SourceState, partition: str) -> Base:
    """The start of the check of a partition's next record.

    Args:
        before: The source's state after the previous epoch.
        partition: The partition's name.
    """
    known = before.partitions.get(partition)
    return Base(MIN_TIME, before.frontier) if known is None else Base(known.latest, _floor(known, before))


def none_suspect(before: SourceState, chunks: Sequence[Chunk], lateness_us: int) -> bool:
    """Whether no record of an epoch can be late, according to these chunks, of any size."""
    return not check_lateness(
        before, chunks, lateness_us=lateness_us, idle_after_us=None, declared=(), now_us=0
    ).candidate_chunks


def align_idle_sources(states: dict[str, SourceState], meeting: Sequence[Collection[str]]) -> None:
    """Move idle sources to the frontier of the others; `states` is changed.

    Args:
        states: By source, from `check_lateness`.
        meeting: Groups of sources that feed one region.
    """
    reached = {name: state.frontier for name, state in states.items()}
    for name, state in states.items():
        if state.idle:
            met = {other for group in meeting if name in group for other in group}
            state.frontier = max(reached[name], _least([(reached[other], states[other].idle) for other in met]))


def _least(frontiers: Sequence[tuple[int, bool]]) -> int:
    """The least of some (frontier, idle) that are not idle; the greatest if all are idle."""
    active = [reached for reached, idle in frontiers if not idle]
    return min(active) if active else max((reached for reached, _ in frontiers), default=MIN_TIME)


def late_rows(
    part: Ints, chunk: Ints, offset: Ints, time: Ints, candidate_chunks: dict[ChunkId, Base], lateness_us: int
) -> Any:
    """Exactly which records are late: the rule of this module, record by record within the candidates.

    Args:
        part: Their partitions' numbers, int64 of shape (n,), in any order; candidate chunks must be complete.
        chunk: Their chunks' numbers, likewise.
        offset: Their offsets, likewise.
        time: Their event times (µs), likewise.
        candidate_chunks: The chunks to check, from `check_lateness`.
        lateness_us: The lateness bound.

    Returns:
        A mask of shape (n,). Records with one partition and offset count in the order given.

    Example:
        >>> at = np.array([50, 10, 49])
        >>> late_rows(at * 0, at * 0, np.arange(3), at, {(0, 0): Base(MIN_TIME, MIN_TIME)}, 5).tolist()
        [False, True, False]
    """
    late = np.zeros(len(time), bool)
    if not len(time):
        return late
    new_part, later_chunk = part[1:] > part[:-1], chunk[1:] > chunk[:-1]
    same = (part[1:] == part[:-1]) & (later_chunk | ((chunk[1:] == chunk[:-1]) & (offset[1:] >= offset[:-1])))
    index: Any = slice(None)
    if not (new_part | same).all():  # files are read in this order
        index = lexicographic([part, chunk, offset])
        part, chunk, time = part[index], chunk[index], time[index]
    new = np.concatenate(([True], (part[1:] != part[:-1]) | (chunk[1:] != chunk[:-1])))
    group, first = np.cumsum(new) - 1, np.flatnonzero(new)
    bases = [candidate_chunks.get(c) for c in zip(part[first].tolist(), chunk[first].tolist(), strict=True)]
    accused = np.array([b is not None for b in bases])[group]
    latest = np.array([MIN_TIME if b is None else b.latest for b in bases], np.int64)[group]
    late_floor = np.array([MIN_TIME if b is None else b.late_floor for b in bases], np.int64)[group]
    seen = running_max(group, time)
    top = np.maximum(latest, np.where(new, MIN_TIME, np.concatenate(([MIN_TIME], seen[:-1]))))
    bound = np.where(top < MIN_TIME + lateness_us, MIN_TIME, np.maximum(top, MIN_TIME + lateness_us) - lateness_us)
    late[index] = accused & (time < np.maximum(bound, late_floor))
    return late
