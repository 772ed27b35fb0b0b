"""The recogniser answers as the reference does, however the stream is cut."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from ceql_drawing import Case, draw
from ceql_running import complaint, in_batch, in_epochs, key_of

from penstock.cer.parsing import parse
from penstock.cer.reference import Seen, evaluate
from penstock.errors import RecordError

BLOCK = 2_500
BLOCKS = range(10)
SHARED = range(25_000, 28_000)  # seeds of their own, so that no triple counts twice
EXTRA = int(os.environ.get("PENSTOCK_CER_CASES", "0"))  # further cases of each kind, for a long search


def check(seed, case, run):
    wrong = complaint(case, run(case))
    assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"


def for_flows(seed):
    """A case that a flow can be asked: keyed, and a window of events counts those of the key."""
    return replace(draw(seed, keyed=True, mixed=False), events_window="key")


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


def in_batches(block):
    return {seed: draw(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)}


def in_flows(block):
    return {seed: for_flows(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)}


def shared():
    return {seed: draw(seed) for seed in SHARED}


@pytest.mark.parametrize("block", BLOCKS)
def test_batch_answers_as_the_reference_however_it_is_cut(block):
    for seed, case in in_batches(block).items():
        check(seed, case, in_batch)


@pytest.mark.parametrize("block", BLOCKS)
def test_flow_operator_answers_as_the_reference_in_any_epochs(block):
    for seed, case in in_flows(block).items():
        check(seed, case, by_epochs)


def test_batch_of_keys_that_are_seen_together_measures_windows_of_each_for_itself():
    cases = {seed: case for seed in range(30_000, 34_000) if (case := each_key_for_itself(seed)) is not None}
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


def test_triples_of_query_stream_and_cuts_that_are_checked_above_are_more_than_50_000_different_ones():
    drawn = [shared(), *(kind(block) for kind in (in_batches, in_flows) for block in BLOCKS)]
    cases = [case for each in drawn for case in each.values()]
    streams = [tuple((frozenset(e.types), tuple(e.values.items()), e.at) for e in case.events) for case in cases]
    assert len({(case.query, stream, case.cuts) for case, stream in zip(cases, streams, strict=True)}) > 50_000


def test_most_triples_have_matches_and_many_of_them_several_events():
    some = several = 0
    for case in [*in_batches(0).values(), *in_flows(0).values()]:
        found = evaluate(case.query, case.events, scope=case.scope, events_window=case.events_window)
        sizes = [len(match.data) for answers in found.values() for answer in answers for match in answer.matches]
        some += bool(sizes)
        several += max(sizes, default=0) > 1
    assert some > BLOCK * 1.15  # of twice a block
    assert several > BLOCK * 0.45


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_cases_answer_as_the_reference():
    for seed in range(1_000_000, 1_000_000 + (EXTRA or 400_000)):
        check(seed, draw(seed), in_batch)
        if seed % 4 == 0:
            check(seed, for_flows(seed), by_epochs)
