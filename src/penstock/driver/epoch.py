"""One epoch, from its input to its commit; the same over Spark and in process.

The order of effects is the guarantee:

    1. decide     control rows, lateness, frontier: a pure function of the last record and of the epoch's input
    2. compute    every region's tasks read state of epoch − 1 and write delta files; nothing refers to them yet
    3. store      every sink stores rows and mark in one transaction; the tasks of 2 may have staged its rows
    4. commit     the epoch record is renamed into place; from then on the deltas count

A crash before 4 runs the epoch again from the same record and the same input, so the same rows reach the sinks, and those that
hold them skip them. A crash after 4 finds the record and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from penstock.checkpoint.figures import EpochFigures, RegionFigures
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord, RegionState, TableRead, newest
from penstock.checkpoint.recovery import Recovery
from penstock.driver.compile import CompiledFlow
from penstock.driver.engine import Backend, Divided, EpochOrders, Frame
from penstock.driver.frames import Frames
from penstock.driver.partition_names import partition_names
from penstock.driver.refreshing import RefreshedTables
from penstock.driver.replay import advanced, bounded, extend_trail, missing_in, refuse_other_input, too_short, trail_text
from penstock.driver.rollback import rollback_refusals
from penstock.driver.takeover import with_floors
from penstock.driver.transfer import Deltas, mark_frontier, region_figures, state_files
from penstock.errors import PenstockError, RecordError
from penstock.flow import plan as p
from penstock.progress.lateness import Judgement, align_idle_sources, check_lateness
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command, End, Load, Move, Scale, Snapshot
from penstock.protocol.controller import Decided, Now, decide, still_open
from penstock.protocol.ends import Ends
from penstock.protocol.messages import Frontier
from penstock.protocol.rescale import STANDARD, Limits, Placement, messages
from penstock.protocol.rescale.own_pins import watched
from penstock.protocol.rescale.transfer import finished, started
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.strategy import first_table
from penstock.rows.stored_positions import PartitionNames, StoredStager
from penstock.state.deltas import FileRef
from penstock.types import MAX_TIME, MIN_TIME, NULL_PARTITION, ORDER, PART_BITS, PART_MASK, Mark, Refusal

KEPT_NAMES: Final = 256
"""Of so many files that were read last the epoch record has the names."""


@dataclass
class Settings:
    """What a run was started with.

    Attributes:
        flow: Unique id of the flow.
        run: Number of the run.
        audit: One epoch in so many is computed twice (`penstock.worker.audit`); 0: none.
        since: Number of the first run of this start; going back to a snapshot makes another one. 0: as `run`.
        workers: Number of workers by region, for a flow that begins.
        limits: What bounds a step of a rescale.
        rollback_refusal: Says, of a record and a command to load, why the flow cannot go back.
        clock_us: Gives the clock time; used for idleness and durations only.
        on_step: Called with the name of each step before it, for fault tests and progress.
        ahead: By output, the mark of a sink that holds the epoch after the last committed one.
    """

    flow: str
    run: int
    workers: dict[str, int]
    clock_us: Callable[[], int]
    on_step: Callable[[str], None] = lambda _: None
    limits: Limits = STANDARD
    rollback_refusal: Callable[[EpochRecord, Load], Refusal | None] = lambda *_: None
    since: int = 0
    audit: int = 0
    ahead: Mapping[str, Mark] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.since = self.since or self.run

    def audits(self, epoch: int) -> bool:
        """Whether an epoch is computed twice."""
        return bool(self.audit) and epoch % self.audit == 0


@dataclass
class _Decision:
    """What an epoch has decided before anything is computed."""

    sources: dict[str, SourceState]
    judgements: dict[str, Judgement]
    commands: list[tuple[str, Command]]
    decided: Decided
    ends: Ends
    work: dict[str, EpochOrders] = field(default_factory=dict)
    divided: dict[str, Mapping[int, Divided]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    recovery: Recovery | None = None
    log: str = ""
    resting: frozenset[str] = frozenset()
    tables: dict[str, TableRead] = field(default_factory=dict)
    steps: dict[int, p.StepNode] = field(default_factory=dict)


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
        self.last: EpochRecord = with_floors(checkpoint.last(), flow)
        self._tables = RefreshedTables(flow.plan, checkpoint, settings.run, self.last.tables, settings.on_step)
        self.ended_for_another: bool = False
        """Whether the end of the input was one that an earlier run had begun to give out: this run has not read to it."""

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
        if self.last.goes_back:
            to = f"snapshot {self.last.rollback_pending.name!r}" if self.last.rollback_pending else "an earlier position"
            raise PenstockError(f"Epoch {epoch} cannot run: the flow is on its way back to {to}.")
        started = self._settings.clock_us()
        try:
            decision = self._decide(epoch, backend)
            self._plan_regions(epoch, decision)
            frames = Frames(self._flow, backend, decision.judgements, decision.work, decision.steps)
            self._store(epoch, backend, frames, decision)
            if decision.recovery is not None and decision.recovery.again:
                self._settings.on_step("read again")
                decision.log = backend.read_again()
            record = self._record(epoch, decision)
            record.figures = replace(record.figures, epoch_ms=(self._settings.clock_us() - started) // 1000)
            backend.check_input()
            self._settings.on_step("commit")
            for name in decision.decided.snapshots:
                self._checkpoint.snapshot(name, replace(record, input=backend.input(), rollback_pending=None))
                self._settings.on_step(f"kept {name}")
            self._checkpoint.commit(record, self._settings.run)
        finally:
            backend.done()
        self.last = record
        self._tables.committed(record.tables)
        self._flow.committed()
        self._settings.on_step("committed")
        return record

    def _decide(self, epoch: int, backend: Backend) -> _Decision:
        self._settings.on_step("decide")
        commands, now_us, resumed = self._found(epoch, backend)
        there = self._checkpoint.snapshot_names(self.last.epoch) if commands else ()
        unreachable = rollback_refusals(self._checkpoint, self.last, commands, self._settings.rollback_refusal)
        run, since = self._settings.run, self._settings.since
        others_end = any(isinstance(c, End) and c.run not in (None, run) for _, c in commands)
        now = Now(epoch, run, since, others_end and self._checkpoint.gave_end(epoch), self.last.open)
        decided = decide(commands, self.placements(), there, self._settings.limits, now, unreachable)
        commands = [c for c in commands if c[0] in decided.taken]
        ends = self.last.ends.after(decided.told, held=any(c.held for c in decided.controls.values()))
        self.ended_for_another = ends.finished and now.given
        recovery, left = self.last.recovery, {}
        tables = self._tables.used(epoch, now_us, stay=recovery is not None and recovery.active)
        decision = _Decision({}, {}, commands, decided, ends, tables=tables, steps=self._tables.steps(tables))
        if recovery is not None:
            decision.resting = frozenset(name for name in recovery.resting if recovery.rests(name))
        for ordinal, source in enumerate(self._flow.plan.sources):
            before, bounds = bounded(source, self.last)
            backend.describe(f"source {source.name}")
            scan = backend.scan(source, ordinal, before, bounds)
            left[source.name] = scan.left
            if scan.malformed and source.on_error == "fail":
                raise RecordError(
                    f"Source {source.name!r} has {scan.malformed} malformed record{'s' * (scan.malformed > 1)}, the first {scan.first_malformed}; "
                    'fix it, or declare on_error="skip" or a sink for such records.'
                )
            declared = [(str(name), part_number(ordinal, name)) for name in source.partitions]
            judged = check_lateness(
                before,
                scan.chunks,
                lateness_us=source.lateness_us if source.time else 0,
                idle_after_us=None if recovery is not None and recovery.active else source.idle_after_us,
                declared=declared,
                now_us=now_us,
                close_after_us=None if recovery is not None and recovery.active else source.close_after_us,
                resumed=resumed,
            )
            extend_trail(judged.state, before, scan)
            judged.state.malformed += scan.malformed
            judged.state.ahead += scan.ahead
            judged.state.files += scan.files
            judged.state.rows += scan.rows
            judged.state.names = [*before.names, *scan.names][-KEPT_NAMES:]
            judged.state.order = before.order if scan.order is None else scan.order
            decision.sources[source.name] = judged.state
            decision.judgements[source.name] = judged
        if recovery is not None:
            stopped = recovery.stops[0] if recovery.reached(decision.sources) else None
            decision.sources, decision.recovery = advanced(
                self._flow.plan, self.last, decision.sources, left, now_us, ended=decision.ends.finished
            )
            for name, state in decision.sources.items():
                decision.judgements[name].state = state
            if stopped is not None and stopped.finished:
                decision.ends = replace(decision.ends, finished=True)
        align_idle_sources(
            decision.sources,
            [{s.name for s in p.upstream_of(p.SourceNode, *r.inputs)} for r in self._flow.plan.regions if r.timed],
        )
        for state in decision.sources.values() if decision.ends.finished else ():
            state.frontier = MAX_TIME
        backend.keep_input()
        return decision

    def _found(self, epoch: int, backend: Backend) -> tuple[list[tuple[str, Command]], int, bool]:
        """Commands that are new, the clock time (µs), and whether another run had the epoch before: the same ones in a re-run, if they matter."""
        commands, now_us = backend.control(self.last.control), self._settings.clock_us()
        resumed = self.last.run != self._settings.run
        recovers = self.last.recovery is not None and self.last.recovery.active
        if recovers:  # what changes placement or positions waits until it is over
            commands = [c for c in commands if not isinstance(c[1], Scale | Move | Snapshot | Load)]
        if commands or any(s.by_clock for s in self._flow.plan.sources):
            found = {"now_us": now_us, "commands": [name for name, _ in commands], "resumed": resumed}
            kept = self._checkpoint.decided(epoch, found, self._settings.run)
            commands, now_us = [c for c in commands if c[0] in kept["commands"]], kept["now_us"]
            resumed = kept.get("resumed", False)  # a version that did not store it closed no source
        return commands, now_us, resumed

    def placements(self) -> dict[str, Placement]:
        """Each region's placement after the last epoch."""
        workers = self._settings.workers
        return {
            r.name: self.last.regions[r.name].control
            if r.name in self.last.regions
            else Placement.fresh(workers[r.name], first_table(r.distribute, workers[r.name]))
            for r in self._flow.plan.regions
        }

    def _plan_regions(self, epoch: int, decision: _Decision) -> None:
        """What each region's workers are told, and what they start from."""
        for region in self._flow.plan.regions:
            if region.name in decision.resting:
                continue
            state = self.last.regions.get(region.name) or RegionState(decision.decided.controls[region.name])
            control = decision.decided.controls[region.name]
            copied = [
                (c.held, FileRef(**{**c.file, "version": epoch - 1}))
                for c in decision.decided.copied
                if c.region == region.name
            ]
            versions, fresh = started(state.versions, control.workers, copied, state_files(epoch - 1))
            acquired = {
                w: [*state.acquired.get(w, ()), *(f.path for f in fresh.get(w, ()))] for w in {**state.acquired, **fresh}
            }
            missing = missing_in(region, self.last.recovery, decision.recovery)
            reached = self._frontier(region, decision, state.frontier)
            latest = _latest(region, decision.sources, state.frontier) if region.timed and reached == MAX_TIME else MIN_TIME
            frontier = Frontier(state.frontier, reached, missing, latest)
            told = messages(
                control,
                self._settings.limits,
                epoch,
                frontier,
                [held for held, _ in copied],
                acquired,
                last=decision.ends.finished,
            )
            decision.work[region.name] = EpochOrders(control.routing, told, tuple(versions), state.routers)

    def _frontier(self, region: p.Region, decision: _Decision, before: int) -> int:
        if not region.timed:
            return MAX_TIME
        reached = min(decision.sources[s.name].frontier for s in p.upstream_of(p.SourceNode, *region.inputs))
        for node in p.upstream_of(p.RegionOutput, *region.inputs):
            reached = decision.decided.controls[node.region.name].announced(reached)
        return max(before, reached)

    def _store(self, epoch: int, backend: Backend, frames: Frames, decision: _Decision) -> None:
        """Hand every sink its rows and mark; run regions that no sink reads."""
        positions = {f"{n}/{k}": ps.offset for n, s in decision.sources.items() for k, ps in s.partitions.items()}
        frontier = mark_frontier(decision.sources.values(), decision.decided.controls.values())
        recovery = self.last.recovery
        outputs = [o for o in self._flow.plan.outputs if recovery is None or recovery.gives(o.name)]
        for name in frames.unread(outputs, decision.resting):
            self._settings.on_step(f"region {name}")
            backend.describe(f"region {name}")
            backend.force(frames.region(name))
        if self._settings.audits(epoch):
            self._settings.on_step("audit")
            backend.describe("audit")
            frames.compute_outputs()
        carried = trail_text(self._flow.plan, decision.sources, decision.decided.controls, finished=decision.ends.finished)
        give = self._giving_end(epoch) if decision.ends.finished else lambda: None
        for output in outputs:
            self._settings.on_step(f"compute {output.name}")
            backend.describe(*dict.fromkeys(map(_named, p.roots(output.node))), f"output {output.name}")
            mark = Mark(self._settings.flow, output.name, self._settings.run, epoch, frontier, positions, carried)
            if decision.decided.load is None:  # otherwise the sink is about to give the epoch back
                refuse_other_input(self._settings.ahead.get(output.name), mark)
            frame = frames.of(output.node)
            if frame is not None and not getattr(output.sink, "wants_rows", True):
                backend.force(frame)
                frame = None
            if frame is None:
                backend.input_kept()
                give()
            given, store = _given(backend, frame, output, mark, partition_names(self._flow, decision.sources, output))
            backend.input_kept()
            self._settings.on_step(f"computed {output.name}")
            decision.counts[output.name] = store(_stepped(given, self._settings.on_step, output.name, give), mark)
            self._settings.on_step(f"stored {output.name}")
        for source in self._flow.plan.sources:
            decision.sources[source.name].late += backend.late(source)
        for name, compiled in self._flow.regions.items():
            decision.divided[name] = backend.divided(compiled)

    def _giving_end(self, epoch: int) -> Callable[[], None]:
        """Notes, before the first sink can store its rows, that the results of the end are given out: a re-run must end, too."""
        given: list[bool] = []

        def give() -> None:
            if not given:
                self._checkpoint.give_end(epoch, self._settings.run)
                given.append(True)

        return give

    def _record(self, epoch: int, decision: _Decision) -> EpochRecord:
        """The record that commits the epoch."""
        run = self._settings.run
        regions: dict[str, RegionState] = {name: self.last.regions[name] for name in decision.resting}
        unsure = ""
        figures: dict[str, RegionFigures] = {n: f for n, f in self.last.figures.regions.items() if n in decision.resting}
        for name, work in decision.work.items():
            deltas = self._checkpoint.deltas_of(name, epoch, run)
            regions[name] = self._advance(name, epoch, decision, work, deltas)
            unsure = unsure or next((f"{r.unsure} of region {name!r}" for _, r in deltas.values() if r.unsure), "")
            before = self.last.figures.regions.get(name)
            now, strategy = self._settings.clock_us(), self._flow.regions[name].region.distribute
            divided, limits = [*decision.divided.get(name, {}).values()], self._settings.limits
            figures[name] = region_figures(regions[name], deltas, now, limits, before, strategy, divided, work.workers)
        progress = EpochFigures(
            rows_in=sum(s.rows - self.last.sources.get(n, SourceState()).rows for n, s in decision.sources.items()),
            rows_out=decision.counts,
            frontier=min((s.frontier for s in decision.sources.values()), default=MIN_TIME),
            regions=figures,
        )
        present = set(self._checkpoint.control_names())
        heard = [] if unsure else [n for n, _ in decision.commands]  # an epoch that is given up has obeyed nothing
        control = [n for n in self.last.control if n in present] + heard
        outputs = {o.name: epoch for o in self._flow.plan.outputs if o.name in decision.counts}
        suppressed = {o.name for o in self._flow.plan.outputs}.difference(outputs)
        outputs |= {n: e for n, e in self.last.outputs.items() if n in suppressed}
        after = {n: r.control for n, r in regions.items()}
        ends, recovery = decision.ends, decision.recovery
        if unsure and self.last.recovery is not None:
            recovery, ends = too_short(self.last.recovery, unsure), self.last.ends
        open_, given_up = still_open(decision.decided.open, after, decision.ends, epoch)
        return EpochRecord(
            epoch,
            run,
            decision.sources,
            regions,
            outputs,
            control,
            newest(self.last.refused, decision.decided.refused),
            ends.ending,
            ends.finished,
            ends.stopped,
            ends.draining,
            progress,
            decision.log or self.last.log,
            rollback_pending=decision.decided.load,
            shape=self._flow.shape,
            rolled_back=self.last.rolled_back,
            open=open_,
            replaced=newest(self.last.replaced, {**decision.decided.replaced, **given_up}),
            recovery=recovery,
            tables=decision.tables,
        )

    def _advance(self, name: str, epoch: int, decision: _Decision, work: EpochOrders, deltas: Deltas) -> RegionState:
        """A region after the epoch."""
        region = next(r for r in self._flow.plan.regions if r.name == name)
        before = self.last.regions.get(name)
        reached = next(m.now for m in work.messages[0] if isinstance(m, Frontier))
        after = finished(
            decision.decided.controls[name],
            {w: report.answer for w, (_, report) in deltas.items()},
            {w: [(m.to, FileRef(**m.file)) for m in report.moves] for w, (_, report) in deltas.items()},
            [
                v.with_delta(deltas[w][0] if w in deltas and deltas[w][0].rows else None, epoch)
                for w, v in enumerate(work.versions)
            ],
            before.copies if before else {},
            self._settings.limits.in_epochs_of(1000 * self.last.figures.epoch_ms),
            epoch,
            reached,
            state_files(epoch),
        )
        skipped = sum(n for _, report in deltas.values() for n in report.skipped.values())
        now = self._settings.clock_us()
        control = after.control
        if not (decision.ends.ending or decision.ends.finished):
            rows = {w: report.rows_in for w, (_, report) in deltas.items()}
            hot = [key for _, report in deltas.values() for key in report.hot]
            during, limits = decision.decided.controls[name], self._settings.limits
            control = watched(control, during, region.distribute, rows, hot, limits, epoch)
        return RegionState(
            control,
            reached if region.timed else before.frontier if before else MIN_TIME,
            after.versions,
            (before.skipped if before else 0) + skipped,
            after.copies,
            {w: [f.path for f in files] for w, files in after.acquired.items()},
            0 if control.goal is None else (before.rescale_us if before else 0) or now,
            {**work.routers, **{slot: done.router for slot, done in decision.divided.get(name, {}).items()}},
        )


def _named(root: p.Node) -> str:
    """A source, or the region of an output, for people."""
    return f"region {root.region.name}" if isinstance(root, p.RegionOutput) else f"source {getattr(root, 'name', '')}"


def _latest(region: p.Region, sources: Mapping[str, SourceState], before: int) -> int:
    """The greatest event time of all input of a region, or its frontier `before` the end, if that was greater."""
    feeding = [sources[s.name] for s in p.upstream_of(p.SourceNode, *region.inputs)]
    return max(before, *(k.latest for state in feeding for k in state.partitions.values()), MIN_TIME)


def _given(
    backend: Backend, frame: Frame, output: p.Output, mark: Mark, names: PartitionNames | None
) -> tuple[Iterable[Any], Callable[[Iterable[Any], Mark], int]]:
    """What a sink is given of an epoch, rows or tokens of rows that are staged (`penstock.sinks.Staging`), and what stores it."""
    sink, hidden = output.sink, ORDER if output.positions else ()
    if frame is None:
        return (), sink.write
    if hasattr(sink, "stager"):
        stager = sink.stager(mark)
        return backend.stage(frame, StoredStager(stager, names) if names else stager, hidden), sink.commit
    rows = backend.collect(frame, hidden)
    return map(names.stored, rows) if names else rows, sink.write


def _stepped(given: Iterable[Any], on_step: Callable[[str], None], name: str, then: Callable[[], None]) -> Iterable[Any]:
    """What a sink is given, with a step in the middle of its transaction; `then` is called when all of it is computed."""
    for one in given:
        on_step(f"during {name}")
        yield one
    then()


def part_number(ordinal: int, partition: Any) -> int:
    """Number of a source partition in the hidden column PART: source in the upper 16 bits, partition in the lower 48.

    Whole numbers, which must lie within ±2^47, and null are told by it, see `whole_partition`; anything else is hashed.
    """
    if partition is None:
        number = NULL_PARTITION
    elif isinstance(partition, int):
        number = partition & PART_MASK
    else:
        number = int(spark_xxhash64(pa.array([str(partition)]))[0]) & (NULL_PARTITION - 1)
    return (ordinal << PART_BITS) + number
