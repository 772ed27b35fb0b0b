"""Stored rows that somebody deletes or changes between a run that reads them and its recomputation: refused before anything is stored, or it did not matter."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from test_read_back_recomputed import read_all

import penstock as ps
from penstock.errors import RecoveryError, SinkError
from penstock.progress import lateness
from penstock.rows.stored_positions import stored_columns
from penstock.sources.read_back import ReadBack
from penstock.testing import Harness
from penstock.types import MAX_TIME, Mark

SECOND, WINDOW, HALF, ALL = 1_000_000, 5, 30, 50
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
STORED = "k, v, __ps_time, __ps_part, __ps_offset, __ps_sub, __ps_partition"


class Rows:
    """Stored rows as (time in s, offset, k, v): a table of them, and what a flow makes of them.

    Args:
        rig: Where the table is.
        dice: Draws them.
    """

    def __init__(self, rig, dice):
        self.rig, self.dice, self.sink, self.epoch = rig, dice, rig.sink(), 0
        time, self.here = 0, []
        for i in range(ALL):
            time += dice.choice([0, 0, 0, 1, 2])
            self.here.append((time, 10 * i, dice.choice("ab"), i))
        self.schema = stored_columns(SCHEMA, timed=True)
        self.sink.validate(self.schema, updates=False, key=())

    def store(self, rows, frontier):
        columns = [
            pa.array([r[2] for r in rows], pa.string()), pa.array([r[3] for r in rows], pa.int64()),
            *(pa.array(c, pa.int64()) for c in ([SECOND * r[0] for r in rows], [0] * len(rows), [r[1] for r in rows], [0] * len(rows))),
            pa.array(["s/0"] * len(rows), pa.string()),
        ]  # fmt: skip
        self.sink.open(Mark("storing", "out", 1, self.epoch - 1), self.schema)
        self.sink.write(pa.table(columns, schema=self.schema).to_batches(), Mark("storing", "out", 1, self.epoch, frontier))
        self.epoch += 1

    def edit(self, read):
        """Do something to one of the rows that were read, or to two; gives what, and the rows that are there then."""
        at, other = sorted(self.dice.sample(range(read), 2))
        (time, offset, k, v), second = self.here[at], self.here[other]
        what = self.dice.choice(["deleted", "replaced", "first deleted", "dated anew", "exchanged", "added", "moved"])
        there, query = [*self.here], self.rig.query
        if what == "first deleted":
            query(f"DELETE FROM results WHERE v <= {v}")
            there = there[at + 1 :]
        elif what in ("deleted", "replaced"):
            query(f"DELETE FROM results WHERE v = {v}")
            del there[at]
        elif what == "dated anew":
            there[at] = (time + self.dice.choice([-3, 1, 9]), offset, k, v)
            query(f"UPDATE results SET __ps_time = {SECOND * there[at][0]} WHERE v = {v}")
        elif what == "exchanged":
            there[at], there[other] = (second[0], offset, k, v), (time, *second[1:])
            query(f"UPDATE results SET __ps_time = {SECOND * second[0]} WHERE v = {v}")
            query(f"UPDATE results SET __ps_time = {SECOND * time} WHERE v = {second[3]}")
        elif what == "moved":
            there[at] = (time, offset + 5, k, v)
            query(f"UPDATE results SET __ps_offset = {offset + 5} WHERE v = {v}")
        if what in ("added", "replaced"):
            there.append((second[0], second[1] + 1, "a", 99))
            query(f"INSERT INTO results ({STORED}) VALUES ('a', 99, {SECOND * second[0]}, 0, {second[1] + 1}, 0, 's/0')")
        return what, sorted(there)

    def reading(self, database):
        flow = ps.Flow("reading")
        rows = flow.source("back", ps.read_back(self.sink, max_rows_per_epoch=self.dice.choice([None, 7, 20])))
        rows.sink(ps.sql(f"sqlite:///{database}", "rows"), name="rows")
        totals = rows.key_by("k").window(ps.tumbling(f"{WINDOW} seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
        totals.sink(ps.sql(f"sqlite:///{database}", "totals"), name="totals")
        return flow


def held(database):
    with sqlite3.connect(database) as connection:
        rows = sorted(connection.execute("SELECT k, v FROM rows"))
        return rows, sorted(connection.execute("SELECT k, n, total FROM totals"))


def wanted(rows):
    windows = defaultdict(list)
    for time, _, k, v in rows:
        windows[k, time // WINDOW].append(v)
    return sorted((k, v) for _, _, k, v in rows), sorted((k, len(vs), sum(vs)) for (k, _), vs in windows.items())


def check(rig, folder, seed):
    """Read, lose the checkpoint, edit, compute anew; gives what was done, and whether it was refused."""
    dice, database = random.Random(seed), folder / f"{seed}.db"
    rows = Rows(rig, dice)
    rows.store(rows.here[:HALF], SECOND * rows.here[HALF - 1][0])
    with Harness(rows.reading(database), checkpoint=str(folder / f"{seed} lost")) as harness:
        read_all(harness)
        read = harness.record.sources["back"].rows
    before, whole = held(database), rows.here
    what, there = rows.edit(read)
    rows.store(rows.here[HALF:], MAX_TIME)
    refusal = ""
    try:
        with Harness(rows.reading(database), checkpoint=str(folder / f"{seed} new"), recover="recompute") as harness:
            assert harness.record.recovery is not None
            read_all(harness)
            harness.finish()
    except (RecoveryError, SinkError) as error:
        refusal = str(error)
    found = held(database)
    assert found in ([before] if refusal else [wanted(whole), wanted(there)]), f"seed {seed}: {what}: {refusal}"
    return what, bool(refusal)


def search(rig, folder, seeds):
    counted = Counter()
    for seed in seeds:
        counted[check(rig, folder, seed)] += 1
        rig.query("DROP TABLE results")
        rig.query("DELETE FROM penstock_marks")
    return sum(n for (_, refused), n in counted.items() if refused)


def test_stored_rows_that_were_deleted_or_changed_are_refused_or_did_not_matter(sqlite_rig, tmp_path):
    assert search(sqlite_rig, tmp_path, range(43, 50)) > 2


@pytest.mark.soak
def test_three_hundred_tables_of_stored_rows_that_were_changed_are_refused_or_it_did_not_matter(sqlite_rig, tmp_path):
    assert search(sqlite_rig, tmp_path, range(300)) > 100


def positions_alone(patch):
    """A row that takes the number of another one is not told from it."""
    patch.setattr(ReadBack, "fingerprint", ())


def number_and_greatest_time(patch):
    patch.setattr(lateness, "print_after", lambda *_: None)


@pytest.mark.parametrize("mutant", [positions_alone, number_and_greatest_time], ids=lambda m: m.__name__)
def test_search_when_less_of_the_rows_is_remembered_finds_a_difference(sqlite_rig, tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="seed 49: added"):
        search(sqlite_rig, tmp_path, [49])
