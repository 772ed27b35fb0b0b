"""The schema of a source is another one when state is computed anew: the rows are right, or it is refused before anything is stored."""

from __future__ import annotations

import datetime as dt
import sqlite3

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import RecoveryError
from penstock.sources.base import Source
from penstock.testing import Harness

ALL, LOST = 60, 40
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
FIRST = {"k": pa.string(), "at": pa.timestamp("us", "UTC"), "v": pa.int32(), "unread": pa.string()}
OTHERS = {
    "a column more": {**FIRST, "more": pa.float64()},
    "a wider column": {**FIRST, "v": pa.int64()},
    "a column gone that nothing reads": {n: t for n, t in FIRST.items() if n != "unread"},
    "columns in another order": dict(reversed(FIRST.items())),
}


class Records(Source):
    def __init__(self, columns):
        self.schema = pa.schema([*columns.items(), ("p", pa.int64()), ("o", pa.int64())])


def run(folder, columns, checkpoint, rows, *, time="at", database="out", finish=False):
    url = f"sqlite:///{folder}/{database}.db"
    flow = ps.Flow("schemas")
    events = flow.source(
        "events", Records(columns), time=time, lateness="2 seconds", partitions=(0,), position=("p", "o"), on_error="skip"
    )
    totals = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.max("v"))
    totals.sink(ps.sql(url, "totals"), name="totals")
    events.select("k", "cast(v AS long) AS v").sink(ps.sql(url, "rows"), name="rows")
    with Harness(flow, checkpoint=str(folder / checkpoint), recover="recompute") as harness:
        for at in range(0, len(rows), 10):
            harness.push("events", [{n: row.get(n) for n in [*columns, "p", "o"]} for row in rows[at : at + 10]])
            harness.epoch()
        if finish:
            harness.finish()
        return harness.record


def held(folder, database="out"):
    with sqlite3.connect(folder / f"{database}.db") as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}")) for table in ("totals", "rows")]


def records():
    at = [BEGIN + dt.timedelta(seconds=i) for i in range(ALL)]
    return [{"p": 0, "o": i, "k": "ab"[i % 2], "at": at[i], "v": i, "unread": "x", "more": 0.5} for i in range(ALL)]


@pytest.mark.parametrize("kept", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("other", OTHERS)
def test_schema_that_reads_the_same_values_gives_the_same_rows(tmp_path, other, kept):
    run(tmp_path, FIRST, "clean", records(), database="clean", finish=True)
    run(tmp_path, FIRST, "first", records()[:LOST])
    rows = records()[LOST:] if kept else records()
    record = run(tmp_path, OTHERS[other], "first" if kept else "new", rows, finish=True)
    assert (record.recovery is None) == kept
    assert held(tmp_path) == held(tmp_path, "clean")


@pytest.mark.parametrize("times", ["other times", "the same greatest time"])
def test_event_time_of_another_column_is_refused(tmp_path, times):
    run(tmp_path, FIRST, "first", records()[:LOST])
    before, rows = held(tmp_path), records()
    for i, row in enumerate(rows):
        row["sent"] = row["at"] + dt.timedelta(seconds=1 if times == "other times" else (1, -1)[i % 2] if 30 < i < 35 else 0)
    with pytest.raises(RecoveryError, match="with other positions or times"):
        run(tmp_path, {**FIRST, "sent": FIRST["at"]}, "new", rows, time="sent")
    assert held(tmp_path) == before


def test_record_that_the_other_schema_makes_malformed_is_missed(tmp_path):
    run(tmp_path, FIRST, "first", records()[:LOST])
    before, rows = held(tmp_path), records()
    rows[36]["at"] = None
    with pytest.raises(RecoveryError, match=r"\(1 fewer\)"):
        run(tmp_path, {**FIRST, "sent": FIRST["at"]}, "new", rows)
    assert held(tmp_path) == before
