"""What happens in one simulated run, drawn from its seed: topology, keys, input, limits, commands, crashes.

Invariants: the seed decides everything; no record is late, that is, none has a time before the frontier of an earlier epoch. Runs
are kept small on purpose (a dozen epochs, a dozen keys, 8 to 16 bins): most bugs of a protocol show in small runs, and small runs
are fast, so there can be many.

Read next: `penstock.testing.simulator`, which plays a schedule.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final, NamedTuple

from penstock.protocol.commands import Command, Load, Move, Scale, Snapshot, Unknown
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.routing.isolate import Isolate
from penstock.routing.key_grouping import KeyGrouping
from penstock.routing.strategy import Strategy

Record = tuple[int, int, int, int, int]
"""Event time, source partition, offset, key (a hash) in the first region, key in the second."""

INPUT_OF_PART: Final = (0, 0, 1)
"""By source partition, which input of a joined region it belongs to."""

CRASH_STEPS: Final = ("commands", "orders", "task", "task", "advanced", "sink", "commit", "committed")
"""Where an attempt at an epoch can die: after this has been done, except for `commit`: just before."""

FAULTS: Final = ("twice", "reordered", "late", "lost", "held released", "held collected")
"""What a transport may do to a worker's messages; the worker refuses them, so the attempt dies."""

SNAPSHOT: Final = "before"


class Region(NamedTuple):
    """A region: whether it processes in order of event time, how many workers it begins with, how many inputs it has."""

    timed: bool
    workers: int
    inputs: int


@dataclass(slots=True)
class Schedule:
    """One run.

    Attributes:
        seed: What it was drawn from.
        bins: Number of bins of every region.
        regions: One, or two in a chain.
        limits: What bounds a step.
        keys: Known keys; input may bring new ones.
        sizes: By key, the bytes its state begins with, where that is not small.
        epochs: Number of epochs in which the sources are drawn.
        endless: Whether the sources go on with new keys until every rescale has ended.
        hot: Bin of the new keys that an endless source brings; −1: any.
        silent: Whether workers without state leave `Interrogate` unanswered.
        round_trip: Whether every commit writes the control as JSON and reads it back.
        commands: By epoch; regions have their numbers for names.
        crashes: By epoch, the steps or faults at which attempts die, one attempt each, and how often they are passed before.
        empty: Epochs that bring no record and no time.
        copy_epochs: Most epochs that a copy takes.
        strategy: How the regions are distributed.
        skew: How often a record is of the key that is hot.
        hot_epochs: After so many epochs another key is hot.
    """

    seed: int
    bins: int
    regions: tuple[Region, ...]
    limits: Limits
    keys: list[int]
    sizes: dict[int, int]
    epochs: int
    endless: bool
    hot: int
    silent: bool
    round_trip: bool
    commands: dict[int, list[Command]] = field(default_factory=dict)
    crashes: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    empty: range = range(0)
    copy_epochs: int = 3
    strategy: Strategy = field(default_factory=KeyGrouping)
    skew: float = 0.0
    hot_epochs: int = 1


@dataclass(frozen=True)
class Hasty(Isolate):
    """Decides on few rows, so that it does so often in a short run."""

    rounds: ClassVar[int] = 1


def draw(seed: int) -> tuple[Schedule, Random]:
    """Draw a schedule.

    Args:
        seed: Any number.

    Returns:
        The schedule, and the generator that goes on to draw input, costs and durations.
    """
    rng = Random(seed)  # noqa: S311  (nothing here is a secret)
    rnd = rng.random
    bins = (8, 16, 16, 12)[int(rnd() * 4)]
    inputs = 1 + (rnd() < 0.3)
    regions = [Region(rnd() < 0.6, _workers(rng), inputs) for _ in range(2 if rnd() < 0.35 else 1)]
    limits = _limits(rng)
    keys = _drawn_keys(rng, bins)
    sizes = {}
    if rnd() < 0.7:
        for key in keys[: 1 + int(rnd() * 3)]:
            sizes[key] = min(limits.hold_bytes, 1000) + int(rnd() * 600)
    epochs = 4 + int(rnd() * 11)
    schedule = Schedule(
        seed=seed,
        bins=bins,
        regions=tuple(regions),
        limits=limits,
        keys=keys,
        sizes=sizes,
        epochs=epochs,
        endless=rnd() < 0.25,
        hot=int(rnd() * bins) if rnd() < 0.4 else -1,
        silent=rnd() < 0.5,
        round_trip=rnd() < 0.06,
        copy_epochs=1 + int(rnd() * 6),
    )
    for _ in range(1 + int(rnd() * 4)):
        at = int(rnd() * 10)
        schedule.commands.setdefault(at, []).extend(_commands(rng, schedule))
    while rnd() < 0.4:
        dies = int(rnd() * 12)
        steps = FAULTS if rnd() < 0.2 else CRASH_STEPS
        schedule.crashes.setdefault(dies, []).append((steps[int(rnd() * len(steps))], int(rnd() * 3)))
    if rnd() < 0.25:
        first = 1 + int(rnd() * 8)
        schedule.empty = range(first, first + 1 + int(rnd() * 3))
    if rnd() < 0.14:
        taken = at + int(rnd() * 3)
        schedule.commands.setdefault(taken, []).append(Snapshot(SNAPSHOT))
        schedule.commands.setdefault(taken + int(rnd() * 4), []).append(Load(SNAPSHOT))
    _skew(schedule)
    return schedule, rng


def _skew(schedule: Schedule) -> None:
    """Draw hot keys and a strategy that isolates them, by a generator of its own: all else is what it is without them."""
    rnd = Random(~schedule.seed).random  # noqa: S311
    if rnd() < 0.3:
        schedule.skew, schedule.hot_epochs = rnd(), 1 + int(rnd() * 12)
        schedule.strategy = Hasty(0.1 + rnd() / 2, 1 + int(rnd() * 4))


class Source:
    """The input, epoch by epoch.

    Args:
        schedule: The run.
        rng: Its generator.
    """

    __slots__ = ("_bins", "_epochs", "_frontier", "_hot", "_parts", "_rng", "_schedule", "keys", "offsets")

    def __init__(self, schedule: Schedule, rng: Random) -> None:
        self._rng = rng
        self.keys = list(schedule.keys)
        self._parts = 3 if schedule.regions[0].inputs == 2 else 2
        self.offsets = [0] * self._parts
        self._frontier = 0
        self._hot, self._bins = schedule.hot, schedule.bins
        self._schedule, self._epochs = schedule, 0

    def copy(self) -> Source:
        """A source that goes on from here as this one does, as far as it is not drawn."""
        out = copy(self)
        out.keys, out.offsets = list(self.keys), list(self.offsets)
        return out

    def epoch(self, new_keys: bool) -> tuple[list[Record], int]:
        """One epoch's records, in order of partition and offset, and the frontier after them."""
        rnd, keys, before, schedule = self._rng.random, self.keys, self._frontier, self._schedule
        self._epochs += 1
        if new_keys or rnd() < 0.15:
            new = [self._rng.getrandbits(63) - (1 << 62) for _ in range(1 + (rnd() < 0.3))]
            keys += [k - k % self._bins + self._hot for k in new] if self._hot >= 0 else new
        known, found = len(keys), []
        for nth in range(int(rnd() * 7)):
            part = int(rnd() * self._parts)
            key = keys[known - 1 - nth] if new_keys and nth < 2 else keys[int(rnd() * known)]
            if schedule.skew and rnd() < schedule.skew:
                key = keys[self._epochs // schedule.hot_epochs % known]
            found.append((before + int(rnd() * 12), part, self.offsets[part], key, keys[int(rnd() * known)]))
            self.offsets[part] += 1
        self._frontier = before + int(rnd() * 6)
        found.sort(key=_position)
        return found, self._frontier


def _position(record: Record) -> tuple[int, int]:
    return record[1:3]


def _workers(rng: Random) -> int:
    few = rng.random() < 0.92
    return 1 + int(rng.random() * 5) if few else 6 + int(rng.random() * 14)


def _limits(rng: Random) -> Limits:
    rnd = rng.random
    kind = rnd()
    if kind < 0.08:
        return ALL_AT_ONCE
    if kind < 0.2:
        return Limits(1_000, 200, 100, 2_000, 400, 50)
    least = 1 + int(rnd() * 50)
    return Limits(1_000, 20 + int(rnd() * 80), least, least + int(rnd() * 150), 40 + int(rnd() * 150), 1 + int(rnd() * 6))


def _drawn_keys(rng: Random, bins: int) -> list[int]:
    rnd = rng.random
    hot = int(rnd() * bins) if rnd() < 0.5 else None
    ties = rnd() < 0.3
    keys: list[int] = []
    for _ in range(1 + int(rnd() * 13)):
        key = rng.getrandbits(63) - (1 << 62)
        if hot is not None and rnd() < 0.7:
            key += hot - key % bins
        if ties and keys and rnd() < 0.4:
            key = keys[-1] ^ (1 << 50)  # the same part; with 8 or 16 bins also the same bin
        keys.append(key)
    return keys


def _commands(rng: Random, schedule: Schedule) -> list[Command]:
    rnd = rng.random
    region = (None, "0", "1")[int(rnd() * (len(schedule.regions) + 1))]
    kind = rnd()
    if kind < 0.08:
        there, back = _workers(rng), _workers(rng)
        return [Scale(region, workers) for workers in (there, back, there)]
    if kind < 0.65:
        return [Scale(region, _workers(rng))]
    if kind < 0.68:
        return [(Scale(region, 0), Load("never taken"), Unknown("'dance'"))[int(rnd() * 3)]]
    keys = tuple({schedule.keys[int(rnd() * len(schedule.keys))] for _ in range(1 + (rnd() < 0.3))})
    return [Move(region, keys, int(rnd() * 8) if kind < 0.9 else None)]
