"""Enumeration from maximal matches gives what the reference gives, each match once; and says no where it could not."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from ceql_drawing import Case, draw
from ceql_running import COLUMNS, answers_in, complaint, table_of

import penstock as ps
from penstock.errors import OperatorError, QueryError, RecordError
from penstock.patterns import algebra as s
from penstock.patterns.batch import Spread, enumerated, matches_of
from penstock.patterns.enumeration.maximal import ID, Maximal, MaximalDisjoint, labelled, load_share
from penstock.patterns.plan import ready
from penstock.patterns.reference import Seen
from penstock.patterns.result_columns import shape_of


def sequence(seed):
    """A case whose query is a sequence of different types, over events of one type each."""
    rng, case = random.Random(seed), draw(seed, needs_global_order=False)
    formula = None
    for kind in rng.sample("ABC", rng.choice([1, 2, 3, 3])):
        item: s.Formula = s.Event(kind)
        item = s.Plus(item, contiguous=False) if rng.random() < 0.6 else item
        item = s.As(item, f"x{kind}") if rng.random() < 0.3 else item
        if rng.random() < 0.3:
            item = s.Filtered(item, s.Bound(kind, s.Compare(">=", s.Attribute("v"), s.Number("1"))))
        formula = item if formula is None else s.Then(formula, item, contiguous=False)
    query = dataclasses.replace(case.query, strategy="ALL", formula=formula, projection=s.Everything())
    events = tuple(Seen(frozenset(sorted(e.types)[:1]), e.values, e.at) for e in draw(seed + 1).events + case.events)
    ordered = tuple(Seen(e.types, {**e.values, "n": i // 2}, i) for i, e in enumerate(events))
    return Case(query, ordered, tuple(c for c in case.cuts if c < len(ordered)), "end", case.events_window)


def pattern_of(case, most=1_000_000):
    names = tuple("_".join(group) for group in case.query.partition_by)
    pattern = ready(
        labelled(case.query, "MaximalDisjoint"), COLUMNS, order=("at",), keys=names, events_window=case.events_window,
        max_matches_per_event=most,
    )  # fmt: skip
    return dataclasses.replace(pattern, shape=shape_of(case.query, COLUMNS, pattern.automaton.kinds, names))


def told(case, by, workers=3, most=1_000_000):
    """The rows, and how many each worker told."""
    pattern = pattern_of(case, most)
    table = table_of(case, pattern)
    edges = [0, *[c for c in case.cuts if c < table.num_rows], table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]
    found = list(matches_of(pattern, table.schema, iter(pieces), Spread(by, workers, 1), chunk_rows=1))
    if not found:
        return []
    result = pa.schema([f for f in found[0].schema if f.name == ID or not f.name.startswith("__ps_")])
    return list(enumerated(pattern, result, found, load_share))


@pytest.mark.parametrize("light", [5, *(pytest.param(light, marks=pytest.mark.soak) for light in (0, 1000))])
def test_parts_of_maximal_matches_are_all_matches_each_once(light):
    for seed in range(1500):
        case = sequence(seed)
        rows = [row for batch in told(case, MaximalDisjoint(light)) for row in answers_in(case, pattern_of(case), batch)]
        wrong = complaint(case, rows)
        assert wrong is None, f"seed {seed}: {case}\n{wrong}"


def test_matches_that_come_several_times_from_maximal_ones_have_one_identity():
    again = 0
    for seed in range(1500):
        case = sequence(seed)
        kept = {}
        for batch in told(case, Maximal(0)):
            for own, row in zip(batch.column(ID).to_pylist(), answers_in(case, pattern_of(case), batch), strict=True):
                assert kept.setdefault(own, row) == row
                again += 1
        wrong = complaint(case, list(kept.values()))
        assert wrong is None, f"seed {seed}: {case}\n{wrong}"
        again -= len(kept)
    assert again > 50


def stream(kinds):
    return Case(
        ps.parse("SELECT * WHERE A+ ; B+ ; C"), tuple(Seen(frozenset(k), {}, i) for i, k in enumerate(kinds)), (), "end", "key"
    )


def test_configurations_are_shared_among_all_workers():
    rng = random.Random(1)
    kinds = "".join(rng.choice("AB") for _ in range(24)) + "C"
    case = stream(kinds)
    pattern = pattern_of(case)
    table = table_of(case, pattern)
    handed = list(matches_of(pattern, table.schema, iter([table]), Spread(MaximalDisjoint(0), 4, 0)))
    counts = {}
    for batch in handed:
        for place, raw in zip(batch.column("__ps_place").to_pylist(), batch.column("__ps_work").to_pylist(), strict=True):
            counts[place] = sum(len(block.ends) for block in load_share(raw).blocks(100))
    # By the last A: any of the As before it, and at least one of the Bs behind it.
    everything = sum((1 << kinds[:i].count("A")) * ((1 << kinds[i:].count("B")) - 1) for i in range(24) if kinds[i] == "A")
    assert sum(counts.values()) == everything
    assert max(counts.values()) < 1.2 * np.mean(list(counts.values()))


@pytest.mark.parametrize(
    ("query", "word", "why"),
    [
        ("SELECT * WHERE A : B", "A", "it is more than a sequence of types with gaps: (A : B)"),
        ("SELECT * WHERE A ; B:+", "B", "it is more than a sequence of types with gaps: (B):+"),
        ("SELECT * WHERE (A ; B)+", "A ; B", "it repeats a sequence: ((A ; B))+"),
        ("SELECT * WHERE A ; NOT(B) ; C", "B", "it is more than a sequence of types with gaps: NOT (B)"),
        ("SELECT * WHERE A OR B", "A", "it is more than a sequence of types with gaps: (A OR B)"),
        ("SELECT * WHERE A AS x ; B ; A AS y", "A AS y", "type 'A' stands in it twice"),
        ("SELECT B WHERE A ; B", "A", "it does not select 'A', so that several matches look the same"),
        ("SELECT NONE WHERE A ; B", "NONE", "SELECT NONE shows no events"),
        ("SELECT MAX * WHERE A ; B", "MAX", "SELECT MAX keeps only some of the matches"),
        ("SELECT * WHERE A ; B LIMIT 3", "LIMIT", "LIMIT keeps only some of the matches"),
        ("SELECT * WHERE A ; B FILTER A[v = 1] OR B[v = 1]", "A[", "its filter has an OR between variables"),
    ],
)
def test_query_whose_parts_are_not_its_matches_is_refused(query, word, why):
    with pytest.raises(QueryError) as refused:
        labelled(ps.parse(query), "MaximalDisjoint")
    first, shown, caret = str(refused.value).split("\n")
    at = caret.index("^") - 1
    assert first == f"line 1, column {at}: MaximalDisjoint cannot enumerate this query, because {why}; use CountedSplit()."
    assert (shown, query[at - 1 :].startswith(word)) == (f"  {query}", True)


def test_event_of_two_types_is_refused_with_its_place():
    case = stream(["A", "AB", "B", "C"])
    with pytest.raises(
        RecordError, match=r"^Event \(p 1, at .*\) is of two types of the query.*use enumerate_with=CountedSplit"
    ):
        told(case, MaximalDisjoint(0))


def test_more_matches_than_allowed_are_an_error():
    with pytest.raises(OperatorError, match="One event closes more than 100 matches"):
        told(stream("A" * 10 + "B" * 10 + "C"), MaximalDisjoint(0), most=100)
