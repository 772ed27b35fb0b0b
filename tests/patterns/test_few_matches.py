"""How many matches can end with one event follows from some queries, whatever the events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ceql_drawing import draw

from penstock.patterns.algebra import Everything
from penstock.patterns.automaton.build import build
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.plan import FEW_MATCHES, ready
from penstock.patterns.reference import evaluate


def most(query):
    return build(parse(f"SELECT * WHERE {query}")).most_matches


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("A", 1),
        ("A : B : C", 1),
        ("A : NOT(B) : C", 1),
        ("A : (B OR C) : A", 2),
        ("(A : B) OR (A : C) OR A", 3),
        ("(A OR B) : (A OR B) : (A OR B)", 8),
        ("A ; B", None),
        ("A :+", None),
        ("A+", None),
        ("A : B OR A ; C", None),
    ],
)
def test_ways_through_a_query_without_repetition_bound_its_matches(query, matches):
    assert most(query) == matches


def test_no_event_of_random_streams_ends_more_matches_than_the_query_allows():
    bounded = reached = 0
    for seed in range(50_000, 58_000):
        case = draw(seed)
        case = replace(case, query=replace(case.query, strategy="ALL", limit=None, projection=Everything()))
        allowed = build(case.query).most_matches
        if allowed is None:
            continue
        bounded += 1
        for groups in evaluate(case.query, case.events, scope="end", events_window=case.events_window).values():
            told = sum(group.count for group in groups)
            assert told <= allowed, f"seed {seed}: {case.query}: {told} matches of one event, not {allowed}"
            reached += told == allowed
    assert bounded > 1_000
    assert reached > 1_000


@pytest.mark.parametrize(("choices", "few"), [(6, True), (7, False)])
def test_few_are_at_most_64(choices, few):
    query = parse("SELECT * WHERE " + " : ".join(["(A OR B)"] * choices))
    pattern = ready(query, ("at",), order=("at",), keys=())
    assert pattern.automaton.most_matches == 2**choices
    assert pattern.enumerates_locally == few
    assert FEW_MATCHES == 64
