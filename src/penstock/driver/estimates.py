"""The remaining time of a rescale, for people: no decision depends on it."""

from __future__ import annotations

from collections import Counter

from penstock.protocol.rescale import Limits, Placement
from penstock.protocol.rescale.collect import pending_bins, pending_keys


def left_ms(control: Placement, limits: Limits, cost_us: int, epoch_ms: int) -> int | None:
    """Time until a rescale is done, in ms; None: unknown.

    The workers give up their bins in parallel, each in steps that grow to the budget's limit; a step takes an epoch.

    Args:
        control: The region's placement after an epoch.
        limits: The bounds of a step.
        cost_us: The cost of the epoch's step for the slowest worker; 0: there was none.
        epoch_ms: Time since the previous epoch.
    """
    goal = control.goal
    if goal is None or goal.target is None or epoch_ms <= 0:
        return None
    bins, sizes = pending_bins(control, goal), goal.bytes_by_bin
    owners = control.routing.owners
    amount: Counter[int] = Counter()
    for at in bins:
        amount[owners[at]] += sizes[at] if sizes else 0
    affordable = goal.step_bytes * limits.budget_us // cost_us if cost_us else limits.most_bytes
    most = max(goal.step_bytes, min(affordable, limits.most_bytes))
    steps = max(
        (
            _steps(amount[giver], n, goal.step_bytes, most, limits.most_items)
            for giver, n in Counter(owners[b] for b in bins).items()
        ),
        default=0,
    )
    keys = len(pending_keys(control)) + len(control.held)
    return epoch_ms * (steps + -(-keys // limits.most_items))


def _steps(amount: int, bins: int, step: int, most: int, most_bins: int) -> int:
    """The number of steps in which a worker gives up so many bytes, in so many bins, if steps double up to `most`."""
    taken, given = 0, 0
    while given < amount and step < most:
        taken, given, step = taken + 1, given + step, min(2 * step, most)
    taken += max(0, -(-(amount - given) // max(1, most)))
    return max(min(taken, bins), -(-bins // most_bins))
