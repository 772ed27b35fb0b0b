"""One stream of all sources, and each cut out of it again.

All sources and the control log are one streaming DataFrame, a union of one branch each: a tag, and per source a struct that is null
for the others' rows. In an epoch every source is cut out of it again, so that reading one does not run the others, nor does its plan
depend on whether they have rows, and only the columns that are needed are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.columns import named, select_sql
from penstock.spark.sources.found_files import Found, found_in

ROW: Final = "__ps_file_row"
"""Spark's own id of a row: the number of its partition of the scan, and its place there."""
_of_rows: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
_ABOVE_FILES: Final = ("Project", "SubqueryAlias")


def one_stream(frames: Sequence[DataFrame]) -> DataFrame:
    """All in one: of a row the tag is the number of the frame that it comes from.

    Args:
        frames: Streaming DataFrames.
    """
    empty = [F.lit(None).cast(frame.schema) for frame in frames]
    branches = []
    for tag, frame in enumerate(frames):
        row = F.struct(*(named(c) for c in frame.columns))
        columns = [row if other == tag else none for other, none in enumerate(empty)]
        branches.append(frame.select(F.lit(tag).alias("tag"), *(c.alias(f"s{n}") for n, c in enumerate(columns))))
    return reduce(DataFrame.union, branches)


class Slices:
    """One epoch's input, source by source.

    Spark hands ``foreachBatch`` a DataFrame that can only be run as a whole. The plan behind it, with this epoch's offsets, is
    asked of the running query, so that each source can be read alone and by the columns that are needed. Where Spark does not
    give it (another version), the whole DataFrame is used: slower, the same rows.

    Args:
        frame: What ``foreachBatch`` got.
        query: The running query (its Java object), or None.
        epoch: Number of the epoch; a plan of another one is not used.
    """

    def __init__(self, frame: DataFrame, query: Any, epoch: int) -> None:
        self._frame = frame
        self._branches = self._cut(query, epoch) if query is not None else []
        self._instead: dict[int, DataFrame] = {}

    def _cut(self, query: Any, epoch: int) -> list[Any]:
        """Each source's branch of the plan; none if Spark does not give it."""
        try:
            execution = query.streamingQuery().lastExecution()
            if int(execution.currentBatchId()) != epoch:
                return []  # a query on the same checkpoint that is just ending
            children = execution.logical().child().children()
            streams = [children.apply(i) for i in range(int(children.size()))]
            branches = [_as_batch(stream) or stream for stream in streams]
            return branches if len(branches) == len(self._frame.columns) - 1 else []  # a tag, and the columns of each
        except Exception:  # noqa: BLE001  (internals of Spark; the public way below gives the same rows)
            return []

    @property
    def session(self) -> SparkSession:
        """The query's own session."""
        return self._frame.sparkSession

    def rows(self, tag: int, columns: Sequence[str] | None = None) -> DataFrame:
        """Rows of one source as a batch DataFrame.

        Args:
            tag: The source's tag.
            columns: Its columns; None: all.

        Returns:
            The columns, and `ROW`. No filter can move across that, but across what is computed of it, which then is only of the rows left.
        """
        chosen = [f"s{tag}.*"] if columns is None else [f"s{tag}.`{c}`" for c in columns]
        chosen.append(f"monotonically_increasing_id() as {ROW}")
        if tag in self._instead and not self._branches:
            return select_sql(self._instead[tag], chosen)
        if not self._branches:
            return select_sql(self._frame.where(f"tag = {tag}"), chosen)
        ours = self._frame._jdf.sparkSession()
        branch = self._branches[tag]
        whole = select_sql(DataFrame(self._dataset_of()(ours, branch), self.session), chosen)
        return as_rdd(whole) if branch.isStreaming() else whole

    def _dataset_of(self) -> Any:
        """Java's ``Dataset.ofRows``; to find it by its packages' names, each of which might be a class, takes 5 ms or more."""
        context = self.session.sparkContext
        if context not in _of_rows:
            jvm: Any = context._jvm
            _of_rows[context] = jvm.org.apache.spark.sql.classic.Dataset.ofRows
        return _of_rows[context]

    def files(self, tag: int) -> Found | None:
        """The files that one source reads in this epoch, without planning anything; None: Spark does not tell.

        Args:
            tag: The source's tag.
        """
        plan = self._branches[tag] if self._branches else None
        while plan is not None and _kind(plan) in _ABOVE_FILES:
            plan = plan.child()
        kind = "" if plan is None else _kind(plan)
        if plan is not None and kind == "LogicalRelation":
            return found_in(self.session, plan)
        return Found() if kind == "LocalRelation" else None  # so Spark puts a source without new files

    def read_instead(self, tag: int, frame: DataFrame) -> None:
        """Take other rows for those of one source.

        Args:
            tag: The source's tag.
            frame: The rows of files as a batch, in the same columns.
        """
        row = F.struct(*(named(c) for c in frame.columns))
        self._instead[tag] = frame.select(row.alias(f"s{tag}"))
        if self._branches:
            self._branches[tag] = self._instead[tag]._jdf.queryExecution().analyzed()


def as_rdd(frame: DataFrame) -> DataFrame:
    """The same rows as an RDD of Spark: what follows is planned apart, and what becomes of the files it reads is not looked at again."""
    jdf: Any = frame._jdf
    rows = jdf.sparkSession().internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)
    return DataFrame(rows, frame.sparkSession)


def never_without_rows(frame: DataFrame) -> DataFrame:
    """The same rows, of which Spark does not know that there are none.

    Where it is certain (``where("1 = 0")``) it leaves out all that follows: a region's tasks, which also close windows and answer the
    controller.
    """
    spark, jdf = frame.sparkSession, frame._jdf
    context: Any = spark.sparkContext._jsc
    none: Any = jdf.sparkSession().internalCreateDataFrame(context.emptyRDD().rdd(), jdf.schema(), False)
    return frame.union(DataFrame(none, spark))


def _as_batch(plan: Any) -> Any | None:
    """The plan of a stream's files as that of a batch, which Spark plans together with what follows; None: it is another plan.

    So columns that nothing needs are not read, and rows that a filter drops are not made.
    """
    kind = _kind(plan)
    if kind == "LogicalRelation":
        return plan.copy(plan.relation(), plan.output(), plan.catalogTable(), False, plan.stream())
    if kind not in _ABOVE_FILES:
        return None
    child = _as_batch(plan.child())
    return None if child is None else plan.withNewChildren(plan.children().updated(0, child))


def _kind(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())
