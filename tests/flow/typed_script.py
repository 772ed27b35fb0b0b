"""A user's script, as `mypy --strict` must see it: nothing is Any that has a type. Checked by `test_types_for_users`; never run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.driver.commands import CommandHandle
from penstock.driver.run import Run
from penstock.flow.distributed import DistributedStream
from penstock.flow.windowed import WindowedStream
from penstock.operators.aggregates import Kernel
from penstock.operators.windows import Session, Spans
from penstock.sinks import Sink
from penstock.sinks.memory import MemorySink
from penstock.sinks.redis_stream import RedisStreamSink
from penstock.sources import Files, Rate, ReadBack, RedisStreams
from penstock.testing import Harness

Row = tuple[str, int]


def longest(key: str, event: Any, state: int | None) -> tuple[Iterable[Row], int]:
    most = max(state or 0, event.delay)
    return [(key, most)], most


def seen(key: str, event: Any, state: int | None) -> tuple[None, int, dt.datetime]:
    return None, (state or 0) + 1, event.at + dt.timedelta(hours=1)


def unseen(key: str, state: int, at: dt.datetime) -> tuple[Row, int, dt.datetime | None]:
    return (key, state), 0, None if state else at + dt.timedelta(hours=1)


class Product(ps.Aggregate):
    type = "bigint"

    def zero(self) -> int:
        return 1

    def add(self, state: int, value: int) -> int:
        return state * value

    def merge(self, a: int, b: int) -> int:
        return a * b

    def finish(self, state: int) -> int:
        return state


class Twice(ps.Operator):
    schema = "n bigint"


def grouped() -> None:
    group = ps.Group("redis://localhost", "g", member="a", lease="1 second", grace=timedelta(seconds=8))
    assert_type(group.lease_ms, int)
    with ps.Producer("redis://localhost", "orders", 8, key="user") as producer:
        assert_type(producer.send(user="a", n=1), tuple[int, str])
        assert_type(producer.send_many([{"user": "a"}]), list[tuple[int, str]])
    consumer = ps.Consumer(group, "orders", 8, on_error="retry")
    for partition, entries in consumer:
        assert_type(entries[0].fields, dict[str, str])
        assert_type(consumer.ack(partition, entries), bool)
    assert_type(consumer.owned, set[int])


def declared(spark: SparkSession, frame: DataFrame) -> ps.Flow:
    flow = ps.Flow("flights")
    assert_type(flow, ps.Flow)
    assert_type(ps.files("in", "tail string, at timestamp", "csv", max_files_per_epoch=1, escape="\\"), Files)
    assert_type(ps.rate(rows_per_second=5), Rate)
    events = flow.source("events", ps.files("in", "tail string"), time="at", lateness=timedelta(seconds=1), on_error="skip")
    assert_type(events, ps.Stream)
    flow.source("frame", frame, position=("part", "offset"), partitions=[0, 1], on_error=ps.memory("bad"))
    flow.source("ticks", ps.rate())
    assert_type(events.where("delay > 0").select("tail", hours="delay / 60").with_columns(n="1"), ps.Stream)
    assert_type(events.union(events), ps.Stream)
    assert_type(events.split(late="delay > 0")["late"], ps.Stream)
    assert_type(events.late.sink(ps.console(limit=3), name="late"), ps.Stream)
    assert_type(
        events.distribute(ps.Shuffle(), workers=2, name="calls").where("delay > 0").distribute(ps.ByPartition()),
        DistributedStream,
    )
    assert_type(events.distribute(ps.Shuffle()).local(), ps.Stream)
    keyed = events.key_by("tail", workers=2, name="tails", distribute=ps.KeyGrouping())
    assert_type(keyed, ps.KeyedStream)
    assert_type(events.key_by("tail", name="hot", distribute=ps.Isolate(above=0.4, rows=500)), ps.KeyedStream)
    assert_type(keyed.stateful_map(longest, "tail string, most int", "most int", on_error=ps.noop()), ps.KeyedStream)
    assert_type(keyed.stateful_map(seen, "tail string, n int", ttl="1 day", on_timer=unseen), ps.KeyedStream)
    assert_type(keyed.aggregate(n=ps.count(), name="totals"), ps.KeyedStream)
    assert_type(keyed.window(ps.tumbling("1 hour")), WindowedStream)
    assert_type(keyed.window(ps.session("1 hour")).aggregate(n=ps.sum("delay")), ps.KeyedStream)
    assert_type(keyed.window(ps.sliding("1 hour", "1 minute")).aggregate(emit="update", n=Product("delay")), ps.KeyedStream)
    assert_type(keyed.deduplicate("flight", within="1 day"), ps.KeyedStream)
    assert_type(keyed.join(events.key_by("tail"), "1 hour", "left"), ps.KeyedStream)
    assert_type(keyed.match("SELECT * WHERE A ; B", {"A": "delay > 0"}, on_timeout="A").timeouts, ps.KeyedStream)
    assert_type(keyed.process(Twice(), on_error=ps.memory("skipped")).local(), ps.Stream)
    assert_type((ps.tumbling("1 hour"), ps.session(timedelta(1))), tuple[Spans, Session])
    assert_type(ps.read_back(ps.parquet("out"), "tail string", output="kept", max_rows_per_epoch=9), ReadBack)
    assert_type(ps.redis_streams("redis://localhost", "orders", 8, "tail string", on_trim="skip").only(3), RedisStreams)
    events.sink(ps.parquet("kept"), name="kept", positions=True)
    assert_type((ps.parquet(Path("out")), ps.sql("sqlite:///a.db", "t", "upsert", ["k"])), tuple[Sink, Sink])
    assert_type(ps.foreach_epoch(lambda table, epoch: print(table.num_rows, epoch + 1)), Sink)
    assert_type(ps.redis_stream("redis://localhost", "totals", 2, key="tail"), RedisStreamSink)
    assert_type(ps.memory("rows"), MemorySink)
    assert_type(ps.memory("rows").rows(), list[dict[str, Any]])
    kernels = [ps.count("a"), ps.sum("a", exact=True), ps.mean("a"), ps.min("a"), ps.max("a"), ps.stddev("a"), ps.first("a")]
    kernels += [
        ps.last("a"),
        ps.collect("a"),
        ps.count_distinct("a"),
        ps.approx_count_distinct("a", 0.1),
        ps.avg("a"),
        ps.quantile("a", 0.5),
    ]
    assert_type(kernels, list[Kernel])
    assert_type(ps.match(frame, "SELECT * WHERE A", order_by="at", enumerate_with=ps.CountedSplit()), DataFrame)
    assert_type(ps.match({"s": frame}, "SELECT * WHERE A", order_by=["at"], enumerate_with=ps.Maximal()), DataFrame)
    assert_type(ps.MaximalDisjoint(light=1).light, int)
    assert_type(ps.read_state(spark, "checkpoint", "tails"), DataFrame)
    assert_type(ps.explain(str(ps.parse("SELECT * WHERE A"))), str)
    strategies = [ps.PartialKeyGrouping(), ps.DChoices(epsilon=0.01), ps.WChoices(0.1), ps.ConsistentGrouping(virtual=5)]
    routed = [
        ps.route(s, np.arange(3), workers=2) for s in (*strategies, ps.ByPartition(), ps.Shuffle(), ps.PowerOfTwoChoices())
    ]
    assert_type(routed, list[npt.NDArray[np.int32]])
    assert_type(ps.route(ps.Histogram(slack=0.1), [1], workers=2, senders=[0], epochs=[0]), npt.NDArray[np.int32])
    assert_type(ps.skew(frame, "tail", workers=2, senders=3), pd.DataFrame)
    assert_type(ps.__version__, str)
    return flow


def started(spark: SparkSession, flow: ps.Flow) -> None:
    run = flow.start(
        spark,
        checkpoint=Path("checkpoint"),
        workers={"tails": 2},
        trigger=timedelta(milliseconds=200),
        recover="checkpoint",
        drain=False,
        step_budget=None,
        forget=["tails/totals"],
    )
    assert_type(run, Run)
    assert_type(flow.start(checkpoint="checkpoint", trigger="available_now", workers=3), Run)
    handle = run.scale("tails", 4)
    assert_type(handle, CommandHandle)
    assert_type(run.scale(workers=4).wait(timeout=10), bool)
    assert_type((handle.done, handle.replaced, handle.progress), tuple[bool, str, dict[str, Any]])
    assert_type(run.move("tails", ["N1"], None), CommandHandle)
    assert_type((run.snapshot("noon"), run.load("noon", keep_output=True)), tuple[CommandHandle, CommandHandle])
    assert_type((run.active, run.outcome, run.exception), tuple[bool, str, ps.PenstockError | None])
    assert_type((run.progress, run.routing("tails"), run.changes), tuple[dict[str, Any], list[int], tuple[str, ...]])
    assert_type((run.shutdown(drain=False, timeout=1.0), run.await_termination()), tuple[bool, bool])
    flow.explain()
    ps.watch(run, every=1.0)
    assert_type((run.name, run.state, handle.state), tuple[str, str, str])
    assert_type(Harness(flow), Harness)
