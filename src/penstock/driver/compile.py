"""From a declared plan to the workers' specs: exact columns, ports, partial aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.arrow.columns import UTC
from penstock.checkpoint.shape import FlowShape
from penstock.errors import DeclarationError
from penstock.flow.plan import (
    Node,
    Output,
    Plan,
    Region,
    RegionOutput,
    SourceNode,
    StepNode,
    inputs_of,
    readers,
    upstream_of,
)
from penstock.operators.base import ERROR_SCHEMA, Operator, Partials, parts_schema
from penstock.sql_text.schema import quoted
from penstock.types import PART, SUB, TIME
from penstock.worker.spec import Input, Out, Port, RegionSpec, Step

PartialSchema = Callable[[Region, Partials, pa.Schema], "pa.Schema | None"]
Known = dict[str, "int | str"]


@dataclass
class CompiledRegion:
    """A region ready to run.

    Attributes:
        spec: For its workers.
        region: The declaration.
        feeds: For each port the index of the region's input that it reads.
        outs: The spec's output of a node, by (operator, errors).
    """

    spec: RegionSpec
    region: Region
    feeds: tuple[int, ...]
    outs: dict[tuple[int, bool], int]


@dataclass
class CompiledFlow:
    """A plan ready to run.

    Attributes:
        plan: The plan.
        regions: By name.
        consumers: How many consumers each node has, by its id.
        shape: What the flow's state belongs to, once it has taken over a record.
    """

    plan: Plan
    regions: dict[str, CompiledRegion]
    consumers: dict[int, int] = field(default_factory=dict)
    shape: FlowShape | None = None

    def committed(self) -> None:
        """An epoch is committed: rows that waited under another slot (`Port.takes`) have been given."""
        for compiled in self.regions.values():
            ports = tuple(replace(port, takes=None) for port in compiled.spec.ports)
            compiled.spec = replace(compiled.spec, ports=ports)

    def ordinal(self, source: SourceNode) -> int:
        """The source's number in hidden column PART."""
        return self.plan.sources.index(source)


def compile_flow(
    plan: Plan,
    schema_of: Callable[[Node, dict[int, pa.Schema]], pa.Schema],
    partial_schema: PartialSchema,
    only_partition: Callable[[SourceNode], int | None] = lambda _: None,
) -> CompiledFlow:
    """Compile a plan.

    Args:
        plan: The declared flow.
        schema_of: Exact columns of a node, given those of its inputs by ``id(input)``.
        partial_schema: Columns of the partial results of an operator, computed before the shuffle; None: the engine sends rows.
        only_partition: The value of hidden column PART in all rows of a source, or None: it has several.

    Raises:
        DeclarationError: Now that all types are known, something does not fit.
    """
    schemas: dict[int, pa.Schema] = {}
    regions: dict[str, CompiledRegion] = {}
    wanted = _wanted_outputs(plan)

    def resolve(node: Node) -> pa.Schema:
        if id(node) not in schemas:
            if isinstance(node, RegionOutput):
                build(node.region)
                compiled = regions[node.region.name]
                schemas[id(node)] = (
                    ERROR_SCHEMA
                    if node.errors
                    else resolve(node.region.inputs[-1 - node.operator])
                    if node.operator < 0
                    else compiled.spec.steps[node.operator].out_schema
                )
            else:
                before = {id(i): resolve(i) for i in inputs_of(node)}
                schemas[id(node)] = schema_of(node, before)
        return schemas[id(node)]

    def build(region: Region) -> None:
        if region.name not in regions:
            inputs = [resolve(i) for i in region.inputs]
            known = [known_positions(node, only_partition) for node in region.inputs]
            regions[region.name] = compile_region(plan, region, inputs, known, wanted.get(region.name, ()), partial_schema)

    for region in plan.regions:
        build(region)
    for output in plan.outputs:
        resolve(output.node)
    return CompiledFlow(plan, regions, _count_consumers(plan, regions))


def compile_region(
    plan: Plan,
    region: Region,
    inputs: Sequence[pa.Schema],
    known: Sequence[Known],
    wanted: Sequence[tuple[int, bool]],
    partial_schema: PartialSchema,
) -> CompiledRegion:
    """Compile one region, given the exact columns of its inputs and what is known of their positions."""
    keys = pa.schema([inputs[0].field(n) for n in region.keys.names])
    for field_ in keys:
        if pa.types.is_nested(field_.type):
            raise DeclarationError(f"Region {region.name!r} cannot be keyed by column {field_.name!r} of type {field_.type}.")
        if pa.types.is_null(field_.type):
            raise DeclarationError(
                f"Region {region.name!r} cannot be keyed by column {field_.name!r}, which is NULL and of no type; write CAST(NULL AS string) "
                "or leave it out."
            )
    ports: list[Port] = []
    feeds: list[int] = []
    made: dict[tuple[int, str], int] = {}
    steps: list[Step] = []

    def port(feed: int, kind: str, make: Callable[[], Port]) -> int:
        if (feed, kind) not in made:
            made[feed, kind] = len(ports)
            ports.append(make())
            feeds.append(feed)
        return made[feed, kind]

    def plain(feed: int, schema: pa.Schema, *, waits: bool) -> Port:
        there = {
            n: v for n, v in known[feed].items() if isinstance(v, int) or (v in schema.names and schema.field(v).type == UTC)
        }
        return Port(schema, None, waits, tuple(there.items()))

    wanted = wanted or [(len(region.steps) - 1, False)]
    entries: dict[int, int] = {}
    for own in (-1 - o for o, _ in wanted if o < 0):  # inputs that leave the region as they are
        waits = region.timed and bool(region.keys.names)  # a stage without keys has no state, and no order
        entries[-1 - own] = port(own, "ordered", lambda n=own, w=waits: plain(n, inputs[n], waits=w))  # type: ignore[misc]
    for i, step in enumerate(region.steps):
        operator = step.operator
        in_schemas = tuple(inputs[n] if k == "port" else steps[n].out_schema for k, n in step.inputs)
        out_schema = operator.output_schema(in_schemas, keys)
        sources: list[Input] = []
        for (kind, n), schema in zip(step.inputs, in_schemas, strict=True):
            if kind == "operator":
                sources.append(("operator", n))
                continue
            offered = operator.partials(schema) if len(in_schemas) == 1 else None
            partial = None if offered is None else partial_schema(region, offered, schema)
            if partial is not None:
                sources.append(("port", port(n, f"partial {i}", lambda p=partial, i=i: Port(p, i, waits=False))))  # type: ignore[misc]
            elif not operator.ordered:
                needed = _needed(operator, schema, keys)
                sources.append(("port", port(n, f"unordered {needed.names}", lambda n=n, s=needed: plain(n, s, waits=False))))  # type: ignore[misc]
            else:
                apart = region.distribute.splits_keys and operator.mergeable  # all others see the rows of divided keys, too
                shared = f"ordered{', divided' * apart}"
                sources.append(("port", port(n, shared, lambda n=n, s=schema: plain(n, s, waits=region.timed))))  # type: ignore[misc]
        steps.append(Step(operator, tuple(sources), in_schemas, out_schema))
    for i, found in enumerate(steps if region.distribute.splits_keys else ()):  # after all others: often there are no parts
        (kind, n), *_ = found.inputs
        if kind == "port" and ports[n].partial_of is None and found.operator.mergeable:
            parts = Port(parts_schema(keys), i, waits=False)
            steps[i] = replace(found, parts=port(feeds[n], f"parts {i}", lambda p=parts: p))  # type: ignore[misc]
    outs = []
    for operator_index, errors in wanted:
        kept = inputs[-1 - operator_index] if operator_index < 0 else steps[operator_index].out_schema
        schema = ERROR_SCHEMA if errors else kept
        goes_on = _goes_on(plan, region, operator_index, errors)
        outs.append(Out(operator_index, schema, errors, goes_on, entries.get(operator_index, 0)))
    spec = RegionSpec(
        region.name,
        plan.regions.index(region),
        keys,
        tuple(ports),
        tuple(steps),
        tuple(outs),
        tuple(s.name for s in plan.sources),
        region.timed,
        report_above=region.distribute.report_above,
    )
    return CompiledRegion(spec, region, tuple(feeds), {(o.operator, o.errors): i for i, o in enumerate(outs)})


def known_positions(
    node: Node, only_partition: Callable[[SourceNode], int | None], met: dict[int, Known] | None = None
) -> Known:
    """Hidden columns whose values are known, see `Port`. The event time is a column's until that column is replaced.

    Args:
        node: The node.
        only_partition: As in `compile_flow`.
        met: What is known of nodes visited before, by id.
    """
    met = {} if met is None else met
    if id(node) not in met:
        met[id(node)] = _known(node, only_partition, met)
    return met[id(node)]


def _known(node: Node, only_partition: Callable[[SourceNode], int | None], met: dict[int, Known]) -> Known:
    if isinstance(node, SourceNode):
        part = only_partition(node)
        own = node.time is not None and node.time == node.connector.time  # which is no column of the rows
        return ({} if own else {TIME: node.time or 0}) | {SUB: 0} | ({} if part is None else {PART: part})
    sql = node.sql if isinstance(node, StepNode) else None
    if sql is None:
        return {}
    first, *others = (dict(known_positions(before, only_partition, met)) for before in inputs_of(node))
    if sql.sub:
        first.pop(SUB, None)
    kept = {(name, quoted(name)) for name in first.values() if isinstance(name, str)}
    if sql.columns is not None and not kept <= set(sql.columns):
        del first[TIME]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _needed(operator: Operator, schema: pa.Schema, keys: pa.Schema) -> pa.Schema:
    """The columns that an operator reads; others do not cross from the JVM to Python."""
    columns = {*operator.reads(), *keys.names}
    return pa.schema([f for f in schema if f.name in columns]) if operator.reads_only else schema


def _wanted_outputs(plan: Plan) -> dict[str, list[tuple[int, bool]]]:
    """For each region, the operators whose rows leave it."""
    wanted: dict[str, list[tuple[int, bool]]] = {}
    for node in upstream_of(RegionOutput, *readers(plan.regions, plan.outputs)):
        outs = wanted.setdefault(node.region.name, [])
        if (node.operator, node.errors) not in outs:
            outs.append((node.operator, node.errors))
    return wanted


def _goes_on(plan: Plan, region: Region, operator: int, errors: bool) -> bool:
    """Whether something reads the positions of an operator's rows: a region, a stateless step, or a sink that wants them."""
    passed = [i for r in plan.regions for i in r.inputs]
    passed += [n for o in plan.outputs for n in ([o.node] if o.positions else inputs_of(o.node))]
    return any(n.region is region and n.operator == operator and n.errors == errors for n in upstream_of(RegionOutput, *passed))


def undivided(flow: CompiledFlow) -> list[tuple[str, bool]]:
    """A sentence for each step whose keys stay whole although the region's strategy would divide them, and whether a hot key matters."""
    out = []
    for name, compiled in flow.regions.items():
        strategy, spec = compiled.region.distribute, compiled.spec
        if not strategy.splits_keys:
            continue
        for step in spec.steps:
            (kind, n), *_ = step.inputs
            what = step.operator.describe()
            if kind == "port" and spec.ports[n].partial_of is not None:
                said = f"does not need {strategy!r} for {what}, and does not use it: Spark combines the rows of a key before they go to its worker"
                out.append((f"Region {name!r} {said}.", False))
            elif kind == "port" and step.parts is None:
                said = f"does not use {strategy!r} for {what}, so a hot key may slow down its worker; {step.operator.to_merge}, or use Isolate()"
                out.append((f"Region {name!r} {said}.", True))
    return out


def small_epochs(flow: CompiledFlow, least: int) -> list[str]:
    """A sentence on the regions whose keys would be divided, if they stay whole in epochs with fewer than `least` records."""
    found = {n: c.region.distribute for n, c in flow.regions.items() if any(step.parts is not None for step in c.spec.steps)}
    if not found or not least:
        return []
    named = ", ".join(f"{name!r} ({type(strategy).__name__})" for name, strategy in found.items())
    what = f"region{'s' * (len(found) > 1)} {named}"
    whole = f"In epochs with fewer than {least:,} records the keys of {what} stay whole, as it would take longer to divide them"
    return [f"{whole}; if a hot key is to be divided, let epochs be larger (trigger=)."]


def _count_consumers(plan: Plan, regions: dict[str, CompiledRegion]) -> dict[int, int]:
    """How often each node is read, so that a node that is read twice is kept."""
    counts: dict[int, int] = {}

    def read(node: Node, times: int) -> None:
        counts[id(node)] = counts.get(id(node), 0) + times
        if counts[id(node)] > times or isinstance(node, RegionOutput):
            return
        for before in inputs_of(node):
            read(before, 1)

    for compiled in regions.values():
        divided = {step.parts for step in compiled.spec.steps}
        for feed in (feed for port, feed in enumerate(compiled.feeds) if port not in divided):
            read(compiled.region.inputs[feed], 1)
    for output in plan.outputs:
        read(output.node, 1)
    return counts


__all__ = ["CompiledFlow", "CompiledRegion", "Output", "compile_flow", "small_epochs", "undivided"]
