"""A sink that wants its rows' positions gets the same over Spark as in the harness, given in the driver or staged by tasks."""

from __future__ import annotations

import datetime as dt
import pickle
from collections import Counter
from dataclasses import dataclass

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.sinks import parts
from penstock.testing import Harness
from penstock.types import ORDER

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("p", pa.string()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())]
)
ROWS = [
    {"p": f"part {o % 3}", "o": 7 * o, "k": "ab"[o % 2], "at": fr.moment(o - 3 * (o % 5)), "v": o} for o in range(90)
]  # fmt: skip


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


class Positions:
    """Keeps rows with their positions."""

    durable, wants_positions = False, True

    def __init__(self):
        self.rows = Counter()

    def validate(self, schema, *, updates, key):
        pass

    def open(self, claim, schema):
        self.names = schema.names
        assert self.names[-4:] == [*ORDER]

    def keep(self, rows):
        self.rows.update(tuple(row.values()) for row in rows)
        return len(rows)

    def held(self, output):
        return None

    def write(self, batches, mark):
        return self.keep([row for batch in batches for row in batch.select(self.names).to_pylist()])

    def close(self):
        pass


class Staged(Positions):
    """The same of a sink that stages."""

    def stager(self, mark):
        names = self.names
        return lambda batches, _: (pickle.dumps(batch.select(names).to_pylist()) for batch in batches)

    def commit(self, tokens, mark):
        return self.keep([row for token in tokens for row in pickle.loads(token)])


def twice(key, event, state):
    n = (state or 0) + 1
    return [(key, n), (key, -n)], n


def flow_of(source, made):
    flow = ps.Flow("positions")
    events = flow.source("events", source, time="at", lateness="2 seconds", position=("p", "o"))
    by_key = events.key_by("k")
    outputs = {
        "source": events,
        "late": events.late,
        "twice": by_key.stateful_map(twice, "k string, n long"),
        "windows": by_key.window(ps.tumbling("4 seconds")).aggregate(n=ps.count()),
    }
    for name, stream in outputs.items():
        for kind in (Positions, Staged):
            made[name, kind] = kind()
            stream.sink(made[name, kind], name=f"{name}{kind.__name__}")
    return flow


STORED_ORDER = ("__ps_part", "__ps_offset", "__ps_sub", "__ps_partition")


def stored_flow(source, made, place):
    """As `flow_of`, into sinks that are given rows in the driver and sinks that stage, which store positions."""
    flow = ps.Flow("stored")
    events = flow.source("events", source, time="at", lateness="2 seconds", position=("p", "o"))
    by_key = events.key_by("k")
    outputs = {"source": events, "late": events.late, "twice": by_key.stateful_map(twice, "k string, n long")}
    outputs["windows"] = by_key.window(ps.tumbling("4 seconds")).aggregate(n=ps.count())
    for name, stream in outputs.items():
        for kind, sink in (("memory", ps.memory(f"{place}/{name}")), ("parquet", ps.parquet(place / name))):
            made[name, kind] = sink
            stream.sink(sink, name=f"{name} {kind}", positions=True)
    return flow


def test_positions_that_are_stored_over_spark_are_those_of_the_harness(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    in_process, over_spark = {}, {}
    with Harness(stored_flow(Reader(), in_process, tmp_path / "h")) as harness:
        harness.push("events", ROWS)
        harness.finish()
    fr.write_parquet(tmp_path / "in", ROWS, SCHEMA, 0)
    source = spark.readStream.schema("p string, o long, k string, at timestamp, v long").parquet(str(tmp_path / "in"))
    run = stored_flow(source, over_spark, tmp_path / "s").start(
        spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="available_now"
    )
    assert run.await_termination(600)
    for name in ("source", "late", "twice", "windows"):
        found = in_process[name, "memory"].rows()
        order = ("__ps_time",) * (name != "late") + STORED_ORDER
        wanted = Counter(tuple(row[c] for c in order) for row in found)
        assert wanted
        for rows in (
            over_spark[name, "memory"].rows(), pq.read_table(tmp_path / "h" / name).to_pylist(), pq.read_table(tmp_path / "s" / name).to_pylist()
        ):  # fmt: skip
            assert Counter(tuple(row[c] for c in order) for row in rows) == wanted, name
            assert {tuple(r.values()) for r in rows} == {tuple(r.values()) for r in found}, name


def test_positions_over_spark_are_those_of_the_harness(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    in_process, over_spark = {}, {}
    with Harness(flow_of(Reader(), in_process)) as harness:
        harness.push("events", ROWS)
        harness.finish()
    for i in range(3):
        fr.write_parquet(tmp_path / "in", ROWS[30 * i : 30 * i + 30], SCHEMA, i)
    frame = spark.readStream.schema("p string, o long, k string, at timestamp, v long")
    source = frame.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    run = flow_of(source, over_spark).start(spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="available_now")
    assert run.await_termination(600)
    for (name, kind), sink in in_process.items():
        assert sink.rows, name
        assert over_spark[name, kind].rows == sink.rows, (name, kind)
        assert in_process[name, Staged].rows == in_process[name, Positions].rows, name
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    first = next(row for row in in_process["source", Positions].rows if row[4] == 0)
    assert first[5] == (fr.moment(0) - start) // dt.timedelta(microseconds=1)
