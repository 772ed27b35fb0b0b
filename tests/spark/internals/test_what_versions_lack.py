"""What a version of PySpark lacks is made up for, with the same rows, or refused in one sentence."""

from __future__ import annotations

import pyspark
import pytest
from py4j.protocol import Py4JError

from penstock.errors import DeclarationError
from penstock.spark.internals import plans, python_sources, sessions

SCHEMA = "k int, at timestamp, at_ntz timestamp_ntz, `a b` array<struct<x: decimal(20, 2)>>"


def test_source_in_python_where_spark_does_not_say_where_it_stands_is_refused(monkeypatch):
    monkeypatch.setattr(python_sources, "TOLD", False)
    with pytest.raises(DeclarationError) as raised:
        python_sources.refuse_where_not_told("s", "redis_streams")
    assert str(raised.value) == (
        f"Source 's' is penstock.redis_streams, which needs PySpark 4.2 or newer, and this is {pyspark.__version__}: pip install 'pyspark>=4.2,<4.4'."
    )


@pytest.mark.spark
def test_types_go_to_arrow_and_back_as_they_are(spark):
    from penstock.spark.internals.arrow_types import to_arrow, to_spark

    schema = spark.createDataFrame([], SCHEMA).schema
    assert to_spark(to_arrow(schema)) == schema
    assert to_arrow(schema).field("at").type.tz == "UTC"
    assert to_arrow(schema).field("at_ntz").type.tz is None


@pytest.mark.spark
def test_frame_that_hides_that_it_is_empty_has_the_columns_and_no_row(spark):
    schema = spark.createDataFrame([], SCHEMA).schema
    hidden = plans.secretly_empty(spark, schema)
    assert [(f.name, f.dataType) for f in hidden.schema] == [(f.name, f.dataType) for f in schema]
    assert hidden.collect() == []
    assert "LocalRelation" not in hidden._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.spark
def test_rows_where_java_lacks_its_methods_are_the_same(spark, monkeypatch):
    frame = spark.range(7).selectExpr("id", "id % 2 as odd")
    empty = frame.where("id < 0")
    wanted = frame.collect()

    class Lacking:
        def __init__(self, java):
            self.java = java

        def __getattr__(self, name):
            if name in {"internalCreateDataFrame", "cloneSession"}:
                raise Py4JError(f"Method {name} does not exist")
            found = getattr(self.java, name)
            return (lambda *given: Lacking(found(*given))) if name == "sparkSession" else found

    for given in (frame, empty):
        monkeypatch.setattr(given, "_jdf", Lacking(given._jdf))
    assert plans.as_rdd(frame).collect() == wanted
    assert plans.never_without_rows(empty).collect() == []
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        copy = sessions.with_settings_of(spark)
        assert copy is not spark
        assert copy.conf.get("spark.sql.caseSensitive") == "true"
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
