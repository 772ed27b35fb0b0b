"""Which files an epoch reads: all of them, however old, in the order of time and name, and the same ones when it runs again."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import RecordError

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long"
DAY = 86_400


def put(folder: Path, name: str, values, at: float, *, key: str = "a") -> Path:
    """A CSV file dated `at` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("k,v\n" + "".join(f"{key},{v}\n" for v in values))
    os.utime(path, (at, at))
    return path


def read(spark, folder: Path, checkpoint: Path, sink, **options) -> None:
    """Read a folder to its end, in the order of positions."""
    flow = ps.Flow("files")
    events = flow.source("events", ps.files(folder / "in", SCHEMA, "csv", **options))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(sink)
    flow.start(spark, checkpoint=checkpoint, workers=1, trigger="available_now").await_termination(600)


def in_order(sink) -> list[int]:
    """The values in the order in which they were read."""
    return [r["v"] for r in sorted(sink.rows(), key=lambda r: r["n"])]


def test_old_file_when_newer_ones_were_read_before_is_read_too(spark, tmp_path):
    out, now = ps.memory(f"old {tmp_path}"), 1_700_000_000
    put(tmp_path / "in", "1.csv", [1, 2], now)
    put(tmp_path / "in", "2.csv", [3, 4], now - 30 * DAY)
    put(tmp_path / "in", "3.csv", [0], 0)  # as archives that are the same whenever they are made date their files
    read(spark, tmp_path, tmp_path / "c", out)
    assert in_order(out) == [0, 3, 4, 1, 2]
    assert Checkpoint(str(tmp_path / "c")).last().sources["events"].files == 3


def test_old_file_when_it_comes_later_is_read_too(spark, tmp_path):
    out, now = ps.memory(f"late {tmp_path}"), 1_700_000_000
    put(tmp_path / "in", "1.csv", [1, 2], now)
    flow = ps.Flow("files")
    events = flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv"))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(out)
    for days in (30, 400):
        flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now", drain=False).await_termination(600)
        put(tmp_path / "in", f"{days}.csv", [days], now - days * DAY)
    flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="available_now", drain=False).await_termination(600)
    assert in_order(out) == [1, 2, 30, 400]


def test_files_of_one_moment_when_epochs_are_cut_among_them_are_read_by_name(spark, tmp_path):
    names = [f"{i:02d}.csv" for i in range(23)]
    for name in random.Random(4).sample(names, len(names)):  # local folders are listed in no order at all
        put(tmp_path / "in", name, [int(name[:2])], 1_700_000_000 + (int(name[:2]) >= 20))
    out = ps.memory(f"moment {tmp_path}")
    read(spark, tmp_path, tmp_path / "c", out, max_files_per_epoch=3)
    assert in_order(out) == list(range(23))
    state = Checkpoint(str(tmp_path / "c")).last().sources["events"]
    assert state.files == 23
    assert not state.order.get("owed")


def test_files_of_one_moment_when_the_flow_is_stopped_and_run_by_a_clock_are_read_by_name(spark, tmp_path):
    for i in random.Random(5).sample(range(17), 17):
        put(tmp_path / "in", f"{i:02d}.csv", [i], 1_700_000_000)
    out, flow = ps.memory(f"clock {tmp_path}"), ps.Flow("files")
    events = flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv", max_files_per_epoch=2))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(out)
    for seen in (4, 10, 17):
        run = flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="10 milliseconds")
        while len(out.rows()) < seen:
            time.sleep(0.05)
            assert run.exception is None
        run.shutdown(drain=False)
    assert in_order(out) == list(range(17))


class Failing:
    """Fails an epoch at one of its steps."""

    def __init__(self, step: str, epoch: int) -> None:
        self.step, self.left = step, epoch

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left < 0:
                raise OSError("pulled")


def two_sinks(tmp_path, name, **options):
    """A flow whose epochs store the same rows twice."""
    flow, sinks = ps.Flow("files"), [ps.memory(f"{name} {i} {tmp_path}") for i in range(2)]
    events = flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv", **options))
    for i, sink in enumerate(sinks):
        events.sink(sink, name=f"sink{i}")
    return flow, [lambda s=s: sorted(r["v"] for r in s.rows()) for s in sinks]


def run(spark, flow, tmp_path, on_step=None):
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now", on_step=on_step).await_termination(600)


def test_file_when_it_was_deleted_or_replaced_before_its_epoch_runs_again_stops_the_flow_until_it_is_back(spark, tmp_path):
    first, second = put(tmp_path / "in", "1.csv", [1, 4], 1_000), put(tmp_path / "in", "2.csv", [2, 3], 2_000)
    flow, (held, other) = two_sinks(tmp_path, "vanish")
    with pytest.raises(ps.PenstockError, match="pulled"):
        run(spark, flow, tmp_path, Failing("stored sink0", 0))
    kept = second.read_text()
    second.rename(tmp_path / "2.csv")
    with pytest.raises(RecordError, match=r"File file://.*/in/2\.csv of source 'events' is gone, and epoch 0, which is not"):
        run(spark, flow, tmp_path)
    put(tmp_path / "in", "2.csv", [2, 3], 2_001)
    with pytest.raises(
        RecordError, match=r"in/2\.csv of source 'events' is not the one that epoch 0 began to read \(12 bytes of"
    ):
        run(spark, flow, tmp_path)
    second.write_text(kept + "a,5\n")
    os.utime(second, (2_000, 2_000))
    with pytest.raises(
        RecordError, match=r"12 bytes of 1970-01-01 00:33:20.000 UTC; now 16 bytes of 1970-01-01 00:33:20.000 UTC\)"
    ):
        run(spark, flow, tmp_path)
    assert (held(), other()) == ([1, 2, 3, 4], [])
    (tmp_path / "2.csv").rename(second)
    run(spark, flow, tmp_path)
    assert held() == other() == [1, 2, 3, 4]
    assert first.exists()


def test_file_when_it_is_changed_while_its_epoch_runs_stops_the_flow(spark, tmp_path):
    path = put(tmp_path / "in", "1.csv", [1, 2], 1_000)
    flow, (held, other) = two_sinks(tmp_path, "while")

    def change(step):
        if step == "stored sink0":
            put(tmp_path / "in", "1.csv", [1, 2, 3], 5_000)

    with pytest.raises(RecordError, match=r"1\.csv of source 'events' is not the one that epoch 0 began to read"):
        run(spark, flow, tmp_path, change)
    put(tmp_path / "in", "1.csv", [1, 2], 1_000)
    run(spark, flow, tmp_path)
    assert held() == other() == [1, 2]
    path.unlink()


def test_session_when_it_passes_over_missing_files_does_not_in_a_flow(spark, tmp_path):
    session = spark.newSession()
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        session.conf.set(f"spark.sql.files.{name}", "true")
    path = put(tmp_path / "in", "1.csv", [1, 2], 1_000)
    put(tmp_path / "in", "2.csv", [3], 2_000)
    flow, (held, other) = two_sinks(tmp_path, "session")
    with pytest.raises(RecordError, match=r"1\.csv"):
        run(session, flow, tmp_path, lambda step: step == "compute sink0" and path.unlink())
    assert held() == other() == []


def test_file_when_it_is_written_again_after_its_epoch_was_committed_is_not_read_again(spark, tmp_path):
    put(tmp_path / "in", "1.csv", [1, 2], 1_000)
    flow, sink = ps.Flow("files"), ps.memory(f"again {tmp_path}")
    flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv")).sink(sink)
    for _ in range(2):
        flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now", drain=False).await_termination(600)
        put(tmp_path / "in", "1.csv", [1, 2, 3], 9_000)
    assert sorted(r["v"] for r in sink.rows()) == [1, 2]


def test_files_of_one_moment_when_the_flow_goes_back_among_them_are_read_again_by_name(spark, tmp_path):
    for i in random.Random(6).sample(range(14), 14):
        put(tmp_path / "in", f"{i:02d}.csv", [i], 1_700_000_000)
    out, flow = ps.memory(f"back {tmp_path}"), ps.Flow("files")
    events = flow.source("events", ps.files(tmp_path / "in", SCHEMA, "csv", max_files_per_epoch=2))
    events.key_by("k").stateful_map(lambda k, e, n: ((e.v, n or 0), (n or 0) + 1), "v long, n long").sink(out)
    run = flow.start(spark, checkpoint=tmp_path / "c", workers=1, trigger="10 milliseconds")
    assert run.snapshot("early").wait(300)
    while len(out.rows()) < 10:
        time.sleep(0.05)
        assert run.exception is None
    assert run.load("early").wait(300)
    while len(out.rows()) < 14:
        time.sleep(0.05)
        assert run.exception is None
    run.shutdown(drain=True)
    assert in_order(out) == list(range(14))
