"""What is made once for all epochs, or in one call, gives what PySpark's own way gives; and so where a version lacks it."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.spark.internals import arrow_rows, found_files, queries
from penstock.spark.internals.arrow_rows import collected, map_in_arrow
from penstock.spark.internals.java_columns import columns_of, grouped_sql
from penstock.spark.internals.plans import Branch, plan_of, renamed

pytestmark = pytest.mark.spark


def doubling():
    def doubled(batches):  # in here, so that it is sent as a whole
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([2 * n for n in batch.column(0).to_pylist()], pa.int64())], ["n"])

    return doubled


def schema(text):
    return StructType.fromDDL(text)


def values(frame):
    return sorted(n for batch in collected(frame) for n in batch.column(0).to_pylist())


def test_functions_over_batches_give_the_same_rows_whichever_way_they_go(spark, monkeypatch):
    frame = spark.range(4).selectExpr("id as `a b`")
    wanted = frame.mapInArrow(doubling(), "n bigint")

    def lacking(*_):
        raise Py4JError("Constructor does not exist")

    with monkeypatch.context() as during:
        during.setattr(type(frame), "mapInArrow", lacking)  # not used
        found = [map_in_arrow(frame, doubling(), schema("n bigint"), names) for names in (None, ["a b"])]
    other = arrow_rows.begun(spark.sparkContext)
    other.udf = lacking
    monkeypatch.setattr(arrow_rows, "java_of", lambda _: other)
    found += [map_in_arrow(frame, doubling(), schema("n bigint")) for _ in range(2)]
    assert other.udf is None
    assert [values(rows) for rows in found] == [[0, 2, 4, 6]] * 4
    assert {str(rows.schema) for rows in found} == {str(wanted.schema)}


def test_functions_that_are_measured_are_pyspark_s(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "profiler_collector", object())
    assert arrow_rows.begun(spark.sparkContext).udf is None


def test_functions_are_sent_with_what_they_refer_to(spark):
    shared, large = spark.sparkContext.broadcast({"by": 10}), os.urandom(2 << 20)

    def times(batches):
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([shared.value["by"] * n for n in batch.column(0).to_pylist()])], ["n"])

    def sized(batches):
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([len(large)] * batch.num_rows)], ["n"])

    frame = spark.range(3)
    assert values(map_in_arrow(frame, times, schema("n bigint"))) == [0, 10, 20]
    assert values(map_in_arrow(frame, sized, schema("n bigint"))) == [2 << 20] * 3
    assert values(map_in_arrow(frame, doubling(), schema("n bigint"))) == [0, 2, 4]


def test_batches_are_in_the_types_of_a_table(spark):
    frame = spark.sql(
        "select 1 as a, timestamp'2024-05-01 10:00:00' as at, array(named_struct('x', cast(null as decimal(20, 2)))) as s"
    )
    table = frame.toArrow()
    assert pa.Table.from_batches(collected(frame)).cast(table.schema).equals(table)
    assert sum(batch.num_rows for batch in collected(frame.where("a = 2"))) == 0


def test_groups_by_text_are_those_of_columns(spark):
    frame = spark.range(10).selectExpr("id % 3 as `the key`", "id as v")
    wanted = frame.groupBy("the key", F.expr("v % 2 as odd")).agg(F.expr("sum(v) as total"), F.expr("count(1) as n"))
    for _ in range(2):  # the second time by what was made for the first
        found = grouped_sql(frame, ["`the key`", "v % 2 as odd"], ["sum(v) as total", "count(1) as n"])
        assert found.schema == wanted.schema
        assert sorted(found.collect()) == sorted(wanted.collect())
    assert grouped_sql(frame, [], ["max(v) as most"]).collect() == [(9,)]


def test_columns_are_made_once_in_an_application_and_mean_what_a_frame_gives_them(spark):
    context = spark.sparkContext
    assert columns_of(context, ["v + 1 as w"]) is columns_of(context, ["v + 1 as w"])
    for kind, wanted in (("int", 3), ("double", 3.5)):
        frame = spark.sql(f"select cast(2.5 as {kind}) as v")
        java = frame._jdf.select(columns_of(context, ["v + 1 as w"]))
        assert java.first().get(0) == wanted


def test_columns_are_renamed_by_place(spark):
    frame = spark.sql("select 1 as a, 2 as a, 3 as `b c`")
    assert renamed(frame, ["c0", "c1", "c2"]).collect()[0].asDict() == {"c0": 1, "c1": 2, "c2": 3}


def test_files_by_names_of_any_kind_are_as_spark_names_them(spark, tmp_path):
    names = ["plain-1_x.parquet", "a b.parquet", "ä%20+.parquet", "k=1/x@y,z.parquet"]
    rows = spark.range(1).toArrow()
    for chosen in (names[:1], names[3:], names):
        paths = [tmp_path / str(len(chosen)) / chosen[0][0] / name for name in chosen]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, path)
        escaped = [re.sub(r"([\\\[\]{}*?^])", r"\\\1", str(path)) for path in paths]
        frame = spark.read.schema("id long").parquet(*escaped)
        found = found_files.listed(frame)
        assert sorted(f.uri for f in found.files) == sorted(map(found_files.normal, frame.inputFiles()))
        assert sorted(f.size for f in found.files) == sorted(path.stat().st_size for path in paths)
        assert found.gone == ()


def test_branch_that_is_no_batch_in_this_version_is_left_as_it_is(spark, tmp_path):
    spark.range(3).write.parquet(str(tmp_path / "in"))
    branch = Branch(plan_of(spark.read.parquet(str(tmp_path / "in")).selectExpr("id as a").selectExpr("a as b")))
    assert branch.kind == "LogicalRelation"
    assert [a.name() for a in (branch.as_batch().output().apply(0),)] == ["b"]

    class Lacking:
        def __getattr__(self, name):
            if name == "copy":
                raise Py4JError("Method copy does not exist")
            return lambda *_: None

    branch.leaf = Lacking()
    assert branch.as_batch() is None


def test_batches_are_given_in_one_session_and_by_pyspark_where_java_lacks_the_helper(spark, tmp_path, monkeypatch):
    spark.range(6).repartition(3).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    sessions = {}
    for way in ("java", "pyspark"):
        if way == "pyspark":
            monkeypatch.setattr(queries, "HELPER", "org.apache.spark.NoSuchHelper")
        seen, rows = [], []

        def run(frame, epoch, seen=seen, rows=rows):
            seen.append(frame.sparkSession)
            rows.extend(row.id for row in frame.collect())

        writer = queries.for_each_batch(stream.writeStream, spark, lambda *given: given, run).option(
            "checkpointLocation", str(tmp_path / way)
        )
        writer.trigger(availableNow=True).start().awaitTermination(300)
        assert sorted(rows) == [*range(6)]
        sessions[way] = len({id(s) for s in seen}), len(seen)
    assert sessions == {"java": (1, 3), "pyspark": (3, 3)}
