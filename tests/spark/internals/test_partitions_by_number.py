"""Rows come to the partition whose number they carry, in every version of PySpark alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.internals.shuffle import by_hash, ints_by_partition, murmur3, to_partitions

EDGES = [0, 1, -1, 2**31 - 1, -(2**31), 65_536]


def where_rows_are(frame):
    found = frame.select("id", "to", F.spark_partition_id().alias("at")).collect()
    return {row["id"]: (row["to"], row["at"]) for row in found}


@pytest.mark.parametrize("partitions", [1, 2, 3, 64, 1000, 4096])
def test_integers_when_hashed_cover_each_partition_once(partitions):
    ints = np.array(ints_by_partition(partitions), np.int64).astype(np.int32)
    assert (murmur3(ints).astype(np.int64) % partitions).tolist() == list(range(partitions))


@pytest.mark.spark
def test_hash_of_integers_is_spark_s(spark):
    numbers = [*EDGES, *np.random.default_rng(1).integers(-(2**31), 2**31, 200).tolist()]
    wanted = [row[0] for row in spark.createDataFrame([(n,) for n in numbers], "n int").selectExpr("hash(n)").collect()]
    assert murmur3(np.array(numbers, np.int32)).tolist() == wanted


@pytest.mark.spark
@settings(max_examples=12)
@given(st.integers(1, 40), st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_rows_when_placed_by_hash_are_where_they_are_placed_by_number(spark, partitions, numbers):
    rows = [(i, n % partitions) for i, n in enumerate(numbers)]
    frame = spark.createDataFrame(rows, "id int, to int").repartition(2)
    by_number = to_partitions(frame, partitions, F.col("to"))
    hashed = by_hash(frame, partitions, F.col("to"))
    assert where_rows_are(hashed) == {i: (to, to) for i, to in rows} == where_rows_are(by_number)
    assert hashed.rdd.getNumPartitions() == partitions == by_number.rdd.getNumPartitions()
