"""State with a time to live: forgotten when its key has had no event for that long, by event time.

An event at or after the last one's time plus `ttl` finds no state, whether or not the frontier has passed meanwhile, so epochs do not matter. What is
stored is deleted when no such event can come any more. A stored value begins with the time of the key's last event, and whether that state
may hang on records that a replay has not read.

Read next: `penstock.operators.stateful_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.operators.base import Context, KeyedState
from penstock.rows.keys import Ints, biased, unbiased
from penstock.rows.rows import Rows
from penstock.types import MAX_TIME, MIN_TIME

_HEAD: Final = 9


@dataclass(frozen=True)
class Lives:
    """The bursts of some rows: a key's rows with less than the time to live between one and the next.

    Attributes:
        starts: int64, n + 1: first row of each.
        owner: int64, n: its key.
        first: bool, n: whether it is the first of its key.
        last: bool, n: whether it is the last of its key.
        until: int64, n: the time of its last row.
    """

    starts: Ints
    owner: Ints
    first: Any
    last: Any
    until: Ints


def lives(rows: Rows, ttl_us: int) -> Lives:
    """The bursts of rows that are ordered by key and time."""
    time, group = rows.order.time, rows.group
    change = group[1:] != group[:-1]
    starts = np.flatnonzero(np.concatenate(([True], change | (time[1:] - time[:-1] >= ttl_us))))
    owner = group[starts]
    edge = owner[1:] != owner[:-1]
    bounds = np.append(starts, len(rows))
    return Lives(bounds, owner, np.concatenate(([True], edge)), np.concatenate((edge, [True])), time[bounds[1:] - 1])


def living(
    found: Lives, stored: Sequence[bytes | None], rows: Rows, ttl_us: int, context: Context
) -> tuple[list[bytes | None], Any]:
    """The state that each burst begins with, and whether that is in doubt; what is stored counts for the first one of its key.

    Tells the context of rows whose results hang on records that are missing.
    """
    begins = rows.order.time[found.starts[:-1]]
    held: list[bytes | None] = [None] * len(stored)
    doubt = np.zeros(len(stored), bool)
    known = np.fromiter((value is not None for value in stored), bool, len(stored)) & found.first
    if context.missing > MIN_TIME:
        doubt = found.first & ~known & (begins < context.missing + ttl_us)
    at = np.flatnonzero(known)
    used = unbiased([value[:8] for e in at.tolist() if (value := stored[e]) is not None])
    for e in at[begins[at] - used < ttl_us].tolist():
        value = stored[e] or b""
        held[e], doubt[e] = value[_HEAD:], value[8] != 0
    context.unsure |= bool((doubt & (found.until >= context.needed)).any())
    return held, doubt


def store(names: Sequence[bytes], values: Sequence[bytes], until: Ints, doubt: Any, ttl_us: int, state: KeyedState) -> None:
    """Store states with when they were last used, and have them deleted in time."""
    heads = biased(until)
    whole = [head + bytes([d]) + value for head, d, value in zip(heads, doubt.tolist(), values, strict=True)]
    state.put(list(names), whole, np.minimum(until, MAX_TIME - ttl_us) + ttl_us - 1)


def body(value: bytes) -> bytes:
    """A stored value without when it was last used."""
    return value[_HEAD:]


def in_doubt(value: bytes) -> bool:
    """Whether a stored value may hang on records that a replay has not read."""
    return value[8] != 0


__all__ = ["Lives", "body", "in_doubt", "lives", "living", "store"]
