"""A second command during every first, in the harness: what the sinks hold in the end is what a flow without commands gives.

Flows are started again and again, crash now and then, and are told things at any step of an epoch, until their input has ended.
Of every command is known in the end what became of it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.errors import CheckpointError, DeclarationError, FinishedError
from penstock.protocol.commands import Drain, Load, Scale, Stop, Tick, kind_of
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness

KEY = pa.schema([("k", pa.int64())])
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=300, least_bytes=300, most_bytes=600, hold_bytes=500, measure_entries=20)
KINDS = ("scale", "scale one", "move", "snapshot", "load", "drain", "stop")
PAIRS = [*itertools.product(KINDS, KINDS)]
PUSHES, ROWS, EPOCHS, STARTS = 8, 6, 400, 40


def counted(key, event, state):
    n, total, body = state or (0, 0, "")
    state = n + 1, total + event.v, "x" * 600 if key == 0 else body
    return (key, *state[:2]), state


def flow_of(prefix):
    sinks = {n: ps.memory(f"{prefix}.{n}") for n in ("counted", "windows")}
    flow = ps.Flow("second")
    events = flow.source("events", ps.files("none", "k long, at timestamp, v long"), time="at", lateness="2 seconds")
    keyed = events.key_by("k")
    keyed.stateful_map(counted, "k long, n long, total long").sink(sinks["counted"], name="counted")
    windows = keyed.local().key_by("v", name="values").window(ps.tumbling("4 seconds")).aggregate(n=ps.count())
    windows.sink(sinks["windows"], name="windows")
    return flow, sinks


def push(harness, i):
    at = [BEGIN + dt.timedelta(seconds=i + j % 2) for j in range(ROWS)]
    harness.push("events", [{"k": (i + j) % 4, "at": t, "v": j % 3} for j, t in enumerate(at)])


def content(sinks):
    return {n: sorted(map(repr, s.rows())) for n, s in sinks.items()}


@pytest.fixture(scope="module")
def calm():
    """By number of pushes that belong to the input."""
    out = []
    for n in range(PUSHES + 1):
        flow, sinks = flow_of(f"second.calm.{n}")
        with Harness(flow) as harness:
            for i in range(n):
                push(harness, i)
            harness.finish()
        out.append(content(sinks))
    return out


class Someone:
    """Gives commands whenever a run takes a step, crashes it now and then, and remembers what was asked."""

    def __init__(self, seed, pair):
        self.dice = random.Random(seed)
        self.plan = list(pair)
        self.wait = self.dice.randrange(40)
        self.harness = None
        self.asked = []
        self.pushed = self.dice.randrange(PUSHES // 2, PUSHES + 1)
        self.settled = {}
        self.due = 0  # so many pushes belong to the input of the run
        self.since = 0  # its number

    def step(self, name):
        if self.harness is None:
            return
        self.wait -= 1
        if name == "committed":
            self.look()
            if self.harness.record.draining and not self.draining:
                self.due = self.pushed
            self.draining = self.harness.record.draining
        if self.wait <= 0 and self.plan:
            self.give(self.plan.pop(0))
            self.wait = self.dice.choice([0, 0, 1, 2, 5, 12])
        if self.dice.random() < (0.06 if name == "compute counted" and self.left() <= 0 else 0.004):
            raise Crash  # most of all where the input ends

    def left(self):
        """Pushes that are left when the next epoch, which reads one, has read it."""
        read = self.harness.record.sources.get("events")
        return self.pushed - 1 - (read.rows // ROWS if read else 0)

    def give(self, kind):
        harness, dice = self.harness, self.dice
        commander = Commander(Checkpoint(harness.checkpoint), lambda: harness.record)
        try:
            if kind.startswith("scale"):
                asked = commander.scale(workers=dice.randint(1, 5), region="k" if kind == "scale one" else None)
            elif kind == "move":
                asked = commander.move("k", dice.choice([[0], [0, 1]]), dice.choice([None, 0, 1]), KEY)
            elif kind == "snapshot":
                asked = commander.snapshot(f"s{dice.randrange(3)}")
            elif kind == "load":
                asked = commander.load(dice.choice(harness.loadable() or ["s0"]))
            else:
                asked = commander.stop(drain=kind == "drain", run=Checkpoint(harness.checkpoint).newest_run())
        except (DeclarationError, CheckpointError, FinishedError):
            return
        self.asked.append(asked)

    def look(self):
        """After an epoch: what has just been carried out is so."""
        record = self.harness.record
        for asked in self.asked:
            if asked.name in self.settled:
                continue
            if asked.replaced:
                assert asked.replaced.startswith(f"The {kind_of(asked.command)}")
                self.settled[asked.name] = "replaced"
                continue
            try:
                if asked.done:
                    self.settled[asked.name] = "done"
                    if isinstance(asked.command, Scale) and not record.finished and asked is self.asked[-1]:
                        settled = {(record.regions[r].control.workers, record.regions[r].control.goal) for r in asked.regions}
                        assert settled == {(asked.command.workers, None)}
                    assert self.stands(asked), "a later one wants something else"
            except DeclarationError:
                self.settled[asked.name] = "refused"

    def stands(self, asked):
        """Whether no later command that was obeyed in the same epoch, or before, wanted another number of workers."""
        record = self.harness.record
        later = [a for a in self.asked if a.name > asked.name and a.name in record.control and a.name not in record.replaced]
        others = [
            a
            for a in later
            if isinstance(a.command, Scale) and isinstance(asked.command, Scale) and set(a.regions) >= set(asked.regions)
        ]
        return all(a.command.workers == asked.command.workers for a in others)

    def was_stopped(self):
        """Whether somebody told this start of the flow to stop."""
        return any(isinstance(a.command, Stop) and a.command.run >= self.since for a in self.asked)

    def idle(self):
        """A run that reads on has nothing to read."""
        if self.pushed < PUSHES:
            push(self.harness, self.pushed)
            self.pushed += 1
        else:
            Commander(Checkpoint(self.harness.checkpoint)).submit(self.dice.choice([Drain(), Drain(), Tick()]))


def run(seed, pair, calm):
    someone = Someone(seed, pair)
    flow, sinks = flow_of(f"second.{seed}")
    with Harness(flow, workers=2, limits=STEPS, most=1, on_step=someone.step) as harness:
        someone.harness = harness
        for i in range(someone.pushed):
            push(harness, i)
        for _ in range(STARTS):
            if harness.record.finished:
                break
            someone.due, someone.draining = someone.pushed, harness.record.draining
            someone.since = Checkpoint(harness.checkpoint).newest_run() + 1
            try:
                if someone.pushed == PUSHES and someone.dice.random() < 0.5:
                    harness.available(drain=someone.dice.random() < 0.7)
                else:
                    harness.follow(someone.idle)
            except Crash:
                for _ in range(min(PUSHES - someone.pushed, someone.dice.choice([0, 1, 2]))):
                    push(harness, someone.pushed)
                    someone.pushed += 1
                continue
            record = harness.record
            assert record.epoch < EPOCHS, seed
            if record.ends_for(someone.since).stopped:  # a start that had nothing to read leaves the record as it was
                assert not record.draining, (seed, pair)
                assert someone.was_stopped(), (seed, pair)
        record = harness.record
        assert record.finished, (seed, pair)
        pushes = record.sources["events"].rows // ROWS
        if not harness._loop.driver.ended_for_another:  # a sink may hold results of the end that a crash came after
            assert pushes >= someone.due, (seed, pair, "finished before its input was read to the end")
        assert content(sinks) == calm[pushes], (seed, pair)
        assert not record.sources["events"].late
        someone.look()
        outcomes = [someone.settled.get(a.name) for a in someone.asked]
        lost = [
            a.command for a, o in zip(someone.asked, outcomes, strict=True) if o is None and not isinstance(a.command, Load)
        ]
        assert not lost, (seed, pair)
    return pair, outcomes


def check_many(first, last, calm):
    seen = {}
    for seed in range(first, last):
        pair, outcomes = run(seed, PAIRS[seed % len(PAIRS)], calm)
        seen.setdefault(pair, set()).update(outcomes)
    assert set(seen) == set(PAIRS)
    return set().union(*seen.values())


def test_rows_when_a_second_command_comes_during_a_first_are_those_of_a_flow_without_commands(calm):
    check_many(0, len(PAIRS), calm)


@pytest.mark.slow
def test_rows_when_a_second_command_comes_during_a_first_at_hundreds_of_moments_are_the_same(calm):
    assert check_many(1_000, 1_120, calm) >= {"done", "replaced"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rows_when_a_second_command_comes_during_a_first_at_thousands_of_moments_are_the_same(calm):
    check_many(10_000, 15_000, calm)
