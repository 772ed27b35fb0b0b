"""DataFrames and the plans behind them (Spark's Java objects), both ways, and what Python says to Java in few words.

| call | for | without it |
|---|---|---|
| analysed plan of a DataFrame, `Dataset.ofRows` | the same DataFrame in another session; a source's branch of an epoch | no flow starts, and `match` takes no other session; both say so |
| `internalCreateDataFrame` | rows as an RDD that Spark does not plan again; a frame that Spark does not know to be empty | a local checkpoint; an empty RDD of Python's |
| `createDataFrame` of Java | a frame without rows that leaves the active session alone | PySpark's, and the active session set back |
| `_serialize_to_jvm`, `PythonSQLUtils.toDataFrame` | rows of the driver as a frame, likewise | PySpark's ``createDataFrame``, and the active session set back |
| `StreamingRelation.dataSource`, `sourceInfo` | how many columns a stream gets from the names of folders | files beside such folders, alone in an epoch, stop the flow |
| `selectExpr`, `toDF` of Java | all expressions in one call, 5 ms | PySpark's |

Read next: `penstock.spark.internals.queries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructType

from penstock.spark.internals.connect import is_connect

FILES: Final = "LogicalRelation"
"""Kind of a plan that reads files."""
_ABOVE_FILES: Final = ("Project", "SubqueryAlias")  # these may stand between a source's files and its rows
_BETWEEN: Final = "\x01"
_no_rows: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
_of_rows: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
_splitters: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()  # Java's patterns that split at it


def is_missing(error: Py4JError) -> bool:
    """Whether Java has no such method, so that another way must do; everything else has a class of its own."""
    return type(error) is Py4JError


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan of a DataFrame."""
    jdf: Any = frame._jdf
    return jdf.queryExecution().analyzed()


def frame_of(plan: Any, session: SparkSession) -> DataFrame:
    """A plan as a DataFrame of a session. To find Java's method by its packages' names, each of which might be a class, takes 5 ms or more."""
    theirs: Any = session
    context = session.sparkContext
    if context not in _of_rows:
        jvm: Any = theirs._jvm
        _of_rows[context] = jvm.org.apache.spark.sql.classic.Dataset.ofRows
    return DataFrame(_of_rows[context](theirs._jsparkSession, plan), session)


class Branch:
    """The plan of one source, down to what it reads.

    Args:
        plan: A logical plan.

    Attributes:
        plan: The same.
        leaf: What lies below steps that change no rows.
        kind: Its kind: the name of its class.
    """

    def __init__(self, plan: Any) -> None:
        self.plan, self.leaf = plan, plan
        self._above: list[Any] = []
        while (kind := str(self.leaf.nodeName())) in _ABOVE_FILES:
            self._above.append(self.leaf)
            self.leaf = self.leaf.child()
        self.kind = kind

    @cached_property
    def relation(self) -> Any:
        """Of `FILES`, which."""
        return self.leaf.relation()

    @cached_property
    def stream(self) -> Any:
        """Of `FILES`, the stream's source, as an ``Option``."""
        return self.leaf.stream()

    def as_batch(self) -> Any | None:
        """The plan of a stream's files as that of a batch, which Spark plans together with what follows; None: it is another plan.

        So columns that nothing needs are not read, and rows that a filter drops are not made.
        """
        if self.kind != FILES:
            return None
        try:
            plan = self.leaf.copy(self.relation, self.leaf.output(), self.leaf.catalogTable(), False, self.stream)
        except Py4JError as error:
            if not is_missing(error):
                raise
            return None
        for step in reversed(self._above):
            plan = step.withNewChildren(step.children().updated(0, plan))
        return plan


def columns_of_its_folders(frame: DataFrame) -> int:
    """How many columns a stream of files gets from the names of folders, as they were when it was declared; 0 if Spark does not tell."""
    try:
        return int(plan_of(frame).dataSource().sourceInfo().partitionColumns().size())
    except Py4JError as error:
        if not is_missing(error):
            raise
        return 0


def taken_over(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same DataFrame as one of another session of the same application: what is computed of it goes by that one's settings.

    What it was computed of goes by its own: a DataFrame's expressions are resolved when it is declared.
    """
    return frame if frame.sparkSession is session else frame_of(plan_of(frame), session)


def as_rdd(frame: DataFrame) -> DataFrame:
    """The same rows as an RDD of Spark: what follows is planned apart, and what becomes of the files it reads is not looked at again."""
    jdf: Any = frame._jdf
    try:
        rows = jdf.sparkSession().internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)
    except Py4JError as error:
        if not is_missing(error):
            raise
        return frame.localCheckpoint(eager=False)
    return DataFrame(rows, frame.sparkSession)


def never_without_rows(frame: DataFrame) -> DataFrame:
    """The same rows, of which Spark does not know that there are none.

    Where it is certain (``where("1 = 0")``) it leaves out all that follows: a region's tasks, which also close windows and answer the
    controller.
    """
    spark, jdf = frame.sparkSession, frame._jdf
    context = spark.sparkContext
    if context not in _no_rows:
        java: Any = context._jsc
        _no_rows[context] = java.emptyRDD().rdd()
    try:
        none: Any = jdf.sparkSession().internalCreateDataFrame(_no_rows[context], jdf.schema(), False)
    except Py4JError as error:
        if not is_missing(error):
            raise
        return frame.union(secretly_empty(spark, frame.schema))
    return frame.union(DataFrame(none, spark))


def secretly_empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows, of which Spark does not know that; it becomes the active session's, see `penstock.spark.session.own.give_back`."""
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


def frame_without_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows. Unlike ``createDataFrame``, this leaves the active session of the process as it is."""
    theirs: Any = spark
    session: Any = theirs._jsparkSession
    rows = theirs._jvm.java.util.ArrayList()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)


def frame_of_table(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """A DataFrame of the rows of a table, in one partition. Unlike ``createDataFrame``, this leaves the active session of the process as it is.

    Args:
        spark: Its session.
        table: The rows, in the types of `schema`.
        schema: Its columns.
    """
    theirs: Any = spark
    jvm = theirs._jvm
    rows = theirs.sparkContext._serialize_to_jvm(
        table.combine_chunks().to_batches(),
        ArrowStreamSerializer(),
        jvm.PythonSQLUtils.readArrowStreamFromFile,
        jvm.ArrowIteratorServer,
    )
    local = DataFrame(jvm.PythonSQLUtils.toDataFrame(rows, schema.json(), theirs._jsparkSession), spark)
    # As an RDD, for Spark would compute what follows while it plans, and leave out more where that leaves no rows.
    return as_rdd(local.coalesce(1))


def select_sql(frame: DataFrame, expressions: Sequence[str]) -> DataFrame:
    """``frame.selectExpr(*expressions)`` in one call.

    PySpark hands them to Java one by one, and searches all packages for a Spark class first. That takes 5 ms, and an epoch
    selects several times.
    """
    if is_connect(frame):
        return frame.selectExpr(*expressions)
    context = frame.sparkSession.sparkContext
    if not expressions or any(_BETWEEN in text for text in expressions):
        return frame.selectExpr(*expressions)
    jdf: Any = frame._jdf
    return DataFrame(jdf.selectExpr(_texts(context, expressions)), frame.sparkSession)


def renamed(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """``frame.toDF(*names)``, at least one, in one call likewise."""
    jdf: Any = frame._jdf
    return DataFrame(jdf.toDF(_texts(frame.sparkSession.sparkContext, names)), frame.sparkSession)


def _texts(context: SparkContext, texts: Sequence[str]) -> Any:
    """An array of Java's."""
    if context not in _splitters:
        jvm: Any = context._jvm
        _splitters[context] = jvm.java.util.regex.Pattern.compile(_BETWEEN)
    return _splitters[context].split(_BETWEEN.join(texts))


__all__ = [
    "FILES",
    "Branch",
    "as_rdd",
    "frame_of",
    "frame_of_table",
    "frame_without_rows",
    "is_missing",
    "never_without_rows",
    "plan_of",
    "renamed",
    "secretly_empty",
    "select_sql",
    "taken_over",
]
