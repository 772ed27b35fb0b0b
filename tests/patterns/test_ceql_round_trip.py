"""A tree printed and read again is the same tree."""

from __future__ import annotations

from decimal import Decimal

from ceql_drawing import draw
from hypothesis import given
from hypothesis import strategies as st

from penstock.patterns import algebra as s
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.scopes import MOST_COMPARED, bounds, may_be_empty, subformulas

PLAIN = st.sampled_from(["v", "w_1", "`", "a b", "select", "Or", "é", "1st", "IN", "none", "x.y", "-- c"])
TYPES = st.sampled_from(["A", "B", "NOT", "new type", "Events"])
NAMES = st.sampled_from(["x", "y", "as", "n'"])
STREAMS = st.one_of(st.none(), st.sampled_from(["S", "from"]))
DIGITS = st.sampled_from(["0", "1", "20", "0.5", "1e3", "12.25e-2"])
NUMBERS = st.builds(s.Number, DIGITS)
SIGNED = st.builds(lambda sign, digits: s.Number(sign + digits), st.sampled_from(["", "-"]), DIGITS)
TEXTS = st.text(st.sampled_from("a'\"\\\n\t%é`- "), max_size=6)

SUMS = st.recursive(
    st.one_of(NUMBERS, st.builds(s.Attribute, PLAIN)),
    lambda inner: st.one_of(st.builds(s.Minus, inner), st.builds(s.Arithmetic, st.sampled_from("+-*/%"), inner, inner)),
    max_leaves=5,
)
OPERANDS = st.one_of(SUMS, st.builds(s.Text, TEXTS))
PREDICATES = st.recursive(
    st.one_of(
        st.builds(s.Compare, st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), SUMS, SUMS),
        st.builds(s.Compare, st.sampled_from(["=", "!="]), OPERANDS, OPERANDS),
        st.builds(s.Like, PLAIN, TEXTS),
        st.builds(s.In, PLAIN, st.lists(SIGNED, min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(s.In, PLAIN, st.lists(st.builds(s.Text, TEXTS), min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(s.Between, PLAIN, SIGNED, st.none()),
        st.builds(s.Between, PLAIN, st.none(), SIGNED),
        st.builds(s.Between, PLAIN, st.just(s.Number("-1.5")), st.just(s.Number("1e3"))),
    ),
    lambda inner: st.one_of(st.builds(s.Negation, inner), st.builds(s.Both, inner, inner), st.builds(s.Either, inner, inner)),
    max_leaves=4,
)


GAPS = st.one_of(st.none(), st.none(), st.builds(s.Window, st.just("time"), st.integers(0, 2**62 - 1)))


def relations(variables):
    """Comparisons of events of those variables."""
    values = st.builds(
        lambda v, attribute, previous: s.Of(v[0], attribute, v[1], previous),
        st.sampled_from(sorted(variables, key=str)),
        PLAIN,
        st.booleans(),
    )
    sides = st.recursive(
        st.one_of(values, values, NUMBERS),
        lambda inner: st.one_of(st.builds(s.Minus, inner), st.builds(s.Arithmetic, st.sampled_from("+-*"), inner, inner)),
        max_leaves=3,
    )
    made = st.builds(s.Relation, st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), sides, sides)
    return made.filter(
        lambda r: 1 < len(r.variables) <= MOST_COMPARED or (r.variables and any(value.previous for value in r.values))
    )


def filters(variables, *, between=False):
    """Filters that speak of those variables, which are (name, stream); ``between``: also of two of them."""
    one = st.builds(lambda v, p: s.Bound(v[0], p, v[1]), st.sampled_from(sorted(variables, key=str)), PREDICATES)
    one = st.one_of(one, relations(variables)) if between and len(variables) > 1 else one
    return st.recursive(
        one, lambda inner: st.one_of(st.builds(s.AllOf, inner, inner), st.builds(s.AnyOf, inner, inner)), max_leaves=3
    )


@st.composite
def formulas(draw, depth=3):
    """A formula and the variables that it binds."""
    kind = draw(st.integers(0, 8)) if depth else 0
    if kind == 0:
        event = draw(st.builds(s.Event, TYPES, STREAMS))
        return event, {(event.type, None), (event.type, event.stream)}
    if kind == 1:
        name = draw(TYPES)
        return s.Not(name, draw(st.one_of(st.none(), filters({(name, None)})))), set()
    inner, bound = draw(formulas(depth=depth - 1))
    if kind == 2:
        name = draw(NAMES)
        return s.As(inner, name), bound | {(name, None)}
    if kind == 3:
        return s.Plus(inner, draw(st.booleans()), draw(GAPS)), bound
    if kind == 4:
        return (s.Filtered(inner, draw(filters(bound))) if bound else inner), bound
    if kind == 8:
        least, more = draw(st.integers(0, 4)), draw(st.one_of(st.none(), st.integers(0, 3)))
        most = None if more is None else max(1, least + more)
        return s.Times(inner, least, most, draw(st.booleans()), draw(GAPS)), bound
    right, more = draw(formulas(depth=depth - 1))
    join = s.Or(inner, right) if kind == 5 else s.Then(inner, right, draw(st.booleans()), draw(GAPS))
    return join, bound | more


@st.composite
def queries(draw):
    formula, bound = draw(formulas())
    if may_be_empty(formula):
        formula = s.Then(formula, s.Not("C"), contiguous=False)
    gaps = any(getattr(part, "gap", None) is not None for part in subformulas(formula))
    if bound and not gaps and draw(st.booleans()):
        formula = s.Filtered(formula, draw(filters(bound, between=True)))
    judged = gaps or (isinstance(formula, s.Filtered) and any(isinstance(b, s.Of) for b in bounds(formula.filter)))
    attributes = st.lists(PLAIN, max_size=2, unique=True).map(tuple)
    chosen = draw(st.lists(st.sampled_from(sorted(bound, key=str)), min_size=1, unique=True)) if bound else []
    items = tuple(s.Item(name, stream, draw(attributes)) for name, stream in chosen)
    keys = draw(st.lists(PLAIN, max_size=3, unique=True))
    cut = draw(st.integers(0, len(keys)))
    return s.Query(
        draw(st.sampled_from(["ALL", "NEXT", "LAST", "MAX", *([] if judged else ["STRICT"]), "ANY"])),
        draw(st.sampled_from([s.Everything(), s.Nothing(), s.CountAll(), *([s.Chosen(items)] if items else [])])),
        draw(st.sampled_from([(), ("S", "from")])),
        formula,
        tuple(group for group in (tuple(keys[:cut]), tuple(keys[cut:])) if group),
        draw(
            st.one_of(
                st.none(),
                st.builds(s.Window, st.sampled_from(["events", "time"]), st.integers(1, 2**62 - 1)),
                st.builds(
                    s.Window, st.just("attribute"), st.sampled_from([Decimal(1), Decimal("0.25"), Decimal("1E+20")]), PLAIN
                ),
            )
        ),
        "NONE" if judged else draw(st.sampled_from(["NONE", "PARTITION", "ANY"])),
        draw(st.one_of(st.none(), st.integers(1, 2**62 - 1))),
    )


@given(queries())
def test_any_query_printed_and_read_again_is_the_same(query):
    assert parse(str(query)) == query


def test_drawn_queries_printed_and_read_again_are_the_same():
    for seed in range(1_000):
        query = draw(seed).query
        assert query.window is not None or parse(str(query)) == query
        if query.window is not None and query.window.size > 0:  # a window of size 0 can be evaluated, but not be written
            assert parse(str(query)) == query
