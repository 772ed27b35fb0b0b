"""A flow as text: its sources, regions and outputs, what each step remembers, how rows reach it. It works on a flow that is not complete yet.

Read next: `penstock.flow.picture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.flow import plan as p
from penstock.flow.steps import Numbered, Union
from penstock.operators.base import Operator
from penstock.operators.layouts import KEPT_AS
from penstock.types import HIDDEN, duration_text, visible

_WIDE: Final = 160
_SPARKS: Final = {
    "int64": "bigint",
    "int32": "int",
    "int16": "smallint",
    "int8": "tinyint",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}


def explained(plan: p.Plan) -> str:
    """The text that `Flow.explain` prints."""
    lines = [f"flow {plan.name}"]
    for source in plan.sources:
        lines += ["", *_source(source)]
    for region in plan.regions:
        lines += ["", *_region(plan, region)]
    lines += [""] if plan.outputs else ["", "no sink yet: end a stream with .sink(...)"]
    lines += [f"output {o.name}: {way(o.node)} → {o.sink!r}" for o in plan.outputs]
    return "\n".join(lines)


def way(node: p.Node) -> str:
    """How the rows of a node come about, from the last source or region on, in a line."""
    if isinstance(node, p.SourceNode):
        return f"source {node.name}"
    if isinstance(node, p.AsideNode):
        return f"{node.kind} records of source {node.source.name}"
    if isinstance(node, p.RegionOutput):
        of = "stage" if not node.region.keys.names else "region"
        step = node.region.step_name(node.operator) if node.operator >= 0 else ""
        errors = ", records that it skipped" if node.errors else ""
        return f"{of} {node.region.name}" + (f", {step}{errors}" if step else "")
    assert isinstance(node, p.StepNode)
    before = [way(n) for n in node.inputs]
    if ours(node):
        return before[0]
    if isinstance(node.step, Union):
        return f"({' and '.join(before)})"
    return f"{before[0]} → {node.step.describe()}"


def ours(node: p.StepNode) -> bool:
    """Whether a step is one of penstock's own, of which a user knows nothing."""
    return isinstance(node.step, Numbered) or HIDDEN in node.step.describe()


def read_inputs(plan: p.Plan, region: p.Region) -> list[p.Node]:
    """The inputs of a region that something reads; all, while nothing does."""
    used = {at for step in region.steps for kind, at in step.inputs if kind == "port"}
    read = p.upstream_of(p.RegionOutput, *p.readers(plan.regions, plan.outputs))
    used |= {-1 - node.operator for node in read if node.region is region and node.operator < 0}
    ways = {way(node): node for i, node in enumerate(region.inputs) if i in used or not used}
    return list(ways.values())


def columns_shown(schema: pa.Schema) -> str:
    """Columns as a user declares them; a type that is not known before the flow starts is left out."""
    shown = [f.name if pa.types.is_null(f.type) else f"{f.name} {type_shown(f.type)}" for f in schema if visible([f.name])]
    text = ", ".join(shown)
    return text if len(text) <= _WIDE else f"{text[:_WIDE]}… ({len(shown)} columns)"


def type_shown(kind: Any) -> str:
    """A type by the name that Spark has for it, as far as it is a plain one."""
    return _SPARKS.get(str(kind), str(kind))


def _source(source: p.SourceNode) -> Iterator[str]:
    """Lines about a source."""
    kind, *rest = _said(source.connector.meaning).items() or [("kind", source.connector.describe())]
    about = ", ".join(f"{name} {value}" for name, value in rest)
    yield f"source {source.name}: {kind[1]}{f' ({about})' if about else ''}"
    yield f"  columns: {columns_shown(source.schema)}"
    if source.time is None:
        yield "  time: none, so rows are handled as they come, in each epoch in the order of (partition, offset)"
    else:
        idle = "" if source.idle_after_us is None else f", idle after {duration_text(source.idle_after_us)} without a record"
        closing = (
            ""
            if source.close_after_us is None
            else f"; without any, it goes on by the clock after {duration_text(source.close_after_us)}"
        )
        aside = "" if source.ahead_us is None else f"; one more than {duration_text(source.ahead_us)} ahead of it is put aside"
        own = "each row's own" if not visible([source.time]) else source.time
        late = f"a record {duration_text(source.lateness_us)} behind" if source.lateness_us else "any record behind"
        yield f"  time: {own}; {late} the newest of its partition is late{idle}{closing}{aside}"
    if source.on_error != "fail":
        yield "  malformed records are skipped and counted"


def _region(plan: p.Plan, region: p.Region) -> Iterator[str]:
    """Lines about a region or a stage of workers."""
    workers = "as many workers as the flow is started with" if region.workers is None else f"{region.workers} workers"
    if region.keys.names:
        yield f"region {region.name}: key ({columns_shown(region.keys)}), {workers}, {region.distribute.describe()}"
    else:
        yield f"stage {region.name}: {workers}, {region.distribute.describe()}"
    for node in read_inputs(plan, region):
        yield f"  reads {way(node)}"
    for at, step in enumerate(region.steps):
        yield f"  {region.step_name(at)}: {step.operator.describe()}"
        yield from (f"    {name}: {text}" for name, text in _step(region, step))
        if step.on_error != "fail":
            yield "    on error: the record is skipped and counted"


def _step(region: p.Region, step: p.RegionStep) -> Iterator[tuple[str, str]]:
    """What there is to say of a step, by name."""
    operator, inputs = step.operator, [_input(region, which) for which in step.inputs]
    named = [f"{name} = {text.partition(KEPT_AS)[0]}" for name, text in _layout(region, operator, inputs).items()]
    if operator.mergeable and named:
        yield "computes", ", ".join(named)
    for name, text in _said(lambda: operator.facts(inputs, region.keys)).items():
        if text != "none":
            yield name, text if len(text) <= _WIDE else f"{text[:_WIDE]}…"
    yield "remembers", remembered(operator)
    if operator.ordered and region.timed:
        yield "rows", "in the order of event time; they wait until the frontier has passed them"
    elif len(inputs) == 1 and step.inputs[0][0] == "port" and _said(lambda: {"": operator.partials(inputs[0])}).get(""):
        yield (
            "rows",
            "as they come; Spark adds them up before the shuffle, one row for each key" + " and window" * _windowed(operator),
        )
    else:
        yield "rows", "as they come"
    yield "gives", columns_shown(step.schema) + ("; a row replaces the one before of its key" if operator.updates else "")


def remembered(operator: Operator) -> str:
    """How long a step remembers."""
    if (link := _asked(operator.link)) is not None:
        return f"records no more than {duration_text(link)} apart, in chains of any length"
    span = _asked(operator.span)
    if span is None:
        return "without end"
    return f"{duration_text(span)} of event time" if span else "nothing"


def _windowed(operator: Operator) -> bool:
    return getattr(operator, "window", None) is not None


def _layout(region: p.Region, operator: Operator, inputs: list[pa.Schema]) -> Mapping[str, str]:
    return _said(lambda: operator.layout(inputs, region.keys))


def _input(region: p.Region, which: tuple[str, int]) -> pa.Schema:
    kind, at = which
    return region.inputs[at].schema if kind == "port" else region.steps[at].schema


def _asked(ask: Callable[[], int | None]) -> int | None:
    return _said(lambda: {"": ask()}).get("")


def _said(ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a user's operator says; what it fails to say is left out, as it is the start that tells of it."""
    try:
        return {str(name): text for name, text in ask().items()}
    except Exception:  # noqa: BLE001  (to show a flow must not fail)
        return {}


__all__ = ["columns_shown", "explained", "ours", "read_inputs", "remembered", "type_shown", "way"]
