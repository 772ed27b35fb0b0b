"""Virtual workers, with a bound on the load of each.

Source: M. Nasir et al., Load Balancing for Skewed Streams on Heterogeneous Clusters, 2017. We differ in that after `_DRAWS` draws a message goes
to the next virtual worker with room, which is found in constant time: with skewed keys a walk by draws alone takes hundreds of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import jit
from penstock.errors import DeclarationError
from penstock.routing.choices import choice
from penstock.routing.d_choices import check_share
from penstock.routing.strategy import MERGING, Hashes, Memory, Router, Strategy, Workers

_DRAWS = 32


@dataclass(frozen=True)
class ConsistentGrouping(Strategy):
    """A key goes to a virtual worker, or to the next one on its walk while that one has had its part of the messages.

    Args:
        virtual: Virtual workers for each worker.
        epsilon: By which share a virtual worker may have more messages than the mean.
    """

    virtual: int = 10
    epsilon: float = 0.01

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING

    def __post_init__(self) -> None:
        if not isinstance(self.virtual, int) or not 1 <= self.virtual <= 1_000:
            raise DeclarationError(f"ConsistentGrouping(virtual={self.virtual!r}): give a number from 1 to 1000.")
        check_share(self.epsilon, "epsilon", self)

    def router(self, workers: int) -> Router:
        """Loads are each sender's own; who has a virtual worker is the same for all."""
        return _VirtualWorkers(workers, self.virtual, self.epsilon)


class _VirtualWorkers(Memory):
    def __init__(self, workers: int, virtual: int, epsilon: float) -> None:
        super().__init__(workers)
        self._epsilon = epsilon
        self._owners = np.arange(workers * virtual, dtype=np.int32) % np.int32(workers)

    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002  (all begin alike)
        return {"loads": np.zeros(len(self._owners), np.int64), "sent": np.zeros(1, np.int64)}

    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        _route(hashes, memory["loads"], memory["sent"], 1 + self._epsilon, np.empty(len(self._owners), np.int64), out)
        out[:] = self._owners[out]


@jit
def _route(hashes: Any, loads: Any, sent: Any, most: Any, following: Any, out: Any) -> Any:
    """Write each message's virtual worker to `out`.

    ``following`` is scratch: from a full virtual worker on, it leads to the next one with room; from one with room to itself.
    """
    n = len(loads)
    bound = np.int64(0)
    for at in range(len(hashes)):
        sent[0] += 1
        wanted = np.int64(np.ceil(most * sent[0] / n))
        if wanted != bound:
            bound = wanted
            for v in range(n):
                following[v] = v if loads[v] < bound else (v + 1) % n
        worker = choice(hashes[at], 0, n)
        for draw in range(1, _DRAWS):
            if loads[worker] < bound:
                break
            worker = choice(hashes[at], draw, n)
        while following[worker] != worker:
            following[worker] = following[following[worker]]
            worker = following[worker]
        loads[worker] += 1
        if loads[worker] == bound:
            following[worker] = (worker + 1) % n
        out[at] = worker
