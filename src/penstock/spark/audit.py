"""The audit of functions over DataFrames: what one gives for the same rows in other partitions and another order must be the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.columns import named
from penstock.types import OFFSET, ORDER, visible
from penstock.worker.audit import differs
from penstock.worker.differences import NOTHING

_TASKS = 3
_ROW = "row"


def step_twice(
    what: str, step: Callable[[DataFrame], DataFrame], frame: DataFrame, place: Callable[[int, int], str]
) -> DataFrame:
    """The result of a stateless step, once it has been compared with another one.

    Args:
        what: The step, for messages.
        step: Applies it.
        frame: Its rows, which are read several times.
        place: Gives the text of a position, of partition and offset.

    Raises:
        AuditError: The results differ.
    """
    out = step(frame)
    other = step(frame.repartition(_TASKS, named(OFFSET)).sortWithinPartitions(named(OFFSET).desc()))
    first, second = _as_text(out), _as_text(other)
    for one, another, swapped in ((first, second, False), (second, first, True)):
        found = one.exceptAll(another).orderBy(*ORDER).limit(1).collect()
        if not found:
            continue
        at = [found[0][name] for name in ORDER]
        same_place = another.where(" and ".join(f"{name} <=> {value}" for name, value in zip(ORDER, at, strict=True)))
        beside: Sequence[str] = [row[_ROW] for row in same_place.limit(1).collect()] or [NOTHING]
        both = [found[0][_ROW], beside[0]]
        told = f"{what} is not deterministic: computed twice from the same rows, in other partitions and another order"
        raise differs(told, f"it gave for the record at {place(at[1], at[2])}", both[::-1] if swapped else both)
    return out


def _as_text(frame: DataFrame) -> DataFrame:
    """Positions, and a row as JSON: maps cannot be compared, and this shows the row."""
    shown = F.struct(*(named(name) for name in visible(frame.columns)))
    return frame.select(*ORDER, F.to_json(shown, {"ignoreNullFields": "false"}).alias(_ROW))
