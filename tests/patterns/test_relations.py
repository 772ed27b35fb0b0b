"""Conditions between the events of a match: what they mean, of which values, and with which other clauses."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal

import numpy as np
import pytest
from ceql_running import complaint, in_batch, in_epochs
from test_small_checks import case, data, of_one_key, reference

import penstock as ps
from penstock.errors import OperatorError, QueryError
from penstock.patterns import batch, relations
from penstock.patterns.automaton.build import build
from penstock.patterns.memory import checksum
from penstock.patterns.plan import ready
from penstock.patterns.recogniser.recogniser import Batch
from penstock.patterns.recogniser.tables import Tables
from penstock.testing import Harness

NUMBERS = itertools.count()
NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "events", "found"),
    [
        ("A ; B FILTER B.v > A.v", "A2 A1 B1 B2 B3", [(0, 4), (1, 3), (1, 4)]),
        ("A ; B FILTER B.v = A.v", "A2 A1 B1 B2 B", [(0, 3), (1, 2)]),
        ("A ; B FILTER B.v != A.v", "A2 A B1 B2 B", [(0, 2)]),
        ("A ; B FILTER B.v >= A.v * 2", "A1 B1 B2 B3", [(0, 2), (0, 3)]),
        ("A ; B FILTER B.v >= A.v + 1.5", "A1 B2 B3", [(0, 2)]),
        # several events: every pair
        ("A ; B+ ; C FILTER B.v > A.v", "A1 B2 B1 B3 C", [(0, 1, 3, 4), (0, 1, 4), (0, 3, 4)]),
        ("A+ ; B FILTER B.v > A.v", "A1 A3 B2 B4", [(0, 1, 3), (0, 2), (0, 3), (1, 3)]),
        ("A+ ; B+ ; C FILTER B.v > A.v", "A1 A2 B2 B3 C", [(0, 1, 3, 4), (0, 2, 3, 4), (0, 2, 4), (0, 3, 4), (1, 3, 4)]),
        # several attributes, numbers and events on a side
        ("A ; B FILTER B.v - A.v > 1", "A1 B2 B3", [(0, 2)]),
        ("A ; B FILTER 1 < B.v - A.v", "A1 B2 B3", [(0, 2)]),
        ("A ; B FILTER B.v * B.v > A.v * A.v + A.v", "A2 B2 B3", [(0, 2)]),
        ("A ; B FILTER -B.v < -(A.v + 1)", "A1 B2 B3", [(0, 2)]),
        ("A ; B ; C FILTER C.v - B.v > B.v - A.v", "A1 B2 B4 C4 C6", [(0, 1, 3), (0, 1, 4)]),
        ("A ; B ; C FILTER A.v + B.v = C.v", "A1 A2 B2 C4 C3", [(0, 2, 4), (1, 2, 3)]),
        # the event bound before
        ("A+ FILTER A.v > PREV(A.v)", "A1 A3 A2", [(0,), (0, 1), (0, 2), (1,), (2,)]),
        ("A{3} FILTER A.v > PREV(A.v)", "A1 A3 A2 A4", [(0, 1, 3), (0, 2, 3)]),
        ("A:{3} FILTER A.v >= PREV(A.v) + 1", "A1 A2 A3 B A4", [(0, 1, 2)]),
        ("A+ ; B FILTER A.v > PREV(A.v) AND B.v < A.v", "A1 A2 A1 B1 B0", [(0, 1, 4), (0, 4), (1, 3), (1, 4), (2, 4)]),
        ("A+ ; B FILTER A.v - PREV(A.v) >= B.v", "A1 A4 A5 B2", [(0, 1, 3), (0, 2, 3), (0, 3), (1, 3), (2, 3)]),
        ("(A OR B)+ AS x FILTER x.v > PREV(x.v)", "A1 B2 A3", [(0,), (0, 1), (0, 1, 2), (0, 2), (1,), (1, 2), (2,)]),
        ("A{2} AS x ; A{2} AS y FILTER x.v < PREV(x.v) AND y.v > PREV(y.v)", "A2 A1 A1 A2", [(0, 1, 2, 3)]),
        ("A ; B? ; C FILTER B.v > PREV(B.v)", "A2 B1 C", [(0, 1, 2), (0, 2)]),
        # nothing bound: true
        ("A ; B? ; C FILTER B.v > A.v", "A2 B1 C", [(0, 2)]),
        ("A ; B OR A ; C FILTER B.v > A.v", "A2 B1 C1", [(0, 2)]),
        # where it stands: about the events of its own formula
        ("A AS x ; (A AS y ; B FILTER B.v > y.v)", "A9 A1 B2", [(0, 1, 2)]),
        ("(A AS x ; B FILTER B.v > x.v) ; A AS x", "A1 B2 A9", [(0, 1, 2)]),
        ("(A ; B FILTER B.v > A.v){2}", "A1 B2 A8 B9 A8 B7", [(0, 1, 2, 3)]),
        ("(A ; B FILTER B.v > A.v) OR (A ; B FILTER B.v < A.v)", "A2 B1 B2 B3", [(0, 1), (0, 3)]),
        # with conditions on one event
        ("A ; B FILTER B.v > A.v AND A[v=1]", "A1 A2 B3", [(0, 2)]),
        ("A ; B FILTER B.v > A.v OR A[v=1]", "A1 A5 B3 B0", [(0, 2), (0, 3)]),
        ("A ; B FILTER B.v > A.v OR B.v < A.v", "A1 B1 B2 B0", [(0, 2), (0, 3)]),
    ],
)
def test_condition_between_events_is_true_of_every_pair_of_events_of_its_formula(text, events, found):
    assert data(f"SELECT * WHERE {text}", events) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # one event a second; "gap" events do not matter to the patterns
        ("A ;[WITHIN 0.000002 SECONDS] B", [(2, 4), (3, 4), (3, 5)]),
        ("A+[WITHIN 0.000001 SECONDS]", [(0,), (2,), (2, 3), (3,)]),
        ("A{2,}[WITHIN 0.000002 SECONDS]", [(0, 2), (0, 2, 3), (2, 3)]),
        ("A{2}[WITHIN 0.000002 SECONDS]", [(0, 2), (2, 3)]),
        ("A{2} ;[WITHIN 0.000001 SECONDS] B", [(0, 3, 4), (2, 3, 4)]),
        ("A ;[WITHIN 0.000001 SECONDS] B{2}[WITHIN 0.000001 SECONDS]", [(3, 4, 5)]),
        ("A ;[WITHIN 0.000003 SECONDS] (C? ; B)", [(0, 1, 4), (0, 1, 5), (2, 4), (2, 5), (3, 4), (3, 5)]),
        ("A :[WITHIN 0.000001 SECONDS] (NOT(A)):* :[WITHIN 0.000001 SECONDS] B", [(3, 4), (3, 5)]),
        ("(A ;[WITHIN 0.000001 SECONDS] A) ; B", [(2, 3, 4), (2, 3, 5)]),
        ("A ;[WITHIN 0 SECONDS] B", []),
    ],
)
def test_neighbours_are_not_further_apart_than_their_gap(text, found):
    assert data(f"SELECT * WHERE {text}", "A C A A B B") == found


def test_what_only_a_gap_marks_is_not_shown():
    text = "SELECT * WHERE A :[WITHIN 0.000001 SECONDS] NOT(A) :[WITHIN 0.000001 SECONDS] B"
    assert data(text, "A C B") == [(0, 2)]
    assert data(text.replace("*", "A"), "A C B") == [(0,)]
    assert data(text.replace("NOT(A)", "(NOT(A) : C) AS x"), "A B C B") == [(0, 2, 3)]


def test_strategy_and_limit_choose_among_the_matches_that_satisfy_the_condition():
    text, events = "* WHERE A ; B FILTER B.v > A.v", "A9 A1 A2 A3 B3"
    assert data(f"SELECT ALL {text}", events) == [(1, 4), (2, 4)]
    assert data(f"SELECT NEXT {text}", events) == [(1, 4)]
    assert data(f"SELECT LAST {text}", events) == [(2, 4)]
    assert data("SELECT MAX * WHERE A+ ; B FILTER B.v > A.v", "A9 A1 A2 B3") == [(1, 2, 3)]
    assert data(f"SELECT STRICT {text}", "A1 C B2 A1 B2") == [(3, 4)]
    for query in (f"SELECT ANY {text}", f"SELECT {text} LIMIT 1"):
        assert len(in_batch(case(query, events))) == 1
        assert data(query, events)


def test_one_binding_of_the_same_events_is_enough_and_the_preferred_of_those_is_shown():
    text = "SELECT x, y WHERE A AS x ; A AS y OR A AS y ; A AS x FILTER x.v > y.v"
    assert data(text, "A1 A2") == [(0, 1)]
    (answer,) = in_batch(case(text, "A1 A2"))
    assert answer[1].bound == (("y",), ("x",))


def test_what_is_not_selected_is_compared_and_equal_matches_are_one():
    assert data("SELECT B WHERE A ; B FILTER B.v > A.v", "A1 B2") == [(1,)]
    asked = case("SELECT C WHERE A ; B ; C FILTER B.v > A.v", "A1 B2 B3 B0 C")
    assert reference(asked) == {(0, 4, (4,))}
    assert len(in_batch(asked)) == 1
    assert data("SELECT NONE WHERE A ; B+ FILTER B.v > A.v", "A1 B2 B3") == [(), ()]


def test_matches_that_satisfy_the_condition_are_counted():
    asked = case("SELECT COUNT(*) WHERE A+ ; B FILTER B.v > A.v", "A1 A3 B2 B4")
    assert complaint(asked, in_batch(asked)) is None
    assert [(told.end, told.matches) for _, told in in_batch(asked)] == [(2, 1), (3, 3)]
    keyed = of_one_key(asked)
    assert complaint(keyed, in_epochs(keyed)[0]) is None


def test_many_pairs_are_compared_in_parts(monkeypatch):
    monkeypatch.setattr(relations, "PAIRS", 7)
    text = "SELECT * WHERE A+ ; B+ ; C FILTER B.v > A.v"
    events = "A1 A2 A3 B2 B9 B9 B3 B4 C"
    assert data(text, events)
    assert data(text.replace("*", "MAX *"), events)


@pytest.mark.parametrize("clause", ["NEXT *", "LAST *", "MAX *", "ANY *", "COUNT(*)", "C", "*"])
@pytest.mark.parametrize("limit", ["", " LIMIT 2"])
def test_matches_of_one_event_are_judged_together_in_however_many_blocks_they_come(monkeypatch, clause, limit):
    if "COUNT" in clause and limit:
        return
    monkeypatch.setattr(batch, "RESULT_ROWS", 2)
    for events in ("A1 A2 A3 B2 B9 B9 B3 C C", "A1 B2 C A1 B3 B4 C", "A5 B1 C A1 B9 C"):
        asked = case(f"SELECT {clause} WHERE A+ ; B+ ; C FILTER B.v > A.v{limit}", events)
        assert complaint(asked, in_batch(asked)) is None


@pytest.mark.parametrize(
    ("kind", "values", "condition", "found"),
    [
        ("double", [NAN, -0.0, 0.0, NAN, None], "A.x = B.x", [(0, 3), (1, 2)]),
        ("double", [NAN, 1.0, 2.0, NAN, None], "A.x < B.x", [(1, 2), (1, 3)]),
        ("double", [NAN, 1.0, 2.0, NAN, None], "A.x != B.x", [(0, 2), (1, 2), (1, 3)]),
        ("double", [0.1, 0.1, 0.3, 0.2, 0.0], "B.x > A.x * 3", []),  # 0.1 * 3 is 0.30000000000000004
        (
            "decimal(10, 2)",
            [Decimal("0.10"), Decimal("0.10"), Decimal("0.31"), Decimal("0.30"), None],
            "B.x > A.x * 3",
            [(0, 2), (1, 2)],
        ),
        ("decimal(10, 2)", [Decimal("1.00"), None, Decimal("1.50"), Decimal("1.49"), None], "B.x >= A.x * 1.5", [(0, 2)]),
        ("long", [2**62, None, 2**62 + 1, 2**62, None], "B.x > A.x", [(0, 2)]),
        ("long", [2**62, None, 2**62 + 1, 2**62, None], "B.x > A.x * 1e0", []),  # as doubles they are equal
        ("int", [1, None, 2, 1, None], "B.x > A.x * 1.5", [(0, 2)]),
        ("string", ["a", "b", "a", "c", None], "A.x = B.x", [(0, 2)]),
        ("string", ["a", "b", "a", "c", None], "A.x < B.x", [(0, 3), (1, 3)]),
        ("boolean", [True, False, True, None, None], "A.x = B.x", [(0, 2)]),
        ("date", [dt.date(2024, 1, 1), None, dt.date(2024, 1, 2), dt.date(2023, 1, 1), None], "A.x < B.x", [(0, 2)]),
        ("string", ["a"] * 5, "A.at >= B.at", []),
        ("float", [0.1, None, 0.1, 0.3, None], "B.x * B.x = A.x * A.x", [(0, 2)]),  # in 32 bits, as B.x and A.x are
        ("float", [16777216.0, None, 1.0, 2.0, None], "A.x + B.x = A.x", [(0, 2)]),
        ("float", [16777216.0, None, 1.0, 2.0, None], "A.x + B.x * 1e0 = A.x", []),  # in 64 bits
        ("long", [2**62, None, 2**62 - 1, 2**62, None], "A.x - B.x = 1", [(0, 2)]),
        ("decimal(38, 0)", [Decimal("9" * 38), None, Decimal("9" * 37 + "8"), None, None], "A.x - B.x = 1", [(0, 2)]),
        ("decimal(30, 4)", [Decimal("1E25"), None, Decimal("0.0001"), None, None], "A.x * B.x = A.x * 0.0001", [(0, 2)]),
        ("double", [NAN, None, 1.0, 2.0, None], "A.x * B.x > A.x", []),
    ],
)
def test_values_are_compared_as_spark_compares_them(kind, values, condition, found):
    assert asked(f"SELECT * WHERE A ; B FILTER {condition}", kind, zip("AABBB", values, strict=True)) == found


def asked(query, kind, events, **how):
    """The positions of each match, epoch by epoch."""
    flow, out = ps.Flow(f"values{next(NUMBERS)}"), ps.memory(f"values{next(NUMBERS)}")
    source = flow.source(
        "events", ps.files("unused", f"k int, kind string, p int, at timestamp, x {kind}, y double"), time="at"
    )
    source.key_by("k").match(query, type="kind", **how).sink(out)
    with Harness(flow) as harness:
        for p, (name, value) in enumerate(events):
            at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=p)
            harness.push("events", [{"k": 0, "kind": name, "p": p, "at": at, "x": value, "y": 1.0}])
            harness.epoch()
        harness.finish()
    return sorted(tuple(event["p"] for event in row["events"]) for row in out.rows())


def test_value_that_does_not_fit_stops_the_flow_with_the_condition():
    with pytest.raises(
        OperatorError, match=r"In the condition B.x > A.x \* 4 the value of A.x \* 4 does not fit its type; cast x to double\."
    ):
        asked("SELECT * WHERE A ; B FILTER B.x > A.x * 4", "long", [("A", 2**62), ("B", 1)])


@pytest.mark.parametrize(
    ("query", "column", "message"),
    [
        ("A ; B FILTER B.v > B.w", 33, ("a condition on one event stands in brackets, as in B[v < w]; this form compares two variables, "
         "or, with PREV(B.v), an event with the one bound before.")),
        ("A ; B FILTER B.v * 2 > 5", 37, ("a condition on one event stands in brackets, as in B[v < w]; this form compares two variables, "
         "or, with PREV(B.v), an event with the one bound before.")),
        ("A ; B FILTER 1 < 2", 31, "1 < 2 is about no event; compare attributes of variables, as in b.v > a.v."),
        ("A ; B FILTER B.v / A.v > 2", 33, ("a condition between events does not calculate with /; multiply the other side, as in b.v > "
         "2 * a.v for b.v / a.v > 2, or compute a column before.")),
        ("A ; B FILTER B.v - (A.v % 2) > 2", 40, "a condition between events does not calculate with %; multiply the other side,"),
        ("A ; B FILTER B.t - A.t = 'x'", 39, "a string is compared in brackets, as in a[t = 'x']; this form compares events with each other."),
        ("A ; B FILTER LAST(A.v) < B.v", 29, "there is no function 'LAST'; PREV(A.v) is of the event bound before."),
        ("A+ FILTER PREV(C.v) < A.v", 31, "C is filtered, but the formula before FILTER binds no such variable; it binds A."),
        ("(A{2} FILTER PREV(A.v) < A.v)+", 39, ("PREV(A.v) < A.v stands inside a repetition without end; put the filter behind the whole "
         "pattern, or repeat with {n,m}.")),
        ("A AS a ; A AS b ; A AS c ; A AS d ; A AS e FILTER a.v + b.v + c.v + d.v > e.v", 88, ("((a.v + b.v) + c.v) + d.v > e.v compares "
         "5 variables, of at most 4; join several conditions with AND.")),
        ("A ; B FILTER C.v > A.v", 29, "C is filtered, but the formula before FILTER binds no such variable; it binds A, B."),
        ("A ; NOT(B FILTER A.v < B.v)", 33, "the filter inside NOT(B ...) is about one event; it cannot compare A.v."),
        ("(A ; B FILTER A.v < B.v)+", 34, ("A.v < B.v stands inside a repetition without end; put the filter behind the whole "
         "pattern, or repeat with {n,m}.")),
        ("(A ; B FILTER A.v < B.v){2,}", 34, ("A.v < B.v stands inside a repetition without end; put the filter behind the whole "
         "pattern, or repeat with {n,m}.")),
        ("(A ; B FILTER A.v < B.v){17}", 34, ("the pattern has 17 conditions between events with its quantifiers written out, of at "
         "most 16.")),
        ("A ; B FILTER A.v < B.v CONSUME BY PARTITION", 39, ("CONSUME BY cannot be combined with a condition between events, such as "
         "A.v < B.v, because such conditions are evaluated when matches are enumerated; choose with NEXT, LAST, MAX or LIMIT, or "
         "leave out CONSUME BY.")),
        ("A ;[WITHIN 1 MINUTE] B CONSUME BY PARTITION", 39, ("CONSUME BY cannot be combined with a condition between events, such as "
         "[WITHIN 60 SECONDS], because such conditions are evaluated when matches are enumerated; choose with NEXT, LAST, MAX or "
         "LIMIT, or leave out CONSUME BY.")),
        ("A ;[WITHIN 5 EVENTS] B", 20, "a gap between neighbours is a time, such as [WITHIN 5 MINUTES]."),
    ],
)  # fmt: skip
def test_condition_that_cannot_be_evaluated_is_refused_with_its_place(query, column, message):
    with pytest.raises(QueryError) as refused:
        ps.parse(f"SELECT * WHERE {query}")
    assert str(refused.value).startswith(f"line 1, column {column}: {message}" + "\n" * message.endswith("."))


@pytest.mark.parametrize(
    ("query", "how", "message"),
    [
        ("SELECT * WHERE A ; B FILTER A.x < B.p", {}, "the filter A.x < B.p compares a string with a number."),
        ("SELECT * WHERE A ; B FILTER A.x + 1 < B.p", {}, "the filter A.x + 1 < B.p calculates with A.x, which is a string, not a"),
        ("SELECT * WHERE A ; B FILTER A.at - B.at > 5", {}, "calculates with A.at, which is a timestamp"),
        ("SELECT * WHERE A ; B FILTER A.z < B.p", {}, "the filter A.z < B.p names column 'z', which does not exist;"),
        ("SELECT STRICT B WHERE A ; B FILTER A.p < B.p", {}, "SELECT STRICT with the condition on A.p needs A to be selected, too."),
        ("SELECT * WHERE A AS a ; B FILTER a.p < B.p WITHIN 1 MINUTE", {"on_timeout": "a"}, "on_timeout cannot be combined with a "),
        ("SELECT * WHERE A AS a ;[WITHIN 1 SECOND] B WITHIN 1 MINUTE", {"on_timeout": "a"}, "on_timeout cannot be combined with a "),
        ("SELECT STRICT * WHERE A ;[WITHIN 1 SECOND] B", {}, "SELECT STRICT cannot be combined with a gap"),
    ],
)  # fmt: skip
def test_condition_that_does_not_fit_the_stream_is_refused(query, how, message):
    with pytest.raises(QueryError, match=message.replace("+", r"\+")):
        asked(query, "string", [], **how)


def test_product_of_decimals_that_is_too_wide_is_refused():
    with pytest.raises(
        QueryError, match=r"the filter A.x \* B.x > 1 needs numbers of more than 76 digits; cast the decimals to fewer"
    ):
        asked("SELECT * WHERE A ; B FILTER A.x * B.x > 1", "decimal(38, 10)", [])


def test_state_of_another_condition_is_another_patterns():
    def check(condition):
        pattern = ready(ps.parse(f"SELECT * WHERE A ; B{condition}"), ("at", "v"), order=("at",), keys=("k",))
        return checksum(pattern, ("at", "v"))

    others = (
        "",
        " FILTER B.v > A.v",
        " FILTER B.v < A.v",
        " FILTER B.v > A.v + 1",
        "+[WITHIN 1 SECOND]",
        "+[WITHIN 2 SECONDS]",
    )
    assert len({check(text) for text in others}) == 6


def test_explain_tells_conditions_between_events_and_that_an_equal_attribute_could_be_the_key():
    explained = ps.explain("SELECT * WHERE A AS a ; B AS b FILTER b.v > a.v * 1.05 AND a.k = b.k").splitlines()
    key = "if it is so for all events of a match, PARTITION BY [k] (in a flow, key_by) costs nothing"
    assert explained[-2:] == [
        "when enumerated, for each candidate: b.v > a.v * 1.05",
        f"when enumerated, for each candidate: a.k = b.k; {key}",
    ]
    assert not any("__ps" in line for line in explained)


# ------------------------------------------------------------------------------ a gap behind the first event: part of recognition


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("A ;[WITHIN 2 SECONDS] B ; C", {2_000_000}),
        ("(A OR B) ;[WITHIN 2 SECONDS] B ; C", {2_000_000}),
        ("A ;[WITHIN 2 SECONDS] B OR B ;[WITHIN 3 SECONDS] C", {2_000_000, 3_000_000}),
        ("A :[WITHIN 2 SECONDS] (NOT(A)):* :[WITHIN 3 SECONDS] B", {2_000_000}),
        ("A+[WITHIN 2 SECONDS] ; B", set()),  # a second A waits for a third as the first did for it
        ("A ; B ;[WITHIN 2 SECONDS] C", set()),
        ("(A ;[WITHIN 2 SECONDS] B)+", set()),
        ("(NOT(A)):+ :[WITHIN 2 SECONDS] B", set()),
    ],
)
def test_run_of_one_event_before_a_gap_ends_with_the_gap(text, spans):
    assert {span for span in build(ps.parse(f"SELECT * WHERE {text}")).spans if span >= 0} == spans


def kept_of(query, events, **how):
    """How many keys are remembered after each event, one a second."""
    flow, out = ps.Flow(f"kept{next(NUMBERS)}"), ps.memory(f"kept{next(NUMBERS)}")
    source = flow.source("events", ps.files("unused", "k int, kind string, at timestamp"), time="at", lateness="0 seconds")
    source.key_by("k").match(query, type="kind", **how).sink(out)
    kept = []
    with Harness(flow) as harness:
        for p, name in enumerate(events):
            at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=p)
            harness.push("events", [{"k": int(name == "X"), "kind": name, "at": at}])
            harness.epoch()
            kept.append(len(harness.keys(next(iter(harness.record.regions)))))
    return kept


def test_key_keeps_nothing_once_the_gap_behind_its_only_event_has_passed_also_without_a_window():
    assert kept_of("SELECT * WHERE A ;[WITHIN 2 SECONDS] B", ["A", *"XXXXX"])[-1] == 0
    assert kept_of("SELECT * WHERE A ; B", ["A", *"XXXXX"])[-1] == 1
    assert kept_of("SELECT * WHERE A ;[WITHIN 2 SECONDS] B ; C", ["A", "B", *"XXXXX"])[-1] == 1


def test_event_that_comes_after_the_gap_adds_no_node():
    def nodes(text):
        pattern = ready(ps.parse(f"SELECT * WHERE {text}"), ("at", "v"), order=("at",), keys=())
        found = relations.recogniser_of(pattern, Tables(pattern.follower()))
        when = np.array([0, *range(10_000_000, 20_000_000, 1_000_000)], np.int64)
        letters = found.tables.letters([np.array([1] + [2] * 10)])
        zeros = np.zeros(1, np.int64)
        never = np.full(11, np.iinfo(np.int64).min)
        assert not list(found.feed(Batch(letters, when, never, np.array([0, 11]), zeros)))
        return found.arena.count

    assert nodes("A ;[WITHIN 5 SECONDS] B ; C") == 1
    assert nodes("A ;[WITHIN 10 SECONDS] B ; C") == 2
    assert nodes("A ; B ; C") > 10


def test_explain_tells_that_a_run_ends_with_the_gap_behind_its_first_event():
    assert "when recognised, in 2: a run ends [WITHIN 2 SECONDS] of its first event" in ps.explain(
        "SELECT * WHERE A ;[WITHIN 2 SECONDS] B"
    )
    assert "when recognised" not in ps.explain("SELECT * WHERE A ;[WITHIN 2 SECONDS] B WITHIN 5 EVENTS")
