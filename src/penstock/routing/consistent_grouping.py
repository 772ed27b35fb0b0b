"""Virtual workers, with a bound on the load of each.

Source: M. Nasir et al., Load Balancing for Skewed Streams on Heterogeneous Clusters, 2017. We differ in that after `_DRAWS` draws a message goes
to the next virtual worker with room, which is found in constant time: with skewed keys a walk by draws alone takes hundreds of them. And in that
virtual workers are handed over by measured times, so that workers of unequal speed take equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import jit
from penstock.errors import DeclarationError
from penstock.routing.choices import choice
from penstock.routing.d_choices import check_share
from penstock.routing.strategy import MERGING, Hashes, Memory, Router, Strategy, Workers

Ints = npt.NDArray[np.int64]

_DRAWS = 32
_COMMON: Final = -(1 << 63)
"""Where the memory has what is no single sender's: ``owners`` and ``costs``, as in `hand_over`."""
_GAIN: Final = 0.15
"""A virtual worker is handed over if that makes the slower of two workers faster by more than this share: measured times are noisy."""
_SLOWNESS: Final = 8
"""An epoch moves what is thought of a worker's speed by one part in so many of the difference..."""
_SURPRISE: Final = 0.5
"""...which counts up to this share: an epoch in which a worker was interrupted says little."""
_MEAN: Final = 1_000_000
_LEAST: Final = _MEAN // 16
"""A worker that does not seem to need any time counts as this fast, so that it is soon known if it does."""


@dataclass(frozen=True)
class ConsistentGrouping(Strategy):
    """A key goes to a virtual worker, or to the next one on its walk while that one has had its part of the messages.

    A worker that takes longer than others, because its machine is slower or busy, hands virtual workers over to faster ones.

    Args:
        virtual: Virtual workers for each worker.
        epsilon: By which share a virtual worker may have more messages than the mean.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.ConsistentGrouping(), keys, workers=4)).tolist()
        [252, 249, 249, 250]
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
        self._virtual, self._epsilon = workers * virtual, epsilon
        common = {"owners": np.arange(self._virtual, dtype=np.int64) % workers, "costs": np.full(workers, _MEAN, np.int64)}
        self.memory[_COMMON] = common

    def begin(self, sender: int) -> dict[str, Ints]:  # noqa: ARG002  (all begin alike)
        return {"loads": np.zeros(self._virtual, np.int64), "sent": np.zeros(1, np.int64)}

    def route_sender(self, hashes: Hashes, memory: dict[str, Ints], out: Workers) -> None:
        _route(hashes, memory["loads"], memory["sent"], 1 + self._epsilon, np.empty(self._virtual, np.int64), out)
        out[:] = self.memory[_COMMON]["owners"][out]

    def finished(self, times_ms: Sequence[float]) -> None:
        """Virtual workers go from slow workers to fast ones."""
        owners, costs = hand_over(**self.memory[_COMMON], times_ms=times_ms)
        self.memory[_COMMON] = {"owners": owners, "costs": costs}


def hand_over(owners: Ints, costs: Ints, times_ms: Sequence[float]) -> tuple[Ints, Ints]:
    """Who has each virtual worker after an epoch. No worker gives its last one away, as its speed would no longer be measured.

    All virtual workers have equally many messages, so a worker's time divided by their number is its cost. The slowest worker hands one over to
    the fastest, the second slowest to the second fastest, and so on, if that is worth it.

    Args:
        owners: By virtual worker, its worker (int64, v); each worker has one at least.
        costs: By worker, the cost of a virtual worker there in recent epochs, as millionths of the mean of all workers (int64, n).
        times_ms: By worker, the time that it took for the epoch, in any unit.

    Returns:
        The same for the next epoch, in new arrays.

    Raises:
        ValueError: Not one time for each worker, or one that is negative or not finite.
    """
    times, workers = np.asarray(times_ms, float), len(costs)
    if times.shape != (workers,) or not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError(f"Times {times_ms} are not those of {workers} workers.")
    has = np.bincount(owners, minlength=workers)
    now = times / has
    if now.any():
        most = _SURPRISE * costs
        costs = costs + (np.clip(_MEAN * now / now.mean() - costs, -most, most) / _SLOWNESS).astype(np.int64)
        costs = np.maximum(costs, _LEAST)
    owners, loads = owners.copy(), costs * has
    slowest_first = np.argsort(-loads, kind="stable").tolist()
    for slow, fast in zip(slowest_first, reversed(slowest_first), strict=True):
        if has[slow] > 1 and loads[fast] + costs[fast] < (1 - _GAIN) * loads[slow]:
            owners[np.flatnonzero(owners == slow)[-1]] = fast
    return owners, costs


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
