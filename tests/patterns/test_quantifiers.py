"""Quantifiers: what they match, that they cost what the same pattern written out costs, and one alert per incident."""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa
import pytest
from test_small_checks import case, data, reference

import penstock as ps
from penstock.errors import ChangedFlowError, QueryError
from penstock.patterns.automaton.build import build
from penstock.patterns.automaton.determine import Determiniser
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.recogniser.tables import Tables
from penstock.testing import Harness


@pytest.mark.parametrize(
    ("text", "events", "found"),
    [
        ("A{2}", "A A A", [(0, 1), (0, 2), (1, 2)]),
        ("A:{2}", "A A B A", [(0, 1)]),
        ("A{2,}", "A A A", [(0, 1), (0, 1, 2), (0, 2), (1, 2)]),
        ("A:{2,}", "A A A B A", [(0, 1), (0, 1, 2), (1, 2)]),
        ("A{1,2}", "A A A", [(0,), (0, 1), (0, 2), (1,), (1, 2), (2,)]),
        ("A ; B? ; C", "A B C", [(0, 1, 2), (0, 2)]),
        ("A : B? : C", "A C A B C A B B C", [(0, 1), (2, 3, 4)]),
        ("A : B* : C", "A C A B C A B D C", [(0, 1), (2, 3, 4)]),
        ("A : B:* : C", "A C A B C A B B C A D C", [(0, 1), (2, 3, 4), (5, 6, 7, 8)]),
        ("A ; B* ; C", "A B B C", [(0, 1, 2, 3), (0, 1, 3), (0, 2, 3), (0, 3)]),
        ("A : B{,2} : C", "A B C A C", [(0, 1, 2), (3, 4)]),
        ("A : B:{,2} : C", "A C A B C A B B C A B B B C", [(0, 1), (2, 3, 4), (5, 6, 7, 8)]),
        ("(A ; B?){2}", "A B A", [(0, 1, 2), (0, 2)]),
        ("(A? : B):{2}", "A B B A B", [(0, 1, 2), (1, 2), (2, 3, 4)]),
        ("(A? ; B?) ; C", "A B C", [(0, 1, 2), (0, 2), (1, 2), (2,)]),
        ("(A?)+ ; B", "A A B", [(0, 1, 2), (0, 2), (1, 2), (2,)]),
        ("A{2,3} ; A", "A A A", [(0, 1, 2)]),
        ("A : (NOT(B)):{2} : C", "A D D C A B D C", [(0, 3)]),
        ("A : (NOT(B)):* : C", "A C A D C A B C", [(0, 1), (0, 4), (2, 4)]),
        ("A ; B? FILTER B[v=1]", "A B1 B2", [(0,), (0, 1)]),
    ],
)
def test_quantifier_matches_what_its_definition_says(text, events, found):
    assert data(f"SELECT * WHERE {text}", events) == sorted(found)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("A{3} ; B", "A ; A ; A ; B"),
        ("A:{3} : B", "A : A : A : B"),
        ("A ; B{1,3} ; C", "A ; B ; C OR A ; B ; B ; C OR A ; B ; B ; B ; C"),
        ("A ; (B AS x)? ; C", "A ; C OR A ; B AS x ; C"),
        ("A ; (B AS x){,2} ; C", "A ; C OR A ; B AS x ; C OR A ; B AS x ; B AS x ; C"),
        ("A* ; B", "B OR A+ ; B"),
        ("A{2,} ; B", "A ; A+ ; B"),
        ("(A:B){2} ; C", "(A : B) ; (A : B) ; C"),
    ],
)
@pytest.mark.parametrize("strategy", ["ALL", "NEXT", "LAST", "MAX", "STRICT"])
def test_quantifier_means_what_the_same_pattern_means_written_out(short, long, strategy):
    events = "A B A C A B B C A B A B C D A A A B C"
    one, two = (case(f"SELECT {strategy} * WHERE {text} WITHIN 9 EVENTS", events) for text in (short, long))
    assert reference(one) == reference(two)
    assert data(str(one.query), events)


@pytest.mark.parametrize(("short", "long"), [("A{20} ; B", " ; ".join(["A"] * 20) + " ; B"), ("A:{9}", " : ".join(["A"] * 9))])
def test_automaton_of_a_quantifier_is_as_large_as_that_of_the_pattern_written_out(short, long):
    one, two = (build(parse(f"SELECT * WHERE {text}")) for text in (short, long))
    assert len(one.transitions) == len(two.transitions)
    assert sorted(map(len, one.transitions)) == sorted(map(len, two.transitions))


@pytest.mark.parametrize("quantifier", ["{40}", "{1,40}", "{,40}"])
def test_automaton_of_a_range_has_two_states_for_each_time(quantifier):
    assert len(build(parse(f"SELECT * WHERE A ; B{quantifier} ; C")).transitions) <= 2 * 42


@pytest.mark.parametrize(("strategy", "most"), [("ALL", 102), ("MAX", 5_100)])
def test_longest_quantifier_has_few_nodes(strategy, most):
    parsed = parse(f"SELECT {strategy} * WHERE A{{100}} ; B")
    automaton = build(parsed)
    tables = Tables(Determiniser(automaton, strategy))
    letters = tables.letters([pa.array([1, 2]).to_numpy()])
    learned = 0
    while learned < len(tables.nodes):
        tables.learn(learned, int(letters[0]))
        learned += 1
    assert 100 < len(tables.nodes) <= most


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("A{0} ; B", 18, "a step that occurs 0 times matches nothing; leave it out, or write ? for one that may occur."),
        ("A{,0} ; B", 19, "a step that occurs 0 times matches nothing; leave it out, or write ? for one that may occur."),
        ("A{3,2}", 18, "the quantifier {3,2} is empty; write the smaller number first."),
        ("A{1.5}", 18, "a quantifier needs whole numbers from 0, not 1.5."),
        ("A{2,-1}", 20, "a quantifier needs whole numbers from 0, not -1."),
        ("A{}", 18, "found '}'; expected a number, ',' or '-'."),
        ("A{,}", 19, "found '}'; expected a number or '-'."),
        ("A{101}", 18, ("a quantifier goes up to 100; repeat with + or {n,}, or count the events before, in a window or with "
         "stateful_map.")),
        ("A{2," + "9" * 5000 + "}", 20, ("a quantifier goes up to 100; repeat with + or {n,}, or count the events before, in a "
         "window or with stateful_map.")),
        ("(A{16}){10} ; B", 17, ("the pattern has 161 steps with its quantifiers written out, of at most 150; repeat with + or {n,}, "
         "or count the events before, in a window or with stateful_map.")),
        ("A+? ; B", 18, ("a quantifier cannot be reluctant: every number of events is found, and SELECT NEXT, LAST or MAX chooses; "
         "for an optional repetition put it in parentheses: (A+)?.")),
        ("A ; B{2} ? ; C", 25, ("a quantifier cannot be reluctant: every number of events is found, and SELECT NEXT, LAST or MAX "
         "chooses; for an optional repetition put it in parentheses: (A+)?.")),
        *((text, at, "the pattern matches no events at all, too; let one of its steps occur at least once, as with + or {1,3}.")
          for text, at in (("A?", 16), ("A*", 16), ("A:*", 16), ("A{0,2}", 16), ("A? ; B*", 16), ("(A?)+", 17), ("(A?){3}", 17),
                           ("A OR B?", 16), ("NOT(A)?", 20), ("A* AS x FILTER x[v=1]", 16))),
    ],
)  # fmt: skip
def test_quantifier_that_means_nothing_is_refused_with_its_place(text, column, message):
    with pytest.raises(QueryError) as refused:
        parse(f"SELECT * WHERE {text}")
    assert str(refused.value).startswith(f"line 1, column {column}: {message}\n")


def test_sequence_without_quantifiers_may_be_as_long_as_it_was():
    assert build(parse("SELECT * WHERE " + " ; ".join("A" * 147))).transitions


# ------------------------------------------------------------------------------------------------- one alert per incident


INCIDENT = "SELECT MAX * WHERE fail{4,} ; ok WITHIN 10 MINUTES CONSUME BY PARTITION"
NUMBERS = itertools.count()


def alerts(query, cuts, log, workers=2):
    """The alerts of a flow, as (user, the times of their events), of a log such as "a fail" or "b ok", one a minute."""
    flow = ps.Flow(f"incidents{next(NUMBERS)}")
    found = ps.memory(f"alerts{next(NUMBERS)}")
    source = flow.source("log", ps.files("nowhere", "user string, kind string, at timestamp"), time="at")
    source.key_by("user").match(query, type="kind").sink(found)
    rows = [dict(zip(("user", "kind"), entry.split(), strict=True), at=minute(n)) for n, entry in enumerate(log)]
    with Harness(flow, workers=workers) as harness:
        for low, high in itertools.pairwise([0, *cuts, len(rows)]):
            harness.push("log", rows[low:high])
            harness.epoch()
        harness.finish()
    return sorted((row["user"], [event["at"].minute for event in row["events"]]) for row in found.rows())


def minute(n):
    return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=n)


@pytest.mark.parametrize("cuts", [(), (3,), (1, 2, 3, 4, 5)])
def test_four_failures_and_a_success_give_one_row_in_a_flow(cuts):
    log = ["a fail", "a fail", "b fail", "a fail", "a fail", "a ok", "b ok", "a ok"]
    assert alerts(INCIDENT, cuts, log) == [("a", [0, 1, 3, 4, 5])]


def test_incident_of_six_failures_is_one_row_and_the_next_incident_another():
    log = [*["a fail"] * 6, "a ok", "a fail", "a ok", *["a fail"] * 4, "a ok"]
    assert alerts(INCIDENT, (2, 9), log) == [("a", [0, 1, 2, 3, 4, 5, 6]), ("a", [7, 9, 10, 11, 12, 13])]
    in_a_row = INCIDENT.replace("fail{4,} ; ok", "fail:{4,} : ok")
    assert alerts(in_a_row, (2, 9), log) == [("a", [0, 1, 2, 3, 4, 5, 6]), ("a", [9, 10, 11, 12, 13])]


def test_events_of_no_type_of_the_query_part_what_must_follow_without_a_gap():
    log = ["a fail", "a look", "a fail", "b fail", "a look", "b fail"]
    assert alerts("SELECT * WHERE fail:{2}", (2,), log) == [("b", [3, 5])]
    assert alerts("SELECT * WHERE fail{2}", (2,), log) == [("a", [0, 2]), ("b", [3, 5])]


@pytest.mark.spark
def test_four_failures_and_a_success_give_one_row_in_a_data_frame(spark):
    log = ["a fail", "a fail", "b fail", "a fail", "a fail", "a ok", "b ok", "a ok"]
    rows = [(*entry.split(), n) for n, entry in enumerate(log)]
    frame = spark.createDataFrame(rows, "user string, kind string, n int").selectExpr("*", "timestamp_seconds(n * 60) AS at")
    query = INCIDENT.replace(" WITHIN", " PARTITION BY [user] WITHIN")
    found = ps.match(frame, query, order_by="at", type="kind").collect()
    assert [(row.user, [event.n for event in row.events]) for row in found] == [("a", [0, 1, 3, 4, 5])]


# ------------------------------------------------------------------------------------------------------- another quantifier


@pytest.mark.parametrize("other", ["fail{4} ; ok", "fail{3} ; ok", "fail{4,} ; ok", "fail:{4} ; ok"])
def test_flow_whose_quantifier_was_changed_is_told_to_be_another(tmp_path, other):
    def flow(pattern):
        flow = ps.Flow("changed")
        source = flow.source("log", ps.files(tmp_path, "user string, kind string, at timestamp"), time="at")
        source.key_by("user").match(f"SELECT * WHERE {pattern} WITHIN 1 HOUR", type="kind").sink(ps.memory("changed"))
        return flow

    first = Harness(flow("fail{4} ; ok"), checkpoint=str(tmp_path / "checkpoint"))
    first.push("log", [{"user": "a", "kind": "fail", "at": minute(0)}])
    first.epoch()
    first.close()
    if other == "fail{4} ; ok":
        Harness(flow(other), checkpoint=str(tmp_path / "checkpoint")).close()
        return
    with pytest.raises(ChangedFlowError, match=r"its query was SELECT \* WHERE fail\{4\} ; ok WITHIN 1 HOUR and is now"):
        Harness(flow(other), checkpoint=str(tmp_path / "checkpoint"))
