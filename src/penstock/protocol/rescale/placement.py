"""What a region knows of its own placement between two epochs. Frozen values, kept in the epoch record."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.routing.loads import Watch
from penstock.routing.table import Routing


class Phase(StrEnum):
    """Where a region is in a rescale."""

    SETTLED = "settled"
    INTERROGATE = "interrogate"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class Held:
    """A key on hold.

    Attributes:
        key: Its hash.
        source: The worker whose files hold its state.
        to: The worker that queues its rows and will get the state.
        since: Epoch in which the source gave it up.
        frontier: Event time (µs) up to which it has been processed.
        bytes: Size of its state, and of its rows that waited.
        queued: Bytes of rows queued for it since.
    """

    key: int
    source: int
    to: int
    since: int
    frontier: int
    bytes: int
    queued: int = 0


@dataclass(frozen=True)
class RescaleGoal:
    """What a rescale is after and how far it is.

    Attributes:
        workers: Number of workers wanted.
        base: Number of workers when the region was last settled.
        started: Epoch in which it began.
        target: By bin, the worker that is to own it; None until sizes are known.
        bytes_by_bin: Measured so far.
        cursors: By worker, the next bin to be measured.
        step_bytes: What one worker may give up in the next epoch.
        moved_bins, moved_keys, moved_bytes: Moved since it began.
        opened: Workers below `base` that had no bins and are to get some.
    """

    workers: int
    base: int
    started: int
    step_bytes: int
    target: tuple[int, ...] | None = None
    bytes_by_bin: tuple[int, ...] = ()
    cursors: Mapping[int, int] = field(default_factory=dict)
    moved_bins: int = 0
    moved_keys: int = 0
    moved_bytes: int = 0
    opened: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; long tuples packed."""
        raw = {n: getattr(self, n) for n in self.__dataclass_fields__}
        raw["target"] = None if self.target is None else _pack(self.target)
        raw["bytes_by_bin"] = _pack(self.bytes_by_bin)
        raw["cursors"] = {str(w): b for w, b in self.cursors.items()}
        return raw

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> RescaleGoal:
        """Read what `to_json` gave."""
        read = dict(raw)
        read["target"] = None if raw["target"] is None else _unpack(raw["target"])
        read["bytes_by_bin"] = _unpack(raw["bytes_by_bin"])
        read["cursors"] = {int(w): b for w, b in raw["cursors"].items()}
        read["opened"] = tuple(raw.get("opened", ()))
        return RescaleGoal(**read)


@dataclass(frozen=True)
class Placement:
    """A region's placement.

    Attributes:
        routing: The table by which the next epoch's rows go.
        workers: Number of workers that the next epoch schedules.
        goal: The rescale under way; None: none.
        pins: By hash, the worker at which a user, or the region's strategy, wants a key.
        held: Keys on hold.
        last_moved: Bins, keys and bytes that the last rescale moved, once it has settled.
        watch: The load of its workers, and which pins are the strategy's.
    """

    routing: Routing
    workers: int
    goal: RescaleGoal | None = None
    pins: Mapping[int, int] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    last_moved: tuple[int, int, int] = (0, 0, 0)
    watch: Watch = field(default_factory=Watch)

    @staticmethod
    def fresh(workers: int, routing: Routing | None = None) -> Placement:
        """A region that begins."""
        return Placement(routing or Routing.even(workers), workers)

    @property
    def phase(self) -> Phase:
        """Where it is."""
        if self.goal is None:
            return Phase.SETTLED
        return Phase.INTERROGATE if self.goal.target is None else Phase.MOVE

    def announced(self, frontier: int) -> int:
        """The event time (µs) up to which others may believe that the region has processed, when it has up to `frontier` (rule H5)."""
        return min(frontier, *(h.frontier for h in self.held)) if self.held else frontier


def _pack(numbers: tuple[int, ...]) -> str:
    return base64.b64encode(zlib.compress(array("q", numbers).tobytes(), 1)).decode()


def _unpack(text: str) -> tuple[int, ...]:
    found = array("q")
    found.frombytes(zlib.decompress(base64.b64decode(text)))
    return tuple(found)
