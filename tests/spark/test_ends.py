"""Ends over real Spark: only an input that was read to its end makes a flow finished."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import FencedError, FinishedError, OperatorError, PenstockError
from penstock.sinks.foreach import ForeachSink

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
PER_FILE = 20


def flow_of(folder, out, fn=lambda k, e, s: ((k, e.v), None), *, most=1):
    flow = ps.Flow("ends")
    events = flow.source("events", ps.files(str(folder), "k string, v long", max_files_per_epoch=most))
    events.key_by("k").stateful_map(fn, "k string, v long").sink(out, name="out")
    return flow


def write(folder, files):
    for i in files:
        rows = [{"k": f"k{j % 3}", "v": PER_FILE * i + j} for j in range(PER_FILE)]
        fr.write_parquet(folder, rows, SCHEMA, i)


def values(sink):
    return sorted(r["v"] for r in sink.rows())


def until(true, run):
    deadline = time.monotonic() + 300
    while not true():
        assert run.active, run.exception
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read(run):
    return run.progress["sources"].get("events", {}).get("files", 0)


@pytest.mark.parametrize("name", ["c[1]", "c\\1"])
def test_commands_when_the_checkpoint_has_a_name_like_a_pattern_are_obeyed(spark, tmp_path, name):
    write(tmp_path / "in", range(2))
    out = ps.memory(f"ends.{name}")
    run = flow_of(tmp_path / "in", out).start(spark, checkpoint=tmp_path / name, trigger="100 milliseconds", workers=1)
    try:
        assert run.shutdown(drain=True, timeout=30)
    finally:
        run.leave(30)
    assert values(out) == list(range(2 * PER_FILE))


@pytest.mark.parametrize("copied", [False, True])
def test_flow_whose_checkpoint_is_at_another_place_goes_on(spark, tmp_path, copied):
    """Spark's log has the paths of the commands that it has seen, and an epoch that they brought about may not be over."""
    out, before = ps.memory(f"ends.moved.{copied}"), None
    for number, place in enumerate(["a", "b", "c", "a b"]):
        write(tmp_path / "in", [number])
        if before is not None:
            (shutil.copytree if copied else shutil.move)(tmp_path / before, tmp_path / place)
        before = place
        run = flow_of(tmp_path / "in", out).start(spark, checkpoint=tmp_path / place, trigger="100 milliseconds", workers=1)
        try:
            while len(values(out)) < (number + 1) * PER_FILE:
                assert not run.await_termination(0.05)
            assert run.scale("k", number % 2 + 2).wait(60)
            assert run.shutdown(drain=False, timeout=60)
        finally:
            run.leave(30)
    assert values(out) == list(range(4 * PER_FILE))


def test_rows_when_a_drain_is_followed_by_a_drain_or_a_stop_are_all_read_in_the_end(spark, tmp_path):
    write(tmp_path / "in", range(24))
    out = ps.memory("ends.again")
    options = {"checkpoint": str(tmp_path / "c"), "trigger": "100 milliseconds", "workers": 1}
    run = flow_of(tmp_path / "in", out).start(spark, **options)
    until(lambda: read(run) >= 2, run)
    run.shutdown(drain=True, timeout=0)
    until(lambda: read(run) >= 4, run)
    run.shutdown(drain=True, timeout=0)  # changes nothing
    until(lambda: read(run) >= 8, run)
    run.shutdown(drain=False, timeout=300)
    assert not run.active
    assert not run.progress["finished"]
    assert read(run) < 24, "the test wants files to be left"
    run = flow_of(tmp_path / "in", out).start(spark, **options)  # the stop came later: the drain is withdrawn
    until(lambda: read(run) == 24, run)
    time.sleep(1)
    assert run.active
    run.shutdown(drain=True, timeout=300)
    assert run.progress["finished"]
    assert values(out) == [*range(24 * PER_FILE)]


def test_run_that_has_nothing_to_read_ends_when_another_one_replaces_it_and_says_so(spark, tmp_path):
    write(tmp_path / "in", [0])
    flow = flow_of(tmp_path / "in", ps.memory("ends.replaced"))
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="100 milliseconds", workers=1)
    until(lambda: read(run) == 1, run)
    time.sleep(1.5)
    assert run.active
    assert Checkpoint(tmp_path / "c").claim({"pid": 7, "host": "elsewhere", "started": "today"}) == 2
    with pytest.raises(
        FencedError, match=r"^Run 1 of this checkpoint was replaced by run 2, started today by process 7 on elsewhere"
    ):
        run.await_termination(60)
    assert not run.active


STOPPED_SESSION = """
import time
import penstock as ps
from penstock.spark.session.local import session
spark, flow = session("local[1]"), ps.Flow("stopped")
flow.source("s", ps.files("in", "k string, v long")).sink(ps.console())
run = flow.start(spark, checkpoint="c", trigger="100 milliseconds")
while run.progress["epoch"] < 0:
    run.await_termination(0.1)
time.sleep(1.5)
spark.stop()
for do in (lambda: print(run.await_termination(60)), lambda: flow.start(spark, checkpoint="c")):
    try:
        do()
    except ps.PenstockError as error:
        print(type(error).__name__, error)
"""


def test_run_that_has_nothing_to_read_ends_when_its_session_is_stopped_and_none_starts_in_that(tmp_path):
    write(tmp_path / "in", [0])
    told = subprocess.run(
        [sys.executable, "-c", STOPPED_SESSION], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert (
        "\nPenstockError The Spark session was stopped while flow 'stopped' ran; the epoch that it was in was not com" in told
    )
    assert "\nDeclarationError The Spark session that was given has been stopped; give another one, or none.\n" in told


def mended(k, e, s):
    return (k, e.v), None


def broken(k, e, s):
    if e.v == 2:  # it waits until the input ends
        raise ValueError("broken")
    return (k, e.v), None


class Waiting:
    """A flow whose last record waits for the end of the input, on files of one record each."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.files = spark, folder, 0
        self.out, self.other = ps.memory(f"{folder}.out"), ps.memory(f"{folder}.other")

    def put(self, n):
        schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
        for i in range(self.files, self.files + n):
            fr.write_parquet(self.folder / "in", [{"k": "k", "v": i, "at": fr.moment(i)}], schema, i)
        self.files += n

    def run(self, fn, *, other_first=False, **options):
        files = ps.files(str(self.folder / "in"), "k string, v long, at timestamp", max_files_per_epoch=1)
        flow = ps.Flow("waiting")
        events = flow.source("events", files, time="at")
        if other_first:
            events.key_by("k", name="first").stateful_map(mended, "k string, v long").sink(self.other, name="other")
        events.key_by("k").stateful_map(fn, "k string, v long").sink(self.out, name="out")
        options = {"checkpoint": str(self.folder / "c"), "trigger": "available_now", "workers": 1, **options}
        return flow.start(self.spark, **options)


def test_files_that_came_after_the_end_failed_are_read_after_the_restart(spark, tmp_path):
    flow = Waiting(spark, tmp_path)
    flow.put(3)
    with pytest.raises(OperatorError, match="broken"):
        flow.run(broken).await_termination(300)
    assert values(flow.out) == [0, 1]
    flow.put(3)
    ended = flow.run(mended)
    assert ended.await_termination(300)
    assert values(flow.out) == [*range(6)]
    assert ended.progress["finished"]
    assert not ended.progress["sources"]["events"]["late"]


def test_end_that_one_sink_holds_when_another_failed_is_finished_and_no_success_while_files_are_unread(spark, tmp_path):
    flow = Waiting(spark, tmp_path)
    flow.put(3)
    with pytest.raises(OperatorError, match="broken"):
        flow.run(broken, other_first=True).await_termination(300)
    assert (values(flow.other), values(flow.out)) == ([0, 1, 2], [0, 1])
    flow.put(2)
    run = flow.run(mended, other_first=True)
    with pytest.raises(
        FinishedError, match="; 2 files of source 'events' are unread, and will stay so: begin on a new checkpoint"
    ):
        run.await_termination(300)
    assert run.outcome == str(run.exception)
    assert values(flow.other) == values(flow.out) == [0, 1, 2]


def test_flow_that_has_finished_when_files_have_come_since_says_how_many(spark, tmp_path):
    flow = Waiting(spark, tmp_path)
    flow.put(2)
    run = flow.run(mended, drain=False)
    assert run.await_termination(300)
    assert (
        run.outcome
        == "What there was has been read, up to epoch 1; started again on the same checkpoint the flow goes on with what has come."
    )
    flow.put(1)
    run = flow.run(mended, drain=True)
    assert run.await_termination(300)
    assert run.outcome == f"The flow finished in epoch {run.progress['epoch']}: its input was read to the end."
    run = flow.run(mended)
    assert not run.active
    assert re.fullmatch(
        r"The flow had finished in epoch \d+, before this start, and no file has come since: nothing was done\.", run.outcome
    )
    flow.put(3)
    for options in ({}, {"drain": False}, {"trigger": "1 second"}):
        with pytest.raises(
            FinishedError, match=r"in epoch \d+ and is never .*; 3 files of source 'events' are unread.* drain=False"
        ):
            flow.run(mended, **options)
    assert values(flow.out) == [0, 1, 2]


def slow(marker):
    def fn(k, e, s):
        if e.v == 2 * PER_FILE:
            marker.touch()
            time.sleep(2)
        return (k, e.v), None

    return fn


@pytest.mark.parametrize("within", [False, True])
def test_query_that_is_stopped_from_outside_during_a_drain_leaves_the_flow_to_be_resumed(spark, tmp_path, within):
    write(tmp_path / "in", range(8))
    out = ps.memory("ends.outside")
    options = {"checkpoint": str(tmp_path / "c"), "trigger": "available_now", "workers": 1}
    marker = tmp_path / "within"
    run = flow_of(tmp_path / "in", out, *[slow(marker)] * within).start(spark, **options)
    until(marker.exists if within else lambda: read(run) >= 2, run)
    for query in run._loop.engine.spark.streams.active:  # the session that runs the flow
        query.stop()
    assert run.await_termination(300)  # no failure, even of the epoch that was interrupted
    assert run.exception is None
    assert not run.progress["finished"]
    assert run.outcome.startswith("The query was stopped from outside of penstock after epoch ")
    assert flow_of(tmp_path / "in", out).start(spark, **options).await_termination(300)
    assert values(out) == [*range(8 * PER_FILE)]


class Unclosable(ForeachSink):
    """A sink of a user's own that fails when it is closed."""

    closed = 0

    def close(self):
        Unclosable.closed += 1
        raise OSError("the connection is gone")


def test_run_when_sinks_fail_to_close_ends_with_the_error_and_has_closed_each(spark, tmp_path):
    write(tmp_path / "in", range(1))
    flow = ps.Flow("unclosable")
    events = flow.source("events", ps.files(str(tmp_path / "in"), "k string, v long"))
    for name in ("a", "b"):
        events.sink(Unclosable(lambda rows, epoch: None), name=name)
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    with pytest.raises(PenstockError, match="the connection is gone"):
        run.await_termination(120)
    assert not run.active
    assert Unclosable.closed == 2
