"""penstock: elastic, exactly-once stateful streaming on PySpark.

Names load on first use, so that ``import penstock`` costs nothing. Start with `Flow`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import PenstockError as PenstockError
    from penstock.flow.flow import Flow as Flow
    from penstock.flow.keyed import KeyedStream as KeyedStream
    from penstock.flow.stream import Stream as Stream
    from penstock.group.consumer import Consumer as Consumer
    from penstock.group.producer import Producer as Producer
    from penstock.group.settings import Group as Group
    from penstock.operators.aggregates import Aggregate as Aggregate
    from penstock.operators.aggregates import approx_count_distinct as approx_count_distinct
    from penstock.operators.aggregates import avg as avg
    from penstock.operators.aggregates import collect as collect
    from penstock.operators.aggregates import count as count
    from penstock.operators.aggregates import count_distinct as count_distinct
    from penstock.operators.aggregates import first as first
    from penstock.operators.aggregates import last as last
    from penstock.operators.aggregates import max as max
    from penstock.operators.aggregates import mean as mean
    from penstock.operators.aggregates import min as min
    from penstock.operators.aggregates import quantile as quantile
    from penstock.operators.aggregates import stddev as stddev
    from penstock.operators.aggregates import sum as sum
    from penstock.operators.base import Operator as Operator
    from penstock.operators.windows import session as session
    from penstock.operators.windows import sliding as sliding
    from penstock.operators.windows import tumbling as tumbling
    from penstock.patterns.ceql.explain import explain as explain
    from penstock.patterns.ceql.parsing import parse as parse
    from penstock.patterns.enumeration.maximal import Maximal as Maximal
    from penstock.patterns.enumeration.maximal import MaximalDisjoint as MaximalDisjoint
    from penstock.patterns.enumeration.work import CountedSplit as CountedSplit
    from penstock.routing.by_partition import ByPartition as ByPartition
    from penstock.routing.consistent_grouping import ConsistentGrouping as ConsistentGrouping
    from penstock.routing.d_choices import DChoices as DChoices
    from penstock.routing.histogram import Histogram as Histogram
    from penstock.routing.isolate import Isolate as Isolate
    from penstock.routing.key_grouping import KeyGrouping as KeyGrouping
    from penstock.routing.partial_key_grouping import PartialKeyGrouping as PartialKeyGrouping
    from penstock.routing.power_of_two_choices import PowerOfTwoChoices as PowerOfTwoChoices
    from penstock.routing.route import route as route
    from penstock.routing.shuffle import Shuffle as Shuffle
    from penstock.routing.w_choices import WChoices as WChoices
    from penstock.serve.terminal import watch as watch
    from penstock.sinks import console as console
    from penstock.sinks import foreach_epoch as foreach_epoch
    from penstock.sinks import memory as memory
    from penstock.sinks import noop as noop
    from penstock.sinks import parquet as parquet
    from penstock.sinks import redis_stream as redis_stream
    from penstock.sinks import sql as sql
    from penstock.sources import files as files
    from penstock.sources import rate as rate
    from penstock.sources import read_back as read_back
    from penstock.sources import redis_streams as redis_streams
    from penstock.spark.patterns.match import match as match
    from penstock.spark.skew import skew as skew
    from penstock.spark.state import read_state as read_state
    from penstock.version import __version__ as __version__

_HOME = {
    name: f"penstock.{home}"
    for home, names in {
        "version": "__version__",
        "errors": "PenstockError",
        "flow.flow": "Flow",
        "flow.stream": "Stream",
        "flow.keyed": "KeyedStream",
        "group.consumer": "Consumer",
        "group.producer": "Producer",
        "group.settings": "Group",
        "operators.base": "Operator",
        "routing.by_partition": "ByPartition",
        "routing.consistent_grouping": "ConsistentGrouping",
        "routing.d_choices": "DChoices",
        "routing.histogram": "Histogram",
        "routing.isolate": "Isolate",
        "routing.key_grouping": "KeyGrouping",
        "routing.partial_key_grouping": "PartialKeyGrouping",
        "routing.power_of_two_choices": "PowerOfTwoChoices",
        "routing.route": "route",
        "routing.shuffle": "Shuffle",
        "routing.w_choices": "WChoices",
        "operators.windows": "tumbling sliding session",
        "operators.aggregates": "Aggregate approx_count_distinct avg collect count count_distinct first last "
        "max mean min quantile stddev sum",
        "serve.terminal": "watch",
        "sinks": "console foreach_epoch memory noop parquet redis_stream sql",
        "sources": "files rate read_back redis_streams",
        "spark.state": "read_state",
        "spark.skew": "skew",
        "spark.patterns.match": "match",
        "patterns.ceql.parsing": "parse",
        "patterns.ceql.explain": "explain",
        "patterns.enumeration.work": "CountedSplit",
        "patterns.enumeration.maximal": "Maximal MaximalDisjoint",
    }.items()
    for name in names.split()
}
_PLANNED = frozenset(
    [
        "delta",
        "kafka",
        "kafka_topic",
    ]
)


def _missing(name: str) -> Any:
    """Load a public name on its first use."""
    if name in _PLANNED:
        raise AttributeError(f"penstock.{name} is not available in this version.")
    if name not in _HOME:
        from penstock.flow.spellings import MODULE, missing  # noqa: PLC0415  (only where a name is missing)

        raise missing("penstock", name, MODULE, _HOME)
    return getattr(import_module(_HOME[name]), name)


if not TYPE_CHECKING:  # a checker that saw these would let every name pass
    __getattr__, __all__ = _missing, list(_HOME)


def __dir__() -> list[str]:
    return sorted(_HOME)
