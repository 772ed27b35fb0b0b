"""Hypothesis strategy: a change of a recipe, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import drawing
import oracle
import recipes as r
from changes import Changed, mapped_nodes
from drawing_joins import drawn_rows
from hypothesis import strategies as st
from own_aggregates import ORDERED_AGGREGATES

STANDARD = {"j", "k", "s", "v", "x"}


@dataclass
class Change:
    """A recipe of two versions, and what must come of it: ``"goes on"`` or ``"refused"``.

    `says`: by kind and name of some parts, what the start must say of them.
    """

    recipe: r.Recipe
    what: str
    must: str
    says: dict[tuple[str, str], str] = field(default_factory=dict)


def _rewired(recipe: r.Recipe, node: r.Node, changed: r.Node, *, instead: bool, only: Any = None) -> r.Recipe:
    """The recipe with a node put in another's place (`instead`) or behind it; `only`: which consumers get it."""
    known: dict[r.Node, r.Node] = {}
    nodes: list[r.Node] = []

    def seen(before: r.Node, consumer: r.Node) -> r.Node:
        if before is node and not instead:
            fits = only(consumer) if only else not isinstance(consumer, r.Late | r.Ahead)
            return changed if fits else known[before]
        return known[before]

    for each in recipe.nodes:
        if each is node and instead:
            assert isinstance(changed, Changed)
            params = [v and mapped_nodes(v, known) for v in (changed.before, changed.after)]
            known[each] = Changed(known[each.of], changed.kind, *params)
        elif isinstance(each, r.Source):
            known[each] = each
        elif isinstance(each, r.Union):
            known[each] = replace(each, of=tuple(seen(n, each) for n in each.of))
        else:
            links = {n: seen(getattr(each, n), each) for n in ("of", "other") if isinstance(getattr(each, n, None), r.Node)}
            known[each] = replace(each, **links)
        nodes.append(known[each])
        if each is node and not instead:
            changed = replace(changed, of=known[each])  # type: ignore[call-arg]
            nodes.append(changed)
    return r.Recipe(nodes, [known[s] for s in recipe.sinks])


def params_of(node: Any) -> dict[str, Any]:
    """A node's own attributes, without what is before it."""
    return {n: getattr(node, n) for n in node.__dataclass_fields__ if n != "of"}


@st.composite
def changes(draw: Any, recipe: r.Recipe) -> Change | None:
    """Any change of a recipe; None: there is none that fits it."""
    ways = [_insert_stateless, _change_stateless, change_function, _insert_distinct, _drop_distinct, _other_aggregates]
    ways += [change_process, change_options]
    for way in draw(st.permutations([*ways, mean_something_else])):
        found: Change | None = way(draw, recipe)
        if found is not None:
            return found
    return None


def _some(draw: Any, nodes: list[Any]) -> Any:
    return draw(st.sampled_from(nodes)) if nodes else None


def _insert_stateless(draw: Any, recipe: r.Recipe) -> Change | None:
    read = {id(n) for node in recipe.nodes for n in _befores(node) if not isinstance(node, r.Late | r.Ahead)}
    plain = [n for n in recipe.nodes if id(n) in read and isinstance(n, r.Source | r.Where | r.Columns | r.Standard | r.Local)]
    node = _some(draw, plain)
    if node is None:
        return None
    if isinstance(node, r.Source) and draw(st.booleans()):
        new = draw(st.sampled_from([("w", "coalesce(v, 0) + coalesce(j, 0)"), ("s", "coalesce(k, 'none')")]))
        changed = Changed(node, r.Columns, None, {"new": new})
    else:
        changed = Changed(node, r.Where, None, {"condition": draw(st.sampled_from([*r.CONDITIONS]))})
    what = f"{changed.after} behind {type(node).__name__}"
    return Change(_rewired(recipe, node, changed, instead=False), what, "goes on")


def _befores(node: Any) -> Iterator[r.Node]:
    for before in node.of if isinstance(node, r.Union) else (getattr(node, "of", None), getattr(node, "other", None)):
        if before is not None:
            yield before


def upstream(sinks: list[r.Node]) -> list[r.Node]:
    """Sinks and all that their rows come through."""
    found = list(sinks)
    for node in found:
        found += [before for before in _befores(node) if not any(before is n for n in found)]
    return found


def _change_stateless(draw: Any, recipe: r.Recipe) -> Change | None:
    node = _some(draw, [n for n in recipe.nodes if isinstance(n, r.Where | r.Lookup)])
    if node is None:
        return None
    if isinstance(node, r.Lookup):
        rows = drawn_rows(draw, node.on)
        static = {**params_of(node), "again": None}  # other rows of a refreshed table are no change of the flow
        other = Changed(node.of, r.Lookup, static, {**static, "rows": rows})
        return Change(_rewired(recipe, node, other, instead=True), f"the table of {node.on} becomes {rows}", "goes on")
    after = draw(st.one_of(st.none(), st.sampled_from([*r.CONDITIONS])))
    changed = Changed(node.of, r.Where, params_of(node), None if after is None else {"condition": after})
    if node in recipe.sinks:
        return None  # what has a sink stays
    return Change(_rewired(recipe, node, changed, instead=True), f"{node.condition} becomes {after}", "goes on")


def change_function(draw: Any, recipe: r.Recipe, among: Sequence[str] = ()) -> Change | None:
    """Another function; `among`: one of these."""
    node = _some(draw, [n for n in recipe.nodes if isinstance(n, r.Map)])
    if node is None:
        return None
    timed = r.TIMED_FUNCTIONS if node.window is None else ()
    fn = draw(st.sampled_from([f for f in among or [*r.FUNCTIONS, *timed] if f != node.fn]))
    changed = Changed(node.of, r.Map, params_of(node), {**params_of(node), "fn": fn})
    return Change(_rewired(recipe, node, changed, instead=True), f"{node.fn} becomes {fn}", "goes on")


def change_process(draw: Any, recipe: r.Recipe) -> Change | None:
    """Another operator of the same kind, with timers or without, or a migration of its state."""
    nodes = [
        n for n in recipe.nodes if isinstance(n, r.Process) and (n.operator == "previous" or n.operator in r.TIMED_OPERATORS)
    ]
    node = _some(draw, nodes)
    if node is None:
        return None
    before, after = params_of(node), params_of(node)
    after["migrated"] = draw(st.booleans())
    others: list[str] = ["previous"]
    if node.operator.endswith("deadlines"):
        others = ["deadlines", "hasty deadlines"]
    elif node.operator in r.TIMED_FUNCTIONS:
        others = [*r.TIMED_FUNCTIONS, *r.PLAIN_OPERATORS]
        before["operator"] = draw(st.sampled_from(others))
    after["operator"] = draw(st.sampled_from(others))
    changed = Changed(node.of, r.Process, before, after)
    return Change(_rewired(recipe, node, changed, instead=True), f"{before} becomes {after}", "goes on")


OPTIONS = {
    "ahead_us": [None, 0, r.SECOND, 3 * r.SECOND, 9 * r.SECOND],
    "close_after_us": [None, r.SECOND, 5 * r.SECOND],
    "lateness_us": [0, 2 * r.SECOND, 10 * r.SECOND],
    "idle_after": [None, "2 seconds", "1 hour"],
}


def change_options(draw: Any, recipe: r.Recipe, *, stops_closing: bool = False) -> Change | None:
    """Options of a source that come, change or go; `stops_closing`: it goes on by the clock in the first version and not in the second."""
    source = _some(draw, [n for n in recipe.sources() if n.timed])
    if source is None:
        return None
    names = [n for n in OPTIONS if n != "idle_after" or len(recipe.sources()) == 1]  # an idle one goes by the others
    before, after = ({n: draw(st.sampled_from(OPTIONS[n])) for n in names} for _ in range(2))
    same = draw(st.sets(st.sampled_from(names), max_size=3))
    after |= {n: before[n] for n in same}
    if stops_closing:
        before["close_after_us"], after["close_after_us"] = r.SECOND, None
    changed = replace(source, **before, then=replace(source, **after))
    made = _with_source(recipe, source, changed)
    differ = any(before[n] != after[n] for n in names)
    return Change(made, f"{before} becomes {after}", "goes on", {("source", source.name): "loads" if differ else "unchanged"})


def _with_source(recipe: r.Recipe, source: r.Source, changed: r.Source) -> r.Recipe:
    """The recipe with another source in the place of one, whose records ahead have a sink."""
    known: dict[r.Node, r.Node] = {source: changed}
    nodes: list[r.Node] = []
    for node in recipe.nodes:
        if isinstance(node, r.Ahead) and node.of is source:
            continue
        if node is not source and not isinstance(node, r.Source):
            links = {n: known[getattr(node, n)] for n in ("of", "other") if isinstance(getattr(node, n, None), r.Node)}
            if isinstance(node, r.Union):
                links = {"of": tuple(known[n] for n in node.of)}
            known[node] = replace(node, **links)
        nodes.append(known.setdefault(node, node))
    ahead = r.Ahead(changed)
    tied = [known[n] for n in recipe.tied if n in known]
    return r.Recipe([*nodes, ahead], [*(known[s] for s in recipe.sinks if s in known), ahead], tied)


def _insert_distinct(draw: Any, recipe: r.Recipe) -> Change | None:
    readers = [n for n in recipe.nodes if isinstance(n, r.Map) or (isinstance(n, r.Process) and n.operator == "previous")]
    reader = _some(draw, readers)
    if reader is None or not isinstance(reader.of, r.KeyBy):
        return None
    about = {
        "columns": draw(st.sampled_from([(), ("v",), ("j", "v")])),
        "within_us": draw(st.sampled_from([None, 3 * r.SECOND])),
    }
    changed = Changed(reader.of, r.Distinct, None, about)
    made = _rewired(recipe, reader.of, changed, instead=False, only=lambda n: n is reader)
    return Change(made, f"deduplicate {about} before {type(reader).__name__}", "goes on")


def _drop_distinct(draw: Any, recipe: r.Recipe) -> Change | None:
    node = _some(draw, [n for n in recipe.nodes if isinstance(n, r.Distinct) and n not in recipe.sinks])
    if node is None:
        return None
    if any(isinstance(n, r.Totals | r.Process | r.Join) and node in _befores(n) for n in recipe.nodes):
        return None  # they would read another input of the region, whose rows came before
    changed = Changed(node.of, r.Distinct, params_of(node), None)
    first = isinstance(node.of, r.KeyBy)
    behind = [n for n in recipe.nodes if first and isinstance(n, r.STATELESS) and any(node is b for b in _befores(n))]
    given_out = upstream(recipe.sinks)
    if any(not any(n is other for other in given_out) for n in (node, *behind)):
        return None  # whether it is a part of the flow depends on what else there is
    # what follows the region comes to stand before it
    return Change(_rewired(recipe, node, changed, instead=True), "deduplicate goes", "refused" if behind else "goes on")


def _other_aggregates(draw: Any, recipe: r.Recipe) -> Change | None:
    def fits(node: Any) -> bool:
        users = {"concat", "fold"} & {kind for _, kind, _ in getattr(node, "aggregates", ())}
        return isinstance(node, r.Totals) and node.window is not None and node.emit == "final" and not users

    node = _some(draw, [n for n in recipe.nodes if fits(n)])
    if node is None or any(isinstance(n, r.Union | r.Join) and node in _befores(n) for n in recipe.nodes):
        return None
    kept = tuple(a for a in node.aggregates if a[0] in STANDARD)
    kinds = [
        ("count", None),
        ("sum", "v"),
        ("max", "s"),
        ("first", "v"),
        ("collect", "v"),
        ("mean", "v"),
        ("count_distinct", "s"),
    ]
    if any(node.of is n for n in recipe.tied):
        kinds = [k for k in kinds if k[0] not in ORDERED_AGGREGATES]
    extra = ("more", *draw(st.sampled_from(kinds)))
    after = draw(st.sampled_from([kept, (*node.aggregates, extra), (extra, *kept)]))
    changed = Changed(node.of, r.Totals, params_of(node), {**params_of(node), "aggregates": after})
    return Change(_rewired(recipe, node, changed, instead=True), f"aggregates become {after}", "goes on")


def change_ttl(draw: Any, recipe: r.Recipe, node: Any) -> Change:
    """A time to live that comes, changes or goes."""
    ttl = draw(st.sampled_from([t for t in (None, r.SECOND, 3 * r.SECOND) if t != node.ttl_us]))
    changed = Changed(node.of, type(node), params_of(node), {**params_of(node), "ttl_us": ttl})
    return Change(
        _rewired(recipe, node, changed, instead=True),
        f"the time to live of {node} becomes {ttl}",
        "refused",
        {("region", oracle.region_of(node).name): "must be recomputed"},
    )


def lives(node: r.Node) -> bool:
    """Whether a step's state may have a time to live."""
    if isinstance(node, r.Process):
        return node.operator == "previous" or node.operator in r.TIMED_OPERATORS
    return isinstance(node, r.Map) and node.window is None


def mean_something_else(draw: Any, recipe: r.Recipe) -> Change | None:
    node = _some(draw, [n for n in recipe.nodes if isinstance(n, r.Map | r.Totals | r.Distinct | r.Join) or lives(n)])
    if node is None:
        return None
    if isinstance(node, r.Process) or (isinstance(node, r.Map) and lives(node) and draw(st.booleans())):
        return change_ttl(draw, recipe, node)
    about = params_of(node)
    if isinstance(node, r.Map):
        about["compact"] = not node.compact
    elif isinstance(node, r.Distinct):
        about["columns"] = draw(st.sampled_from([c for c in [(), ("v",), ("j", "v"), ("j",)] if c != node.columns]))
    elif isinstance(node, r.Join):
        about["within_us"] = (node.within_us or 0) + r.SECOND
    elif node.window is not None and draw(st.booleans()):
        same = [w for w in drawing.WINDOWS if w is not node.window and not (node.emit == "update" and w.kind == "session")]
        about["window"] = draw(st.sampled_from(same))
    else:
        name, kind, column = draw(st.sampled_from(node.aggregates))
        others = [(k, c) for k, c in drawing.REST[name] if (k, c) != (kind, column) and "concat" not in (k, kind)]
        others = [(k, c) for k, c in others if ("fold" in (k, kind)) == (k == kind)]  # the same rows wait
        other = _some(draw, others)
        if other is None:
            return None
        about["aggregates"] = tuple((n, *other) if n == name else (n, k, c) for n, k, c in node.aggregates)
    changed = Changed(node.of, type(node), params_of(node), about)
    return Change(_rewired(recipe, node, changed, instead=True), f"{type(node).__name__} {about}", "refused")
