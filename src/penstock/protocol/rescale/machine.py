"""A region's placement as a pure machine, driven once per epoch.

    messages(control, …)        what each worker is told in the next epoch
    advanced(control, answers)  the control after it

    scaled, pinned, ended_hold  what commands do to it
    settled                     it, without what is done

S1  Nothing but an epoch's record and its commands decide, so a re-run gives the same orders.
S2  A new goal replaces the old one; bins that have moved stay where they are unless the new goal wants them elsewhere.
S3  The goal is reached when every bin and every key is where it should be and nothing is on hold; then the region has exactly as
    many workers as wanted, and those above it are not scheduled again.
S4  Until then as many workers are scheduled as the table and the holds need.

`TRANSITIONS` is the whole machine as data; the guide's diagram is drawn from it and tests walk it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from penstock.protocol.messages import KINDS, Acquire, Answer, Barrier, Frontier, Hold, Message, Release, Shutdown
from penstock.protocol.rescale import collect, hold, interrogate
from penstock.protocol.rescale.placement import Held, Phase, Placement, RescaleGoal

TRANSITIONS: Final[tuple[tuple[Phase, str, Phase, str], ...]] = (
    (Phase.SETTLED, "scale asked", Phase.INTERROGATE, "S2"),
    (Phase.SETTLED, "move asked", Phase.MOVE, "C6"),
    (Phase.SETTLED, "keys pinned or released by the strategy", Phase.MOVE, "N4"),
    (Phase.INTERROGATE, "bins measured, some left", Phase.INTERROGATE, "I2"),
    (Phase.INTERROGATE, "all bins measured", Phase.MOVE, "I3"),
    (Phase.INTERROGATE, "all bins measured, nothing to move", Phase.SETTLED, "S3"),
    (Phase.INTERROGATE, "scale asked", Phase.INTERROGATE, "I4"),
    (Phase.INTERROGATE, "move asked", Phase.INTERROGATE, "I1"),
    (Phase.INTERROGATE, "key copied", Phase.INTERROGATE, "H3"),
    (Phase.MOVE, "step collected, something left", Phase.MOVE, "C7"),
    (Phase.MOVE, "key too large", Phase.MOVE, "H1"),
    (Phase.MOVE, "key copied", Phase.MOVE, "H3"),
    (Phase.MOVE, "scale asked", Phase.MOVE, "S2"),
    (Phase.MOVE, "move asked", Phase.MOVE, "C6"),
    (Phase.MOVE, "scale asked, bins never measured", Phase.INTERROGATE, "I1"),
    (Phase.MOVE, "nothing left", Phase.SETTLED, "S3"),
)
"""(phase, what happened, phase after it, rule)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step.

    Attributes:
        budget_us: By how much a step may lengthen an epoch.
        first_bytes: The first step, before anything is measured.
        least_bytes: No step is smaller.
        most_bytes: No step is larger.
        hold_bytes: A single key larger than this, and than the step, is put on hold.
        measure_entries: Entries of state that one worker measures per epoch.
        slots: Workers that run at the same time.
        most_items: A worker is told to give up at most so many bins or keys in one step.
        queue_bytes: When the queued rows of a region's keys on hold are more, the next epoch waits for the copies.
        epoch_percent: A step may lengthen an epoch by so much of it in any case: where epochs are long, what a step costs however small
            it is may be more than the budget.
    """

    budget_us: int = 50_000
    first_bytes: int = 256 << 10
    least_bytes: int = 16 << 10
    most_bytes: int = 64 << 20
    hold_bytes: int = 4 << 20
    measure_entries: int = 25_000
    slots: int = 1
    most_items: int = 512
    queue_bytes: int = 64 << 20
    epoch_percent: int = 10

    def in_epochs_of(self, epoch_us: int) -> Limits:
        """The limits where the last epoch has taken so long."""
        return replace(self, budget_us=max(self.budget_us, epoch_us * self.epoch_percent // 100))


STANDARD: Final = Limits()
ALL_AT_ONCE: Final = Limits(
    budget_us=1 << 60,
    first_bytes=1 << 60,
    least_bytes=1 << 60,
    most_bytes=1 << 60,
    most_items=1 << 60,
    hold_bytes=1 << 60,
    measure_entries=1 << 60,
)
"""No budget: everything moves in one step (pinned keys in a second one, after the bins)."""


def messages(
    control: Placement,
    limits: Limits,
    epoch: int,
    frontier: Frontier,
    released: Sequence[Held] = (),
    acquired: Mapping[int, Sequence[str]] = MappingProxyType({}),
    last: bool = False,
) -> tuple[tuple[Message, ...], ...]:
    """What each worker is told in an epoch.

    Args:
        control: The region's placement, with the epoch's commands obeyed.
        limits: What bounds a step.
        epoch: The epoch's number.
        frontier: How far the rows are to be processed.
        released: Holds that end.
        acquired: By worker, files of state that have come.
        last: Whether nothing comes after this epoch.
    """
    everyones: tuple[Message, ...] = (frontier, Barrier(epoch), Shutdown()) if last else (frontier, Barrier(epoch))
    if control.goal is None and not acquired and not released:
        return (everyones,) * control.workers
    own: dict[int, list[Message]] = {w: [Acquire(tuple(paths))] for w, paths in acquired.items()}
    for to in {h.to for h in control.held}:
        own.setdefault(to, []).append(Hold(tuple(h.key for h in control.held if h.to == to)))
    for to in {h.to for h in released}:
        ended = [h for h in released if h.to == to]
        own.setdefault(to, []).append(Release(tuple(h.key for h in ended), tuple(h.frontier for h in ended)))
    if control.goal is not None:
        asked: Mapping[int, Message] = (
            interrogate.ask(control, control.goal, limits.measure_entries)
            if control.goal.target is None
            else collect.order(control, control.goal, limits.hold_bytes, limits.most_items)
        )
        for worker, message in asked.items():
            own.setdefault(worker, []).append(message)
    out = [everyones] * control.workers
    for worker, mine in ((w, m) for w, m in own.items() if w < control.workers):
        out[worker] = tuple(sorted((*mine, *everyones), key=lambda m: KINDS.index(type(m))))
    return tuple(out)


def advanced(control: Placement, answers: Mapping[int, Answer], limits: Limits, epoch: int, frontier: int) -> Placement:
    """The control after an epoch.

    Args:
        control: The one that gave the epoch's orders.
        answers: By worker; one without state may have none.
        limits: What bounds a step.
        epoch: The epoch's number.
        frontier: Event time (µs) up to which the region has processed.
    """
    goal = control.goal
    if goal is None:
        return control
    control = hold.queued(control, answers)
    if goal.target is None:
        control = interrogate.measured(control, goal, answers)
    else:
        control = collect.taken(control, goal, answers)
        control = hold.held(control, answers, epoch, frontier)
        assert control.goal is not None
        control = replace(control, goal=replace(control.goal, step_bytes=_next_step(goal.step_bytes, answers, limits)))
    return settled(control)


def scaled(control: Placement, workers: int, limits: Limits, epoch: int) -> Placement:
    """Ask for a number of workers (S2)."""
    before = control.goal
    watch = replace(control.watch, own=tuple(k for k in control.watch.own if control.pins[k] < workers))
    control = replace(control, pins={k: w for k, w in control.pins.items() if w < workers}, watch=watch)
    if before is None:
        if workers == control.workers:
            return control
        control, opened = reserved(control, workers)
        return replace(control, goal=RescaleGoal(workers, control.workers, epoch, limits.first_bytes, opened=opened))
    control, opened = reserved(control, workers)
    goal = replace(
        before, workers=workers, base=min(before.base, before.workers), opened=opened
    )  # what it was growing to is new still
    if before.target is not None and before.bytes_by_bin:
        goal = interrogate.aimed(control, goal)  # bins that are new at a worker weigh what they weighed at the old one
    elif before.target is not None:
        goal = replace(goal, target=None)
    return settled(replace(control, goal=goal))


def reserved(control: Placement, workers: int) -> tuple[Placement, tuple[int, ...]]:
    """Which workers are to have no bins, for the keys that the strategy has pinned; and which are to get some (again).

    Every worker may have bins if else none had.
    """
    own = {control.pins[k] for k in control.watch.own}
    closed = tuple(sorted(own)) if len(own) < workers else ()
    before = control.goal.opened if control.goal else ()
    opened = {w for w in (*before, *control.watch.closed) if w < workers}.difference(closed)
    return replace(control, watch=replace(control.watch, closed=closed)), tuple(sorted(opened))


def pinned(control: Placement, keys: Iterable[int], worker: int | None, limits: Limits, epoch: int) -> Placement:
    """Ask for keys (hashes) at a worker, or back with their bins (None)."""
    routing = control.routing
    listed = list(keys)
    placed = routing.with_pinned({k: routing.worker_of(k) for k in listed})
    pins = {k: w for k, w in control.pins.items() if k not in set(listed)}
    watch = control.watch.taken(listed, home=worker is None)
    if worker is not None:
        pins.update(dict.fromkeys(listed, worker))
    control = replace(control, routing=placed, pins=pins, watch=watch)
    if control.goal is None:
        owners = tuple(routing.splits[b].to if b in routing.splits else w for b, w in enumerate(routing.owners))
        control = replace(control, goal=RescaleGoal(control.workers, control.workers, epoch, limits.first_bytes, owners))
    return settled(control)


def ended_hold(control: Placement, key: int, since: int) -> tuple[Placement, Held | None]:
    """A key's state has been copied; see `penstock.protocol.rescale.hold`."""
    control, found = hold.released(control, key, since)
    return control, found


def _next_step(step: int, answers: Mapping[int, Answer], limits: Limits) -> int:
    """The next step's bytes, from what the last one gave up and cost: towards the budget, at most twice or half.

    The cost is that of giving up this step and of taking over the last one. A step that gave up less than it might have says
    little about larger ones, so it does not raise the limit.
    """
    costs = [a.cost_us for a in answers.values()] or [0]
    cost = max(*costs, sum(costs) // limits.slots)
    given = max((a.taken.moved_bytes for a in answers.values() if a.taken is not None), default=0)
    factor = min(2.0, max(0.5, 0.8 * limits.budget_us / max(cost, 1)))
    if factor > 1.0 and given < step // 2:
        factor = 1.0
    return int(min(limits.most_bytes, max(limits.least_bytes, step * factor)))


def settled(control: Placement) -> Placement:
    """Drop what is done (S3), and schedule what is needed (S4)."""
    routing, held = control.routing, {h.key for h in control.held}
    pinned_keys = {k: w for k, w in routing.pinned_keys.items() if k in held or k in control.pins or routing.home_of(k) != w}
    if len(pinned_keys) != len(routing.pinned_keys):
        routing = replace(routing, pinned_keys=pinned_keys)
        control = replace(control, routing=routing)
    goal = control.goal
    needed = max(routing.used, *(1 + h.to for h in control.held), 1)
    if goal is None or goal.target is None:
        return control if control.workers >= needed else replace(control, workers=needed)
    if control.held or collect.pending_bins(control, goal) or collect.pending_keys(control):
        return control if control.workers == needed else replace(control, workers=needed)
    moved = (goal.moved_bins, goal.moved_keys, goal.moved_bytes)
    return replace(control, workers=goal.workers, goal=None, last_moved=moved)
