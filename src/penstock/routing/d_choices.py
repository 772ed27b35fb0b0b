"""As many workers for a hot key as it needs, and two for the others.

Source: M. Nasir et al., When Two Choices Are Not Enough, ICDE 2016. We differ in that counts decay (`penstock.routing.hot_keys`), that the
workers of a key are distinct, and that the number of choices is at most n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import inlined, jit
from penstock.errors import DeclarationError
from penstock.routing.choices import distinct_choices, least_loaded, lesser_of_two
from penstock.routing.hot_keys import WINDOW, count_key, new_sketch
from penstock.routing.strategy import MERGING, Hashes, Memory, Router, Strategy, Workers

_SOLVE_EVERY = 8_192
"""Messages of a sender between two solutions of the number of choices; at the beginning at each power of two."""

_KEPT = 8
"""Of a worker's messages more than the least loaded one's, those that are never forgotten."""


@dataclass(frozen=True)
class DChoices(Strategy):
    """A key with more than a share `theta` of its sender's messages has d workers, every other key two.

    Args:
        theta: From which share on a key is hot; None: 1/(5n) with n workers.
        epsilon: The imbalance for which d is the least that is enough.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.DChoices(), keys, workers=4)).tolist()
        [250, 251, 249, 250]
    """

    theta: float | None = None
    epsilon: float = 1e-4

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING
    rests: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share(self.theta, "theta", self)
        check_share(self.epsilon, "epsilon", self)

    def router(self, workers: int) -> Router:
        """Loads and the sketch are each sender's own."""
        return HotKeys(workers, self.theta, self.epsilon, 0)


def check_share(share: float | None, name: str, strategy: Strategy) -> None:
    """Refuse what is no share of the messages."""
    if share is not None and not (isinstance(share, (int, float)) and 0 < share < 1):
        raise DeclarationError(f"{type(strategy).__name__}({name}={share!r}): give a number between 0 and 1.")


class HotKeys(Memory):
    """The router of `DChoices` and `WChoices`: hot keys have d workers, the others two.

    Args:
        workers: Number of workers.
        theta: From which share on a key is hot.
        epsilon: The imbalance to reach.
        fixed: d; 0: it is solved for.
    """

    def __init__(self, workers: int, theta: float | None, epsilon: float, fixed: int) -> None:
        super().__init__(workers)
        self._theta = 1 / (5 * workers) if theta is None else theta
        self._epsilon, self._fixed = epsilon, fixed

    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002  (all begin alike)
        """Loads, d, and an empty sketch."""
        loads, d = np.zeros(self.workers, np.int64), np.array([self._fixed or 2, 0], np.int64)
        return {"loads": loads, "lowest": np.zeros(2, np.int64), "d": d, **new_sketch(self.workers)}

    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        """Count each key, and route by what is hot at that moment."""
        counters = len(memory["keys"])
        shares, seen = np.empty(counters), np.zeros((4, counters), np.int64)
        candidates = np.empty((counters, self.workers if self._fixed == 0 else 1), np.int32)
        sketch = (memory[name] for name in ("keys", "counts", "slot_of", "slots", "totals", "least"))
        settings = self._theta, self._epsilon, self._fixed, WINDOW * self.workers
        _route(hashes, memory["loads"], memory["lowest"], memory["d"], *sketch, *settings, shares, candidates, seen, out)


@jit
def _route(
    hashes: Any,
    loads: Any,
    lowest: Any,
    d: Any,
    keys: Any,
    counts: Any,
    slot_of: Any,
    slots: Any,
    totals: Any,
    least: Any,
    theta: Any,
    epsilon: Any,
    fixed: Any,
    window: Any,
    shares: Any,
    candidates: Any,
    seen: Any,
    out: Any,
) -> Any:
    """Route one sender's messages.

    ``d`` is (number of choices of a hot key, messages so far). ``candidates[c]`` are the choices of the key of counter c, and
    ``seen[:, c]`` is (their number, the key, and as for `least_loaded` the least load among them when last looked at, and the candidate
    up to which all have more): scratch, so that a hot key's choices are not hashed again, nor all looked at, for every message.
    """
    n = len(loads)
    for at in range(len(hashes)):
        key = hashes[at]
        counter = count_key(keys, counts, slot_of, slots, totals, least, key, window)
        if totals[1] == window:  # the sketch was halved, or is half full for the first time
            _forget(loads)
            seen[0] = 0
        d[1] += 1
        if fixed == 0 and (d[1] % _SOLVE_EVERY == 0 or (d[1] < _SOLVE_EVERY and d[1] & (d[1] - 1) == 0)):
            d[0] = solve(counts, totals, theta, epsilon, n, shares)
        if counts[counter] <= theta * totals[1]:
            worker = lesser_of_two(key, loads, n)
        elif d[0] >= n:
            worker = least_loaded(loads, lowest)
        else:
            if seen[0, counter] != d[0] or seen[1, counter] != key:
                distinct_choices(key, d[0], n, candidates[counter])
                seen[0, counter], seen[1, counter], seen[2, counter], seen[3, counter] = d[0], key, -1, d[0]
            worker = _least_of(candidates, counter, d[0], loads, seen)
        loads[worker] += 1
        out[at] = worker


@inlined
def _forget(loads: Any) -> Any:
    """Halve what workers have more than the least loaded, if that is much: what was hot long ago is not made good for."""
    least = min(loads)
    for i in range(len(loads)):
        more = loads[i] - least - _KEPT
        if more > 0:
            loads[i] -= (more + 1) // 2


@inlined
def _least_of(candidates: Any, counter: Any, d: Any, loads: Any, seen: Any) -> Any:
    """The least loaded candidate, the first of equals."""
    for i in range(seen[3, counter], d):
        if loads[candidates[counter, i]] <= seen[2, counter]:
            seen[3, counter] = i
            return candidates[counter, i]
    best, load = 0, loads[candidates[counter, 0]]
    for i in range(1, d):
        if loads[candidates[counter, i]] < load:
            best, load = i, loads[candidates[counter, i]]
    seen[2, counter], seen[3, counter] = load, best
    return candidates[counter, best]


@inlined
def _sort_down(values: Any, size: Any) -> Any:
    """Sort the first values, the greatest first, in place (Shell's sort)."""
    gap = size // 2
    while gap > 0:
        for i in range(gap, size):
            value, at = values[i], i
            while at >= gap and values[at - gap] < value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 2


@jit
def solve(counts: Any, totals: Any, theta: Any, epsilon: Any, n: Any, shares: Any) -> Any:
    """The least number of choices, from 2 to n, with which no prefix of the hot keys overloads its workers.

    Args:
        counts: Estimated counts, of which the first ``totals[0]`` are in use; the estimates' error is in them already.
        totals: Keys counted, and N (int64, 2).
        theta: From which share on a key is hot.
        epsilon: The imbalance to reach.
        n: Number of workers.
        shares: float64, as long as `counts`; overwritten.
    """
    hot, of_hot, total = 0, 0.0, totals[1]
    for i in range(totals[0]):
        if counts[i] > theta * total:
            shares[hot] = counts[i] / total
            of_hot += shares[hot]
            hot += 1
    if hot == 0:
        return min(2, n)
    _sort_down(shares, hot)
    tail = max(1.0 - of_hot, 0.0)
    d = max(2, int(np.ceil(shares[0] * n)))
    while d < n:
        prefix, enough = 0.0, True
        for h in range(hot):
            prefix += shares[h]
            b = n - n * ((n - 1) / n) ** ((h + 1) * d)
            if prefix + (b / n) ** d * (of_hot - prefix) + (b / n) ** 2 * tail > b * (1 / n + epsilon):
                enough = False
                break
        if enough:
            return d
        d += 1
    return n
