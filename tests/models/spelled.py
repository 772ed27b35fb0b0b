"""Equal spellings of steps: penstock's own, and those that users of PySpark bring along."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from typing import Any

import penstock as ps
from penstock.operators.aggregates import Kernel

EPOCH_0 = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SECOND = 1_000_000
Spelling = Callable[..., Any]
"""Takes several spellings of one thing and gives one of them."""


def moment(us: int) -> dt.datetime:
    """Microseconds as a time."""
    return EPOCH_0 + dt.timedelta(microseconds=us)


def micros(time: dt.datetime) -> int:
    """The inverse of `moment`."""
    return (time - EPOCH_0) // dt.timedelta(microseconds=1)


def plainly(first: Any, *_: Any) -> Any:
    """Of several spellings penstock's own."""
    return first


def at_random(seed: int) -> Spelling:
    """Of several spellings of one thing any; the same for the same seed."""
    chance = random.Random(seed)
    return lambda *spellings: chance.choice(spellings)


def duration(us: int, spelling: Spelling) -> Any:
    """A duration in one of its spellings."""
    whole = f"{us // SECOND}s" if us % SECOND == 0 else f"{us} us"
    return spelling(dt.timedelta(microseconds=us), whole, us / SECOND, f"{us / SECOND:.6f} sec")


def spelled_aggregate(usual: Any, kind: str, column: str | None, spelling: Spelling) -> Any:
    """An aggregate in one of its spellings, if it has several."""
    if not isinstance(usual, Kernel) or type(usual).__module__.split(".")[0] != "penstock":
        return usual
    if kind == "count":
        return spelling(usual, ps.count(column or "*"), f"count({column or '*'})")
    if kind == "mean" and column:
        return spelling(usual, ps.avg(column.upper(), exact=True))
    if kind in ("min", "max", "first", "last", "count_distinct") and column:
        text = f"count(DISTINCT {column})" if kind == "count_distinct" else f"{kind}({column})"
        return spelling(usual, text, getattr(ps, kind)(column.upper()))
    return usual


def standard(stream: Any, names: Sequence[str], spelling: Spelling) -> Any:
    """Some columns of a stream only, in their order."""
    others = [n for n in stream.columns if n not in names]
    drops = others and [n for n in stream.columns if n in names] == names
    return spelling(
        lambda: stream.select(*names),
        lambda: stream.select([*names]),
        lambda: stream.drop(others) if drops else stream.select(names[0], [n.upper() for n in names[1:]]),
    )()


def spelled_names(names: Sequence[str], spelling: Spelling) -> Sequence[Any]:
    """Columns as arguments: one by one, in a list, in another case."""
    return spelling(names, [names], [[n.upper() for n in names]], [n.upper() for n in names])


def spelled_how(how: str, spelling: Spelling) -> str:
    """The kind of a join in penstock's word or in Spark's."""
    return spelling(how, {"full": "outer"}.get(how, how.upper()))
