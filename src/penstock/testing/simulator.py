"""Live rescaling in a world in one process: regions, workers, a source, epochs, commands and crashes, all drawn from a seed.

    outcome = simulate(7)
    assert not check(outcome)          # penstock.testing.checkers
    simulate(7, trace=print)           # what happened, epoch by epoch

The world drives `penstock.protocol` as the engine does, and its workers carry out their messages as tasks do. An epoch begins with the committed record and its commands, is one
attempt after another until one commits, and commits everything (placement, states, what the sink holds) as one. What a crashed
attempt did is gone, but for what the sink has stored; the re-run has the same input and commands, and other costs.

Invariant: a seed gives the same run in every process. The checkers see the `Outcome` only.

Read next: `penstock.testing.checkers`; `penstock.testing.simulated_worker` for what a task does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from penstock.errors import PenstockError
from penstock.protocol.messages import Answer, Frontier, Interrogate, Message
from penstock.protocol.rescale import Placement, ended_hold, messages, pinned, scaled
from penstock.protocol.rescale.placement import Held
from penstock.protocol.rescale.transfer import Finished, finished, started
from penstock.protocol.rescale.worker import WorkerEpoch
from penstock.routing.table import Routing
from penstock.testing.coverage import kinds_of, note_epoch, note_scale
from penstock.testing.outcome import Copy, Outcome, RegionEpoch
from penstock.testing.schedule import Command, Record, Schedule, Source, draw
from penstock.testing.simulated_worker import Emitted, Stage, State, States, Task
from penstock.types import MAX_TIME, MIN_TIME

_PLAIN: Final = 2
"""Messages of a worker that is told nothing beyond the frontier and the barrier."""

MOST_EPOCHS: Final = 160
"""A run that has not ended by then is ended."""


class _Died(Exception):  # noqa: N818  (not an error: the schedule asked for it)
    """An attempt at an epoch ends here."""


class World:
    """A flow that runs; subclasses break it on purpose.

    Args:
        schedule: What happens.
        rng: Draws input, costs and durations.
        trace: Gets a line for everything that happens.
    """

    worker: type[WorkerEpoch] = WorkerEpoch
    task: type[Task] = Task
    kept: States = States()

    def __init__(self, schedule: Schedule, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.schedule = schedule
        self.rng = rng
        self.trace = trace
        self.source = Source(schedule, rng)
        fresh = (Placement.fresh(r.workers, Routing.even(r.workers, schedule.bins)) for r in schedule.regions)
        self.regions: list[Finished[State, State]] = [Finished(placement, [], {}, {}) for placement in fresh]
        self.reports: dict[int, list[Command]] = {}
        self.stored: list[Emitted] | None = None
        self.dies_at = ""
        self.outcome = Outcome(
            schedule, asked=[[(-1, r.workers)] for r in schedule.regions], pins=[{} for _ in schedule.regions]
        )

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

    def end_hold(self, control: Placement, key: int, since: int) -> tuple[Placement, Held | None]:
        """A copy is done (rule H3)."""
        return ended_hold(control, key, since)

    def started(
        self, region: int, workers: int, copied: Sequence[tuple[Held, State]]
    ) -> tuple[list[State], dict[int, list[State]]]:
        """What a region's workers begin with (rule H4)."""
        return started(self.regions[region].versions, workers, copied, self.kept)

    def finished(
        self,
        control: Placement,
        answers: dict[int, Answer],
        moves: dict[int, list[tuple[int, State]]],
        versions: list[State],
        stage: Stage,
    ) -> Finished[State, State]:
        """A region after the epoch (rules C2, C3)."""
        copies, limits = self.regions[stage.region].copies, self.schedule.limits
        return finished(control, answers, moves, versions, copies, limits, stage.epoch, stage.frontier, self.kept)

    def store(self, emitted: list[Emitted]) -> None:
        """Hand an epoch's outputs to the sink, which skips an epoch that it has."""
        if self.stored is None:
            self.stored = emitted
        else:
            self.outcome.reruns.append((self.stored, emitted))

    # ------------------------------------------------------------------------------------------------------------- a run

    @property
    def controls(self) -> list[Placement]:
        """The regions' placements."""
        return [r.control for r in self.regions]

    def run(self) -> Outcome:
        """Play the schedule."""
        outcome, schedule = self.outcome, self.schedule
        outcome.seen.update(kinds_of(schedule))
        last = max(schedule.commands, default=0)
        rested = False
        for epoch in range(MOST_EPOCHS):
            at_rest = epoch > last and not self.reports and not any(r.control.goal for r in self.regions)
            if at_rest and rested and outcome.frontiers[-1] == MAX_TIME:
                outcome.ended = True
                break
            rested = at_rest
            self.read(epoch, at_rest)
            commands = self.asked(epoch, schedule.commands.get(epoch, []))
            reports = self.reports.pop(epoch, [])
            commands = commands + reports if self.rng.random() < 0.5 else reports + commands
            for step in schedule.crashes.get(epoch, ()):
                self.attempt_that_dies(epoch, commands, step)
            if len(outcome.epochs) == epoch:
                self.attempt(epoch, commands)
        return outcome

    def read(self, epoch: int, at_rest: bool) -> None:
        """Fix the epoch's input; every attempt has the same."""
        schedule, outcome = self.schedule, self.outcome
        more = schedule.endless and epoch >= schedule.epochs and not at_rest
        if epoch < schedule.epochs or more:
            rows, frontier = self.source.epoch(more or (schedule.endless and self.rng.random() < 0.5))
        else:
            rows, frontier = [], MAX_TIME
            if outcome.frontiers and outcome.frontiers[-1] != MAX_TIME:
                outcome.seen.update("input ends while " + c.phase.value for c in self.controls if c.goal)
                outcome.seen.update("input ends during hold" for c in self.controls if c.held)
        outcome.input.append(rows)
        outcome.frontiers.append(frontier)
        if self.trace:
            self.trace(f"--- epoch {epoch}: frontier {frontier}, {rows}")

    def asked(self, epoch: int, commands: Sequence[Command]) -> list[Command]:
        """Note, for the checkers, what is asked; the commands, each for one region and of workers that exist."""
        outcome, resolved = self.outcome, []
        for command in commands:
            outcome.quiet_from = epoch
            for region in range(len(self.controls)) if command.region < 0 else (command.region,):
                asked, pins = outcome.asked[region], outcome.pins[region]
                number = command.number
                if command.kind == "scale":
                    asked.append((epoch, number))
                    outcome.pins[region] = {k: w for k, w in pins.items() if w < number}
                elif command.kind == "pin":
                    number %= asked[-1][1]
                    pins.update(dict.fromkeys(command.keys, number))
                else:
                    outcome.pins[region] = {k: w for k, w in pins.items() if k not in command.keys}
                resolved.append(Command(command.kind, region, number, command.keys))
                if self.trace:
                    self.trace(f"    {resolved[-1]}")
        return resolved

    def attempt_that_dies(self, epoch: int, commands: Sequence[Command], step: str) -> None:
        """Try an epoch and die at a step; the epoch may have been committed already."""
        if len(self.outcome.epochs) > epoch:
            return
        self.dies_at = step
        try:
            self.attempt(epoch, commands)
        except _Died:
            self.outcome.seen.add("crash after " + step)
            self.outcome.seen.update("crash during " + c.phase.value for c in self.controls if c.goal)
            self.outcome.seen.update("crash during hold" for c in self.controls if c.held)
        self.dies_at = ""
        if self.trace:
            self.trace(f"    died: {step}")

    def passed(self, step: str) -> None:
        """A step is done; the attempt may die here."""
        if self.dies_at == step:
            raise _Died

    def attempt(self, epoch: int, commands: Sequence[Command]) -> None:
        """One attempt at an epoch; nothing that it changes counts before `commit`, but for what the sink stores."""
        controls, ends = self.commanded(epoch, commands)
        self.passed("commands")
        rows, frontier = self.outcome.input[epoch], self.outcome.frontiers[epoch]
        emitted: list[Emitted] = []
        showed: list[RegionEpoch] = []
        after: list[Finished[State, State]] = []
        for number, plan in enumerate(self.schedule.regions):
            stage = Stage(number, epoch, plan.timed, plan.inputs, frontier, self.schedule.bins, self.schedule.sizes)
            done, shown = self.region_epoch(stage, controls[number], ends[number], rows)
            showed.append(shown)
            after.append(done)
            emitted += stage.out
            rows, frontier = sorted(stage.onward, key=_position), shown.announced
        self.store(emitted)
        self.passed("sink")
        self.passed("commit")
        self.commit(epoch, after, showed)
        self.passed("committed")

    def commanded(self, epoch: int, commands: Sequence[Command]) -> tuple[list[Placement], list[list[Held]]]:
        """The controls after the epoch's commands, and by region the holds that end."""
        controls, limits = self.controls, self.schedule.limits
        ends: list[list[Held]] = [[] for _ in controls]
        for command in commands:
            region = command.region
            control = controls[region]
            if command.kind == "scale":
                note_scale(self.outcome.seen, control, command.number, not any(s for r in self.regions for s in r.versions))
                controls[region] = scaled(control, command.number, limits, epoch)
            elif command.kind == "moved":
                controls[region], ended = self.end_hold(control, command.keys[0], command.number)
                if ended is not None:
                    ends[region].append(ended)
            elif command.kind not in ("pin", "unpin"):
                raise PenstockError(f"{command.kind!r} is no command that this version knows.")
            else:
                worker = command.number if command.kind == "pin" else None
                controls[region] = pinned(control, command.keys, worker, limits, epoch)
        return controls, ends

    def region_epoch(
        self, stage: Stage, control: Placement, ends: Sequence[Held], rows: Sequence[Record]
    ) -> tuple[Finished[State, State], RegionEpoch]:
        """One region in one epoch: what it is after it, and what it shows."""
        limits, before, kept = self.schedule.limits, self.regions[stage.region], self.kept
        copied = [(held, kept.copied(before.copies[held.key], held.key)) for held in ends]
        versions, came = self.started(stage.region, control.workers, copied)
        acquired = dict.fromkeys((*before.acquired, *came), ("",))
        told = messages(control, limits, stage.epoch, Frontier(MIN_TIME, stage.frontier), ends, acquired)
        self.passed("orders")
        table, tasks = self.table(stage.region, control, told), self.tasks(stage.region, control)
        by_worker: dict[int, list[Record]] = {}
        for row in rows:
            by_worker.setdefault(table.worker_of(row[3]), []).append(row)
        answers: dict[int, Answer] = {}
        moves: dict[int, list[tuple[int, State]]] = {}
        for number, (orders, version) in enumerate(zip(told[:tasks], versions, strict=False)):
            mine = by_worker.get(number, ())
            if not mine and len(orders) == _PLAIN and not (stage.timed and version.waiting):
                continue
            if self.schedule.silent and not mine and not version and type(orders[1]) is Interrogate:
                continue
            task = self.task(stage, number, version, mine)
            answer = self.worker(number, stage.epoch, orders).run(task)
            versions[number] = task.state
            if control.goal is not None:
                answers[number] = Answer(answer.sized, answer.taken, int(self.rng.random() * 4_000), answer.queued)
            if task.moves:
                moves[number] = task.moves
            if not number:
                self.passed("task")
        after = self.finished(control, answers, moves, versions, stage)
        self.passed("advanced")
        if control.goal is not None:
            note_epoch(self.outcome.seen, stage.epoch, control, after, answers, moves)
        states = {w: s for w, s in enumerate(after.versions) if s}
        shown = RegionEpoch(tasks, states, after.control.routing, self.announced(control, stage.frontier))
        return after, shown

    def commit(self, epoch: int, after: list[Finished[State, State]], showed: list[RegionEpoch]) -> None:
        """Everything of an epoch counts from here on; copies begin."""
        outcome, rnd = self.outcome, self.rng.random
        if self.schedule.round_trip:
            after = [replace(a, control=Placement.from_json(json.loads(json.dumps(a.control.to_json())))) for a in after]
            outcome.seen.add("JSON round trip")
        self.regions = after
        outcome.epochs.append(showed)
        assert self.stored is not None
        outcome.emitted += self.stored
        self.stored = None
        for region, key in [(n, h.key) for n, a in enumerate(after) for h in a.control.held if h.since == epoch]:
            done = epoch + 1 + int(rnd() * self.schedule.copy_epochs)
            outcome.copies.append(Copy(region, key, epoch, done))
            self.report(done, Command("moved", region, epoch, (key,)))
            if rnd() < 0.2:
                self.report(done + 1 + int(rnd() * 2), Command("moved", region, epoch, (key,)))
                outcome.seen.add("copy reported twice")
        if self.trace:
            for number, (each, shown) in enumerate(zip(after, showed, strict=True)):
                self.trace(_line(number, each.control, shown))

    def report(self, epoch: int, command: Command) -> None:
        """Put what a copy reports among an epoch's commands."""
        self.reports.setdefault(epoch, []).append(command)


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
