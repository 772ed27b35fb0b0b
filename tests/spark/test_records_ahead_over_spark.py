"""Records that are too far ahead, over Spark: put aside are those of the harness, however they and late ones are looked for."""

from __future__ import annotations

import random

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.spark.sources import ahead_records, late_records

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("p", pa.int32()), ("o", pa.int64())])
COLUMNS = "k string, at timestamp, p int, o long"


def declare(connector, **options):
    def given(sink):
        flow = ps.Flow("ahead")
        events = flow.source("events", connector, time="at", lateness="3 seconds", ahead="20 seconds", **options)
        events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).sink(sink("windows"))
        events.select("k", "at", "p", "o").sink(sink("on time"))
        events.late.sink(sink("late"))
        events.ahead.sink(sink("ahead"))
        return flow

    return given


def records(n, seed=3):
    """Some of another century, some late, and a silence that is too long for one partition, of which all that follows is ahead."""
    dice, now, offsets, out = random.Random(seed), 0, [-4, 4_090], []  # across an edge of chunks
    for i in range(n):
        now += dice.choice([0, 1, 2])
        p = dice.choice([0, 0, 1])
        offsets[p] += dice.choice([1, 2])
        wrong = dice.choice([0] * 9 + [30_000_000_000]) if i else 0
        silent = 30 if p and i > n // 2 else 0
        at = fr.moment(now - dice.choice([0, 0, 1, 5, 9]) + wrong + silent)
        out.append({"k": "k", "at": at, "p": p, "o": offsets[p]})
    return out


WRITTEN_OUT, JOINED, BY_TASKS = (64, 1 << 18, 2_000), (0, 1 << 18, 3), (0, -1, 0)


@pytest.mark.parametrize(
    ("few", "rows", "late", "positions"),
    [
        pytest.param(*WRITTEN_OUT, True, id="written out-positions in columns"),
        pytest.param(*JOINED, False, id="joined-positions of files"),
        pytest.param(*BY_TASKS, True, id="joined, by tasks-positions in columns", marks=pytest.mark.soak),
        pytest.param(*BY_TASKS, False, id="joined, by tasks-positions of files"),
        pytest.param(*WRITTEN_OUT, False, id="written out-positions of files", marks=pytest.mark.soak),
        pytest.param(*JOINED, True, id="joined-positions in columns", marks=pytest.mark.soak),
    ],
)
def test_records_ahead_however_they_are_looked_for_are_those_of_the_harness(
    spark, tmp_path, monkeypatch, few, rows, late, positions
):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(ahead_records, "FEW", few)
    monkeypatch.setattr(late_records, "SMALL_ROWS", rows)
    monkeypatch.setattr(late_records, "MANY_LATE", late)
    given = records(90)
    for i in range(3):
        fr.write_parquet(tmp_path / "in", given[i * 30 : i * 30 + 30], SCHEMA, i)
    options = {"position": ("p", "o")} if positions else {}
    made = declare(ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=1), **options)
    found = fr.over_spark(spark, tmp_path / "c", made)
    wanted = fr.in_harness(declare(ps.files("none", COLUMNS), **options), {"events": given})
    assert not fr.difference(found, wanted)
    assert sum(wanted["ahead"].values()) > 5
    assert sum(wanted["late"].values()) > 10


def test_one_record_from_another_century_makes_nothing_late_and_what_is_wholly_ahead_is_not_read_one_by_one(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    asked, whole = [], ahead_records.within_ranges

    def within(rows, ranges, how, *, timed):
        asked.extend([len(ranges)] * (not timed))
        return whole(rows, ranges, how, timed=timed)

    monkeypatch.setattr(ahead_records, "within_ranges", within)
    for i, seconds in enumerate([(0, 1, 2), (3, 30_000_000_000, 4), (5, 6, 60), (100, 101, 102)]):
        fr.write_parquet(tmp_path / "in", [{"k": "k", "at": fr.moment(s), "p": 0, "o": 0} for s in seconds], SCHEMA, i)
    found = fr.over_spark(spark, tmp_path / "c", declare(ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=1)))
    assert {name: sum(rows.values()) for name, rows in found.items()} == {"windows": 1, "on time": 7, "late": 0, "ahead": 5}
    assert asked == [1, 1]  # the second file's chunk and the third's; of the last one footers and chunks say enough
