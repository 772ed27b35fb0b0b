"""The options of `start`, checked and in the engine's units."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.protocol.controller import MOST_WORKERS
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.spark.internals.local_files import LOCAL_LOG
from penstock.spark.session.local import HANDING
from penstock.spark.session.settings import BATCH_ROWS
from penstock.types import Duration, duration_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.driver.compile import CompiledFlow

_BATCH_BYTES: Final = 1 << 20
_MOST_ROWS: Final = 1 << 14
AVAILABLE_NOW: Final = "available_now"
_LIKE_AVAILABLE_NOW: Final = frozenset({"availablenow", "available", "now", "once", "continuous"})
DEFAULT_WORKERS: Final = 2


def interval_ms(trigger: Duration) -> int | None:
    """The trigger in milliseconds; None for available now.

    Raises:
        DeclarationError: It is neither a duration nor ``"available_now"``.
    """
    if trigger == AVAILABLE_NOW:
        return None
    spelled = "".join(letter for letter in trigger.lower() if letter.isalpha()) if isinstance(trigger, str) else ""
    if (
        isinstance(trigger, bool)
        or not isinstance(trigger, str | dt.timedelta | Real)
        or spelled.removeprefix("trigger") in _LIKE_AVAILABLE_NOW
    ):
        raise DeclarationError(
            f"trigger={trigger!r} is not known; write {AVAILABLE_NOW!r} to process what there is and then end, or how often an epoch "
            "begins, such as '200 milliseconds'."
        )
    return duration_us(trigger, "trigger") // 1000


def check_patterns(flow: CompiledFlow, spark: SparkSession) -> None:
    """See `penstock.spark.patterns.match.check_expressions`, for every operator of a flow."""
    for operator in (step.operator for region in flow.regions.values() for step in region.spec.steps):
        text, expressions = operator.java_expressions()
        if expressions:
            from penstock.spark.patterns.match import check_expressions  # (loads the recogniser)

            check_expressions(expressions, spark, text)


def query_settings(flow: CompiledFlow, *, local: bool) -> dict[str, str]:
    """A flow's settings for the session of its query, see `penstock.spark.session.own.offer`.

    Each batch that crosses to Python costs about 0.1 ms. If only columns of fixed width cross, a batch can have many rows: a
    worker's epoch over five million events of numbers takes a sixth less.

    Args:
        flow: The flow.
        local: Whether its checkpoint is a folder on this machine.
    """
    offered = {**HANDING, **(LOCAL_LOG if local else {})}
    plan = flow.plan
    steps = p.upstream_of(p.StepNode, *p.readers(plan.regions, plan.outputs))
    widths = [_width(region.spec.in_schema) for region in flow.regions.values()]
    if all(widths) and all(step.sql is not None for step in steps):
        rows = _BATCH_BYTES // max(widths, default=1)
        offered[BATCH_ROWS] = str(min(max(rows, int(HANDING[BATCH_ROWS])), _MOST_ROWS))
    return offered


def _width(schema: pa.Schema) -> int:
    """Bytes of a row; 0 if that depends on the row."""
    kinds = schema.types
    if not all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in kinds):
        return 0
    return sum((kind.bit_width + 7) // 8 for kind in kinds)


def step_limits(step_budget: Duration | Limits | None) -> Limits:
    """Bounds of a step of a rescale.

    Raises:
        DeclarationError: The budget is no duration, or not positive.
    """
    if step_budget is None:
        return ALL_AT_ONCE
    if isinstance(step_budget, Limits):
        return step_budget
    budget_us = duration_us(step_budget, "step_budget")
    if budget_us <= 0:
        raise DeclarationError(f"step_budget={step_budget!r} must be positive; None moves everything in one step.")
    return Limits(budget_us=budget_us)


def names_to_forget(names: Sequence[str]) -> tuple[str, ...]:
    """The names in ``forget=``.

    Raises:
        DeclarationError: It is not a list of names.
    """
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise DeclarationError(f"forget={names!r} must be a list of regions and steps; write [{str(names)!r}].")
    return tuple(names)


def workers_of(plan: p.Plan, workers: int | Mapping[str, int] | None) -> dict[str, int]:
    """By region, the number of workers to begin with.

    Raises:
        DeclarationError: A region does not exist, or a number is invalid.
    """
    workers = DEFAULT_WORKERS if workers is None else workers
    names = [r.name for r in plan.regions]
    if isinstance(workers, Mapping):
        for name in workers:
            if name not in names:
                raise DeclarationError(f"workers names region {name!r}, which does not exist; there are {', '.join(names)}.")
    elif not isinstance(workers, int):
        raise DeclarationError(f"workers={workers!r} must be a whole number, or numbers by region.")
    given = {
        r.name: r.workers or (workers if isinstance(workers, int) else workers.get(r.name, DEFAULT_WORKERS))
        for r in plan.regions
    }
    for name, number in given.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_WORKERS:
            raise DeclarationError(
                f"Region {name!r} cannot have {number!r} workers; give a whole number from 1 to {MOST_WORKERS}."
            )
    return given
