"""A worker of the simulated world: what a region's task does in one epoch, without rows of real columns.

A key's state is a chain: a hash of the chain before and of the record. So the outputs alone show whether each record met the state
that the record before it left. The order within an epoch is that of `penstock.protocol.messages`.

Invariant: a committed `State` is never changed; a task works on a copy, so an attempt can be thrown away.

Read next: `penstock.testing.simulator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.protocol.messages import Answer, BinSizes, Collect, Collected, Hold, Interrogate, Item, Release, refuse_unknown
from penstock.protocol.rescale.collect import KeySize, cut
from penstock.routing.table import SUBS, sub_of
from penstock.testing.schedule import Record

Chain = tuple[int, int]
"""The hash so far, and the bytes that the state counts as."""

_MASK: Final = (1 << 61) - 1


class Emitted(NamedTuple):
    """One output: the record that gave it, the chain before and after it, and who emitted it when."""

    region: int
    key: int
    part: int
    offset: int
    time: int
    before: int
    after: int
    worker: int
    epoch: int


def folded(chain: int, part: int, offset: int) -> int:
    """The chain after one more record."""
    return (chain * 0x5DEECE66D + part * 0x9E3779B97F4A7C15 + offset + 1) & _MASK


class State:
    """What a worker holds between two epochs.

    Attributes:
        chains: By key, its state.
        waiting: By key, records that the frontier has not passed, in order.
        queue: By key on hold, its records in order of arrival.
    """

    __slots__ = ("chains", "queue", "waiting")

    def __init__(
        self,
        chains: dict[int, Chain] | None = None,
        waiting: dict[int, tuple[Record, ...]] | None = None,
        queue: dict[int, tuple[Record, ...]] | None = None,
    ) -> None:
        self.chains = {} if chains is None else chains
        self.waiting = {} if waiting is None else waiting
        self.queue = {} if queue is None else queue

    def __bool__(self) -> bool:
        return bool(self.chains or self.waiting or self.queue)

    def copy(self) -> State:
        """A state that can be changed."""
        return State(self.chains.copy(), self.waiting.copy(), self.queue.copy())

    def keys(self) -> set[int]:
        """All keys of which anything is here."""
        return {*self.chains, *self.waiting, *self.queue}


@dataclass(slots=True)
class Stage:
    """One region in one attempt at an epoch: what its tasks share.

    Attributes:
        region: Its number.
        epoch: The epoch's.
        timed: Whether records are processed in order of event time.
        inputs: Number of inputs that are joined.
        frontier: Records before it are processed.
        bins: Number of bins.
        sizes: By key, the bytes its state begins with.
        out: Gets what the tasks emit.
        onward: Gets the records for the region behind.
    """

    region: int
    epoch: int
    timed: bool
    inputs: int
    frontier: int
    bins: int
    sizes: dict[int, int]
    out: list[Emitted] = field(default_factory=list)
    onward: list[Record] = field(default_factory=list)


class Given(NamedTuple):
    """A key that leaves: its state and its waiting records; `held`: its state is to be copied, beside the epochs."""

    key: int
    to: int
    chain: Chain | None
    waiting: tuple[Record, ...]
    held: bool


class Worker:
    """One task.

    Args:
        stage: Its region and epoch.
        number: Which worker.
        state: What it holds; becomes what it holds after the epoch, but for what it gives up, which is in `given`.
    """

    def __init__(self, stage: Stage, number: int, state: State) -> None:
        self.stage = stage
        self.number = number
        self.state = state
        self.given: list[Given] = []

    def run(self, orders: Sequence[Any], rows: Sequence[Record], copied: Sequence[tuple[int, Chain | None]]) -> Answer:
        """The epoch: acquire, hold, release, process, be measured, give up.

        Args:
            orders: Messages of the epoch.
            rows: Records of this worker, in order of partition and offset.
            copied: Keys whose state has been copied to here, with it.
        """
        refuse_unknown(orders, self.number)
        held: Sequence[int] = ()
        released: Sequence[int] = ()
        sized, taken = None, None
        for key, chain in copied:
            if chain is not None:
                self.state.chains[key] = chain
        for order in orders:
            if isinstance(order, Hold):
                held = order.keys
            elif isinstance(order, Release):
                released = order.keys
            elif isinstance(order, Interrogate):
                sized = self.measure(order)
        self.process(self.released(released) + self.queued(rows, held))
        for order in orders:
            if isinstance(order, Collect):
                taken = self.collect_state(order)
        return Answer(sized, taken)

    def released(self, keys: Iterable[int]) -> list[Record]:
        """The queued records of these keys, which the queue no longer holds."""
        return [row for key in keys for row in self.state.queue.pop(key, ())]

    def queued(self, rows: Sequence[Record], held: Sequence[int]) -> list[Record]:
        """Queue records of keys on hold; the others."""
        if not held:
            return list(rows)
        queue = self.state.queue
        for row in rows:
            if row[3] in held:
                queue[row[3]] = (*queue.get(row[3], ()), row)
        return [row for row in rows if row[3] not in held]

    def process(self, rows: Sequence[Record]) -> None:
        """Process records, or let them wait for the frontier."""
        if not self.stage.timed:
            for row in rows:
                self.fold(row)
            return
        waiting, frontier = self.state.waiting, self.stage.frontier
        for row in rows:
            waiting[row[3]] = (*waiting.get(row[3], ()), row)
        for key, those in list(waiting.items()):
            ready = sorted(row for row in those if row[0] < frontier)
            if not ready:
                continue
            for row in ready:
                self.fold(row)
            if len(ready) == len(those):
                del waiting[key]
            else:
                waiting[key] = tuple(row for row in those if row[0] >= frontier)

    def fold(self, row: Record) -> None:
        """Process one record."""
        stage, chains = self.stage, self.state.chains
        time, part, offset, key, onward = row
        known = chains.get(key)
        before, size = (0, stage.sizes.get(key) or 5 + (key >> 40 & 15)) if known is None else known
        after = folded(before, part, offset)
        chains[key] = (after, size + 2)
        stage.out.append(Emitted(stage.region, key, part, offset, time, before, after, self.number, stage.epoch))
        stage.onward.append((time, part, offset, onward, 0))

    def bin_of(self, key: int) -> int:
        """The bin of a key."""
        return key % self.stage.bins

    def measure(self, ask: Interrogate) -> BinSizes:
        """Answer `Interrogate`."""
        sizes: dict[int, int] = {}
        seen, at = 0, ask.start
        for found, size in sorted((self.bin_of(k), n) for k, (_, n) in self.state.chains.items()):
            if found < ask.start:
                continue
            if found != at:
                if seen >= ask.entries:
                    return BinSizes(tuple(sizes.items()), found)
                at = found
            sizes[at] = sizes.get(at, 0) + size
            seen += 1
        return BinSizes(tuple(sizes.items()), self.stage.bins)

    def collect_state(self, order: Collect) -> Collected:
        """Answer `Collect`."""
        left, most = order.budget_bytes, max(order.hold_bytes, order.budget_bytes)
        chains, given = self.state.chains, self.given
        pinned_keys = frozenset(order.pinned_keys)
        bins: list[tuple[int, int]] = []
        splits: list[tuple[int, int, int]] = []
        keys: list[tuple[int, int]] = []
        too_large: list[tuple[int, int, int]] = []
        for item in order.items:
            if item.bin < 0:
                size = chains.get(item.key, (0, 0))[1]
                if size > most:
                    too_large.append((item.key, item.to, size))
                    self.leave((item.key,), item.to, held=True)
                    continue
                if size > left and keys:
                    break
                self.leave((item.key,), item.to)
                keys.append((item.key, item.to))
                left -= size
                continue
            here = {k: n for k, (_, n) in chains.items() if self.bin_of(k) == item.bin}
            size = sum(here.values())
            whole = item.start == 0 and not any(self.bin_of(k) == item.bin for k in pinned_keys)
            if whole and size <= left:
                self.leave((*here, *self.only_waiting(item, SUBS)), item.to)
                bins.append((item.bin, item.to))
                left -= size
                continue
            if whole and size <= order.budget_bytes and bins:
                break
            done = cut(
                [KeySize(sub_of(k), k, n) for k, n in here.items() if k not in pinned_keys], item.start, max(left, 1), most
            )
            waiting = [k for k in self.only_waiting(item, done.upto) if k not in pinned_keys]
            self.leave((*done.keys, *waiting), item.to)
            self.leave([k.key for k in done.too_large], item.to, held=True)
            too_large += [(k.key, item.to, k.bytes) for k in done.too_large]
            splits.append((item.bin, item.to, done.upto))
            break
        moved = sum(g.chain[1] for g in given if g.chain and not g.held)
        return Collected(tuple(bins), tuple(splits), tuple(keys), tuple(too_large), len(given), moved)

    def only_waiting(self, item: Item, upto: int) -> list[int]:
        """Keys of a bin's parts that have waiting records and no state yet."""
        state = self.state
        found = (k for k in state.waiting if k not in state.chains and self.bin_of(k) == item.bin)
        return [k for k in found if item.start <= sub_of(k) < upto]

    def leave(self, keys: Iterable[int], to: int, *, held: bool = False) -> None:
        """Keys leave, with their state and their waiting records."""
        chains, waiting = self.state.chains, self.state.waiting
        self.given += [Given(key, to, chains.pop(key, None), waiting.pop(key, ()), held) for key in keys]
