"""How much a worker may give up in the next step, from what the last one cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.messages import Answer, Collected
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.protocol.rescale.machine import _next_step

LIMITS = Limits(budget_us=50_000, least_bytes=10_000, most_bytes=1_000_000)  # aims at 40 ms
FULL = 100_000


def answers(*costs_us, given=FULL):
    return {w: Answer(taken=Collected(moved_bytes=given), cost_us=cost) for w, cost in enumerate(costs_us)}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (answers(40_000), 100_000),  # as dear as it may be
        (answers(32_000), 125_000),
        (answers(50_000), 80_000),
        (answers(20_000), 200_000),
        (answers(1_000), 200_000),  # at most twice
        (answers(0), 200_000),
        (answers(80_000), 50_000),
        (answers(10_000_000), 50_000),  # at least half
        (answers(10_000, 50_000, 20_000), 80_000),  # the dearest worker counts
        (answers(1_000, given=49_999), 100_000),  # it gave up less than half: that says nothing of more
        (answers(1_000, given=50_000), 200_000),
        (answers(50_000, given=1), 80_000),  # but if little is too dear, so is more
        ({0: Answer(cost_us=1_000)}, 100_000),  # nothing was given up
        ({}, 100_000),
    ],
)
def test_step_when_the_last_one_cost_so_much_goes_towards_the_budget(told, wanted):
    limits = Limits(**{n: getattr(LIMITS, n) for n in ("budget_us", "least_bytes", "most_bytes")}, slots=8)
    assert _next_step(FULL, told, limits) == wanted


def test_step_when_workers_share_a_core_counts_the_sum_of_their_costs():
    four = answers(20_000, 20_000, 20_000, 20_000)
    assert [_next_step(FULL, four, Limits(slots=slots)) for slots in (1, 2, 4)] == [50_000, 100_000, 200_000]


@pytest.mark.parametrize(("step", "cost_us", "wanted"), [(15_000, 900_000, 10_000), (700_000, 1_000, 1_000_000)])
def test_step_when_it_would_leave_its_bounds_stays_within(step, cost_us, wanted):
    assert _next_step(step, answers(cost_us, given=step), LIMITS) == wanted


def test_step_when_the_cost_stays_proportional_comes_to_the_budget_and_stays():
    step, shown = 10_000, []
    for _ in range(10):
        step = _next_step(step, answers(step // 10, given=step), LIMITS)  # 10 bytes a microsecond
        shown.append(step)
    assert shown[:5] == [20_000, 40_000, 80_000, 160_000, 320_000]
    assert set(shown[6:]) == {400_000}


def test_limits_when_epochs_are_long_then_a_tenth_of_one_may_be_used():
    assert LIMITS.in_epochs_of(100_000) == LIMITS
    assert LIMITS.in_epochs_of(3_000_000) == replace(LIMITS, budget_us=300_000)
    # What a step costs however small it is does not shrink it without end.
    step = 400_000
    for _ in range(20):
        step = _next_step(step, answers(90_000 + step // 10, given=step), LIMITS.in_epochs_of(2_500_000))
    assert step > 400_000
    assert ALL_AT_ONCE.in_epochs_of(10**9) == ALL_AT_ONCE
