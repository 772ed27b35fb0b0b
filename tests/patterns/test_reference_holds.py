"""The recogniser answers as the reference does, however the stream is cut."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from functools import cache, lru_cache

import pytest
from ceql_drawing import Case, draw
from ceql_enriching import enriched
from ceql_running import complaint, in_batch, in_epochs, key_of

from penstock.errors import RecordError
from penstock.patterns import algebra as s
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.reference import Seen, evaluate

IN_BATCH, IN_FLOWS = 3_100, 1_650  # seeds of a block
BLOCKS = range(10)
SHARED = range(31_000, 34_000)  # seeds of their own, so that no triple counts twice
EXTRA = int(os.environ.get("PENSTOCK_CER_CASES", "0"))  # further cases of each kind, for a long search


def check(seed, case, run):
    wrong = complaint(case, run(case))
    assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"


def for_flows(seed):
    """A case that a flow can be asked: keyed, and a window of events counts those of the key."""
    return replace(enriched(draw(seed, keyed=True, needs_global_order=False), seed), events_window="key")


def each_key_for_itself(seed):
    """A case in which any match empties all keys, whose windows are in what ascends within a key only; None if it has no such window."""
    case = draw(seed, keyed=True)
    window = case.query.window
    if case.query.consume != "ANY" or window is None or window.kind == "time":
        return None
    rng, ascending, events = random.Random(seed), {}, []
    for event in (e for again in range(3) for e in (replace(e, at=e.at + 100 * again) for e in case.events)):
        key = key_of(case, event)
        ascending[key] = ascending.get(key, rng.randint(0, 5)) + rng.choice([0, 0, 1, 1, 2])
        events.append(replace(event, values={**event.values, "n": ascending[key]}))
    events = tuple(events[: rng.randint(1, 16)])
    cuts = tuple(sorted(rng.sample(range(1, len(events) + 1), min(3, len(events)))))
    return replace(case, events=events, cuts=cuts, events_window="key")


def by_epochs(case):
    return in_epochs(case)[0]


@lru_cache(maxsize=1)
def in_batches(block):
    return {seed: enriched(draw(seed), seed) for seed in range(block * IN_BATCH, (block + 1) * IN_BATCH)}


@lru_cache(maxsize=1)
def in_flows(block):
    return {seed: for_flows(seed) for seed in range(block * IN_FLOWS, (block + 1) * IN_FLOWS)}


@lru_cache(maxsize=1)
def shared(_=0):
    return {seed: draw(seed) for seed in SHARED}


@cache
def different(kind, block):
    """Hashes of the triples of a block; kept, as to draw it once more would take as long as to check many."""
    streams = lambda case: tuple((e.types, tuple(e.values.items()), e.at, e.stream) for e in case.events)  # noqa: E731
    return {hash((case.query, streams(case), case.cuts)) for case in kind(block).values()}


@pytest.mark.parametrize("block", BLOCKS)
def test_batch_answers_as_the_reference_however_it_is_cut(block):
    for seed, case in in_batches(block).items():
        check(seed, case, in_batch)
    assert different(in_batches, block)


@pytest.mark.parametrize("block", BLOCKS)
def test_flow_operator_answers_as_the_reference_in_any_epochs(block):
    for seed, case in in_flows(block).items():
        check(seed, case, by_epochs)
    assert different(in_flows, block)


def test_batch_of_keys_that_are_seen_together_measures_windows_of_each_for_itself():
    cases = {seed: case for seed in range(30_000, 34_800) if (case := each_key_for_itself(seed)) is not None}
    assert len(cases) > 400
    for seed, case in cases.items():
        check(seed, case, in_batch)


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2)])
def test_step_back_of_a_key_that_is_seen_with_others_is_refused_in_whichever_chunk(cuts):
    query = parse("SELECT * WHERE A ; B PARTITION BY [k] WITHIN 5 [n] CONSUME BY ANY")
    events = [
        Seen(frozenset("A"), {"v": 0, "w": 0, "t": "a", "n": n, "k": k, "j": 0}, n) for k, n in ((1, 12), (2, 3), (1, 11))
    ]
    case = Case(query, tuple(events), cuts, "end", "key")
    with pytest.raises(
        RecordError, match=r"while a match is under way, but that of \(p 2, .*k 1\) is less than the one before"
    ):
        in_batch(case)


def test_shared_enumeration_answers_as_the_reference():
    for seed, case in shared().items():
        check(seed, case, lambda case: in_batch(case, light=0))
    assert different(shared, 0)


def test_triples_of_query_stream_and_cuts_that_are_checked_above_are_more_than_50_000_different_ones():
    drawn = [(shared, 0), *((kind, block) for kind in (in_batches, in_flows) for block in BLOCKS)]
    assert len(set().union(*(different(*which) for which in drawn))) > 50_000


def test_triples_that_are_checked_above_have_matches_most_of_several_events_many_and_every_clause_some():
    found = Counter()
    cases = [*in_batches(0).values(), *in_flows(0).values(), *list(shared().values())[::10]]
    for case in cases:
        query, counted = case.query, isinstance(case.query.projection, s.CountAll)
        answers = evaluate(query, case.events, scope=case.scope, events_window=case.events_window)
        matches = [m for groups in answers.values() for group in groups for m in group.matches]
        chosen = query.projection.items if isinstance(query.projection, s.Chosen) else ()
        found["matches"] += bool(matches)
        found["of several"] += not counted and any(len(m.data) > 1 for m in matches)
        found["over a cut"] += any(m.start < cut <= m.end for m in matches for cut in case.cuts)
        found["counted"] += counted and bool(matches)
        found["limited"] += any(sum(g.count for g in groups) > (query.limit or len(matches)) for groups in answers.values())
        found["attributes"] += bool(matches) and any(item.attributes for item in chosen)
        found["FROM"] += bool(matches) and len(query.streams) > 0
        found["stream>type"] += bool(matches) and ">" in str(query.formula)
    shares = {what: n / len(cases) for what, n in found.items()}
    assert shares["matches"] > 0.55, shares
    assert shares["of several"] > 0.25, shares
    assert shares["over a cut"] > 0.15, shares
    assert shares.pop("limited") > 0.002, shares
    assert min(shares.values()) > 0.01, shares


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_cases_answer_as_the_reference():
    for seed in range(1_000_000, 1_000_000 + (EXTRA or 400_000)):
        check(seed, enriched(draw(seed), seed), in_batch)
        if seed % 4 == 0:
            check(seed, for_flows(seed), by_epochs)
