"""What a query means, slow and obvious: the oracle of the tests.

It follows the definition: the set of valuations of a formula by recursion over its parts, then window, projection, strategy,
consumption. No automaton; exponential, for streams of a dozen events.

A *valuation* is an interval and a set of (variable, position); that of no event at all is ``EMPTY``. A *match* is an interval and a set of positions. A match with
several valuations has the preferred one: at the first event at which they differ, the one that binds the event to fewer and
earlier output variables, compared as sorted lists.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from penstock.patterns import algebra as s
from penstock.patterns.automaton.build import label_of, outputs

Valuation = tuple[int, int, frozenset[tuple[str, int]]]
Key = tuple[Any, ...]
EMPTY: Valuation = (0, -1, frozenset())  # what an optional part that is left out reads; a query never matches it


@dataclass(frozen=True)
class Seen:
    """An event: its types, attributes, time in µs and stream; ``""`` if there is one unnamed stream."""

    types: frozenset[str]
    values: Mapping[str, Any]
    at: int = 0
    stream: str = ""


@dataclass(frozen=True)
class Match:
    """A match: positions of the first, the last and the bound events, and the output variables of each bound one."""

    start: int
    end: int
    data: tuple[int, ...]
    bound: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Answer:
    """``count`` of these matches."""

    matches: frozenset[Match]
    count: int


def evaluate(
    query: s.Query, events: Sequence[Seen], *, scope: str = "end", events_window: str = "global"
) -> dict[tuple[Key, int], list[Answer]]:
    """All matches of a query.

    Args:
        query: The query.
        events: The stream, in order.
        scope: ``"end"`` or ``"interval"``: which matches a strategy compares.
        events_window: ``"global"`` or ``"key"``: whose positions an EVENTS window counts.

    Returns:
        For each key and closing position with matches, the expected answers, one per group. The key is ``()`` without PARTITION
        BY. LIMIT bounds the sum over all groups.
    """
    streams: dict[Key, list[int]] = {}
    read = [p for p, event in enumerate(events) if not query.streams or event.stream in ("", *query.streams)]
    for position in read:
        event = events[position]
        key = tuple(
            next((event.values[a] for a in group if event.values.get(a) is not None), None) for group in query.partition_by
        )
        if None not in key:
            streams.setdefault(key, []).append(position)
    with localcontext() as exact:
        exact.prec = 200  # decimals of 38 digits are calculated exactly
        found = {key: _matches(query, events, own, own if events_window == "key" else read) for key, own in streams.items()}
    first = dict.fromkeys(streams, 0)
    out: dict[tuple[Key, int], list[Answer]] = {}
    for end in range(len(events)):
        closed = [key for key in streams if end in streams[key]]
        for key in closed:
            group = [m for m in found[key] if m.end == end and m.start >= first[key]]
            if query.strategy == "STRICT":
                places = {p: i for i, p in enumerate(streams[key])}
                group = [m for m in group if not m.data or places[m.data[-1]] - places[m.data[0]] + 1 == len(m.data)]
            groups = [group] if scope == "end" else [[m for m in group if m.start == b] for b in {m.start for m in group}]
            answers = [_chosen(query.strategy, g) for g in groups if g]
            if answers:
                out[key, end] = answers
                for other in streams if query.consume == "ANY" else [key] if query.consume == "PARTITION" else []:
                    first[other] = end + 1
    return out


def _chosen(strategy: str, group: list[Match]) -> Answer:
    if strategy == "ANY":
        return Answer(frozenset(group), 1)
    if strategy == "MAX":
        return _all_of([m for m in group if not any(set(m.data) < set(other.data) for other in group)])
    if strategy in {"NEXT", "LAST"}:
        return Answer(frozenset(m for m in group if not any(_wins(strategy, other, m) for other in group)), 1)
    return _all_of(group)


def _all_of(matches: list[Match]) -> Answer:
    return Answer(frozenset(matches), len(matches))


def _wins(strategy: str, one: Match, other: Match) -> bool:
    differing = set(one.data) ^ set(other.data)
    return bool(differing) and (min(differing) if strategy == "NEXT" else max(differing)) in one.data


def _matches(query: s.Query, events: Sequence[Seen], own: Sequence[int], counted: Sequence[int]) -> list[Match]:
    """The matches of one key inside the window, with their preferred valuations. `counted`: the events that an EVENTS window
    counts.
    """
    variables = outputs(query)
    best: dict[tuple[int, int, tuple[int, ...]], tuple[tuple[int, ...], ...]] = {}
    for start, end, bound in valuations(query.formula, [events[p] for p in own]):
        if not _inside(query.window, events, own[start], own[end], counted):
            continue
        data = tuple(sorted({p for variable, p in bound if _selects(query.projection, variable)}))
        ways = tuple(tuple(i for i, name in enumerate(variables) if (name, p) in bound) for p in data)
        match = (own[start], own[end], tuple(own[p] for p in data))
        best[match] = min(ways, best.get(match, ways))
    return [Match(*match, tuple(tuple(variables[i] for i in way) for way in ways)) for match, ways in best.items()]


def _inside(window: s.Window | None, events: Sequence[Seen], start: int, end: int, counted: Sequence[int]) -> bool:
    if window is None:
        return True
    first, last = events[start], events[end]
    if window.kind == "events":
        return counted.index(end) - counted.index(start) <= window.size
    if window.kind == "time":
        return last.at - first.at <= window.size
    name = window.attribute or ""
    return bool(_compared(last.values[name] - first.values[name], "<=", window.size))


def _selects(projection: s.Projection, variable: str) -> bool:
    if isinstance(projection, s.Chosen):
        return any(variable == label_of(item.variable, item.stream) for item in projection.items)
    return not isinstance(projection, s.Nothing)


# ----------------------------------------------------------------------------------------------------------------- formulas


def valuations(formula: s.Formula, events: Sequence[Seen]) -> set[Valuation]:
    """Every way to read a range of events as the formula."""
    match formula:
        case s.Event(type=name, stream=stream):
            names = {name, label_of(name, stream)}
            return {
                (i, i, frozenset((n, i) for n in names))
                for i, e in enumerate(events)
                if name in e.types and (stream is None or e.stream in ("", stream))
            }
        case s.Not(type=name, condition=condition):
            return {
                (i, i, frozenset())
                for i, e in enumerate(events)
                if not (name in e.types and (condition is None or passes(condition, e)))
            }
        case s.As(inner=inner, name=name):
            return {(a, b, bound | {(name, p) for _, p in bound}) for a, b, bound in valuations(inner, events)}
        case s.Plus(inner=inner, contiguous=contiguous, gap=gap):
            once = valuations(inner, events)
            found, more = set(once), set(once)
            while more:
                more = _joined(once, more, events, gap, contiguous=contiguous) - found
                found |= more
            return found
        case s.Times(inner=inner, least=least, most=most, contiguous=contiguous, gap=gap):
            once = valuations(inner, events)
            repeated, found = {EMPTY}, set()
            for n in itertools.count():
                if n >= least and repeated <= found:  # so are all that follow
                    break
                found |= repeated if n >= least else set()
                if n == most:
                    break
                repeated = _joined(once, repeated, events, gap, contiguous=contiguous)
            return found
        case s.Then(left=left, right=right, contiguous=contiguous, gap=gap):
            return _joined(valuations(left, events), valuations(right, events), events, gap, contiguous=contiguous)
        case s.Or(left=left, right=right):
            return valuations(left, events) | valuations(right, events)
        case s.Filtered(inner=inner, filter=condition):
            return _filtered(valuations(inner, events), condition, events)


def _joined(
    first: set[Valuation], second: set[Valuation], events: Sequence[Seen], gap: s.Window | None, *, contiguous: bool
) -> set[Valuation]:
    """One after the other, not longer than ``gap`` apart. Nothing before or after a valuation leaves it as it is, whatever the operator."""
    out: set[Valuation] = set()
    out |= second if EMPTY in first else set()
    out |= first if EMPTY in second else set()
    for a, b, bound in first - {EMPTY}:
        for c, d, more in second - {EMPTY}:
            near = gap is None or (c > b and events[c].at - events[b].at <= gap.size)
            if near and (c == b + 1 if contiguous else c > b):
                out.add((a, d, bound | more))
    return out


def _filtered(found: set[Valuation], condition: s.Filter, events: Sequence[Seen]) -> set[Valuation]:
    match condition:
        case s.AnyOf(left=left, right=right):
            return _filtered(found, left, events) | _filtered(found, right, events)
        case s.AllOf(left=left, right=right):
            return _filtered(_filtered(found, left, events), right, events)
        case s.Bound(variable=variable, predicate=predicate, stream=stream):
            name = label_of(variable, stream)
            return {v for v in found if all(holds(predicate, events[p]) for n, p in v[2] if n == name)}
        case s.Relation():
            return {v for v in found if _related(condition, v[2], events)}


def _related(relation: s.Relation, bound: frozenset[tuple[str, int]], events: Sequence[Seen]) -> bool:
    """Whether the relation is true of every choice of bound events: one of each variable, or two in turn if it has ``PREV``."""
    choices = []
    for whose in relation.variables:
        own = sorted(p for name, p in bound if name == label_of(*whose))
        by_two = any(value.previous for value in relation.values if value.whose == whose)
        choices.append([(whose, *pair) for pair in (itertools.pairwise(own) if by_two else ((p, p) for p in own))])
    for choice in itertools.product(*choices):
        chosen = {whose: (before, now) for whose, before, now in choice}
        values = {str(v): events[chosen[v.whose][not v.previous]].values.get(v.attribute) for v in relation.values}
        row = Seen(frozenset(), values)
        if _compared(_value(_flat(relation.left), row), relation.op, _value(_flat(relation.right), row)) is not True:
            return False
    return True


def _flat(operand: s.Operand) -> s.Operand:
    """A calculation over several events as one over an event that has all their values."""
    match operand:
        case s.Of():
            return s.Attribute(str(operand))
        case s.Minus(inner=inner):
            return s.Minus(_flat(inner))
        case s.Arithmetic(op=op, left=left, right=right):
            return s.Arithmetic(op, _flat(left), _flat(right))
        case _:
            return operand


# --------------------------------------------------------------------------------------------------- conditions on one event


def passes(condition: s.Filter, event: Seen) -> bool:
    """Whether one event passes a filter on it."""
    match condition:
        case s.AnyOf(left=left, right=right):
            return passes(left, event) or passes(right, event)
        case s.AllOf(left=left, right=right):
            return passes(left, event) and passes(right, event)
        case s.Bound(predicate=predicate):
            return holds(predicate, event)
        case s.Relation():
            raise AssertionError(condition)  # not about one event


def holds(predicate: s.Predicate, event: Seen) -> bool:
    """Whether a predicate is true; unknown is not."""
    return _truth(predicate, event) is True


def _truth(predicate: s.Predicate, event: Seen) -> bool | None:
    match predicate:
        case s.Compare(op=op, left=left, right=right):
            return _compared(_value(left, event), op, _value(right, event))
        case s.Like(attribute=name, pattern=pattern):
            text = event.values.get(name)
            return None if text is None else re.fullmatch(pattern, text, re.ASCII) is not None
        case s.In(attribute=name, values=values, negated=negated):
            value = event.values.get(name)
            return None if value is None else any(_compared(value, "=", _value(v, event)) for v in values) != negated
        case s.Between(attribute=name, low=low, high=high):
            value = event.values.get(name)
            ends = [_compared(value, op, _value(end, event)) for op, end in ((">=", low), ("<=", high)) if end is not None]
            return None if value is None else all(ends)
        case s.Negation(inner=inner):
            truth = _truth(inner, event)
            return None if truth is None else not truth
        case s.Both(left=left_side, right=right_side):
            truths = (_truth(left_side, event), _truth(right_side, event))
            return False if False in truths else None if None in truths else True
        case s.Either(left=left_side, right=right_side):
            truths = (_truth(left_side, event), _truth(right_side, event))
            return True if True in truths else None if None in truths else False


def _compared(a: Any, op: str, b: Any) -> bool | None:
    """As Spark compares: NaN equals itself and is greater than every other number."""
    if a is None or b is None:
        return None
    one, two = ((isinstance(x, float) and math.isnan(x), x) for x in _alike(a, b))
    if one[0] or two[0]:
        one, two = (one[0], 0), (two[0], 0)
    return bool({"<": one < two, "<=": one <= two, ">": one > two, ">=": one >= two, "=": one == two, "!=": one != two}[op])


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values of one type: a decimal beside a float becomes a float."""
    if isinstance(a, float) or isinstance(b, float):
        return float(a), float(b)
    return a, b


def _value(operand: s.Operand, event: Seen) -> Any:
    """An operand's value, exact as in Spark: ``0.1`` is a decimal, ``1e-1`` a float.

    Two differences: integers never overflow, and the quotient of two decimals has Python's digits.
    """
    match operand:
        case s.Number(text=text):
            return float(text) if "e" in text.lower() else Decimal(text) if "." in text else int(text)
        case s.Text(value=value):
            return value
        case s.Attribute(name=name):
            return event.values.get(name)
        case s.Of():
            raise AssertionError(operand)  # of another event
        case s.Minus(inner=inner):
            value = _value(inner, event)
            return None if value is None else -value
        case s.Arithmetic(op=op, left=left, right=right):
            a, b = _value(left, event), _value(right, event)
            if a is None or b is None or (b == 0 and op in "/%"):
                return None
            a, b = _alike(a, b)
            if op == "%":  # the sign of the dividend, as in SQL
                return abs(a) % abs(b) * (1 if a >= 0 else -1)
            return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[op]()
