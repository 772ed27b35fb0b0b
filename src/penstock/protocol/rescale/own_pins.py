"""Keys that a region's strategy pins by itself, and the workers that have nothing else.

N1  What the strategy wants is asked only where nothing is under way: no rescale, no move, no key on hold, before and after the epoch. Its
    evidence begins anew after each of these, since it is of another table.
N2  A key that a user has pinned stays the user's, whatever the strategy says, and a worker is never closed for it.
N3  A worker with a key of the strategy's own has no bins, as long as another worker has: they leave it when the key comes, and it gets bins
    again when the key has gone, whoever took it away. `Watch.closed` is what the last plan has done of this.
N4  All is carried out by one goal of the ordinary machine, so a crash, a rollback, a hold and a command in the middle are ordinary, too.

Read next: `penstock.protocol.rescale.machine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.protocol.rescale.bin_plan import spread
from penstock.protocol.rescale.machine import Limits, reserved, settled
from penstock.protocol.rescale.placement import Placement, RescaleGoal
from penstock.routing.loads import HotKey, Placed, Watch
from penstock.routing.strategy import Strategy, told


def watched(
    control: Placement,
    during: Placement,
    strategy: Strategy,
    rows: Mapping[int, int],
    hot: Iterable[HotKey],
    limits: Limits,
    epoch: int,
) -> Placement:
    """The control after an epoch, with what the strategy makes of the epoch's load.

    Args:
        control: The control after the epoch.
        during: The one that gave its orders.
        strategy: The region's.
        rows: By worker, its rows in the epoch.
        hot: What its workers report of their keys.
        limits: What bounds a step.
        epoch: The epoch's number.

    Raises:
        OperatorError: A strategy of one's own failed, or pinned a key to a worker that there is not.
    """
    watch = control.watch
    if not strategy.report_above and not watch.own and not watch.closed:
        return control if watch == Watch() else replace(control, watch=Watch())
    if during.goal is not None:  # and so it is as long as a key is on hold
        return replace(control, watch=watch.anew({})) if watch.workers or watch.streaks else control
    own = {k: control.pins[k] for k in watch.own}
    users = {k: w for k, w in control.pins.items() if k not in own}
    seen = watch.plus(rows, hot)
    with told(strategy):
        watch, asked = strategy.pin_keys(seen, Placed(control.workers, control.routing, own, users))
        wanted = {int(k): int(w) for k, w in asked.items() if k not in users}
        watch = replace(watch, own=tuple(wanted))
        if wrong := [w for w in wanted.values() if not 0 <= w < control.workers]:
            raise ValueError(f"it pinned a key to worker {wrong[0]} of {control.workers}")
    routing = control.routing.with_pinned({k: control.routing.worker_of(k) for k in wanted})
    after = replace(control, routing=routing, pins={**users, **wanted}, watch=watch)
    after, opened = reserved(after, control.workers)
    if wanted == own and after.watch.closed == control.watch.closed:
        return replace(control, watch=watch)
    weights = _rows_by_bin(control, seen, {*own, *wanted})
    target = spread(control.routing.owners, weights, control.workers, control.workers, opened, after.watch.closed)
    goal = RescaleGoal(control.workers, control.workers, epoch, limits.first_bytes, target, opened=opened)
    return settled(replace(after, watch=after.watch.anew({}), goal=goal))


def _rows_by_bin(control: Placement, seen: Watch, alone: Iterable[int]) -> Sequence[int]:
    """By bin, a thousandth of a row being 1, its part of its worker's rows but for those of keys that have, or are to have, workers of their own."""
    owners, left = control.routing.owners, dict(seen.workers)
    if sum(left.values()) < len(owners):
        return [0] * len(owners)  # too few to tell: then bins are counted
    for key in alone:
        worker = control.routing.worker_of(key)
        left[worker] = max(0, left.get(worker, 0) - seen.keys.get(key, 0))
    bins = {w: owners.count(w) for w in set(owners)}
    return [1000 * left.get(w, 0) // bins[w] for w in owners]
