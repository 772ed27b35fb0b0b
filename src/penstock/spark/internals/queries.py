"""Running queries, as Spark's Java objects know them.

| call | for | without it |
|---|---|---|
| `streams.active`, `resolvedCheckpointRoot` | the query that calls for an epoch, before `start` has returned | each epoch reads the union of all sources, once per source: slower, the same rows |
| `lastExecution().logical` | each source's branch of an epoch, with its offsets | likewise; and footers do not tell which rows are late |
| `PythonForeachBatchHelper`, `ForeachBatchFunction` | all epochs are given in one Python session | PySpark makes a session for each epoch |
| `triggerExecutor`, `noNewData` | whether a query of what there is has read it all | it counts as read |
| `isActive` | whether somebody has stopped the query | an epoch that is interrupted is told as a failure |
| `listListeners`, `addListener` | the user's listeners hear of a flow's query | they do not |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import ForeachBatchFunction

Given = Callable[[DataFrame, int], Sequence[Any]]
HELPER: Final = "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper"


class RunningQuery:
    """A query, which is searched for once: see `running_query`."""

    def __init__(self, spark: SparkSession, log: str) -> None:
        self._spark, self._log = spark, log
        self._found: Any = None

    def find(self) -> Any:
        """Its Java object; None if Spark does not tell."""
        if self._found is None:
            self._found = running_query(self._spark, self._log)
        return self._found


class _EachBatch(ForeachBatchFunction):
    """Called by Java with each batch. PySpark makes another session of each, which looks for two classes and sets it up."""

    def __init__(self, session: SparkSession, given: Given, run: Callable[..., None]) -> None:
        super().__init__(session, lambda frame, epoch: run(*given(frame, epoch)))
        self._given, self._run = given, run
        self._own: SparkSession | None = None  # the query's, in which all of its batches are

    def call(self, batch: Any, epoch: int) -> None:
        if self._own is None:
            self._own = SparkSession(self.session.sparkContext, batch.sparkSession())
        self._run(*self._given(DataFrame(batch, self._own), epoch))


def for_each_batch(writer: Any, spark: SparkSession, given: Given, run: Callable[..., None]) -> Any:
    """``writer.foreachBatch`` of ``run(*given(frame, epoch))``.

    Args:
        writer: What PySpark's ``writeStream`` gives.
        spark: The session of the stream.
        given: What `run` is given, of a batch and its number.
        run: Called with each batch.
    """
    context: Any = spark.sparkContext
    each = _EachBatch(spark, given, run)
    try:
        getattr(context._jvm, HELPER).callForeachBatch(writer._jwrite, each)
    except (Py4JError, TypeError):  # TypeError: no such class, which py4j takes for a package
        return writer.foreachBatch(each.func)
    serve: Any = ensure_callback_server_started  # PySpark does not say of what types it is
    serve(context._gateway)
    return writer


def running_query(spark: SparkSession, log: str) -> Any:
    """The Java object of a query; asked of Spark because the first epoch may run before `start` has returned.

    Args:
        spark: The session of the query.
        log: The folder of Spark's log, as a URI.

    Returns:
        None if Spark does not tell.
    """
    session: Any = spark
    active = session._jsparkSession.streams().active()
    for query in active:
        try:
            if str(query.streamingQuery().resolvedCheckpointRoot()).endswith(log.removeprefix("file://")):
                return query
        except Exception:  # noqa: BLE001, S112  (another version's internals; an epoch can do without)
            continue
    return None


def branches_of(query: Any, epoch: int, sources: int) -> Sequence[Any]:
    """The plan of each source in an epoch; none if Spark does not give them.

    Args:
        query: The query (its Java object).
        epoch: Number of the epoch; a plan of another one is not used.
        sources: How many branches the query is the union of.
    """
    try:
        execution = query.streamingQuery().lastExecution()
        if int(execution.currentBatchId()) != epoch:
            return []  # a query on the same checkpoint that is just ending
        children = execution.logical().child().children()
        branches = [children.apply(i) for i in range(int(children.size()))]
        return branches if len(branches) == sources else []
    except Exception:  # noqa: BLE001  (internals of Spark; the public way gives the same rows)
        return []


def ran_out(query: Any) -> bool:
    """Whether a query of what there is has ended because there was nothing more, and not because somebody has stopped it.

    Where a source cannot say what there is (the rate generator, sources in Python), Spark reads all that there is in one epoch and ends.
    """
    try:
        java = query._jsq.streamingQuery()
        once = "SingleBatch" in java.triggerExecutor().toString()
        return bool(java.noNewData()) or (once and query.lastProgress is not None)
    except Exception:  # noqa: BLE001  (another version's internals: then it is taken for granted)
        return True


def was_stopped(java: Any) -> bool:
    """Whether somebody has stopped a query (its Java object) while an epoch of it runs; False if there is none to ask any more."""
    try:
        return java is not None and not java.isActive()
    except Exception:  # noqa: BLE001  (with Java gone, what failed first says more)
        return False


def share_listeners(theirs: SparkSession, ours: SparkSession) -> None:
    """Have those who listen to the queries of one session hear of another's, too."""
    one: Any = theirs
    other: Any = ours
    for listener in one._jsparkSession.streams().listListeners():
        other._jsparkSession.streams().addListener(listener)


__all__ = ["RunningQuery", "branches_of", "for_each_batch", "ran_out", "running_query", "share_listeners", "was_stopped"]
