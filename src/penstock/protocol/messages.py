"""What the controller tells a worker of a region in one epoch. Plain values; the transport is somebody else's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frontier:
    """Every record before `now` (µs) is in this epoch or an earlier one; earlier epochs have handled those before `before`."""

    before: int
    now: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """The epoch ends here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Nothing will come after this epoch."""


Message = Frontier | Barrier | Shutdown
