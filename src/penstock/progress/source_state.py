"""A source and its partitions after an epoch: how far event time has come, and what was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.types import MIN_TIME

MOST_FLOORS: Final = 256
"""Of so many decisions that made records late a partition remembers where they fell."""


@dataclass(frozen=True)
class Waypoint:
    """A point of a log; see `penstock.progress.trail`.

    Attributes:
        number: Of points that the log has had so far.
        offset: The last one before it.
        latest: Greatest event time (µs) until there.
        rows: Records on time or late until there.
        files: Files until there; 0 of a log that is none of files.
        digest: Of these files.
        print: Of these records, as in `PartitionState`.
    """

    number: int
    offset: int = -1
    latest: int = MIN_TIME
    rows: int = 0
    files: int = 0
    digest: str = ""
    print: int | None = None

    def to_json(self) -> list[Any]:
        """Its fields, as far as they say something."""
        rest = [self.files, self.digest, *([] if self.print is None else [self.print])]
        return [self.number, self.offset, self.latest, self.rows, *(rest if self.files or self.print is not None else [])]

    @staticmethod
    def from_json(raw: list[Any]) -> Waypoint:
        """Read what `to_json` gave."""
        return Waypoint(*raw)


@dataclass
class PartitionState:
    """One source partition.

    Attributes:
        part: Its number in the hidden column PART.
        latest: Greatest event time seen, µs; `MIN_TIME` for none.
        offset: Last offset read; −1 for none.
        late_floor: Event time below which all records are late; for partitions that joined, or returned from idleness, after
            the frontier had advanced.
        heard_us: Clock time of the last records, for idleness.
        idle: Whether it was idle, and so did not hold back the frontier.
        rows: Records read.
        trail: Points of its log, if the source is not one of files.
        floors: Which `late_floor` holds after which offset, the last few.
        print: What tells these records from others (`penstock.progress.lateness.Chunk`); None: that of some is not known.
    """

    part: int
    latest: int = MIN_TIME
    offset: int = -1
    late_floor: int = MIN_TIME
    heard_us: int = 0
    idle: bool = False
    rows: int = 0
    trail: list[Waypoint] = field(default_factory=list)
    floors: list[list[int]] = field(default_factory=list)
    print: int | None = None


@dataclass
class SourceState:
    """One source.

    Attributes:
        frontier: Event time (µs) before which no record on time can arrive.
        files: Number of files read. Likewise ``rows``, ``late``, ``malformed`` and ``ahead`` records.
        heard_us: Clock time of the last records, or of the first epoch.
        quiet_us: Clock time of the last records, or of the first epoch of the run if it had none.
        closed: Whether its frontier has gone on by the clock since its last records; what it has passed is late.
        idle: Whether the whole source was idle, and so took the frontier of the others.
        partitions: By name.
        names: Names of the files read last, for messages about waiting records; the last of them is number ``files`` − 1.
        order: How far its files have been read, if that differs from what Spark gave; see `penstock.driver.input_files.Order`.
        digest: Of all files read, in their order.
        reached: The greatest place (time in ms, name) of a file read; empty: there is none.
        strays: Files read behind one of a greater place, as (number, URI), the last few.
        trail: Points of its log, if it is one of files.
    """

    frontier: int = MIN_TIME
    files: int = 0
    rows: int = 0
    late: int = 0
    malformed: int = 0
    ahead: int = 0
    heard_us: int = 0
    quiet_us: int = 0
    closed: bool = False
    idle: bool = False
    partitions: dict[str, PartitionState] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    order: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    reached: list[Any] = field(default_factory=list)
    strays: list[list[Any]] = field(default_factory=list)
    trail: list[Waypoint] = field(default_factory=list)


def floors_after(points: Sequence[list[int]], offset: int, floor: int) -> list[list[int]]:
    """The floors of a partition, as (offset after which it holds, µs), with one more."""
    changed = floor > (points[-1][1] if points else MIN_TIME)
    return [*points, [offset, floor]][-MOST_FLOORS:] if changed else list(points)


def floor_at(points: Sequence[list[int]], offset: int) -> int:
    """The floor that holds for the record after an offset."""
    return max((floor for at, floor in points if at <= offset), default=MIN_TIME)


__all__ = ["PartitionState", "SourceState", "Waypoint", "floor_at", "floors_after"]
