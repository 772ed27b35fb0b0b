"""Send users' functions and strategies to Spark's workers together with their modules.

A function of an installed package is sent by name. A worker cannot import a script, a notebook or a test module, so functions
of these are sent by value.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle

from penstock.flow.plan import Plan, StepNode, readers, upstream_of


def ship_user_code(plan: Plan) -> None:
    """Have the modules of all functions of a plan pickled by value, unless they are installed."""
    for fn in _functions(plan):
        module = sys.modules.get(getattr(fn, "__module__", None) or "")
        if module is not None and module.__name__ != "__main__" and not _installed(module):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # PySpark does not type it


def _functions(plan: Plan) -> Iterator[Any]:
    for region in plan.regions:
        yield type(region.distribute)
        for step in region.steps:
            yield from step.operator.user_functions()
    for node in upstream_of(StepNode, *readers(plan.regions, plan.outputs)):
        yield from node.step.user_functions()


def _installed(module: Any) -> bool:
    """Whether workers can import it: it belongs to Python, to an installed package or to penstock."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] == "penstock":
        return True
    return any(file.startswith(path) for path in sysconfig.get_paths().values() if path)
