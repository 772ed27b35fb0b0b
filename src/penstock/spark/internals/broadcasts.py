"""Broadcasts that outlive an epoch: what Spark builds of one side of a join, and sends to its executors, is kept for later plans.

Spark reuses a broadcast within a query only. Here the physical plan of a DataFrame is made, and where a join is about to broadcast a table that is
known by the name of a column, the exchange of an earlier plan takes its place if it gives the same rows in the same form (`sameResult`, by
which Spark itself reuses exchanges). The rest of Spark gets the plan as one that is planned already.

| call | for | without it |
|---|---|---|
| `QueryExecution.sparkPlan`, `prepareExecutedPlan`, `TreeNode.treeString`, `BroadcastExchangeExec`, `ReusedExchangeExec`, `LogicalQueryStage` | the above | the broadcast is built for each epoch |

A broadcast ends with its exchange: once neither Python nor a plan refers to it, Spark's cleaner removes it from the executors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.internals.plans import frame_of, is_missing

_JOIN: Final = "BroadcastHashJoin"
_NODE: Final = re.compile(r"((?:[:+ ][- ] )*)(\w*)")  # a line of Spark's tree
_SHAPES: Final = 4
"""Of one table so many broadcasts are kept: a plan may need fewer of its columns than another, or fewer rows."""


@dataclass(frozen=True)
class _Java:
    """Java's classes and functions. To find one by its packages' names, each of which might be a class, takes a call for each."""

    exchange: Any
    reused: Any
    prepared: Any
    stage: Any
    list: Any
    as_scala: Any


_java: WeakKeyDictionary[SparkContext, _Java] = WeakKeyDictionary()


def _java_of(spark: SparkSession) -> _Java:
    context = spark.sparkContext
    if context not in _java:
        jvm: Any = context._jvm
        execution = jvm.org.apache.spark.sql.execution
        _java[context] = _Java(
            execution.exchange.BroadcastExchangeExec,
            execution.exchange.ReusedExchangeExec,
            execution.QueryExecution.prepareExecutedPlan,
            execution.adaptive.LogicalQueryStage,
            jvm.java.util.ArrayList,
            jvm.scala.jdk.javaapi.CollectionConverters.asScala,
        )
    return _java[context]


class Broadcasts:
    """What was broadcast of one table.

    Attributes:
        made: Of each broadcast the plan that gives its rows, the form that they get, and its exchange; newest last.
    """

    def __init__(self) -> None:
        self.made: list[tuple[Any, Any, Any]] = []

    def of(self, java: _Java, session: Any, rows: Any, mode: Any) -> Any:
        """The exchange that broadcasts what a physical plan gives."""
        self.made = [kept for kept in self.made if not _failed(kept[2])]
        for like, form, exchange in self.made:
            if form.equals(mode) and like.sameResult(rows):
                return exchange
        exchange = java.exchange(mode, java.prepared(session, rows))
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
    session: Any = jdf.sparkSession()
    try:
        execution = jdf.queryExecution()
        plan = execution.sparkPlan()
        java = _java_of(frame.sparkSession)
        kept = _kept(java, session, plan, joins_of(_tree(plan)), known)
        if kept is plan:
            return frame
        stage = java.stage(execution.analyzed(), kept)
    except (Py4JError, TypeError) as error:  # TypeError: no such class, which py4j takes for a package
        if isinstance(error, Py4JError) and not is_missing(error):
            raise
        return frame
    return frame_of(stage, frame.sparkSession)


def _kept(java: _Java, session: Any, plan: Any, joins: list[tuple[int, ...]], known: Callable[[str], Broadcasts | None]) -> Any:
    """A plan with what is kept; itself where nothing is.

    Args:
        java: Spark's classes.
        session: Spark's session.
        plan: The plan.
        joins: The places of its joins, as `joins_of` gives them.
        known: As of `with_kept`.
    """
    children = plan.children()
    new: dict[int, Any] = {}
    for i in sorted({place[0] for place in joins if place}):
        child = children.apply(i)
        kept = _kept(java, session, child, [place[1:] for place in joins if place and place[0] == i], known)
        if kept is not child:
            new[i] = kept
    if () in joins and plan.nodeName() == _JOIN and plan.buildSide().toString() == "BuildRight":
        rows = children.apply(1)
        output = rows.output()
        table = next((t for i in range(output.size()) if (t := known(output.apply(i).name())) is not None), None)
        if table is not None and rows.nodeName() != "ReusedExchange":
            mode = plan.requiredChildDistribution().apply(1).mode()
            new[1] = java.reused(output, table.of(java, session, rows, mode))
    if not new:
        return plan
    args = java.list()
    for i in range(children.size()):
        args.add(new[i] if i in new else children.apply(i))
    return plan.withNewChildren(java.as_scala(args).toIndexedSeq())


def _tree(plan: Any) -> str:
    """A plan as a tree of its nodes' names; what is computed there might have lines that look like nodes."""
    try:
        return str(plan.treeString(False, False, 0, True, False))
    except Py4JError as error:
        if not is_missing(error):
            raise
        return str(plan.treeString(False, False, 0, True))  # before PySpark 4.1


def joins_of(tree: str) -> list[tuple[int, ...]]:
    """Where joins are in a plan that Spark has written as a tree: from its root down, which child each time.

    To go through the plan itself takes four calls to Java for each node.
    """
    found = []
    at: list[int] = []
    children = [0]  # of each node on the way to the last one, how many have been met
    for line in tree.splitlines():
        prefix, name = _NODE.match(line).groups()  # type: ignore[union-attr]  # it matches every text
        depth = len(prefix) // 3
        if depth > len(children):
            continue  # not a child: a plan that a node shows within itself stands two levels deeper
        if depth:
            del children[depth:]
            at = [*at[: depth - 1], children[-1]]
            children[-1] += 1
            children.append(0)
        if name == _JOIN:
            found.append(tuple(at))
    return found


__all__ = ["Broadcasts", "joins_of", "with_kept"]
