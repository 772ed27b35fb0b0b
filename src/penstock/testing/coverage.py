"""Which kinds of things a simulated run has had in it, so that a search can prove that it looked where bugs are.

Only this looks into the protocol's own variables, and no checker looks at this.

Read next: `penstock.testing.simulator`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from penstock.protocol.commands import Scale
from penstock.protocol.messages import Answer
from penstock.protocol.rescale import ALL_AT_ONCE, Phase, Placement
from penstock.protocol.rescale.transfer import Finished
from penstock.testing.schedule import Schedule
from penstock.testing.simulated_worker import State

_MANY_WORKERS: Final = 8


def kinds_of(schedule: Schedule) -> Iterator[str]:
    """What is in a schedule."""
    scales = [c.workers for commands in schedule.commands.values() for c in commands if isinstance(c, Scale)]
    yield from ["two regions"] * (len(schedule.regions) > 1)
    yield from {"event time" if r.timed else "no event time" for r in schedule.regions}
    yield from ["joined inputs"] * (schedule.regions[0].inputs > 1)
    yield from ["endless new keys"] * schedule.endless
    yield from ["all at once"] * (schedule.limits is ALL_AT_ONCE)
    yield from ["many workers"] * any(n > _MANY_WORKERS for n in scales)
    yield from ["empty epochs"] * bool(schedule.empty)
    yield from ["command in the first epoch"] * (0 in schedule.commands)
    several = [[c.region for c in commands if isinstance(c, Scale)] for commands in schedule.commands.values()]
    yield from ["back and forth at once"] * any(regions.count(r) > 2 for regions in several for r in set(regions))


def note_scale(seen: set[str], control: Placement, workers: int, empty: bool) -> None:
    """Note which kind of `scale` this is.

    Args:
        seen: Gets it.
        control: The control before it.
        workers: What is asked for.
        empty: Whether no worker holds anything.
    """
    if control.goal is not None:
        seen.add("retarget in " + control.phase.value)
        if control.held:
            seen.add("retarget during hold")
        if control.routing.splits:
            seen.add("retarget during split")
    elif workers != control.workers:
        seen.update(
            "scale below an isolated key" if control.pins[k] >= workers else "scale beside an isolated key"
            for k in control.watch.own
        )
        seen.add("scale down" if workers < control.workers else "scale up")
        if empty:
            seen.add("rescale of empty state")


def note_move(seen: set[str], control: Placement, keys: Sequence[int], worker: int | None) -> None:
    """Note what a user's move does to keys that the strategy has pinned."""
    if not set(keys).isdisjoint(control.watch.own):
        seen.add("isolated key moved home" if worker is None else "isolated key moved")


def note_own(seen: set[str], before: Placement, after: Placement) -> None:
    """Note what the strategy has changed."""
    gained = set(after.watch.own).difference(before.watch.own)
    seen.update(
        "key isolated at its worker" if before.routing.worker_of(k) == after.pins[k] else "key isolated elsewhere"
        for k in gained
    )
    seen.update("isolated key goes home" for k in before.watch.own if k not in after.watch.own)
    if before.watch.own == after.watch.own:
        seen.add("worker opened again")


def note_epoch(
    seen: set[str],
    epoch: int,
    before: Placement,
    after: Finished[State, State],
    answers: Mapping[int, Answer],
    moves: Mapping[int, Sequence[tuple[int, State]]],
) -> None:
    """Note what a region's epoch during a rescale has had.

    Args:
        seen: Gets it.
        epoch: The epoch.
        before: The control that gave the orders.
        after: The region after the epoch.
        answers: By worker.
        moves: By worker, what left it.
    """
    if after.control.routing.splits:
        seen.add("split")
    if before.held:
        seen.add("hold" if before.phase is Phase.MOVE else "hold in " + before.phase.value)
    if after.control.goal is None:
        seen.add("rescale ended")
    for answer in answers.values():
        if answer.taken is not None and answer.taken.bins:
            seen.add("bin moved")
        if answer.taken is not None and answer.taken.keys:
            seen.add("key moved")
    for held in after.control.held:
        if held.since == epoch:
            seen.add("hold of a placed key" if held.key in before.routing.pinned_keys else "hold out of a bin")
            if held.key in after.copies[held.key].waiting:
                seen.add("waiting records queued")
    if any(part.waiting and to >= 0 for given in moves.values() for to, part in given):
        seen.add("waiting records moved")
