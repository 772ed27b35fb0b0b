"""Running queries, as Spark's Java objects know them.

| call | for | without it |
|---|---|---|
| `streams.active`, `resolvedCheckpointRoot` | the query that calls for an epoch, before `start` has returned | each epoch reads the union of all sources, once per source: slower, the same rows |
| `lastExecution().logical` | each source's branch of an epoch, with its offsets | likewise; and footers do not tell which rows are late |
| `triggerExecutor`, `noNewData` | whether a query of what there is has read it all | it counts as read |
| `isActive` | whether somebody has stopped the query | an epoch that is interrupted is told as a failure |
| `listListeners`, `addListener` | the user's listeners hear of a flow's query | they do not |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.internals.plans import as_batch


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
        streams = [children.apply(i) for i in range(int(children.size()))]
        branches = [as_batch(stream) or stream for stream in streams]
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


__all__ = ["branches_of", "ran_out", "running_query", "share_listeners", "was_stopped"]
