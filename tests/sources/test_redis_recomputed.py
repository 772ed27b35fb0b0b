"""State computed anew from Redis streams on a real server, with tables and another stream as sinks: exact, or the streams are not those of before and it is refused."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict

import pytest

import penstock as ps
from penstock.errors import RecordError, RecoveryError
from penstock.redis_client.connection import connect
from penstock.testing import Crash, Harness

ALL, HALF, WINDOW, PARTITIONS = 60, 40, 10, 2


class Case:
    """Two streams of entries, one for each second, and a flow over them."""

    def __init__(self, url, name, folder):
        self.url, self.name, self.folder, self.client = url, name, folder, connect(url)
        self.audit, self.steps, self.audited = False, 0, 0
        self.entries = [{"p": v % PARTITIONS, "k": "ab"[v % 3 % 2], "v": v, "s": v} for v in range(ALL)]

    def key(self, partition):
        return f"{{{self.name}:{partition}}}"

    def add(self, entries):
        for x in entries:
            self.client.xadd(
                self.key(x["p"]),
                {"k": x["k"], "v": x["v"], "at": f"1970-01-01T00:00:{x['s']:02}Z"},
                id=f"{1000 + x.get('id', x['s'])}-1",
            )

    def flow(self):
        flow = ps.Flow("redis recomputed")
        source = ps.redis_streams(self.url, self.name, PARTITIONS, "k string, v long, at timestamp", max_rows_per_epoch=14)
        rows = flow.source("events", source, time="at", lateness="3 seconds", partitions=[*range(PARTITIONS)])
        rows.sink(ps.redis_stream(self.url, f"{self.name}-out", 2, key="k"), name="stream")
        rows.sink(ps.sql(f"sqlite:///{self.folder}/out.db", "rows"), name="rows")
        totals = rows.key_by("k").window(ps.tumbling(f"{WINDOW} seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
        totals.sink(ps.sql(f"sqlite:///{self.folder}/out.db", "totals"), name="totals")
        totals.sink(ps.redis_stream(self.url, f"{self.name}-totals", 1), name="totals stream")
        return flow

    def step(self, name):
        self.steps -= 1
        self.audited += name.startswith("audit")
        if self.steps == 0:
            raise Crash(name)

    def run(self, checkpoint, *, finish=False):
        with Harness(
            self.flow(), checkpoint=str(self.folder / checkpoint), recover="recompute", audit=self.audit, on_step=self.step
        ) as harness:
            before = None
            while (now := harness.epoch().sources["events"].rows) != before:
                before = now
            for _ in range(9):  # what is read again is no new record
                harness.epoch()
            if finish:
                harness.available()
            return harness.record

    def held(self):
        out = ps.redis_streams(self.url, f"{self.name}-out", 2, "k string, v long, at timestamp").records({})
        totals = ps.redis_streams(
            self.url, f"{self.name}-totals", 1, "k string, n long, total long", other_fields="ignore"
        ).records({})
        with sqlite3.connect(self.folder / "out.db") as connection:
            tables = [Counter(connection.execute(q)) for q in ("SELECT k, v FROM rows", "SELECT k, n, total FROM totals")]
        streams = [(out, ("k", "v")), (totals, ("k", "n", "total"))]
        return [
            *tables,
            *(Counter() if t is None else Counter(tuple(x[n] for n in names) for x in t.to_pylist()) for t, names in streams),
        ]

    def wanted(self):
        windows = defaultdict(list)
        for x in self.entries:
            windows[x["k"], x["s"] // WINDOW].append(x["v"])
        rows, totals = (
            Counter((x["k"], x["v"]) for x in self.entries),
            Counter((k, len(v), sum(v)) for (k, _), v in windows.items()),
        )
        return [rows, totals, rows, totals]


@pytest.fixture
def case(redis_url, stream, tmp_path):
    made = Case(redis_url, f"recomputed-{stream}", tmp_path)
    made.add(made.entries[:HALF])
    made.run("lost")
    return made


def test_checkpoint_that_is_lost_is_computed_from_the_streams_and_sinks_of_all_kinds_hold_each_row_once(case):
    case.add(case.entries[HALF:])
    record = case.run("new", finish=True)
    assert record.recovery.starts["events/0"] > 0
    assert case.held() == case.wanted()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 9))])
def test_recomputation_that_crashes_again_and_again_while_every_third_epoch_is_audited_stores_each_row_once(case, seed):
    dice = random.Random(seed)
    case.add(case.entries[HALF:])
    case.audit, crashed = 3, 0
    for start in range(4):
        case.steps = dice.randrange(3, 50) if start < 3 else 0
        try:
            case.run(f"new {start - start % 2 * dice.randrange(2)}", finish=start == 3)
        except Crash:
            crashed += 1
    assert crashed > 1
    assert case.audited
    assert case.held() == case.wanted()


def trimmed(case, second):
    for partition in range(PARTITIONS):
        case.client.xtrim(case.key(partition), minid=f"{1000 + second}-0", approximate=False)


def made_anew(case, entries):
    for partition in range(PARTITIONS):
        case.client.delete(case.key(partition))
    case.add(entries)


OTHERS = {
    "trimmed": lambda case: trimmed(case, HALF - 4),
    "an entry deleted": lambda case: case.client.xdel(case.key(0), f"{1000 + HALF - 4}-1"),
    "made anew": lambda case: made_anew(case, case.entries[HALF - 8 : HALF]),
    "made anew with another id": lambda case: made_anew(
        case, [{**x, "id": x["s"] + (x["s"] == HALF - 4)} for x in case.entries[:HALF]]
    ),
    "shorter": lambda case: made_anew(case, case.entries[: HALF - 6]),
    "gone": lambda case: made_anew(case, []),
}


@pytest.mark.parametrize("later", [0, ALL - HALF], ids=["as long as it was", "with later entries"])
@pytest.mark.parametrize("what", OTHERS)
def test_streams_that_are_not_those_of_before_are_refused_before_anything_is_stored(case, what, later):
    before = case.held()
    OTHERS[what](case)
    case.add(case.entries[HALF : HALF + later])
    with pytest.raises((RecoveryError, RecordError)):
        case.run("new", finish=True)
    assert case.held() == before


def test_streams_whose_first_entries_nobody_needs_any_more_may_be_trimmed(case):
    trimmed(case, HALF // 3)
    case.add(case.entries[HALF:])
    assert case.run("new", finish=True).recovery.starts["events/0"] > 0
    assert case.held() == case.wanted()
