"""A flow that runs in one terminal and is looked at, scaled and stopped from another: `run`, `status`, `state`, `stop`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import progress_of

pytestmark = pytest.mark.spark

KEYS, BODY = 2_000, 4_000
APP = f"""
import penstock as ps


def remember(key, event, state):
    n = state[0] + 1 if state else 1
    return (key, n), (n, "x" * {BODY})


def made():
    flow = ps.Flow("terminal")
    events = flow.source("events", ps.files("in", "k string, at timestamp"), time="at")
    events.key_by("k").stateful_map(remember, "k string, n long", state="n long, body string").sink(ps.sql("sqlite:///out.db", "t"))
    return flow
"""


class Terminal:
    """Runs the command in a folder."""

    def __init__(self, folder):
        self.folder = folder
        source = str(Path(penstock.__file__).parent.parent)
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PENSTOCK_LOCAL_DIR": str(folder / "local"),
        }

    def start(self, *words):
        command = [sys.executable, "-m", "penstock", *words, "--checkpoint", "ckpt"]
        with (self.folder / "run.txt").open("wb") as said:
            return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=said, stderr=said, start_new_session=True)

    def said(self, *words, code=0):
        command = [sys.executable, "-m", "penstock", *words, "--checkpoint", "ckpt"]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == code, done
        return (done.stdout + done.stderr).strip()


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "in").mkdir()
    names = [f"k{i:04d}" for i in range(KEYS)]
    times = pa.array([0] * KEYS + [1_000_000], pa.timestamp("us", "UTC"))  # the last one waits for the frontier
    pq.write_table(pa.table({"k": [*names, "waits"], "at": times}), tmp_path / "in" / "0.parquet")
    (tmp_path / "app.py").write_text(APP)
    return Terminal(tmp_path)


def frozen_in_a_move(running, checkpoint):
    """Put the process to sleep when a part of the state has moved; gives the region's figures."""

    def figures():
        region = progress_of(checkpoint.last())["regions"]["k"]
        told = region.get("rescale", {})
        return told if region["phase"] == "move" and told["moved_bins"] and told["bins_left"] else None

    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if figures():
            os.killpg(running.pid, signal.SIGSTOP)
            time.sleep(0.1)
            if found := figures():
                return found
            os.killpg(running.pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("no rescale was under way")


def test_flow_of_a_file_when_it_is_run_scaled_looked_at_and_stopped_from_terminals_tells_what_it_does(terminal, tmp_path):
    checkpoint = Checkpoint(str(tmp_path / "ckpt"))
    running = terminal.start("run", "app.py:made", "--workers", "2", "--trigger", "100 milliseconds", "--master", "local[2]")
    try:
        deadline = time.monotonic() + 600
        while checkpoint.last().epoch < 0:
            assert running.poll() is None, (tmp_path / "run.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert terminal.said("scale", "5", "--region", "k", "--no-wait") == ""
        told = frozen_in_a_move(running, checkpoint)
        lines = terminal.said("status").splitlines()
        assert lines[0] == f"flow terminal: running (run 1, process {running.pid} on {os.uname().nodename})"
        assert lines[1] == f"source events: {KEYS + 1:,} rows"
        done, left = told["moved_bins"], told["bins_left"]
        shown = rf"region k: move to 5 workers, {done:,} of {done + left:,} bins, {told['moved_keys']:,} keys? moved, [\d.]+ [KM]iB, about \d+ s left"
        assert re.fullmatch(shown, lines[2])
        assert lines[3] == "region k: KeyGrouping()"
        title = " ".join(" ".join(lines[4:6]).split())  # it is as wide as its table
        assert re.match(r"epoch \d+ · .* · 2,001 rows so far · [\d,]+ ms", title)
        assert lines[-1].split()[:2] == ["k", str(checkpoint.last().regions["k"].workers)]
        assert json.loads(terminal.said("status", "--json"))["regions"]["k"]["rescale"] == told
        os.killpg(running.pid, signal.SIGCONT)
        while checkpoint.last().regions["k"].control.goal is not None:
            assert running.poll() is None, (tmp_path / "run.txt").read_text()
            time.sleep(0.1)

        rows = [json.loads(line) for line in terminal.said("state", "k", "--limit", "0", "--json").splitlines()]
        assert sorted(r["k"] for r in rows) == [f"k{i:04d}" for i in range(KEYS)]
        assert {r["worker"] for r in rows} == set(range(5))
        assert {json.dumps(json.loads(r["state"])) for r in rows} == {json.dumps({"n": 1, "body": "x" * BODY})}
        assert len(terminal.said("state", "k", "--limit", "3", "--json").splitlines()) == 3
        assert "has no state of region 'x'; it has k." in terminal.said("state", "x", code=1)

        assert re.fullmatch(r"Stopped after epoch \d+\.", terminal.said("stop"))
        assert running.wait(60) == 0, (tmp_path / "run.txt").read_text()
        lines = terminal.said("status").splitlines()
        assert lines[0].startswith("flow terminal: not running (run 1,")
        assert re.match(r"run 1 ended .* UTC: The flow stopped after epoch \d+; started again", lines[1])
        assert "is not running: process" in terminal.said("stop", code=1)
    finally:
        for sent in (signal.SIGCONT, signal.SIGKILL):
            if running.poll() is None:
                os.killpg(running.pid, sent)
        running.wait(30)


def test_run_when_a_function_raises_says_so_in_one_sentence_and_with_debug_at_length(terminal):
    broken = APP.replace("    n = state[0]", "    1 / 0\n    n = state[0]")
    (terminal.folder / "app.py").write_text(broken)
    words = ("run", "app.py:made", "--trigger", "available_now", "--master", "local[1]")
    said = terminal.said(*words, code=1)
    last = said.splitlines()[-1]  # PySpark's own daemon may say before that the JVM is gone
    assert last.startswith("stateful_map(remember) of region 'k' failed on key 'k"), said
    assert "ZeroDivisionError: division by zero" in last
    assert said.count("ZeroDivisionError") == 1
    assert "spark ERROR" not in said
    assert "Traceback" in terminal.said("--debug", *words, code=1)


DRAINED = """
import penstock as ps


def made():
    flow = ps.Flow("interrupted")
    events = flow.source("events", ps.files("in", "k string, v long", max_files_per_epoch=1))
    events.key_by("k").stateful_map(lambda k, e, s: ((k, e.v), None), "k string, v long").sink(ps.sql("sqlite:///out.db", "t"))
    return flow
"""


@pytest.mark.slow
def test_run_that_is_interrupted_with_control_c_during_a_drain_is_resumed_and_reads_all_files(terminal, tmp_path):
    checkpoint = Checkpoint(str(tmp_path / "ckpt"))
    (tmp_path / "app.py").write_text(DRAINED)
    for old in (tmp_path / "in").iterdir():
        old.unlink()
    for i in range(12):
        pq.write_table(pa.table({"k": ["a", "b"], "v": [2 * i, 2 * i + 1]}), tmp_path / "in" / f"{i}.parquet")
    words = ("run", "app.py:made", "--trigger", "available_now", "--master", "local[1]", "--workers", "1")
    running = terminal.start(*words)
    try:
        deadline = time.monotonic() + 600
        while checkpoint.last().epoch < 2:
            assert running.poll() is None, (tmp_path / "run.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        running.wait(120)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    said = (tmp_path / "run.txt").read_text()
    assert re.search(r"The flow stopped after epoch \d+; started again on the same checkpoint the flow goes on\.", said), said
    last = checkpoint.last()
    assert (last.finished, last.stopped) == (False, True)
    assert last.sources["events"].rows < 24, "the test wants files to be left"
    assert "its input was read to the end." in terminal.said(*words)
    with sqlite3.connect(tmp_path / "out.db") as db:
        assert sorted(v for (v,) in db.execute("SELECT v FROM t")) == [*range(24)]


def test_changed_flow_when_it_is_run_is_refused_in_a_sentence_or_says_what_is_forgotten(terminal, tmp_path):
    words = ("run", "app.py:made", "--trigger", "available_now", "--master", "local[2]")
    terminal.said(*words, "--no-drain")
    verdicts = json.loads(terminal.said("diff", "app.py:made", "--json"))["verdicts"]
    assert {v["verdict"] for v in verdicts} == {"unchanged"}, verdicts
    changed = APP.replace('.key_by("k").stateful_map(', '.key_by("k", name="users").stateful_map(')
    (tmp_path / "app.py").write_text(changed)
    refused = terminal.said(*words, code=1)
    assert (
        "State of region 'k' of checkpoint ckpt cannot be taken over: the flow no longer has that region; declare it as before"
        in refused
    )
    assert "Traceback" not in refused
    said = terminal.said(*words, "--forget", "k")
    assert "Region 'users' is new and starts empty.\nRegion 'k' is forgotten." in said
    rows = sqlite3.connect(tmp_path / "out.db").execute("SELECT count(*), max(n) FROM t").fetchone()
    assert rows == (KEYS + 1 - 1, 1)  # that which waited was in the region that is forgotten


SHOWN = """
import penstock as ps


def made():
    flow = ps.Flow("shown")
    events = flow.source("events", ps.files("in", "k string, at timestamp, v long", max_files_per_epoch=1), time="at")
    events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(total=ps.sum("v")).sink(ps.sql("sqlite:///out.db", "t"), name="totals")
    events.sink(ps.foreach_epoch(show), name="screen")
    return flow


def show(table, epoch):
    with open("screen", "a") as file:
        file.writelines(f"{v}\\n" for v in table.column("v").to_pylist())
"""


@pytest.mark.soak  # in this process in test_replay_output_typed
def test_run_that_recomputes_gives_an_output_without_a_mark_what_was_typed(terminal, tmp_path):
    (tmp_path / "app.py").write_text(SHOWN)
    (tmp_path / "in" / "0.parquet").unlink()

    def file(number):
        at = pa.array([1_000_000 * v for v in range(20 * number, 20 * number + 20)], pa.timestamp("us", "UTC"))
        rows = {"k": ["a"] * 20, "at": at, "v": [*range(20 * number, 20 * number + 20)]}
        pq.write_table(pa.table(rows), tmp_path / "in" / f"{number}.parquet")

    words = ("run", "app.py:made", "--trigger", "available_now", "--master", "local[1]", "--workers", "1")
    for number in range(4):
        file(number)
        os.utime(tmp_path / "in" / f"{number}.parquet", (1_000 + number,) * 2)
    terminal.said(*words, "--no-drain")
    assert [*map(int, (tmp_path / "screen").read_text().split())] == [*range(80)]
    shutil.rmtree(tmp_path / "ckpt")
    (tmp_path / "screen").unlink()
    file(4)
    again = (*words, "--recover", "recompute")
    assert "which does not remember what it was given" in terminal.said(*again, code=1)
    said = terminal.said(*again, "--replay-output", "sceen=", code=1)
    assert said.splitlines()[-1].startswith("replay_outputs (--replay-output) names 'sceen', which is no output of the flow"), (
        said
    )
    assert not (tmp_path / "screen").exists()
    assert "State is computed anew from the log: " in terminal.said(*again, "--replay-output", "screen=totals")
    assert [*map(int, (tmp_path / "screen").read_text().split())] == [*range(80, 100)]
    with sqlite3.connect(tmp_path / "out.db") as db:
        totals = [t for (t,) in db.execute("SELECT total FROM t ORDER BY window_start")]
    assert totals == [sum(range(at, at + 10)) for at in range(0, 100, 10)]
