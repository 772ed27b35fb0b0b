"""What differs between a flow and the one whose state a checkpoint has: a look, nothing is changed.

Read next: `penstock.driver.report`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.checkpoint.folder import open_checkpoint
from penstock.driver.compile import CompiledFlow, compile_flow
from penstock.driver.report import Report
from penstock.driver.takeover import compare
from penstock.errors import CheckpointError
from penstock.flow import plan as p
from penstock.sql_text.schema import quoted


def differences(
    plan: p.Plan, uri: str, compiled_exactly: Callable[[p.Plan], CompiledFlow], forget: Collection[str] = ()
) -> Report:
    """Compare a declared flow with a checkpoint.

    Args:
        plan: The flow.
        uri: The checkpoint.
        compiled_exactly: Compiles the plan with an engine that knows all types; called only if the declaration alone does not say them.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.

    Raises:
        CheckpointError: There is no such checkpoint, or it is another flow's.
        ChangedFlowError: `forget` names a part that the flow has.
        DeclarationError: The flow does not fit together.
    """
    checkpoint, identity = open_checkpoint(uri)
    if identity.name != plan.name:
        raise CheckpointError(f"Checkpoint {uri} belongs to flow {identity.name!r}, not {plan.name!r}; give the flow's own.")
    flow = _compiled_alone(plan) if _all_known(plan) else compiled_exactly(plan)
    return compare(flow, checkpoint.last(), uri, forget)[1]


def _compiled_alone(plan: p.Plan) -> CompiledFlow:
    """Compiled by the declared types, without an engine's partial results, which have no state of their own."""
    return compile_flow(plan, lambda node, _: node.schema, lambda *_: None)


def _all_known(plan: p.Plan) -> bool:
    """Whether the declaration alone gives all types that state depends on: no step before a region computes a column in SQL."""
    inputs = [node for region in plan.regions for node in region.inputs]
    return not any(_computes(step) for step in p.upstream_of(p.StepNode, *inputs))


def _computes(node: p.StepNode) -> bool:
    if node.step.frame_function() is not None:
        return True
    names = [name for before in p.inputs_of(node) for name in before.schema.names]
    sql = node.step.sql(node.inputs[0].schema)
    as_they_are = {*names, *map(quoted, names)}
    return sql is not None and any(expression not in as_they_are for _, expression in sql.columns or ())


__all__ = ["differences"]
