"""Values in plain Python: aggregates of lists, and what equals what. A part of `oracle`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


def aggregate(kind: str, values: list[Any]) -> Any:
    """An aggregate of values in the order of their records; nulls as documented."""
    some = [v for v in values if v is not None]
    if kind == "count":
        return len(some)
    if kind == "first":
        return values[0]
    if kind == "last":
        return values[-1]
    if kind == "collect":
        return some
    if kind == "concat":
        return "".join(some)
    if kind in ("fold", "said"):
        return sum(v * v for v in some) % 97
    if kind in ("count_distinct", "approx_count_distinct"):
        return len(set(some))
    if not some:
        return None
    if kind == "quantile":
        return sorted(some)[math.floor(0.5 * (len(some) - 1))]
    if kind == "mean":
        return exact_sum(some) / len(some)
    if kind in ("min", "max"):
        return {"min": min, "max": max}[kind](
            some, key=lambda v: (math.isnan(v), v) if isinstance(v, float) else v
        )  # NaN is greater than every number
    return {"sum": sum, "fsum": exact_sum}[kind](some)


def exact_sum(values: list[Any]) -> float:
    """The sum rounded once; beyond what a double holds infinite, and with NaN or infinities what these alone give."""
    special = [v for v in values if not math.isfinite(v)]
    if special:
        return sum(special)
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


NAN = math.nan


def one_value(value: Any) -> Any:
    """A value that equals itself: there is one NaN, and one zero."""
    if isinstance(value, list):
        return tuple(map(one_value, value))
    if isinstance(value, float):
        return NAN if value != value else value + 0.0  # noqa: PLR0124
    return value
