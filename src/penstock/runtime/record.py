"""The epoch record: all that the next epoch must know, written with one atomic rename when an epoch is committed.

checkpoint/
  penstock.json           identity of the flow
  runs/000001.json        one per start; the highest number owns the checkpoint (fencing)
  control/*.json          the control log, read by the query as a stream
  epochs/<epoch>.json     the records; the last few are kept
  state/<region>/…        base and delta files
  spark/                  Spark's own offsets and commits
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from penstock.errors import TornFileError
from penstock.state.deltas import Version
from penstock.types import MIN_TIME

FORMAT = 1


@dataclass
class PartitionState:
    """What is known of one source partition.

    Attributes:
        part: Its number in the hidden column PART.
        latest: Greatest event time seen, µs; `MIN_TIME` for none.
        offset: Last offset read; −1 for none.
        floor: Event time below which records are late whatever the partition itself has seen; for partitions that joined, or
            came back from idleness, when the frontier had already moved.
        heard_us: Clock time at which records last came, for idleness.
        idle: Whether it was idle, and so did not hold the frontier back.
    """

    part: int
    latest: int = MIN_TIME
    offset: int = -1
    floor: int = MIN_TIME
    heard_us: int = 0
    idle: bool = False


@dataclass
class SourceState:
    """What is known of one source: its partitions, its frontier (µs), the number of files read."""

    frontier: int = MIN_TIME
    files: int = 0
    rows: int = 0
    late: int = 0
    malformed: int = 0
    partitions: dict[str, PartitionState] = field(default_factory=dict)


@dataclass
class RegionState:
    """What is known of one region: its workers, the frontier up to which it has processed, the files of each worker's state."""

    workers: int
    frontier: int = MIN_TIME
    versions: list[Version] = field(default_factory=list)
    skipped: int = 0


@dataclass
class EpochRecord:
    """The state of the flow after an epoch.

    Attributes:
        epoch: Number of the epoch; −1 before the first.
        run: Number of the run that committed it.
        sources: By name.
        regions: By name.
        outputs: For each output the last epoch whose mark the sink was given.
        control: Names of the control files that have been obeyed.
        finished: Whether the frontier is MAX: the flow is never scheduled again.
        stopped: Whether a stop was asked for in this epoch.
        draining: Whether the flow was told to process what there is and then to end.
        progress: Figures of the epoch for people: rows, durations in ms, bytes, files.
    """

    epoch: int = -1
    run: int = 0
    sources: dict[str, SourceState] = field(default_factory=dict)
    regions: dict[str, RegionState] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    control: list[str] = field(default_factory=list)
    finished: bool = False
    stopped: bool = False
    draining: bool = False
    progress: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """One line of JSON with a checksum before it."""
        raw = asdict(self)
        for name, region in self.regions.items():
            raw["regions"][name]["versions"] = [v.to_json() for v in region.versions]
        body = json.dumps({"format": FORMAT, **raw}, sort_keys=True).encode()
        return xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body

    @staticmethod
    def from_bytes(data: bytes, path: str) -> EpochRecord:
        """Read what `to_bytes` wrote.

        Raises:
            TornFileError: The file was truncated or altered, or is of another format.
        """
        checksum, _, body = data.partition(b"\n")
        if xxhash.xxh3_64_hexdigest(body).encode() != checksum:
            raise TornFileError(
                f"The epoch record {path} is damaged (its checksum differs); restore it from a copy; sinks and state may hold more than older records know."
            )
        raw = json.loads(body)
        if raw.pop("format") != FORMAT:
            raise TornFileError(f"The epoch record {path} was written by another version of penstock; use that version.")
        sources = {}
        for name, source in raw.pop("sources").items():
            partitions = {k: PartitionState(**v) for k, v in source.pop("partitions").items()}
            sources[name] = SourceState(**source, partitions=partitions)
        regions = {}
        for name, region in raw.pop("regions").items():
            versions = [Version.from_json(v) for v in region.pop("versions")]
            regions[name] = RegionState(**region, versions=versions)
        return EpochRecord(**raw, sources=sources, regions=regions)

    @property
    def frontier(self) -> int:
        """The flow's frontier: the least of its sources'."""
        return min((s.frontier for s in self.sources.values() if s.partitions or s.frontier != MIN_TIME), default=MIN_TIME)


def progress_of(record: EpochRecord) -> dict[str, Any]:
    """An epoch's figures, and totals since the flow began."""
    sources = {
        n: {"rows": s.rows, "late": s.late, "malformed": s.malformed, "files": s.files} for n, s in record.sources.items()
    }
    return {
        "epoch": record.epoch,
        "run": record.run,
        "finished": record.finished,
        "regions": {},
        **record.progress,
        "sources": sources,
        "skipped": {n: r.skipped for n, r in record.regions.items()},
    }
