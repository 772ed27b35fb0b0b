"""Random queries in nearly each of which there are quantifiers, gaps and conditions between events, over values at the edges of their types."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
from ceql_drawing import Case, bound_in

from penstock.patterns import algebra as s
from penstock.patterns.reference import Seen
from penstock.patterns.scopes import (
    MOST_COMPARED,
    MOST_RELATIONS,
    may_be_empty,
    relations_in,
    relations_of,
    steps_of,
    subformulas,
)

UTC = dt.UTC
WHOLE = [0, 1, 1, 2, -1]
EDGES = {
    "long": (pa.int64(), [*WHOLE, 2**63 - 1, -(2**63), 2**53, 2**53 + 1]),
    "int": (pa.int32(), [*WHOLE, 2**31 - 1, -(2**31)]),
    "double": (pa.float64(), [0.0, -0.0, 1.0, 1.5, float("nan"), float("inf"), float("-inf"), float(2**53), 5e-324, 0.1]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal(t) for t in ("0.00", "1.00", "1.50", "-1.00", "0.10", "99999999.99")]),
    "decimal(38,0)": (
        pa.decimal128(38, 0),
        [Decimal(t) for t in ("0", "1", "2", "9" * 38, "-" + "9" * 38, "9007199254740993")],
    ),
    "string": (pa.string(), ["", "a", "a", "A", "aa", "b", "ä", "\U0001f600", "￿"]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(y, 1, 1, tzinfo=UTC) for y in (1, 1970, 1970, 2024, 9999)]),
    "date": (pa.date32(), [dt.date(y, 1, 1) for y in (1, 1970, 1970, 2024, 9999)]),
    "boolean": (pa.bool_(), [True, False]),
}
NUMBERS = ("long", "int", "double", "decimal(10,2)", "decimal(38,0)")


def judged(seed: int, *, keyed: bool | None = None, whole: bool = False) -> Case:
    """A case. `keyed`: with PARTITION BY or not. `whole`: values are small whole numbers."""
    rng = random.Random(f"judged {seed}")
    small = whole or rng.random() < 0.4  # calculated with
    one, other = ("long", "long") if whole else (rng.choice([*NUMBERS, *EDGES]),) * 2
    if one in NUMBERS and not whole:
        other = rng.choice(NUMBERS)
    formula = _formula(rng, rng.choice([2, 2, 3]))
    while may_be_empty(formula):
        formula = s.Then(formula, s.Event(rng.choice("AB")), contiguous=rng.random() < 0.3)
    if rng.random() < 0.85:
        formula = _related(
            rng, formula, "" if one not in NUMBERS else "+-" if "decimal(38,0)" in (one, other) else "+-*", small=small
        )
    gaps = [s.Window("time", rng.choice([0, 1, 2, 3, 5])) for _ in range(2)]
    judges = any(list(relations_in(part)) for part in subformulas(formula))
    if rng.random() < 0.6 or not judges:
        formula = _with_gaps(rng, formula, gaps)
    strategy = rng.choice(["ALL", "ALL", "ALL", "NEXT", "LAST", "MAX", "ANY"])
    names = bound_in(formula)
    projection = rng.choice([s.Everything(), s.Everything(), s.CountAll()])
    if names and rng.random() < 0.3:
        projection = s.Chosen(tuple(s.Item(name) for name in rng.sample(names, rng.randint(1, len(names)))))
    keyed = rng.random() < 0.4 if keyed is None else keyed
    window = rng.choice(
        [None, s.Window("time", rng.randint(2, 12)), s.Window("events", rng.randint(1, 7)), s.Window("attribute", 4, "n")]
    )
    limit = None if isinstance(projection, s.CountAll) or rng.random() < 0.85 else rng.randint(1, 3)
    query = s.Query(strategy, projection, (), formula, (("k",),) if keyed else (), window, "NONE", limit)
    events = _events(
        rng,
        rng.randint(3, 8),
        *((EDGES[k][1] if not small else [v for v in EDGES[k][1] if _is_small(v)]) for k in (one, other)),
    )
    cuts = tuple(sorted(rng.sample(range(1, len(events) + 1), rng.randint(0, 3))))
    scope, whose = rng.choice(["end", "end", "interval"]), rng.choice(["global", "key"])
    return Case(query, events, cuts, scope, whose, (("v", EDGES[one][0]), ("w", EDGES[other][0])))


def _is_small(value: object) -> bool:
    return not isinstance(value, int | float | Decimal) or abs(value) < 10**6


def _formula(rng: random.Random, depth: int) -> s.Formula:
    if depth == 0:
        return s.Event(rng.choice("AAB")) if rng.random() < 0.9 else s.Not(rng.choice("AB"))
    one = lambda: _formula(rng, depth - 1)  # noqa: E731
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return s.Then(one(), one(), contiguous=rng.random() < 0.25)
        case 4:
            return s.Plus(one(), contiguous=rng.random() < 0.3)
        case 5:
            return s.Or(one(), one())
        case 6 | 7:
            return s.As(one(), rng.choice("xyz"))
        case _:
            inner = one()
            if steps_of(inner) > 4:
                return inner
            least = rng.choice([0, 0, 1, 2])
            most = rng.choice([None, max(1, least), least + 1, least + 2])
            return s.Times(inner, least, most, contiguous=rng.random() < 0.3)


def _related(rng: random.Random, formula: s.Formula, ops: str, *, small: bool) -> s.Formula:
    """The formula with conditions: behind it, and sometimes behind its parts."""
    if isinstance(formula, s.Then | s.Or) and rng.random() < 0.3:
        formula = replace(formula, left=_related(rng, formula.left, ops, small=small))
    names = bound_in(formula)
    if not names or (len(names) == 1 and rng.random() < 0.2):
        return formula
    condition: s.Filter = _relation(rng, names, ops, small=small)
    for _ in range(rng.choice([0, 0, 0, 1])):
        condition = rng.choice([s.AllOf, s.AllOf, s.AnyOf])(condition, _relation(rng, names, ops, small=small))
    made = s.Filtered(formula, condition)
    return made if relations_of(made) <= MOST_RELATIONS else formula


def _relation(rng: random.Random, names: list[str], ops: str, *, small: bool) -> s.Relation:
    while True:
        left, right = (_side(rng, names, ops, small=small) for _ in "lr")
        relation = s.Relation(rng.choice(["<", "<=", ">", ">=", "=", "!="]), left, right)
        compares = len(relation.variables) > 1 or any(value.previous for value in relation.values)
        if compares and len(relation.variables) <= MOST_COMPARED:
            return relation


def _side(rng: random.Random, names: list[str], ops: str, *, small: bool) -> s.Operand:
    value = s.Of(rng.choice(names), rng.choice("vw"), previous=rng.random() < 0.15)
    if not ops or not small or rng.random() < 0.5:
        return value
    match rng.randrange(5):
        case 0:
            return s.Minus(value)
        case 1:
            return s.Arithmetic(rng.choice("+-*"), value, s.Number(rng.choice(["0", "1", "2", "0.5", "1.1", "1e0"])))
        case 2:
            return s.Number(rng.choice(["0", "1", "0.5"]))
        case _:
            return s.Arithmetic(rng.choice(ops), value, s.Of(rng.choice(names), rng.choice("vw"), previous=rng.random() < 0.2))


def _with_gaps(rng: random.Random, formula: s.Formula, gaps: list[s.Window]) -> s.Formula:
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: _with_gaps(rng, getattr(formula, name), gaps) for name in names})
    if isinstance(formula, s.Plus | s.Times | s.Then) and rng.random() < 0.75:
        return replace(formula, gap=rng.choice(gaps))
    return formula


def _events(rng: random.Random, count: int, ones: list[object], others: list[object]) -> tuple[Seen, ...]:
    out, at, n = [], 0, 0
    for _ in range(count):
        at += rng.choice([1, 1, 1, 2, 3])
        n += rng.choice([0, 1, 1, 2])
        values = {
            "v": None if rng.random() < 0.1 else rng.choice(ones),
            "w": None if rng.random() < 0.1 else rng.choice(others),
            "t": "a",
            "n": n,
            "k": rng.choice([1, 1, 1, 2]),
            "j": 1,
        }
        out.append(Seen(frozenset(rng.choice(["A", "A", "B", "AB", "C"])), values, at))
    return tuple(out)
