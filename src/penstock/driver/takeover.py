"""A compiled flow takes over a record's state, for a start, a rollback, the harness and ``penstock diff``; see `succession`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import xxhash

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.checkpoint.shape import FlowShape, RegionShape
from penstock.driver.compile import CompiledFlow
from penstock.driver.report import Report
from penstock.driver.shape import bind, shape_of
from penstock.driver.succession import named_as_before, succeed
from penstock.errors import ChangedFlowError
from penstock.flow import plan as p
from penstock.progress.lateness import behind
from penstock.types import Mark, Refusal, plain


def take_over(flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str] = ()) -> list[str]:
    """Give a flow the slots and names under which a record's state and outputs are known; `flow` is changed.

    Args:
        flow: The compiled flow.
        record: The record whose state it takes over.
        uri: The checkpoint, for messages.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.

    Returns:
        A sentence for each part that begins empty or is forgotten.

    Raises:
        ChangedFlowError: State would be lost or misread. Nothing was changed.
    """
    outputs, report = compare(flow, record, uri, forget)
    report.checked()
    flow.plan = replace(flow.plan, outputs=tuple(outputs))
    bind(flow, report.shape, report.at_once)
    flow.shape = report.shape
    return list(report.changes)


def rebuild(
    flow: CompiledFlow, record: EpochRecord, uri: str, resting: Collection[str], forget: Collection[str] = ()
) -> list[str]:
    """As `take_over`, for a flow only some of whose regions, `resting`, keep their state."""
    outputs, report = compare(flow, record, uri, forget)
    flow.plan = replace(flow.plan, outputs=tuple(outputs))
    bind(flow, report.shape, report.at_once)
    flow.shape = report.shape
    told = [f"Region {name!r} keeps its state." for name in flow.regions if name in resting]
    return [f"Region {name!r} is computed anew." for name in flow.regions if name not in resting] + told


def takeover_refusal(flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str] = ()) -> Refusal | None:
    """Why a flow cannot take over a record's state, if it cannot."""
    try:
        compare(flow, record, uri, forget)[1].checked()
    except ChangedFlowError as error:
        return Refusal(str(error))
    return None


def is_the_same(flow: CompiledFlow, record: EpochRecord, uri: str) -> bool:
    """Whether a record's state is what the flow would have computed."""
    report = compare(flow, record, uri)[1]
    return report.refusal() is None and not report.differing


def with_floors(record: EpochRecord, flow: CompiledFlow) -> EpochRecord:
    """The record for a flow whose sources may have other lateness bounds than before: what the frontier has passed stays late."""
    before = {s.name: s.lateness_us for s in record.shape.sources} if record.shape else {}
    sources = dict(record.sources)
    for source in flow.plan.sources:
        if source.name in sources and source.lateness_us > before.get(source.name, source.lateness_us):
            state = sources[source.name]
            floors = {
                n: replace(k, late_floor=max(k.late_floor, behind(k.latest, before[source.name])))
                for n, k in state.partitions.items()
            }
            sources[source.name] = replace(state, partitions=floors)
    return replace(record, sources=sources)


def same_sink(record: EpochRecord, output: p.Output) -> bool:
    """Whether an output had the same sink when the record was written, so that the sink must hold what the record says."""
    return record.shape is not None and record.shape.outputs.get(output.name) == repr(output.sink)


def check_ahead(checkpoint: Checkpoint, flow: CompiledFlow, last: EpochRecord, marks: Mapping[str, Mark | None]) -> None:
    """Refuse a changed flow while a sink holds an uncommitted epoch: its rows would stay without the state that belongs to
    them.

    Args:
        checkpoint: The checkpoint; stores what feeds the outputs if all is well.
        flow: The flow, which has taken over `last`.
        last: The last committed record.
        marks: What each sink holds, by output.

    Raises:
        ChangedFlowError: Something else feeds an output than when its sink stored that epoch. Nothing was changed.
    """
    fed = {o.name: _feeds(flow, o) for o in flow.plan.outputs}
    if refused := _ahead_refusal(checkpoint, fed, last, marks):
        raise ChangedFlowError(refused.sentence)
    checkpoint.keep_fed(fed)


def fed_otherwise(
    checkpoint: Checkpoint, flow: CompiledFlow, shape: FlowShape, last: EpochRecord, marks: Mapping[str, Mark | None]
) -> Refusal | None:
    """As `check_ahead`, for a flow that has not taken over anything yet, and the shape that it would have; nothing is changed."""
    fed = {o.name: _feeds(flow, o, shape) for o in flow.plan.outputs}
    return _ahead_refusal(checkpoint, fed, last, marks)


def _ahead_refusal(
    checkpoint: Checkpoint, fed: Mapping[str, str], last: EpochRecord, marks: Mapping[str, Mark | None]
) -> Refusal | None:
    had = checkpoint.fed()
    for name, mark in marks.items():
        if mark is not None and mark.epoch > last.epoch and name in fed and had.get(name, fed[name]) != fed[name]:
            return Refusal(
                f"Output {name!r} of checkpoint {checkpoint.uri} holds epoch {mark.epoch}, which the flow gave out before it was changed and "
                "which is not committed yet, so its rows and the state would not belong together; start the flow as it was until that "
                "epoch is committed, then change it."
            )
    return None


def _feeds(flow: CompiledFlow, output: p.Output, shape: FlowShape | None = None) -> str:
    """A digest of everything that decides an output's rows of an epoch and the state that is left."""
    before = p.upstream_of(p.SourceNode, output.node)
    names = [n.region.name for n in p.upstream_of(p.RegionOutput, output.node)]
    shape = shape or flow.shape
    assert shape is not None  # it has taken over a record
    regions = {name: vars(shape.regions[name]) | {"steps": _decisive(shape.regions[name])} for name in names}
    sources = {
        s.name: (s.time, s.lateness_us, s.idle_after_us, [str(x) for x in s.partitions], s.on_error, *s.later_options())
        for s in flow.plan.sources
        if s in before
    }
    return xxhash.xxh3_64_hexdigest(json.dumps([regions, sources], default=plain).encode())


def _decisive(region: RegionShape) -> list[dict[str, Any]]:
    """Steps without what only says how they are compared, which earlier versions did not have."""
    later = ("typed", "fixed", "migrations", "worded")
    return [{n: v for n, v in vars(step).items() if n not in later} for step in region.steps]


def compare(flow: CompiledFlow, record: EpochRecord, uri: str, forget: Collection[str] = ()) -> tuple[list[p.Output], Report]:
    """What a flow finds of the one whose state a record has. Nothing is changed.

    Args:
        flow: The compiled flow.
        record: The record.
        uri: The checkpoint, for messages.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.

    Returns:
        Its outputs under the names by which their sinks know them, and the report.

    Raises:
        ChangedFlowError: `forget` names a part that the flow has. Nothing was changed.
    """
    before = record.shape
    outputs, renamed = named_as_before(before, flow.plan.outputs, uri)
    shape = replace(shape_of(flow), outputs={o.name: repr(o.sink) for o in outputs})
    held = [name for name, region in record.regions.items() if region.control.held]
    report = succeed(before, shape, uri, forget, held)
    names = {(v.kind, v.name) for v in renamed}
    return outputs, replace(report, verdicts=(*(v for v in report.verdicts if (v.kind, v.name) not in names), *renamed))


__all__ = [
    "check_ahead",
    "compare",
    "fed_otherwise",
    "is_the_same",
    "rebuild",
    "same_sink",
    "take_over",
    "takeover_refusal",
    "with_floors",
]
