"""What in a DataFrame's plan goes by the zone of its session, from Spark's Java objects.

Without them (another version's names) such a step could not be found, and where a flow is started next, its records could be others: so
the error is raised.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame

from penstock.spark.internals.plans import plan_of

_TEXT: Final = ("csv", "json", "xml")
_AWARE: Final = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"


def zoned_step(frame: DataFrame, others: Collection[str]) -> str:
    """The first step of a DataFrame that goes by its session's zone; empty: there is none.

    Args:
        frame: The DataFrame.
        others: Names of zones, in lower case, by which a step may go.
    """
    return _zoned(frame, plan_of(frame), others)


def _zoned(frame: DataFrame, plan: Any, others: Collection[str]) -> str:
    if plan.nodeName() == "StreamingRelation":
        kind, options = str(plan.dataSource().className()).lower(), plan.dataSource().options()
        times = any(name in str(plan.schema().simpleString()) for name in ("timestamp", "date"))
        if kind in _TEXT and times and not any(options.contains(name) for name in ("timeZone", "timezone")):
            return f"that reads times from {kind}"
    for expression in _all(plan.expressions()):
        if step := _zoned_expression(frame, expression, others):
            return step
    return next((step for child in _all(plan.children()) if (step := _zoned(frame, child, others))), "")


def _zoned_expression(frame: DataFrame, expression: Any, others: Collection[str]) -> str:
    gateway: Any = frame.sparkSession.sparkContext._gateway
    if is_instance_of(gateway, expression, _AWARE):
        kind = str(expression.getClass().getSimpleName())
        zone = expression.timeZoneId()
        if zone.isDefined() and str(zone.get()).lower() not in others and (kind != "Cast" or bool(expression.needsTimeZone())):
            return str(expression.sql())
    return next((step for child in _all(expression.children()) if (step := _zoned_expression(frame, child, others))), "")


def _all(found: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [found.apply(i) for i in range(int(found.size()))]


__all__ = ["zoned_step"]
