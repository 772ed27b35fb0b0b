"""An epoch of few rows in few files is read by one task: fewer stages, the same rows."""

from __future__ import annotations

import random
from functools import partial

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.spark import engine

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
COLUMNS = "k long, at timestamp, v long"
TIMED = {"time": "at", "lateness": "20 seconds"}


def follow(key, row, before):
    """Depends on the order of rows, and on each of them."""
    return (key, row.v, before), row.v


def flow_of(folder, sink, files):
    flow = ps.Flow("few")
    one, other = (
        flow.source(name, ps.files(str(folder / name), COLUMNS, max_files_per_epoch=files), **TIMED)
        for name in ("one", "other")
    )
    one.key_by("k").stateful_map(follow, "k long, v long, before long").sink(sink("followed"))
    windows = one.where("v % 7 <> 0").key_by("k", name="windows").window(ps.tumbling("10 seconds"))
    windows.aggregate(n=ps.count(), total=ps.sum("v"), first=ps.first("v"), last=ps.last("v")).sink(sink("windows"))
    both = one.union(other).key_by("k", name="both")
    both.window(ps.tumbling("30 seconds")).aggregate(n=ps.count(), most=ps.max("v")).key_by("n").stateful_map(
        follow_most, "n long, most long, before long"
    ).sink(sink("behind a region"))
    one.late.sink(sink("late"))
    return flow


def follow_most(key, row, before):
    return (key, row.most, before), row.most


def random_rows(dice, number):
    second, made = dice.randint(0, 40), []
    for _ in range(dice.choice([0, 1, 5, 30])):
        second = max(0, second + dice.choice([0, 0, 1, 7, -3, -30]))
        made.append({"k": dice.randint(0, 4), "at": fr.moment(20 * number + second), "v": dice.randint(0, 1000)})
    return made


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_random_files_in_epochs_of_few_rows_and_of_many_give_what_one_pass_gives(seed, spark, tmp_path, monkeypatch):
    dice, records = random.Random(seed), {"one": [], "other": []}
    for name in records:
        for number in range(6):
            made = random_rows(dice, number)
            fr.write_parquet(tmp_path / name, made, SCHEMA, number)
            records[name] += made
    wanted = fr.in_harness(lambda sink: flow_of(tmp_path, sink, 2), records)
    assert sum(wanted["late"].values()) > 0
    assert sum(wanted["behind a region"].values()) > 0
    for few, quick_ms, workers in [(5_000, 10**9, 1), (5_000, 10**9, 3), (5_000, 0, 2), (0, 0, 1), (0, 0, 2)]:
        monkeypatch.setattr(engine, "FEW_ROWS", few)
        monkeypatch.setattr(engine, "QUICK_MS", quick_ms)
        found = fr.over_spark(
            spark, tmp_path / f"{few} {quick_ms} {workers}", partial(flow_of, tmp_path, files=2), workers=workers
        )
        assert not any(fr.difference(found, wanted).values()), (few, quick_ms, workers)


def stages(spark):
    """By the number of each job that Spark remembers, which is the last thousand, how many stages it had."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return {job.jobId(): job.stageIds().size() for job in map(jobs.apply, range(jobs.size()))}


KEYED = {
    "stateful_map": lambda rows: rows.key_by("k").stateful_map(follow, "k long, v long, before long"),
    "aggregate": lambda rows: rows.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")),
}


@pytest.mark.parametrize(
    ("step", "workers", "limits", "wanted"),
    [
        ("stateful_map", 1, {}, 1),
        ("stateful_map", 2, {}, 1),
        ("aggregate", 1, {}, 1),
        ("aggregate", 4, {}, 1),
        ("stateful_map", 2, {"QUICK_MS": 0}, 2),
        ("aggregate", 2, {"QUICK_MS": 0}, 2),
        ("stateful_map", 2, {"FEW_WORKERS": 1}, 2),
        ("stateful_map", 1, {"FEW_ROWS": 1}, 2),
        ("stateful_map", 1, {"FEW_FILES": 0}, 2),
        ("aggregate", 1, {"FEW_BYTES": 1}, 3),
        ("mapped", 1, {}, 2),
    ],
)
def test_second_epoch_of_few_rows_has_as_few_stages_as_workers_allow(
    step, workers, limits, wanted, spark, tmp_path, monkeypatch
):
    for number in range(2):
        fr.write_parquet(tmp_path / "in", [{"k": k, "at": fr.moment(k), "v": k} for k in range(50)], SCHEMA, number)
    for name, most in {"QUICK_MS": 10**9, **limits}.items():
        monkeypatch.setattr(engine, name, most)
    flow = ps.Flow("stages")
    rows = flow.source("rows", ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=1))
    if step == "mapped":  # what takes long goes on beside itself
        step, rows = "stateful_map", rows.map_batches(lambda batch: batch, COLUMNS)
    KEYED[step](rows).sink(ps.memory(f"{tmp_path}"))
    before = max(stages(spark), default=-1)
    flow.start(spark, checkpoint=tmp_path / "run", workers=workers, trigger="available_now", drain=False).await_termination(600)
    last, had = max(stages(spark).items())
    assert last > before
    assert had == wanted
