"""A key too large for a step: on hold while its state is moved beside the epochs.

H1  In the epoch in which the giver names the key it has processed all its rows, and gives it up; from the next epoch on its rows go
    to the receiver, which queues them, durably, as part of its own state.
H2  The state is copied from the giver's files as of that epoch, which nobody changes; they are kept until the copy is committed.
H3  That the copy is done reaches the controller as a command in the control log, so the epoch that uses it is the same one in
    every re-run. A second report of the same copy is ignored.
H4  In that epoch the receiver has the state, then processes the queued rows, then the epoch's own. Per key the order is that in
    which they arrived.
H5  The region's frontier for others (regions behind it, marks) does not pass the one up to which a key on hold was processed.
H6  A key on hold is pinned to the receiver and moves no further until it is released; its bin may.
H7  The end of the input waits for the last key on hold; a stop does not.
H8  When more than `Limits.queue_bytes` are queued in a region, the next epoch begins only when the copies under way are done. So a
    queue is bounded by that and by what one epoch brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.protocol.messages import Answer
from penstock.protocol.rescale.placement import Held, Placement


def held(control: Placement, answers: Mapping[int, Answer], epoch: int, frontier: int) -> Placement:
    """The control after the epoch's workers named keys that are too large (H1, H6)."""
    new = [
        Held(key, worker, to, epoch, frontier, size)
        for worker, answer in sorted(answers.items())
        if answer.taken is not None
        for key, to, size in answer.taken.too_large
    ]
    if not new:
        return control
    routing = control.routing.with_pinned({h.key: h.to for h in new})
    return replace(control, routing=routing, held=(*control.held, *new))


def queued(control: Placement, answers: Mapping[int, Answer]) -> Placement:
    """The control with what workers have queued for keys on hold in an epoch (H8)."""
    more = {key: n for answer in answers.values() for key, n in answer.queued}
    if not more:
        return control
    held = (replace(h, queued=h.queued + more[h.key]) if h.key in more else h for h in control.held)
    return replace(control, held=tuple(held))


def released(control: Placement, key: int, since: int) -> tuple[Placement, Held | None]:
    """The control once a key's state has been copied (H3), and the hold that ends; None: it is not on hold, or on another."""
    found = next((h for h in control.held if h.key == key and h.since == since), None)
    if found is None:
        return control, None
    return replace(control, held=tuple(h for h in control.held if h is not found)), found
