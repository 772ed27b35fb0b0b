"""penstock: elastic, exactly-once stateful streaming on PySpark.

Names load on first use, so that ``import penstock`` costs nothing. Start with `Flow`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import PenstockError as PenstockError

_HOME = {
    "__version__": "penstock.version",
    "PenstockError": "penstock.errors",
    "Flow": "penstock.flow.flow",
    "Stream": "penstock.flow.stream",
    "KeyedStream": "penstock.flow.keyed",
    "Operator": "penstock.operators.base",
    "KeyGrouping": "penstock.routing.strategies",
    "tumbling": "penstock.operators.windows",
    "sliding": "penstock.operators.windows",
    "session": "penstock.operators.windows",
    **dict.fromkeys(
        (
            "Aggregate",
            "approx_count_distinct",
            "collect",
            "count",
            "count_distinct",
            "first",
            "last",
            "max",
            "mean",
            "min",
            "quantile",
            "stddev",
            "sum",
        ),
        "penstock.operators.aggregates",
    ),
    **dict.fromkeys(("console", "foreach_epoch", "memory", "noop", "parquet", "sql"), "penstock.sinks"),
    **dict.fromkeys(("files", "rate"), "penstock.sources"),
    "read_state": "penstock.spark.state",
    "match": "penstock.spark.patterns.match",
    "parse": "penstock.patterns.ceql.parsing",
    "explain": "penstock.patterns.ceql.explain",
    "CountedSplit": "penstock.patterns.enumeration.work",
    "Maximal": "penstock.patterns.enumeration.maximal",
    "MaximalDisjoint": "penstock.patterns.enumeration.maximal",
}
__all__ = list(_HOME)
_PLANNED = frozenset(
    [
        "delta",
        "redis_stream",
        "redis_streams",
        "kafka",
        "kafka_topic",
        "Group",
        "Histogram",
        "Shuffle",
        "PowerOfTwoChoices",
        "PartialKeyGrouping",
        "DChoices",
        "WChoices",
        "ConsistentGrouping",
        "Isolate",
    ]
)


def __getattr__(name: str) -> Any:
    """Load a public name on its first use."""
    if name in _PLANNED:
        raise AttributeError(f"penstock.{name} is not available in this version.")
    if name not in _HOME:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}.")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
