"""Strategies that divide keys rest over Spark while all workers have about as many rows: when that is looked at, and what is remembered."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flow_runs import write_parquet

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.routing.table import Routing
from penstock.spark import dividing, engine

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WORKERS, ROWS = 4, 4_000


class Total(ps.Aggregate):
    type = "bigint"
    commutative = True

    def zero(self):
        return 0

    def add(self, state, value):
        return state + value

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


def test_sample_of_an_even_epoch_is_even_and_one_with_a_hot_key_is_not():
    rng = np.random.default_rng(1)
    for rows in (4_096, 125_000):
        for _ in range(200):
            loads = np.bincount(rng.integers(0, 8, rows), minlength=8)
            assert dividing.is_even(loads, 1.05) or loads.max() > loads.mean() + 2.9 * loads.mean() ** 0.5
            loads[3] += rows // 20  # a key with a twentieth of the rows: 1.35 times the mean
            assert not dividing.is_even(loads, 1.05)
    assert dividing.is_even(np.zeros(4, np.int64), 1.05)


def epochs(folder, hot):
    """Files of which each is an epoch: in some, most rows have one key."""
    rng = np.random.default_rng(3)
    for order, is_hot in enumerate(hot):
        rows = [{"k": 5 if is_hot and rng.random() < 0.6 else int(rng.integers(0, 4_000)), "v": i % 99} for i in range(ROWS)]
        write_parquet(folder, rows, SCHEMA, order)


def run(spark, folder, checkpoint, strategy, *, fails_at=None):
    """By epoch, the rows that were divided and what is remembered; and the rows of the sink."""
    out, figures, routers = ps.memory(f"{checkpoint}"), [], []
    flow = ps.Flow("rests")
    source = flow.source("s", ps.files(str(folder), "k long, v long", max_files_per_epoch=1))
    source.key_by("k", distribute=strategy).aggregate(u=Total("v")).sink(out)
    failed = []

    def note(step):
        last = Checkpoint(str(checkpoint)).last()
        if step == "committed":
            figures.append(last.figures.regions["k"].divided_rows)
            routers.append(last.regions["k"].routers)
        if step == "commit" and last.epoch + 1 == fails_at and not failed:
            failed.append(step)
            raise RuntimeError("on purpose")

    def start():
        flow.start(spark, checkpoint=str(checkpoint), workers=WORKERS, trigger="available_now", on_step=note).await_termination(
            600
        )

    if fails_at is not None:
        with pytest.raises(ps.PenstockError, match="on purpose"):
            start()
    start()
    return figures, routers, {r["k"]: r["u"] for r in out.rows()}


@pytest.mark.spark
@pytest.mark.parametrize("strategy", [ps.WChoices(), ps.PartialKeyGrouping(), ps.Histogram()], ids=repr)
def test_strategy_while_workers_have_equally_many_rows_rests_and_few_epochs_are_looked_at(
    strategy, spark, tmp_path, monkeypatch
):
    for module in (dividing, engine):
        monkeypatch.setattr(module, "LEAST_ROWS", 100)
    monkeypatch.setattr(dividing, "HOT_ROWS", 32)
    looked, sample, count = [], dividing.sample_rows, dividing.count_rows
    monkeypatch.setattr(dividing, "sample_rows", lambda *given: looked.append("some") or sample(*given))
    monkeypatch.setattr(dividing, "count_rows", lambda *given: looked.append("all") or count(*given))
    epochs(tmp_path / "in", [False] * 10)
    figures, routers, rows = run(spark, tmp_path / "in", tmp_path / "a", strategy)
    assert not any(figures)
    assert looked == ["some"] * 5  # after 0, 1, 2, 4 and 8 epochs
    read = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "in").iterdir())]).to_pandas()
    assert rows == read.groupby("k")["v"].sum().to_dict()
    again = run(spark, tmp_path / "in", tmp_path / "b", strategy, fails_at=4)
    assert (again[0][4:], again[1][4:], again[2]) == (figures[4:], routers[4:], rows)


@pytest.mark.spark
def test_strategy_that_rests_notices_a_key_that_has_become_hot_and_one_that_has_cooled(spark, tmp_path, monkeypatch):
    for module in (dividing, engine):
        monkeypatch.setattr(module, "LEAST_ROWS", 100)
    epochs(tmp_path / "in", [False, True, True, True, False, False, False])
    figures, routers, _ = run(spark, tmp_path / "in", tmp_path / "a", ps.WChoices())
    seen = [
        int(r[0].router(ps.WChoices(), WORKERS, Routing.even(WORKERS)).memory[dividing._MEMORY]["seen"][0]) for r in routers
    ]
    assert figures[:7] == [0, ROWS, ROWS, ROWS, ROWS, 0, 0]  # after 1 and 2 hot epochs it was looked at, then after 4
    assert seen[:7] == [1, -1, -2, -3, -4, 1, 2]
