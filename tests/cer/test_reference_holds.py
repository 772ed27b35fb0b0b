"""The recogniser answers as the reference does, however the stream is cut."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from ceql_drawing import draw
from ceql_running import complaint, in_batch, in_epochs, key_of

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


@pytest.mark.parametrize("block", BLOCKS)
def test_batch_answers_as_the_reference_however_it_is_cut(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed, draw(seed), in_batch)


@pytest.mark.parametrize("block", BLOCKS)
def test_flow_operator_answers_as_the_reference_in_any_epochs(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed, for_flows(seed), by_epochs)


def test_batch_of_keys_that_are_seen_together_measures_windows_of_each_for_itself():
    cases = {seed: case for seed in range(30_000, 34_000) if (case := each_key_for_itself(seed)) is not None}
    assert len(cases) > 400
    for seed, case in cases.items():
        check(seed, case, in_batch)


def test_shared_enumeration_answers_as_the_reference():
    for seed in SHARED:
        check(seed, draw(seed), lambda case: in_batch(case, light=0))


def test_triples_of_query_stream_and_cuts_that_are_checked_above_are_more_than_50_000_different_ones():
    seeds = range(BLOCK * len(BLOCKS))
    cases = [kind(seed) for kind in (draw, for_flows) for seed in seeds] + [draw(seed) for seed in SHARED]
    streams = [tuple((frozenset(e.types), tuple(e.values.items()), e.at) for e in case.events) for case in cases]
    assert len({(case.query, stream, case.cuts) for case, stream in zip(cases, streams, strict=True)}) > 50_000


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_cases_answer_as_the_reference():
    for seed in range(1_000_000, 1_000_000 + (EXTRA or 400_000)):
        check(seed, draw(seed), in_batch)
        if seed % 4 == 0:
            check(seed, for_flows(seed), by_epochs)
