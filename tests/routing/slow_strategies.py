"""The strategies as one would write them first: plain Python, a message at a time, the whole state looked at each time."""

from __future__ import annotations

import math
from collections import Counter

WORD = (1 << 64) - 1


def choice(key: int, i: int, n: int) -> int:
    h = (key + (i + 1) * 0x9E3779B97F4A7C15) & WORD
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & WORD
    h ^= h >> 31
    return (h >> 32) * n >> 32


def distinct(key: int, d: int, n: int) -> list[int]:
    workers = list(range(n))
    for i in range(d):
        at = i + choice(key, i, n - i)
        workers[i], workers[at] = workers[at], workers[i]
    return workers[:d]


def two(key: int, n: int) -> list[int]:
    return distinct(key, min(2, n), n)


def least(workers, loads) -> int:
    return min(workers, key=lambda w: loads[w])  # the first of equals


class PartialKeyGrouping:
    def __init__(self, n):
        self.n, self.loads = n, [0] * n

    def __call__(self, key):
        worker = least(two(key, self.n), self.loads)
        self.loads[worker] += 1
        return worker


class Sketch:
    """SpaceSaving with 10 counters per worker, halved when 2,000 messages per worker are counted."""

    def __init__(self, n):
        self.n, self.keys, self.counts, self.total = n, [], [], 0

    def add(self, key) -> int:
        if key not in self.keys:
            if len(self.keys) < 10 * self.n:
                self.keys.append(key)
                self.counts.append(0)
            else:
                self.keys[self.counts.index(min(self.counts))] = key
        at = self.keys.index(key)
        self.counts[at] += 1
        self.total += 1
        if self.total >= 2_000 * self.n:
            self.total //= 2
            self.counts = [count // 2 for count in self.counts]
        return self.counts[at]


def choices_needed(shares, tail, n, epsilon) -> int:
    """The least d that is enough for every prefix of the head."""
    for d in range(max(2, math.ceil(shares[0] * n)), n):
        for h in range(1, len(shares) + 1):
            b = n - n * ((n - 1) / n) ** (h * d)
            others = (b / n) ** d * sum(shares[h:]) + (b / n) ** 2 * tail
            if sum(shares[:h]) + others > b * (1 / n + epsilon):
                break
        else:
            return d
    return n


class HotKeys:
    def __init__(self, n, d=None, epsilon=1e-4):
        self.n, self.fixed, self.d, self.epsilon, self.seen = n, d, d or 2, epsilon, 0
        self.loads, self.sketch = [0] * n, Sketch(n)

    def __call__(self, key):
        count, total = self.sketch.add(key), self.sketch.total
        if total == 1_000 * self.n:  # as after halving
            low = min(self.loads)
            self.loads = [load - (max(load - low - 8, 0) + 1) // 2 for load in self.loads]
        self.seen += 1
        if self.fixed is None and (self.seen % 8_192 == 0 or (self.seen < 8_192 and self.seen.bit_count() == 1)):
            shares = sorted((c / total for c in self.sketch.counts if c > total / (5 * self.n)), reverse=True)
            self.d = choices_needed(shares, max(1 - sum(shares), 0.0), self.n, self.epsilon) if shares else min(2, self.n)
        if count <= total / (5 * self.n):
            workers = two(key, self.n)
        elif self.d >= self.n:
            workers = range(self.n)
        else:
            workers = distinct(key, self.d, self.n)
        worker = least(workers, self.loads)
        self.loads[worker] += 1
        return worker


class ConsistentGrouping:
    def __init__(self, n, virtual=10, epsilon=0.01):
        self.n, self.epsilon, self.sent, self.loads = n, epsilon, 0, [0] * (n * virtual)

    def __call__(self, key):
        self.sent += 1
        most = (1 + self.epsilon) * self.sent / len(self.loads)
        walk = [choice(key, i, len(self.loads)) for i in range(32)]
        walk += [(walk[-1] + step) % len(self.loads) for step in range(1, len(self.loads))]
        worker = next(w for w in walk if self.loads[w] < most)
        self.loads[worker] += 1
        return worker % self.n


class PowerOfTwoChoices:
    def __init__(self, n, sender=0):
        self.n, self.number, self.loads = n, choice(sender, 0, 1 << 31), [0] * n

    def __call__(self, _):
        worker = least(two(self.number, self.n), self.loads)
        self.number += 1
        self.loads[worker] += 1
        return worker


def histogram(keys: list[int], n: int, slack: float = 0.0) -> list[int]:
    """All messages of one epoch at once."""
    counts = Counter(keys)
    most = math.ceil((1 + slack) * len(keys) / n)
    at_home = {key: (key % 4096) * n // 4096 for key in counts}
    loads = Counter(at_home[key] for key in keys)
    places = {key: [at_home[key]] * count for key, count in counts.items()}
    for worker in [w for w in range(n) if loads[w] > most]:
        for key in sorted((k for k in counts if at_home[k] == worker), key=lambda k: (-counts[k], k)):
            shed = min(loads[worker] - most, counts[key])
            if shed <= 0:
                break
            loads[worker] -= shed
            places[key] = places[key][: counts[key] - shed]
            walk = [choice(key, i, n) for i in range(1, 2 * n + 1)]
            walk += [(walk[-1] + step) % n for step in range(1, n + 1)]
            for other in walk:
                put = min(max(most - loads[other], 0), shed)
                places[key] += [other] * put
                loads[other] += put
                shed -= put
    return [places[key].pop(0) for key in keys]
