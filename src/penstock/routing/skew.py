"""What each distribution strategy would make of a stream's keys: balance, copies of state, moves.

Read next: `penstock.routing.strategy`, and `penstock.spark.skew` for the function that users call.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.routing.consistent_grouping import ConsistentGrouping
from penstock.routing.d_choices import DChoices
from penstock.routing.histogram import Histogram
from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.partial_key_grouping import PartialKeyGrouping
from penstock.routing.power_of_two_choices import PowerOfTwoChoices
from penstock.routing.shuffle import Shuffle
from penstock.routing.strategy import MERGING, Hashes, Strategy
from penstock.routing.w_choices import WChoices

COMPARED: Final[tuple[Strategy, ...]] = (
    KeyGrouping(),
    PartialKeyGrouping(),
    DChoices(),
    WChoices(),
    ConsistentGrouping(),
    Histogram(),
    Shuffle(),
    PowerOfTwoChoices(),
)
EPOCHS: Final = 10
"""Equal parts into which the messages are cut, so that moves from one to the next can be counted."""
MOST: Final = 10_000_000
"""So many rows are looked at, where there are more."""


@dataclass(frozen=True)
class Skew:
    """One strategy on one stream of keys.

    Attributes:
        strategy: The strategy.
        loads: By worker, its messages (int64).
        copies_per_key: Workers that have messages of a key, on average over keys.
        moved_between_epochs: Of the keys in two epochs that follow each other, the share whose workers differ.
    """

    strategy: Strategy
    loads: npt.NDArray[np.int64]
    copies_per_key: float
    moved_between_epochs: float

    @property
    def name(self) -> str:
        """The strategy as a user writes it, with its defaults."""
        return f"{type(self.strategy).__name__}()"

    @property
    def imbalance(self) -> float:
        """Messages that the busiest worker has more than the mean, as a share of all messages."""
        return float((self.loads.max() - self.loads.mean()) / max(self.loads.sum(), 1))

    def figures(self) -> dict[str, Any]:
        """A row of `penstock.skew`."""
        return {
            "strategy": self.name,
            "imbalance": self.imbalance,
            "max_load": int(self.loads.max()),
            "mean_load": float(self.loads.mean()),
            "copies_per_key": self.copies_per_key,
            "moved_between_epochs": self.moved_between_epochs,
            "fits": self.strategy.fits,
        }


def measure(hashes: Hashes, workers: int, senders: int = 1) -> list[Skew]:
    """Route keys, dealt to the senders in turn, by each strategy of `COMPARED`.

    Args:
        hashes: By message, in order, the hash of its key (int64).
        workers: Number of workers.
        senders: Number of senders.
    """
    _, keys = np.unique(hashes, return_inverse=True)
    return [_measured(strategy, hashes, keys, workers, senders) for strategy in COMPARED]


def _measured(strategy: Strategy, hashes: Hashes, keys: npt.NDArray[np.int64], workers: int, senders: int) -> Skew:
    """One strategy. `keys`: by message, the number of its key, from 0 on."""
    router = strategy.router(workers)
    loads = np.zeros(workers, np.int64)
    pairs: list[npt.NDArray[np.int64]] = []
    for epoch in np.array_split(np.arange(len(hashes)), EPOCHS):
        dealt = [epoch[s::senders] for s in range(senders)]
        routed = np.concatenate([*router.route({s: hashes[rows] for s, rows in enumerate(dealt)}).values()])
        loads += np.bincount(routed, minlength=workers)
        pairs.append(np.unique(keys[np.concatenate(dealt)] * workers + routed))
    copies = len(np.unique(np.concatenate(pairs))) / (keys.max(initial=0) + 1)
    return Skew(strategy, loads, copies, _moved(pairs, workers))


def _moved(pairs: list[npt.NDArray[np.int64]], workers: int) -> float:
    """Of the keys in two epochs that follow each other, the share whose sets of workers differ. Pairs: key * workers + worker."""
    moved = both = 0
    for before, after in pairwise(pairs):
        common = np.intersect1d(before // workers, after // workers)
        differ = np.setxor1d(before, after, assume_unique=True) // workers
        both += len(common)
        moved += len(np.intersect1d(common, differ))
    return moved / both if both else 0.0


def advice(found: list[Skew]) -> str:
    """One sentence: which strategy to take, from measurements that include `KeyGrouping`."""
    by_key = next(s for s in found if isinstance(s.strategy, KeyGrouping))
    workers, messages = len(by_key.loads), int(by_key.loads.sum())
    if not messages:
        return "There are no rows."
    busiest = by_key.loads.max() / by_key.loads.mean()
    if workers == 1:
        return "With one worker nothing has to be balanced."
    if busiest <= 1.2:
        return f"KeyGrouping() is enough: the busiest of {workers} workers has {busiest:.2f} times the mean."
    even = min((s for s in found if s.strategy.fits == MERGING), key=lambda s: (s.imbalance > 0.01, s.copies_per_key))
    return (
        f"By key, the busiest of {workers} workers has {busiest:.2f} times the mean; {even.name} brings that to "
        f"{even.loads.max() / even.loads.mean():.2f} with {even.copies_per_key:.2f} copies of each key's state on average."
    )
