"""One epoch, from its input to its commit; the same over Spark and in process.

The order of effects is the guarantee:

    1. decide     control rows, lateness, frontier: a pure function of the last record and of the epoch's input
    2. compute    every region's tasks read state of epoch − 1 and write delta files; nothing refers to them yet
    3. store      every sink stores rows and mark in one transaction
    4. commit     the epoch record is renamed into place; from then on the deltas count

A crash before 4 runs the epoch again from the same record and the same input, so the same rows reach the sinks, and those that
hold them skip them. A crash after 4 finds the record and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import PenstockError, RecordError
from penstock.flow import plan as p
from penstock.protocol.messages import Barrier, Frontier, Message, Shutdown
from penstock.routing.hashing import spark_xxhash64
from penstock.runtime.checkpoint import Checkpoint
from penstock.runtime.compile import CompiledFlow, CompiledRegion
from penstock.runtime.lateness import Base, Chunk, ChunkId, Judgement, judge
from penstock.runtime.record import EpochRecord, RegionState, SourceState
from penstock.state.deltas import Version
from penstock.types import MAX_TIME, MIN_TIME, Mark, time_text

Frame = Any


@dataclass(frozen=True)
class Scan:
    """What a scan of one source in one epoch found.

    Attributes:
        chunks: Event times per chunk of offsets; for a source without time one chunk per partition will do.
        malformed: Records that cannot be read or have no event time.
        first_malformed: One of them, for the error: where and what.
        files: Number of files read.
    """

    chunks: tuple[Chunk, ...] = ()
    malformed: int = 0
    first_malformed: str = ""
    files: int = 0


@dataclass(frozen=True)
class SourceFrames:
    """A source's records of one epoch: those on time, late ones, malformed ones (None: there are none)."""

    on_time: Frame
    late: Frame | None = None
    malformed: Frame | None = None
    late_rows: int = 0


class Backend(Protocol):
    """What runs the plan: Spark, or Arrow in this process. A frame is whatever it passes from step to step."""

    def control(self, known: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Commands of this epoch that are not in `known`, as (name, command), in order of names."""
        ...

    def scan(self, source: p.SourceNode, ordinal: int, state: SourceState) -> Scan:
        """Look at a source's records of this epoch."""
        ...

    def source(self, source: p.SourceNode, ordinal: int, suspects: dict[ChunkId, Base]) -> SourceFrames:
        """The records of a source; late ones can only be in the chunks `suspects`."""
        ...

    def step(self, node: p.Node, inputs: Sequence[Frame]) -> Frame:
        """Apply a stateless step."""
        ...

    def region(
        self, compiled: CompiledRegion, inputs: Sequence[Frame], messages: tuple[Message, ...], versions: Sequence[Version]
    ) -> Frame:
        """A region's tasks over its inputs (one frame per port); runs when its rows are asked for."""
        ...

    def part(self, frame: Frame, compiled: CompiledRegion, out: int) -> Frame:
        """One output of a region's frame."""
        ...

    def keep(self, frame: Frame) -> Frame:
        """Compute a frame only once although it is read several times in this epoch."""
        ...

    def force(self, frame: Frame) -> None:
        """Run a frame whose rows nobody reads."""
        ...

    def collect(self, frame: Frame) -> Iterable[pa.RecordBatch]:
        """The rows of a frame, hidden columns removed."""
        ...

    def empty(self, node: p.Node) -> Frame:
        """A frame without rows."""
        ...

    def done(self) -> None:
        """The epoch is over; forget what was kept."""
        ...


@dataclass
class Settings:
    """What a run was started with.

    Attributes:
        flow: Unique id of the flow.
        run: Number of the run.
        workers: Number of workers by region.
        clock_us: Gives the clock time; used for idleness and durations only.
        before: Called with the name of each step before it, for fault tests and progress.
    """

    flow: str
    run: int
    workers: dict[str, int]
    clock_us: Callable[[], int]
    before: Callable[[str], None] = lambda _: None


@dataclass
class _Decision:
    """What an epoch has decided before anything is computed."""

    sources: dict[str, SourceState]
    judgements: dict[str, Judgement]
    commands: list[tuple[str, dict[str, Any]]]
    finish: bool
    stop: bool
    drain: bool
    counts: dict[str, int] = field(default_factory=dict)


class EpochDriver:
    """Runs epochs of one flow.

    Args:
        flow: The compiled flow.
        checkpoint: Where it is kept.
        settings: What the run was started with.
    """

    def __init__(self, flow: CompiledFlow, checkpoint: Checkpoint, settings: Settings) -> None:
        self._flow = flow
        self._checkpoint = checkpoint
        self._settings = settings
        self.last = checkpoint.last()

    def run(self, epoch: int, backend: Backend) -> EpochRecord:
        """Run one epoch, or nothing if it is committed already.

        Args:
            epoch: Its number.
            backend: What holds the epoch's input and runs the plan.

        Returns:
            The epoch's record.

        Raises:
            PenstockError: Something failed; the epoch is not committed and can be run again.
        """
        if epoch <= self.last.epoch:
            return self.last
        if epoch != self.last.epoch + 1:
            raise PenstockError(
                f"Epoch {epoch} comes after epoch {self.last.epoch}: the checkpoint's epoch records and Spark's log do not belong "
                "together; restore both from one backup."
            )
        started = self._settings.clock_us()
        try:
            decision = self._decide(epoch, backend)
            frames = _Frames(self._flow, backend, decision, self._messages(epoch, decision), self._versions())
            self._store(epoch, backend, frames, decision)
            record = self._record(epoch, decision)
            record.progress["epoch_ms"] = (self._settings.clock_us() - started) // 1000
            self._settings.before("commit")
            self._checkpoint.commit(record, self._settings.run)
        finally:
            backend.done()
        self.last = record
        self._settings.before("committed")
        return record

    def _decide(self, epoch: int, backend: Backend) -> _Decision:
        self._settings.before("decide")
        commands = backend.control(self.last.control)
        words = {c.get("command") for _, c in commands}
        finish = "end" in words or self.last.finished
        stop = finish or bool(words & {"stop", "drain"})
        drain = "drain" in words or self.last.draining
        now_us = self._settings.clock_us()
        if any(s.idle_after_us is not None for s in self._flow.plan.sources):
            now_us = self._checkpoint.decide(epoch, now_us, self._settings.run)
        decision = _Decision({}, {}, commands, finish, stop, drain)
        for ordinal, source in enumerate(self._flow.plan.sources):
            before = self.last.sources.get(source.name, SourceState())
            scan = backend.scan(source, ordinal, before)
            if scan.malformed and source.on_error == "fail":
                raise RecordError(
                    f"Source {source.name!r} has {scan.malformed} malformed record{'s' * (scan.malformed > 1)}, the first {scan.first_malformed}; "
                    'mend it, or declare on_error="skip" or a sink for such records.'
                )
            declared = [(str(name), part_number(ordinal, name)) for name in source.partitions]
            judged = judge(
                before,
                scan.chunks,
                lateness_us=source.lateness_us if source.time else 0,
                idle_after_us=source.idle_after_us,
                declared=declared,
                now_us=now_us,
            )
            judged.state.malformed += scan.malformed
            judged.state.files += scan.files
            if finish:
                judged.state.frontier = MAX_TIME
            decision.sources[source.name] = judged.state
            decision.judgements[source.name] = judged
        return decision

    def _messages(self, epoch: int, decision: _Decision) -> dict[str, tuple[Message, ...]]:
        """What each region is told: how far it may go, and where the epoch ends."""
        out = {}
        for region in self._flow.plan.regions:
            before = self.last.regions[region.name].frontier if region.name in self.last.regions else MIN_TIME
            end: tuple[Message, ...] = (Barrier(epoch), Shutdown()) if decision.finish else (Barrier(epoch),)
            out[region.name] = (Frontier(before, self._frontier(region, decision, before)), *end)
        return out

    def _frontier(self, region: p.Region, decision: _Decision, before: int) -> int:
        if not region.timed:
            return MAX_TIME
        names = set().union(*(self._flow.plan.source_of(i) for i in region.inputs))
        return max(before, min(decision.sources[n].frontier for n in names))

    def _versions(self) -> dict[str, list[Version]]:
        return {
            r.name: self.last.regions[r.name].versions
            if r.name in self.last.regions
            else [Version()] * self._settings.workers[r.name]
            for r in self._flow.plan.regions
        }

    def _store(self, epoch: int, backend: Backend, frames: _Frames, decision: _Decision) -> None:
        """Hand every sink its rows and mark; run regions that no sink reads."""
        positions = {f"{n}/{k}": ps.offset for n, s in decision.sources.items() for k, ps in s.partitions.items()}
        frontier = min((s.frontier for s in decision.sources.values()), default=MIN_TIME)
        for name in frames.unread():
            self._settings.before(f"region {name}")
            backend.force(frames.region(name))
        for output in self._flow.plan.outputs:
            self._settings.before(f"compute {output.name}")
            mark = Mark(self._settings.flow, output.name, self._settings.run, epoch, frontier, positions)
            frame = frames.of(output.node)
            if frame is not None and not getattr(output.sink, "wants_rows", True):
                backend.force(frame)
                frame = None
            batches = backend.collect(frame) if frame is not None else ()
            decision.counts[output.name] = output.sink.write(_stepped(batches, self._settings.before, output.name), mark)
            self._settings.before(f"stored {output.name}")

    def _record(self, epoch: int, decision: _Decision) -> EpochRecord:
        """The record that commits the epoch."""
        run = self._settings.run
        regions: dict[str, RegionState] = {}
        figures: dict[str, Any] = {}
        for name, versions in self._versions().items():
            deltas = self._checkpoint.deltas_of(name, epoch, run)
            new = [
                v.with_delta(deltas[w][0] if w in deltas and deltas[w][0].rows else None, epoch) for w, v in enumerate(versions)
            ]
            before = self.last.regions[name].skipped if name in self.last.regions else 0
            reports = [r for _, r in deltas.values()]
            skipped = sum(n for r in reports for n in r["skipped"].values())
            frontier = next(m.now for m in self._messages(epoch, decision)[name] if isinstance(m, Frontier))
            kept = self.last.regions[name].frontier if name in self.last.regions else MIN_TIME
            timed = next(r.timed for r in self._flow.plan.regions if r.name == name)
            regions[name] = RegionState(len(versions), frontier if timed else kept, new, before + skipped)
            figures[name] = {
                "workers": len(versions),
                "rows_in": sum(r["rows_in"] for r in reports),
                "rows_out": sum(r["rows_out"] for r in reports),
                "changes": sum(r["rows"] for r in reports),
                "delta_bytes": sum(ref.bytes for ref, _ in deltas.values()),
                "state_files": sum(len(v.files()) for v in new),
                "state_bytes": sum(f.bytes for v in new for f in v.files()),
                "skipped": skipped,
                "first_skipped": next((r["first_skipped"] for r in reports if r["first_skipped"]), ""),
            }
        progress = {
            "rows_in": sum(s.rows - self.last.sources.get(n, SourceState()).rows for n, s in decision.sources.items()),
            "rows_out": decision.counts,
            "regions": figures,
            "frontier": time_text(min((s.frontier for s in decision.sources.values()), default=MIN_TIME)),
        }
        present = set(self._checkpoint.control_names())
        control = [n for n in self.last.control if n in present] + [n for n, _ in decision.commands]
        outputs = {o.name: epoch for o in self._flow.plan.outputs}
        return EpochRecord(
            epoch, run, decision.sources, regions, outputs, control, decision.finish, decision.stop, decision.drain, progress
        )


def _stepped(batches: Iterable[pa.RecordBatch], before: Callable[[str], None], name: str) -> Iterable[pa.RecordBatch]:
    """The batches, with a step in the middle of the sink's transaction."""
    for batch in batches:
        before(f"during {name}")
        yield batch


def part_number(ordinal: int, partition: Any) -> int:
    """Number of a source partition in the hidden column PART: source in the upper 16 bits, partition in the lower 48.

    Whole numbers are their own number; anything else is hashed.
    """
    if isinstance(partition, int) and 0 <= partition < 1 << 48:
        return (ordinal << 48) + partition
    return (ordinal << 48) + (int(spark_xxhash64(pa.array([str(partition)]))[0]) & ((1 << 48) - 1))


class _Frames:
    """Frames of one epoch, made on first use, kept if read more than once."""

    def __init__(
        self,
        flow: CompiledFlow,
        backend: Backend,
        decision: _Decision,
        messages: dict[str, tuple[Message, ...]],
        versions: dict[str, list[Version]],
    ) -> None:
        self._flow, self._backend, self._decision = flow, backend, decision
        self._messages, self._versions = messages, versions
        self._made: dict[int, Frame] = {}
        self._regions: dict[str, Frame] = {}
        self._sources: dict[str, SourceFrames] = {}

    def of(self, node: p.Node) -> Frame:
        """The frame of a node; None if it has no rows in this epoch."""
        if id(node) not in self._made:
            self._made[id(node)] = self._make(node)
        return self._made[id(node)]

    def _make(self, node: p.Node) -> Frame:
        if isinstance(node, (p.SourceNode, p.LateNode, p.MalformedNode)):
            source = node if isinstance(node, p.SourceNode) else node.source
            frames = self._source(source)
            return frames.on_time if node is source else frames.late if isinstance(node, p.LateNode) else frames.malformed
        if isinstance(node, p.RegionOutput):
            compiled = self._flow.regions[node.region.name]
            return self._backend.part(self.region(node.region.name), compiled, compiled.outs[node.operator, node.errors])
        inputs = [self.of(i) for i in p.inputs_of(node)]
        if isinstance(node, p.Union):
            inputs = [i for i in inputs if i is not None]
        if not inputs or any(i is None for i in inputs):
            return None
        frame = self._backend.step(node, inputs)
        return self._backend.keep(frame) if self._flow.consumers.get(id(node), 0) > 1 else frame

    def _source(self, source: p.SourceNode) -> SourceFrames:
        if source.name not in self._sources:
            judged = self._decision.judgements[source.name]
            frames = self._backend.source(source, self._flow.ordinal(source), judged.suspects if source.time else {})
            if self._flow.consumers.get(id(source), 0) > 1:
                frames = replace(frames, on_time=self._backend.keep(frames.on_time))
            judged.state.late += frames.late_rows
            self._sources[source.name] = frames
        return self._sources[source.name]

    def region(self, name: str) -> Frame:
        """The frame of a region's tasks."""
        if name not in self._regions:
            compiled = self._flow.regions[name]
            inputs = [self.of(i) for i in compiled.region.inputs]
            frames = [
                inputs[feed] if inputs[feed] is not None else self._backend.empty(compiled.region.inputs[feed])
                for feed in compiled.feeds
            ]
            frame = self._backend.region(compiled, frames, self._messages[name], self._versions[name])
            self._regions[name] = self._backend.keep(frame) if self._readers(name) > 1 else frame
        return self._regions[name]

    def _readers(self, name: str) -> int:
        nodes = {
            id(n): n
            for reader in p.readers(self._flow.plan.regions, self._flow.plan.outputs)
            for n in p.upstream(reader)
            if isinstance(n, p.RegionOutput)
        }
        return sum(self._flow.consumers.get(i, 0) for i, n in nodes.items() if n.region.name == name)

    def unread(self) -> list[str]:
        """Regions whose rows nobody reads."""
        return [r.name for r in self._flow.plan.regions if not self._readers(r.name)]
