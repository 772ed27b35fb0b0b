"""A start knows how the run before ended, and says what it does about it."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from changing import Reader

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import progress_of
from penstock.driver.compile import compile_flow
from penstock.driver.inspect import read_progress
from penstock.driver.last_end import how_it_ended, runs_here
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.run import Run
from penstock.errors import FencedError, OperatorError, PenstockError
from penstock.protocol.rescale import STANDARD
from penstock.serve.terminal import status_lines
from penstock.testing import Crash, Harness
from penstock.testing.engine import LocalEngine
from penstock.types import OFFSET, PARTITION

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
WHO = r"Run {} \(process \d+ on here, started [-0-9]+ [:0-9]+ UTC\) "
HERE = {"host": "here", "pid": os.getpid(), "boot": "b", "process": "p"}


def doubled(key, event, state):
    if event.v < 0:
        raise ValueError("negative")
    return (key, 2 * event.v), None


def flow_of(folder):
    flow = ps.Flow("ended")
    flow.source("s", Reader(SCHEMA)).key_by("k").stateful_map(doubled, "k string, v long").sink(
        ps.sql(f"sqlite:///{folder / 'out.db'}", "out"), name="out"
    )
    return flow


class Started:
    """A run in this process, as `Flow.start` makes one over Spark."""

    def __init__(self, folder, values=(), *, by=HERE, bounded=True, drain=False, on_step=lambda _: None):
        checkpoint = Checkpoint(str(folder / "c"))
        plan = flow_of(folder).plan()
        self.engine = LocalEngine(checkpoint, lmdb=False, most=None)
        self.engine.by, self.engine.now_us = by, 1_700_000_000_000_000
        self.offset = 1000 * checkpoint.newest_run()
        self.give(values)
        compiled = compile_flow(plan, lambda node, _: node.schema, lambda *_: None)
        opener = RunOpener(compiled, checkpoint, self.engine, {"k": 1}, STANDARD, on_step)
        self.run = Run(Loop(opener), lambda _: None, bounded=bounded, drain=drain)

    def give(self, values):
        if not values:
            return
        n = len(values)
        columns = {"k": ["a"] * n, "v": [*values], PARTITION: [0] * n, OFFSET: [*range(self.offset, self.offset + n)]}
        self.offset += n
        self.engine.pending.setdefault("s", []).append(pa.table(columns))


def ended(folder, values=(), **options):
    run = Started(folder, values, **options).run
    run.await_termination()
    return run


def forget_end(folder, run=1):
    """As if the process had been killed."""
    Path(folder, "c", "runs", f"{run:06d}.end").unlink()


def test_run_when_it_ended_cleanly_is_not_spoken_of(tmp_path):
    assert ended(tmp_path, [1]).last_end == ""
    assert ended(tmp_path, [2]).last_end == ""  # what there was has been read
    assert ended(tmp_path, [3], drain=True).last_end == ""
    assert ended(tmp_path).last_end == ""  # finished
    assert ended(tmp_path).last_end == ""  # nothing to do


def test_run_when_it_was_stopped_ended_cleanly(tmp_path):
    started = Started(tmp_path, [1], bounded=False)
    idle = threading.Event()
    started.engine.idle = lambda: idle.wait(0.01)
    assert started.run.shutdown(drain=False)
    assert ended(tmp_path).last_end == ""


@pytest.mark.parametrize(
    "do",
    [
        lambda run: run.scale("k", 2),
        lambda run: run.snapshot("s"),
        lambda run: run.shutdown(drain=False, timeout=1),
        lambda run: run.leave(1),
        lambda run: run.await_termination(1),
        lambda run: run.abandon(),
    ],
)
def test_run_in_a_process_that_was_forked_from_its_own_is_refused_and_goes_on(do, tmp_path):
    started = Started(tmp_path, [1], bounded=False)
    idle = threading.Event()
    started.engine.idle = lambda: idle.wait(0.01)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            do(started.run)
        except PenstockError as error:
            os.write(write, str(error).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)  # without what Python does at its end
    os.waitpid(child, 0)
    os.close(write)
    assert (
        os.read(read, 1000).decode().startswith(f"Flow 'ended' runs in process {os.getpid()}, from which this one was forked")
    )
    os.close(read)
    assert started.run.shutdown(drain=False)
    assert ended(tmp_path).last_end == ""


@pytest.mark.parametrize("last_step", range(12))
def test_run_when_it_crashed_before_any_step_is_spoken_of_and_what_is_run_again(tmp_path, last_step):
    left = [-1]  # all of the first epoch

    def before(_):
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    harness = Harness(flow_of(tmp_path), on_step=before)
    harness.push("s", [{"k": "a", "v": 1}])
    harness.epoch()
    left[0] = last_step + 1
    harness.push("s", [{"k": "a", "v": 2}])
    crashed = False
    try:
        harness.epoch()
    except Crash:
        crashed = True
    harness.restart()
    if harness.record.epoch == 0:
        assert harness.last_end.endswith(" did not end cleanly. Epoch 1 is run again from the same input.")
    else:
        assert harness.last_end.endswith(" did not end cleanly. No epoch was open; the flow goes on after epoch 1.")
    assert crashed or last_step > 5


def test_run_when_it_failed_is_spoken_of_with_its_error(tmp_path):
    with pytest.raises(OperatorError):
        ended(tmp_path, [1, -1])
    with pytest.raises(OperatorError):
        ended(tmp_path, [-1])
    run = ended(tmp_path, [1])
    failed = (
        WHO.format(2)
        + r"did not end cleanly: stateful_map\(doubled\) of region 'k' failed on key 'a' .*negative.* The flow begins\."
    )
    assert re.fullmatch(failed, run.last_end)


def test_run_when_it_cannot_be_opened_is_spoken_of_with_its_error(tmp_path):
    ended(tmp_path, [1])
    (tmp_path / "out.db").rename(tmp_path / "away.db")
    with pytest.raises(PenstockError, match="restore"):
        ended(tmp_path)
    (tmp_path / "out.db").unlink()
    (tmp_path / "away.db").rename(tmp_path / "out.db")
    assert "Run 2 (process" in (found := ended(tmp_path).last_end)
    assert "holds nothing; restore" in found
    assert found.endswith("No epoch was open; the flow goes on after epoch 0.")


def test_run_when_its_process_is_gone_the_machine_was_started_anew_or_it_still_runs_says_so(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    gone = {**HERE, "pid": child.pid, "process": "q"}
    said = {}
    for name, by in (
        ("gone", gone),
        ("elsewhere", {**gone, "host": "there"}),
        ("earlier", {**HERE, "boot": "a"}),
        ("runs", HERE),
    ):
        ended(tmp_path, [1], by=by)
        run = Checkpoint(str(tmp_path / "c")).newest_run()
        forget_end(tmp_path, run)
        said[name] = ended(tmp_path).last_end.partition(" UTC) ")[2].partition(" No epoch")[0]
    assert said == {
        "gone": "did not end cleanly.",
        "elsewhere": "did not end cleanly.",
        "earlier": "did not end cleanly: the machine was started anew meanwhile.",
        "runs": "still runs; this run replaces it, and it can store nothing from now on.",
    }


def test_process_when_its_number_was_given_anew_is_not_taken_for_the_run():
    assert not runs_here({**HERE, "process": "another, before"}, HERE)
    assert runs_here({**HERE, "pid": os.getppid(), "process": "another, beside"}, HERE)
    assert not runs_here({"host": "here", "pid": os.getpid()}, HERE)  # of the version before


def test_run_of_the_version_before_is_not_spoken_of(tmp_path):
    ended(tmp_path, [1])
    forget_end(tmp_path)
    path = tmp_path / "c" / "runs" / "000001.json"
    about = json.loads(path.read_text())
    del about["notes_end"]
    path.write_text(json.dumps(about))
    assert ended(tmp_path).last_end == ""


def test_run_when_it_was_replaced_writes_no_end(tmp_path):
    first = Started(tmp_path, [1], bounded=False)
    go = threading.Event()
    first.engine.idle = lambda: go.wait(0.01) and first.give([2])
    second = ended(tmp_path)
    assert "still runs; this run replaces it" in second.last_end
    go.set()
    with pytest.raises(FencedError):
        first.run.await_termination(30)
    checkpoint = Checkpoint(str(tmp_path / "c"))
    assert checkpoint.end_of(1) is None
    assert checkpoint.end_of(2) is not None


def test_end_when_many_runs_followed_is_removed_with_its_run(tmp_path):
    for _ in range(11):
        ended(tmp_path)
    names = sorted(path.name for path in (tmp_path / "c" / "runs").iterdir())
    assert [n for n in names if n.endswith(".end")] == [n.replace(".json", ".end") for n in names if n.endswith(".json")]


def test_status_says_how_the_last_run_ended(tmp_path):
    def lines(alive):
        record, about = read_progress(str(tmp_path / "c"))
        return status_lines(progress_of(record), about, alive=alive, now=dt.datetime.now(dt.UTC))

    ended(tmp_path, [1])
    assert lines(False)[1].startswith("run 1 ended 2023-11-14 22:13:2")
    assert "What there was has been read, up to epoch 0" in lines(False)[1]
    with pytest.raises(OperatorError):
        ended(tmp_path, [-1])
    assert "failed on key 'a'" in lines(False)[1]
    forget_end(tmp_path, 2)
    assert lines(False)[1] == "run 2 did not end cleanly; the next start says what is run again"
    assert not any("ended" in line or "end cleanly" in line for line in lines(True)[1:])


def test_end_when_the_version_before_wrote_none_is_not_spoken_of():
    assert how_it_ended({"run": 1}, alive=False) == ""


def test_start_that_computes_state_anew_says_so(tmp_path):
    def flow(schema, fn):
        made = ps.Flow("ended")
        out = ps.sql(f"sqlite:///{tmp_path / 'out.db'}", "out")
        made.source("s", Reader(SCHEMA)).key_by("k").stateful_map(fn, "k string, n long", state=schema).sink(out, name="out")
        return made

    def counted(key, event, state):
        return (key, event.v), (event.v,)

    with Harness(flow("v long", counted), checkpoint=str(tmp_path / "c")) as harness:
        harness.push("s", [{"k": "a", "v": 1}])
        harness.epoch()
    changed = flow("v string", lambda key, event, state: ((key, event.v), (str(event.v),)))
    with Harness(changed, checkpoint=str(tmp_path / "c"), recover="recompute") as harness:
        assert harness.last_end.endswith(" did not end cleanly. State is computed anew from the log.")
