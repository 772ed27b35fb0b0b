"""What the commands say of ends and of commands that meet: a flow in a thread, the command line beside it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import penstock as ps
from penstock import cli
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord, outcome_of
from penstock.driver.commands import Commander
from penstock.protocol.rescale import Limits
from penstock.testing import Harness

STEPS = Limits(first_bytes=50, least_bytes=50, most_bytes=50, measure_entries=20)


class Running:
    """A flow that reads on in a thread; it may be held before its next epoch."""

    def __init__(self, folder, backlog=0):
        self.checkpoint = str(folder / "c")
        self.leave = False
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        flow = ps.Flow("running")
        events = flow.source("events", ps.files("none", "k long"))
        events.key_by("k").stateful_map(lambda k, e, s: ((k, (s or 0) + 1), (s or 0) + 1), "k long, n long").sink(
            ps.memory(self.checkpoint)
        )
        self.harness = Harness(flow, workers=2, checkpoint=self.checkpoint, limits=STEPS, most=1, on_step=self._step)
        self.harness.push("events", [{"k": k} for k in range(50)])
        self.harness.epoch()
        for k in range(backlog):
            self.harness.push("events", [{"k": k}])
        self.thread = threading.Thread(target=self.harness.follow, args=(self._idle,), daemon=True)

    def _step(self, name):
        if name == "decide":
            self.reached.set()
            assert self.gate.wait(60)

    def start_held(self):
        """Start it, and hold it before its next epoch, which has read the commands that there were."""
        self.gate.clear()
        self.reached.clear()
        self.thread.start()
        assert self.reached.wait(60)

    def _idle(self):
        if self.leave:
            Commander(Checkpoint(self.harness.checkpoint)).stop()
        self.harness.push("events", [{"k": 1}])

    def close(self):
        self.leave = True
        self.gate.set()
        if self.thread.is_alive():
            self.thread.join(60)
        self.harness.close()

    def said(self, capsys, *words):
        code = cli.main([*words, "--checkpoint", self.checkpoint])
        shown = capsys.readouterr()
        return code, (shown.out + shown.err).strip()

    def beside(self, *words):
        """A command in another terminal; gives a function that waits for its exit code."""
        codes = []
        told = {*Checkpoint(self.harness.checkpoint).control_names()}
        thread = threading.Thread(target=lambda: codes.append(cli.main([*words, "--checkpoint", self.checkpoint])), daemon=True)
        thread.start()
        while told == {*Checkpoint(self.harness.checkpoint).control_names()}:  # its command is written
            thread.join(0.01)
            assert thread.is_alive(), codes

        def code():
            thread.join(60)
            return codes[0]

        return code


@pytest.fixture
def begun(tmp_path):
    """Makes a flow that is not running yet; it ends with the test."""
    made = []

    def begin(**options):
        made.append(Running(tmp_path, **options))
        return made[-1]

    yield begin
    for running in made:
        running.close()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("scale", "5"), ("scale", "2", "--no-wait"), "The scale to 5 workers was replaced in epoch {} by a later command: scale to 2 workers."),
        (("move", "k", "3", "--worker", "1"), ("move", "k", "3", "--worker", "0", "--no-wait"), "The move of 1 key of region 'k' to worker 1 was replaced in epoch {} by a later command: move of 1 key of region 'k' to worker 0."),
        (("stop", "--drain"), ("stop",), "The drain was replaced in epoch {} by a later command: stop."),
        (("stop",), ("stop", "--drain"), "The stop was replaced in epoch {} by a later command: drain."),
    ],
)  # fmt: skip
def test_command_that_another_replaces_says_so_and_exits_with_one(begun, capsys, first, second, said):
    running = begun(backlog=30)
    running.start_held()
    code = running.beside(*first)
    after = running.beside(*second) if "--no-wait" not in second else None
    if after is None:
        assert running.said(capsys, *second)[0] == 0
    running.gate.set()
    assert code() == 1
    assert after is None or after() == 0
    assert re.search(re.escape(said).replace(r"\{\}", r"\d+"), capsys.readouterr().err)


def test_drain_from_a_terminal_waits_until_all_is_read_and_says_so(begun, capsys):
    running = begun(backlog=40)
    running.start_held()
    code, said = running.said(capsys, "stop", "--drain", "--timeout", "0.1")
    assert (code, said) == (1, "The flow did not end within 0.1 s; the command stays in its log and will be obeyed.")
    waiting = running.beside("stop", "--drain")
    running.gate.set()
    assert waiting() == 0
    assert re.fullmatch(r"Finished after epoch \d+\.\n", capsys.readouterr().out)
    running.thread.join(60)
    assert running.harness.record.sources["events"].rows == 90
    assert running.said(capsys, "stop") == (1, f"The flow of {running.checkpoint} has finished already.")


def test_drain_in_a_terminal_that_draws_shows_how_far_it_is(begun, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
    running = begun(backlog=40)
    running.start_held()
    waiting, drawn = running.beside("stop", "--drain"), ""
    deadline = time.monotonic() + 60
    while "50 rows so far" not in (plain := re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", drawn)):  # those before it
        assert time.monotonic() < deadline, plain
        time.sleep(0.05)
        drawn += capsys.readouterr().err
    running.gate.set()
    assert waiting() == 0
    assert re.fullmatch(r"Finished after epoch \d+\.\n", capsys.readouterr().out)


def test_scale_when_the_flow_finishes_first_says_that_it_was_given_up(begun, capsys):
    running = begun()
    running.start_held()
    drained, scaled = running.beside("stop", "--drain"), running.beside("scale", "5")
    running.gate.set()
    assert (drained(), scaled()) == (0, 1)
    assert re.search(r"The scale to 5 workers was given up in epoch \d+, in which the flow finished\.", capsys.readouterr().err)


@pytest.mark.parametrize("words", [("stop",), ("stop", "--drain"), ("scale", "5")])
def test_command_that_is_no_longer_waited_for_stays_and_says_so(words, begun):
    running = begun()
    running.start_held()
    given = {*Checkpoint(running.checkpoint).control_names()}
    command = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words, "--checkpoint", running.checkpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while given == {*Checkpoint(running.checkpoint).control_names()}:
        assert command.poll() is None
        time.sleep(0.02)
    time.sleep(1)  # it waits now
    command.send_signal(signal.SIGINT)
    said, _ = command.communicate(timeout=60)
    assert said == "No longer waited for; the command stays in the flow's log and is obeyed.\n"
    assert command.returncode == 130
    running.gate.set()
    if words[0] == "stop":
        running.thread.join(60)
        last = Checkpoint(running.checkpoint).last()
        assert (last.stopped, last.finished) == (len(words) == 1, len(words) > 1)
    else:
        until = time.monotonic() + 60
        while next(iter(Checkpoint(running.checkpoint).last().regions.values())).control.workers != 5:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_stop_that_comes_after_its_run_does_not_stop_the_next_one(begun):
    running = begun()
    harness = running.harness
    run = Checkpoint(harness.checkpoint).newest_run()
    late = {"command": "stop", "run": run}
    assert harness.epoch(late).stopped
    harness.restart()
    record = harness.epoch(late)
    assert not record.stopped
    assert [*record.refused.values()] == [f"The stop was given to run {run}, which has ended; run {run + 1} goes on."]


def test_outcome_of_a_start_that_had_nothing_to_read_is_not_that_of_the_stopped_one_before():
    last = EpochRecord(epoch=4, run=2, stopped=True)
    again = "started again on the same checkpoint the flow goes on"
    assert outcome_of(last, 2, before=False, cut=False) == f"The flow stopped after epoch 4; {again}."
    read = outcome_of(last, 3, before=False, cut=False)
    assert read == f"What there was has been read, up to epoch 4; {again} with what has come."
