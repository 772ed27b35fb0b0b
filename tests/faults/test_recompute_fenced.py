"""A driver that sleeps while another computes the state anew: once it wakes up it stores nothing, in sinks or checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import children
import killed_flow
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

CASES = [("commit", "checkpoint"), ("compute totals", "checkpoint"), ("computed matches", "another"), ("commit", "another")]


@pytest.mark.parametrize(("step", "where"), [CASES[0], *(pytest.param(*c, marks=pytest.mark.soak) for c in CASES[1:])])
def test_driver_when_it_wakes_up_after_a_recomputation_is_fenced_and_stores_nothing(spark, tmp_path, monkeypatch, step, where):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    data, old, new = killed_flow.records(3, 4), tmp_path / "checkpoint", tmp_path / where
    urls = killed_flow.urls_in(tmp_path, f"sqlite:///{tmp_path}/second.db")
    killed_flow.write_files(tmp_path / "in", data)
    options = {"folder": str(tmp_path / "in"), "checkpoint": str(old), "urls": urls, "sleep_at": (step, 2)}
    process, err = children.start("failing_flow.py", options, tmp_path, PENSTOCK_LOCAL_DIR=str(tmp_path / "local"))
    try:
        _until(lambda: _state(process.pid) == "T" or process.poll() is not None)
        assert process.poll() is None, err.read_text()
        if new == old:
            shutil.rmtree(old)  # the checkpoint is lost, and its place is taken by another
        flow = killed_flow.flow_of(tmp_path / "in", killed_flow.sinks_in(urls), max_files=3)
        run = flow.start(spark, checkpoint=str(new), workers=2, trigger="available_now", recover="recompute")
        assert run.await_termination(300)
        assert run.recovery["partitions"]["events"]["end"] == (1 if step == "compute totals" else 2)
        assert killed_flow.content(urls) == killed_flow.expected(data)
        kept = _records(new)
        os.killpg(process.pid, signal.SIGCONT)
        ended = children.wait(process, err)
        assert ended.code != 0
        assert "FencedError: " in ended.out, ended
        assert killed_flow.content(urls) == killed_flow.expected(data)
        assert _records(new) == kept
    finally:
        children.end_group(process)


def _records(checkpoint):
    """The epoch records, and the runs, with what they say."""
    return {p.name: p.read_bytes() for name in ("epochs", "runs") for p in sorted(Path(checkpoint, name).iterdir())}


def _until(true):
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
