"""Scopes: which names a query may use where, and walks over its formula."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.patterns import algebra as s

Variable = tuple[str, str | None]
MOST_TIMES = 100  # of a quantifier
MOST_STEPS = (
    150  # of a formula whose quantifiers are written out; with MAX or LAST the automaton has as many nodes as pairs of them
)
MOST_COMPARED = 4  # variables of a condition: every choice of one event for each is compared
MOST_RELATIONS = 16  # each makes two more kinds of marks, and every step of the automaton is kept for each kind
FEWER_STEPS = "repeat with + or {n,}, or count the events before, in a window or with stateful_map"


def complaints(query: s.Query) -> Iterator[tuple[object, str]]:
    """What is wrong with a query's names.

    A filter may name only what its formula binds. About anything else it would always be true, so it can only be a mistake.

    Returns:
        The word that is wrong, and a sentence.
    """
    first, *others = (part.type for part in subformulas(query.formula) if isinstance(part, s.Event | s.Not))
    types = {first, *others}
    if may_be_empty(query.formula):
        yield first, "the pattern matches no events at all, too; let one of its steps occur at least once, as with + or {1,3}."
    repeats = any(isinstance(part, s.Times) for part in subformulas(query.formula))
    if repeats and (steps := steps_of(query.formula)) > MOST_STEPS:
        yield (
            first,
            f"the pattern has {steps:,} steps with its quantifiers written out, of at most {MOST_STEPS:,}; {FEWER_STEPS}.",
        )
    for part in subformulas(query.formula):
        if isinstance(part, s.As) and part.name in types:
            yield part.name, f"{part.name!r} is an event type and an AS-name as well; choose another name."
        if isinstance(part, s.Event) and part.stream is not None and query.streams and part.stream not in query.streams:
            yield part.stream, f"stream {part.stream!r} is not in FROM, which names {', '.join(query.streams)}."
    chosen = query.projection.items if isinstance(query.projection, s.Chosen) else ()
    for n, item in enumerate(chosen):
        if (item.variable, item.stream) in [(other.variable, other.stream) for other in chosen[:n]]:
            yield item.stream or item.variable, f"{s.variable_text(item.variable, item.stream)} is selected twice."
        yield from _unbound(item, "selected", "the pattern", variables(query.formula))
    for part in subformulas(query.formula):
        if isinstance(part, s.Filtered):
            for f in bounds(part.filter):
                yield from _unbound(f, "filtered", "the formula before FILTER", variables(part.inner))
        elif isinstance(part, s.Not) and part.condition is not None:
            for f in bounds(part.condition):
                if isinstance(f, s.Of):
                    yield f.variable, f"the filter inside NOT({part.type} ...) is about one event; it cannot compare {f}."
                elif (f.variable, f.stream) != (part.type, None):
                    shown = s.variable_text(f.variable, f.stream)
                    yield f.variable, f"the filter inside NOT({part.type} ...) may use only {part.type}, not {shown}."
    yield from _relation_complaints(query)


def _relation_complaints(query: s.Query) -> Iterator[tuple[object, str]]:
    """What is wrong with conditions between events: where they stand, and what they cannot be combined with."""
    relations = [relation for part in subformulas(query.formula) for relation in relations_in(part)]
    gaps = [
        part.gap for part in subformulas(query.formula) if isinstance(part, s.Plus | s.Times | s.Then) and part.gap is not None
    ]
    if not relations and not gaps:
        return
    if gaps and query.strategy == "STRICT":
        yield (
            query.clauses.get("strategy", ""),
            "SELECT STRICT cannot be combined with a gap, [WITHIN …]; write : or :+ for what follows directly.",
        )
    for part in subformulas(query.formula):
        if isinstance(part, s.Plus) or (isinstance(part, s.Times) and part.most is None):
            for inner in (relation for sub in subformulas(part) for relation in relations_in(sub)):
                yield (
                    inner.op,
                    f"{inner} stands inside a repetition without end; put the filter behind the whole pattern, or repeat with {{n,m}}.",
                )
    if (copies := relations_of(query.formula)) > MOST_RELATIONS:
        yield (
            relations[0].op,
            f"the pattern has {copies:,} conditions between events with its quantifiers written out, of at most {MOST_RELATIONS}.",
        )
    if query.consume != "NONE":
        such = relations[0] if relations else s.gap_text(gaps[0])
        why = f"a condition between events, such as {such}, because such conditions are evaluated when matches are enumerated"
        way = "choose with NEXT, LAST, MAX or LIMIT, or leave out CONSUME BY."
        yield query.clauses.get("consume", ""), f"CONSUME BY cannot be combined with {why}; {way}"
    for relation in relations:
        if len(relation.variables) > MOST_COMPARED:
            yield (
                relation.op,
                f"{relation} compares {len(relation.variables)} variables, of at most {MOST_COMPARED}; join several conditions with AND.",
            )
    if query.strategy == "STRICT" and not isinstance(query.projection, s.Everything | s.CountAll):
        shown = {(i.variable, i.stream) for i in query.projection.items} if isinstance(query.projection, s.Chosen) else set()
        for value in (value for relation in relations for value in relation.values):
            if value.whose not in shown:
                name = s.variable_text(*value.whose)
                yield value.variable, f"SELECT STRICT with the condition on {value} needs {name} to be selected, too."


def relations_in(part: s.Formula) -> Iterator[s.Relation]:
    """The conditions between events of a filter, if the formula is one; not of its parts."""
    if isinstance(part, s.Filtered):
        yield from _relations(part.filter)


def _relations(condition: s.Filter) -> Iterator[s.Relation]:
    if isinstance(condition, s.Relation):
        yield condition
    elif isinstance(condition, s.AllOf | s.AnyOf):
        yield from _relations(condition.left)
        yield from _relations(condition.right)


def relations_of(formula: s.Formula) -> int:
    """The number of conditions between events in a formula whose quantifiers are written out."""
    own = len(list(relations_in(formula)))
    match formula:
        case s.Times(inner=inner, least=least, most=most):
            return relations_of(inner) * (max(least, 1) if most is None else most)
        case s.As(inner=inner) | s.Plus(inner=inner) | s.Filtered(inner=inner):
            return own + relations_of(inner)
        case s.Then(left=left, right=right) | s.Or(left=left, right=right):
            return relations_of(left) + relations_of(right)
        case _:
            return own


def _unbound(node: s.Item | s.Bound | s.Of, how: str, where: str, there: set[Variable]) -> Iterator[tuple[str, str]]:
    if (node.variable, node.stream) not in there:
        binds = ", ".join(sorted(s.variable_text(*variable) for variable in there)) or "nothing"
        shown = s.variable_text(node.variable, node.stream)
        yield node.stream or node.variable, f"{shown} is {how}, but {where} binds no such variable; it binds {binds}."


def subformulas(formula: s.Formula) -> Iterator[s.Formula]:
    """A formula and all its parts, outermost first."""
    yield formula
    match formula:
        case s.As(inner=inner) | s.Plus(inner=inner) | s.Times(inner=inner) | s.Filtered(inner=inner):
            yield from subformulas(inner)
        case s.Then(left=left, right=right) | s.Or(left=left, right=right):
            yield from subformulas(left)
            yield from subformulas(right)


def may_be_empty(formula: s.Formula) -> bool:
    """Whether a formula also matches no event at all."""
    match formula:
        case s.Event() | s.Not():
            return False
        case s.Times(inner=inner, least=least):
            return least == 0 or may_be_empty(inner)
        case s.As(inner=inner) | s.Plus(inner=inner) | s.Filtered(inner=inner):
            return may_be_empty(inner)
        case s.Then(left=left, right=right):
            return may_be_empty(left) and may_be_empty(right)
        case s.Or(left=left, right=right):
            return may_be_empty(left) or may_be_empty(right)


def steps_of(formula: s.Formula) -> int:
    """The number of events in a formula whose quantifiers are written out."""
    match formula:
        case s.Event() | s.Not():
            return 1
        case s.Times(inner=inner, least=least, most=most):
            return steps_of(inner) * (max(least, 1) if most is None else most)
        case s.As(inner=inner) | s.Plus(inner=inner) | s.Filtered(inner=inner):
            return steps_of(inner)
        case s.Then(left=left, right=right) | s.Or(left=left, right=right):
            return steps_of(left) + steps_of(right)


def variables(formula: s.Formula) -> set[Variable]:
    """Every variable that a formula binds: AS-names, types, and types of a named stream."""
    found: set[Variable] = set()
    for part in subformulas(formula):
        if isinstance(part, s.Event):
            found |= {(part.type, None), (part.type, part.stream)}
        elif isinstance(part, s.As):
            found.add((part.name, None))
    return found


def bounds(condition: s.Filter) -> Iterator[s.Bound | s.Of]:
    """A filter's conditions on single variables, and what others compare."""
    if isinstance(condition, s.Bound):
        yield condition
    elif isinstance(condition, s.Relation):
        yield from condition.values
    else:
        yield from bounds(condition.left)
        yield from bounds(condition.right)
