"""What disturbs an epoch whose keys are divided, or a key that is being isolated: files replaced between two readings, and commands."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter

import flow_runs as fr
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import RecordError
from penstock.protocol.rescale import Limits
from penstock.spark import dividing, engine

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
FILES, ROWS, WORKERS = 14, 1_200, 3


@pytest.fixture
def folder(tmp_path):
    """Files of which half of the rows have one key."""
    dice = random.Random(3)
    for file in range(FILES):
        rows = [
            {"k": "hot" if dice.random() < 0.5 else f"k{dice.randrange(200)}", "at": fr.moment(file), "v": file * ROWS + i}
            for i in range(ROWS)
        ]
        fr.write_parquet(tmp_path / "in", rows, SCHEMA, file)
    return tmp_path / "in"


def read(folder):
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())]).to_pandas()


@pytest.mark.parametrize(
    ("strategy", "after", "epoch"),
    [
        pytest.param(ps.Histogram(), "sample_rows", 0, marks=pytest.mark.soak),
        (ps.Histogram(), "count_rows", 1),
        (ps.WChoices(), "sample_rows", 1),
    ],
    ids=["histogram, sampled", "histogram, counted", "choices, sampled"],
)
def test_file_that_is_replaced_between_two_readings_of_an_epoch_stops_the_flow_and_nothing_of_it_counts(
    strategy, after, epoch, spark, folder, tmp_path, monkeypatch
):
    for module in (dividing, engine):
        monkeypatch.setattr(module, "LEAST_ROWS", 100)
    monkeypatch.setattr(dividing, "HOT_ROWS", 32)
    wanted = read(folder).groupby("k")["v"].nunique().to_dict()
    victim, kept = sorted(folder.iterdir())[epoch], tmp_path / "kept.parquet"
    shutil.copy2(victim, kept)
    look, calls = getattr(dividing, after), []

    def replaced(*given):
        found = look(*given)
        calls.append(after)
        if len(calls) == epoch + 1:  # an epoch reads one file
            table = pq.read_table(victim)
            keys = np.roll(table["k"].to_numpy(zero_copy_only=False), 7)
            other = table.set_column(0, "k", pa.array(np.where(keys == "hot", "other", keys)))
            pq.write_table(other.slice(3), victim)
        return found

    monkeypatch.setattr(dividing, after, replaced)
    out = ps.memory(f"{tmp_path}")
    flow = ps.Flow("disturbed")
    source = flow.source("s", ps.files(str(folder), "k string, at timestamp, v long", max_files_per_epoch=1), time="at")
    day = source.key_by("k", distribute=strategy).window(ps.tumbling("1 day"))
    day.aggregate(u=ps.quantile("v", 0.5), n=ps.count_distinct("v")).sink(out)
    options = {"checkpoint": str(tmp_path / "c"), "workers": WORKERS, "trigger": "available_now"}
    with pytest.raises(RecordError, match=rf"{victim.name} of source 's' is .*epoch {epoch}[, ]"):
        flow.start(spark, **options).await_termination(300)
    assert Checkpoint(options["checkpoint"]).last().epoch == epoch - 1
    shutil.copy2(kept, victim)
    os.utime(victim, ns=(kept.stat().st_mtime_ns,) * 2)
    assert flow.start(spark, **options).await_termination(300)
    assert {r["k"]: r["n"] for r in out.rows()} == wanted
    assert Checkpoint(options["checkpoint"]).last().regions["k"].routers


def numbered(key, event, state):
    n = (state or 0) + 1
    return (key, n, event.v), n


COMMANDS = {
    "scale": lambda run, dice: run.scale("k", dice.randint(1, 5)),
    "move": lambda run, dice: run.move("k", ["hot"], dice.choice([0, 1, None])),
    "move others": lambda run, dice: run.move("k", ["k1", "k2"], dice.choice([0, 1])),
    "snapshot": lambda run, _: run.snapshot("meanwhile"),
    "load": lambda run, _: run.load("meanwhile"),
}
PAIRS = [("scale", "move"), ("move", "scale"), ("move others", "move"), ("snapshot", "load"), ("scale", "scale")]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" then ".join)
def test_two_commands_while_a_hot_key_is_being_isolated_give_the_rows_without_them(pair, spark, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    dice, given, phases = random.Random(str(pair)), [], []
    flow, out = ps.Flow("isolated"), ps.memory(f"{tmp_path}")
    source = flow.source("s", ps.files(str(folder), "k string, at timestamp, v long", max_files_per_epoch=1))
    keyed = source.key_by("k", workers=WORKERS, distribute=ps.Isolate(rows=200))
    keyed.stateful_map(numbered, "k string, n long, v long").sink(out, name="numbered")
    opened, left, runs = Checkpoint(str(tmp_path / "c")), list(pair), []

    def give(step):
        if (
            step == "decide"
            and left
            and opened.last().epoch >= 0
            and (goal := opened.last().regions["k"].control.goal or given)
        ):
            phases.append(goal)
            given.append(COMMANDS[left.pop(0)](runs[0], dice))

    small = Limits(first_bytes=300, least_bytes=300, most_bytes=900, hold_bytes=100_000, measure_entries=50)
    options = {"checkpoint": str(tmp_path / "c"), "trigger": "available_now", "on_step": give, "step_budget": small}
    runs.append(flow.start(spark, **options))
    assert runs[0].await_termination(300)
    assert len(given) == 2, "the key was not isolated"
    everything = read(folder)
    assert sorted((r["k"], r["v"]) for r in out.rows()) == sorted(zip(everything["k"], everything["v"], strict=True))
    assert Counter(r["k"] for r in out.rows()) == {r["k"]: r["n"] for r in sorted(out.rows(), key=lambda r: r["n"])}
