"""A table beside the rows of an epoch: a broadcast join in the JVM, which neither shuffles rows nor hands them to Python.

The table becomes a DataFrame once per session. Spark builds its hash table in every epoch that has rows for it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.flow.steps import Beside
from penstock.spark.columns import arrow_schema, named, spark_schema
from penstock.spark.internals.plans import select_sql
from penstock.sql_text.schema import quoted
from penstock.types import HIDDEN, ORDER, visible

_KEY, _VALUE = f"{HIDDEN}lookup_key", f"{HIDDEN}lookup_value"
_frames: WeakKeyDictionary[Beside, dict[tuple[int, tuple[pa.DataType, ...]], tuple[SparkSession, DataFrame]]] = (
    WeakKeyDictionary()
)


def beside(frame: DataFrame, of: Beside) -> DataFrame:
    """Rows with the columns of a table's row of the same key.

    Raises:
        DeclarationError: A key is of a type whose values cannot equal those of the table's.
    """
    keys = arrow_schema(frame.select(*map(named, of.on)).schema)
    table = _frame(frame.sparkSession, of, keys)
    equal = [named(name) == F.col(f"{_KEY}{i}") for i, name in enumerate(of.on)]
    joined = frame.join(F.broadcast(table), equal, "inner" if of.inner else "left")
    added = [f"{_VALUE}{i} as {quoted(new)}" for i, (_, new) in enumerate(of.columns)]
    return select_sql(joined, [*map(quoted, visible(frame.columns)), *added, *ORDER])


def _frame(spark: SparkSession, of: Beside, keys: pa.Schema) -> DataFrame:
    known = _frames.setdefault(of, {})
    which = (id(spark), tuple(f.type for f in keys))
    if which not in known:
        rows = of.table.for_keys(keys)
        columns = [rows.column(name) for name in (*of.table.keys, *(old for old, _ in of.columns))]
        names = [f"{_KEY}{i}" for i in range(len(of.on))] + [f"{_VALUE}{i}" for i in range(len(of.columns))]
        table = pa.table(columns, names=names)
        known[which] = spark, spark.createDataFrame(table, schema=spark_schema(table.schema))
    return known[which][1]


__all__ = ["beside"]
