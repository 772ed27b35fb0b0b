"""Live rescaling in a world in one process: regions, workers, a source, epochs, commands and crashes, all drawn from a seed.

    outcome = simulate(7)
    assert not check(outcome)          # penstock.testing.checkers
    simulate(7, trace=print)           # what happened, epoch by epoch

The world drives `penstock.protocol.rescale` as the engine does. An epoch begins with the committed record and its commands, is one
attempt after another until one commits, and commits everything (placement, states, what the sink holds) as one. What a crashed
attempt did is gone, but for what the sink has stored; the re-run has the same input and commands, and other costs.

Invariant: a seed gives the same run in every process. The checkers see the `Outcome` only.

Read next: `penstock.testing.checkers`; `penstock.testing.simulated_worker` for what a task does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from penstock.errors import PenstockError
from penstock.protocol.messages import Answer, Interrogate
from penstock.protocol.rescale import Order, Placement, advanced, ended_hold, orders, pinned, scaled
from penstock.protocol.rescale.placement import Held
from penstock.routing.table import Routing
from penstock.testing.coverage import kinds_of, note_epoch, note_scale
from penstock.testing.outcome import Copy, Outcome, RegionEpoch
from penstock.testing.schedule import Command, Record, Schedule, Source, draw
from penstock.testing.simulated_worker import Chain, Emitted, Given, Stage, State, Worker
from penstock.types import MAX_TIME

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

    worker: type[Worker] = Worker

    def __init__(self, schedule: Schedule, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.schedule = schedule
        self.rng = rng
        self.trace = trace
        self.source = Source(schedule, rng)
        self.controls = [Placement.fresh(r.workers, Routing.even(r.workers, schedule.bins)) for r in schedule.regions]
        self.states: list[dict[int, State]] = [{} for _ in schedule.regions]
        self.aside: dict[tuple[int, int, int], Chain | None] = {}
        self.reports: dict[int, list[Command]] = {}
        self.stored: list[Emitted] | None = None
        self.dies_at = ""
        self.outcome = Outcome(
            schedule, asked=[[(-1, r.workers)] for r in schedule.regions], pins=[{} for _ in schedule.regions]
        )

    # ------------------------------------------------------------------------------------------------ what variants break

    def table(self, region: int, control: Placement, told: dict[int, list[Order]]) -> Routing:
        """The table by which this epoch's records go."""
        del region, told
        return control.routing

    def tasks(self, region: int, control: Placement) -> int:
        """How many tasks run."""
        del region
        return control.workers

    def announced(self, control: Placement, frontier: int) -> int:
        """The frontier that others are told (rule H5)."""
        bound = control.held_frontier
        return frontier if bound is None else min(frontier, bound)

    def end_hold(self, control: Placement, key: int, since: int) -> tuple[Placement, Held | None]:
        """A copy is done (rule H3)."""
        return ended_hold(control, key, since)

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
        for epoch in range(MOST_EPOCHS):
            at_rest = epoch > last and not self.reports and not any(c.goal for c in self.controls)
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
        given: list[list[Given]] = []
        for number, plan in enumerate(self.schedule.regions):
            stage = Stage(number, epoch, plan.timed, plan.inputs, frontier, self.schedule.bins, self.schedule.sizes)
            controls[number], shown, leaving = self.region_epoch(stage, controls[number], ends[number], rows)
            showed.append(shown)
            given.append(leaving)
            emitted += stage.out
            rows, frontier = sorted(stage.onward, key=_position), shown.announced
        self.store(emitted)
        self.passed("sink")
        self.passed("commit")
        self.commit(epoch, controls, showed, given)
        self.passed("committed")

    def commanded(self, epoch: int, commands: Sequence[Command]) -> tuple[list[Placement], list[list[Held]]]:
        """The controls after the epoch's commands, and by region the holds that end."""
        controls, limits = list(self.controls), self.schedule.limits
        ends: list[list[Held]] = [[] for _ in controls]
        for command in commands:
            region = command.region
            control = controls[region]
            if command.kind == "scale":
                note_scale(self.outcome.seen, control, command.number, not any(self.states))
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
    ) -> tuple[Placement, RegionEpoch, list[Given]]:
        """One region in one epoch: its control after it, what it shows, and what its workers gave up to be copied."""
        limits, states = self.schedule.limits, dict(self.states[stage.region])
        told = orders(control, limits, ends)
        self.passed("orders")
        table, tasks = self.table(stage.region, control, told), self.tasks(stage.region, control)
        by_worker: dict[int, list[Record]] = {}
        for row in rows:
            by_worker.setdefault(table.worker_of(row[3]), []).append(row)
        copied = self.copied(stage.region, ends)
        answers: dict[int, Answer] = {}
        given: list[Given] = []
        for number in range(tasks):
            state, mine = states.get(number), by_worker.get(number, ())
            messages: Sequence[Order] = told.get(number, ())
            if not (mine or messages or (stage.timed and state is not None and state.waiting)):
                continue
            if self.schedule.silent and state is None and not mine and type(messages[0]) is Interrogate:
                continue
            worker = self.worker(stage, number, State() if state is None else state.copy())
            answer = worker.run(messages, mine, copied.get(number, ()))
            if control.goal is not None:
                answers[number] = Answer(answer.sized, answer.taken, int(self.rng.random() * 4_000))
            states[number] = worker.state
            given += worker.given
            if not number:
                self.passed("task")
        after = advanced(control, answers, limits, stage.epoch, stage.frontier)
        self.passed("advanced")
        if control.goal is not None:
            note_epoch(self.outcome.seen, control, after, answers, given)
        if given:
            _join(states, given)
        shown = RegionEpoch(
            tasks, {w: s for w, s in states.items() if s}, after.routing, self.announced(control, stage.frontier)
        )
        return after, shown, [g for g in given if g.held]

    def copied(self, region: int, ends: Sequence[Held]) -> dict[int, list[tuple[int, Chain | None]]]:
        """By receiver, the keys whose copies are done, with their state."""
        out: dict[int, list[tuple[int, Chain | None]]] = {}
        for held in ends:
            out.setdefault(held.to, []).append((held.key, self.aside.get((region, held.key, held.since))))
        return out

    def commit(
        self, epoch: int, controls: list[Placement], showed: list[RegionEpoch], given: Sequence[Sequence[Given]]
    ) -> None:
        """Everything of an epoch counts from here on; copies begin."""
        outcome, rnd = self.outcome, self.rng.random
        if self.schedule.round_trip:
            controls = [Placement.from_json(json.loads(json.dumps(c.to_json()))) for c in controls]
            outcome.seen.add("JSON round trip")
        self.controls, self.states = controls, [shown.states for shown in showed]
        outcome.epochs.append(showed)
        assert self.stored is not None
        outcome.emitted += self.stored
        self.stored = None
        for region, leaving in enumerate(given):
            for key, _, chain, _, _ in leaving:
                self.aside[region, key, epoch] = chain
                done = epoch + 1 + int(rnd() * self.schedule.copy_epochs)
                outcome.copies.append(Copy(region, key, epoch, done))
                self.report(done, Command("moved", region, epoch, (key,)))
                if rnd() < 0.2:
                    self.report(done + 1 + int(rnd() * 2), Command("moved", region, epoch, (key,)))
                    outcome.seen.add("copy reported twice")
        if self.trace:
            for number, (control, shown) in enumerate(zip(controls, showed, strict=True)):
                self.trace(_line(number, control, shown))

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


def _join(states: dict[int, State], given: Sequence[Given]) -> None:
    """What has left its giver joins its receiver; of a key on hold only the waiting records do, in its queue."""
    fresh: dict[int, State] = {}
    for key, to, chain, waiting, held in given:
        state = fresh.get(to)
        if state is None:
            fresh[to] = states[to] = state = states[to].copy() if to in states else State()
        if held:
            if waiting:
                state.queue[key] = (*waiting, *state.queue.get(key, ()))
            continue
        if chain is not None:
            state.chains[key] = chain
        if waiting:
            state.waiting[key] = (*waiting, *state.waiting.get(key, ()))


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
