"""Aggregates of users' own, and those of penstock, by the words that recipes have for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock as ps


class Concat(ps.Aggregate):
    """Not commutative: the order of records shows."""

    type = "string"

    def zero(self):
        return ""

    def add(self, state, value):
        return state + value

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


class Fold(ps.Aggregate):
    """Commutative, over a number column, state changed in place; it does not say so."""

    type = "bigint"

    def zero(self):
        return [0]

    def add(self, state, value):
        state[0] = (state[0] + value * value) % 97
        return state

    def merge(self, a, b):
        a[0] = (a[0] + b[0]) % 97
        return a

    def finish(self, state):
        return state[0]


class Said(Fold):
    """It says so: its rows do not wait."""

    commutative = True


AGGREGATES: dict[str, Callable[[str | None], Any]] = {
    "count": ps.count,
    "sum": ps.sum,
    "fsum": lambda c: ps.sum(c, exact=True),
    "mean": lambda c: ps.mean(c, exact=True),
    "min": ps.min,
    "max": ps.max,
    "first": ps.first,
    "last": ps.last,
    "collect": ps.collect,
    "count_distinct": ps.count_distinct,
    "concat": Concat,
    "fold": Fold,
    "said": Said,
    "approx_count_distinct": ps.approx_count_distinct,
    "quantile": lambda c: ps.quantile(c, 0.5),
}
ORDERED_AGGREGATES = ("first", "last", "collect", "concat")
