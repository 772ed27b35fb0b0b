"""A hot key gets a worker of its own, and keeps its one worker: right for every step.

A key is hot when its worker would have more than a share `above` of its rows from it, if all others were spread evenly, hotter ones that are
hot left out. So two hot keys that meet on one worker are hot, both of them, and all that are hot are found at once. A key that is hot in `rounds` rounds in a row is pinned, and the bins of its worker go to the others. A
pinned key that has had less than half of that share for as many rounds goes home, and its worker gets bins again.

With n workers of which h have a key of their own, the busiest then has about max(p₁, (1 − p_hot)/(n − h)) of the rows. Keys are pinned only if
the busiest worker of the others has a tenth less by that, at least, so a change never makes things worse.

Invariants: a key that a user has pinned is not touched; one worker at least is left to all other keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from penstock.errors import DeclarationError
from penstock.routing.loads import Placed, Watch
from penstock.routing.strategy import Strategy

MOST_PINNED: Final = 1_000
_GAIN: Final = 0.9


@dataclass(frozen=True)
class Isolate(Strategy):
    """Every key has one worker; a hot key is moved to a worker of its own while the flow runs, and home again when it has cooled.

    Args:
        above: A key is hot when it has more than this share of its worker's rows, all other keys being spread evenly.
        rows: Rows per worker that make a round; what fewer say proves nothing.

    Example:
        >>> region = flights.key_by("tail", distribute=ps.Isolate(above=0.3))
    """

    above: float = 0.5
    rows: int = 1_000

    rounds: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not isinstance(self.above, (int, float)) or not 0 < self.above < 1:
            raise DeclarationError(f"Isolate(above={self.above!r}): give a number between 0 and 1.")
        if not isinstance(self.rows, (int, float)) or self.rows < 1:
            raise DeclarationError(f"Isolate(rows={self.rows!r}): give a number of rows, 1 or more.")

    @property
    def report_above(self) -> float:
        """A key that is left out of reports again and again can lack an eighth of what makes it hot."""
        return self.above / 8

    def pin_keys(self, watch: Watch, placed: Placed) -> tuple[Watch, Mapping[int, int]]:
        """At the end of a round: pin what stays hot, send home what stays cool."""
        if sum(watch.workers.values()) < self.rows * placed.workers:
            return watch, placed.own
        load = _Load(watch, placed)
        hot = load.hot(self.above)
        cool = {k for k in placed.own if load.share(k) < self.above / 2}
        spared = tuple(k for k in watch.spared if k in hot)
        hot.difference_update(spared)
        streaks = {k: watch.streaks.get(k, 0) + 1 for k in sorted(hot | cool)}
        stays = load.hottest_first(k for k in placed.own if k not in cool or streaks[k] < self.rounds)
        ready = load.hottest_first(k for k in hot if streaks[k] >= self.rounds)
        room = min(placed.workers - 1, MOST_PINNED - len(placed.users))
        wanted = load.workers_for(load.best(stays, ready, room))
        unchanged = {k: n for k, n in streaks.items() if (k in wanted) == (k in placed.own)}
        return replace(watch, spared=spared).anew(unchanged), wanted


class _Load:
    """A round's rows, and where their keys are."""

    def __init__(self, watch: Watch, placed: Placed) -> None:
        self.workers, self.keys, self.placed = watch.workers, watch.keys, placed
        self.total = sum(watch.workers.values())
        self.by_rows = self.hottest_first(watch.keys)
        self.own = sum(watch.keys.get(k, 0) for k in placed.own)

    def share(self, key: int) -> float:
        """The share of its worker's rows that a key of the strategy's would have, if those of all keys that are not were spread evenly."""
        rows = self.keys.get(key, 0)
        return rows / max(rows + (self.total - self.own) / self.placed.workers, 1)

    def hot(self, above: float) -> set[int]:
        """Keys that nobody has pinned and that have more than a share, each one by itself, hotter ones being alone already."""
        found: set[int] = set()
        rest = self.total - self.own
        for key in (k for k in self.by_rows if k not in self.placed.own and k not in self.placed.users):
            rest -= self.keys[key]
            if self.keys[key] / max(self.keys[key] + rest / self.placed.workers, 1) <= above:
                break
            found.add(key)
        return found

    def hottest_first(self, keys: Iterable[int]) -> list[int]:
        """Keys by their rows; equal ones by their hashes."""
        return sorted(keys, key=lambda k: (-self.keys.get(k, 0), k))

    def left(self, alone: Collection[int]) -> float:
        """The rows of the busiest of the other workers, if these keys had workers of their own and all others but the hottest were spread evenly."""
        kept = set(alone)
        hottest = next((self.keys[k] for k in self.by_rows if k not in kept), 0)
        rest = self.total - sum(self.keys.get(k, 0) for k in alone) - hottest
        return hottest + rest / (self.placed.workers - len(alone))

    def best(self, stays: list[int], ready: list[int], room: int) -> list[int]:
        """The keys to be pinned: those that stay, and so many new ones, the hottest, as help most. The least hot leave where room is short."""
        room = max(room, 0)
        choices = [self.hottest_first([*stays, *ready[:n]])[:room] for n in range(min(len(ready), room) + 1)]
        better = min(choices, key=self.left)
        return better if self.left(better) <= _GAIN * self.left(choices[0]) else choices[0]

    def workers_for(self, keys: list[int]) -> dict[int, int]:
        """A worker for each key: the one where it is, if that has no other key of its own and none of a user; else the idlest such."""
        placed = self.placed
        users = dict.fromkeys(range(placed.workers), 0)
        for key, worker in placed.users.items():
            users[worker] = users.get(worker, 0) + self.keys.get(key, 0)
        out = {k: placed.own[k] for k in keys if k in placed.own}
        free = set(range(placed.workers)).difference(out.values())
        for key in (k for k in keys if k not in out):
            here = placed.routing.worker_of(key)
            worker = (
                here if here in free and not users[here] else min(free, key=lambda w: (users[w], self.workers.get(w, 0), w))
            )
            free.remove(worker)
            out[key] = worker
        return out
