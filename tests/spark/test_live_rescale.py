"""Live rescaling over real Spark: what the sinks hold is what a flow that never rescales gives."""

from __future__ import annotations

import datetime as dt
import random
import subprocess
import sys
import threading
import time

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.commands import Commander
from penstock.errors import CheckpointError, DeclarationError, FinishedError, ReplacedError
from penstock.protocol.commands import Tick
from penstock.protocol.rescale import Limits
from penstock.spark import run as spark_run

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
STEPS = Limits(first_bytes=10_000, least_bytes=10_000, most_bytes=40_000, hold_bytes=80_000, measure_entries=1_000)


@pytest.fixture(autouse=True)
def _local_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))


def counted(key, event, state):
    n, body = state or (0, b"")
    size = 1_000_000 if key in LARGE else 8
    return (key, n + 1, event.v), (n + 1, body or bytes(size))


LARGE = ("hot0",)


def flow_of(folder, out):
    flow = ps.Flow("live")
    source = ps.files(str(folder), "k string, at timestamp, v long", max_files_per_epoch=1)
    events = flow.source("events", source, time="at", lateness="4 seconds")
    keyed = events.key_by("k")
    keyed.stateful_map(counted, "k string, n long, v long").sink(out("counted"), name="counted")
    windows = keyed.window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    windows.sink(out("windows"), name="windows")
    windows.local().key_by("n", name="sizes").aggregate(windows=ps.count()).sink(out("sizes"), name="sizes")
    return flow


def batches(n, seed=4, per_file=400):
    """Records by file; two hot keys take a third of them, and new keys keep coming."""
    dice = random.Random(seed)
    return [
        [
            {
                "k": dice.choice(["hot0", "hot1", f"k{dice.randrange(300)}", f"k{dice.randrange(300)}", f"new{i}-{j}", None]),
                "at": fr.BEGIN + dt.timedelta(seconds=i + dice.uniform(0, 5)),
                "v": dice.randrange(1000),
            }
            for j in range(per_file)
        ]
        for i in range(n)
    ]


class Feeder:
    """Writes files one by one, whenever the flow has taken the last few, until it is told to stop or there are no more."""

    def __init__(self, folder, files):
        self.folder, self.files, self.written = folder, files, 0
        folder.mkdir()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.taken = lambda: 0

    def _run(self):
        for i, rows in enumerate(self.files):
            while i - self.taken() > 3 and not self._done.wait(0.02):
                pass
            if self._done.is_set():
                return
            hidden = self.folder / f".{i:04d}"
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), hidden)
            fr.stamp(hidden, i)  # files that are written at the same moment have no order
            hidden.rename(self.folder / f"{i:04d}.parquet")
            self.written = i + 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Write no more. Gives the files there are."""
        self._done.set()
        self._thread.join()
        return self.files[: self.written]


def wanted(folder, files):
    sinks = fr.Sinks()
    with ps.testing.Harness(flow_of(folder, sinks)) as harness:
        for rows in files:
            harness.push("events", pa.Table.from_pylist(rows, schema=SCHEMA))
            harness.epoch()
        harness.finish()
    return sinks.content()


def live(spark, tmp_path, files, steer, *, stop=False, **options):
    """Run under load, with `steer(run)` from this thread, to the end of the input, or (`stop`) until that is done."""
    sinks = fr.Sinks()
    with Feeder(tmp_path / "in", files) as feeder:
        checkpoint = str(tmp_path / "checkpoint")
        options = {"checkpoint": checkpoint, "workers": 1, "trigger": "0 seconds", "step_budget": STEPS, **options}
        run = flow_of(tmp_path / "in", sinks).start(spark, **options)
        feeder.taken = lambda: run.progress.get("epoch", -1)
        steer(run)
        while feeder.written < len(files) and not stop:
            assert run.active, run.exception
            time.sleep(0.05)
        files = feeder.stop()
    run.shutdown(drain=True, timeout=600)
    return sinks.content(), run, files


@pytest.mark.slow
def test_rows_when_a_flow_goes_1_2_5_3_1_under_load_are_those_of_one_that_never_does(spark, tmp_path):
    files, seen, rows = batches(300, per_file=200), [], []

    def steer(run):
        for workers in (2, 5, 3, 1):
            asked, rows_before = run.scale("k", workers), run.progress["sources"]["events"]["rows"]
            assert asked.wait(300)
            seen.append((run.regions["k"]["workers"], len(set(run.routing("k")))))
            rows.append(run.progress["sources"]["events"]["rows"] - rows_before)

    found, run, files = live(spark, tmp_path, files, steer, stop=True)
    assert seen == [(2, 2), (5, 5), (3, 3), (1, 1)]
    assert len(files) < 300, "the input ended before the rescales did"
    assert min(rows) >= 3 * 200, "a rescale saw no load"
    assert not fr.difference(found, wanted(tmp_path / "in", files))
    assert not [n for n in (tmp_path / "local").glob("*/k/[1-9]") if (n / "data.mdb").exists()], "a removed worker left state"
    with pytest.raises(FinishedError, match=r"has finished and takes no further commands \(scale\)"):
        run.scale("k", 2)


def test_rows_when_all_regions_scale_at_once_and_are_retargeted_and_keys_moved_are_right(spark, tmp_path):
    files = batches(12, seed=8)

    def steer(run):
        first = run.scale(workers=6)
        second = run.scale(workers=3)  # while the first is under way
        moved = run.move("k", ["hot1", None], worker=2)
        with pytest.raises(
            ReplacedError, match=r"^The scale to 6 workers was replaced in epoch \d+ by a later command: scale to 3 workers\.$"
        ):
            first.wait(300)
        assert second.wait(300)
        assert moved.wait(300)
        assert run.snapshot("middle").wait(60)
        with pytest.raises(DeclarationError, match="There is a snapshot 'middle' already"):
            run.snapshot("middle")
        with pytest.raises(DeclarationError, match="There is no region 'x' to scale; there are k, sizes"):
            run.scale("x", 2)
        with pytest.raises(DeclarationError, match="has no worker 7; it has workers 0 to 2"):
            run.move("k", ["a"], worker=7)
        held = ps.read_state(spark, str(tmp_path / "checkpoint"), "k", snapshot="middle")
        where = {r["k"]: r["worker"] for r in held.where("k is null or k like 'hot%'").collect()}
        assert where["hot1"] == where[None] == 2

    found, run, _ = live(spark, tmp_path, files, steer, workers=2)
    assert {n: r["workers"] for n, r in run.regions.items()} == {"k": 3, "sizes": 3}
    assert not fr.difference(found, wanted(tmp_path / "in", files))


def described(spark):
    """What the jobs that Spark remembers were for."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    said = [jobs.apply(i).description() for i in range(jobs.size())]
    return {what.get() for what in said if what.isDefined()}


def test_large_key_when_it_moves_is_copied_by_a_job_beside_the_epochs(spark, tmp_path, monkeypatch):
    files, held, copied, runs, before = batches(10, seed=2), {}, [], [], described(spark)
    copy = spark_run.copy_on_executor

    def slowly(*what):
        """The job as it is, but it ends only when two more epochs have: if epochs waited for it, it would never end."""
        since, until = runs[0].progress["epoch"], time.monotonic() + 600
        while runs[0].progress["epoch"] < since + 2 and time.monotonic() < until:
            time.sleep(0.02)
        copied.append(runs[0].progress["epoch"] - since)
        return copy(*what)

    monkeypatch.setattr(spark_run, "copy_on_executor", slowly)

    def steer(run):
        runs.append(run)
        asked = run.move("k", ["hot0"], worker=1)
        while not asked.wait(0.02):
            record = Checkpoint(str(tmp_path / "checkpoint")).last()
            if record.epoch >= 0 and record.regions["k"].control.held:
                held[record.epoch] = record.regions["k"].frontier
        assert run.move("k", ["hot0"], worker=0).wait(300)

    found, _, _ = live(spark, tmp_path, files, steer, workers=2)
    assert len(copied) == 2
    said = [what for what in described(spark) - before if what.endswith("copy of a key on hold")]
    assert said == ["live · region k · copy of a key on hold"]
    assert min(copied) >= 2, "epochs stood still while the key was on hold"
    assert len(held) >= 2
    assert len(set(held.values())) >= 2, "the region's other keys were not processed meanwhile"
    assert not fr.difference(found, wanted(tmp_path / "in", files))


def test_commands_from_another_terminal_when_a_flow_runs_are_obeyed(spark, tmp_path):
    files = batches(8, seed=6)
    said = []

    def tell(*words):
        command = [sys.executable, "-m", "penstock", *words, "--checkpoint", str(tmp_path / "checkpoint")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        said.append((done.returncode, (done.stdout + done.stderr).strip()))

    def steer(run):
        while run.progress["epoch"] < 2:
            time.sleep(0.05)
        tell("scale", "3", "--region", "k")
        tell("move", "k", "hot1", "--worker", "2")
        tell("snapshot", "now")
        tell("scale", "3", "--region", "nobody")
        tell("status")
        assert run.regions["k"]["workers"] == 3

    found, _, _ = live(spark, tmp_path, files, steer)
    assert [code for code, _ in said] == [0, 0, 0, 1, 0], said
    assert said[0][1].startswith("Scaled to 3 workers after epoch")
    assert said[3][1] == "There is no region 'nobody' to scale; there are k, sizes."
    assert Checkpoint(str(tmp_path / "checkpoint")).snapshot_names() == ["now"]
    assert not fr.difference(found, wanted(tmp_path / "in", files))


def test_checkpoint_when_it_is_started_with_another_number_of_workers_keeps_its_own_and_says_so(spark, tmp_path):
    files = batches(4)
    (tmp_path / "in").mkdir()
    for i, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "in" / f"{i}.parquet")
    sinks = fr.Sinks()
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "available_now", "drain": False}
    assert flow_of(tmp_path / "in", sinks).start(spark, workers=3, **options).await_termination(600)
    with pytest.warns(UserWarning, match=r"Region 'k' of checkpoint .* has 3 workers and keeps them: workers=5 is for a new"):
        run = flow_of(tmp_path / "in", sinks).start(spark, workers=5, **options)
    assert run.await_termination(600)
    assert run.routing("k")[-1] == 2


def test_rescale_when_the_flow_is_shut_down_in_the_middle_of_it_goes_on_after_the_restart(spark, tmp_path):
    files, sinks, seen = batches(8, seed=9), fr.Sinks(), []
    steps = Limits(first_bytes=1_000, least_bytes=1_000, most_bytes=2_000, hold_bytes=60_000_000, measure_entries=200)
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds", "step_budget": steps}
    flow = flow_of(tmp_path / "in", sinks)
    with Feeder(tmp_path / "in", files) as feeder:
        run = flow.start(spark, workers=1, **options)
        feeder.taken = lambda: run.progress.get("epoch", -1)
        run.scale("k", 4)
        while run.regions["k"].get("rescale", {}).get("moved_keys", 0) < 3:
            assert run.active, run.exception
            time.sleep(0.02)
        run.shutdown(drain=False, timeout=600)
        seen.append(run.regions["k"])
        run = flow.start(spark, **{**options, "step_budget": STEPS})
        while run.regions["k"]["phase"] != "settled" or feeder.written < len(files):
            assert run.active, run.exception
            time.sleep(0.05)
    run.shutdown(drain=True, timeout=600)
    assert seen[0]["phase"] == "move"
    assert seen[0]["rescale"]["bins_left"] > 0
    assert run.regions["k"]["workers"] == 4
    assert run.regions["k"]["last_rescale"]["moved_keys"] > seen[0]["rescale"]["moved_keys"] >= 3, "it began anew"
    assert set(run.routing("k")) == {0, 1, 2, 3}
    assert not fr.difference(sinks.content(), wanted(tmp_path / "in", files))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rows_when_every_pair_and_fifty_turns_are_passed_over_spark_are_right(spark, tmp_path):
    # 162 rescales: steps as small as elsewhere would make each of them a hundred epochs long.
    steps = Limits(first_bytes=200_000, least_bytes=200_000, most_bytes=400_000, hold_bytes=400_000)
    files = batches(3_000, seed=12, per_file=40)
    pairs = [(a, b) for a in range(1, 9) for b in range(1, 9) if a != b]

    def steer(run):
        for a, b in pairs:
            assert run.scale("k", a).wait(300)
            assert run.scale("k", b).wait(300)
        for i in range(50):
            assert run.scale("k", 2 + i % 2).wait(300)

    found, _, files = live(spark, tmp_path, files, steer, stop=True, step_budget=steps)
    assert len(files) < 3_000, "the input ended before the rescales did"
    assert not fr.difference(found, wanted(tmp_path / "in", files))


@pytest.mark.timeout(300)
def test_commands_before_the_first_record_are_carried_out(spark, tmp_path):
    (tmp_path / "in").mkdir()
    flow = ps.Flow("silent")
    events = flow.source("events", ps.files(str(tmp_path / "in"), "k string, at timestamp, v long"), time="at")
    events.key_by("k").aggregate(n=ps.count()).sink(ps.noop(), name="n")
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="100 milliseconds")
    assert run.scale("k", 3).wait(120)
    assert run.snapshot("before").wait(120)
    assert run.regions["k"]["workers"] == 3
    assert run.shutdown(timeout=120)


def test_command_from_another_process_before_the_first_record_asks_for_an_epoch_and_says_so(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointError, match="has not committed its first epoch yet; try again in a moment"):
        Commander(checkpoint, EpochRecord).scale("k", 3)
    assert [checkpoint.read_command(name) for name in checkpoint.control_names()] == [Tick()]
