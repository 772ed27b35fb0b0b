"""How state changes hands between two epochs, whatever it lies in: files in the driver, plain dicts in the simulator.

`started` and `finished` are the two ends of a region's epoch; between them its workers run (`penstock.protocol.rescale.worker`).

Invariant: what leaves the giver's version joins the receiver's in the same step (C3), as the table changes (C2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.protocol.messages import Answer
from penstock.protocol.rescale.machine import Limits, advanced
from penstock.protocol.rescale.placement import Held, Placement

V = TypeVar("V")
P = TypeVar("P")


@dataclass(frozen=True)
class Versions(Generic[V, P]):
    """How versions of a worker's state are made; a version itself is never changed.

    Attributes:
        empty: That of a worker that is new.
        joined: Gives a version with a part that has come.
        left: Gives a version without a part that has gone.
    """

    empty: V
    joined: Callable[[V, P], V]
    left: Callable[[V, P], V]


@dataclass(frozen=True)
class Finished(Generic[V, P]):
    """A region after an epoch.

    Attributes:
        control: Its placement.
        versions: By worker of the next epoch, its state.
        copies: For each key on hold (hash), the version of its giver's state from which its own is being copied (H2).
        acquired: By worker, what has come to it.
    """

    control: Placement
    versions: list[V]
    copies: dict[int, V]
    acquired: dict[int, list[P]]


def started(
    versions: Sequence[V], workers: int, copied: Sequence[tuple[Held, P]], kept: Versions[V, P]
) -> tuple[list[V], dict[int, list[P]]]:
    """What an epoch's workers start from, and what has come to them: the state of keys whose hold ends is there before any row (H4).

    Args:
        versions: By worker, as the last epoch left them.
        workers: Number of workers of this epoch.
        copied: Holds that end, with the state that was copied.
        kept: Makes versions.
    """
    out, acquired = _of(versions, workers, kept), dict[int, list[P]]()
    for held, part in copied:
        out[held.to] = kept.joined(out[held.to], part)
        acquired.setdefault(held.to, []).append(part)
    return out, acquired


def finished(
    control: Placement,
    answers: Mapping[int, Answer],
    moves: Mapping[int, Sequence[tuple[int, P]]],
    versions: Sequence[V],
    copies: Mapping[int, V],
    limits: Limits,
    epoch: int,
    frontier: int,
    kept: Versions[V, P],
) -> Finished[V, P]:
    """A region after an epoch: its workers' answers advance its placement, and state changes hands with it.

    Args:
        control: The placement that gave the epoch's orders.
        answers: By worker; one without state may have none.
        moves: By giver, what it gives up and who gets it; −1: the state of keys that are on hold from now on.
        versions: By worker, with this epoch's changes, as if nothing were given up.
        copies: Those of the keys that were on hold before.
        limits: What bounds a step.
        epoch: The epoch's number.
        frontier: Event time (µs) up to which the region has processed.
        kept: Makes versions.
    """
    after = advanced(control, answers, limits, epoch, frontier)
    if not moves and not after.held:
        return Finished(after, _of(versions, after.workers, kept), {}, {})
    known = {(h.key, h.since) for h in control.held}
    copying = {h.key: copies[h.key] if (h.key, h.since) in known else versions[h.source] for h in after.held}
    out, acquired = _of(versions, max(len(versions), after.workers), kept), dict[int, list[P]]()
    for giver, given in sorted(moves.items()):
        for to, part in given:
            out[giver] = kept.left(out[giver], part)
            if to >= 0:
                out[to] = kept.joined(out[to], part)
                acquired.setdefault(to, []).append(part)
    return Finished(after, out[: after.workers], copying, acquired)


def _of(versions: Sequence[V], workers: int, kept: Versions[V, P]) -> list[V]:
    """The versions of so many workers."""
    return [*versions[:workers], *([kept.empty] * (workers - len(versions)))]
