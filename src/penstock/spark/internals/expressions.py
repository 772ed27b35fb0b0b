"""What Java says of an expression before anything runs. Without its ``Pattern`` Spark is asked to try the expression on a row."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

from penstock.spark.internals.connect import is_connect


def regex_refusal(spark: SparkSession, expression: str) -> str | None:
    """Why Java, whose they are, takes a regular expression for none, in its words where it tells them; None: it is one."""
    if is_connect(spark):
        return _tried(spark, expression)
    session: Any = spark
    try:
        session._jvm.java.util.regex.Pattern.compile(expression)
    except Exception as error:  # noqa: BLE001  (of Java's, as PySpark or py4j tell it)
        return str(error).splitlines()[0].partition(" near index")[0]
    return None


def _tried(spark: SparkSession, expression: str) -> str | None:
    try:
        spark.range(1).select(F.lit("").rlike(expression)).collect()
    except PySparkException as error:
        if "INVALID_PARAMETER_VALUE.PATTERN" not in str(error):
            raise
        return "Java cannot compile it"
    return None


__all__ = ["regex_refusal"]
