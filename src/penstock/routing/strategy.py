"""How rows of a region are spread over its workers: the contract of ``key_by(distribute=…)`` and `penstock.route`.

A strategy is a frozen value in a file of its own in this folder. The plan, the driver and the engines know it by this contract only.
Where keys have one worker each, rows go by the table that the strategy gives, which a rescale then changes. Where they have several, the
strategy's `Router` routes: what it remembers from one message to the next (loads, a sketch of hot keys) is kept apart for each sender, and a
sender is a partition of a source, never a task.

Read next: `penstock.routing.key_grouping`, `penstock.routing.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import OperatorError, PenstockError, raised
from penstock.routing.loads import Placed, Watch
from penstock.routing.table import Routing
from penstock.types import BINS

STATELESS: Final = "steps without state"
MERGING: Final = "steps that merge"
EVERY: Final = "every step"

Hashes = npt.NDArray[np.int64]
Workers = npt.NDArray[np.int32]


class Router(ABC):
    """A strategy at work, for one region and a fixed number of workers.

    Attributes:
        memory: By sender, what it knows from one epoch to the next: int64 arrays by name. The epoch record keeps it, so that an epoch that
            runs again is routed alike; it may be set before the first call of `route`.
        home: Where each key is at home, for those that leave keys there. It may be set likewise.
    """

    def __init__(self, home: Routing) -> None:
        self.home = home
        self.memory: dict[int, dict[str, npt.NDArray[np.int64]]] = {}

    @abstractmethod
    def route(self, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
        """The worker of each message of one epoch.

        Args:
            senders: By sender, the hashes of its messages' keys (int64), in the order of their positions.

        Returns:
            By sender, an int32 array of workers, of the same length.
        """

    def finished(self, times_ms: Sequence[float]) -> None:  # noqa: B027  (most do not care)
        """Hear how long each worker took for the last epoch, in milliseconds. A router may send a slow one less from now on."""


class Strategy:
    """A distribution strategy. It is deterministic, so that a re-run of an epoch routes alike.

    Attributes:
        splits_keys: Whether messages of one key go to several workers: each then has a partial result, and these must be merged.
        reads_keys: Whether it reads messages' keys. If not, it is also for streams that have none: all hashes are 0.
        fits: Which steps it is for: `EVERY`, `MERGING` or `STATELESS`.
        rests: Whether it need not route in epochs in which all workers have about as many rows by the table: keys then stay whole.
    """

    splits_keys: ClassVar[bool] = False
    reads_keys: ClassVar[bool] = True
    fits: ClassVar[str] = EVERY
    rests: ClassVar[bool] = False

    @property
    def report_above(self) -> float:
        """Workers report keys with at least this share of their rows of an epoch; 0: the strategy does not ask for it."""
        return 0.0

    def describe(self) -> str:
        """Its name and settings as text. The checkpoint keeps it."""
        return repr(self)

    def table(self, workers: int) -> Routing:
        """The table with which a region of so many workers begins: where each key is at home. Equal ranges of bins if not said otherwise."""
        return Routing.even(workers)

    def pin_keys(self, watch: Watch, placed: Placed) -> tuple[Watch, Mapping[int, int]]:
        """After an epoch in which the region was not rescaling: which keys the strategy wants to have workers of their own; none if not said otherwise.

        Args:
            watch: The load since the round began, this epoch included.
            placed: Where the keys are.

        Returns:
            The load to go on with, and by key (hash) the worker that it is to have for itself. Keys that users have pinned are not among them,
            and one worker at least is in none.
        """
        del placed
        return replace(watch, spared=()).anew({}), {}

    def of_partition(self) -> Strategy | None:
        """The strategy of the same region in a flow that reads one partition of a stream, as each does of a flow in a group; None: it cannot be
        in such a flow, because rows of one key may lie in several partitions. Stateless steps have any strategy there.
        """
        return self if self.fits == STATELESS else None

    def router(self, workers: int) -> Router:
        """A router that has seen nothing yet; by the table if not said otherwise."""
        return ByTable(self.table(workers))


def first_table(strategy: Strategy, workers: int) -> Routing:
    """The table with which a region of so many workers begins, looked at: a key without a worker would be lost.

    Raises:
        OperatorError: The strategy raised, or its table is none of these workers. Nothing was changed.
    """
    with told(strategy):
        table = strategy.table(workers)
        if len(table.owners) != BINS:
            raise ValueError(f"its table has {len(table.owners)} bins, not {BINS}")
        beyond = {*table.owners, *table.pinned_keys.values()}.difference(range(workers))
        if beyond:
            raise ValueError(f"its table gives keys to the workers {sorted(beyond)} of {workers}")
        return table


def routed(strategy: Strategy, router: Router, workers: int, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
    """What a router gives, looked at: a row without a worker would be lost.

    Args:
        strategy: Whose router it is.
        router: The router.
        workers: Number of workers.
        senders: As `Router.route` gets them.

    Raises:
        OperatorError: It raised, or gave something else than workers. What it remembers is then to be thrown away.
    """
    with told(strategy):
        found = router.route(senders)
        for sender, hashes in senders.items():
            to = np.asarray(found[sender])
            if to.shape != hashes.shape or to.dtype.kind not in "iu":
                raise TypeError(f"for {len(hashes)} messages it gave {to.shape} of {to.dtype}, not a worker for each")
            if len(to) and not 0 <= int(to.min()) <= int(to.max()) < workers:
                raise ValueError(f"it gave worker {int(to.max() if to.min() >= 0 else to.min())} of {workers}")
        return found


@contextmanager
def told(strategy: Strategy) -> Iterator[None]:
    """Raise what fails in a strategy as a sentence that names it.

    Raises:
        OperatorError: Something failed.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise OperatorError(f"Strategy {strategy.describe()} failed in routing: {raised(error)}; fix the strategy.") from error


class ByTable(Router):
    """Every message goes to the one worker of its key."""

    def route(self, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
        """Look up each key."""
        return {sender: self.home.workers_of(hashes).astype(np.int32) for sender, hashes in senders.items()}


class Memory(Router):
    """A router that remembers, for each sender apart, named arrays: what it knows by `begin`, and changes in `route_sender`."""

    def __init__(self, workers: int) -> None:
        super().__init__(Routing.even(workers))
        self.workers = workers

    @abstractmethod
    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:
        """The arrays of a sender that has sent nothing."""

    @abstractmethod
    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        """Write the worker of each message of a sender to `out`; `memory` is changed."""

    def route(self, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
        """Each sender by its own memory."""
        routed = {}
        for sender, hashes in senders.items():
            if sender not in self.memory:
                self.memory[sender] = self.begin(sender)
            routed[sender] = out = np.empty(len(hashes), np.int32)
            self.route_sender(hashes, self.memory[sender], out)
        return routed


Parts = list[tuple[int, int]]
"""Of a key's messages in an epoch: (worker, how many of them), in the order of senders and positions."""


class ByCounts(Router):
    """A router that needs no more of an epoch than how many messages each key has, and leaves most keys whole, at home.

    Args:
        workers: Number of workers.
        home: Where each key is at home.
    """

    def __init__(self, workers: int, home: Routing) -> None:
        super().__init__(home)
        self.workers = workers

    @abstractmethod
    def divide(self, keys: Hashes, counts: npt.NDArray[np.int64], loads: npt.NDArray[np.int64]) -> dict[int, Parts]:
        """The keys that do not stay whole at home.

        Args:
            keys: Different hashes (int64, k), in any order: the result does not depend on it.
            counts: By key, its messages in the epoch (int64, k).
            loads: By worker, the messages of all keys at home there, those of other keys included (int64).

        Returns:
            By hash of a key, where its messages go.
        """

    def divided(self, keys: Hashes, counts: npt.NDArray[np.int64], loads: npt.NDArray[np.int64]) -> dict[int, Parts]:
        """What `divide` gives, looked at.

        Raises:
            ValueError: A key has parts at workers that there are not, or parts of more or fewer messages than it has.
        """
        divided = self.divide(keys, counts, loads)
        for at in np.flatnonzero(np.isin(keys, list(divided))).tolist() if divided else ():
            parts, count = divided[int(keys[at])], int(counts[at])
            if not all(0 <= worker < self.workers and size >= 0 for worker, size in parts) or count != sum(n for _, n in parts):
                raise ValueError(
                    f"of {count} messages of a key, and {self.workers} workers, it gave (worker, messages) {parts}"
                )
        return divided

    def route(self, senders: Mapping[int, Hashes]) -> dict[int, Workers]:
        """By the counts of all senders together; rows of a divided key are numbered by sender and position."""
        hashes = np.concatenate([*senders.values(), np.empty(0, np.int64)])
        encoded = pa.array(hashes).dictionary_encode()
        keys, found = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        homes = self.home.workers_of(keys).astype(np.int32)
        out = homes[found]
        divided = self.divided(keys, np.bincount(found, minlength=len(keys)), np.bincount(out, minlength=self.workers))
        if divided:
            at = {key: i for i, key in enumerate(keys.tolist()) if key in divided}
            is_divided = np.zeros(len(keys), bool)
            is_divided[list(at.values())] = True
            rows = np.flatnonzero(is_divided[found])
            rows = rows[np.argsort(found[rows], kind="stable")]
            parts = [part for key in sorted(at, key=at.__getitem__) for part in divided[key]]
            out[rows] = np.repeat([w for w, _ in parts], [size for _, size in parts])
        sizes = [len(h) for h in senders.values()]
        return dict(zip(senders, np.split(out, np.cumsum(sizes)[:-1]), strict=True)) if senders else {}
