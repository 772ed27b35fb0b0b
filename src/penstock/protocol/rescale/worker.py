"""A worker's half of a rescale as a pure machine: the order of an epoch, and what is given up at its end.

The task and the simulator run it. Rows and state lie behind `Task`: columns and a store in the task, plain dicts in the simulator.

W1  An epoch's messages come in the order of `penstock.protocol.messages`, at most one of a kind, a `Frontier` and this epoch's `Barrier` among them. A
    worker that is given anything else refuses, before it has changed anything.
W2  A key on hold is neither released nor given up in the same epoch; that is refused likewise.
W3  Collect is last: what operators write at the barrier leaves, too.

The other rules are those of the phases: H1 and H4 for `Hold` and `Release`, C1, C4 and C6 to C8 for `Collect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.protocol.messages import (
    KINDS,
    Acquire,
    Answer,
    Barrier,
    BinSizes,
    Collect,
    Collected,
    Frontier,
    Hold,
    Interrogate,
    Message,
    Release,
    Shutdown,
)
from penstock.protocol.rescale.collect import KeySize, cut
from penstock.routing.table import sub_of

EPOCHS: Final = frozenset(
    tuple(chosen)
    for n in range(2, len(KINDS) + 1)
    for chosen in combinations(KINDS, n)
    if Frontier in chosen and Barrier in chosen
)
"""All that the kinds of an epoch's messages can be (W1)."""

_NONE: Final = Answer()


class Task(Protocol):
    """What holds a worker's rows and state in one epoch.

    Attributes:
        bins: Number of the region's bins.
    """

    bins: int

    def hold(self, keys: Sequence[int]) -> Mapping[int, int]:
        """Queue this epoch's rows of these keys, in the state (H1); gives the bytes queued, by key."""

    def release(self, keys: Mapping[int, int]) -> None:
        """Put the queued rows of these keys, in order of arrival, before the epoch's own (H4); they are queued no more.

        Args:
            keys: By hash, the event time (µs) up to which the key had been processed when it was put on hold.
        """

    def process(self, frontier: Frontier) -> None:
        """Process the rows up to the frontier."""

    def interrogate(self, start: int, entries: int) -> BinSizes:
        """Measure bins from `start` on, until so many entries have been seen."""

    def hear(self, message: Acquire | Barrier | Shutdown) -> None:
        """Tell operators: state has come, and is there already; or all rows have been processed; or nothing comes after this epoch."""

    def bytes_of(self, at: int) -> int:
        """The bytes of a bin: state and waiting rows."""

    def keys_of(self, at: int) -> Mapping[int, int]:
        """By key (hash) of a bin, its bytes."""

    def give_up(self, leaving: Collected, asked: Collect) -> tuple[int, int]:
        """Set aside what leaves, for its receivers; gives the number of keys whose state goes along, and their bytes."""


class WorkerEpoch:
    """One epoch of one worker.

    Args:
        worker: The worker.
        epoch: The epoch's number.
        messages: From the controller, in order.

    Raises:
        PenstockError: The messages are not those of an epoch (W1, W2). Nothing was changed.
    """

    def __init__(self, worker: int, epoch: int, messages: Sequence[Message]) -> None:
        self.worker = worker
        self.epoch = epoch
        self.messages = messages
        self.check()

    @property
    def frontier(self) -> Frontier:
        """How far the rows are to be processed."""
        return next(m for m in self.messages if type(m) is Frontier)

    def check(self) -> None:
        """Refuse what is no epoch (W1, W2)."""
        kinds = tuple(map(type, self.messages))
        if kinds not in EPOCHS:
            for message in self.messages:
                if type(message) not in KINDS:
                    raise self.refused(f"{message!r}, which is no message that this version knows")
            raise self.refused(f"what is no epoch: {', '.join(k.__name__ for k in kinds) or 'nothing'}")
        barrier: Any = self.messages[kinds.index(Barrier)]
        if barrier.epoch != self.epoch:
            raise self.refused(f"{barrier!r} in epoch {self.epoch}")
        if kinds[0] is Hold:
            self.check_held()

    def check_held(self) -> None:
        """Refuse to release or to give up a key on hold (W2)."""
        held: set[int] = set()
        for message in self.messages:
            match message:
                case Hold(keys=keys):
                    held = set(keys)
                case Release(keys=keys) if not held.isdisjoint(keys):
                    raise self.refused(f"{message!r}, of a key on hold")
                case Collect() if not held.issubset(message.pinned_keys) or any(
                    i.bin < 0 and i.key in held for i in message.items
                ):
                    raise self.refused(f"{message!r}, of a key on hold")

    def refused(self, what: str) -> PenstockError:
        """The error that says what the worker was given."""
        return PenstockError(f"Worker {self.worker} was given {what}.")

    def run(self, task: Task, clock: Callable[[], float] = lambda: 0.0) -> Answer:
        """Carry out the messages, one after the other.

        Args:
            task: Holds the rows and the state.
            clock: Gives seconds, to measure what answering costs.
        """
        sized, taken, cost = None, None, 0.0
        queued: Mapping[int, int] | None = None
        for message in self.messages:
            match message:
                case Frontier():
                    task.process(message)
                case Barrier() | Acquire() | Shutdown():
                    task.hear(message)
                case Hold():
                    queued = task.hold(message.keys)
                case Release():
                    task.release(dict(zip(message.keys, message.since, strict=True)))
                case Interrogate() | Collect():
                    began = clock()
                    if isinstance(message, Collect):
                        taken = self.collect(task, message)
                    else:
                        sized = task.interrogate(message.start, message.entries)
                    cost += clock() - began
        if sized is None and taken is None and queued is None:
            return _NONE
        return Answer(sized, taken, int(cost * 1e6), tuple(queued.items()) if queued else ())

    def collect(self, task: Task, message: Collect) -> Collected:
        """Answer `Collect`."""
        leaving = self.choose(task, message)
        keys, moved = task.give_up(leaving, message)
        return replace(leaving, moved_keys=keys, moved_bytes=moved)

    def choose(self, task: Task, message: Collect) -> Collected:
        """What fits the budget, in the order of the items: the first that does not ends it (C4, C6 to C8)."""
        left, most, stay = message.budget_bytes, max(message.hold_bytes, message.budget_bytes), frozenset(message.pinned_keys)
        divided = {key % task.bins for key in stay}
        bins: list[tuple[int, int]] = []
        splits: list[tuple[int, int, int]] = []
        keys: list[tuple[int, int]] = []
        too_large: list[tuple[int, int, int]] = []
        for item in message.items:
            if item.bin < 0:
                size = task.keys_of(item.key % task.bins).get(item.key, 0)
                if size > most:
                    too_large.append((item.key, item.to, size))
                    continue
                if size > left and keys:
                    break
                keys.append((item.key, item.to))
                left -= size
                continue
            size, whole = task.bytes_of(item.bin), item.start == 0 and item.bin not in divided
            if whole and size <= left:
                bins.append((item.bin, item.to))
                left -= size
                continue
            if not (whole and size <= message.budget_bytes and bins):  # else it fits the next step
                sizes = [KeySize(sub_of(k), k, n) for k, n in task.keys_of(item.bin).items() if k not in stay]
                done = cut(sizes, item.start, max(left, 1), most)
                splits.append((item.bin, item.to, done.upto))
                too_large += [(k.key, item.to, k.bytes) for k in done.too_large]
            break
        return Collected(tuple(bins), tuple(splits), tuple(keys), tuple(too_large))
