"""More for a drawn case: events that its formula reads, streams, LIMIT, COUNT(*), and lists of attributes."""

from __future__ import annotations

import random
from dataclasses import replace

from ceql_drawing import TYPES, Case

from penstock.patterns import algebra as s
from penstock.patterns.scopes import subformulas, variables

STREAMS = "STU"
SHOWN = ("p", "at", "t", "v", "w", "n")  # what a list of attributes may name; the first two tell which event it is


def enriched(case: Case, seed: int, *, streams: bool = True) -> Case:
    """The case with further clauses and, often, events strewn into its stream that its formula reads one after the other."""
    rng = random.Random(-1 - seed)
    if rng.random() < 0.85:
        case = _strewn(rng, case)
    if streams and rng.random() < 0.2:
        case = _of_streams(rng, case)
    return replace(case, query=_with_clauses(rng, case.query))


def _strewn(rng: random.Random, case: Case) -> Case:
    word, events = _word(rng, case.query.formula), list(case.events)
    if len(word) > len(events):
        return case
    for place, event in enumerate(events):
        if rng.random() < 0.4:  # so that several keys find something, and are open at a time
            events[place] = replace(event, values={**event.values, "k": 2})
    first = rng.randint(0, len(events) - len(word))
    beside = range(first, first + len(word))
    for place, kind in zip(rng.choice([beside, sorted(rng.sample(range(len(events)), len(word)))]), word, strict=True):
        values = events[place].values if rng.random() < 0.2 else {**events[place].values, "k": 1, "j": 1}
        events[place] = replace(events[place], types=frozenset(kind), values=values)
    return replace(case, events=tuple(events))


def _word(rng: random.Random, formula: s.Formula) -> str:
    """Types of events that the formula may read, one after the other."""
    match formula:
        case s.Event(type=kind):
            return kind
        case s.Not(type=kind):
            return rng.choice(TYPES.replace(kind, ""))
        case s.Then(left=left, right=right):
            return _word(rng, left) + _word(rng, right)
        case s.Or(left=left, right=right):
            return _word(rng, rng.choice([left, right]))
        case s.Plus(inner=inner):
            return "".join(_word(rng, inner) for _ in range(rng.randint(1, 2)))
        case s.Times(inner=inner, least=least, most=most):
            times = rng.randint(least, least + 1 if most is None else most)
            return "".join(_word(rng, inner) for _ in range(times))
        case s.As(inner=inner) | s.Filtered(inner=inner):
            return _word(rng, inner)


def _of_streams(rng: random.Random, case: Case) -> Case:
    """Events from several streams; the query names them before some types, and often reads only those after FROM."""
    query, formula = case.query, qualified(case.query.formula, rng)
    named = {part.stream for part in subformulas(formula) if isinstance(part, s.Event)}
    read = tuple(stream for stream in STREAMS if stream in named or rng.random() < 0.4) if rng.random() < 0.7 else ()
    if isinstance(query.projection, s.Chosen):
        items = tuple(spoken_of(item, variables(formula), rng) for item in query.projection.items)
        query = replace(query, projection=s.Chosen(items))
    events = tuple(replace(event, stream=rng.choice(STREAMS)) for event in case.events)
    return replace(case, query=replace(query, formula=formula, streams=read), events=events)


def _with_clauses(rng: random.Random, query: s.Query) -> s.Query:
    if isinstance(query.projection, s.Chosen) and rng.random() < 0.5:
        items = tuple(replace(item, attributes=_attributes(rng)) for item in query.projection.items)
        query = replace(query, projection=s.Chosen(items))
    match rng.randrange(14):
        case 0:
            return replace(query, projection=s.CountAll())
        case 1:  # and often a strategy that leaves many matches
            return replace(query, limit=rng.randint(1, 3), strategy=rng.choice(["ALL", query.strategy]))
    return query


def _attributes(rng: random.Random) -> tuple[str, ...]:
    if rng.random() < 0.2:
        return ()
    names = {rng.choice(SHOWN[:2]), *rng.sample(SHOWN, rng.randint(0, 3))}
    return tuple(rng.sample(sorted(names), len(names)))


def qualified(formula, rng):
    """The formula with streams before some of its types, also in its filters."""
    if isinstance(formula, s.Event):
        return s.Event(formula.type, rng.choice([None, None, *STREAMS]))
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: qualified(getattr(formula, name), rng) for name in names})
    if isinstance(formula, s.Filtered):
        return replace(formula, filter=spoken_of(formula.filter, variables(formula.inner), rng))
    return formula


def spoken_of(condition, bound, rng):
    """The filter or item with a stream before its type, where the formula has it so."""
    if isinstance(condition, s.Bound | s.Item | s.Of):
        return replace(condition, stream=rng.choice(sorted(streams_of(condition.variable, bound), key=str)))
    if isinstance(condition, s.Minus):
        return replace(condition, inner=spoken_of(condition.inner, bound, rng))
    if isinstance(condition, s.Number):
        return condition
    return replace(condition, left=spoken_of(condition.left, bound, rng), right=spoken_of(condition.right, bound, rng))


def streams_of(variable, bound):
    return {stream for name, stream in bound if name == variable}
