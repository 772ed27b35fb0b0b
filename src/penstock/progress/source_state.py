"""A source and its partitions after an epoch: how far event time has come, and what was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.types import MIN_TIME


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
    """

    part: int
    latest: int = MIN_TIME
    offset: int = -1
    late_floor: int = MIN_TIME
    heard_us: int = 0
    idle: bool = False


@dataclass
class SourceState:
    """One source.

    Attributes:
        frontier: Event time (µs) before which no record on time can arrive.
        files: Number of files read. Likewise ``rows``, ``late`` and ``malformed`` records.
        heard_us: Clock time of the last records, or of the first epoch.
        idle: Whether the whole source was idle, and so took the frontier of the others.
        partitions: By name.
        names: Names of the files read last, for messages about waiting records; the last of them is number ``files`` − 1.
        order: How far its files have been read, if that differs from what Spark gave; see `penstock.driver.input_files.Order`.
    """

    frontier: int = MIN_TIME
    files: int = 0
    rows: int = 0
    late: int = 0
    malformed: int = 0
    heard_us: int = 0
    idle: bool = False
    partitions: dict[str, PartitionState] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    order: dict[str, Any] = field(default_factory=dict)


__all__ = ["PartitionState", "SourceState"]
