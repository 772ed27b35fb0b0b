"""A flow whose code changes between two runs: recipes with two versions, what they give together, and how they are run.

A recipe may hold `Changed` nodes, which are one step in the first version and another, or none, in the second. The oracle says "the code before
up to the stop, the code after from then on": a stateless step is that of the run which read the record (or made the row), a stateful
one that of the run which processed it, which is told by the frontier that its region had reached at the stop.

Read next: `test_changed_recipes`.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import drawing
import judging
import oracle
import recipes as r
from deadlines import deadlines
from own_operators import further
from spelled import micros
from trails import Trail, clocks, trailed

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import compile_flow
from penstock.driver.takeover import compare
from penstock.errors import ChangedFlowError
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness
from penstock.testing.engine import LocalEngine

NUMBERS = itertools.count()
Params = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Changed(r.Node):
    """A step that is another one in the second version.

    Attributes:
        of: What is before it.
        kind: The class of both.
        before: Its attributes in the first version; None: it is not there.
        after: Likewise in the second version.
    """

    of: r.Node
    kind: type[r.Node]
    before: Params | None
    after: Params | None


def first(node: r.Node) -> Any:
    """A step as it is in the first version."""
    return node.kind(node.of, **node.before) if isinstance(node, Changed) and node.before is not None else node


def project(recipe: r.Recipe, version: int) -> tuple[r.Recipe, dict[r.Node, r.Node]]:
    """One version of a recipe, and what each node is in it."""
    known: dict[r.Node, r.Node] = {}
    nodes: list[r.Node] = []
    for node in recipe.nodes:
        if isinstance(node, Changed):
            params = (node.before, node.after)[version]
            if params is None:
                known[node] = known[node.of]
                continue
            known[node] = node.kind(known[node.of], **mapped_nodes(params, known))
        elif isinstance(node, r.Source):
            known[node] = node.then if version and node.then is not None else node
        elif isinstance(node, r.Ahead) and known[node.of].ahead_us is None:
            continue
        else:
            links = {n: known[getattr(node, n)] for n in ("of", "other") if isinstance(getattr(node, n, None), r.Node)}
            if isinstance(node, r.Union):
                links = {"of": tuple(known[n] for n in node.of)}
            known[node] = replace(node, **links)
        nodes.append(known[node])
    sinks = list(dict.fromkeys(known[s] for s in recipe.sinks if s in known))
    return r.Recipe(nodes, sinks), known


def mapped_nodes(params: Params, known: Mapping[r.Node, r.Node]) -> dict[str, Any]:
    return {n: known[value] if isinstance(value, r.Node) else value for n, value in params.items()}


class Oracle(oracle.Oracle):
    """What both versions give together.

    Args:
        recipe: The recipe.
        records: All records; those of an epoch up to `stop` are read by the first version.
        markers: As in the other oracle.
        stop: The last epoch of the first version that counts.
        frontiers: By region, how far it had processed then (µs).
        clock: As in the other oracle.
        trail: Likewise.
        held: By region and key (hash), how far a key that was on hold then had been processed.
    """

    def __init__(
        self,
        recipe: r.Recipe,
        records: oracle.Records,
        markers: Mapping[r.Node, int],
        stop: int,
        frontiers: Mapping[str, int],
        clock: judging.Clock = MappingProxyType({}),
        trail: Trail | None = None,
        held: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> None:
        super().__init__(recipe, records, markers, clock, trail)
        self._frontiers, self._stop, self._held = frontiers, stop, held
        self._late_read = {
            (name, record["p"], record["o"]) for name, rows in records.items() for epoch, record in rows if epoch > stop
        }
        self._names = {i: s.name for s, i in self._ordinals.items()}
        self.run: dict[tuple[Any, ...], int] = {}

    def _records_of(self, source: r.Source) -> list[tuple[str, int, Mapping[str, Any]]]:
        return judging.judged(source, self._records[source.name], self._clock, self._stop)

    def second(self, node: r.Node, row: oracle.Row) -> bool:
        """Whether a node's row was made in the second run."""
        region = oracle.region_left(node)
        if region is not None:
            return row.time >= self._frontiers[region.name]
        if isinstance(node, r.Source):
            return (node.name, row.part & ((1 << 48) - 1), row.offset) in self._late_read
        if isinstance(node, r.Local):
            return self.second_out(node.of, row)
        return self.second(node.of, row)

    def second_out(self, node: r.Node, row: oracle.Row) -> bool:
        """Whether a row left a region in the second run; those of a region without a step wait, too."""
        region = oracle.region_of(node)
        return row.time >= self._frontiers[region.name]

    def tagged(self, node: r.Node) -> list[tuple[oracle.Row, bool]]:
        """The rows of a node, and of each whether the second run made it."""
        if isinstance(node, r.Union):
            return [(replace(row, key=()), late) for n in node.of for row, late in self.tagged(n)]
        if isinstance(node, r.STATELESS):
            return self._stateless(node, self.tagged(node.of))
        if isinstance(node, Changed) and node.kind in (r.Where, r.Columns, r.Lookup):
            out = []
            for params, second in ((node.before, False), (node.after, True)):
                mine = [pair for pair in self.tagged(node.of) if pair[1] == second]
                out += mine if params is None else self._stateless(node.kind(node.of, **params), mine)
            return out
        if isinstance(node, r.KeyBy):
            rows = self.tagged(node.of)
            for step in node.then:
                made = r.Where(node.of, step) if isinstance(step, str) else r.Columns(node.of, step)
                rows = self._stateless(made, rows)
            return [(replace(row, key=tuple(row.data[c] for c in node.keys)), late) for row, late in rows]
        return [(row, self.second(node, row)) for row in self.rows(node)]

    def _stateless(self, node: Any, rows: list[tuple[oracle.Row, bool]]) -> list[tuple[oracle.Row, bool]]:
        if isinstance(node, r.Where):
            return [(row, late) for row, late in rows if r.CONDITIONS[node.condition](row.data)]
        if isinstance(node, r.Columns):
            return [(oracle.with_column(row, node.new), late) for row, late in rows]
        if isinstance(node, r.Lookup):
            return [(child, late) for row, late in rows for child in self.looked_up(node, row)]
        if isinstance(node, r.Standard):
            return [(replace(row, data={n: row.data[n] for n in r.STANDARD}), late) for row, late in rows]
        return [(child, late) for row, late in rows for child in oracle.repeated(row)]

    def made_rows(self, node: r.Node) -> list[oracle.Row]:
        stateless = isinstance(node, (r.Union, r.KeyBy, *r.STATELESS))
        if stateless or (isinstance(node, Changed) and node.kind in (r.Where, r.Columns, r.Lookup)):
            return [row for row, _ in self.tagged(node)]
        if not isinstance(node, Changed):
            return super().made_rows(node)
        rows = self.rows(node.of)
        if node.kind in (r.Map, r.Process):
            assert node.before is not None
            assert node.after is not None
            return [out for group in oracle.by_key(rows) for out in self._mapped(node, group)]
        if node.kind is r.Distinct:
            return self._distinct(node, rows)
        return self._changed_totals(node)

    def _mapped(self, node: Changed, group: list[oracle.Row]) -> list[oracle.Row]:
        versions: list[Any] = [node.kind(node.of, **params) for params in (node.before, node.after)]  # type: ignore[arg-type]
        region = oracle.region_of(node.of).name
        edge = self._held.get((region, oracle.hash_of(group[0].key)), self._frontiers[region])
        names = [v.fn if isinstance(v, r.Map) else v.operator for v in versions]
        if names[0] == "previous":
            return self._previous(versions, group, edge)
        if names[0].endswith("deadlines"):
            at = lambda time, data, n: self._at_frontier(node, group[0].key, time, data, n)  # noqa: E731
            return deadlines(versions[0], group, self._latest(node), at, versions[1], edge)
        migrates = isinstance(versions[1], r.Process) and versions[1].migrated and not versions[0].migrated
        timed = [r.TIMED_FUNCTIONS.get(name) for name in names]
        functions = [t[0] if t else r.FUNCTIONS[name] for t, name in zip(timed, names, strict=True)]

        def told(given: Any, second: bool) -> Any:
            """With who has stored the state."""
            outputs, state, *timer = given
            return (outputs, None if state is None else (state, second), *timer)

        def now(state: Any, second: bool) -> Any:
            if state is None:
                return None
            return further(state[0]) if migrates and second and not state[1] else state[0]

        def both(key: Any, event: Any, state: Any) -> Any:
            given = functions[event.second](key, event, now(state, event.second))
            return told(
                given if timed[event.second] or not any(timed) else (*given, None), event.second
            )  # who knows of no timers has none

        def both_timers(key: Any, state: Any, at: Any) -> Any:
            second = oracle.micros(at) >= edge
            version = timed[second]
            return told(version[1](key, now(state, second), at), second) if version else (None, state)

        name = f"both of {next(NUMBERS)}"
        marked = [replace(row, data={**row.data, "second": row.time >= edge}) for row in group]
        try:
            if any(timed):
                r.TIMED_FUNCTIONS[name] = both, both_timers
                return self._timed(r.Map(node.of, name, None, ttl_us=versions[0].ttl_us), marked, node)
            r.FUNCTIONS[name] = both
            return oracle.mapped(r.Map(node.of, name, getattr(versions[0], "window", None), ttl_us=versions[0].ttl_us), marked)
        finally:
            r.FUNCTIONS.pop(name, None)
            r.TIMED_FUNCTIONS.pop(name, None)

    def _previous(self, versions: Sequence[r.Process], group: list[oracle.Row], edge: int) -> list[oracle.Row]:
        """`recipes.Previous`, what is stored of the first version of which may be migrated."""
        rows = oracle.previous(versions[0], group)
        migrates = versions[1].migrated and not versions[0].migrated
        for i, (before, row) in enumerate(itertools.pairwise(group), start=1):
            if migrates and before.time < edge <= row.time and rows[i].data["before"] is not None:
                rows[i] = replace(rows[i], data={**rows[i].data, "before": further(rows[i].data["before"])})
        return rows

    def _distinct(self, node: Changed, rows: list[oracle.Row]) -> list[oracle.Row]:
        edge = self._frontiers[oracle.region_of(node.of).name]
        out = []
        for params, second in ((node.before, False), (node.after, True)):
            mine = [row for row in rows if (row.time >= edge) == second]
            if params is None:
                out += [row.child(0, row.data) for row in mine]
            else:
                out += [x for group in oracle.by_key(mine) for x in oracle.distinct(node.kind(node.of, **params), group)]
        return out

    def _changed_totals(self, node: Changed) -> list[oracle.Row]:
        """An aggregate that came is of rows of the second run alone; a window that was out before has it not."""
        assert node.before is not None
        assert node.after is not None
        edge = self._frontiers[oracle.region_of(node.of).name]
        both = self.tagged(node.of)
        groups = oracle.by_key([row for row, _ in both])
        late = {id(row) for row, second in both if second}
        old = {name for name, _, _ in node.before["aggregates"]}
        out = []
        for group in groups:
            for params, second in ((node.before, False), (node.after, True)):
                whole = node.kind(node.of, **params)
                for row in self._totals(whole, list(group)):
                    if (row.time >= edge) != second:
                        continue
                    data = dict(row.data)
                    for name, kind, column in params["aggregates"]:
                        if name not in old:
                            span = (micros(data["window_start"]), micros(data["window_end"]))
                            window = whole.window
                            last = span[1] - window.size_us if window.kind == "session" else span[1] - 1
                            mine = [x for x in group if span[0] <= x.time <= last and id(x) in late]
                            values = [
                                True if column is None else x.data[column] for x in sorted(mine, key=lambda x: x.order[1:])
                            ]
                            data[name] = oracle.aggregate(kind, values) if values else ZERO.get(kind)
                    out.append(replace(row, data=data))
        return out


ZERO = {"count": 0, "count_distinct": 0, "collect": []}


# ---------------------------------------------------------------------------------------------------------------- running


@dataclass
class Outcome:
    """What a run with a change in the middle gave.

    Attributes:
        refusal: Why the second version was refused; the first one then went on.
        contents: By node of the recipe, rows of all its sinks.
        markers: As the oracles need them.
        frontiers: By region, how far it had processed at the end of `stopped`.
        stopped: The last epoch of the first version that counts: the flow may have gone back since.
        notices: What the second run said.
        clock: As the oracles need it.
        trail: Likewise.
        outcomes: By kind and name of a part, what the start says of it.
        held: As the oracles need it.
    """

    refusal: str
    contents: dict[r.Node, Counter[Any]]
    markers: dict[r.Node, int]
    frontiers: Mapping[str, int]
    trail: Trail
    stopped: int
    notices: list[str] = field(default_factory=list)
    clock: dict[int, tuple[int, bool, bool]] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    held: dict[tuple[str, int], int] = field(default_factory=dict)


class Running:
    """One checkpoint, and one version of a recipe on it after the other."""

    def __init__(self, recipe: r.Recipe, data: oracle.Records, course: drawing.Course) -> None:
        self.recipe, self.data, self.course = recipe, data, course
        self.name = f"changing model {next(NUMBERS)}"
        self.tables: dict[r.Node, set[str]] = {}
        self.same_tables = True
        self.jumps = random.Random(course.jumps)
        self.markers: dict[r.Node, int] = {}
        self.shuffle = random.Random(course.seed)
        self.seen = itertools.count()

    def before(self, _: str) -> None:
        if next(self.seen) in self.course.crashes:
            raise Crash

    def declared(self, flow: ps.Flow, node: r.Node, streams: dict[r.Node, Any]) -> Any:
        """The stream of a node of a version."""
        return r.declare_node(flow, node, streams)

    def declare(self, which: int) -> tuple[ps.Flow, dict[r.Node, r.Node], dict[r.Node, Any]]:
        """A version's flow, what each node is in it, and the streams of these."""
        made, known = project(self.recipe, which)
        flow, streams = ps.Flow(self.name), {}
        for node in made.nodes:
            streams[node] = self.declared(flow, node, streams)
        back = {known[node]: node for node in reversed(self.recipe.sinks) if node in known}
        before, here = {t for tables in self.tables.values() for t in tables}, set()
        for i, base in enumerate(self.recipe.sinks):
            node = known.get(base)
            if node is None:
                continue
            if back[node] is base:
                table = f"{self.name} {i} {streams[node].schema}"
                streams[node].sink(ps.memory(table), name=f"out{i}")
                self.tables.setdefault(base, set()).add(table)
                here.add(table)
        self.same_tables = before <= here
        return flow, known, streams

    def mark(self, known: dict[r.Node, r.Node], nodes: Iterable[r.Node], checkpoint: str) -> None:
        """Note the `part` of rows that the frontier triggers, by node, as the newest run of a checkpoint numbers its steps."""
        opened = Checkpoint(checkpoint)
        specs = pickle.loads(opened.specs(opened.newest_run()))
        for node, (region, at) in r.steps_of(nodes).items():
            spec = specs[region]
            self.markers |= {b: -(spec.ordinal * 256 + spec.steps[at].slot + 1) for b, k in known.items() if k is node}

    def contents(self) -> dict[r.Node, Counter[Any]]:
        """What the sinks of each node hold."""
        return {
            node: sum((plain(ps.memory(table).rows()) for table in tables), Counter()) for node, tables in self.tables.items()
        }

    @contextlib.contextmanager
    def version(self, which: int, folder: str) -> Iterator[Harness]:
        flow, known, streams = self.declare(which)
        step, hold = self.course.limits
        limits = Limits(first_bytes=step, least_bytes=step, most_bytes=2 * step, hold_bytes=hold, measure_entries=20)
        workers = self.course.workers
        with made_again(flow, workers, folder, self.before, limits, lmdb=self.course.lmdb) as harness:
            self.mark(known, streams, folder)
            yield harness

    def epochs(self, harness: Harness, epochs: range, last: int) -> None:
        """Run epochs with their records, and commands that steer."""
        sources = {s.name: s for s in self.recipe.sources()}
        for epoch in epochs:
            for name, rows in self.data.items():
                here = [record for e, record in rows if e == epoch]
                self.shuffle.shuffle(here)
                if here:
                    harness.push(name, r.table(sources[name], here))
            steered = drawing.steer(harness, self.course, epoch, back=self.same_tables)
            ends = self.course.drain_last and epoch == last
            drawing.survive(harness, self.course, [*steered, "end"] if ends else steered, self.passes())

    def passes(self) -> int:
        """How much time passes before the next epoch (µs)."""
        return r.SECOND if self.course.jumps is None else self.jumps.choice(drawing.JUMPS_US)


@contextlib.contextmanager
def one_log() -> Iterator[None]:
    """What was read can be read again, as that of a source, by the harnesses that follow."""
    begun, engines = LocalEngine.__init__, []

    def following(self: LocalEngine, *args: Any, **more: Any) -> None:
        begun(self, *args, **more)
        if engines:
            self.log, self.pending = engines[-1].log, engines[-1].pending
        engines.append(self)

    with patch.object(LocalEngine, "__init__", following):
        yield


@contextlib.contextmanager
def made_again(flow: Any, workers: int, folder: str, before: Any, limits: Any, *, lmdb: bool) -> Iterator[Harness]:
    """A harness that is made again when a crash hits its making."""
    harness = None
    while harness is None:
        with contextlib.suppress(Crash):
            harness = Harness(flow, workers=workers, checkpoint=folder, on_step=before, limits=limits, lmdb=lmdb)
    with harness:
        yield harness


def run(
    recipe: r.Recipe, data: oracle.Records, course: drawing.Course, stop: int, silent: int = 0, *, holding: bool = False
) -> Outcome:
    """Run the first version up to an epoch and some `silent` ones, and the second from there, maybe with keys on hold (`holding`); if that is refused,
    the first one goes on.
    """
    running = Running(recipe, data, course)
    last = max((epoch for rows in data.values() for epoch, _ in rows), default=0)
    refusal, notices = "", []
    folders = tempfile.TemporaryDirectory(prefix="penstock-changes-")
    with folders as folder, one_log(), clocks() as clock, trailed(recipe) as trail:
        with running.version(0, folder) as harness:
            running.epochs(harness, range(stop + 1), last + 1)
            for _ in range(silent):
                drawing.survive(harness, course, [], 5 * running.passes())
            while not holding and any(region.control.held for region in harness.record.regions.values()):
                drawing.survive(harness, course, harness.copy())
            kept, stopped = harness.record.to_bytes(), harness.record.epoch
            outcomes = said(running, harness, folder)
        try:
            with running.version(1, folder) as harness:
                notices = harness.notices
                _to_the_end(running, harness, stop, last)
        except ChangedFlowError as error:
            refusal = str(error)
            with running.version(0, folder) as harness:
                assert harness.record.to_bytes() == kept, "a refusal changed the checkpoint"
                assert harness.notices == []
                _to_the_end(running, harness, stop, last)
        contents = running.contents()
    stopped = max(epoch for epoch in trail.epochs if epoch <= stopped)
    frontiers = trail.epochs[stopped].frontiers
    held = {(name, key): trail.epochs[since].frontiers[name] for (name, key), since in trail.epochs[stopped].held.items()}
    return Outcome(refusal, contents, running.markers, frontiers, trail, stopped, notices, trail.clock(clock), outcomes, held)


def said(running: Running, harness: Harness, folder: str) -> dict[tuple[str, str], str]:
    """By kind and name of a part, what a start of the second version finds of it."""
    flow, _, _ = running.declare(1)
    compiled = compile_flow(flow.plan(), lambda node, _: node.schema, lambda *_: None)
    return {(v.kind, v.name): v.outcome.value for v in compare(compiled, harness.record, folder)[1].verdicts}


def plain(rows: Any) -> Counter[Any]:
    """Rows without order and without what is null: a column that was not there is null, too."""
    return oracle.multiset({n: v for n, v in row.items() if v is not None} for row in rows)


def _to_the_end(running: Running, harness: Harness, stop: int, last: int) -> None:
    running.epochs(harness, range(stop + 1, last + 1), last)
    drawing.survive(harness, running.course, ["end"])
    for _ in range(drawing.MOST_EPOCHS):
        if harness.record.finished:
            return
        drawing.survive(harness, running.course, harness.copy() if harness.record.ending else ["end"])
    raise AssertionError("the flow does not come to its end")
