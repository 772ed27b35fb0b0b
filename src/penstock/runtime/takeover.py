"""Where a start, a going back to a snapshot and the harness meet `succession`: a compiled flow takes over a record's state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.errors import ChangedFlowError
from penstock.flow import plan as p
from penstock.runtime.compile import CompiledFlow
from penstock.runtime.record import EpochRecord
from penstock.runtime.shape import FlowShape, bind, shape_of
from penstock.runtime.succession import Succession, named_as_before, succeed


def take_over(flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str] = ()) -> list[str]:
    """Give a flow the slots and names under which a record's state and outputs are known; `flow` is changed.

    Args:
        flow: The compiled flow.
        record: The record whose state it goes on with.
        uri: The checkpoint, for messages.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.

    Returns:
        A sentence for each thing that begins empty or is forgotten.

    Raises:
        ChangedFlowError: State would be lost or misread. Nothing was changed.
    """
    outputs, succession = _succession(flow, record, uri, forget)
    flow.plan = replace(flow.plan, outputs=tuple(outputs))
    bind(flow, succession.shape)
    flow.shape = succession.shape.to_json()
    return succession.notices


def refusal(flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str] = ()) -> str:
    """Why a flow cannot take over a record's state; empty: it can."""
    try:
        _succession(flow, record, uri, forget)
    except ChangedFlowError as error:
        return str(error)
    return ""


def same_sink(record: EpochRecord, output: p.Output) -> bool:
    """Whether an output had the same sink when the record was written, so that the sink must hold what the record says."""
    return bool(record.shape.get("outputs", {}).get(output.name) == repr(output.sink))


def _succession(
    flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str]
) -> tuple[list[p.Output], Succession]:
    before = FlowShape.from_json(record.shape) if record.shape else None
    outputs = named_as_before(before, flow.plan.outputs, uri)
    shape = replace(shape_of(flow), outputs={o.name: repr(o.sink) for o in outputs})
    held = [name for name, region in record.regions.items() if region.control.held]
    return outputs, succeed(before, shape, uri, forget, held)


__all__ = ["refusal", "same_sink", "take_over"]
