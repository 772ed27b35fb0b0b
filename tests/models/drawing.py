"""Hypothesis strategies: flows, data, and what happens while they run; and the run itself."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import oracle
import recipes as r
from drawing_joins import About, Joins
from hypothesis import strategies as st
from own_aggregates import ORDERED_AGGREGATES
from spelled import at_random, plainly
from trails import Trail, trailed

import penstock as ps
from penstock.operators.zones import Zone
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness

NUMBERS = itertools.count()
MOST_EPOCHS = 2000  # after the last input; a flow that needs more hangs
KEYS = [None, "", "a", "b", "é", "x" * 392]  # with a number 400 bytes, which is what a key may have
RESTLESS = Zone(
    "restless",
    tuple((base + second) * r.SECOND for base in (-20, 0, 1_700_000_000) for second in (2, 7, 8, 14)),
    tuple(second * r.SECOND for second in (1, *((5, 0, -3, 1) * 3))),
)
WINDOWS = [
    r.Window("tumbling", 5 * r.SECOND),
    r.Window("sliding", 6 * r.SECOND, 2 * r.SECOND),
    r.Window("sliding", 5 * r.SECOND, 3 * r.SECOND),
    r.Window("session", 2 * r.SECOND),
    r.Window("sliding", 5 * r.SECOND, 3 * r.SECOND, 2 * r.SECOND),
    r.Window("tumbling", 4 * r.SECOND, 0, r.SECOND, RESTLESS),
    r.Window("sliding", 5 * r.SECOND, 2 * r.SECOND, 0, RESTLESS),
]
STRATEGIES = [
    ps.Histogram(), ps.Histogram(0.5), ps.PartialKeyGrouping(), ps.DChoices(), ps.DChoices(0.05, 1e-3), ps.WChoices(), ps.WChoices(0.2),
    ps.ConsistentGrouping(), ps.ConsistentGrouping(2, 0.5), ps.KeyGrouping(), ps.Isolate(0.1), None,
]  # fmt: skip
REST = {
    "k": [("first", "k"), ("last", "k"), ("max", "k")],
    "j": [("max", "j"), ("min", "j"), ("first", "j"), ("last", "v")],
    "v": [
        ("sum", "v"),
        ("count", None),
        ("count", "s"),
        ("count_distinct", "s"),
        ("count_distinct", "v"),
        ("max", "v"),
        ("fold", "j"),
        ("said", "j"),
    ],
    "x": [("fsum", "x"), ("mean", "x"), ("mean", "v"), ("min", "x"), ("max", "x"), ("last", "x")],
    "s": [("concat", "s"), ("first", "s"), ("last", "s"), ("min", "s"), ("max", "s")],
    "extra": [("collect", "v"), ("collect", "s"), ("collect", "x"), ("fold", "v"), ("count", "x")],
}


class Drawing(Joins):
    """Draws one recipe.

    Args:
        draw: Hypothesis' draw.
        timed: Whether sources have an event time.
        ties: Whether steps that depend on order may follow where rows can have one place.
        divided: Whether regions have strategies that divide the rows of a key, which may change from version to version.
        shared: Number of partitions of every source, of a flow that runs in a group; 0: it is in none.
        options: By option of `recipes.Source`, what it is drawn from.
        changing: Whether tables that are read again become other ones.
    """

    def __init__(
        self,
        draw: Any,
        *,
        timed: bool,
        ties: bool,
        sources: int,
        divided: bool = False,
        shared: int = 0,
        options: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        changing: bool = False,
    ) -> None:
        self.draw, self.timed, self.ties, self.divided, self.shared = draw, timed, ties, divided, shared
        self.changing = changing
        self.recipe = r.Recipe([])
        self.about: dict[r.Node, About] = {}
        for i in range(sources):
            source = r.Source(
                "abc"[i], timed, draw(st.sampled_from([0, 2, 10])) * r.SECOND, tuple(range(shared or draw(st.integers(1, 3))))
            )
            source = replace(source, **{name: draw(st.sampled_from(choices)) for name, choices in options.items()})
            self.add(source, About(origins=frozenset([source.name])))

    def add(self, node: r.Node, about: About) -> r.Node:
        self.recipe.nodes.append(node)
        self.about[node] = about
        return node

    def standard(self, node: r.Node) -> r.Node:
        """The node with the common columns only."""
        if oracle.columns(node) == [*r.STANDARD] and not isinstance(node, r.KeyBy):
            return node
        return self.add(r.Standard(node), self.about[node].plain())

    def stream(self, *, bias: bool = True) -> r.Node:
        """A node that something may follow; mostly the latest."""
        open_ = [n for n in self.about if not self.about[n].updating and (bias or not isinstance(n, r.KeyBy))]
        return open_[-1] if bias and self.draw(st.integers(0, 3)) else self.draw(st.sampled_from(open_))

    def step(self) -> None:
        node = self.stream()
        about = self.about[node]
        if about.keys:
            self.keyed_step(node, about)
        else:
            kinds = ["key", "key", "key", "where", "columns", "repeat", "union", "lookup"]
            getattr(self, "_" + self.draw(st.sampled_from(kinds)))(node, about)

    def keyed_step(self, node: r.Node, about: About) -> None:
        if isinstance(node, r.KeyBy) and node.divided:
            return self._totals(node, about)
        kinds = ["map", "map", "totals", "totals", "distinct", "process", "leave"]
        if self.timed:
            kinds += ["join", "join", "window_map", "totals"]
        return getattr(self, "_" + self.draw(st.sampled_from(kinds)))(node, about)  # type: ignore[no-any-return]

    def _key(self, node: r.Node, about: About) -> None:
        keys = self.draw(st.sampled_from([("k",), ("j",), ("k", "j"), ("s",), ("k",), ("x",)]))
        if keys == ("s",):  # results may be long; keys may not
            node = self.add(r.Columns(self.standard(node), ("k", "substr(s, 1, 2)")), about)
            keys = ("k",)
        then = tuple(self.draw(st.lists(st.sampled_from(["v > 2", "k IS NOT NULL", ("v", "v * 2 + 1")]), max_size=1)))
        strategies = tuple(self.draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=3))) if self.divided else ()
        strategies = (ps.ByPartition(),) if self.shared else strategies
        added = r.KeyBy(node, keys, f"r{len(self.recipe.nodes)}", then, strategies)
        if self.draw(st.integers(0, 7)):
            about = replace(about, keys=keys)
            self.add(added, about)
            self.keyed_step(added, about)
        else:  # a region without a step
            self.recipe.nodes.append(added)
            self.add(r.Local(added), about)

    def _leave(self, node: r.Node, about: About) -> None:
        if isinstance(node, r.KeyBy):  # possible before the region's first step only
            self._map(node, about)
        elif self.draw(st.booleans()):
            self.add(r.Local(node), about.plain())
        else:
            self._where(node, about.plain())

    def _where(self, node: r.Node, about: About) -> None:
        self.add(r.Where(node, self.draw(st.sampled_from([*r.CONDITIONS]))), about)

    def _columns(self, node: r.Node, about: About) -> None:
        self.add(r.Columns(node, self.draw(st.sampled_from([*r.EXPRESSIONS]))), about)

    def _repeat(self, node: r.Node, about: About) -> None:
        if about.depth < 3:
            self.add(r.Repeat(node), about.deeper())

    def _union(self, node: r.Node, _: About) -> None:
        others = [self.stream(bias=False) for _ in range(self.draw(st.integers(1, 2)))]
        if any(o is node for o in others) and not self.ties:
            others = [o for o in others if o is not node] or [self.recipe.nodes[0]]
        nodes = tuple(self.standard(n) for n in (node, *others))
        self.add(r.Union(nodes), self._merged(nodes))

    def _merged(self, nodes: tuple[r.Node, ...]) -> About:
        all_ = [o for n in nodes for o in self.about[n].origins]
        tied = any(self.about[n].tied for n in nodes) or len(set(all_)) < len(all_)
        return About(origins=frozenset(all_), tied=tied, depth=max(self.about[n].depth for n in nodes))

    def _map(self, node: r.Node, about: About, window: r.Window | None = None) -> None:
        if (about.tied and not self.ties) or about.depth >= 3:
            return self._totals(node, about)
        timed = r.TIMED_FUNCTIONS if self.timed and window is None else ()
        fn = self.draw(st.sampled_from([*r.FUNCTIONS, *timed]))
        ttl = self.draw(st.sampled_from([None, None, r.SECOND, 3 * r.SECOND])) if self.timed and window is None else None
        origins = about.origins | {object() for _ in (fn,) if fn in timed}  # the frontier triggers what timers give
        self.add(r.Map(node, fn, window, self.draw(st.booleans()), ttl), replace(about.deeper(), origins=origins))
        return None

    def _window_map(self, node: r.Node, about: About) -> None:
        if "window_start" in oracle.columns(node):  # refused when it is declared
            return self._map(node, about)
        return self._map(node, about, self.draw(st.sampled_from([w for w in WINDOWS if w.kind != "session"])))

    def _totals(self, node: r.Node, about: About) -> None:
        window = self.draw(st.sampled_from([*WINDOWS, *WINDOWS, None])) if self.timed else None
        emit = "update" if window is None else "final"
        if window is not None and window.kind != "session" and not self.draw(st.integers(0, 5)):
            emit = "update"
        aggregates = []
        apart = isinstance(node, r.KeyBy) and node.divided
        for name, choices in REST.items():
            if name not in about.keys:
                fit = [
                    c
                    for c in choices
                    if (self.ties or not about.tied or c[0] not in ORDERED_AGGREGATES)
                    and (c[0] != "concat" or self.timed)
                    and not (apart and c[0] in ("concat", "fold"))  # refused: they do not say that they need no order
                ]
                if fit:
                    aggregates.append((name, *self.draw(st.sampled_from(fit))))
        added = r.Totals(node, tuple(aggregates), window, emit)
        self.add(added, About(about.keys, updating=emit == "update", origins=frozenset([added])))

    def _distinct(self, node: r.Node, about: About) -> None:
        if (about.tied and not self.ties) or about.depth >= 3:
            return self._totals(node, about)
        names = self.draw(st.sampled_from([(), ("v",), ("j", "v"), ("j",), ("x",)]))
        within = self.draw(st.sampled_from([None, 0, 3 * r.SECOND])) if self.timed else None
        self.add(r.Distinct(node, names, within), about.deeper())
        return None

    def _process(self, node: r.Node, about: About) -> None:
        operator = self.draw(st.sampled_from([*r.OPERATORS, *r.TIMED_OPERATORS] if self.timed else ["previous"]))
        in_order = operator == "previous" or operator in r.TIMED_OPERATORS
        if in_order and ((about.tied and not self.ties) or about.depth >= 3):
            return self._totals(node, about)
        lives = operator == "previous" or operator in r.TIMED_OPERATORS
        ttl = self.draw(st.sampled_from([None, None, r.SECOND, 3 * r.SECOND])) if self.timed and lives else None
        added = r.Process(node, operator, ttl)
        deeper = replace(about.deeper(), origins=about.origins | {object() for _ in (1,) if operator != "previous"})
        self.add(added, deeper if in_order else About(about.keys, origins=frozenset([added])))
        return None


@st.composite
def recipes(
    draw: Any,
    *,
    timed: bool = True,
    ties: bool = False,
    steps: int = 7,
    divided: bool = False,
    shared: int = 0,
    options: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    changing: bool = False,
    sources: Sequence[int] = (1, 1, 2, 3),
) -> r.Recipe:
    """Any flow, of one of some numbers of sources."""
    drawing = Drawing(
        draw,
        timed=timed,
        ties=ties,
        sources=draw(st.sampled_from(sources)),
        divided=divided,
        shared=shared,
        options=options,
        changing=changing,
    )
    if changing and draw(st.booleans()):
        drawing.look_first()
    for _ in range(draw(st.integers(1, steps))):
        drawing.step()
    recipe = drawing.recipe
    recipe.tied = [n for n, about in drawing.about.items() if about.tied]
    nodes = [n for n in drawing.about if not isinstance(n, r.Source)] or recipe.nodes[:1]
    recipe.sinks = [nodes[-1], *draw(st.lists(st.sampled_from(nodes), max_size=2))]
    if shared:  # a key may be in several partitions, and a table that is upserted has one row of it
        recipe.sinks = [n for n in recipe.sinks if not drawing.about[n].updating]
    else:
        recipe.sinks += [n for n in drawing.about if drawing.about[n].updating and n not in recipe.sinks]
    recipe.sinks = [s for i, s in enumerate(recipe.sinks) if not any(s is b for b in recipe.sinks[:i])]
    for source in recipe.sources() if timed else []:
        late = r.Late(source)
        aside = [late] if source.ahead_us is None else [late, r.Ahead(source)]
        recipe.nodes += aside
        recipe.sinks += aside
    return recipe


PLAIN = [0.1, 1.0, 1e16, -1e16, None, 0.3, -2.5]
EDGES = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 5e-324, -1.7976931348623157e308, None, 0.1, 1e16]
_RECORD = st.tuples(
    st.integers(-6, 4),
    st.sampled_from(KEYS),
    st.sampled_from([0, 1, 2, None, -(2**62)]),
    st.sampled_from([0, 1, 2, 3, 5, 4, None, 7]),
    st.sampled_from(PLAIN),
    st.sampled_from(["a", "b", "", None, "ü"]),
    st.sampled_from([0, 0, 0, 0, 1, 2]),
)


@st.composite
def records(draw: Any, recipe: r.Recipe, *, most: int = 40, edges: bool = False) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """By source, records with the epoch they come in: offsets never go back to an earlier epoch. `edges`: doubles at their limits."""
    base = draw(st.sampled_from([0, -20 * r.SECOND, 1_700_000_000 * r.SECOND]))
    cut = draw(st.sampled_from(["drawn", "drawn", "drawn", "all at once", "one by one"]))
    one_key = draw(st.sampled_from([False, False, False, True]))
    at_edge = draw(st.booleans()) if edges else False
    out: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for source in recipe.sources():
        found: list[tuple[int, dict[str, Any]]] = []
        for p in source.partitions:
            step, gap = draw(st.sampled_from([1, 1, 0, 3, 6])), draw(st.sampled_from([1, 3]))
            least = draw(st.sampled_from([6, 6, 6, 0]))
            epoch = 0
            for i, (jitter, k, j, v, x, s, advance) in enumerate(
                draw(st.lists(_RECORD, min_size=least, max_size=max(least, most // len(source.partitions))))
            ):
                epoch += advance
                edge = EDGES[(PLAIN.index(x) + i) % len(EDGES)]
                record = {"p": p, "o": i * gap, "k": "a" if one_key else k, "j": j, "v": v, "x": edge if at_edge else x, "s": s}
                if source.timed:
                    record["at"] = r.moment(base + (i * step + jitter) * r.SECOND // 2) if (i + jitter) % 29 else None
                found.append(({"drawn": epoch, "all at once": 0, "one by one": i}[cut], record))
        out[source.name] = found
    return out


@dataclass
class Course:
    """What happens while a flow runs.

    Attributes:
        workers: Of every region.
        crashes: At which steps of the run (counted from 0) it crashes, and whether local state is then lost.
        seed: Order in which an epoch's records arrive.
        drain_last: The end of input comes in the last epoch with records, not after it.
        steering: By epoch, commands: ("scale", region or None, workers), ("move", region, which key, worker or None),
            ("snapshot", any number) or ("load", which one); regions, keys and snapshots by number, taken modulo what there is.
        back: A snapshot is taken in the first epoch given, and gone back to in the second one, or after the last.
        limits: Bounds of a step of a rescale: bytes per step, bytes of a key that is put on hold.
        spelled: Seed of the spellings of the flow's steps, all of which mean the same; None: penstock's own.
        copy_every: After so many epochs the state of keys on hold has been copied.
        jumps: Seed of how much time passes before each epoch; None: a second.
    """

    workers: int = 1
    crashes: dict[int, bool] = field(default_factory=dict)
    seed: int = 0
    drain_last: bool = False
    lmdb: bool = False
    steering: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    back: tuple[int, int] | None = None
    limits: tuple[int, int] = (1 << 20, 1 << 20)
    copy_every: int = 2
    spelled: int | None = None
    jumps: int | None = None


_commands = st.one_of(
    st.tuples(st.just("scale"), st.one_of(st.none(), st.integers(0, 3)), st.integers(1, 8)),
    st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 7))),
    st.tuples(st.just("snapshot"), st.integers(0, 9)),
    st.tuples(st.just("load"), st.integers(0, 9)),
)
courses = st.builds(
    Course,
    workers=st.integers(1, 8),
    crashes=st.dictionaries(st.one_of(st.integers(0, 30), st.integers(0, 300)), st.booleans(), max_size=4),
    seed=st.integers(0, 5),
    drain_last=st.booleans(),
    steering=st.dictionaries(st.integers(0, 12), st.lists(_commands, min_size=1, max_size=3), max_size=5),
    back=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(1, 8))),
    limits=st.tuples(st.sampled_from([40, 300, 1 << 20]), st.sampled_from([60, 400, 1 << 20])),
    copy_every=st.integers(1, 4),
    spelled=st.one_of(st.none(), st.integers(0, 99)),
)
CALM = Course()
JUMPS_US = [1_000, 500_000, 1_000_000, 4_000_000, 20_000_000]


# -------------------------------------------------------------------------------------------------------------------- run


@dataclass
class Ran:
    """What came out: content of every sink, and what the oracle needs."""

    contents: dict[r.Node, Counter[Any]]
    markers: Mapping[r.Node, int]
    trail: Trail


def run(
    recipe: r.Recipe,
    data: oracle.Records,
    course: Course,
    *,
    sink: Callable[[str, r.Node], Any] = lambda name, _: ps.memory(name),
    content: Callable[[r.Node, Any], Counter[Any]] = lambda _, sink: oracle.multiset(sink.rows()),
) -> Ran:
    """Run a flow through the harness, crashes included, until its input has ended."""
    spelling = plainly if course.spelled is None else at_random(course.spelled)
    built = r.build(recipe, f"model{next(NUMBERS)}", sink, spelling=spelling)
    seen = itertools.count()

    def before(_: str) -> None:
        if next(seen) in course.crashes:
            raise Crash

    shuffle = random.Random(course.seed)
    sources = {s.name: s for s in recipe.sources()}
    back = goes_back(recipe)
    step, hold = course.limits
    limits = Limits(first_bytes=step, least_bytes=step, most_bytes=2 * step, hold_bytes=hold, measure_entries=20)
    time = random.Random(course.jumps)
    with (
        trailed(recipe) as trail,
        Harness(built.flow, workers=course.workers, on_step=before, lmdb=course.lmdb, limits=limits) as harness,
    ):
        last = max((epoch for rows in data.values() for epoch, _ in rows), default=0)
        for epoch in range(last + 1):
            for name, rows in data.items():
                here = [record for e, record in rows if e == epoch]
                shuffle.shuffle(here)
                for part in (here[: len(here) // 3], here[len(here) // 3 :]):
                    if part:
                        harness.push(name, r.table(sources[name], part))
            steered = steer(harness, course, epoch, back=back)
            more_us = 1_000_000 if course.jumps is None else time.choice(JUMPS_US)
            survive(harness, course, [*steered, "end"] if course.drain_last and epoch == last else steered, more_us)
        if course.back and back and course.back[0] <= last < course.back[1] and not harness.record.finished:
            survive(harness, course, _load(harness, -1))
        survive(harness, course, ["end"])
        for _ in range(MOST_EPOCHS):
            if harness.record.finished:
                break
            # an end that came with a command to go back was about input that is read again
            survive(harness, course, harness.copy() if harness.record.ending else ["end"])
        assert harness.record.finished, "the flow does not come to its end"
        contents = {node: content(node, made) for node, made in built.sinks.items()}
    return Ran(contents, built.markers(), trail)


def goes_back(recipe: r.Recipe) -> bool:
    """Whether a flow may go back to a snapshot.

    Without event time results depend on the epoch in which a record comes: such a flow would read what came since in one epoch.
    Rows of a table that is updated stay until what is read again replaces them, which it does not where it looks in another table.
    """
    updated = any(isinstance(n, r.Totals) and n.emit == "update" for n in recipe.nodes)
    return all(s.timed for s in recipe.sources()) and not (updated and recipe.refreshed())


def steer(harness: Harness, course: Course, epoch: int, *, back: bool) -> list[Any]:
    """The commands of an epoch; a key that does not exist yet is not moved. `back`: whether the flow may go back."""
    out: list[Any] = harness.copy() if epoch % course.copy_every == 0 else []
    regions = harness.record.regions
    names = list(regions)
    there = harness.loadable()
    more = [("snapshot" if i == 0 else "load", -1) for i in (0, 1) if course.back and course.back[i] == epoch]
    for kind, which, *rest in (*course.steering.get(epoch, ()), *more):
        if kind == "snapshot":
            there.append(f"s{next(NUMBERS)}")
            out.append({"command": "snapshot", "name": there[-1]})
            continue
        if kind == "load":
            if back and there:
                out.append({"command": "load", "name": there[which % len(there)]})
            continue
        if not names:
            continue
        name = None if which is None else names[which % len(names)]
        if kind == "scale":
            out.append({"command": "scale", "region": name, "workers": rest[0]})
            continue
        state = regions[name]
        wanted = state.control.goal.workers if state.control.goal else state.control.workers
        keys = harness.keys(name)
        if keys and (rest[1] is None or rest[1] < wanted):
            out.append({"command": "move", "region": name, "keys": [keys[rest[0] % len(keys)]], "worker": rest[1]})
    return out


def _load(harness: Harness, which: int) -> list[Any]:
    """The command to go back to one of the snapshots that there are."""
    there = harness.loadable()
    return [{"command": "load", "name": there[which % len(there)]}] if there else []


def survive(harness: Harness, course: Course, commands: list[Any], advance_us: int = 1_000_000) -> None:
    """Run an epoch, starting again after each crash."""
    crashes = iter(course.crashes.values())
    try:
        harness.epoch(*commands, advance_us=advance_us)
    except Crash:
        while True:
            try:
                harness.restart(forget_local_state=next(crashes, False))
                harness.resume()
            except Crash:
                continue
            return
