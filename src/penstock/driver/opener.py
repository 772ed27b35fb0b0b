"""Open a checkpoint and its sinks for a run, and finish a pending rollback: the same over Spark and in process.

Read next: `penstock.driver.epoch`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from penstock.checkpoint.folder import CONTROL, Checkpoint, Identity
from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import CompiledFlow, small_epochs, undivided
from penstock.driver.engine import Engine
from penstock.driver.epoch import Settings
from penstock.driver.last_end import MARK, last_end
from penstock.driver.recompute import Needed, Recompute, adopt, first_record, known_run, needed, of_another, planned
from penstock.driver.recovery import Start
from penstock.driver.refreshing import today
from penstock.driver.rollback import ahead, commit_intent, roll_back, rollback_refusal
from penstock.driver.shape import sources_of
from penstock.driver.succession import check_sources
from penstock.driver.takeover import check_ahead, rebuild, same_sink, take_over
from penstock.errors import CheckpointError, FencedError, SinkAheadError, SinkError
from penstock.flow import plan as p
from penstock.protocol.commands import Load
from penstock.protocol.rescale import Limits
from penstock.state.files import delete_quietly
from penstock.types import Mark, Refusal


class RunOpener:
    """Makes runs of one flow on one checkpoint: one at the start, and one more after each rollback.

    Args:
        flow: The flow.
        checkpoint: The checkpoint.
        engine: The engine.
        workers: Number of workers by region; the checkpoint's numbers win.
        limits: Bounds of a step of a rescale.
        on_step: Called with the name of each step before it.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.
        audit: One epoch in so many is computed twice; 0: none.
        recompute: What is to be done if the checkpoint will not do; None: it is refused.

    Attributes:
        workers: Number of workers by region.
        last_end: From the last `open` that began a start, how the run before ended and what is done about it, if it did not end cleanly.
        run: Number of the last run that was claimed; 0: none yet.
        notices: From the last `open`, a sentence for each part that begins empty or is forgotten, and for each strategy that is not needed
            or not used in small epochs.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        checkpoint: Checkpoint,
        engine: Engine,
        workers: dict[str, int],
        limits: Limits,
        on_step: Callable[[str], None],
        forget: Collection[str] = (),
        audit: int = 0,
        recompute: Recompute | None = None,
    ) -> None:
        self._recompute = recompute
        self.flow, self.checkpoint, self.engine, self.workers = flow, checkpoint, engine, workers
        self._limits, self._on_step, self._forget, self._audit = limits, on_step, forget, audit
        self.notices: list[str] = []
        self.last_end: str = ""
        self.run: int = 0
        self._since = 0

    def rollback_refusal(self, record: EpochRecord, command: Load) -> Refusal | None:
        """Why the flow cannot go back to a snapshot; None: it can."""
        return rollback_refusal(self.checkpoint, record, command, self.flow, self.engine, self._forget)

    def start_anew(self) -> None:
        """The next run begins a new start: what earlier runs were told does not concern it."""
        self._since = 0

    def open(self, complain: Callable[[str], None] = lambda _: None) -> Settings:
        """Claim checkpoint and sinks for a new run; finish a pending rollback first.

        Args:
            complain: Called with a sentence for each region that keeps another number of workers than `workers` has.

        Raises:
            CheckpointError: The checkpoint is another flow's. Nothing was changed.
            ChangedFlowError: State would be lost or misread. Nothing was changed.
            SinkError: A sink holds less than it was given, or more. The run is claimed.
        """
        checkpoint = self.checkpoint
        told = self._recompute or (Recompute() if checkpoint.last().begins_anew else None)
        if told is not None and (need := needed(self.flow, checkpoint, self.engine, told, self._forget)) is not None:
            return self._begin_again(need, told, complain)
        opened = None
        while opened is None:  # each time the run before was alive, and has committed another epoch meanwhile
            last = checkpoint.last()
            try:
                opened = self._open(last, complain)
            except SinkAheadError:
                if checkpoint.newest_epoch() == last.epoch:
                    raise
        return opened

    def _open(self, last: EpochRecord, complain: Callable[[str], None]) -> Settings | None:
        """Open for a run that goes on after a record; None: it is not the last one any more."""
        checkpoint, plan = self.checkpoint, self.flow.plan
        known = checkpoint.create(Identity(self.engine.identity, plan.name))
        if known.name != plan.name:
            raise CheckpointError(
                f"Checkpoint {checkpoint.uri} belongs to flow {known.name!r}, not {plan.name!r}; use another folder."
            )
        found = ahead(checkpoint, last, self.rollback_refusal)
        goes_on = found.kept if found else last
        if last.epoch < 0 and self.engine.has_begun(last.log):
            check_sources(checkpoint.sources(), sources_of(plan), checkpoint.uri)
        self._take_over(goes_on)
        plan = self.flow.plan
        if last.epoch < 0:  # from then on the records say it
            checkpoint.keep_sources(sources_of(plan))
        self._keep_workers(goes_on, complain)
        run = self._claim(last, known_run(plan.outputs))
        if checkpoint.newest_epoch() != last.epoch:
            return None
        last = commit_intent(checkpoint, last, found, run) if found else last
        marks = {}
        for output in plan.outputs:
            claim = Mark(known.flow, output.name, run, last.epoch)
            mark = marks[output.name] = output.sink.open(claim, output.columns(self.engine.schema(output.node)))
            _check_run(output, mark, run)
            if mark is not None or same_sink(last, output):  # another sink that is empty begins now
                _check_mark(output, mark, last)
        if checkpoint.newest_epoch() != last.epoch:
            return None
        check_ahead(checkpoint, self.flow, last, {} if found else marks)
        if found:
            now_us, step, engine = self.engine.clock_us(), self._on_step, self.engine
            roll_back(checkpoint, plan, found, engine, flow=known.flow, run=run, now_us=now_us, on_step=step)
            delete_quietly(checkpoint.fs, checkpoint.path(last.log))
        ahead_of = {} if found else {n: m for n, m in marks.items() if m is not None and m.epoch > last.epoch}
        return self._settings(known.flow, run, ahead_of)

    def _begin_again(self, need: Needed, told: Recompute, complain: Callable[[str], None]) -> Settings:
        """Open for a recomputation."""
        checkpoint, flow, marks = self.checkpoint, self.flow, dict(need.marks)
        start, state = planned(flow, checkpoint, self.engine, need, told, marks)
        known = adopt(checkpoint, need, flow.plan.name)
        self._rebuild(need, start, state)
        flow.plan = replace(flow.plan, outputs=need.outputs)
        self.notices = [
            f"State is computed anew from the log: {need.why}",
            start.recovery.why,
            *today(flow.plan),
            *self.notices,
        ]
        checkpoint.keep_sources(sources_of(flow.plan))
        self._keep_workers(need.last, complain)
        self._on_step("recompute: claim")
        run = self._claim(need.last, need.above, anew=True)
        for output in flow.plan.outputs:
            claim = Mark(known.flow, output.name, run, need.epoch)
            there = output.sink.open(claim, output.columns(self.engine.schema(output.node)))
            self._on_step(f"recompute: claimed {output.name}")
            if output.sink.durable or there is not None:
                marks[output.name] = there
        if {n: m and m.epoch for n, m in marks.items()} != {n: m and m.epoch for n, m in need.marks.items()}:
            start, state = planned(
                flow, checkpoint, self.engine, need, told, marks
            )  # the driver before has stored more meanwhile
            self._rebuild(need, start, state)
        check_ahead(checkpoint, flow, need.last, {})
        self._on_step("recompute: log")
        commands = checkpoint.control_names()
        record = first_record(flow, self.engine, replace(need, marks=marks), start, state, run, commands)
        self._on_step("recompute: commit")
        checkpoint.commit(record, run)
        self._on_step("recompute: committed")
        if need.last.log != record.log:
            delete_quietly(checkpoint.fs, checkpoint.path(need.last.log))
        return self._settings(known.flow, run, {})

    def _rebuild(self, need: Needed, start: Start, state: EpochRecord | None) -> None:
        """Take over what of the state goes on."""
        if start.recovery.resting:
            self.notices = rebuild(self.flow, need.last, self.checkpoint.uri, start.recovery.resting, self._forget)
        else:
            self._take_over(state or EpochRecord())

    def _take_over(self, record: EpochRecord) -> None:
        self.notices = [
            *take_over(self.flow, record, self.checkpoint.uri, self._forget),
            *(sentence for sentence, _ in undivided(self.flow)),
            *small_epochs(self.flow, self.engine.divides_from),
        ]

    def _claim(self, last: EpochRecord, above: int = 0, *, anew: bool = False) -> int:
        """Claim the checkpoint for a run whose number is above another; `last` is the last record."""
        checkpoint, engine = self.checkpoint, self.engine
        if not self._since:
            open_epoch = engine.has_begun(last.log, last.epoch + 1)
            self.last_end = last_end(checkpoint, last, engine.by, open_epoch=open_epoch, anew=anew)
        about = {**engine.by, "started": self._now(), "plan": self.flow.plan.describe(), MARK: True}
        self.run = run = checkpoint.claim(about, above)
        self._since = self._since or run
        checkpoint.keep_specs(run, engine.dump({n: c.spec for n, c in self.flow.regions.items()}))
        checkpoint.renew_snapshots()
        return run

    def _settings(self, flow: str, run: int, ahead_of: Mapping[str, Mark]) -> Settings:
        self.checkpoint.fs.create_dir(self.checkpoint.path(CONTROL))
        clock, step, refusal = self.engine.clock_us, self._on_step, self.rollback_refusal
        return Settings(flow, run, self.workers, clock, step, self._limits, refusal, self._since, self._audit, ahead_of)

    def note_end(self, sentence: str, *, clean: bool) -> None:
        """Note how the run has ended, for the next start and `penstock status`; nothing if no run was claimed."""
        if self.run:
            self.checkpoint.keep_end(self.run, {"clean": clean, "sentence": sentence, "ended": self._now()})

    def _now(self) -> str:
        return f"{dt.datetime.fromtimestamp(self.engine.clock_us() // 1_000_000, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"

    def _keep_workers(self, last: EpochRecord, complain: Callable[[str], None]) -> None:
        """A checkpoint keeps its regions' numbers of workers; complain about numbers that differ."""
        names = {r.name for r in self.flow.plan.regions}
        for name, state in last.regions.items():
            if name not in names:
                continue
            wanted = state.control.goal.workers if state.control.goal else state.workers
            if self.workers[name] != wanted:
                complain(
                    f"Region {name!r} of checkpoint {self.checkpoint.uri} has {wanted} workers and keeps them: "
                    f"workers={self.workers[name]} is for a new checkpoint; run.scale({name!r}, {self.workers[name]}) "
                    "changes it while the flow runs."
                )
            self.workers[name] = state.workers


def _check_run(output: p.Output, mark: Mark | None, run: int) -> None:
    """A checkpoint gives each number to one run; that of a copy, started at this moment, is not told from this one by the sink."""
    if mark is not None and mark.run >= run:
        raise FencedError(
            f"Run {run} may not write {output.sink!r} because another run {mark.run} of the same flow has claimed it, as from a copy of this checkpoint; "
            "go on with that one, or stop it and start this one again."
        )


def _check_mark(output: p.Output, mark: Mark | None, last: EpochRecord) -> None:
    """A durable sink must hold what the checkpoint gave it, and no more."""
    given = last.outputs.get(output.name)
    if output.sink.durable and given is not None and (mark is None or mark.epoch < given):
        raise SinkError(
            f"Output {output.name!r} was given the rows of epoch {given}, but its sink {output.sink!r} holds "
            f'{"nothing" if mark is None else f"only epoch {mark.epoch}"}; restore the sink, or start with recover="recompute".'
        )
    if output.sink.durable and mark is not None and of_another(last, mark, output.name):
        raise SinkAheadError(
            f"Output {output.name!r} holds rows up to epoch {mark.epoch} of another checkpoint, and was given those up to epoch {given} from this one; use "
            'the checkpoint that gave them, or start with recover="recompute".'
        )


__all__ = ["RunOpener"]
