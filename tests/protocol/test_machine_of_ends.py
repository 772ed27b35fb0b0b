"""How a flow comes to its end: the pure machine, in thousands of random orders of commands."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock.protocol.commands import Open, decode
from penstock.protocol.controller import Now, decide, still_open
from penstock.protocol.ends import Ends, Step, Told, next_step, supervise
from penstock.protocol.rescale import STANDARD, Placement, scaled


def obeyed(*commands, now=None, controls=None):
    numbered = [(f"{i}", decode({"command": c} if isinstance(c, str) else c)) for i, c in enumerate(commands)]
    return decide(numbered, controls if controls is not None else {"k": Placement.fresh(2)}, (), STANDARD, now or Now(7, 3, 2))


@pytest.mark.parametrize(
    ("commands", "told"),
    [
        (["drain"], Told(drain=True)),
        (["drain", "drain"], Told(drain=True)),
        (["drain", "stop"], Told(stop=True, withdrawn=True)),
        (["stop", "drain"], Told(drain=True, withdrawn=True)),
        (["end"], Told(end=True)),
        (["end", "stop"], Told(stop=True, withdrawn=True)),
        (["stop", "end"], Told(stop=True, withdrawn=True)),
        ([{"command": "stop", "run": 2}], Told(stop=True, withdrawn=True)),  # the flow went back: it is the same start
        ([{"command": "stop", "run": 1}], Told(withdrawn=True)),
        (["drain", {"command": "stop", "run": 1}], Told(withdrawn=True)),
        ([{"command": "end", "run": 2}], Told()),
        ([{"command": "end", "run": 3}], Told(end=True)),
    ],
)
def test_end_when_commands_meet_in_an_epoch_is_what_the_later_one_says(commands, told):
    assert obeyed(*commands).told == told


def test_end_of_an_earlier_run_counts_when_its_rows_were_given_out():
    assert obeyed({"command": "end", "run": 2}, now=Now(7, 3, 2, given=True)).told.end


def test_stop_that_comes_after_its_run_has_ended_is_refused_with_a_sentence():
    found = obeyed({"command": "stop", "run": 1})
    assert found.refused == {"0": "The stop was given to run 1, which has ended; run 3 goes on."}
    assert not found.open


class Simulated:
    """A flow of a counter of records, and someone who gives commands whenever a run looks."""

    def __init__(self, seed, records=8):
        self.dice = random.Random(seed)
        self.unread, self.read_so_far, self.total = records, 0, records
        self.log, self.epoch, self.run, self.since = [], 0, 0, 0
        self.ends, self.ends_of, self.rollback_pending, self.held = Ends(), 0, False, 0
        self.due = 0  # so many records belong to the input that the run is to read

    def give(self):
        """Perhaps a user's command, or records."""
        if self.dice.random() < 0.25:
            command = self.dice.choice(["drain", "drain", "stop", "load", "hold"])
            if command == "hold":
                self.held = 2
                return
            if command == "stop":
                self.log.append({"command": "stop", "run": self.run})
            else:
                self.log.append({"command": command, "name": "s"} if command == "load" else {"command": command})
        if self.dice.random() < 0.2 and self.total < 30:
            self.unread += 2
            self.total += 2

    def an_epoch(self):
        self.give()
        commands, self.log = [(f"{self.epoch}-{i}", c) for i, c in enumerate(self.log)], []
        decided = decide([(n, decode(c)) for n, c in commands], {}, ("s",), STANDARD, Now(self.epoch, self.run, self.since))
        self.log = [c for n, c in commands if n not in decided.taken]
        if decided.told.drain and not self.ends.draining:
            self.due = self.total
        self.ends = self.ends.after(decided.told, held=self.held > 0)
        self.ends_of = self.run
        took = min(1, self.unread)
        self.unread -= took
        self.read_so_far += took
        self.rollback_pending = bool(decided.load)
        self.epoch += 1
        if self.ends.finished:
            assert self.read_so_far >= self.due

    def where(self):
        mine = self.ends_of >= self.since
        ends = self.ends if mine else Ends(finished=self.ends.finished, draining=self.ends.draining)
        return ends, self.rollback_pending

    def read(self, available):
        there = self.total
        while True:
            ends, rollback_pending = self.where()
            if ends.finished or ends.stopped or rollback_pending or (ends.draining and not available):
                return True
            if available and self.read_so_far >= there and not self.log:
                return True
            if not available and not self.unread and not self.log:
                self.log.append(self.dice.choice([{"command": "drain"}, {"command": "stop", "run": self.run}]))
            self.an_epoch()

    def end(self):
        self.log.append({"command": "end", "run": self.run})

    def copy(self):
        self.held = max(0, self.held - 1)
        if not self.log and not self.unread:
            self.log.append({"command": "tick"})

    def roll_back(self):
        self.run += 1
        self.unread, self.read_so_far, self.due = self.total, 0, self.total
        self.ends, self.ends_of, self.rollback_pending = Ends(), self.run, False

    def start(self, *, bounded, drain):
        self.run += 1
        self.since, self.due = self.run, self.total
        if self.dice.random() < 0.1:
            self.log += [{"command": "drain"}] * self.dice.randrange(2) + [{"command": "stop", "run": self.run - 1}]
        supervise(self, bounded=bounded, drain=drain)


def test_flow_when_commands_come_at_any_time_is_finished_only_by_an_input_that_was_read_to_its_end():
    finished = stopped = 0
    for seed in range(4_000):
        flow = Simulated(seed)
        for _ in range(60):
            bounded, drain = flow.dice.random() < 0.5, flow.dice.random() < 0.5
            flow.start(bounded=bounded, drain=drain)
            ends, _ = flow.where()
            if ends.finished:
                finished += 1
                break
            stopped += ends.stopped
            assert ends.stopped or (bounded and not drain), seed
            if ends.stopped:
                assert not ends.draining, "a stop withdraws a drain"
        else:
            raise AssertionError(f"seed {seed}: never finished")
    assert finished == 4_000
    assert stopped > 1_000


def test_run_when_a_flow_was_draining_in_a_crash_goes_on_draining_however_it_is_started():
    for bounded in (True, False):
        step = next_step(Ends(draining=True), rollback_pending=False, bounded=bounded, drain=False, ended_reading=None)
        assert step is Step.READ_AVAILABLE
        step = next_step(Ends(draining=True), rollback_pending=False, bounded=bounded, drain=False, ended_reading=step)
        assert step is Step.END


def test_run_when_it_goes_back_to_a_snapshot_reads_to_the_end_anew():
    options = {"bounded": True, "drain": True}
    assert next_step(Ends(), rollback_pending=True, ended_reading=Step.READ_AVAILABLE, **options) is Step.GO_BACK
    assert next_step(Ends(), rollback_pending=False, ended_reading=None, **options) is Step.READ_AVAILABLE
    assert next_step(Ends(stopped=True), rollback_pending=True, ended_reading=None, **options) is Step.LEAVE


# ------------------------------------------------------------------------------------------------- what replaced a command


def scale(workers, region=None):
    return {"command": "scale", "region": region, "workers": workers}


def move(worker, keys=(1,), region="k"):
    return {"command": "move", "region": region, "keys": list(keys), "worker": worker}


TWO = {"k": Placement.fresh(2), "sizes": Placement.fresh(2)}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (scale(5), scale(2), "The scale to 5 workers was replaced in epoch 7 by a later command: scale to 2 workers."),
        (scale(5, "k"), scale(1), "The scale to 5 workers of region 'k' was replaced in epoch 7 by a later command: scale to 1 worker."),
        (scale(5), scale(2, "k"), "The scale to 5 workers was replaced in region 'k' in epoch 7 by a later command: scale to 2 workers of region 'k'."),
        (scale(5, "k"), scale(2, "sizes"), None),
        (scale(5), scale(5), None),
        (scale(5), scale(5, "k"), None),
        (scale(5), move(1), None),
        (move(1), move(0), "The move of 1 key of region 'k' to worker 1 was replaced in epoch 7 by a later command: move of 1 key of region 'k' to worker 0."),
        (move(1, (1, 2)), move(None, (2, 3)), "The move of 2 keys of region 'k' to worker 1 was replaced in epoch 7 by a later command: move of 2 keys of region 'k' back to where they belong."),
        (move(1), move(1, (1, 2)), None),
        (move(1), move(0, (2,)), None),
        (move(1), scale(1), "The move of 1 key of region 'k' to worker 1 was replaced in epoch 7 by a later command: scale to 1 worker."),
        (move(0), scale(1), None),
        (move(None), scale(1), None),
        ({"command": "drain"}, {"command": "stop"}, "The drain was replaced in epoch 7 by a later command: stop."),
        ({"command": "drain"}, {"command": "drain"}, None),
        ({"command": "stop"}, {"command": "drain"}, "The stop was replaced in epoch 7 by a later command: drain."),
        ({"command": "drain"}, scale(5), None),
    ],
)  # fmt: skip
def test_command_when_another_takes_its_place_says_which(first, second, said):
    together = obeyed(first, second, controls=dict(TWO))
    before = obeyed(first, now=Now(6), controls=dict(TWO))
    later = obeyed(second, now=Now(7, open={"first": before.open["0"]}), controls=before.controls)
    assert together.replaced == ({"0": said} if said else {})
    assert later.replaced == ({"first": said} if said else {})
    assert set(later.open) == ({"0"} if said else {"first", "0"})


def test_command_when_it_is_carried_out_is_not_open_any_more():
    going = {"k": scaled(Placement.fresh(2), 5, STANDARD, 1), "sizes": Placement.fresh(5)}
    command = Open(decode(scale(5)), ("k", "sizes"))
    kept, given_up = still_open({"a": command}, going, Ends(), 7)
    assert kept == {"a": replace(command, regions=("k",))}, "what has settled is done, and cannot be replaced"
    assert not given_up
    assert still_open({"a": command}, {**going, "k": Placement.fresh(5)}, Ends(), 7) == ({}, {})
    assert still_open({"a": command}, going, Ends(finished=True), 7) == (
        {},
        {"a": "The scale to 5 workers was given up in epoch 7, in which the flow finished."},
    )
