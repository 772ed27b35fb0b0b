"""The shape of a compiled flow (`penstock.checkpoint.shape`): what its state would belong to if it began now.

Read next: `penstock.driver.succession`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import xxhash

from penstock.checkpoint.shape import AS_IT_IS, FlowShape, PortShape, RegionShape, SourceShape, StepShape
from penstock.driver.compile import CompiledFlow, CompiledRegion
from penstock.errors import OperatorError, PenstockError, raised
from penstock.flow import plan as p
from penstock.flow.naming import numbered
from penstock.types import seconds_text
from penstock.worker.spec import RegionSpec, Step


def sources_of(plan: p.Plan) -> list[SourceShape]:
    """The shapes of a flow's sources."""
    return [SourceShape(s.name, _meaning(s), s.lateness_us, _options(s)) for s in plan.sources]


def _options(source: p.SourceNode) -> dict[str, str]:
    declared = (("idle_after", source.idle_after_us), *source.later_options())
    return {name: seconds_text(us) for name, us in declared if us is not None}


def _meaning(source: p.SourceNode) -> dict[str, str]:
    return {
        **source.connector.meaning(),
        "event time": source.time or "none",
        "position": " and ".join(source.position)
        if source.position and source.position != source.connector.position
        else "its own",
    }


def shape_of(flow: CompiledFlow) -> FlowShape:
    """The shape of a flow that begins: slots in the order of declaration."""
    paths = _Paths()
    regions = {name: _region(i, compiled, paths) for i, (name, compiled) in enumerate(flow.regions.items())}
    outputs = {o.name: repr(o.sink) for o in flow.plan.outputs}
    return FlowShape(sources_of(flow.plan), regions, outputs, len(regions), _tables(flow.plan))


def _tables(plan: p.Plan) -> dict[str, str]:
    """What the tables have that stateless steps look in: a second one of the same name has a number."""
    found: dict[str, str] = {}
    for node in p.upstream_of(p.StepNode, *p.readers(plan.regions, plan.outputs)):
        for name, text in node.step.tables().items():
            found[numbered(name, found)] = text
    return found


def _region(ordinal: int, compiled: CompiledRegion, paths: _Paths) -> RegionShape:
    spec, region = compiled.spec, compiled.region
    steps: list[StepShape] = []
    for slot, (step, declared) in enumerate(zip(spec.steps, region.steps, strict=True)):
        operator = step.operator
        steps.append(
            StepShape(
                slot,
                region.step_name(slot),
                declared.name is not None,
                operator.kind_name(),
                operator.describe(),
                paths.of_step(region, slot),
                _texts(spec, step, "meaning", operator.meaning),
                [_texts(spec, step, "layout", operator.layout)],
                operator.passes,
                _columns(spec, step),
                operator.typed,
                _said(spec, step, "fixed", lambda: list(operator.fixed(step.in_schemas, spec.keys)), lambda said: said),  # noqa: B023
                None if operator.migrate is None else [getattr(f, "__name__", type(f).__name__) for f in operator.migrate],
                list(operator.worded),
            )
        )
    feeds = {o.port: o.operator for o in spec.outs if o.operator < 0}
    for step, declared in zip(spec.steps, region.steps, strict=True):
        pairs = zip(step.inputs, declared.inputs, strict=True)
        feeds |= {port: -1 - feed for (kind, port), (_, feed) in pairs if kind == "port"}
        feeds |= {} if step.parts is None else {step.parts: -1 - declared.inputs[0][1]}
    ports = [_port(spec, i, paths.of_step(region, feeds[i])) for i in range(len(spec.ports))]
    sources = sorted({s.name for s in p.upstream_of(p.SourceNode, *region.inputs)})
    behind = sorted({n.region.name for n in p.upstream_of(p.RegionOutput, *region.inputs) if n.region is not region})
    return RegionShape(
        ordinal,
        types_of(spec.keys),
        spec.timed,
        sources,
        behind,
        steps,
        ports,
        len(steps),
        len(ports),
        region.distribute.describe(),
    )


def _texts(spec: RegionSpec, step: Step, method: str, says: Callable[..., Mapping[str, str]]) -> dict[str, str]:
    """What an operator says of its state."""
    found: dict[str, str] = _said(
        spec, step, method, lambda: dict(says(step.in_schemas, spec.keys)), lambda said: [*said, *said.values()]
    )
    return found


def _columns(spec: RegionSpec, step: Step) -> list[str]:
    """The columns that an operator says it reads."""
    found: list[str] = _said(spec, step, "reads", lambda: list(step.operator.reads()), lambda said: said)
    return found


def _said(spec: RegionSpec, step: Step, method: str, ask: Callable[[], Any], parts: Callable[[Any], list[Any]]) -> Any:
    """What a method of an operator gives, which is kept in the checkpoint and must be text.

    Raises:
        OperatorError: It raises, or gives something else. Nothing was changed.
    """
    what = f"Operator {step.operator.describe()} of region {spec.name!r}"
    try:
        found = ask()
    except PenstockError:
        raise
    except Exception as error:
        raise OperatorError(f"{what} failed in {method}: {raised(error)}; fix the operator.") from error
    wrong = [part for part in parts(found) if not isinstance(part, str)]
    if wrong:
        raise OperatorError(f"{what} gave {wrong[0]!r} in {method}, which is kept in the checkpoint; it must give text.")
    return found


class _Paths:
    """Digests of all that nodes' rows have come through. Each node is looked at once, however many ways lead to it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def of(self, node: p.Node) -> str:
        """The digest of a node."""
        if isinstance(node, p.RegionOutput):
            return self.of_step(node.region, node.operator)
        return self._digest((id(node), 0), lambda: self._stateless(node))

    def of_step(self, region: p.Region, at: int) -> str:
        """The digest of a region's step, or input −1 − i."""
        return self._digest((id(region), at), lambda: self._stateful(region, at))

    def _digest(self, which: tuple[int, int], text: Callable[[], str]) -> str:
        if which not in self._known:
            self._known[which] = xxhash.xxh3_64_hexdigest(text().encode())
        return self._known[which]

    def _stateful(self, region: p.Region, at: int) -> str:
        if at < 0:
            return f"{self.of(region.inputs[-1 - at])} by {region.name}"
        step = region.steps[at]
        inputs = [self.of_step(region, -1 - n if kind == "port" else n) for kind, n in step.inputs]
        return f"({'; '.join(inputs)}) to {step.name or step.operator.describe()}"

    def _stateless(self, node: p.Node) -> str:
        if isinstance(node, p.SourceNode):
            return node.name
        what = node.step.identity() if isinstance(node, p.StepNode) else f"{type(node).__name__} "
        return f"({'; '.join(map(self.of, p.inputs_of(node)))}) {what}"


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Types by column, as text."""
    return {f.name: str(f.type) for f in schema}


def _port(spec: RegionSpec, index: int, path: str) -> PortShape:
    """An input, with what its rows come to."""
    port, source = spec.ports[index], ("port", index)
    direct: list[list[int]] = []
    readers: list[list[int]] = []
    first: list[int] = []
    through: set[tuple[str, int]] = {source}
    passed = {source}
    for i, step in enumerate(spec.steps):
        met = [[i, n] for n, given in enumerate(step.inputs) if given in through]
        direct += [[i, n] for n, given in enumerate(step.inputs) if given == source]
        readers += met
        through |= {("operator", i)} if met else set()
        if any(given in passed for given in step.inputs):
            first.append(i)
            passed |= {("operator", i)} if step.operator.passes else set()
    if any(("port", o.port) == source if o.operator < 0 else ("operator", o.operator) in passed for o in spec.outs):
        readers.append(AS_IT_IS)
    if any(o.operator < 0 and ("port", o.port) == source for o in spec.outs):
        direct.append(AS_IT_IS)
    columns = types_of(port.schema)
    return PortShape(index, port.waits, columns, columns, direct, readers, first, path)


def bind(flow: CompiledFlow, shape: FlowShape, at_once: Mapping[str, Mapping[int, int]]) -> None:
    """Give the steps and inputs of a compiled flow their slots; `flow` is changed.

    Args:
        flow: The flow.
        shape: Its shape, with the slots.
        at_once: By region and number of an input, the slot of the rows that it is given at once (`Port.takes`).
    """
    for name, compiled in flow.regions.items():
        region, spec = shape.regions[name], compiled.spec
        steps = [replace(step, slot=s.slot, layouts=tuple(s.layouts)) for step, s in zip(spec.steps, region.steps, strict=True)]
        ports = [
            replace(port, slot=s.slot, takes=at_once.get(name, {}).get(i))
            for i, (port, s) in enumerate(zip(spec.ports, region.ports, strict=True))
        ]
        compiled.spec = replace(spec, ordinal=region.ordinal, steps=tuple(steps), ports=tuple(ports))


__all__: Sequence[str] = ["bind", "shape_of", "sources_of"]
