"""Random queries and small random streams, from a seed; plain `random`, because tens of thousands are wanted in a minute."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from penstock.patterns import algebra as s
from penstock.patterns.reference import Seen
from penstock.patterns.scopes import MOST_RELATIONS, may_be_empty, relations_in, relations_of, steps_of, subformulas

TYPES, NAMES = "ABC", "xyz"


@dataclass(frozen=True)
class Case:
    """One thing to try: a query, a stream, where to cut it, how to read the query, and columns that are no whole numbers."""

    query: s.Query
    events: tuple[Seen, ...]
    cuts: tuple[int, ...]
    scope: str
    events_window: str
    kinds: tuple[tuple[str, Any], ...] = ()


def draw(seed: int, *, keyed: bool | None = None, needs_global_order: bool = True, judged: bool = True) -> Case:
    """A case. `keyed`: with PARTITION BY or not. `needs_global_order`: CONSUME BY ANY with keys may come. `judged`: so may conditions
    between events, and gaps.
    """
    rng = random.Random(seed)
    formula = quantified(_formula(rng, rng.choice([1, 2, 2, 2, 2, 3, 3, 3])), random.Random(f"quantifiers {seed}"))
    keyed = rng.random() < 0.4 if keyed is None else keyed
    partition = rng.choice([(("k",),), (("k", "j"),), (("k",), ("j",))]) if keyed else ()
    consume = rng.choice(["NONE", "NONE", "NONE", "PARTITION", "ANY" if needs_global_order or not keyed else "PARTITION"])
    query = s.Query(
        rng.choice(["ALL", "ALL", "ALL", "NEXT", "LAST", "MAX", "STRICT", "ANY"]),
        _projection(rng, formula),
        (),
        formula,
        partition,
        rng.choice(
            [
                None,
                s.Window("events", rng.randint(0, 8)),
                s.Window("time", rng.randint(0, 14)),
                s.Window("attribute", rng.choice([0, 2, Decimal("1.5"), 4, 6]), "n"),
            ]
        ),
        consume,
    )
    if judged:
        query = with_gaps(related(query, random.Random(f"relations {seed}")), random.Random(f"gaps {seed}"))
    events = _events(rng, rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10]))
    cuts = tuple(sorted(rng.sample(range(1, len(events) + 1), rng.randint(0, min(3, len(events))))))
    return Case(query, events, cuts, rng.choice(["end", "end", "interval"]), rng.choice(["global", "key"]))


def _formula(rng: random.Random, depth: int) -> s.Formula:
    if depth == 0 or (depth == 1 and rng.random() < 0.3):
        return s.Event(rng.choice(TYPES))
    one = lambda: _formula(rng, depth - 1)  # noqa: E731
    match rng.randrange(15):
        case 0 | 1 | 2 | 3 | 4 | 14:
            return s.Then(one(), one(), contiguous=False)
        case 5:
            return s.Then(one(), one(), contiguous=True)
        case 6 | 7:
            return s.Plus(one(), contiguous=False)
        case 8:
            return s.Plus(one(), contiguous=True)
        case 9:
            return s.Or(one(), one())
        case 10 | 11:
            return s.As(one(), rng.choice(NAMES))
        case 12 if rng.random() < 0.6:
            kind = rng.choice(TYPES)
            return s.Not(kind, rng.choice([None, s.Bound(kind, _predicate(rng, 1))]))
        case _:
            inner = one()
            names = bound_in(inner)
            return s.Filtered(inner, _filter(rng, 1, names)) if names else inner


def quantified(formula: s.Formula, rng: random.Random) -> s.Formula:
    """The formula with quantifiers at some of its parts, in every third or so."""
    if rng.random() < 0.7:
        return formula
    formula = _quantified(formula, rng)
    return s.Then(formula, s.Event(rng.choice(TYPES)), rng.random() < 0.5) if may_be_empty(formula) else formula


def _quantified(formula: s.Formula, rng: random.Random) -> s.Formula:
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: _quantified(getattr(formula, name), rng) for name in names})
    if steps_of(formula) > 8 or rng.random() < 0.6:
        return formula
    if isinstance(formula, s.Plus):
        formula = formula.inner
    least = rng.choice([0, 0, 1, 1, 2, 2, 3])
    most = rng.choice([None, max(1, least), least + 1, least + 1, least + 2])
    return s.Times(formula, least, most, rng.random() < 0.3)


def related(query: s.Query, rng: random.Random) -> s.Query:
    """The query with conditions between events somewhere in its formula, in every tenth or so."""
    if rng.random() < 0.88:
        return query
    formula = _related(query.formula, rng)
    if not any(isinstance(part, s.Filtered) and list(relations_in(part)) for part in subformulas(formula)):
        return query
    if relations_of(formula) > MOST_RELATIONS or may_be_empty(formula):
        return query
    strict = query.strategy == "STRICT" and not isinstance(query.projection, s.Everything)
    return replace(query, formula=formula, consume="NONE", strategy="ALL" if strict else query.strategy)


def with_gaps(query: s.Query, rng: random.Random) -> s.Query:
    """The query with longest gaps between neighbours, in every tenth or so."""
    if rng.random() < 0.92 or query.strategy == "STRICT":
        return query
    formula = _with_gaps(query.formula, rng, [s.Window("time", rng.randint(0, 9)) for _ in range(2)])
    return query if formula == query.formula else replace(query, formula=formula, consume="NONE")


def _with_gaps(formula: s.Formula, rng: random.Random, gaps: list[s.Window]) -> s.Formula:
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: _with_gaps(getattr(formula, name), rng, gaps) for name in names})
    if isinstance(formula, s.Plus | s.Times | s.Then) and rng.random() < 0.6:
        return replace(formula, gap=rng.choice(gaps))
    return formula


def _related(formula: s.Formula, rng: random.Random) -> s.Formula:
    if isinstance(formula, s.Plus) or (isinstance(formula, s.Times) and formula.most is None):
        inner = formula
    else:
        names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
        inner = replace(formula, **{name: _related(getattr(formula, name), rng) for name in names if rng.random() < 0.6})
    names = bound_in(inner)
    if len(names) < 2 or rng.random() < 0.4:
        return inner
    condition: s.Filter = _relation(rng, names)
    if rng.random() < 0.4:
        other = rng.choice([_relation(rng, names), s.Bound(rng.choice(names), _predicate(rng, 0))])
        condition = rng.choice([s.AllOf, s.AnyOf])(condition, other)
    return s.Filtered(inner, condition)


def _relation(rng: random.Random, names: list[str]) -> s.Relation:
    one, other = rng.sample(names, 2)
    if rng.random() < 0.15:
        return s.Relation(rng.choice(["=", "!=", "<"]), s.Of(one, "t"), s.Of(other, "t"))
    left: s.Operand = s.Of(one, rng.choice("vw"))
    right: s.Operand = s.Of(other, rng.choice("vwn"))
    if rng.random() < 0.3:
        right = s.Arithmetic(rng.choice("+-*"), right, s.Number(rng.choice(["0", "1", "2", "0.5", "1e0"])))
    if rng.random() < 0.25:
        right = s.Of(one, rng.choice("vw"), previous=True)
    if rng.random() < 0.25:
        left = rng.choice([s.Arithmetic(rng.choice("+-*"), left, s.Of(rng.choice(names), rng.choice("vw"))), s.Minus(left)])
    return s.Relation(rng.choice(["<", "<=", ">", ">=", "=", "!="]), left, right)


def bound_in(formula: s.Formula) -> list[str]:
    names = {p.type for p in subformulas(formula) if isinstance(p, s.Event)}
    return sorted(names | {p.name for p in subformulas(formula) if isinstance(p, s.As)})


def _filter(rng: random.Random, depth: int, names: list[str]) -> s.Filter:
    if depth == 0 or rng.random() < 0.5:
        return s.Bound(rng.choice(names), _predicate(rng, 1))
    return rng.choice([s.AllOf, s.AnyOf])(_filter(rng, depth - 1, names), _filter(rng, depth - 1, names))


def _predicate(rng: random.Random, depth: int) -> s.Predicate:
    number = s.Number(str(rng.randint(0, 2)))
    match rng.randrange(8 if depth else 5):
        case 0 | 1:
            return s.Compare(rng.choice(["<", "<=", ">", ">=", "=", "!="]), s.Attribute(rng.choice("vw")), number)
        case 2:
            return s.Compare(">", s.Arithmetic(rng.choice("+-*/%"), s.Attribute("v"), s.Attribute("w")), s.Minus(number))
        case 3:
            return s.In("v", (number, s.Number("1")), rng.random() < 0.5)
        case 4:
            return rng.choice(
                [s.Between("v", s.Number("1"), None), s.Like("t", "a.?"), s.Compare("=", s.Attribute("t"), s.Text("a"))]
            )
        case 5:
            return s.Negation(_predicate(rng, 0))
        case 6:
            return s.Both(_predicate(rng, 0), _predicate(rng, 0))
        case _:
            return s.Either(_predicate(rng, 0), _predicate(rng, 0))


def _projection(rng: random.Random, formula: s.Formula) -> s.Projection:
    names = bound_in(formula)
    if not names or rng.random() < 0.65:
        return s.Everything()
    if rng.random() < 0.1:
        return s.Nothing()
    return s.Chosen(tuple(s.Item(name) for name in rng.sample(names, rng.randint(1, len(names)))))


def _events(rng: random.Random, count: int) -> tuple[Seen, ...]:
    out, at, n = [], 0, 0
    for _ in range(count):
        at += rng.choice([1, 1, 2, 3])
        n += rng.choice([0, 0, 1, 1, 2])
        kinds = rng.choice(["A", "B", "C", "A", "B", "AB", "BC", "AC", "ABC", "ABC", ""])
        values = {
            "v": rng.choice([None, 0, 1, 1, 2, 2]),
            "w": rng.choice([None, 0, 0, 1, 1, 2]),
            "t": rng.choice([None, "a", "a", "ab", "b"]),
            "n": n,
            "k": rng.choice([None, 1, 1, 1, 1, 1, 1, 2]),
            "j": rng.choice([None, 1, 1, 1, 1, 1, 2]),
        }
        out.append(Seen(frozenset(kinds), values, at))
    return tuple(out)
