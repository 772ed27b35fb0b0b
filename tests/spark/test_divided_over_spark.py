"""Hot keys divided over Spark: the rows of every strategy are those of a flow that keeps keys whole, and of what is divided."""

from __future__ import annotations

import datetime as dt
import importlib
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flow_runs import write_parquet

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.spark import dividing, engine

pytestmark = pytest.mark.spark

SCHEMA = "k double, at timestamp, v long, d decimal(12,2), w string"
BEGIN = dt.datetime(2024, 3, 10, 6, 59, 50, tzinfo=dt.UTC)


class Longest(ps.Aggregate):
    type = "string"
    commutative = True

    def zero(self):
        return ""

    def add(self, state, value):
        return self.merge(state, value)

    def merge(self, a, b):
        return max(a, b, key=lambda text: (len(text), text))

    def finish(self, state):
        return state


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


@pytest.fixture
def divides_early(monkeypatch):
    """Small epochs are divided, too."""
    for module in (dividing, engine):
        monkeypatch.setattr(module, "LEAST_ROWS", 100)
    monkeypatch.setattr(dividing, "HOT_ROWS", 32)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """Three files: the keys 0.0 and -0.0 have half of the rows, NaN a quarter, null and 60 others the rest."""
    folder = tmp_path_factory.mktemp("skewed")
    rng = np.random.default_rng(7)
    schema = pa.schema([("k", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("d", pa.decimal128(12, 2))])
    schema = schema.append(pa.field("w", pa.string()))
    for order in range(3):
        rows = []
        for i in range(4_000):
            u = rng.random()
            key = (
                [0.0, -0.0][int(u * 100) % 2]
                if u < 0.5
                else math.nan
                if u < 0.75
                else None
                if u < 0.77
                else float(rng.integers(1, 60))
            )
            at = BEGIN + dt.timedelta(seconds=order * 20 + i / 200 + float(rng.random()) * 4)
            rows.append(
                {
                    "k": key,
                    "at": at,
                    "v": int(rng.integers(0, 500)),
                    "d": Decimal(int(rng.integers(-999, 999))) / 100,
                    "w": str(rng.integers(0, 50)),
                }
            )
        write_parquet(folder, rows, schema, order)
    return folder


def windows(stream):
    return stream.window(ps.tumbling("5 seconds")).aggregate(
        n=ps.count(), s=ps.sum("v"), d=ps.sum("d"), u=ps.count_distinct("v"), f=ps.first("v"), c=ps.last("w"), w=Longest("w")
    )


def sessions(stream):
    return stream.window(ps.session("1 second")).aggregate(n=ps.count(), u=ps.count_distinct("v"), d=ps.sum("d"))


def two_steps(stream):
    stream.window(ps.sliding("6 seconds", "4 seconds")).aggregate(w=Longest("w"), q=ps.count_distinct("d"))
    first = stream.window(ps.tumbling("2 seconds")).aggregate(u=ps.count_distinct("v"))
    return first.window(ps.tumbling("10 seconds")).aggregate(u=ps.sum("u"), c=ps.collect("u"))


def run(spark, folder, checkpoint, strategy, steps, *, workers=4, files=2, before=lambda stream: stream):
    out = ps.memory(f"{checkpoint}")
    flow = ps.Flow("divided")
    source = flow.source("s", ps.files(str(folder), SCHEMA, max_files_per_epoch=files), time="at", lateness="5 seconds")
    steps(before(source).key_by("k", distribute=strategy)).sink(out)
    figures = []

    def keep(step):
        if step == "committed":
            figures.append(Checkpoint(str(checkpoint)).last().figures.regions["k"])

    done = flow.start(spark, checkpoint=str(checkpoint), workers=workers, trigger="available_now", on_step=keep)
    assert done.await_termination(600)
    return sorted(map(repr, out.rows())), figures, done.changes


SPLITTING = [
    ps.Histogram(),
    ps.Histogram(slack=0.2),
    ps.PartialKeyGrouping(),
    ps.DChoices(),
    ps.WChoices(),
    ps.ConsistentGrouping(),
    ps.ByPartition(),
]


@pytest.fixture(scope="module")
def whole(spark, skewed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {steps: run(spark, skewed, folder / steps.__name__, None, steps)[0] for steps in (windows, sessions, two_steps)}


@pytest.mark.usefixtures("divides_early")
@pytest.mark.parametrize("strategy", SPLITTING, ids=repr)
def test_flow_when_its_keys_are_divided_has_the_rows_of_whole_keys(strategy, spark, skewed, whole, tmp_path):
    found, figures, changes = run(spark, skewed, tmp_path / "c", strategy, windows)
    assert found == whole[windows]
    assert sum(f.divided_rows for f in figures) > 1_000
    assert [change.split(" the keys")[0] for change in changes] == ["In epochs with fewer than 65,536 records"]
    hot = max((f for f in figures if f.divided_rows), key=lambda f: f.divided_rows).hot_keys[0]
    assert hot.key in ("0.0", "-0.0")
    assert 0.4 < hot.share < 0.6
    assert hot.workers >= 1 + (strategy != ps.ByPartition())  # files are one sender


@pytest.mark.usefixtures("divides_early")
@pytest.mark.parametrize("steps", [sessions, two_steps])
@pytest.mark.parametrize("strategy", [ps.Histogram(), ps.WChoices()], ids=repr)
def test_steps_when_keys_are_divided_have_the_rows_of_whole_keys(strategy, steps, spark, skewed, whole, tmp_path):
    assert run(spark, skewed, tmp_path / "c", strategy, steps, workers=3, files=1)[0] == whole[steps]


@pytest.mark.usefixtures("divides_early")
@pytest.mark.parametrize("strategy", [ps.Histogram(), ps.WChoices()], ids=repr)
def test_flow_when_its_input_comes_from_a_users_function_or_a_region_is_divided_all_the_same(
    strategy, spark, skewed, whole, tmp_path
):
    def through_python(stream):
        return stream.map_batches(lambda batch: batch, SCHEMA)

    def through_a_region(stream):
        return stream.key_by("v").deduplicate("k", "at", "d", "w").local()

    found, figures, _ = run(spark, skewed, tmp_path / "c", strategy, windows, before=through_python)
    assert found == whole[windows]
    assert sum(f.divided_rows for f in figures) > 1_000
    by_key = run(spark, skewed, tmp_path / "a", None, windows, before=through_a_region)[0]
    found, figures, _ = run(spark, skewed, tmp_path / "b", strategy, windows, before=through_a_region)
    assert found == by_key
    assert sum(f.divided_rows for f in figures) > 1_000


def test_flow_when_epochs_are_small_keeps_keys_whole(spark, skewed, whole, tmp_path):
    found, figures, _ = run(spark, skewed, tmp_path / "c", ps.Histogram(), windows)
    assert found == whole[windows]
    assert not any(f.divided_rows for f in figures)


@pytest.mark.usefixtures("divides_early")
def test_flow_when_the_jvm_combines_does_not_divide(spark, skewed, tmp_path):
    def counted(stream):
        return stream.window(ps.tumbling("5 seconds")).aggregate(n=ps.count(), d=ps.sum("d"))

    found, figures, changes = run(spark, skewed, tmp_path / "c", ps.WChoices(), counted)
    assert found == run(spark, skewed, tmp_path / "b", None, counted)[0]
    assert not any(f.divided_rows for f in figures)
    (sentence,) = changes
    assert sentence.startswith(
        "Region 'k' does not need WChoices(theta=None) for aggregate(n, d), and does not use it: Spark combines"
    )


@pytest.mark.usefixtures("divides_early")
def test_loads_when_half_of_the_rows_have_one_key_are_even(spark, skewed, tmp_path):
    for at, strategy in enumerate((ps.Histogram(), ps.WChoices())):
        _, (figures, *_), _ = run(spark, skewed, tmp_path / f"c{at}", strategy, windows, files=3)
        assert sum(figures.worker_rows) >= 11_000
        assert max(figures.worker_rows) <= 1.1 * sum(figures.worker_rows) / 4
        assert figures.imbalance <= 0.025
    _, (figures, *_), _ = run(spark, skewed, tmp_path / "whole", None, windows, files=3)
    assert figures.imbalance > 0.25


def test_stage_when_it_shares_rows_over_spark_is_even_and_has_the_rows_without_it(spark, skewed, whole, tmp_path):
    def marked(batch):
        return batch.set_column(2, "v", pa.array(batch.column(2).to_pylist(), pa.int64()))

    for at, strategy in enumerate((ps.Shuffle(), ps.PowerOfTwoChoices())):
        out, figures = ps.memory(f"{tmp_path}-{at}"), []
        flow = ps.Flow("shared")
        source = flow.source("s", ps.files(str(skewed), SCHEMA, max_files_per_epoch=1), time="at", lateness="5 seconds")
        shared = source.distribute(strategy, workers=3).map_batches(marked, SCHEMA).local()
        windows(shared.key_by("k")).sink(out)

        def keep(step, at=at, figures=figures):
            if step == "committed":
                figures.append(Checkpoint(str(tmp_path / f"c{at}")).last().figures.regions["stage"].worker_rows)

        run = flow.start(spark, checkpoint=str(tmp_path / f"c{at}"), workers=2, trigger="available_now", on_step=keep)
        assert run.await_termination(600)
        assert sorted(map(repr, out.rows())) == whole[windows]
        loads = [rows for rows in figures if sum(rows)]
        assert len(loads) == 3
        for rows in loads:
            assert sum(rows) >= 3_500
            assert max(rows) <= 1.1 * sum(rows) / 3


FROM_OUTSIDE = """
from dataclasses import dataclass
import numpy as np
from penstock.routing.strategy import MERGING, Memory, Strategy

class Turns(Memory):
    def begin(self, sender):
        return {"next": np.zeros(1, np.int64)}

    def route_sender(self, hashes, memory, out):
        out[:] = (memory["next"][0] + np.arange(len(hashes))) % self.workers
        memory["next"][0] += len(hashes)

@dataclass(frozen=True)
class InTurn(Strategy):
    splits_keys = True
    fits = MERGING

    def router(self, workers):
        return Turns(workers)
"""


@pytest.mark.usefixtures("divides_early")
def test_strategy_from_outside_when_only_the_driver_can_import_it_divides_keys(spark, skewed, whole, tmp_path, monkeypatch):
    (tmp_path / "of_a_strategist.py").write_text(FROM_OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)  # of this process, not of the workers
    strategy = importlib.import_module("of_a_strategist").InTurn()
    found, figures, _ = run(spark, skewed, tmp_path / "c", strategy, windows)
    assert found == whole[windows]
    assert sum(f.divided_rows for f in figures) == 12_000
    assert max(f.imbalance for f in figures) < 0.02


@pytest.mark.usefixtures("divides_early")
def test_histogram_when_keys_cool_down_and_others_get_hot_divides_those_and_counts_fewer_epochs_while_all_is_even(
    spark, tmp_path, monkeypatch
):
    rng = np.random.default_rng(3)
    hot = [5, 5, None, None, None, None, None, 9, 9, 9, 9, 9, None]
    for order, key in enumerate(hot):
        rows = [
            {"k": key if key is not None and rng.random() < 0.6 else int(rng.integers(0, 4_000)), "v": int(rng.integers(0, 99))}
            for _ in range(4_000)
        ]
        write_parquet(tmp_path / "in", rows, pa.schema([("k", pa.int64()), ("v", pa.int64())]), order)
    counted, figures, jobs = dividing.count_rows, [], []
    monkeypatch.setattr(dividing, "count_rows", lambda *given: jobs.append(len(given[3])) or counted(*given))
    out = ps.memory(f"{tmp_path}")
    flow = ps.Flow("drift")
    source = flow.source("s", ps.files(str(tmp_path / "in"), "k long, v long", max_files_per_epoch=1))
    source.key_by("k", distribute=ps.Histogram()).aggregate(u=Total("v"), n=ps.count()).sink(out)

    def keep(step):
        if step == "committed":
            figures.append(Checkpoint(str(tmp_path / "c")).last().figures.regions["k"])

    run = flow.start(spark, checkpoint=str(tmp_path / "c"), workers=4, trigger="available_now", on_step=keep)
    assert run.await_termination(600)
    divided = [f.divided_rows > 2_000 for f in figures[: len(hot)]]
    assert divided[:3] == [True, True, False]
    assert not any(divided[2:7])
    assert divided[10:] == [True, True, False]
    assert 1 in jobs
    assert len(jobs) < len(hot)
    read = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "in").iterdir())]).to_pandas()
    last = {row["k"]: (row["u"], row["n"]) for row in out.rows()}
    wanted = read.groupby("k")["v"].agg(["sum", "count"])
    assert last == {k: (u, n) for k, u, n in wanted.itertuples()}


@pytest.mark.usefixtures("divides_early")
@pytest.mark.parametrize("strategy", [ps.Histogram(), ps.WChoices()], ids=repr)
def test_epoch_that_is_repeated_after_a_failure_is_routed_alike(strategy, spark, skewed, whole, tmp_path):
    run(spark, skewed, tmp_path / "undisturbed", strategy, windows, files=1)
    wanted = Checkpoint(str(tmp_path / "undisturbed")).last().regions["k"].routers
    out, steps = ps.memory(f"{tmp_path}"), []
    flow = ps.Flow("divided")
    source = flow.source("s", ps.files(str(skewed), SCHEMA, max_files_per_epoch=1), time="at", lateness="5 seconds")
    windows(source.key_by("k", distribute=strategy)).sink(out)

    def fail(step):
        steps.append(step)
        if steps.count("commit") == 2 and step == "commit":
            raise RuntimeError("on purpose")

    started = flow.start(spark, checkpoint=str(tmp_path / "c"), workers=4, trigger="available_now", on_step=fail)
    with pytest.raises(ps.PenstockError, match="on purpose"):
        started.await_termination(600)
    again = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    assert again.await_termination(600)
    assert sorted(map(repr, out.rows())) == whole[windows]
    assert Checkpoint(str(tmp_path / "c")).last().regions["k"].routers == wanted
    assert wanted
