"""Stages of workers for stateless steps: the rows of the flow without them, evenly shared, rescaled while data flows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import penstock as ps
from penstock.driver.commands import hashes_of
from penstock.errors import DeclarationError
from penstock.testing import Crash, Harness

SCHEMA = "k string, at timestamp, v long"
STRATEGIES = [ps.Shuffle(), ps.PowerOfTwoChoices(), ps.ByPartition()]


def doubled(batch):
    """Two rows for every odd value."""
    values = batch.column(2).to_pylist()
    rows = [i for i, v in enumerate(values) for _ in range(1 + v % 2)]
    taken = batch.take(pa.array(rows, pa.int64()))
    return pa.RecordBatch.from_arrays([*taken.columns, pa.array(rows)], names=["k", "at", "v", "_row"])


def declared(name, strategy, *, timed, workers=3):
    out, late = ps.memory(f"{name}-out"), ps.memory(f"{name}-late")
    flow = ps.Flow("shared")
    stream = flow.source("s", ps.files("none", SCHEMA), **({"time": "at", "lateness": "3 seconds"} if timed else {}))
    if timed:
        stream.late.sink(late)
    if strategy is not None:
        stream = stream.where("v >= 0").distribute(strategy, workers=workers)
    stream = stream.map_batches(doubled, SCHEMA).where("v <> 7")
    if strategy is not None:
        stream = stream.local()
    keyed = stream.key_by("k")
    keyed.aggregate(n=ps.count(), f=ps.first("v"), c=ps.collect("v")).sink(out)
    return flow, out, late


def run(name, strategy, seed, *, timed, rescaled=False, crashes=False):
    rng, disturbs = random.Random(seed), random.Random(seed + 1_000)
    flow, out, late = declared(name, strategy, timed=timed)
    steps = {"left": 0}

    def on_step(step):
        steps["left"] -= 1
        if steps["left"] == 0:
            raise Crash(step)

    seen = set()
    with Harness(flow, workers=2, on_step=on_step) as harness:
        for epoch in range(6):
            for partition in range(3):
                rows = [
                    {
                        "k": rng.choice("abc"),
                        "at": 1_700_000_000_000_000 + epoch * 2_000_000 + rng.randrange(6_000_000),
                        "v": rng.randrange(9),
                    }
                    for _ in range(rng.randrange(12))
                ]
                if rows:
                    harness.push("s", rows, partition)
            wanted, steps["left"] = (
                disturbs.choice([1, 2, 5, 50]),
                disturbs.randrange(1, 12) if crashes and disturbs.random() < 0.5 else 0,
            )
            try:
                record = harness.epoch()
            except Crash:
                harness.restart()
                record = harness.resume()
            steps["left"] = 0
            if strategy is not None:
                seen.add(record.figures.regions["stage"].worker_rows)
                if rescaled and disturbs.random() < 0.5:
                    harness.scale("stage", wanted)
        harness.finish()
    return sorted(map(repr, out.rows())), sorted(map(repr, late.rows())), seen


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_flow_when_a_stage_shares_its_rows_has_the_rows_without_it(strategy, timed):
    for seed in range(4):
        wanted = run(f"plain{seed}{timed}", None, seed, timed=timed)[:2]
        for rescaled, crashes in ((False, False), (True, False), (True, True)):
            name = f"{strategy}{seed}{timed}{rescaled}{crashes}"
            assert run(name, strategy, seed, timed=timed, rescaled=rescaled, crashes=crashes)[:2] == wanted


def test_shuffle_when_a_stage_shares_its_rows_gives_each_worker_as_many():
    flow, _, _ = declared("even", ps.Shuffle(), timed=False, workers=4)
    with Harness(flow) as harness:
        for _ in range(3):
            harness.push("s", [{"k": "a", "at": i, "v": i % 9} for i in range(30)])
            rows = harness.epoch().figures.regions["stage"].worker_rows
            assert sorted(rows) == [7, 7, 8, 8]
        harness.scale("stage", 5)
        harness.settle()
        harness.push("s", [{"k": "a", "at": i, "v": i % 9} for i in range(30)])
        assert harness.epoch().figures.regions["stage"].worker_rows == (6,) * 5


def test_stage_when_it_is_declared_wrongly_or_its_keys_are_moved_is_refused():
    source = ps.Flow("f").source("s", ps.files("none", SCHEMA))
    for wrong in (ps.Histogram(), ps.KeyGrouping(), ps.Isolate()):
        with pytest.raises(
            DeclarationError, match=r"these rows have no key; use Shuffle\(\), PowerOfTwoChoices\(\) or ByPartition"
        ):
            source.distribute(wrong)
    with pytest.raises(DeclarationError, match=r"needs a distribution strategy, such as penstock.Shuffle\(\)"):
        source.distribute(ps.Shuffle)
    source.distribute(ps.Shuffle(), name="calls")
    with pytest.raises(DeclarationError, match="two regions named 'calls'"):
        source.distribute(ps.Shuffle(), name="calls")
    with pytest.raises(DeclarationError, match="A stage without keys has none that could be moved"):
        hashes_of(["a"], pa.schema([]))


def test_stages_when_they_have_no_names_are_numbered():
    flow = ps.Flow("f")
    stream = flow.source("s", ps.files("none", SCHEMA))
    for _ in range(2):
        stream = stream.distribute(ps.Shuffle()).map_batches(doubled, SCHEMA).local()
    stream.sink(ps.memory("numbered"))
    assert [r.name for r in flow.plan().regions] == ["stage", "stage-2"]
