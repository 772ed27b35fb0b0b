"""Live rescaling in a world in one process: regions, workers, a source, epochs, commands and crashes, all drawn from a seed.

    outcome = simulate(7)
    assert not check(outcome)          # penstock.testing.checkers
    simulate(7, trace=print)           # what happened, epoch by epoch

The world drives `penstock.protocol` as the engine does, and its workers carry out their messages as tasks do. An epoch begins with
the committed record and its commands, is one attempt after another until one commits, and commits everything (placement, states,
what the sink holds) as one. What a crashed attempt did is gone, but for what the sink has stored; the re-run has the same input and
commands, and other costs.

Invariant: a seed gives the same run in every process. The checkers see the `Outcome` only.

Read next: `penstock.testing.checkers`; `penstock.testing.simulated_worker` for what a task holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.errors import PenstockError
from penstock.protocol.commands import Command, Copied, Load, Move, Scale, Snapshot
from penstock.protocol.controller import Decided, Now, decide
from penstock.protocol.messages import Answer, Barrier, Collect, Frontier, Hold, Interrogate, Item, Message, Release
from penstock.protocol.rescale import Placement, messages
from penstock.protocol.rescale.own_pins import watched
from penstock.protocol.rescale.placement import Held
from penstock.protocol.rescale.transfer import Finished, Versions, finished, started
from penstock.protocol.rescale.worker import WorkerEpoch
from penstock.routing.loads import HotKey
from penstock.routing.table import Routing
from penstock.testing.coverage import kinds_of, note_epoch, note_move, note_own, note_scale
from penstock.testing.outcome import Copy, Outcome, RegionEpoch
from penstock.testing.schedule import FAULTS, Record, Schedule, Source, draw
from penstock.testing.simulated_worker import STATES, Emitted, Stage, State, Task, copied
from penstock.types import MAX_TIME, MIN_TIME, from_plain, plain

_PLAIN: Final = 2
"""Messages of a worker that is told nothing beyond the frontier and the barrier."""

_ENDLESS: Final = 40
"""So many epochs lasts a source that never ends where the strategy may pin other keys with each of its records."""

MOST_EPOCHS: Final = 160
"""A run that has not ended by then is ended."""

Regions = list[Finished[State, State]]


class _Died(Exception):  # noqa: N818  (not an error: the schedule asked for it)
    """An attempt at an epoch ends here."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A snapshot: the epoch after which it was taken, what the flow and its source were then, and what had been asked."""

    epoch: int
    regions: Regions
    source: Source
    asked: list[int]
    pins: list[dict[int, int]]


class World:
    """A flow that runs; subclasses break it on purpose.

    Args:
        schedule: What happens.
        rng: Draws input, costs and durations.
        trace: Gets a line for everything that happens.
    """

    worker: type[WorkerEpoch] = WorkerEpoch
    task: type[Task] = Task
    kept: Versions[State, State] = STATES
    copied = staticmethod(copied)
    decide = staticmethod(decide)
    started = staticmethod(started)
    finished = staticmethod(finished)
    watched = staticmethod(watched)

    def __init__(self, schedule: Schedule, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.schedule = schedule
        self.rng = rng
        self.trace = trace
        self.source = Source(schedule, rng)
        fresh = (Placement.fresh(r.workers, Routing.even(r.workers, schedule.bins)) for r in schedule.regions)
        self.regions: Regions = [Finished(placement, [], {}, {}) for placement in fresh]
        self.snapshots: dict[str, _Kept] = {}
        self.reports: dict[int, list[Command]] = {}
        self.stored: list[Emitted] | None = None
        self.dies_at, self.dies_after = "", 0
        self.outcome = Outcome(schedule, asked=[r.workers for r in schedule.regions], pins=[{} for _ in schedule.regions])

    # ------------------------------------------------------------------------------------------------ what variants break

    def table(self, region: int, control: Placement, told: Sequence[Sequence[Message]]) -> Routing:
        """The table by which this epoch's records go."""
        del region, told
        return control.routing

    def tasks(self, region: int, control: Placement) -> int:
        """How many tasks run."""
        del region
        return control.workers

    def announced(self, control: Placement, frontier: int) -> int:
        """The frontier that others are told (rule H5)."""
        return control.announced(frontier)

    def store(self, emitted: list[Emitted]) -> None:
        """Hand an epoch's outputs to the sink, which skips an epoch that it has."""
        if self.stored is None:
            self.stored = emitted
        else:
            self.outcome.reruns.append((self.stored, emitted))

    # ------------------------------------------------------------------------------------------------------------- a run

    def run(self) -> Outcome:
        """Play the schedule."""
        outcome, schedule = self.outcome, self.schedule
        outcome.seen.update(kinds_of(schedule))
        last = max(schedule.commands, default=0)
        rested = False
        while len(outcome.epochs) < MOST_EPOCHS:
            epoch = len(outcome.epochs)
            at_rest = epoch > last and not self.reports and not any(r.control.goal for r in self.regions)
            if at_rest and rested and outcome.frontiers[-1] == MAX_TIME:
                outcome.ended = True
                break
            rested = at_rest
            self.read(epoch, at_rest)
            commands = self.asked(epoch, schedule.commands[epoch]) if epoch in schedule.commands else []
            if epoch in self.reports:
                reports = self.reports.pop(epoch)
                commands = [*commands, *reports] if self.rng.random() < 0.5 else [*reports, *commands]
            for self.dies_at, self.dies_after in (*schedule.crashes.get(epoch, ()), ("", 0)):
                if len(outcome.epochs) == epoch:
                    self.try_once(epoch, commands)
        return outcome

    def read(self, epoch: int, at_rest: bool) -> None:
        """Fix the epoch's input; every attempt has the same."""
        schedule, outcome = self.schedule, self.outcome
        over = bool(outcome.frontiers) and outcome.frontiers[-1] == MAX_TIME
        lasts = schedule.endless and (not schedule.skew or epoch < schedule.epochs + _ENDLESS)
        more = lasts and epoch >= schedule.epochs and not at_rest and not over
        if epoch in schedule.empty:
            rows, frontier = list[Record](), outcome.frontiers[-1]
        elif epoch < schedule.epochs or more:
            rows, frontier = self.source.epoch(more or (schedule.endless and self.rng.random() < 0.5))
        else:
            rows, frontier = [], MAX_TIME
            if not over and outcome.frontiers:
                outcome.seen.update("input ends while " + r.control.phase.value for r in self.regions if r.control.goal)
                outcome.seen.update("input ends during hold" for r in self.regions if r.control.held)
        outcome.input.append(rows)
        outcome.frontiers.append(frontier)
        if self.trace:
            self.trace(f"--- epoch {epoch}: frontier {frontier}, {rows}")

    def asked(self, epoch: int, commands: Sequence[Command]) -> list[Command]:
        """Note, for the checkers, what is asked and makes sense; moves are to workers that exist, each of one region."""
        outcome, resolved, going = self.outcome, list[Command](), False
        there = set(self.snapshots)
        for command in commands:
            match command:
                case Move(region=name, keys=keys, worker=worker):
                    for region in range(len(self.regions)) if name is None else (int(name),):
                        to = None if worker is None else worker % outcome.asked[region]
                        resolved.append(Move(str(region), keys, to))
                        note_move(outcome.seen, self.regions[region].control, keys, to)
                        if going:
                            continue
                        outcome.quiet_from = epoch
                        others = {k: w for k, w in outcome.pins[region].items() if k not in keys}
                        outcome.pins[region] = others if to is None else {**others, **dict.fromkeys(keys, to)}
                    continue
                case Scale(region=name, workers=workers) if workers and not going:
                    outcome.quiet_from = epoch
                    for region in range(len(self.regions)) if name is None else (int(name),):
                        note_scale(outcome.seen, self.regions[region].control, workers, not any(self.regions[region].versions))
                        outcome.asked[region] = workers
                        outcome.pins[region] = {k: w for k, w in outcome.pins[region].items() if w < workers}
                case Snapshot(name=name) if not going:
                    there.add(name)
                case Load(name=name):
                    going = going or name in there
            resolved.append(command)
        if self.trace and commands:
            self.trace(f"    {resolved}")
        return resolved

    def try_once(self, epoch: int, commands: Sequence[Command]) -> None:
        """One attempt at an epoch, which may die; it may have been committed by then."""
        before = self.regions
        try:
            self.attempt(epoch, commands)
        except _Died:
            seen = self.outcome.seen
            seen.add(("refused " if self.dies_at in FAULTS else "crash after ") + self.dies_at)
            seen.update("crash during " + r.control.phase.value for r in before if r.control.goal)
            seen.update("crash during hold" for r in before if r.control.held)
            if self.trace:
                self.trace(f"    died: {self.dies_at}")

    def passed(self, step: str) -> None:
        """A step is done; the attempt may die here."""
        if self.dies_at == step:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise _Died

    def attempt(self, epoch: int, commands: Sequence[Command]) -> None:
        """One attempt at an epoch; nothing that it changes counts before `commit`, but for what the sink stores."""
        named = [(f"{n:03}", command) for n, command in enumerate(commands)]
        controls = {str(n): region.control for n, region in enumerate(self.regions)}
        limits = self.schedule.limits
        decided = self.decide(named, controls, list(self.snapshots), limits, Now(epoch)) if named else Decided(controls)
        self.passed("commands")
        rows, frontier = self.outcome.input[epoch], self.outcome.frontiers[epoch]
        emitted: list[Emitted] = []
        showed: list[RegionEpoch] = []
        after: Regions = []
        schedule = self.schedule
        for number, plan in enumerate(schedule.regions):
            onward: list[Record] | None = [] if number + 1 < len(schedule.regions) else None
            stage = Stage(number, epoch, plan.timed, plan.inputs, frontier, schedule.bins, schedule.sizes, onward)
            ends = [c.held for c in decided.copied if c.region == str(number)] if decided.copied else ()
            done, shown = self.region_epoch(stage, decided.controls[str(number)], ends, rows)
            showed.append(shown)
            after.append(done)
            emitted += stage.out
            if onward is not None:
                rows, frontier = sorted(onward, key=_position), shown.announced
        self.store(emitted)
        self.passed("sink")
        self.passed("commit")
        self.commit(epoch, after, showed)
        if decided.refused:
            self.outcome.seen.add("command refused")
        for name in decided.snapshots:
            asked, pins = list(self.outcome.asked), [dict(p) for p in self.outcome.pins]
            self.snapshots[name] = _Kept(epoch, self.regions, self.source.copy(), asked, pins)
        if decided.load:
            self.roll_back(self.snapshots[decided.load.name])
        self.passed("committed")

    def region_epoch(
        self, stage: Stage, control: Placement, ends: Sequence[Held], rows: Sequence[Record]
    ) -> tuple[Finished[State, State], RegionEpoch]:
        """One region in one epoch: what it is after it, and what it shows."""
        limits, before, kept = self.schedule.limits, self.regions[stage.region], self.kept
        copies = [(held, self.copied(before.copies[held.key], held.key)) for held in ends]
        versions, came = self.started(before.versions, control.workers, copies, kept)
        acquired = dict.fromkeys((*before.acquired, *came), ("",))
        told = messages(control, limits, stage.epoch, Frontier(MIN_TIME, stage.frontier), ends, acquired)
        self.passed("orders")
        table, tasks = self.table(stage.region, control, told), self.tasks(stage.region, control)
        by_worker: dict[int, list[Record]] = {}
        for row in rows:
            by_worker.setdefault(table.worker_of(row[3]), []).append(row)
        faulty, answers = self.dies_at in FAULTS, dict[int, Answer]()
        moves: dict[int, list[tuple[int, State]]] = {}
        for number, (orders, version) in enumerate(zip(told[:tasks], versions, strict=False)):
            mine = by_worker.get(number, ())
            if not mine and len(orders) == _PLAIN and not (stage.timed and version.waiting):
                continue
            if self.schedule.silent and not mine and not version and type(orders[1]) is Interrogate:
                continue
            if faulty:
                self.deliver(number, stage.epoch, orders)
            task = self.task(stage, number, version, mine)
            answer = self.worker(number, stage.epoch, orders).run(task)
            versions[number] = task.state
            if control.goal is not None:
                answers[number] = Answer(answer.sized, answer.taken, int(self.rng.random() * 4_000), answer.queued)
            if task.moves:
                moves[number] = task.moves
            self.passed("task")
        after = self.finished(control, answers, moves, versions, before.copies, limits, stage.epoch, stage.frontier, kept)
        if self.schedule.strategy.report_above:
            after = self.look(stage, control, after, by_worker)
        self.passed("advanced")
        if control.goal is not None:
            note_epoch(self.outcome.seen, stage.epoch, control, after, answers, moves)
        states = {w: s for w, s in enumerate(after.versions) if s}
        own = {k: after.control.pins[k] for k in after.control.watch.own}
        pins = dict(self.outcome.pins[stage.region])
        shown = RegionEpoch(tasks, states, after.control.routing, self.announced(control, stage.frontier), own, pins)
        return after, shown

    def look(
        self, stage: Stage, during: Placement, after: Finished[State, State], rows: Mapping[int, Sequence[Record]]
    ) -> Finished[State, State]:
        """What the strategy makes of an epoch's load."""
        counts = {w: len(mine) for w, mine in rows.items()}
        keys = Counter(row[3] for mine in rows.values() for row in mine)
        hot = [HotKey(key, n, "") for key, n in keys.items()]
        control = self.watched(after.control, during, self.schedule.strategy, counts, hot, self.schedule.limits, stage.epoch)
        if (control.goal is not None and after.control.goal is None) or control.watch.own != after.control.watch.own:
            note_own(self.outcome.seen, after.control, control)
            self.outcome.quiet_from = stage.epoch
        return replace(after, control=control)

    def deliver(self, number: int, epoch: int, orders: Sequence[Message]) -> None:
        """Give a worker messages that are not its epoch's; it should refuse."""
        if self.dies_after > 0:
            self.dies_after -= 1
            return
        try:
            self.worker(number, epoch, mangled(self.dies_at, orders))
        except PenstockError:
            raise _Died from None
        self.outcome.accepted.append((epoch, self.dies_at))
        self.dies_at = ""

    def commit(self, epoch: int, after: Regions, showed: list[RegionEpoch]) -> None:
        """Everything of an epoch counts from here on; copies begin."""
        outcome = self.outcome
        if self.schedule.round_trip:
            after = [replace(a, control=from_plain(Placement, json.loads(json.dumps(a.control, default=plain)))) for a in after]
            outcome.seen.add("JSON round trip")
        self.regions = after
        outcome.epochs.append(showed)
        assert self.stored is not None
        outcome.emitted += self.stored
        self.stored = None
        for number, region in enumerate(after):
            for held in region.control.held and [h for h in region.control.held if h.since == epoch]:
                self.copy(epoch, number, held)
        if self.trace:
            for number, (each, shown) in enumerate(zip(after, showed, strict=True)):
                self.trace(_line(number, each.control, shown))

    def copy(self, epoch: int, region: int, held: Held) -> None:
        """Begin to copy the state of a key on hold; its end is reported, sometimes twice."""
        rnd, command = self.rng.random, Copied(str(region), held.key, held.since, {})
        done = epoch + 1 + int(rnd() * self.schedule.copy_epochs)
        self.outcome.copies.append(Copy(region, held.key, held.since, done))
        self.report(done, command)
        if rnd() < 0.2:
            self.report(done + 1 + int(rnd() * 2), command)
            self.outcome.seen.add("copy reported twice")

    def report(self, epoch: int, command: Command) -> None:
        """Put what a copy reports among an epoch's commands."""
        self.reports.setdefault(epoch, []).append(command)

    def roll_back(self, to: _Kept) -> None:
        """Go back to a snapshot, which is an epoch: what came after it is void, and its copies begin again.

        The copies of holds that are void may still be reported; their epochs never come again, so nothing takes them for others.
        """
        outcome, began = self.outcome, to.epoch + 1
        outcome.seen.update("load in " + r.control.phase.value for r in self.regions)
        outcome.seen.update("load into " + r.control.phase.value for r in to.regions)
        outcome.seen.update("load into hold" for r in to.regions if r.control.held)
        self.regions, self.source = to.regions, to.source.copy()
        outcome.asked, outcome.pins = list(to.asked), [dict(p) for p in to.pins]
        outcome.quiet_from = epoch = len(outcome.epochs)
        void = epoch + 1 - began
        outcome.input[began:] = [[]] * void
        outcome.frontiers[began:] = [outcome.frontiers[to.epoch]] * void
        outcome.epochs[began:] = [outcome.epochs[to.epoch]] * void
        outcome.emitted = [e for e in outcome.emitted if e.epoch <= to.epoch]
        again = {(n, h.key, h.since) for n, r in enumerate(to.regions) for h in r.control.held}
        outcome.copies = [c for c in outcome.copies if c.done <= to.epoch and c[:3] not in again]
        late: list[Command] = [
            c for reports in self.reports.values() for c in reports if isinstance(c, Copied) and c.since > to.epoch
        ]
        self.reports = {epoch + 2: late} if late else {}
        for number, region in enumerate(to.regions):
            for held in region.control.held:
                self.copy(epoch, number, held)
        if self.trace:
            self.trace(f"    back to the end of epoch {to.epoch}")


def simulate(seed: int, world: type[World] = World, trace: Callable[[str], None] | None = None) -> Outcome:
    """Play the run that a seed stands for.

    Args:
        seed: Any number; the same gives the same run.
        world: What to play it in; a broken variant, to test the checkers.
        trace: Gets lines that tell what happens, such as `print`.

    Returns:
        What the run has shown, for `penstock.testing.checkers.check`.

    Example:
        >>> simulate(7).ended
        True
    """
    schedule, rng = draw(seed)
    if trace:
        trace(f"{schedule}")
    return world(schedule, rng, trace).run()


def mangled(fault: str, orders: Sequence[Message]) -> list[Message]:
    """Messages as a transport that is wrong would deliver them."""
    out: list[Message] = list(orders)
    match fault:
        case "twice":
            return [*out[:1], *out]
        case "reordered":
            return out[::-1]
        case "lost":
            return [m for m in out if type(m) is not Frontier]
        case "late":
            return [Barrier(m.epoch - 1) if isinstance(m, Barrier) else m for m in out]
        case "held released":
            return [Hold((0,)), Release((0,), (0,)), *(m for m in out if type(m) not in (Hold, Release))]
        case "held collected":
            others = (m for m in out if type(m) not in (Hold, Release, Collect))
            return [Hold((0,)), *others, Collect((Item(1, key=0),), 1, 1, (0,))]
    raise PenstockError(f"{fault!r} is no fault of a transport.")


def _position(record: Record) -> tuple[int, int]:
    return record[1:3]


def _line(number: int, control: Placement, shown: RegionEpoch) -> str:
    table, goal = control.routing, control.goal
    aim = f", to {goal.workers} by steps of {goal.step_bytes} B: {goal.target}" if goal else ""
    holds = "".join(f", {h.key} on hold at {h.to} since {h.since}" for h in control.held)
    held = {w: (s.chains, s.waiting, s.queue) for w, s in shown.states.items()}
    return (
        f"    region {number}: {shown.tasks} tasks, announced {shown.announced}, {control.phase.value}{aim}{holds}\n"
        f"        {table.owners} {dict(table.splits)} {dict(table.pinned_keys)}, then {control.workers} tasks\n        {held}"
    )
