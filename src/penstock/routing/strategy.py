"""How rows of a region are spread over its workers: the contract of ``key_by(distribute=…)`` and `penstock.route`.

A strategy is a frozen value in a file of its own in this folder. The plan, the driver and the engines know it by this contract only.
Where keys have one worker each, rows go by the table that the strategy gives, which a rescale then changes. Where they have several, the
strategy's `Router` routes: what it remembers from one message to the next (loads, a sketch of hot keys) is kept apart for each sender, and a
sender is a partition of a source, never a task.

Read next: `penstock.routing.key_grouping`, `penstock.routing.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from penstock.routing.table import Routing

Hashes = npt.NDArray[np.int64]
Workers = npt.NDArray[np.int32]


class Router(ABC):
    """A strategy at work, for one region and a fixed number of workers."""

    @abstractmethod
    def route(self, senders: Sequence[Hashes]) -> list[Workers]:
        """The worker of each message of one epoch.

        Args:
            senders: By sender, the hashes of its messages' keys (int64), in the order of their positions.

        Returns:
            By sender, an int32 array of workers, of the same length.
        """


class Strategy:
    """A distribution strategy. It is deterministic, so that a re-run of an epoch routes alike.

    Attributes:
        splits_keys: Whether messages of one key go to several workers: each then has a partial result, and these must be merged.
        fits: Which steps it is for: ``"every step"``, ``"steps that merge"`` or ``"steps without state"``.
    """

    splits_keys: ClassVar[bool] = False
    fits: ClassVar[str] = "every step"

    def describe(self) -> str:
        """Its name and settings as text. The checkpoint keeps it, and a flow that is started with another one is refused."""
        return repr(self)

    def table(self, workers: int) -> Routing:
        """The table with which a region of so many workers begins. Only where a key has one worker."""
        raise NotImplementedError(f"{self!r} has no routing table.")

    def router(self, workers: int) -> Router:
        """A router that has seen nothing yet; by the table if not said otherwise."""
        return ByTable(self.table(workers))


class ByTable(Router):
    """Every message goes to the one worker of its key."""

    def __init__(self, table: Routing) -> None:
        self._table = table

    def route(self, senders: Sequence[Hashes]) -> list[Workers]:
        """Look up each key."""
        return [self._table.workers_of(hashes).astype(np.int32) for hashes in senders]


class Memory(Router):
    """A router that remembers, for each sender apart, named arrays: what it knows by `begin`, and changes in `route_sender`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory: list[dict[str, npt.NDArray[Any]]] = []

    @abstractmethod
    def begin(self, sender: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a sender that has sent nothing."""

    @abstractmethod
    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[Any]], out: Workers) -> None:
        """Write the worker of each message of a sender to `out`; `memory` is changed."""

    def route(self, senders: Sequence[Hashes]) -> list[Workers]:
        """Each sender by its own memory."""
        while len(self._memory) < len(senders):
            self._memory.append(self.begin(len(self._memory)))
        routed = []
        for hashes, memory in zip(senders, self._memory, strict=False):
            out = np.empty(len(hashes), np.int32)
            self.route_sender(hashes, memory, out)
            routed.append(out)
        return routed
