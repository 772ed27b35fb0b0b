"""Scopes: which names a query may use where, and walks over its formula."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.patterns import algebra as s

Variable = tuple[str, str | None]
MOST_TIMES = 100  # of a quantifier
MOST_STEPS = (
    150  # of a formula whose quantifiers are written out; with MAX or LAST the automaton has as many nodes as pairs of them
)
FEWER_STEPS = "repeat with + or {n,}, or count the events before, in a window or with stateful_map"


def complaints(query: s.Query) -> Iterator[tuple[str, str]]:
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
                if (f.variable, f.stream) != (part.type, None):
                    shown = s.variable_text(f.variable, f.stream)
                    yield f.variable, f"the filter inside NOT({part.type} ...) may use only {part.type}, not {shown}."


def _unbound(node: s.Item | s.Bound, how: str, where: str, there: set[Variable]) -> Iterator[tuple[str, str]]:
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


def bounds(condition: s.Filter) -> Iterator[s.Bound]:
    """A filter's conditions on single variables."""
    if isinstance(condition, s.Bound):
        yield condition
    else:
        yield from bounds(condition.left)
        yield from bounds(condition.right)
