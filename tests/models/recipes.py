"""Flows as plain data, so that penstock can build them and the oracle can read them.

Every step keeps the columns k, j, v, x, s, so that any step may follow any other; some add further ones.

Read next: `oracle`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from own_aggregates import AGGREGATES
from own_operators import Calling, Deadlines, Untimed, further
from spelled import (
    SECOND,
    Spelling,
    duration,
    moment,  # noqa: F401  (for those who import this module; its own steps travel to Spark's workers without what it imports from tests)
    plainly,
    spelled_aggregate,
    spelled_how,
    spelled_names,
    standard,
)
from table_versions import Again, Rows, table_of
from user_functions import FUNCTIONS, TIMED_FUNCTIONS

import penstock as ps
from penstock.operators.calendar import Calendar
from penstock.rows.keys import biased, unbiased
from penstock.sources.base import Shared
from penstock.sources.base import Source as Connector

STANDARD = ("k", "j", "v", "x", "s")
STANDARD_SCHEMA = "k string, j long, v long, x double, s string"
_WHOLE, _TEXT = pa.int64(), pa.string()
UNTIMED = pa.schema({"p": _WHOLE, "o": _WHOLE, "k": _TEXT, "j": _WHOLE, "v": _WHOLE, "x": pa.float64(), "s": _TEXT})
TIMED = UNTIMED.append(pa.field("at", pa.timestamp("us", "UTC")))

BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


# ------------------------------------------------------------------------------------------------------------------ steps


@dataclass(frozen=True, eq=False)
class Node:
    """A step; identity is equality."""


@dataclass(frozen=True, eq=False)
class Source(Node):
    name: str
    timed: bool = True
    lateness_us: int = 0
    partitions: tuple[int, ...] = (0,)
    idle_after: str | None = None
    close_after_us: int | None = None
    ahead_us: int | None = None
    then: Source | None = None  # what it is in the second version of a flow; None: the same
    declared: bool = True  # whether the flow says which partitions there are


@dataclass(frozen=True, eq=False)
class Late(Node):
    of: Source


@dataclass(frozen=True, eq=False)
class Ahead(Node):
    of: Source


@dataclass(frozen=True, eq=False)
class Where(Node):
    of: Node
    condition: str


@dataclass(frozen=True, eq=False)
class Columns(Node):
    of: Node
    new: tuple[str, str]


@dataclass(frozen=True, eq=False)
class Standard(Node):
    of: Node  # only the columns that all streams have


@dataclass(frozen=True, eq=False)
class Repeat(Node):
    of: Node  # map_batches that gives each row v % 3 times, renumbered


@dataclass(frozen=True, eq=False)
class Lookup(Node):
    """`column`: the table's; `rows`: its keys and values, in the order of the table; `narrow`: its keys are of a narrower type than those of the
    stream; `again`: how it is read again in later epochs.
    """

    of: Node
    on: str
    column: str
    rows: Rows
    how: str = "left"
    narrow: bool = False
    again: Again | None = None

    def table(self, rows: Rows | None = None) -> pa.Table:
        """What the step is given; with other rows than those of the declaration."""
        return table_of(self.on, self.column, self.rows if rows is None else rows, narrow=self.narrow)

    def given(self) -> Any:
        """The table, or a function that gives another one each time."""
        if self.again is None:
            return self.table()
        first = [True]
        return lambda: self.table(self.again.next(self.rows, first=bool(first and first.pop())))


@dataclass(frozen=True, eq=False)
class Union(Node):
    of: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class KeyBy(Node):
    """Opens a region; `then`: conditions and columns declared right after, which happen before the shuffle.

    `distribute`: its strategy in each version of the flow; none: the default in all of them.
    """

    of: Node
    keys: tuple[str, ...]
    name: str
    then: tuple[str | tuple[str, str], ...] = ()
    distribute: tuple[Any, ...] = ()

    def strategy(self, version: int) -> Any:
        """Its strategy in a version; None: the default."""
        return self.distribute[version % len(self.distribute)] if self.distribute else None

    @property
    def divided(self) -> bool:
        """Whether rows of a key are divided in some version."""
        return any(s is not None and s.splits_keys and s.of_partition() is None for s in self.distribute)


@dataclass(frozen=True, eq=False)
class Window:
    kind: str
    size_us: int
    slide_us: int = 0
    offset_us: int = 0
    zone: Any = None  # its clock is put forth and back within seconds

    def declared(self) -> Any:
        if self.zone is not None:
            return Calendar(self.size_us, self.slide_us or self.size_us, (0, self.offset_us), months=False, zone=self.zone)
        us = (self.size_us, self.slide_us or self.size_us, self.offset_us)
        size, slide, offset = (dt.timedelta(microseconds=n) for n in us)
        return ps.session(size) if self.kind == "session" else ps.sliding(size, slide, offset=offset)


@dataclass(frozen=True, eq=False)
class Map(Node):
    of: Node
    fn: str
    window: Window | None = None
    compact: bool = False
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class Totals(Node):
    of: Node
    aggregates: tuple[tuple[str, str, str | None], ...]
    window: Window | None = None
    emit: str = "final"


@dataclass(frozen=True, eq=False)
class Distinct(Node):
    of: Node
    columns: tuple[str, ...]
    within_us: int | None = None


@dataclass(frozen=True, eq=False)
class Join(Node):
    of: Node
    other: Node
    within_us: int | None  # of how "asof": the tolerance
    how: str


@dataclass(frozen=True, eq=False)
class Process(Node):
    of: Node
    operator: str
    ttl_us: int | None = None
    migrated: bool = False  # what is stored of an earlier version goes through `further`


@dataclass(frozen=True, eq=False)
class Local(Node):
    of: Node


@dataclass
class Recipe:
    """A flow: nodes in the order of declaration, those that have a sink, and those whose rows may share a place, in no order."""

    nodes: list[Node]
    sinks: list[Node] = field(default_factory=list)
    tied: list[Node] = field(default_factory=list)

    def sources(self) -> list[Source]:
        return [n for n in self.nodes if isinstance(n, Source)]

    def refreshed(self) -> dict[str, Lookup]:
        """The lookups whose tables are read again, by the name of their column."""
        return {n.column: n for n in self.nodes if isinstance(n, Lookup) and n.again is not None}


STATELESS = (Where, Columns, Standard, Repeat, Lookup)

# ---------------------------------------------------------------------------------------------- what users' code does there

CONDITIONS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "v > 2": lambda r: r["v"] is not None and r["v"] > 2,
    "v IS NULL OR v <> 4": lambda r: r["v"] is None or r["v"] != 4,
    "k IS NOT NULL": lambda r: r["k"] is not None,
    "s = 'a' OR x < 1": lambda r: r["s"] == "a" or (r["x"] is not None and r["x"] < 1),
    "j % 2 = 0": lambda r: r["j"] is not None and r["j"] % 2 == 0,
    "1 = 0": lambda _: False,
}

EXPRESSIONS: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = {
    ("v", "v * 2 + 1"): lambda r: None if r["v"] is None else r["v"] * 2 + 1,
    ("s", "coalesce(k, 'none')"): lambda r: "none" if r["k"] is None else r["k"],
    ("w", "coalesce(v, 0) + coalesce(j, 0)"): lambda r: (r["v"] or 0) + (r["j"] or 0),
    ("k", "substr(s, 1, 2)"): lambda r: None if r["s"] is None else r["s"][:2],
}


def repeat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each row v % 3 times (null: once), s telling which."""
    rows = batch.to_pylist()
    out = [dict(r, s=f"{r['s']}/{n}", _row=i) for i, r in enumerate(rows) for n in range(1 if r["v"] is None else r["v"] % 3)]
    schema = batch.schema.append(pa.field("_row", pa.int64()))
    return pa.RecordBatch.from_pylist(out, schema=schema)


class Previous(ps.Operator):
    """Every row with the v of the key's row before it."""

    schema = STANDARD_SCHEMA + ", before long"

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        held = state.get_objects(names)
        v = rows.column("v").to_pylist()
        before: list[int | None] = []
        for g, (start, end) in enumerate(zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True)):
            last = held[g]
            for i in range(start, end):
                before.append(None if last is None else last[0])
                last = (v[i],)
            held[g] = last
        state.put_objects(names, held)
        return rows.emit({**{n: rows.column(n) for n in STANDARD}, "before": pa.array(before, pa.int64())})


class Tally(ps.Operator):
    """Number of a key's rows per four seconds, given out when the frontier has passed them."""

    schema = STANDARD_SCHEMA
    ordered = False
    span_us: ClassVar[int] = 4 * SECOND

    def on_data(self, rows, state):
        tally: dict[tuple[int, int], int] = {}
        for group, time in zip(rows.group.tolist(), rows.order.time.tolist(), strict=True):
            place = group, time - time % self.span_us
            tally[place] = tally.get(place, 0) + 1
        places = list(tally)
        starts = np.array([s for _, s in places], np.int64)
        names = state.names(rows.keys, np.array([g for g, _ in places]), list(biased(starts)))
        held = [(h or 0) + tally[p] for h, p in zip(state.get_objects(names), places, strict=True)]
        state.put_objects(names, held, starts + self.span_us - 1)

    def on_frontier(self, t, state):
        due = state.due(t)
        if not due:
            return None
        names = [n for n, _ in due]
        keys, subs = state.keys_of(names)
        starts = unbiased(subs)
        counts = state.get_objects(names)
        state.delete(names)
        n = len(names)
        out = pa.record_batch(
            {
                "k": pa.array(["tally"] * n, pa.string()),
                "j": pa.array([0] * n, pa.int64()),
                "v": pa.array(counts, pa.int64()),
                "x": pa.nulls(n, pa.float64()),
                "s": pa.array([str(BEGIN + dt.timedelta(microseconds=s)) for s in starts.tolist()], pa.string()),
            }
        )
        return state.emit(out, keys, starts + self.span_us - 1)


class OrderedTally(Tally):
    """The same; its rows wait."""

    ordered = True


TIMED_OPERATORS: dict[str, Callable[[], ps.Operator]] = {
    **{name: partial(Calling, *functions) for name, functions in TIMED_FUNCTIONS.items()},
    "deadlines": partial(Deadlines, 1),
    "hasty deadlines": partial(Deadlines, 0),
}
PLAIN_OPERATORS: dict[str, Callable[[], ps.Operator]] = {name: partial(Untimed, fn) for name, fn in FUNCTIONS.items()}
"""What one of `TIMED_OPERATORS` may become, and come from."""
OPERATORS: dict[str, Callable[[], ps.Operator]] = {"previous": Previous, "tally": Tally, "ordered tally": OrderedTally}


@dataclass(frozen=True)
class Reader(Connector):
    """In place of a connector: only a schema; the harness pushes the records, also those of one partition."""

    schema: pa.Schema

    def shared(self):
        return Shared("pushed", 8)

    def only(self, partition):
        return self


@dataclass
class Built:
    """A declared flow.

    Attributes:
        flow: The flow.
        sinks: By node of the recipe.
        steps: For nodes that are steps of a region: (region's name, operator's index).
    """

    flow: ps.Flow
    sinks: dict[Node, Any]
    steps: dict[Node, tuple[str, int]]

    def markers(self) -> dict[Node, int]:
        """The `part` of rows that the frontier triggers, by node."""
        ordinals = {r.name: i for i, r in enumerate(self.flow.plan().regions)}
        return {n: -(ordinals[region] * 256 + step + 1) for n, (region, step) in self.steps.items()}


def build(
    recipe: Recipe,
    name: str,
    sink: Callable[[str, Node], Any],
    version: int = 0,
    kinds: Mapping[str, Any] = AGGREGATES,
    spelling: Spelling = plainly,
) -> Built:
    """Declare the recipe's flow.

    Args:
        recipe: What to declare.
        name: The flow's name.
        sink: Makes the sink of an output name and node.
        version: Which strategies its regions have.
        kinds: Aggregates by kind.
        spelling: Takes one of several equal spellings of a step.
    """
    flow = ps.Flow(name)
    streams: dict[Node, Any] = {}
    built = Built(flow, {}, steps_of(recipe.nodes))
    for node in recipe.nodes:
        streams[node] = declare_node(flow, node, streams, version, kinds, spelling)
    for i, node in enumerate(recipe.sinks):
        made = built.sinks[node] = sink(f"{name}_{i}", node)
        streams[node].sink(made, name=f"out{i}")
    return built


def steps_of(nodes: Iterable[Node]) -> dict[Node, tuple[str, int]]:
    """Of the nodes that are steps of a region: the region's name, and which of its steps they are."""
    counts: Counter[str] = Counter()
    found = {}
    for node in nodes:
        if isinstance(node, Map | Totals | Distinct | Join | Process):
            region = node.of
            while not isinstance(region, KeyBy):
                region = region.of
            found[node] = (region.name, counts[region.name])
            counts[region.name] += 1
    return found


def declare_node(
    flow: ps.Flow,
    node: Node,
    streams: Mapping[Node, Any],
    version: int = 0,
    kinds: Mapping[str, Any] = AGGREGATES,
    spelling: Spelling = plainly,
) -> Any:
    if isinstance(node, Source):
        return flow.source(
            node.name,
            Reader(TIMED if node.timed else UNTIMED),
            time="at" if node.timed else None,
            lateness=dt.timedelta(microseconds=node.lateness_us),
            position=("p", "o"),
            partitions=node.partitions if node.declared else (),
            on_error="skip",
            idle_after=node.idle_after,
            ahead=None if node.ahead_us is None else dt.timedelta(microseconds=node.ahead_us),
            close_after=None if node.close_after_us is None else dt.timedelta(microseconds=node.close_after_us),
        )
    if isinstance(node, Union):
        return streams[node.of[0]].union(*(streams[n] for n in node.of[1:]))
    stream = streams[node.of]
    if isinstance(node, Late):
        return stream.late
    if isinstance(node, Ahead):
        return stream.ahead
    if isinstance(node, Where):
        return spelling(stream.where, stream.filter)(node.condition)
    if isinstance(node, Columns):
        return spelling(lambda n: stream.with_columns(**n), stream.with_columns)({node.new[0]: node.new[1]})
    if isinstance(node, Standard):
        return standard(stream, [*STANDARD], spelling)
    if isinstance(node, Lookup):
        again = {} if node.again is None else {"refresh": dt.timedelta(microseconds=node.again.every_us)}
        return stream.lookup(node.given(), spelling(node.on, [node.on], {node.on: node.on}), node.how, **again)
    if isinstance(node, Repeat):
        return stream.map_batches(repeat, stream.schema)
    if isinstance(node, KeyBy):
        keyed = stream.key_by(*spelled_names(node.keys, spelling), name=node.name, distribute=node.strategy(version))
        for step in node.then:
            keyed = keyed.where(step) if isinstance(step, str) else keyed.with_columns(**{step[0]: step[1]})
        return keyed
    if isinstance(node, Map):
        within = stream if node.window is None else stream.window(node.window.declared())
        more = {"ttl": dt.timedelta(microseconds=node.ttl_us)} if node.ttl_us else {}
        fn, *on_timer = TIMED_FUNCTIONS.get(node.fn) or (FUNCTIONS[node.fn],)
        more |= {"on_timer": on_timer[0]} if on_timer else {}
        return within.stateful_map(fn, STANDARD_SCHEMA, "n long, told string" if node.compact else None, **more)
    if isinstance(node, Totals):
        aggregates = {
            name: spelled_aggregate(kinds[kind](column), kind, column, spelling) for name, kind, column in node.aggregates
        }
        within = stream if node.window is None else stream.window(node.window.declared())
        return within.aggregate(emit=node.emit, **aggregates)
    if isinstance(node, Distinct):
        names = spelled_names(node.columns, spelling)
        return stream.deduplicate(*names, within=None if node.within_us is None else duration(node.within_us, spelling))
    if isinstance(node, Join):
        bound = None if node.within_us is None else duration(node.within_us, spelling)
        if node.how == "asof":
            return stream.join(streams[node.other], how="asof", tolerance=bound)
        return stream.join(streams[node.other], bound, how=spelled_how(node.how, spelling))
    if isinstance(node, Process):
        more = {"ttl": duration(node.ttl_us, spelling)} if node.ttl_us else {}
        more |= {"migrate": further} if node.migrated else {}
        return stream.process((OPERATORS | TIMED_OPERATORS | PLAIN_OPERATORS)[node.operator](), **more)
    assert isinstance(node, Local)
    return stream.local()


def table(source: Source, records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Records as the harness takes them."""
    return pa.Table.from_pylist([dict(r) for r in records], schema=TIMED if source.timed else UNTIMED)
