"""Send users' functions and strategies to Spark's workers together with their modules.

A function of an installed package is sent by name, others by value (`penstock.worker.pickling`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle

from penstock.flow.plan import Plan, StepNode, readers, upstream_of
from penstock.worker.pickling import loose_modules


def ship_user_code(plan: Plan) -> None:
    """Have the modules of all functions of a plan pickled by value, unless they are installed."""
    for module in loose_modules(_functions(plan)):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # PySpark does not type it


def _functions(plan: Plan) -> Iterator[Any]:
    for region in plan.regions:
        yield type(region.distribute)
        for step in region.steps:
            yield from step.operator.user_functions()
    for node in upstream_of(StepNode, *readers(plan.regions, plan.outputs)):
        yield from node.step.user_functions()
