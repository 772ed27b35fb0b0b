"""Where a recomputation begins when the user says since when records matter."""

import datetime as dt
import sqlite3

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.sources.base import Source
from penstock.testing import Harness

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RECORDS = [{"p": 0, "o": i, "k": "ab"[i % 2], "at": BEGIN + dt.timedelta(seconds=10 * i)} for i in range(60)]


class Log(Source):
    schema = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def bursts(database):
    flow = ps.Flow("bursts")
    records = flow.source("log", Log(), time="at", position=("p", "o"), partitions=(0,))
    window = records.key_by("k").window(ps.session("25 seconds"))
    window.aggregate(n=ps.count()).sink(ps.sql(f"sqlite:///{database}", "bursts"), name="bursts")
    return flow


def fed(harness, records):
    for begin in range(0, len(records), 5):
        harness.push("log", records[begin : begin + 5])
        harness.epoch()


def stored(database):
    with sqlite3.connect(database) as connection:
        return sorted(connection.execute("SELECT * FROM bursts"))


def gap(records):
    """Records with a pause after each 20th, so that sessions end."""
    return [{**r, "at": r["at"] + dt.timedelta(minutes=r["o"] // 20)} for r in records]


@pytest.mark.parametrize(
    ("since", "start"),
    [(None, 27), ("2026-01-01 00:03:30", 19), (BEGIN + dt.timedelta(minutes=4), 19)],
    ids=["none", "text", "time"],
)
def test_recomputation_when_since_is_given_begins_there_and_gives_the_same(tmp_path, since, start):
    records = gap(RECORDS)
    with Harness(bursts(tmp_path / "a.db"), checkpoint=str(tmp_path / "lost")) as harness:
        fed(harness, records[:40])
    again = Harness(bursts(tmp_path / "a.db"), checkpoint=str(tmp_path / "new"), recover="recompute", since=since)
    assert again.record.recovery.starts == {"log/0": start}
    fed(again, records)
    again.finish()
    assert again.record.recovery.starts["log/0"] <= 19  # where the session began that is open at the mark
    with Harness(bursts(tmp_path / "b.db")) as clean:
        fed(clean, records)
        clean.finish()
    assert stored(tmp_path / "a.db") == stored(tmp_path / "b.db")


def test_start_when_since_is_no_time_or_nothing_is_recomputed_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match="is no time"):
        Harness(bursts(tmp_path / "a.db"), recover="recompute", since="noon")
    with pytest.raises(DeclarationError, match="add recover='recompute'"):
        Harness(bursts(tmp_path / "a.db"), since="2026-01-01")
    with pytest.raises(DeclarationError, match="use 'checkpoint' or 'recompute'"):
        Harness(bursts(tmp_path / "a.db"), recover="log")
