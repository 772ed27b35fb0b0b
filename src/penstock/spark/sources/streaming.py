"""Streaming DataFrames that the user has made, of any connector of Spark's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.flow.plan import SourceNode
from penstock.spark.internals.plans import taken_over
from penstock.spark.session.connected import refuse_connect
from penstock.spark.session.own import check_zone
from penstock.spark.sources.reader import Reader, unreadable


class StreamingReader(Reader):
    """Positions are columns that the user names, or local to an epoch."""

    @staticmethod
    def check(spark: SparkSession, source: SourceNode) -> Sequence[str]:
        del spark
        streaming: Any = source.connector
        refuse_connect(streaming.frame, f"source {source.name!r}")
        check_zone(source.name, streaming.frame)
        return ()

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        streaming: Any = source.connector
        if not isinstance(streaming.frame, DataFrame):
            raise unreadable(source, streaming.frame)
        return taken_over(streaming.frame, spark)


__all__ = ["StreamingReader"]
