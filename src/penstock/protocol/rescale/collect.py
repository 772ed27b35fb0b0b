"""Phase 2. Each epoch every worker gives up a little of what must go, and the receiver has it before its next row.

C1  Collect comes after all rows of the epoch, of all inputs, have been processed: the barrier. So no record is under way.
C2  The table changes between two epochs, together with the state: the epoch record names both, so they change or do not change as
    one, whatever crashes.
C3  What is given up leaves the giver's state in the same record in which it joins the receiver's: nothing is left behind, nothing
    is overwritten.
C4  A bin that does not fit the budget is cut by hash. The keys known to be still here are the whitelist, kept as a range: all keys
    with ``sub >= upto``. New keys below it belong to the receiver from their first record, so endless new keys cannot keep a
    bin from leaving.
C5  A bin that has been cut goes where it was going before it goes elsewhere.
C6  A pinned key does not move with its bin; it moves by itself, after the bins.
C7  Every step gives up something (a bin, a part, a key) or names a key that is too large, so the phase ends.
C8  A single key larger than the limit is not moved but named; `hold` says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.protocol.messages import Answer, Collect, Item
from penstock.protocol.rescale.placement import Placement, RescaleGoal
from penstock.routing.table import SUBS, Split


def pending_keys(control: Placement) -> dict[int, int]:
    """Pinned keys that are not at their worker, with that worker; keys on hold wait."""
    held = {h.key for h in control.held}
    routing = control.routing
    out = {}
    for key, worker in routing.pinned_keys.items():
        wanted = control.pins.get(key, routing.home_of(key))
        if worker != wanted and key not in held:
            out[key] = wanted
    return out


def pending_bins(control: Placement, goal: RescaleGoal) -> dict[int, int]:
    """Bins that are not where they should be, with where they go next."""
    assert goal.target is not None
    routing = control.routing
    out = {b: t for b, (o, t) in enumerate(zip(routing.owners, goal.target, strict=True)) if o != t}
    return {**out, **{b: s.to for b, s in routing.splits.items()}}


def order(control: Placement, goal: RescaleGoal, hold_bytes: int, most_items: int) -> dict[int, Collect]:
    """What each worker is to give up at the end of the next epoch."""
    routing, sizes = control.routing, goal.bytes_by_bin
    bins = pending_bins(control, goal)
    items: dict[int, list[Item]] = {}
    planned: dict[int, int] = {}
    for at in [*routing.splits, *(b for b in bins if b not in routing.splits)]:
        giver = routing.owners[at]
        if planned.get(giver, 0) <= goal.step_bytes and len(items.get(giver, ())) < most_items:
            start = routing.splits[at].upto if at in routing.splits else 0
            items.setdefault(giver, []).append(Item(bins[at], bin=at, start=start))
            planned[giver] = planned.get(giver, 0) + (sizes[at] if sizes else 0)
    if not bins:
        for key, to in pending_keys(control).items():
            items.setdefault(routing.pinned_keys[key], []).append(Item(to, key=key))
    return {w: Collect(tuple(i), goal.step_bytes, hold_bytes, tuple(routing.pinned_keys)) for w, i in items.items()}


def taken(control: Placement, goal: RescaleGoal, answers: Mapping[int, Answer]) -> Placement:
    """The control after what the workers gave up."""
    given = [a.taken for a in answers.values() if a.taken is not None]
    wholly = {at: to for gone in given for at, to, *upto in (*gone.bins, *gone.splits) if not upto or upto[0] >= SUBS}
    routing = control.routing.with_owners(wholly) if wholly else control.routing
    for at, to, upto in (split for gone in given for split in gone.splits if split[2] < SUBS):
        routing = routing.with_split(at, Split(to, upto))
    keys = {key: to for gone in given for key, to in gone.keys}
    goal = replace(
        goal,
        moved_bins=goal.moved_bins + len(wholly),
        moved_keys=goal.moved_keys + sum(gone.moved_keys for gone in given),
        moved_bytes=goal.moved_bytes + sum(gone.moved_bytes for gone in given),
    )
    return replace(control, routing=routing.with_pinned(keys) if keys else routing, goal=goal)


@dataclass(frozen=True, slots=True)
class KeySize:
    """A key of a bin that is to be cut: its part, its hash, the bytes of its state."""

    sub: int
    key: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How far a bin is given up: the keys to take, those that are too large, and the first part that stays."""

    keys: tuple[int, ...]
    too_large: tuple[KeySize, ...]
    upto: int


def cut(sizes: Sequence[KeySize], start: int, budget_bytes: int, hold_bytes: int) -> Cut:
    """Choose the keys of a bin that fit the budget, in order of their parts; those of one part go together.

    Args:
        sizes: The bin's keys without pinned ones, in any order.
        start: First part that is still here.
        budget_bytes: How much; at least one part is given up.
        hold_bytes: A key larger than this is too large to be moved.

    Example:
        >>> cut([KeySize(5, 11, 60), KeySize(9, 12, 60)], 0, 100, 1000)
        Cut(keys=(11,), too_large=(), upto=6)
    """
    left, upto = budget_bytes, SUBS
    keys: list[int] = []
    too_large: list[KeySize] = []
    for size in sorted(sizes, key=lambda s: (s.sub, s.key)):
        if size.sub < start:
            continue
        if size.bytes > hold_bytes:
            too_large.append(size)
            last = size.sub
            continue
        begun = keys or too_large
        if begun and size.sub != last and size.bytes > left:
            upto = last + 1
            break
        keys.append(size.key)
        left -= size.bytes
        last = size.sub
    return Cut(tuple(keys), tuple(too_large), upto)


__all__ = ["Cut", "KeySize", "cut", "order", "pending_bins", "pending_keys", "taken"]
