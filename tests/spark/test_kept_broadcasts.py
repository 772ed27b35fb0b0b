"""What Spark builds of a table of `lookup` is built once per version of it, whatever epochs there are, and is gone with the version."""

from __future__ import annotations

import gc
import time

import flow_runs as fr
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.flow import plan as p
from penstock.spark import lookups
from penstock.spark.internals import broadcasts
from penstock.spark.internals.broadcasts import Broadcasts, joins_of, with_kept
from penstock.spark.internals.plans import as_rdd

pytestmark = pytest.mark.spark

COLUMNS = "n long, k string, at timestamp"
SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
ROWS = [{"n": n, "k": "abc"[n % 3], "at": fr.moment(n)} for n in range(12)]
TABLE = pa.table({"k": ["a", "b"], "to": ["A", "B"], "more": [1, 2]})


def put(folder, epochs):
    for i in range(epochs):
        fr.write_parquet(folder, ROWS[2 * i : 2 * i + 2], SCHEMA, i)
    return ps.files(str(folder), COLUMNS, max_files_per_epoch=1)


def besides(flow):
    """The tables of a flow, by the columns that they add."""
    plan = flow.plan()
    found = p.upstream_of(p.StepNode, *p.readers(plan.regions, plan.outputs))
    return {n.sql.beside.columns[0][1]: n.sql.beside for n in found if n.sql is not None and n.sql.beside is not None}


def exchanges(kept):
    return [exchange for _, _, exchange in kept.made]


def built(of):
    """Of a table, how often it was built for a join."""
    made = [exchange for table in lookups.TABLES[of].values() for exchange in exchanges(table.kept)]
    assert all(exchange.relationFuture().isDone() for exchange in made)
    return len(made)


def declared(source, made):
    def declare(sink):
        flow = ps.Flow("kept")
        rows = flow.source("s", source, time="at", lateness="1 hour")
        once = rows.lookup(TABLE, "k").lookup(TABLE.rename_columns(["k", "again", "n"]).select([0, 1]), "k", "inner")
        once.key_by("k", name="totals").aggregate(n=ps.count(), last=ps.last("to"), most=ps.max("again")).sink(sink("region"))
        rows.lookup(TABLE.rename_columns(["k", "third", "m"]), "k").where("third = 'A' and n > 1").select("n").sink(
            sink("filtered")
        )
        made.append(flow)
        return flow

    return declare


def test_table_is_built_once_in_a_run_of_several_epochs_with_a_rescale_in_it(spark, tmp_path):
    source, flows = put(tmp_path / "in", 6), []
    wanted = fr.in_harness(declared(source, []), {"s": ROWS}, workers=2)
    sinks = fr.Sinks()
    flow = declared(source, flows)(sinks)
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now", workers=1)
    run.scale("totals", 3)
    assert run.await_termination(600)
    assert not fr.difference(sinks.content(), wanted)
    tables = besides(flow)
    assert {name: built(of) for name, of in tables.items()} == {"to": 1, "again": 1, "third": 1}


def test_table_behind_a_region_is_built_once_and_what_is_planned_is_not_planned_again(spark, tmp_path, monkeypatch):
    source, flows, times = put(tmp_path / "in", 5), [], []
    real = lookups.planned

    def counted(frame):
        times.append(frame)
        return real(frame)

    def declare(sink):
        flow = ps.Flow("behind")
        rows = flow.source("s", source, time="at", lateness="1 hour").lookup(TABLE, "k")
        windows = rows.key_by("k", name="counts").window(ps.tumbling("4 seconds"))
        counts = windows.aggregate(n=ps.count(), last=ps.last("to"))
        counts.sink(sink("counts"))
        again = TABLE.rename_columns(["k", "again", "m"])
        counts.lookup(again, "k").sink(sink("behind"))
        counts.lookup(again, "k").key_by("again", name="second").aggregate(n=ps.max("n")).sink(sink("second"))
        flows.append(flow)
        return flow

    wanted = fr.in_harness(declare, {"s": ROWS[:10]}, workers=2)
    monkeypatch.setattr(lookups, "planned", counted)
    sinks = fr.Sinks()
    run = declare(sinks).start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now", workers=2)
    assert run.await_termination(600)
    assert not fr.difference(sinks.content(), wanted)
    tables = [
        n.sql.beside for n in p.upstream_of(p.StepNode, *p.readers(flows[-1].plan().regions, flows[-1].plan().outputs)) if n.sql
    ]
    assert [built(of) for of in tables if of is not None] == [1, 1, 1]
    # In each epoch the three places where rows that look in a table are computed; one more epoch may end the run.
    assert len(times) in (15, 18)


def test_versions_that_are_gone_take_what_was_built_of_them_with_them(spark, tmp_path):
    source, calls, met = put(tmp_path / "in", 5), iter(range(100)), []

    def table():
        return pa.table({"k": ["a"], "call": [next(calls)]})

    def look(rows, epoch):
        gc.collect()
        met.append(len(lookups.TABLES_BY_COLUMN))

    before = len(lookups.TABLES_BY_COLUMN)
    flow = ps.Flow("versions")
    out = ps.memory("kept versions")
    looked = flow.source("s", source, time="at", lateness="1 hour").lookup(table, "k", refresh=0)
    looked.sink(out, name="out")
    looked.sink(ps.foreach_epoch(look), name="look")
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)
    assert len({row["call"] for row in out.rows() if row["k"] == "a"}) == 4  # a's records are in four of the epochs
    assert len(met) == 5
    assert max(met) <= before + 3  # that of the declaration, of the epoch before, and of the epoch


def test_broadcast_that_nobody_refers_to_is_gone_from_java(spark):
    table = spark.range(100).selectExpr("id as key", "id * 2 as value").localCheckpoint()
    kept = Broadcasts()
    joined = spark.range(5).join(F.broadcast(table), F.col("id") == F.col("key"))
    assert len(with_kept(joined, {"key": kept}.get).collect()) == 5
    [exchange] = exchanges(kept)
    weak = spark._jvm.java.lang.ref.WeakReference(exchange)
    del exchange, kept, joined
    until = time.monotonic() + 60
    while not weak.refersTo(None) and time.monotonic() < until:  # get() would keep it, until a thread of py4j's lets it go
        gc.collect()
        spark._jvm.System.gc()
        time.sleep(0.1)
    assert weak.refersTo(None)


def test_broadcast_that_failed_is_built_again(spark, tmp_path):
    (tmp_path / "broken").touch()
    path = str(tmp_path / "broken")

    def rows(batches):
        from pathlib import Path

        if Path(path).exists():
            raise ValueError("broken for now")
        yield from batches

    table = spark.range(3).selectExpr("id as key", "id as value").mapInArrow(rows, "key long, value long")
    kept = Broadcasts()

    def joined():
        return with_kept(spark.range(5).join(F.broadcast(table), F.col("id") == F.col("key")), {"key": kept}.get)

    with pytest.raises((PySparkException, Py4JError), match="broken for now"):
        joined().collect()
    (tmp_path / "broken").unlink()
    assert len(joined().collect()) == 3
    [first] = exchanges(kept)
    joined().collect()
    assert exchanges(kept)[0].equals(first)
    assert len(exchanges(kept)) == 1


def test_another_part_of_a_table_is_another_broadcast_and_few_are_kept(spark):
    table = spark.range(50).selectExpr("id as key", "id % 7 as value").localCheckpoint()
    kept = Broadcasts()
    for _ in range(2):
        for least in range(6):
            joined = spark.range(50).join(F.broadcast(table), F.col("id") == F.col("key")).where(f"value >= {least}")
            assert with_kept(joined, {"key": kept}.get).count() == sum(i % 7 >= least for i in range(50))
    assert len(exchanges(kept)) == 4


def test_join_is_found_wherever_it_is_in_a_plan_and_whatever_text_the_plan_has(spark):
    table = as_rdd(spark.range(50).selectExpr("id as key", "id % 7 as value"))
    kept = Broadcasts()
    odd = "'1\n+- BroadcastHashJoin [key]\n:  :- x\n   +- BroadcastHashJoin'"

    def looked_up(n):
        return (
            spark.range(n)
            .withColumn("text", F.expr(f"concat({odd}, id)"))
            .join(F.broadcast(table), F.col("id") == F.col("key"))
        )

    for _ in range(2):
        both = looked_up(30).unionByName(looked_up(20)).groupBy("value").agg(F.count("*").alias("n"), F.max("text"))
        found = with_kept(both.orderBy("value"), {"key": kept}.get)
        assert [row["n"] for row in found.collect()] == [sum(i % 7 == v for n in (30, 20) for i in range(n)) for v in range(7)]
    assert len(exchanges(kept)) == 1


TREE = """Sort (unknown)
+- Union (unknown)
   :- Project (unknown)
   :  +- BroadcastHashJoin LeftOuter BuildRight (unknown)
   :     :- BroadcastHashJoin Inner BuildRight (unknown)
   :     :  :- InMemoryTableScan (unknown)
   :     :  :     +- InMemoryRelation (unknown)
   :     :  :           +- BroadcastHashJoin Inner BuildRight (unknown)
   :     :  +- Scan ExistingRDD (unknown)
   :     +- Scan ExistingRDD (unknown)
   +- Filter (unknown)
      +- BroadcastHashJoin Inner BuildRight (unknown)
         :- Range (unknown)
         +- Scan ExistingRDD (unknown)"""


def test_places_of_joins_in_a_tree():
    assert joins_of(TREE) == [(0, 0, 0), (0, 0, 0, 0), (0, 1, 0)]
    assert joins_of("BroadcastHashJoin Inner BuildRight (unknown)\n:- Range (unknown)\n+- Range (unknown)\n") == [()]
    assert joins_of("") == []


def test_tables_of_others_are_broadcast_anew(spark, tmp_path):
    spark.range(3).write.parquet(str(tmp_path / "t"))
    joined = spark.range(5).join(
        F.broadcast(spark.read.parquet(str(tmp_path / "t")).withColumnRenamed("id", "key")), F.col("id") == F.col("key")
    )
    assert with_kept(joined, lambda _: None) is joined


def test_rows_where_spark_lacks_the_classes_are_the_same(spark, monkeypatch):
    table = spark.range(3).selectExpr("id as key", "id as value").localCheckpoint()
    joined = spark.range(5).join(F.broadcast(table), F.col("id") == F.col("key"))

    def lacking(*_):
        raise Py4JError("Constructor BroadcastExchangeExec does not exist")

    monkeypatch.setattr(broadcasts, "_kept", lacking)
    assert with_kept(joined, {"key": Broadcasts()}.get) is joined
