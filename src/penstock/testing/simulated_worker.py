"""What a worker of the simulated world holds: records and states without real columns, and how they change hands.

A key's state is a chain: a hash of the chain before and of the record. So the outputs alone show whether each record met the state
that the record before it left. What is done in an epoch, and in which order, is production code: `penstock.protocol.rescale.worker`
and `penstock.protocol.rescale.transfer`.

Invariant: a committed `State` is never changed; a task works on a copy, so an attempt can be thrown away.

Read next: `penstock.testing.simulator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.protocol.messages import BinSizes, Collect, Collected, Frontier, Message
from penstock.protocol.rescale.transfer import Versions
from penstock.routing.table import sub_of
from penstock.testing.schedule import Record

Chain = tuple[int, int]
"""The hash so far, and the bytes that the state counts as."""

_MASK: Final = (1 << 61) - 1
_RECORD_BYTES: Final = 2


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


@dataclass(slots=True, eq=False)
class State:
    """What a worker holds between two epochs.

    Attributes:
        chains: By key, its state.
        waiting: By key, records that the frontier has not passed, in order.
        queue: By key on hold, its records in order of arrival.
    """

    chains: dict[int, Chain] = field(default_factory=dict)
    waiting: dict[int, tuple[Record, ...]] = field(default_factory=dict)
    queue: dict[int, tuple[Record, ...]] = field(default_factory=dict)

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
        onward: Gets the records for the region behind, if there is one.
        out: Gets what the tasks emit.
    """

    region: int
    epoch: int
    timed: bool
    inputs: int
    frontier: int
    bins: int
    sizes: dict[int, int]
    onward: list[Record] | None
    out: list[Emitted] = field(default_factory=list)


class Task:
    """What one task holds (`penstock.protocol.rescale.worker.Task`).

    Args:
        stage: Its region and epoch.
        number: Which worker.
        before: What it begins with.
        rows: Its records, in order of partition and offset.

    Attributes:
        state: What it holds after the epoch, as if nothing were given up.
        moves: What it gives up, and who gets it; −1: the keys that are on hold from now on.
    """

    def __init__(self, stage: Stage, number: int, before: State, rows: Sequence[Record]) -> None:
        self.stage = stage
        self.bins = stage.bins
        self.number = number
        self.before = before
        self.state = before.copy()
        self.rows = rows
        self.sizes: dict[int, dict[int, int]] | None = None
        self.moves: list[tuple[int, State]] = []

    def hold(self, keys: Sequence[int]) -> dict[int, int]:
        """Queue records of keys on hold."""
        queue, queued = self.state.queue, dict[int, int]()
        for row in self.rows:
            if row[3] in keys:
                queue[row[3]] = (*queue.get(row[3], ()), row)
                queued[row[3]] = queued.get(row[3], 0) + _RECORD_BYTES
        self.rows = [row for row in self.rows if row[3] not in keys]
        return queued

    def release(self, keys: Mapping[int, int]) -> None:
        """Put queued records before the epoch's own."""
        self.rows = [*(row for key in keys for row in self.state.queue.pop(key, ())), *self.rows]

    def process(self, frontier: Frontier) -> None:
        """Process records, or let them wait for the frontier."""
        if not self.stage.timed:
            for row in self.rows:
                self.fold(row)
            return
        waiting, now = self.state.waiting, frontier.now
        for row in self.rows:
            waiting[row[3]] = (*waiting.get(row[3], ()), row)
        for key, those in list(waiting.items()):
            ready = sorted(row for row in those if row[0] < now)
            if not ready:
                continue
            for row in ready:
                self.fold(row)
            if len(ready) == len(those):
                del waiting[key]
            else:
                waiting[key] = tuple(row for row in those if row[0] >= now)

    def fold(self, row: Record) -> None:
        """Process one record."""
        stage, chains = self.stage, self.state.chains
        time, part, offset, key, onward = row
        known = chains.get(key)
        before, size = (0, stage.sizes.get(key) or 5 + (key >> 40 & 15)) if known is None else known
        after = folded(before, part, offset)
        chains[key] = (after, size + _RECORD_BYTES)
        stage.out.append(Emitted(stage.region, key, part, offset, time, before, after, self.number, stage.epoch))
        if stage.onward is not None:
            stage.onward.append((time, part, offset, onward, 0))

    def interrogate(self, start: int, entries: int) -> BinSizes:
        """Measure what was there before the epoch."""
        sizes: dict[int, int] = {}
        seen, at = 0, start
        for found, size in sorted((self.bin_of(k), n) for k, (_, n) in self.before.chains.items()):
            if found < start:
                continue
            if found != at:
                if seen >= entries:
                    return BinSizes(tuple(sizes.items()), found)
                at = found
            sizes[at] = sizes.get(at, 0) + size
            seen += 1
        return BinSizes(tuple(sizes.items()), self.bins)

    def hear(self, message: Message) -> None:
        """Nobody wants to."""

    def bin_of(self, key: int) -> int:
        """The bin of a key."""
        return key % self.bins

    def bytes_of(self, at: int) -> int:
        """The bytes of a bin."""
        return sum(self.keys_of(at).values())

    def keys_of(self, at: int) -> dict[int, int]:
        """By key of a bin, the bytes of its state and of its waiting records."""
        if self.sizes is None:
            self.sizes = {}
            for key, (_, size) in self.state.chains.items():
                self.sizes.setdefault(self.bin_of(key), {})[key] = size
            for key, rows in self.state.waiting.items():
                here = self.sizes.setdefault(self.bin_of(key), {})
                here[key] = here.get(key, 0) + _RECORD_BYTES * len(rows)
        return self.sizes.get(at, {})

    def give_up(self, leaving: Collected, asked: Collect) -> tuple[int, int]:
        """Set aside what leaves; the state that stays is not changed here."""
        starts = {item.bin: item.start for item in asked.items}
        stay = {*asked.pinned_keys, *(key for key, _, _ in leaving.too_large)}
        going = [(key, to) for at, to in leaving.bins for key in self.keys_of(at)]
        for at, to, upto in leaving.splits:
            going += [(k, to) for k in self.keys_of(at) if starts[at] <= sub_of(k) < upto and k not in stay]
        going += [*leaving.keys, *((key, -1) for key, _, _ in leaving.too_large)]
        parts: dict[int, State] = {}
        chains, waiting, given = self.state.chains, self.state.waiting, 0
        for key, to in going:
            part = parts.setdefault(to, State())
            if key in chains:
                part.chains[key] = chains[key]
                given += to >= 0 and chains[key][1]
            if key in waiting:
                part.waiting[key] = waiting[key]
        self.moves = [(to, part) for to, part in parts.items() if part]
        return sum(len(part.chains) for to, part in self.moves if to >= 0), given


def joined(version: State, part: State) -> State:
    """A state with what has come; what has waited longer comes first."""
    out = version.copy()
    out.chains.update(part.chains)
    for mine, came in ((out.waiting, part.waiting), (out.queue, part.queue)):
        mine.update({key: (*rows, *mine.get(key, ())) for key, rows in came.items()})
    return out


def left(version: State, part: State) -> State:
    """A state without what has gone."""
    chains = {k: c for k, c in version.chains.items() if k not in part.chains}
    return State(chains, {k: r for k, r in version.waiting.items() if k not in part.waiting}, version.queue)


STATES: Final = Versions(State(), joined, left)


def copied(version: State, key: int) -> State:
    """The copy of a key on hold: its state, and as the beginning of its queue its waiting records."""
    chains, waiting = version.chains, version.waiting
    return State({key: chains[key]} if key in chains else {}, {}, {key: waiting[key]} if key in waiting else {})
