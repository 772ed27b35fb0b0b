"""Expressions in SQL as columns of Java's, made once in an application and not in each epoch.

PySpark makes ten calls to Java for every ``F.col`` or ``F.expr``, and as many for a list of them; half of them look for a class. A column
in Java knows neither session nor DataFrame before it is used, so the epochs share it.

These are the calls that PySpark makes itself (`functions.expr`, `PythonUtils.toSeq`, `groupBy` and `agg` of Java).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

_MOST: Final = 1_000
"""So many lists are kept; a flow has a few."""
_made: WeakKeyDictionary[SparkContext, dict[tuple[str, ...], Any]] = WeakKeyDictionary()


def columns_of(context: SparkContext, expressions: Sequence[str]) -> Any:
    """Java's ``Seq`` of columns.

    Args:
        context: The application, with an active session.
        expressions: In SQL; should be the same in each epoch.
    """
    made, key = _made.setdefault(context, {}), tuple(expressions)
    if key not in made:
        if len(made) >= _MOST:
            made.clear()
        jvm: Any = context._jvm
        made[key] = jvm.PythonUtils.toSeq([_java(text) for text in key])
    return made[key]


def _java(expression: str) -> Any:
    column: Any = F.expr(expression)
    return column._jc


def grouped_sql(frame: DataFrame, keys: Sequence[str], aggregates: Sequence[str]) -> DataFrame:
    """``frame.groupBy(...).agg(...)`` of expressions in SQL, one aggregate at least."""
    context, jdf = frame.sparkSession.sparkContext, frame._jdf
    theirs: Any = jdf.groupBy(columns_of(context, keys))
    first = columns_of(context, aggregates[:1]).apply(0)
    return DataFrame(theirs.agg(first, columns_of(context, aggregates[1:])), frame.sparkSession)


__all__ = ["columns_of", "grouped_sql"]
