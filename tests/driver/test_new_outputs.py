"""An output that a changed flow has for the first time, in a recomputation: it is given the rows after the last of the sinks' marks."""

import datetime as dt
import sqlite3

import pyarrow as pa

import penstock as ps
from penstock.sources.base import Source
from penstock.testing import Harness

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Log(Source):
    schema = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def flow_of(database, minutes, *, new):
    flow = ps.Flow("f")
    records = flow.source("log", Log(), time="at", position=("p", "o"), partitions=(0,))
    counted = records.key_by("k").window(ps.tumbling(f"{minutes} minutes")).aggregate(n=ps.count())
    counted.sink(ps.sql(database, "counted"), name="counted")
    records.sink(ps.sql(database, "all_rows"), name="all_rows")
    if new:
        records.sink(ps.sql(database, "fresh"), name="fresh")
    return flow


def fed(harness, records):
    for begin in range(0, len(records), 5):
        harness.push("log", records[begin : begin + 5])
        harness.epoch()


def test_new_output_when_state_is_computed_again_is_given_the_rows_after_the_marks(tmp_path):
    database, kept = f"sqlite:///{tmp_path / 'a.db'}", str(tmp_path / "kept")
    records = [{"p": 0, "o": i, "k": "k", "at": BEGIN + dt.timedelta(minutes=i)} for i in range(30)]
    with Harness(flow_of(database, 5, new=False), checkpoint=kept) as harness:
        fed(harness, records[:20])
    with Harness(flow_of(database, 7, new=True), checkpoint=kept, recover="recompute") as again:
        recovery = again.record.recovery
        assert recovery.outputs["fresh"] == recovery.passed + len(recovery.stops)
        fed(again, records)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        offsets = [o for (o,) in connection.execute("SELECT o FROM fresh ORDER BY o")]
    assert offsets == list(range(20, 30))
