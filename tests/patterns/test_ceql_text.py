"""What CEQL text means as a tree, and what is said about text that means nothing."""

from __future__ import annotations

from decimal import Decimal

import pytest

from penstock.errors import DeclarationError, QueryError
from penstock.patterns.algebra import (
    AllOf,
    AnyOf,
    Arithmetic,
    As,
    Attribute,
    Between,
    Both,
    Bound,
    Chosen,
    Compare,
    CountAll,
    Either,
    Event,
    Everything,
    Filtered,
    In,
    Item,
    Like,
    Minus,
    Negation,
    Not,
    Nothing,
    Number,
    Or,
    Plus,
    Text,
    Then,
    Window,
)
from penstock.patterns.automaton.build import build
from penstock.patterns.ceql.explain import explain
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.reference import Seen, evaluate

A, B, C, D = map(Event, "ABCD")
V, W = Attribute("v"), Attribute("w")
V1 = Compare("=", V, Number("1"))
W2 = Compare("=", W, Number("2"))
CLAUSES = " The order is: SELECT, FROM, WHERE, then PARTITION BY, WITHIN, CONSUME BY and LIMIT."


def formula(text):
    return parse(f"SELECT * WHERE {text}").formula


def predicate(text):
    return parse(f"SELECT * WHERE A FILTER A[{text}]").formula.filter.predicate


# ------------------------------------------------------------------------------------------------------------------ meaning


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("A ; B ; C", Then(Then(A, B, contiguous=False), C, contiguous=False)),
        ("A ; B : C", Then(Then(A, B, contiguous=False), C, contiguous=True)),
        ("A : B ; C", Then(A, Then(B, C, contiguous=False), contiguous=True)),
        ("A : B : C", Then(Then(A, B, contiguous=True), C, contiguous=True)),
        ("A OR B ; C OR D", Or(Or(A, Then(B, C, contiguous=False)), D)),
        ("A ; B+", Then(A, Plus(B, contiguous=False), contiguous=False)),
        ("A ; B:+ : C", Then(Then(A, Plus(B, contiguous=True), contiguous=False), C, contiguous=True)),
        ("A+ AS x", As(Plus(A, contiguous=False), "x")),
        ("A AS x+", Plus(As(A, "x"), contiguous=False)),
        ("A ; B AS x", Then(A, As(B, "x"), contiguous=False)),
        ("(A ; B) AS x", As(Then(A, B, contiguous=False), "x")),
        ("A ; B FILTER A[v=1]", Filtered(Then(A, B, contiguous=False), Bound("A", V1))),
        ("A OR B FILTER A[v=1] FILTER B[w=2]", Filtered(Filtered(Or(A, B), Bound("A", V1)), Bound("B", W2))),
        ("A ; (B FILTER B[v=1])", Then(A, Filtered(B, Bound("B", V1)), contiguous=False)),
        ("NOT(A) : NOT (B FILTER B[v=1])", Then(Not("A"), Not("B", Bound("B", V1)), contiguous=True)),
        ("S>A ; `odd name`", Then(Event("A", "S"), Event("odd name"), contiguous=False)),
        ("ORDERS ; ANDROID ; not_b", Then(Then(Event("ORDERS"), Event("ANDROID"), contiguous=False), Event("not_b"), False)),
        ("`back``tick` AS `select`", As(Event("back`tick"), "select")),
    ],
)
def test_formula_binds_as_strongly_as_the_language_says(text, tree):
    assert formula(text) == tree


def test_filter_and_binds_more_strongly_than_or():
    one, two = Bound("A", V1), Bound("B", W2)
    assert formula("A;B FILTER A[v=1] OR A[v=1] AND B[w=2]").filter == AnyOf(one, AllOf(one, two))
    assert formula("A;B FILTER (A[v=1] OR B[w=2]) AND B[w=2]").filter == AllOf(AnyOf(one, two), two)
    assert formula("S>A FILTER S>A[v=1] AND A[v=1]").filter == AllOf(Bound("A", V1, "S"), one)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("v == 1", V1),
        ("v <> 1", Compare("!=", V, Number("1"))),
        ("v=1 OR w=2 AND v=1", Either(V1, Both(W2, V1))),
        ("NOT v=1 AND w=2", Both(Negation(V1), W2)),
        ("NOT (v=1 AND w=2)", Negation(Both(V1, W2))),
        ("v+w*2 > -v", Compare(">", Arithmetic("+", V, Arithmetic("*", W, Number("2"))), Minus(V))),
        ("v-w-1 > 1e3", Compare(">", Arithmetic("-", Arithmetic("-", V, W), Number("1")), Number("1e3"))),
        (
            "v--1 > (v%2)/w",
            Compare(">", Arithmetic("-", V, Minus(Number("1"))), Arithmetic("/", Arithmetic("%", V, Number("2")), W)),
        ),
        ("v = 'it\\'s'", Compare("=", V, Text("it's"))),
        ('v != "a"', Compare("!=", V, Text("a"))),
        ("v LIKE '\\d+'", Like("v", "\\d+")),
        ("v IN {1, -2.5}", In("v", (Number("1"), Number("-2.5")), negated=False)),
        ("v NOT IN {'a'}", In("v", (Text("a"),), negated=True)),
        ("v IN 1..2", Between("v", Number("1"), Number("2"))),
        ("v IN -1.5..", Between("v", Number("-1.5"), None)),
        ("v IN ..2 AND w=2", Both(Between("v", None, Number("2")), W2)),
    ],
)
def test_predicate_is_read_as_arithmetic_and_logic_are(text, tree):
    assert predicate(text) == tree


def test_clauses_are_read_with_keywords_in_any_case():
    query = parse(
        "select max x, S>B[v, `odd name`] from S, T where (A as x); S>B partition by [a, b], [c] "
        "within 1 hours 30 minutes 2 seconds consume by any limit 5 -- the end"
    )
    assert query.strategy == "MAX"
    assert query.projection == Chosen((Item("x"), Item("B", "S", ("v", "odd name"))))
    assert query.streams == ("S", "T")
    assert query.partition_by == (("a", "b"), ("c",))
    assert query.window == Window("time", 5_402_000_000)
    assert (query.consume, query.limit) == ("ANY", 5)


def test_projections_and_windows_of_each_kind():
    plain = parse("SELECT * WHERE A WITHIN 10 EVENTS")
    assert (plain.strategy, plain.projection, plain.window) == ("ALL", Everything(), Window("events", 10))
    assert (plain.partition_by, plain.consume, plain.limit, plain.streams) == ((), "NONE", None, ())
    assert parse("SELECT NONE WHERE A WITHIN 1.5[price]").window == Window("attribute", Decimal("1.5"), "price")
    assert parse("SELECT NONE WHERE A").projection == Nothing()
    assert parse("SELECT `NONE` WHERE `NONE`").projection == Chosen((Item("NONE"),))
    assert parse("SELECT COUNT(*) WHERE A").projection == CountAll()
    assert parse("SELECT COUNT ( * ) WHERE A").projection == CountAll()
    assert parse("SELECT NEXT NONE WHERE A").strategy == "NEXT"


def test_one_as_name_may_stand_for_two_parts():
    assert formula("A AS x ; B AS x FILTER x[v=1]") is not None


def test_query_of_the_greatest_depth_is_evaluated():
    # 149 operators make a tree 150 deep, parentheses of the printed text included.
    deep = parse("SELECT * WHERE " + " ; ".join("A" * 147))
    assert parse(str(deep)) == deep
    assert build(deep).transitions
    assert evaluate(deep, [Seen(frozenset("A"), {})]) == {}


# ------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", (1, 1), "the query ends too soon; expected SELECT."),
        ("SELECT * WHERE A B", (1, 18), ("found 'B'; expected a quantifier, the end of the query, AS, CONSUME, FILTER, LIMIT, OR, "
         "PARTITION, WITHIN, ':', ';' or '>'.")),
        ("SELECT * WHERE A;", (1, 18), "the query ends too soon; expected a name, NOT, '(' or '['."),
        ("SELECT * WHERE (A;B", (1, 20), "the query ends too soon; expected a quantifier, AS, FILTER, OR, ')', ':', ';' or '>'."),
        ("SELECT FIRST * WHERE A", (1, 14), "found '*'; expected FROM, WHERE, ',', '>' or '['."),
        *(
            (text, (1, at), f"found '{found}'; expected {wanted}.{CLAUSES}")
            for text, at, found, wanted in (
                ("SELECT * LIMIT 3 WHERE A", 10, "LIMIT", "FROM or WHERE"),
                ("SELECT a within 3 EVENTS WHERE A AS a", 10, "within", "FROM, WHERE, ',', '>' or '['"),
                ("SELECT * FROM S PARTITION BY [k] WHERE A", 17, "PARTITION", "WHERE or ','"),
                ("FROM S SELECT * WHERE A", 1, "FROM", "SELECT"),
                ("SELECT * WHERE A LIMIT 3 FROM S", 26, "FROM", "the end of the query, CONSUME, LIMIT, PARTITION or WITHIN"),
            )
        ),
        ("SELECT * WHERE A FILTER A[]", (1, 27), "found ']'; expected a name, a number, a string, NOT, '(' or '-'."),
        ("SELECT * WHERE A FILTER A[v IN ..]", (1, 34), "found ']'; expected a number or '-'."),
        (
            "SELECT * WHERE A FILTER A[v ~ 1]",
            (1, 29),
            "found '~'; expected IN, LIKE, NOT, '!=', '%', '*', '+', '-', '/', '<', '<=', '<>', '=', '==', '>' or '>='.",
        ),
        ("SELECT last WHERE A AS last", (1, 19), ("found 'A'; expected FROM, WHERE, ',', '>' or '['. As a variable, last needs "
         "backquotes: `last`.")),
        ("SELECT count, x WHERE A AS count", (1, 13), "found ','; expected '('. As a variable, count needs backquotes: `count`."),
        ("SELECT *\r\nWHERE \f&", (2, 8), "found '&'; expected a name, NOT or '('."),
        ("SELECT * WHERE A FILTER A[v = 'x]", (1, 31), "the string that begins here does not end."),
        ("SELECT * WHERE `A", (1, 16), "the name that begins here does not end."),
        ("SELECT * WHERE A FILTER A[v=1] OR B", (1, 36), "the query ends too soon; expected '(', '.', '>' or '['."),
        ("SELECT * WHERE A FILTER A[v=1] ; B", (1, 32), ("found ';'; expected the end of the query, AND, CONSUME, FILTER, LIMIT, "
         "OR, PARTITION or WITHIN. FILTER applies to everything before it; put parentheses around the filter and its formula: "
         "(A FILTER A[…]) ; B.")),
        ("SELECT *\nWHERE A FILTER\n\tA[v < 'x']", (3, 6), "strings are compared with = or !=; for an order use numbers."),
        ("SELECT * WHERE A FILTER A[v+'x' = 1]", (1, 33), "a string cannot be part of a calculation."),
        ("SELECT * WHERE A FILTER A[v IN {1, 'x'}]", (1, 27), "the list for 'v' mixes numbers and strings."),
        ("SELECT * WHERE A FILTER A[v IN 2..1]", (1, 27), "the range 2..1 is empty; write the smaller number first."),
        ("SELECT * WHERE A FILTER A[v > 2e308]", (1, 31), "the number is greater than a double holds, which ends at 1.8e308."),
        *(
            (f"SELECT * WHERE A FILTER A[v IN {{1, {sign}{number}}}]", (1, 36 + len(sign)),
             "a number has at most 38 digits; write it with an exponent, as in 1e40.")
            for sign in ("", "-") for number in ("1" * 39, "1." + "1" * 38, "0." + "0" * 39)
        ),
        ("SELECT * WHERE A CONSUME BY ALL", (1, 29), "found 'ALL'; expected ANY, NONE or PARTITION."),
        ("SELECT * WHERE A WITHIN 3 WEEKS", (1, 27), ("found 'WEEKS'; expected DAY, DAYS, EVENT, EVENTS, HOUR, HOURS, MINUTE, "
         "MINUTES, SECOND, SECONDS or '['.")),
        ("SELECT * WHERE A WITHIN 10 EVENTS 5 SECONDS", (1, 37), "a window is measured in EVENTS or in time, not in both."),
        ("SELECT * WHERE A WITHIN 5 SECONDS 10 EVENTS", (1, 38), "a window is measured in EVENTS or in time, not in both."),
        ("SELECT * WHERE A WITHIN 1 HOUR 2 HOURS", (1, 34), "the window names HOURS twice."),
        ("SELECT * WHERE A WITHIN -3 SECONDS", (1, 25), "a window's size must be 0 or more, not -3."),
        ("SELECT * WHERE A WITHIN -1[t]", (1, 25), "a window's size must be 0 or more, not -1."),
        ("SELECT * WHERE A WITHIN 1.5 EVENTS", (1, 25), "a window is a whole number of events, or of microseconds."),
        *(
            (f"SELECT * WHERE A WITHIN {n}", (1, 25), "the window is too long; leave WITHIN out if every match counts.")
            for n in ("9000000000000 HOURS", "4611686018427387904 EVENTS", "1e39[t]", "1e9999999 SECONDS",
                      "1e99999999999999999999[t]")
        ),
        ("SELECT * WHERE A WITHIN 1e-39[t]", (1, 25), "a window's size has at most 38 digits."),
        ("SELECT * WHERE A LIMIT 0", (1, 24), "LIMIT needs a whole number from 1 to below 2^62, not 0."),
        ("SELECT * WHERE A LIMIT -1", (1, 24), "LIMIT needs a whole number from 1 to below 2^62, not -1."),
        ("SELECT * WHERE A LIMIT 1.5", (1, 24), "LIMIT needs a whole number from 1 to below 2^62, not 1.5."),
        ("SELECT * WHERE A LIMIT " + "9" * 5000, (1, 24), "LIMIT needs a whole number from 1 to below 2^62, not 999999999…."),
        ("SELECT * WHERE A LIMIT 1 LIMIT 2", (1, 26), "the query has two clauses LIMIT; leave one."),
        ("SELECT * WHERE A WITHIN 1 EVENT WITHIN 2 EVENTS", (1, 33), "the query has two clauses WITHIN; leave one."),
        ("SELECT * WHERE A CONSUME BY ANY CONSUME BY ANY", (1, 33), "the query has two clauses CONSUME BY; leave one."),
        ("SELECT * WHERE A PARTITION BY [a] PARTITION BY [b]", (1, 35), "the query has two clauses PARTITION BY; leave one."),
        ("SELECT * WHERE A PARTITION BY [a, b], [a]", (1, 40), "attribute 'a' stands twice in PARTITION BY."),
        ("SELECT * FROM S, S WHERE A", (1, 18), "stream 'S' stands twice in FROM."),
        ("SELECT * FROM S, T WHERE A ; U>A", (1, 30), "stream 'U' is not in FROM, which names S, T."),
        ("SELECT x WHERE A", (1, 8), "x is selected, but the pattern binds no such variable; it binds A."),
        ("SELECT A WHERE NOT(A)", (1, 8), "A is selected, but the pattern binds no such variable; it binds nothing."),
        ("SELECT S>A WHERE A ; T>A", (1, 8), "S>A is selected, but the pattern binds no such variable; it binds A, T>A."),
        ("SELECT A, A[v] WHERE A", (1, 11), "A is selected twice."),
        ("SELECT A[v, w, v] WHERE A", (1, 16), "attribute 'v' is selected twice."),
        ("SELECT * WHERE A FILTER B[v=1]", (1, 25),
         "B is filtered, but the formula before FILTER binds no such variable; it binds A."),
        ("SELECT * WHERE A ; (B FILTER A[v=1])", (1, 30),
         "A is filtered, but the formula before FILTER binds no such variable; it binds B."),
        ("SELECT * WHERE A ; NOT(B) FILTER B[v=1]", (1, 34),
         "B is filtered, but the formula before FILTER binds no such variable; it binds A."),
        ("SELECT * WHERE A ; NOT(B FILTER A[v=1])", (1, 33),
         "the filter inside NOT(B ...) may use only B, not A."),
        ("SELECT * WHERE A AS B ; B", (1, 21), "'B' is an event type and an AS-name as well; choose another name."),
        ("SELECT * WHERE A AS B ; NOT(B)", (1, 21), "'B' is an event type and an AS-name as well; choose another name."),
        ("SELECT * WHERE A AS `S>A`", (1, 21),
         "'S>A' has a '>', which names of types, variables and streams must not have."),
        ("SELECT * WHERE " + ";".join("A" * 2000), (1, 16), "this is nested more than 150 deep; write the query flatter."),
    ],
)  # fmt: skip
def test_error_says_where_and_what_was_expected(text, place, message):
    with pytest.raises(QueryError) as caught:
        parse(text)
    first, *shown = str(caught.value).split("\n")
    line, column = place
    assert first == f"line {line}, column {column}: {message}"
    source = text.split("\n")[line - 1]
    assert shown == [
        f"  {source}",
        "  " + "".join("\t" if c == "\t" else " " for c in source[: column - 1]).ljust(column - 1) + "^",
    ]


def test_query_that_is_no_text_is_refused():
    with pytest.raises(QueryError, match=r"^A query is text, not int\.$"):
        parse(3)


def test_query_error_is_a_declaration_error():
    assert issubclass(QueryError, DeclarationError)


# ---------------------------------------------------------------------------------------------------------- what it becomes


def test_explained_query_shows_its_tests_and_for_each_state_what_an_event_does_there():
    query = "SELECT x WHERE (A AS x : NOT(B FILTER B[v > 1])) ; C FILTER x[v = 1]"
    assert explain(query).splitlines() == [
        "query: SELECT x WHERE ((((A) AS x : NOT (B FILTER B[v > 1])) ; C) FILTER x[v = 1])",
        "tests:",
        "  t0: type is A",
        "  t1: type is B and B[v > 1]",
        "  t2: type is C",
        "  t3: v = 1",
        "states: 5, a match begins in 0",
        "  0: mark [x] if t0 and t3 -> 1",
        "  1: skip if not t1 -> 2; skip if not t1 -> 4",
        "  2: skip if t2 -> 3",
        "  3: a match ends",
        "  4: skip any event -> 2; skip any event -> 4",
    ]
