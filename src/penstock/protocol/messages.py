"""The controller's messages to a worker of a region in one epoch, and the worker's answers. Plain values without transport.

Order within an epoch: Hold, Release and Acquire before the rows, Frontier with them, then Interrogate, Barrier, Shutdown, and
finally Collect. State that a worker acquires arrives before any row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from penstock.types import MIN_TIME


@dataclass(frozen=True, slots=True)
class Missing:
    """A step whose records hold together in chains is in a replay that began in the middle of the log. It must say if a result hangs on older records.

    Attributes:
        step: Index of the step in its region.
        before: Event time (µs) before which records are missing.
        needed: Event time (µs) from which on its results matter.
        ends: Whether its state matters after this epoch.
    """

    step: int
    before: int
    needed: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Frontier:
    """Every record before `now` (µs) is in this epoch or an earlier one; earlier epochs have handled those before `before`.

    Attributes:
        missing: Where a replay began in the middle of the log, what steps must tell of that.
        latest: Greatest event time (µs) of all input, if that has ended and `now` is the greatest of all.
    """

    before: int
    now: int
    missing: tuple[Missing, ...] = ()
    latest: int = MIN_TIME


@dataclass(frozen=True, slots=True)
class Acquire:
    """State has arrived at this worker in these files since the last epoch. Only operators with a hook are called."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """The state of these keys (hashes) is on its way here: queue their rows."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The state of these keys (hashes) is here: process their queued rows, then this epoch's.

    Attributes:
        keys: Their hashes.
        since: By key, the event time (µs) up to which it had been processed when it was put on hold.
    """

    keys: tuple[int, ...]
    since: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrogate:
    """Say how large the state of your bins is.

    Attributes:
        start: First bin to measure.
        entries: Stop after the bin in which so many entries of state have been seen.
    """

    start: int
    entries: int


@dataclass(frozen=True, slots=True)
class Item:
    """Something to give up.

    Attributes:
        to: Worker that gets it.
        bin: A bin; −1 if it is a single key.
        start: Of the bin, the first part (`penstock.routing.table.sub_of`) that is still here.
        key: Hash of a single key.
    """

    to: int
    bin: int = -1
    start: int = 0
    key: int = 0


@dataclass(frozen=True, slots=True)
class Collect:
    """Give up, at the end of this epoch, as much of these as fits the budget, in this order.

    Attributes:
        items: What to give up.
        budget_bytes: How much; something is always given up, unless it is a single key larger than `hold_bytes`.
        hold_bytes: A single key larger than this, and than the budget, is not moved but named, so that it is put on hold.
        pinned_keys: Keys (hashes) that stay even if their bin moves.
    """

    items: tuple[Item, ...]
    budget_bytes: int
    hold_bytes: int
    pinned_keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """The epoch ends here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Nothing will come after this epoch."""


Message = Hold | Release | Acquire | Frontier | Interrogate | Barrier | Shutdown | Collect
KINDS: Final[tuple[type[Message], ...]] = get_args(Message)
"""The kinds of messages, in their order within an epoch."""


@dataclass(frozen=True, slots=True)
class BinSizes:
    """Answer to `Interrogate`: bytes by bin, and the next bin (the number of bins: finished)."""

    bytes_by_bin: tuple[tuple[int, int], ...]
    next: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Answer to `Collect`.

    Attributes:
        bins: (bin, to) of bins that are wholly gone.
        splits: (bin, to, upto) of bins of which the keys with ``sub < upto`` are gone.
        keys: (hash, to) of single keys that are gone.
        too_large: (hash, to, bytes) of keys to be put on hold: their rows are gone from here, their state awaits its move.
        moved_keys: Number of keys whose state was handed over.
        moved_bytes: Their bytes.
    """

    bins: tuple[tuple[int, int], ...] = ()
    splits: tuple[tuple[int, int, int], ...] = ()
    keys: tuple[tuple[int, int], ...] = ()
    too_large: tuple[tuple[int, int, int], ...] = ()
    moved_keys: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker answers in one epoch.

    Attributes:
        sized: To `Interrogate`.
        taken: To `Collect`.
        cost_us: Time that giving up and acquiring state has added to the worker's task.
        queued: (hash, bytes) of rows queued for keys on hold.
    """

    sized: BinSizes | None = None
    taken: Collected | None = None
    cost_us: int = 0
    queued: tuple[tuple[int, int], ...] = ()
