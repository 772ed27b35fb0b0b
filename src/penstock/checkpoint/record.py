"""The epoch record: all that the next epoch must know, written with one atomic rename when an epoch is committed.

checkpoint/
  penstock.json           identity of the flow
  sources.json            what its positions are of
  fed.json                what fed the outputs in the last run that gave out rows
  runs/000001.json        one per start; the highest number owns the checkpoint (fencing)
  control/*.json          the control log, read by the query as a stream
  epochs/<epoch>.json     the records; the last few are kept
  state/<region>/…        base and delta files, and files of state that moved
  snapshots/<name>.json   records kept under a name
  tables/                 versions of tables that are refreshed
  spark/                  Spark's own offsets and commits; spark-<epoch>/ after the flow has gone back to a snapshot
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final, get_args

import xxhash

from penstock.checkpoint.figures import EpochFigures, SourceFigures
from penstock.checkpoint.formats import FORMAT, upgraded
from penstock.checkpoint.recovery import Recovery
from penstock.checkpoint.shape import FlowShape
from penstock.errors import TornFileError
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command, Load, Open, decode, encode
from penstock.protocol.ends import Ends
from penstock.protocol.rescale import Placement
from penstock.routing.memory import Remembered
from penstock.state.deltas import Version
from penstock.types import MIN_TIME, from_plain, plain, time_text

KEPT_ANSWERS = 32
"""How many refused, and how many replaced commands a record remembers."""


@dataclass
class RegionState:
    """The state of one region.

    Attributes:
        control: Its placement and the rescale in progress.
        frontier: Event time (µs) up to which it has processed.
        versions: By worker, the files of its state.
        skipped: Records skipped because a function raised, since the flow began.
        copies: For each key on hold (hash), the version of its old worker's state from which its own is being copied.
        acquired: By worker, state files that arrived in the last epoch.
        rescale_us: Clock time at which the rescale in progress began; 0: there is none.
        routers: By slot of an input whose keys are divided, what its router remembers.
    """

    control: Placement
    frontier: int = MIN_TIME
    versions: list[Version] = field(default_factory=list)
    skipped: int = 0
    copies: dict[int, Version] = field(default_factory=dict)
    acquired: dict[int, list[str]] = field(default_factory=dict)
    rescale_us: int = 0
    routers: dict[int, Remembered] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of workers that the next epoch schedules."""
        return self.control.workers

    def files(self) -> set[str]:
        """Paths of all files that it needs."""
        return {f.path for v in (*self.versions, *self.copies.values()) for f in v.files()}


@dataclass(frozen=True)
class RolledBack:
    """That the flow went back: to which snapshot, its epoch (`to`), and the last epoch given up (`upto`)."""

    snapshot: str
    to: int
    upto: int


@dataclass(frozen=True)
class TableRead:
    """Which rows of a table that is refreshed an epoch has met.

    Attributes:
        version: A digest of the rows, and the run that stored them.
        read_us: Clock time of the last attempt to read it; 0: there was none.
        failed: Why the last attempt failed, so that rows of before are used; empty: it did not.
    """

    version: str
    read_us: int = 0
    failed: str = ""


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
        refused: Commands that made no sense, by the name of their file, with the reason; the last few.
        ending, finished, stopped, draining: Where the flow is on its way to an end, see `penstock.protocol.ends.Ends`.
        figures: Figures of the epoch, for people.
        log: Folder of the engine's own log of input.
        input: In a snapshot: where the epoch's input ends, in the engine's words.
        rollback_pending: The command to load that this epoch has obeyed, if any; the next epoch is the going back, and no other may come.
        shape: What the state belongs to; None before the first epoch.
        rolled_back: Each time that the flow went back.
        open: By name in the control log, commands that are obeyed and not carried out yet, with the regions that have not settled.
        replaced: By name, what took the place of a command before it was carried out; the last few.
        recovery: The last recomputation of state from the log; None: there was none.
        tables: By step, the version of a table that is refreshed.
    """

    epoch: int = -1
    run: int = 0
    sources: dict[str, SourceState] = field(default_factory=dict)
    regions: dict[str, RegionState] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    control: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    ending: bool = False
    finished: bool = False
    stopped: bool = False
    draining: bool = False
    figures: EpochFigures = field(default_factory=EpochFigures)
    log: str = "spark"
    input: str = ""
    rollback_pending: Load | None = None
    shape: FlowShape | None = None
    rolled_back: list[RolledBack] = field(default_factory=list)
    open: dict[str, Open] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    recovery: Recovery | None = None
    tables: dict[str, TableRead] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """One line of JSON with a checksum before it."""
        body = json.dumps(
            {"format": FORMAT, **plain(self)}, default=_plain
        ).encode()  # not sorted: keys and layouts have an order
        return xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body

    @staticmethod
    def from_bytes(data: bytes, path: str) -> EpochRecord:
        """Read what `to_bytes` wrote.

        Raises:
            TornFileError: The file was truncated or altered, or is of a format that this version does not read.
        """
        checksum, _, body = data.partition(b"\n")
        if xxhash.xxh3_64_hexdigest(body).encode() != checksum:
            raise TornFileError(
                f"The epoch record {path} is damaged (its checksum differs); restore it from a copy; sinks and state may hold more than older records know."
            )
        record: EpochRecord = from_plain(EpochRecord, upgraded(json.loads(body), path), _READERS)
        return record

    @property
    def goes_back(self) -> bool:
        """Whether no epoch may follow before the flow has gone back: to a snapshot, or to where a recomputation begins anew."""
        return self.rollback_pending is not None or self.begins_anew

    @property
    def begins_anew(self) -> bool:
        """Whether a recomputation must begin anew, from further back."""
        return self.recovery is not None and bool(self.recovery.short)

    @property
    def ends(self) -> Ends:
        """Where the flow is on its way to an end."""
        return Ends(self.ending, self.finished, self.stopped, self.draining)

    def ends_for(self, run: int) -> Ends:
        """The same for a run, without what an earlier run was told about its own end."""
        return self.ends if self.run >= run else Ends(finished=self.finished, draining=self.draining)

    @property
    def frontier(self) -> int:
        """The flow's frontier: the lowest of its sources'."""
        return min((s.frontier for s in self.sources.values() if s.partitions or s.frontier != MIN_TIME), default=MIN_TIME)


_READERS: Final = ((Command, decode), (Load, decode))


def _plain(value: Any) -> Any:
    return encode(value) if isinstance(value, get_args(Command)) else plain(value)


def newest(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Earlier and new entries about commands; the last few."""
    return dict([*before.items(), *now.items()][-KEPT_ANSWERS:])


def outcome_of(last: EpochRecord, run: int, *, before: bool, cut: bool) -> str:
    """How a run that did not fail ended, in a sentence.

    Args:
        last: The last epoch's record.
        run: The first run of the start that has ended.
        before: Whether the flow had finished before the run began.
        cut: Whether somebody else stopped the engine's query.
    """
    again = "started again on the same checkpoint the flow goes on"
    if before:
        return f"The flow had finished in epoch {last.epoch}, before this start, and no file has come since: nothing was done."
    if last.finished:
        return f"The flow finished in epoch {last.epoch}: its input was read to the end."
    if last.ends_for(run).stopped:
        return f"The flow stopped after epoch {last.epoch}; {again}."
    if cut:
        return f"The query was stopped from outside of penstock after epoch {last.epoch}; {again}."
    return f"What there was has been read, up to epoch {last.epoch}; {again} with what has come."


def progress_of(record: EpochRecord) -> dict[str, Any]:
    """An epoch's figures, and totals since the flow began."""
    figures = record.figures
    return {
        "epoch": record.epoch,
        "run": record.run,
        "finished": record.finished,
        "refused": record.refused,
        "rollback_pending": record.rollback_pending.name if record.rollback_pending else None,
        "rolled_back": [asdict(back) for back in record.rolled_back],
        "rows_in": figures.rows_in,
        "rows_out": dict(figures.rows_out),
        "frontier": time_text(figures.frontier),
        "epoch_ms": figures.epoch_ms,
        "regions": {n: region.progress() for n, region in figures.regions.items()},
        "sources": {n: asdict(SourceFigures.of(source)) for n, source in record.sources.items()},
        "skipped": {n: r.skipped for n, r in record.regions.items()},
        **({"tables": {n: asdict(t) for n, t in record.tables.items()}} if record.tables else {}),
    }
