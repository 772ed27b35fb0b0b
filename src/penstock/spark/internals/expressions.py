"""What Java says of an expression before anything runs. Without its ``Pattern`` Spark is asked to try the expression on a row."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

from penstock.spark.internals.connect import is_connect


def regex_refusal(spark: SparkSession, expression: str) -> str | None:
    """Why Java, whose they are, takes a regular expression for none, in its words; None: it is one."""
    session: Any = spark
    try:
        if not is_connect(spark):
            session._jvm.java.util.regex.Pattern.compile(expression)
        else:
            session.range(1).select(F.lit("").rlike(expression)).collect()
    except Exception as error:  # noqa: BLE001  (whatever it is of Java's, or of Spark's)
        return _in_java_s_words(str(error))
    return None


def _in_java_s_words(text: str) -> str:
    return text.splitlines()[0].partition(" near index")[0]


__all__ = ["regex_refusal"]
