"""What every engine keeps: the same flows, commands and crashes in process and over Spark, through the port of `driver.engine`."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.errors import FinishedError, PenstockError, RecordError
from penstock.protocol.commands import Load, Scale, Snapshot
from penstock.testing import Harness
from penstock.testing.engine import LocalBackend

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
NUMBERS = itertools.count()


def row(second, v=None, k=None):
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    return {"k": k or f"k{second % 3}", "at": at, "v": second if v is None else v}


class Rig:
    """One folder with input and checkpoint; every `run` is a start that reads what there is."""

    def __init__(self, folder):
        self.folder, self.checkpoint = folder, Checkpoint(str(folder / "checkpoint"))
        self.prefix, self.pushes = f"contract{next(NUMBERS)}", 0
        (folder / "in").mkdir()

    def sink(self, name):
        return ps.memory(f"{self.prefix}.{name}")

    def source(self, flow, **options):
        files = ps.files(str(self.folder / "in"), SCHEMA, max_files_per_epoch=1)
        return flow.source("s", files, time="at", lateness="10 seconds", **options)

    def command(self, command):
        Commander(self.checkpoint).submit(command)


class InProcess(Rig):
    backend = LocalBackend

    def __init__(self, folder):
        super().__init__(folder)
        self.harness, self.waiting, self.failing = None, [], None

    def push(self, *rows):
        self.waiting.append(list(rows))

    def run(self, flow, *, drain=False, bounded=True, on_step=None):
        self.failing = on_step
        if self.harness is None:
            step = lambda name: self.failing and self.failing(name)  # noqa: E731
            self.harness = Harness(flow, checkpoint=self.checkpoint.uri, workers=2, most=1, on_step=step)
        for rows in self.waiting:
            self.harness.push("s", rows)
        self.waiting = []
        return self.harness.available(drain=drain) if bounded else self.harness.follow(lambda: None)


class OverSpark(Rig):
    def __init__(self, folder, spark):
        from penstock.spark.engine import SparkBackend

        super().__init__(folder)
        self.spark, self.backend = spark, SparkBackend

    def push(self, *rows):
        self.pushes += 1
        path = self.folder / "in" / f"{self.pushes:03d}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), path)
        os.utime(path, (1_700_000_000 + self.pushes,) * 2)

    def run(self, flow, *, drain=False, bounded=True, on_step=None):
        options = {"checkpoint": self.checkpoint.uri, "workers": 2, "drain": drain, "on_step": on_step}
        run = flow.start(self.spark, trigger="available_now" if bounded else "1 second", **options)
        assert run.await_termination(300)
        return self.checkpoint.last()


@pytest.fixture(params=["in process", pytest.param("spark", marks=pytest.mark.spark)])
def rig(request, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    if request.param == "spark":
        return OverSpark(tmp_path, request.getfixturevalue("spark"))
    return InProcess(tmp_path)


def numbered(rig, **options):
    """A flow that numbers the records of each key, with its sink."""
    flow, out = ps.Flow("contract"), rig.sink("out")
    stream = rig.source(flow, **options)
    stream.key_by("k").stateful_map(lambda k, e, n: ([(k, (n or 0) + 1, e.v)], (n or 0) + 1), "k string, n long, v long").sink(
        out, name="out"
    )
    return flow, out, stream


def found(sink):
    return sorted((r["k"], r["n"], r["v"]) for r in sink.rows())


def expected(seconds):
    counts = {}
    rows = []
    for second in seconds:
        k = f"k{second % 3}"
        counts[k] = counts.get(k, 0) + 1
        rows.append((k, counts[k], second))
    return sorted(rows)


def test_late_and_malformed_records_go_where_they_are_declared_to_and_are_counted(rig):
    bad, late = rig.sink("bad"), rig.sink("late")
    flow, out, stream = numbered(rig, on_error=bad)
    stream.late.sink(late, name="late")
    rig.push(row(0), row(100), {"k": "k0", "at": None, "v": 7})
    rig.push(row(50, v=50), row(101))  # 50 is behind by more than 10 seconds
    record = rig.run(flow, drain=True)
    assert [r["v"] for r in late.rows()] == [50]
    assert [r["source"] for r in bad.rows()] == ["s"]
    assert found(out) == expected([0, 100, 101])
    state = record.sources["s"]
    assert (state.rows, state.late, state.malformed) == (4, 1, 1)


@pytest.mark.parametrize("at", ["decide", "during out", "commit"])
def test_epoch_when_it_crashes_reads_the_same_input_again_and_its_rows_are_there_once(rig, at):
    flow, out, _ = numbered(rig)
    rig.push(row(0), row(1))
    steps = []

    def crash(name):
        steps.append(name)
        if name == at and steps.count(at) == 1:
            raise RuntimeError("crash")

    with pytest.raises((RuntimeError, PenstockError), match="crash"):
        rig.run(flow, on_step=crash, drain=True)
    assert rig.checkpoint.last().epoch < 1
    rig.push(row(2), row(3))
    record = rig.run(flow, drain=True)
    assert record.sources["s"].rows == 4
    assert found(out) == expected(range(4))


def test_input_when_it_is_refused_before_the_commit_is_not_committed(rig, monkeypatch):
    flow, out, _ = numbered(rig)
    rig.push(row(0))

    def refuse(_):
        raise RecordError("changed while it was read")

    with monkeypatch.context() as patch:
        patch.setattr(rig.backend, "check_input", refuse)
        with pytest.raises(RecordError, match="changed while it was read"):
            rig.run(flow)
    assert rig.checkpoint.last().epoch == -1
    rig.run(flow, drain=True)
    assert found(out) == expected([0])


def test_steps_branches_and_several_outputs_of_a_region_give_the_same_rows(rig):
    flow, lists = ps.Flow("contract"), {n: rig.sink(n) for n in ("stateless", "totals", "numbered", "staged")}
    events = rig.source(flow)
    doubled = events.where("v % 2 = 0").select("k", "at", v="v * 10")  # read twice, so it is kept
    both = doubled.union(events.select("k", "at", "v"))
    both.map_batches(
        lambda b: b.set_column(2, "v", pa.array([v + 1 for v in b.column(2).to_pylist()])), "k string, at timestamp, v bigint"
    ).sink(lists["stateless"], name="stateless")
    keyed = doubled.key_by("k")
    keyed.aggregate(total=ps.sum("v")).sink(lists["totals"], name="totals")
    keyed.stateful_map(lambda k, e, n: ([(k, (n or 0) + 1, e.v)], (n or 0) + 1), "k string, n long, v long").sink(
        lists["numbered"], name="numbered"
    )
    events.select("v").sink(ps.parquet(str(rig.folder / "parts")), name="staged")
    rig.push(*(row(i) for i in range(5)))
    rig.push(*(row(i) for i in range(5, 8)))
    rig.run(flow, drain=True)
    plain = [i + 1 for i in range(8)] + [10 * i + 1 for i in range(0, 8, 2)]
    assert sorted(r["v"] for r in lists["stateless"].rows()) == sorted(plain)
    assert found(lists["numbered"]) == sorted([("k0", 1, 0), ("k2", 1, 20), ("k1", 1, 40), ("k0", 2, 60)])
    totals = {}
    for r in lists["totals"].rows():
        totals[r["k"]] = max(totals.get(r["k"], 0), r["total"])
    assert totals == {"k0": 60, "k1": 40, "k2": 20}
    assert sorted(pq.read_table(rig.folder / "parts").column("v").to_pylist()) == list(range(8))


def test_commands_in_the_log_are_obeyed_before_the_run_ends(rig):
    flow, out, _ = numbered(rig)
    rig.push(row(0), row(1), row(2))
    rig.run(flow)
    rig.command(Scale("k", 3))
    rig.command(Scale("nowhere", 3))
    rig.command(Snapshot("s"))
    rig.push(row(3))
    record = rig.run(flow, drain=True)
    assert record.regions["k"].control.workers == 3
    assert [*record.refused.values()] == ["There is no region 'nowhere' to scale; there are k."]
    assert rig.checkpoint.snapshot_names() == ["s"]
    assert found(out) == expected(range(4))


def test_flow_that_goes_back_to_a_snapshot_reads_again_what_came_since(rig):
    flow, out, _ = numbered(rig)
    rig.push(row(0), row(1))
    rig.run(flow)
    rig.command(Snapshot("s"))
    rig.push(row(2))
    rig.run(flow)
    rig.push(row(3), row(4))
    rig.run(flow)
    rig.command(Load("s"))
    record = rig.run(flow, drain=True)
    assert [r.snapshot for r in record.rolled_back] == ["s"]
    assert record.sources["s"].rows == 5
    assert found(out) == expected(range(5))


def test_flow_without_input_ends_and_is_refused_when_it_is_to_read_on(rig):
    flow, out, _ = numbered(rig)
    record = rig.run(flow, drain=True)
    assert record.finished
    assert out.rows() == []
    assert rig.run(flow).epoch == record.epoch
    with pytest.raises(FinishedError, match="reached the end of its input in epoch 0 and is never scheduled again"):
        rig.run(flow, bounded=False)


def test_epoch_comes_to_a_regions_tasks_through_at_most_nine_functions_of_the_driver(rig, monkeypatch):
    flow, _, _ = numbered(rig)
    rig.push(row(0))
    region, depths = rig.backend.region, []

    def measured(own, *given):
        depth, frame = 1, sys._getframe(1)
        while frame is not None:
            depth += frame.f_globals.get("__name__", "").startswith("penstock.")
            frame = frame.f_back
        depths.append(depth)
        return region(own, *given)

    monkeypatch.setattr(rig.backend, "region", measured)
    if isinstance(rig, InProcess):
        with Harness(flow) as harness:
            harness.push("s", [row(0)])
            harness.epoch()
    else:
        rig.run(flow)
    assert depths
    assert max(depths) <= 9, depths
