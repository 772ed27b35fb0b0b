"""The recogniser answers as the reference does, however the stream is cut."""

from __future__ import annotations

import os

import pytest
from ceql_drawing import draw
from ceql_running import complaint, in_batch, in_epochs

BLOCK = 2_500
BLOCKS = range(10)
EXTRA = int(os.environ.get("PENSTOCK_CER_CASES", "0"))  # further cases of each kind, for a long search


def check(seed, run, **kind):
    case = draw(seed, **kind)
    wrong = complaint(case, run(case))
    assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"


@pytest.mark.parametrize("block", BLOCKS)
def test_batch_answers_as_the_reference_however_it_is_cut(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed, in_batch)


@pytest.mark.parametrize("block", BLOCKS)
def test_flow_operator_answers_as_the_reference_in_any_epochs(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = draw(seed, keyed=True, mixed=False)
        if case.events_window == "key" or case.query.window is None or case.query.window.kind != "events":
            wrong = complaint(case, in_epochs(case)[0])
            assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"


def test_shared_enumeration_answers_as_the_reference():
    for seed in range(3_000):
        check(seed, lambda case: in_batch(case, light=0))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_cases_answer_as_the_reference():
    for seed in range(1_000_000, 1_000_000 + (EXTRA or 400_000)):
        check(seed, in_batch)
        check(seed, lambda case: in_epochs(case)[0], keyed=True, mixed=False) if seed % 4 == 0 else None
