"""Going back to a snapshot over real Spark: what the sinks hold in the end is what a flow that never goes back gives."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections import Counter

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_live_rescale import SCHEMA, STEPS, Feeder, batches, counted

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import DeclarationError

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _local_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))


def flow_of(folder, out):
    """Upserts into SQLite, appends to Parquet and to memory."""
    flow = ps.Flow("back")
    source = ps.files(str(folder), "k string, at timestamp, v long", max_files_per_epoch=1)
    keyed = flow.source("events", source, time="at", lateness="4 seconds").key_by("k")
    keyed.stateful_map(counted, "k string, n long, v long").sink(ps.parquet(out / "counted"), name="counted")
    windows = keyed.window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    windows.sink(ps.sql(f"sqlite:///{out}/out.db", "windows", mode="upsert", key=["k", "window_start"]), name="windows")
    windows.sink(ps.memory(str(out)), name="memory")
    return flow


def content(out):
    with sqlite3.connect(out / "out.db") as db:
        windows = Counter(db.execute("SELECT k, n, total FROM windows").fetchall())
    return {
        "counted": fr.multiset(pq.read_table(out / "counted").to_pylist()),
        "windows": windows,
        "memory": fr.multiset(ps.memory(str(out)).rows()),
    }


def wanted(tmp_path, files):
    out = tmp_path / "wanted"
    out.mkdir()
    with ps.testing.Harness(flow_of(tmp_path / "in", out)) as harness:
        for rows in files:
            harness.push("events", pa.Table.from_pylist(rows, schema=SCHEMA))
            harness.epoch()
        harness.finish()
    return content(out)


def wait_for(condition, run):
    until = time.monotonic() + 600
    while not condition():
        assert run.active, run.exception
        assert time.monotonic() < until, run.progress
        time.sleep(0.05)


@pytest.mark.soak
def test_rows_when_a_flow_goes_back_twice_under_load_are_those_of_one_that_never_does(spark, tmp_path):
    files = batches(24, seed=3, per_file=60)
    out, checkpoint = tmp_path / "out", str(tmp_path / "checkpoint")
    out.mkdir()
    with Feeder(tmp_path / "in", files) as feeder:
        run = flow_of(tmp_path / "in", out).start(
            spark, checkpoint=checkpoint, workers=2, trigger="0 seconds", step_budget=STEPS
        )
        feeder.taken = lambda: run.progress["sources"].get("events", {}).get("files", -1)
        files_read = lambda: run.progress["sources"]["events"]["files"]  # noqa: E731
        wait_for(lambda: run.progress["epoch"] >= 1, run)
        rescale = run.scale("k", 4)
        assert run.snapshot("moving").wait(60)
        taken = Checkpoint(checkpoint).read_snapshot("moving")
        assert taken.regions["k"].control.goal is not None
        with pytest.raises(DeclarationError, match=r"^There is no snapshot 'nope'; there are moving\.$"):
            run.load("nope")
        wait_for(lambda: files_read() >= 14, run)  # past a compaction of Spark's log of files
        assert rescale.wait(60)
        assert run.load("moving").wait(60)
        assert run.progress["rolled_back"][0]["to"] == taken.epoch
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "status", "--checkpoint", checkpoint], capture_output=True, text=True, check=True
        )
        assert "went back to snapshot moving: epochs" in done.stdout
        assert run.scale("k", 3).wait(60)
        assert run.snapshot("three").wait(60)
        wait_for(lambda: feeder.written == len(files) and files_read() == len(files), run)
        back = [sys.executable, "-m", "penstock", "load", "three", "--checkpoint", checkpoint]
        told = subprocess.run(back, capture_output=True, text=True, check=True, timeout=600)
        assert told.stdout.startswith("Went back to snapshot three after epoch "), told
        assert [b["snapshot"] for b in run.progress["rolled_back"]] == ["moving", "three"]
        folders = [p.name for p in (tmp_path / "checkpoint").glob("spark*")]
        assert folders == [Checkpoint(checkpoint).last().log]
        run.shutdown(drain=True, timeout=600)
    found, right = content(out), wanted(tmp_path, files)
    for name, rows in right.items():
        assert found[name] == rows, (name, rows - found[name], found[name] - rows)
