"""The declared flow: a graph of nodes, checked as it is built.

    SourceNode → StepNode → … → Region → … → sinks

`Plan` is what the engine gets: sources, regions in topological order, outputs. It holds no data and knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow.steps import Numbered, Sql, StatelessStep, Union
from penstock.operators.base import Operator
from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.strategy import Strategy
from penstock.rows.rows import with_order
from penstock.rows.stored_positions import stored_columns
from penstock.sources.base import Source
from penstock.types import seconds_text


@dataclass(frozen=True, eq=False)
class Node:
    """A point of the graph with rows.

    Attributes:
        schema: Columns; a type that is not known before Spark analyses the plan is ``pa.null()``.
        timed: Whether rows have an event time.
    """

    schema: pa.Schema
    timed: bool

    @property
    def positioned(self) -> bool:
        """Whether its rows have positions; records that were left out are given as text, with theirs in it."""
        return True


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """Where records come from.

    Attributes:
        name: Unique in the flow.
        connector: What it was declared as.
        time: Event-time column or None.
        lateness_us: How far behind its partition's greatest time a record may be.
        idle_after_us: After how long without records a partition stops holding the frontier back; None: never.
        close_after_us: After how long without records of any partition the frontier goes on by the clock; None: never.
        ahead_us: How far after its partition's greatest time a record may be; None: however far.
        position: Columns that hold partition and offset, or None: the connector knows.
        partitions: Partitions that must be heard from before the frontier moves.
        on_error: ``"fail"`` or ``"skip"``: what to do with malformed records and those without time.
    """

    name: str
    connector: Source
    time: str | None
    lateness_us: int = 0
    idle_after_us: int | None = None
    close_after_us: int | None = None
    ahead_us: int | None = None
    position: tuple[str, str] | None = None
    partitions: tuple[Any, ...] = ()
    on_error: str = "fail"

    @property
    def by_clock(self) -> bool:
        """Whether the clock has a say in its frontier."""
        return self.idle_after_us is not None or self.close_after_us is not None

    def later_options(self) -> list[tuple[str, int]]:
        """What decides its records and is not known to every version that has read this checkpoint: nothing where it is not declared."""
        return [(n, us) for n, us in (("close_after", self.close_after_us), ("ahead", self.ahead_us)) if us is not None]

    @property
    def whole_partitions(self) -> bool:
        """Whether its partitions, in a column of its `position`, are whole numbers or null."""
        own = self.connector.schema
        return self.position is not None and (
            self.position[0] not in own.names or bool(pa.types.is_integer(own.field(self.position[0]).type))
        )


@dataclass(frozen=True, eq=False)
class AsideNode(Node):
    """Records of a source that are put aside, each kind a class.

    Attributes:
        source: The source.
        kind: What they are; the engines' frames of a source have this name (`penstock.driver.engine.SourceFrames`).
    """

    source: SourceNode
    kind: ClassVar[str] = ""


@dataclass(frozen=True, eq=False)
class LateNode(AsideNode):
    """Records of a source that came too late."""

    kind = "late"


@dataclass(frozen=True, eq=False)
class AheadNode(AsideNode):
    """Records of a source that lie too far ahead."""

    kind = "ahead"


@dataclass(frozen=True, eq=False)
class MalformedNode(AsideNode):
    """Records of a source that could not be read, as text."""

    kind = "malformed"

    @property
    def positioned(self) -> bool:
        """See `Node`."""
        return False


@dataclass(frozen=True, eq=False)
class StepNode(Node):
    """Rows of a stateless step; those of several inputs are put together before it."""

    inputs: tuple[Node, ...]
    step: StatelessStep

    @property
    def sql(self) -> Sql | None:
        """The step in SQL, if it has this form."""
        return self.step.sql(self.inputs[0].schema)


def stepped(step: StatelessStep, node: Node) -> StepNode:
    """A step after a node."""
    return StepNode(step.output_schema(node.schema), node.timed, (node,), step)


N = TypeVar("N", bound=Node)


def by_sql(node: Node) -> bool:
    """Whether a node's rows are those of sources that came through steps in SQL only, so that each is at the position of its record."""
    return all(isinstance(n, SourceNode) or (isinstance(n, StepNode) and n.sql is not None) for n in upstream(node))


def united(nodes: Sequence[Node]) -> StepNode:
    """A union, in which rows have a place of their own also where a record can come by several of its streams.

    Without it the order of such rows would be that in which they come: it would depend on epochs.
    """
    sources = [{id(n) for n in upstream_of(SourceNode, node)} for node in nodes]
    if sum(map(len, sources)) > len(set().union(*sources)):
        nodes = [stepped(Numbered(i, len(nodes)), node) for i, node in enumerate(nodes)]
    return StepNode(nodes[0].schema, nodes[0].timed, tuple(nodes), Union())


@dataclass(eq=False)
class RegionStep:
    """An operator of a region. Inputs: ``("port", i)`` or ``("operator", j)``. `name`: given by the user; None: made from its kind."""

    operator: Operator
    inputs: tuple[tuple[str, int], ...]
    schema: pa.Schema
    on_error: Any = "fail"
    name: str | None = None


@dataclass(eq=False)
class Region:
    """One keyed stage while it is being declared.

    Attributes:
        name: Unique in the flow; also the name for commands.
        keys: Key columns.
        inputs: What flows in; more than one where streams are joined.
        steps: Operators in the order of declaration, which is topological.
        workers: Number of workers, or None: the flow's.
        distribute: Distribution strategy.
    """

    name: str
    keys: pa.Schema
    inputs: list[Node]
    steps: list[RegionStep] = field(default_factory=list)
    workers: int | None = None
    distribute: Strategy = field(default_factory=KeyGrouping)

    @property
    def timed(self) -> bool:
        """Whether its rows have an event time."""
        return self.inputs[0].timed

    def step_name(self, at: int) -> str:
        """The name of a step: given, or its kind, with its place among those of its kind from the second on."""
        step = self.steps[at]
        if step.name is not None:
            return step.name
        kind = step.operator.kind_name()
        nth = sum(s.name is None and s.operator.kind_name() == kind for s in self.steps[:at])
        return kind if not nth else f"{kind}-{nth + 1}"


@dataclass(frozen=True, eq=False)
class RegionOutput(Node):
    """Rows of one operator of a region; operator −1 − i: the region's own input i.

    Attributes:
        errors: The records the operator skipped, instead of its rows.
    """

    region: Region
    operator: int
    errors: bool = False

    @property
    def positioned(self) -> bool:
        """See `Node`."""
        return not self.errors


@dataclass(frozen=True, eq=False)
class Output:
    """A sink hung on a node.

    Attributes:
        derived: Its name was made from the node's, so it may be that which the checkpoint knows the sink by.
        stored_positions: The positions of rows are stored with them (`penstock.rows.stored_positions`).
    """

    name: str
    node: Node
    sink: Any
    updates: bool
    key: tuple[str, ...]
    derived: bool = False
    stored_positions: bool = False

    @property
    def positions(self) -> bool:
        """Whether its rows are handed on with their positions: they are stored, or the sink wants them (`penstock.sinks.base.Positioned`)."""
        return self.stored_positions or bool(getattr(self.sink, "wants_positions", False))

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """The columns that the sink is given of rows with these."""
        if self.stored_positions:
            return stored_columns(schema, timed=self.node.timed)
        return with_order(schema) if self.positions else schema


@dataclass(frozen=True, repr=False)
class Plan:
    """A flow; `freeze` has checked it.

    Attributes:
        name: The flow's name.
        sources: All of them, in order of declaration; a source's ordinal is its index.
        regions: In topological order.
        outputs: The sinks.
    """

    name: str
    sources: tuple[SourceNode, ...]
    regions: tuple[Region, ...]
    outputs: tuple[Output, ...]

    def source_of(self, node: Node) -> set[str]:
        """Names of the sources that rows of a node come from."""
        return {n.name for n in upstream_of(SourceNode, node)}

    def position_name(self, source: str, offset: int) -> str:
        """What a position of a source is called, for people."""
        return next((s.connector.position_name(offset) for s in self.sources if s.name == source), str(offset))

    def __repr__(self) -> str:
        return f"<Plan of {self.describe()}>"

    def describe(self) -> str:
        """The flow as text, one line per source, region and sink."""
        lines = [f"flow {self.name}"]
        for s in self.sources:
            time = f", time {s.time}, lateness {seconds_text(s.lateness_us)}" if s.time else ""
            lines.append(f"  source {s.name} ({s.connector.describe()}{time})")
        for r in self.regions:
            steps = " → ".join(s.operator.describe() for s in r.steps) or "nothing"
            if not r.keys.names:
                lines.append(
                    f"  stage {r.name} by {r.distribute.describe()} from {', '.join(sorted(self.source_of(r.inputs[0])))}"
                )
                continue
            by = f"({', '.join(r.keys.names)})" + (f", {r.distribute.describe()}," if r.distribute != KeyGrouping() else "")
            lines.append(f"  region {r.name} by {by} from {', '.join(sorted(self.source_of(r.inputs[0])))}: {steps}")
        lines += [f"  sink {o.name}: {o.sink!r}" for o in self.outputs]
        return "\n".join(lines)


def inputs_of(node: Node) -> list[Node]:
    """The nodes directly before a node."""
    if isinstance(node, AsideNode):
        return [node.source]
    if isinstance(node, RegionOutput):
        return list(node.region.inputs)
    return list(node.inputs) if isinstance(node, StepNode) else []


def updating(node: Node) -> tuple[bool, tuple[str, ...]]:
    """Whether a node's rows replace earlier ones, and by which columns."""
    if not isinstance(node, RegionOutput) or node.operator < 0 or node.errors:
        return False, ()
    operator = node.region.steps[node.operator].operator
    return operator.updates, (*node.region.keys.names, *operator.output_key) if operator.updates else ()


def readers(regions: Iterable[Region], outputs: Iterable[Output]) -> list[Node]:
    """Nodes that something reads: inputs of regions, and what sinks hang on."""
    return [i for r in regions for i in r.inputs] + [o.node for o in outputs]


def upstream(*nodes: Node) -> list[Node]:
    """Some nodes and everything before them, each once, inputs first."""
    seen: dict[int, Node] = {}

    def visit(n: Node) -> None:
        if id(n) not in seen:
            for before in inputs_of(n):
                visit(before)
            seen[id(n)] = n

    for node in nodes:
        visit(node)
    return list(seen.values())


def upstream_of(kind: type[N], *nodes: Node) -> list[N]:
    """Those of `upstream` that are of one kind."""
    return [n for n in upstream(*nodes) if isinstance(n, kind)]


def roots(node: Node) -> list[Node]:
    """Where the rows of a node come from before any stateless step: sources, and outputs of regions."""
    if isinstance(node, (SourceNode, RegionOutput)):
        return [node]
    found = [root for before in inputs_of(node) for root in roots(before)]
    return list({id(root): root for root in found}.values())


def undividable(operator: Operator, inputs: Sequence[tuple[str, int]], region: Region) -> DeclarationError | None:
    """What to say of a step for whole keys, with these inputs, if its region's strategy divides them; None: it does not."""
    divides = region.distribute.splits_keys and inputs[0][0] == "port"
    if not divides or ((operator.mergeable or operator.to_merge) and len(inputs) == 1):
        return None
    return DeclarationError(
        f"{operator.describe()} cannot work on a part of a key's rows, and {region.distribute!r} divides them among workers; use "
        "distribute=penstock.Isolate(), which gives a hot key a worker of its own, or leave distribute out."
    )


def freeze(name: str, sources: list[SourceNode], regions: list[Region], outputs: list[Output]) -> Plan:
    """Check the whole and put regions into topological order.

    Raises:
        DeclarationError: There is no sink, or nothing to do.
    """
    if not sources:
        raise DeclarationError(f"Flow {name!r} has no source; begin with flow.source(...).")
    if not outputs:
        raise DeclarationError(f"Flow {name!r} has no sink, so nothing of it could be seen; end a stream with .sink(...).")
    for region in regions:
        for step in region.steps:
            if refused := undividable(step.operator, step.inputs, region):
                raise refused
    return ordered(name, sources, regions, outputs)


def ordered(name: str, sources: list[SourceNode], regions: list[Region], outputs: list[Output]) -> Plan:
    """What is declared so far, with regions in topological order."""
    depth: dict[int, int] = {}

    def level(region: Region) -> int:
        if id(region) not in depth:
            before = [n.region for n in upstream_of(RegionOutput, *region.inputs)]
            depth[id(region)] = 1 + max((level(r) for r in before), default=0)
        return depth[id(region)]

    return Plan(name, tuple(sources), tuple(sorted(regions, key=level)), tuple(outputs))
