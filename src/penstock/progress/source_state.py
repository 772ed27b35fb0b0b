"""What is known of a source and of its partitions after an epoch: how far its event time has come, and what it has given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.types import MIN_TIME


@dataclass
class PartitionState:
    """What is known of one source partition.

    Attributes:
        part: Its number in the hidden column PART.
        latest: Greatest event time seen, µs; `MIN_TIME` for none.
        offset: Last offset read; −1 for none.
        late_floor: Event time below which records are late whatever the partition itself has seen; for partitions that joined, or
            came back from idleness, when the frontier had already moved.
        heard_us: Clock time at which records last came, for idleness.
        idle: Whether it was idle, and so did not hold the frontier back.
    """

    part: int
    latest: int = MIN_TIME
    offset: int = -1
    late_floor: int = MIN_TIME
    heard_us: int = 0
    idle: bool = False


@dataclass
class SourceState:
    """What is known of one source.

    Attributes:
        frontier: Event time (µs) before which nothing comes any more that is on time.
        files: Number of files read. Likewise ``rows``, ``late`` and ``malformed`` records.
        heard_us: Clock time at which records last came, or of the first epoch.
        idle: Whether it was idle as a whole, and so went along with the others.
        partitions: By name.
        names: Of the files that were read last, for messages about records that have waited; the last of them is number ``files`` − 1.
        order: How far its files have been read, where that is not just what Spark gave; see `penstock.driver.input_files.Order`.
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
