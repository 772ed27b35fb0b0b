"""The small checks of the language's definition, by the reference and by both ways of running a query."""

from __future__ import annotations

import dataclasses
import random

import pytest
from ceql_drawing import Case, draw
from ceql_running import complaint, in_batch, in_epochs

from penstock.patterns.ceql.parsing import parse
from penstock.patterns.reference import Seen, evaluate


def stream(text):
    """Events such as ``A1 B``: a type, and v = k = its number. An A has the number as x, any other as y; g is the same for all."""
    out = []
    for i, word in enumerate(text.split()):
        number = int(word[1:]) if word[1:] else None
        x, y = (number, None) if word[0] == "A" else (None, number)
        out.append(Seen(frozenset(word[0]), {"v": number, "k": number, "x": x, "y": y, "g": 0, "n": i}, i))
    return tuple(out)


def case(query, events, *, scope="end", events_window="key"):
    return Case(parse(query), stream(events), (2, 4), scope, events_window)


def of_one_key(asked):
    """The same with all events in one key: a flow has no streams without."""
    return (
        asked
        if asked.query.partition_by
        else dataclasses.replace(asked, query=dataclasses.replace(asked.query, partition_by=(("g",),)))
    )


def reference(asked):
    """All matches, by the reference, as (start, end, data)."""
    found = evaluate(asked.query, asked.events, scope=asked.scope, events_window=asked.events_window)
    return {(m.start, m.end, m.data) for answers in found.values() for answer in answers for m in answer.matches}


def data(text, events, **options):
    """The sets of positions of a query's matches, after the reference was found to agree with the real code."""
    asked = case(text, events, **options)
    assert complaint(asked, in_batch(asked)) is None
    keyed = of_one_key(asked)
    assert complaint(keyed, in_epochs(keyed)[0]) is None
    return sorted(d for _, _, d in reference(asked))


@pytest.mark.parametrize(
    ("text", "events", "found"),
    [
        ("A;B", "A A B A B", [(0, 2), (0, 4), (1, 2), (1, 4), (3, 4)]),
        ("A+", "A A A", [(0,), (0, 1), (0, 1, 2), (0, 2), (1,), (1, 2), (2,)]),
        ("(A;B)+", "A B A B", [(0, 1), (0, 1, 2, 3), (0, 3), (2, 3)]),
        ("(A):+", "A A B A", [(0,), (0, 1), (1,), (3,)]),
        ("A : (NOT(B)):+ : C", "A D C A B C A D D C", [(0, 2), (6, 9)]),
        ("(A;B) OR (A;B)", "A B", [(0, 1)]),
        ("((B)+;(C):+)+", "B C A C C", [(0, 1), (0, 3), (0, 3, 4), (0, 4)]),
        ("A AS x ; B AS y FILTER x[v=1] OR y[v=1]", "A1 A2 B1 B2", [(0, 2), (0, 3), (1, 2)]),
        ("A:B PARTITION BY [x,y]", "A1 C B1 A2 B1 B2", [(0, 2), (3, 5)]),
    ],
)
def test_small_check_holds(text, events, found):
    # In the last one A's key is x, B's is y, and C has neither.
    assert data(f"SELECT * WHERE {text}", events) == found


def test_kleene_blocks_give_21_matches_of_which_one_is_maximal():
    asked = "A;B+;C+;D", "A B B C C C D"
    assert len(data(f"SELECT * WHERE {asked[0]}", asked[1])) == 21
    assert data(f"SELECT MAX * WHERE {asked[0]}", asked[1]) == [(0, 1, 2, 3, 4, 5, 6)]


# ------------------------------------------------------------------------------------- what the definition says in words only


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("ALL", [(0, 1), (0, 3), (0, 4), (1, 3), (1, 4), (3, 4)]),
        ("MAX", [(0, 1), (0, 3), (0, 4), (1, 3), (1, 4), (3, 4)]),
        ("NEXT", [(0, 1), (0, 3), (0, 4)]),
        ("LAST", [(0, 1), (1, 3), (3, 4)]),
        ("STRICT", [(0, 1), (3, 4)]),
    ],
)
def test_strategies_choose_among_matches_that_end_together(strategy, found):
    assert data(f"SELECT {strategy} * WHERE A ; (A AS z FILTER z[v=2])", "A1 A2 B A2 A2") == found


@pytest.mark.parametrize("strategy", ["MAX", "NEXT", "LAST"])
def test_superset_beats_its_subsets_in_every_order(strategy):
    assert data(f"SELECT {strategy} * WHERE A+ ; B", "A A B") == [(0, 1, 2)]


@pytest.mark.parametrize("strategy", ["NEXT", "LAST"])
@pytest.mark.parametrize(
    "formula",
    [
        "((A ; B AS b ; C AS c) OR (D ; B AS b ; E AS c)) ; F AS f",
        "((A : B AS b ; C AS c) OR (D ; B AS b ; E+ AS c)) ; F AS f",
        "((A : C : B AS b) OR (D ; B AS b) OR (E ; B AS b ; C AS c)) ; F AS f",
        "((A ; B AS b) OR (D ; (E AS c)+ ; B AS b)) ; C AS c ; F AS f",
        "(((A OR D) : B AS b) OR (C ; B AS b ; A AS c)) ; F+ AS f",
    ],
)
def test_matches_whose_starts_are_not_marked_are_compared_to_their_last_mark(strategy, formula):
    rng, several = random.Random(7), 0
    for _ in range(150):
        events = " ".join(rng.choices("ABCDEF", k=16))
        asked = case(
            f"SELECT {strategy} b, c{rng.choice([', f', ''])} WHERE {formula} WITHIN {rng.choice([5, 9, 16])} EVENTS", events
        )
        keyed = of_one_key(asked)
        assert complaint(asked, in_batch(asked)) is None
        assert complaint(keyed, in_epochs(keyed)[0]) is None
        everything = reference(case(str(asked.query).replace(strategy, "ALL"), events))
        several += len({end for _, end, _ in everything}) < len({(start, end) for start, end, _ in everything})
    assert several > 4  # streams have matches of several starts to compare


@pytest.mark.parametrize("strategy", ["NEXT", "LAST"])
def test_longest_match_wins_however_long_it_is(strategy):
    asked = case(f"SELECT {strategy} * WHERE A+", "A " * 700)
    assert sorted(match.data for _, match in in_batch(asked)) == [tuple(range(end + 1)) for end in range(700)]


def test_interval_scope_compares_only_matches_of_one_interval():
    text = "SELECT MAX * WHERE A ; A+"
    assert data(text, "A A A") == [(0, 1), (0, 1, 2)]
    assert data(text, "A A A", scope="interval") == [(0, 1), (0, 1, 2), (1, 2)]


def test_any_gives_one_match_of_each_group():
    asked = case("SELECT ANY * WHERE A ; B", "A A B")
    assert reference(asked) == {(0, 2, (0, 2)), (1, 2, (1, 2))}
    assert len(in_batch(asked)) == 1
    assert complaint(asked, in_batch(asked)) is None


@pytest.mark.parametrize(
    ("window", "found"),
    [("1 EVENTS", [(3, 4)]), ("2 EVENTS", [(1, 3), (3, 4)]), ("3 EVENTS", [(0, 3), (1, 3), (1, 4), (3, 4)])],
)
def test_window_of_events_includes_its_end(window, found):
    assert data(f"SELECT * WHERE A ; (A AS z FILTER z[v=1]) WITHIN {window}", "A A C A1 A1") == found


def test_window_of_an_attribute_includes_its_end():
    assert data("SELECT * WHERE A ; B WITHIN 2[n]", "A A C B") == [(1, 3)]
    assert data("SELECT * WHERE A ; B WITHIN 2.5[n]", "A A C B") == [(1, 3)]
    assert data("SELECT * WHERE A ; B WITHIN 0.000002 SECONDS", "A A C B") == [(1, 3)]


def test_events_window_counts_the_whole_stream_or_the_keys():
    text = "SELECT * WHERE A ; B PARTITION BY [k] WITHIN 1 EVENTS"
    assert data(text, "A1 C2 B1", events_window="key") == [(0, 2)]
    globally = case(text, "A1 C2 B1", events_window="global")
    assert reference(globally) == set()
    assert complaint(globally, in_batch(globally)) is None


def test_consumption_drops_open_matches_of_the_key_or_of_all():
    def found(consume):
        asked = case(f"SELECT * WHERE A ; B PARTITION BY [k] CONSUME BY {consume}", "A1 A2 B1 B1 B2")
        assert complaint(asked, in_batch(asked)) is None
        return sorted(d for _, _, d in reference(asked))

    assert found("NONE") == [(0, 2), (0, 3), (1, 4)]
    assert found("PARTITION") == [(0, 2), (1, 4)]
    assert found("ANY") == [(0, 2)]


def test_projection_keeps_the_interval_and_matches_differ_by_it():
    asked = case("SELECT B WHERE A ; B", "A A B")
    assert reference(asked) == {(0, 2, (2,)), (1, 2, (2,))}
    assert complaint(asked, in_batch(asked)) is None
    nothing = case("SELECT NONE WHERE A ; B ; C", "A B B C")
    assert reference(nothing) == {(0, 3, ())}
    assert complaint(nothing, in_batch(nothing)) is None


def test_excluded_event_may_start_or_end_a_match_and_null_does_not_exclude():
    assert data("SELECT * WHERE NOT(B) : A", "C A B A") == [(1,)]
    assert data("SELECT * WHERE A : NOT(B)", "A B A C") == [(2,)]
    assert reference(case("SELECT * WHERE A : NOT(B)", "A B A C")) == {(2, 3, (2,))}
    # v is null at position 0, so B[v=1] is not true of it and NOT lets it through.
    assert data("SELECT * WHERE NOT(B FILTER B[v=1]) : A", "B A B1 A B2 A") == [(1,), (5,)]


def test_filter_is_true_of_a_variable_bound_to_nothing():
    assert data("SELECT * WHERE A OR B FILTER A[v=1]", "A1 A2 B") == [(0,), (2,)]


# ------------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_limit_keeps_the_first_matches_of_each_closing_event(limit):
    for seed in range(600):
        whole = draw(seed)
        if whole.query.strategy == "ANY":
            continue
        limited = dataclasses.replace(whole, query=dataclasses.replace(whole.query, limit=limit))
        wanted, counts = [], {}
        for key, match in in_batch(whole):
            place = key, match.end
            counts[place] = counts.get(place, 0) + 1
            wanted += [(key, match)] if counts[place] <= limit else []
        assert in_batch(limited) == wanted, f"seed {seed}: {limited.query}"
