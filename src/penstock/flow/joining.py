"""Which operator a join is, by what ``KeyedStream.join`` is given.

Read next: `penstock.operators.join`, `penstock.operators.asof_join`.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import DeclarationError
from penstock.operators.asof_join import AsOfJoin
from penstock.operators.base import Operator
from penstock.operators.join import IntervalJoin
from penstock.types import duration_us

_HOW: Final = {
    "inner": "inner",
    **dict.fromkeys(("left", "leftouter"), "left"),
    **dict.fromkeys(("right", "rightouter"), "right"),
    **dict.fromkeys(("full", "outer", "fullouter"), "full"),
    "asof": "asof",
}
"""Spark's words for joins, without underscores."""


def join_of(within: Any, how: Any, tolerance: Any) -> Operator:
    """The join.

    Raises:
        DeclarationError: It is none, or `within` or `tolerance` is missing or does not belong to it.
    """
    if (kind := _HOW.get(str(how).lower().replace("_", ""))) is None:
        raise DeclarationError(
            f"join(how={how!r}) is not known; use 'inner', 'left', 'right' or 'full', or 'asof' for the latest row before."
        )
    if kind != "asof":
        if within is None:
            raise DeclarationError(
                "join needs to know how far apart the rows of a pair may be: join(other, within='10 minutes')."
            )
        if tolerance is not None:
            raise DeclarationError(f"join(how={kind!r}) has within=; tolerance= belongs to how='asof'.")
        return IntervalJoin(duration_us(within, "join's within"), kind)
    if within is not None:
        raise DeclarationError("join(how='asof') has tolerance=, how far before its row the other may be, in place of within=.")
    tolerance_us = None if tolerance is None else duration_us(tolerance, "join's tolerance")
    return AsOfJoin(tolerance_us)


__all__ = ["join_of"]
