"""Phase 1. The workers say how large the state of each bin is, a few bins per epoch, so that the target balances bytes.

I1  Nothing moves while sizes are unknown; rows flow as before.
I2  A worker measures only its own bins, each once, in order; a bin that grows or gets new keys meanwhile is not measured again, so
    the phase ends after at most as many epochs as there are bins, whatever the sources do.
I3  Sizes only balance. What moves is decided when it is collected, so stale sizes cost balance, never correctness.
I4  A new goal keeps the sizes measured so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.protocol.messages import Answer, Interrogate
from penstock.protocol.rescale.bin_plan import spread
from penstock.protocol.rescale.placement import Placement, RescaleGoal


def ask(control: Placement, goal: RescaleGoal, entries: int) -> dict[int, Interrogate]:
    """What each worker that is not done is to measure in the next epoch."""
    bins = len(control.routing.owners)
    asked = {w: Interrogate(goal.cursors.get(w, 0), entries) for w in range(control.workers)}
    return {w: m for w, m in asked.items() if m.start < bins}


def measured(control: Placement, goal: RescaleGoal, answers: Mapping[int, Answer]) -> Placement:
    """The control after an epoch's answers; with a target as soon as all bins are measured.

    A worker without an answer had no state and is done.
    """
    bins = len(control.routing.owners)
    sizes = list(goal.bytes_by_bin) or [0] * bins
    cursors = dict(goal.cursors)
    for worker in ask(control, goal, 1):
        sized = answers[worker].sized if worker in answers else None
        for at, n in sized.bytes_by_bin if sized else ():
            sizes[at] += n
        cursors[worker] = sized.next if sized else bins
    goal = replace(goal, bytes_by_bin=tuple(sizes), cursors=cursors)
    if all(cursors.get(w, 0) >= bins for w in range(control.workers)):
        goal = aimed(control, goal)
    return replace(control, goal=goal)


def aimed(control: Placement, goal: RescaleGoal) -> RescaleGoal:
    """The goal with a target for every bin; a bin in motion counts as where it is going (rule C5)."""
    routing = control.routing
    owners = [routing.splits[b].to if b in routing.splits else w for b, w in enumerate(routing.owners)]
    target = spread(owners, goal.bytes_by_bin, goal.workers, goal.base, goal.opened, control.watch.closed)
    return replace(goal, target=target)
