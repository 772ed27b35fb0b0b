"""A table beside the rows of an epoch: a broadcast join in the JVM, which neither shuffles rows nor hands them to Python.

The table becomes a DataFrame once per application, and what Spark builds of it for the join is kept for later epochs (`planned`) until the table is gone:
a table that is read again is another one as soon as it has other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.flow.steps import Beside
from penstock.spark.columns import arrow_schema, named, spark_schema
from penstock.spark.internals.broadcasts import Broadcasts, with_kept
from penstock.spark.internals.plans import frame_of_table, select_sql, taken_over
from penstock.sql_text.schema import quoted
from penstock.types import HIDDEN, ORDER

_NUMBERS: Final = count()


@dataclass(eq=False)
class _Table:
    """A table in an application.

    Attributes:
        frame: Its rows. Columns are named by the table, so that a plan shows which one it is.
        keys: The columns that are compared.
        values: The others.
        kept: What was broadcast of it.
    """

    frame: DataFrame
    keys: list[str]
    values: list[str]
    kept: Broadcasts = field(default_factory=Broadcasts)


TABLES: WeakKeyDictionary[Beside, dict[tuple[str, tuple[pa.DataType, ...]], _Table]] = WeakKeyDictionary()
TABLES_BY_COLUMN: WeakValueDictionary[str, _Table] = WeakValueDictionary()
"""The tables that there are in Spark, by their first column."""


def beside(frame: DataFrame, of: Beside, schema: pa.Schema) -> DataFrame:
    """Rows with the columns of a table's row of the same key.

    Args:
        frame: The rows, with hidden columns.
        of: The table.
        schema: The visible columns of the rows; null is a type that was not known when the flow was declared.

    Raises:
        DeclarationError: A key is of a type whose values cannot equal those of the table's.
    """
    keys = pa.schema([schema.field(name) for name in of.on])
    if any(pa.types.is_null(key.type) for key in keys):  # only Spark knows it
        keys = arrow_schema(frame.select(*map(named, of.on)).schema)
    table = _table(frame.sparkSession, of, keys)
    equal = [named(mine) == F.col(theirs) for mine, theirs in zip(of.on, table.keys, strict=True)]
    joined = frame.join(F.broadcast(taken_over(table.frame, frame.sparkSession)), equal, "inner" if of.inner else "left")
    added = [f"{value} as {quoted(new)}" for value, (_, new) in zip(table.values, of.columns, strict=True)]
    return select_sql(joined, [*map(quoted, schema.names), *added, *ORDER])


class Looking:
    """Of an epoch's DataFrames, those that look in tables and are not planned yet."""

    def __init__(self) -> None:
        self._frames: dict[int, DataFrame] = {}  # by id; holding the frame keeps its id its own

    def follows(self, frame: DataFrame, *before: DataFrame | None, looks: bool = False) -> DataFrame:
        """Gives back a DataFrame that was made of others. `looks`: by a lookup."""
        if looks or any(id(other) in self._frames for other in before):
            self._frames[id(frame)] = frame
        return frame

    def planned(self, frame: DataFrame, *of: DataFrame | None) -> DataFrame:
        """Rows about to be computed, with what is kept of the tables that they look in. `of`: what they were made of; none: they are these."""
        return planned(frame) if any(id(other) in self._frames for other in of or [frame]) else frame


def planned(frame: DataFrame) -> DataFrame:
    """The same rows, in a plan that looks in what earlier epochs have built of tables."""

    def known(column: str) -> Broadcasts | None:
        table = TABLES_BY_COLUMN.get(column)
        return None if table is None else table.kept

    return with_kept(frame, known)


def _table(spark: SparkSession, of: Beside, keys: pa.Schema) -> _Table:
    known = TABLES.setdefault(of, {})
    # Not by the session: what Spark calls for an epoch with is another Python object each time.
    which = (str(spark.sparkContext.applicationId), tuple(f.type for f in keys))
    if which not in known:
        rows = of.table.for_keys(keys)
        columns = [rows.column(name) for name in (*of.table.keys, *(old for old, _ in of.columns))]
        number, least = next(_NUMBERS), len(of.on)
        names = [f"{HIDDEN}lookup{number}_{i}" for i in range(len(columns))]
        table = pa.table(columns, names=names)
        frame = frame_of_table(spark, table, spark_schema(table.schema))
        known[which] = made = _Table(frame, names[:least], names[least:])
        TABLES_BY_COLUMN[names[0]] = made
    return known[which]


__all__ = ["TABLES", "TABLES_BY_COLUMN", "Looking", "beside", "planned"]
