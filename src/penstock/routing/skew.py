"""What each distribution strategy would make of a stream's keys: balance, copies of state, moves.

Read next: `penstock.routing.strategy`, and `penstock.spark.skew` for the function that users call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.routing.consistent_grouping import ConsistentGrouping
from penstock.routing.d_choices import DChoices
from penstock.routing.histogram import Histogram
from penstock.routing.isolate import Isolate
from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.loads import MOST_COUNTED, Placed, Watch
from penstock.routing.partial_key_grouping import PartialKeyGrouping
from penstock.routing.power_of_two_choices import PowerOfTwoChoices
from penstock.routing.shuffle import Shuffle
from penstock.routing.strategy import Hashes, Strategy
from penstock.routing.table import Routing
from penstock.routing.w_choices import WChoices

COMPARED: Final[tuple[Strategy, ...]] = (  # the default first, then the one for every step
    KeyGrouping(),
    Isolate(),
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
_ROUNDS: Final = 10
"""In so many rounds a strategy that pins keys has pinned all that it wants."""
ENOUGH: Final = 1.2
"""With so many times the mean at the busiest worker nothing needs to be done."""
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
    def busiest(self) -> float:
        """The load of the busiest worker as a multiple of the mean; 1 if there are no messages."""
        return float(self.loads.max() / self.loads.mean()) if self.loads.any() else 1.0

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


@dataclass(frozen=True)
class Keys:
    """The keys of a stream.

    Attributes:
        hashes: Of each key (int64, k).
        numbers: By message, in order, which of these keys it has (int64, n).
        counts: By key, its messages (int64, k).
    """

    hashes: Hashes
    numbers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def hottest(self) -> float:
        """The share of the key with most messages."""
        return float(self.counts.max(initial=0) / max(len(self.numbers), 1))


def count_keys(hashes: Hashes) -> Keys:
    """Number the keys of messages, whose hashes are given in order (int64)."""
    return Keys(*np.unique(hashes, return_inverse=True, return_counts=True))


def measure(keys: Keys, workers: int, senders: int = 1) -> list[Skew]:
    """Route messages, dealt to the senders in turn, by each strategy of `COMPARED`.

    Args:
        keys: Of the messages.
        workers: Number of workers.
        senders: Number of senders.
    """
    return [_measured(strategy, keys, workers, senders) for strategy in COMPARED]


def settled(strategy: Strategy, keys: Keys, workers: int) -> Routing:
    """The table at which a strategy that pins keys by itself arrives if all epochs are as these messages."""
    table, watch = strategy.table(workers), Watch()
    pinned: dict[int, int] = {}
    hottest = np.argsort(-keys.counts, kind="stable")[:MOST_COUNTED]
    hot = dict(zip(keys.hashes[hottest].tolist(), keys.counts[hottest].tolist(), strict=True))
    for _ in range(_ROUNDS):
        loads = np.bincount(table.workers_of(keys.hashes), weights=keys.counts, minlength=workers)
        watch = replace(watch, workers=dict(enumerate(loads.astype(int).tolist())), keys=hot)
        watch, wanted = strategy.pin_keys(watch, Placed(workers, table, pinned, {}))
        if wanted != pinned:
            pinned = dict(wanted)
            others = [w for w in range(workers) if w not in pinned.values()]
            even = Routing.even(len(others))
            table = Routing(tuple(others[w] for w in even.owners), pinned_keys=pinned)
    return table


def _measured(strategy: Strategy, of: Keys, workers: int, senders: int) -> Skew:
    """One strategy."""
    router, hashes, keys = strategy.router(workers), of.hashes[of.numbers], of.numbers
    router.home = settled(strategy, of, workers)
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


def advised(found: list[Skew]) -> Skew:
    """The strategy to take for steps that merge, from measurements of `COMPARED`: the default, unless a worker then has much more than others."""
    by_key = found[0]
    return by_key if by_key.busiest <= ENOUGH else next(s for s in found if isinstance(s.strategy, Histogram))


def advice(found: list[Skew], hottest: float) -> str:
    """Which strategy to take, in a sentence or two, from measurements of `COMPARED`. `hottest` is the share of the hottest key."""
    by_key, isolated, best = found[0], found[1], advised(found)
    workers, rows = len(by_key.loads), int(by_key.loads.sum())
    if workers == 1:
        return "With one worker nothing has to be balanced."
    if rows < EPOCHS * workers:
        return f"{rows} rows are too few to judge {workers} workers by."
    now = f"the busiest of {workers} workers has {by_key.busiest:.2f} times the mean"
    if best is by_key:
        return f"KeyGrouping(), the default, is enough: {now}."
    said = (
        f"By key, {now}. Aggregates whose rows Spark combines first, such as count and sum, need nothing. For session windows, quantile and "
        f"aggregates of your own take {best.name}: {best.busiest:.2f} times the mean, with {best.copies_per_key:.2f} partial results for each key."
    )
    if isolated.busiest < by_key.busiest:
        said += f" For other steps take {isolated.name}: {isolated.busiest:.2f} times the mean"
        said += f", as {hottest:.1%} of the rows have one key." if hottest * workers > ENOUGH else "."
    return said
