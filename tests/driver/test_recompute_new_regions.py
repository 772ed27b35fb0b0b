"""A new region before one that has not changed, while another one must be computed anew: what it reads now is another stream, so its state does not go on."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

import penstock as ps
from penstock.driver import recompute
from penstock.sources.base import Source
from penstock.testing import Harness

SCHEMA = [("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us")), ("v", pa.int64())]
ROWS = [{"p": 0, "o": i, "k": "ab"[i % 2], "at": 1_000_000 * i, "v": i // 4} for i in range(60)]
LOST = 35


class Numbers(Source):
    schema = pa.schema(SCHEMA)


def run(folder, rows, *, new, place="out", finish=False):
    flow = ps.Flow("new regions")
    events = flow.source("events", Numbers(), time="at", partitions=(0,), position=("p", "o"))
    read = events.key_by("k", "v", name="once").deduplicate() if new else events
    counts = read.key_by("k", name="counts").window(ps.tumbling("20 seconds")).aggregate(n=ps.count())
    out = ps.memory(f"{folder} {place}")
    counts.sink(out, name="counts")
    aside = events.key_by("k", name="aside").window(ps.tumbling("8 seconds" if new else "7 seconds")).aggregate(n=ps.count())
    aside.sink(ps.memory(f"{folder} {place} aside"), name="aside")
    with Harness(flow, checkpoint=str(folder / place), recover="recompute") as harness:
        for at in range(0, len(rows), 10):
            harness.push("events", rows[at : at + 10])
            harness.epoch()
        if finish:
            harness.finish()
    return Counter((row["window_start"].minute, row["window_start"].second, row["k"], row["n"]) for row in out.rows())


def both(folder):
    before = run(folder, ROWS[:LOST], new=False)
    clean = run(folder, ROWS, new=True, place="clean", finish=True)
    return run(folder, ROWS, new=True, finish=True) - before, Counter(
        {row: n for row, n in clean.items() if row[:2] >= (0, 20)}
    )


def test_region_behind_a_new_one_is_computed_anew_with_it(tmp_path):
    found, wanted = both(tmp_path)
    assert found == wanted


def test_region_behind_a_new_one_that_rests_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(recompute, "resting_regions", lambda _plan, report, _last: tuple(report.kept))
    found, wanted = both(tmp_path)
    assert found != wanted
