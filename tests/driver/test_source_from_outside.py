"""A source that penstock does not know: its declaration, its reader, and one line that registers the reader are all that is added."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ChangedFlowError, DeclarationError
from penstock.sources import Source
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Ticks(Source):
    """Numbers from 0 on, some per epoch, an epoch a second."""

    per_epoch: int
    position: tuple[str, str] | None = None
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    steady = True

    def meaning(self):
        return {"kind": "ticks", "rate": f"{self.per_epoch} per epoch"}

    def records(self, after):
        values = range(max(after.values(), default=-1) + 1, 1000)[: self.per_epoch]
        times = [BEGIN + dt.timedelta(seconds=v // self.per_epoch) for v in values]
        return pa.table([times, values], schema=self.schema)


def declare(source, sink):
    flow = ps.Flow("ticks")
    stream = flow.source("s", source, time="timestamp").select("value", "timestamp", k="value % 2")
    stream.key_by("k").stateful_map(numbered, "value long, n long").sink(sink)
    return flow


def numbered(_, row, state):
    return (row.value, (state or 0) + 1), (state or 0) + 1


def wanted(rows):
    return [(v, v // 2 + 1) for v in range(rows)]


def found(out):
    return sorted((r["value"], r["n"]) for r in out.rows())


def test_source_from_outside_when_run_in_process_is_read_once_over_a_crash_and_a_restart(tmp_path):
    crash = []

    def on_step(name):
        if name == "commit" and crash:
            raise crash.pop()

    out = ps.memory(f"{tmp_path}")
    with Harness(declare(Ticks(3), out), checkpoint=str(tmp_path), on_step=on_step) as harness:
        harness.epoch()
        crash.append(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            harness.epoch()
        harness.restart()
        harness.resume()
        state = harness.record.sources["s"]
        assert (state.rows, state.partitions["0"].offset) == (6, 5)
    with Harness(declare(Ticks(3), out), checkpoint=str(tmp_path)) as harness:
        harness.finish()
        assert harness.record.sources["s"].partitions["0"].offset == 8
    assert found(out) == wanted(9)


def test_source_that_names_its_position_columns_has_them_where_the_user_names_none(tmp_path):
    out = ps.memory(f"{tmp_path}")
    with Harness(declare(Ticks(4, ("value", "value")), out)) as harness:
        harness.epoch()
        assert {n: s.offset for n, s in harness.record.sources["s"].partitions.items()} == {"0": 0, "1": 1, "2": 2, "3": 3}
        harness.finish()
    assert found(out) == wanted(8)


def test_flow_whose_source_from_outside_means_something_else_now_is_refused(tmp_path):
    with Harness(declare(Ticks(3), ps.noop()), checkpoint=str(tmp_path)) as harness:
        harness.epoch()
    with pytest.raises(ChangedFlowError, match=r"3 per epoch.*4 per epoch"):
        Harness(declare(Ticks(4), ps.noop()), checkpoint=str(tmp_path))


@pytest.mark.spark
def test_source_from_outside_when_run_over_spark_gives_what_it_gives_in_process(spark, tmp_path, monkeypatch):
    from penstock.spark.sources.reader import Reader
    from penstock.spark.sources.readers import READERS

    class TicksReader(Reader):
        needs = ("value",)

        @staticmethod
        def stream(spark, source):
            options = {"rowsPerBatch": source.connector.per_epoch, "numPartitions": 1, "advanceMillisPerBatch": 1000}
            stream = spark.readStream.format("rate-micro-batch").options(**options)
            return stream.option("startTimestamp", int(BEGIN.timestamp() * 1000)).load()

        def offset(self):
            return "value"

        def offset_bits_left(self):
            return 0

    out, c = ps.memory(f"{tmp_path}"), str(tmp_path / "c")
    with pytest.raises(DeclarationError, match=r"'s' is Ticks\(.*\), which penstock cannot read over Spark"):
        declare(Ticks(3), out).start(spark, checkpoint=c)
    monkeypatch.setitem(READERS, Ticks, TicksReader)
    for drain in (False, True):
        run = declare(Ticks(3), out).start(spark, checkpoint=c, trigger="available_now", drain=drain)
        assert run.await_termination(300)
    source = run.progress["sources"]["s"]
    assert found(out) == wanted(source["rows"])
    assert source["rows"] >= 6
