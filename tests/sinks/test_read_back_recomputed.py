"""A region behind stored rows whose checkpoint is lost is computed anew from these rows: the log they came from is not needed."""

from __future__ import annotations

import random
import sqlite3

import pytest
from test_read_back import FIRST, SECOND, records, sources

import penstock as ps
from penstock.errors import RecoveryError
from penstock.testing import Crash, Harness

PARTS = 8
SIZES = {"map": None, "sessions": 3, "distinct": 3, "short": 4, "long": 12}


def reading(sink, database, kinds, most):
    """The flow that reads stored rows, and keeps what it gives in tables."""
    flow = ps.Flow("reading")
    rows = flow.source("back", ps.read_back(sink, max_rows_per_epoch=most)).with_columns(half="v % 3")
    for kind in kinds:
        keyed = rows.key_by("half", name=f"two {kind}")
        if kind in SECOND:
            made = SECOND[kind](keyed)
        else:
            made = keyed.window(ps.tumbling(f"{SIZES[kind]} seconds")).aggregate(n=ps.count(), z=ps.last("v"))
        made.sink(ps.sql(f"sqlite:///{database}", kind), name=kind)
    return flow


def held(database, kinds):
    with sqlite3.connect(database) as connection:
        return {kind: sorted(map(repr, connection.execute(f'SELECT * FROM "{kind}"'))) for kind in kinds}


def read_all(harness):
    """Epochs until nothing new comes."""
    before = None
    while (now := harness.epoch().sources["back"].partitions) != before or (
        harness.record.recovery and harness.record.recovery.active
    ):
        before = now


class Stored:
    """A table of rows with their positions, which grows; and what wrote it."""

    def __init__(self, rig, first, seed):
        self.sink, self.seed, self.part = rig.sink(), seed, 0
        flow = ps.Flow("storing")
        FIRST[first](sources(flow)).sink(self.sink, name="out", positions=True)
        self.writer = Harness(flow)

    def grow(self, parts):
        for _ in range(parts):
            for name, whole in (("s", records(self.seed)), ("t", records(self.seed + 1))):
                self.writer.push(name, whole[len(whole) * self.part // PARTS : len(whole) * (self.part + 1) // PARTS])
            self.part += 1
            self.writer.epoch()


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("first", ["source", "windows", "both"])
def test_region_behind_stored_rows_whose_checkpoint_is_lost_is_computed_from_them(sqlite_rig, first, seed, tmp_path):
    dice = random.Random(f"{first} {seed}")
    kinds = dice.sample(sorted(SIZES), 3)
    stored, database = Stored(sqlite_rig, first, seed), tmp_path / "reading.db"
    steps = [0]

    def step(name):
        steps[0] -= 1
        if steps[0] == 0:
            raise Crash(name)

    anew = 0
    for start in range(4):
        stored.grow(2)
        if start == 3:
            stored.writer.finish()
        steps[0] = dice.randrange(5, 40) if start in (1, 2) else 0
        flow = reading(stored.sink, database, kinds, dice.choice([None, 13, 50]))
        try:
            with Harness(flow, checkpoint=str(tmp_path / str(start)), recover="recompute", on_step=step) as harness:
                anew += harness.record.recovery is not None
                read_all(harness)
                if start == 3:
                    harness.finish()
        except Crash:
            continue
    assert anew > 1
    clean = tmp_path / "clean.db"
    with Harness(reading(stored.sink, clean, kinds, None)) as harness:
        read_all(harness)
        harness.finish()
    assert all(held(clean, kinds).values())
    assert held(database, kinds) == held(clean, kinds)


def test_stored_rows_some_of_which_are_gone_are_refused_before_anything_is_stored(sqlite_rig, tmp_path):
    stored, database, kinds = Stored(sqlite_rig, "source", 1), tmp_path / "reading.db", ["map"]
    stored.grow(7)
    with Harness(reading(stored.sink, database, kinds, None)) as harness:
        read_all(harness)
    before = held(database, kinds)
    stored.writer.finish()
    sqlite_rig.query("DELETE FROM results WHERE v = 1")
    with (
        Harness(reading(stored.sink, database, kinds, None), checkpoint=str(tmp_path / "new"), recover="recompute") as harness,
        pytest.raises(RecoveryError, match="has other records"),
    ):
        read_all(harness)
    assert held(database, kinds) == before
