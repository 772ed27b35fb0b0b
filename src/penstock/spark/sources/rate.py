"""The generator of test records over Spark: its values are its offsets."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.flow.plan import SourceNode
from penstock.spark.sources.reader import Reader


class RateReader(Reader):
    """See `penstock.rate`."""

    needs = ("value",)

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        rate: Any = source.connector
        return spark.readStream.format("rate").option("rowsPerSecond", rate.rows_per_second).load()

    def offset(self) -> str:
        return "value"

    def offset_bits_left(self) -> int:
        return 0


__all__ = ["RateReader"]
