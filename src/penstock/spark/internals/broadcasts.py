"""Broadcasts that outlive an epoch: what Spark builds of one side of a join, and sends to its executors, is kept for later plans.

Spark reuses a broadcast within a query only. Here the physical plan of a DataFrame is made, and where a join is about to broadcast a table that is
known by the name of a column, the exchange of an earlier plan takes its place if it gives the same rows in the same form (`sameResult`, by
which Spark itself reuses exchanges). The rest of Spark gets the plan as one that is planned already.

| call | for | without it |
|---|---|---|
| `QueryExecution.sparkPlan`, `prepareExecutedPlan`, `BroadcastExchangeExec`, `ReusedExchangeExec`, `LogicalQueryStage` | the above | the broadcast is built for each epoch |

A broadcast ends with its exchange: once neither Python nor a plan refers to it, Spark's cleaner removes it from the executors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from penstock.spark.internals.plans import frame_of, is_missing

_SHAPES: Final = 4
"""Of one table so many broadcasts are kept: a plan may need fewer of its columns than another, or fewer rows."""


class Broadcasts:
    """What was broadcast of one table.

    Attributes:
        made: Of each broadcast the plan that gives its rows, the form that they get, and its exchange; newest last.
    """

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any, Any]] = []

    def of(self, jvm: Any, session: Any, rows: Any, mode: Any) -> Any:
        """The exchange that broadcasts what a physical plan gives."""
        self.made = [kept for kept in self.made if not _failed(kept[2])]
        for like, form, exchange in self.made:
            if form.equals(mode) and like.sameResult(rows):
                return exchange
        execution = jvm.org.apache.spark.sql.execution
        exchange = execution.exchange.BroadcastExchangeExec(mode, execution.QueryExecution.prepareExecutedPlan(session, rows))
        self.made = [*self.made[1 - _SHAPES :], (rows, mode, exchange)]
        return exchange


def _failed(exchange: Any) -> bool:
    """Whether a broadcast was tried and has failed, or was cancelled with the job that needed it: it would fail for ever."""
    future = exchange.relationFuture()
    if not future.isDone():
        return False
    try:
        future.get()
    except Py4JError:
        return True
    return False


def with_kept(frame: DataFrame, known: Callable[[str], Broadcasts | None]) -> DataFrame:
    """The same rows, of a plan that uses what has been broadcast before.

    Args:
        frame: The rows. What follows is planned apart.
        known: Gives what is kept of the table with a column of that name; None: it is another table.
    """
    jdf: Any = frame._jdf
    jvm: Any = frame.sparkSession._jvm
    session: Any = jdf.sparkSession()
    try:
        execution = jdf.queryExecution()
        plan = execution.sparkPlan()
        kept = _kept(jvm, session, plan, known)
        if kept is plan:
            return frame
        stage = jvm.org.apache.spark.sql.execution.adaptive.LogicalQueryStage(execution.analyzed(), kept)
    except (Py4JError, TypeError) as error:  # TypeError: no such class, which py4j takes for a package
        if isinstance(error, Py4JError) and not is_missing(error):
            raise
        return frame
    return frame_of(stage, frame.sparkSession)


def _kept(jvm: Any, session: Any, plan: Any, known: Callable[[str], Broadcasts | None]) -> Any:
    children = plan.children()
    found = [children.apply(i) for i in range(children.size())]
    new = [_kept(jvm, session, child, known) for child in found]
    if plan.nodeName() == "BroadcastHashJoin" and plan.buildSide().toString() == "BuildRight":
        rows = found[1]
        output = rows.output()
        table = next((t for i in range(output.size()) if (t := known(output.apply(i).name())) is not None), None)
        if table is not None and rows.nodeName() != "ReusedExchange":
            mode = plan.requiredChildDistribution().apply(1).mode()
            exchange = table.of(jvm, session, rows, mode)
            new[1] = jvm.org.apache.spark.sql.execution.exchange.ReusedExchangeExec(output, exchange)
    if all(a is b for a, b in zip(found, new, strict=True)):
        return plan
    args = jvm.java.util.ArrayList()
    for child in new:
        args.add(child)
    return plan.withNewChildren(jvm.scala.jdk.javaapi.CollectionConverters.asScala(args).toIndexedSeq())


__all__ = ["Broadcasts", "with_kept"]
