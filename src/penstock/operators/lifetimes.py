"""State with a time to live: forgotten when its key has had no event for that long, by event time.

An event at or after the last one's time plus `ttl` finds no state, whether or not the frontier has passed meanwhile, so epochs do not matter. What is
stored is deleted when no such event can come any more. A timer fires if it is at most `ttl` after the last event before it: it belongs to the state,
and does not make it live longer.

A stored value begins with the time of the key's last event, a byte of flags (whether that state may hang on records that a replay has not
read, whether there is a timer), and the timer.

Read next: `penstock.operators.stateful_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from penstock.operators.base import Context, KeyedState
from penstock.rows.keys import Ints, unbiased
from penstock.rows.rows import Keys, Rows
from penstock.types import MAX_TIME, MIN_TIME

_HEAD: Final = 9
_DOUBT: Final = 1
_TIMER: Final = 2
_LAYOUT: Final = np.dtype([("used", ">u8"), ("flags", "u1"), ("timer", ">u8")])


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


@dataclass(frozen=True)
class Entries:
    """What a function runs over: rows of a key that follow one another, with the state and the timer that they begin with.

    Attributes:
        keys: The keys.
        lives: Which rows, and whose.
        names: n names of state.
        stored: n values as they are stored, or None.
        held: n states at the start; None or empty: there is none.
        at: int64, n: their timers (µs); `MAX_TIME`: none.
        doubt: bool, n: whether they may hang on records that a replay has not read.
    """

    keys: Keys
    lives: Lives
    names: list[bytes]
    stored: Sequence[bytes | None]
    held: list[bytes | None]
    at: Ints
    doubt: Any


@dataclass(frozen=True)
class Heads:
    """What stored values begin with.

    Attributes:
        entry: int64, n: whose values they are.
        used: int64, n: when each was last used.
        flags: uint8, n.
        timer: int64, n: their timers; `MAX_TIME`: none.
        size: int64, n: so many bytes stand before the state.
    """

    entry: Ints
    used: Ints
    flags: Any
    timer: Ints
    size: Ints

    @staticmethod
    def of(stored: Sequence[bytes | None], entry: Ints) -> Heads:
        """The heads of the values of some entries, which have one each."""
        whole = _LAYOUT.itemsize
        values: Any = stored if len(entry) == len(stored) else [stored[e] for e in entry.tolist()]
        heads = [value[:whole] for value in values]
        raw = b"".join(heads)
        if len(raw) < whole * len(heads):
            raw = b"".join([head.ljust(whole, b"\0") for head in heads])
        found = np.frombuffer(raw, _LAYOUT)
        used, at, timed = _in_order(found["used"]), _in_order(found["timer"]), (found["flags"] & _TIMER) != 0
        return Heads(entry, used, found["flags"], np.where(timed, at, MAX_TIME), np.where(timed, whole, _HEAD))


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
) -> tuple[list[bytes | None], Any, Heads]:
    """The state that each burst begins with, and whether that is in doubt; what is stored counts for the first one of its key.

    Tells the context of rows whose results hang on records that are missing.

    Returns:
        The states, the doubts, and the heads of what is stored for the first bursts.
    """
    begins = rows.order.time[found.starts[:-1]]
    held: list[bytes | None] = [None] * len(stored)
    doubt = np.zeros(len(stored), bool)
    # No stored value is empty.
    known = (
        found.first if all(stored) else np.fromiter((value is not None for value in stored), bool, len(stored)) & found.first
    )
    if context.missing > MIN_TIME:  # also where an older state or burst has ended: the records between are perhaps missing
        doubt = begins < context.missing + ttl_us
    heads = Heads.of(stored, np.flatnonzero(known))
    lives_on = begins[heads.entry] - heads.used < ttl_us
    if len(heads.entry) == len(stored) > 0 and lives_on.all() and (heads.size == heads.size[0]).all():
        size = int(heads.size[0])
        held = [value[size:] for value in cast("Sequence[bytes]", stored)]
    else:
        for e, size in zip(heads.entry[lives_on].tolist(), heads.size[lives_on].tolist(), strict=True):
            held[e] = cast("bytes", stored[e])[size:]
    doubt[heads.entry[lives_on]] = (heads.flags[lives_on] & _DOUBT) != 0
    context.unsure |= bool((doubt & (found.until >= context.needed)).any())
    return held, doubt, heads


def with_timers(entries: Entries, heads: Heads, begins: Ints, ttl_us: int) -> Entries:
    """Entries with their timers. A stored state that has expired, and whose timer has not fired, becomes an entry without rows.

    Args:
        entries: Bursts of rows, from `living`; those that are not the first of their key have nothing stored.
        heads: As it gave them.
        begins: int64, n: the time of each one's first row.
        ttl_us: The time to live.
    """
    at = np.full(len(begins), MAX_TIME)
    firsts, last, marks, fires = heads.entry, heads.used, heads.flags, heads.timer
    lives_on = begins[firsts] - last < ttl_us
    at[firsts[lives_on]] = fires[lives_on]
    over = ~lives_on & (fires != MAX_TIME) & (fires <= np.minimum(last, MAX_TIME - ttl_us) + ttl_us)
    expired, used, timer, flags = firsts[over].tolist(), last[over], fires[over], (marks[over] & _DOUBT) != 0
    if not expired:
        return replace(entries, at=at)
    found, before = entries.lives, np.array(expired)
    more = Lives(
        np.insert(found.starts, before, found.starts[before]),
        np.insert(found.owner, before, found.owner[before]),
        np.insert(found.first, before + 1, False),
        np.insert(found.last, before, False),
        np.insert(found.until, before, used),
    )
    names, stored, held = list(entries.names), list(entries.stored), list(entries.held)
    for e in reversed(expired):
        value = stored[e] or b""
        names.insert(e, names[e])
        stored.insert(e, value)
        held.insert(e, body(value))
    return Entries(
        entries.keys, more, names, stored, held, np.insert(at, before, timer), np.insert(entries.doubt, before, flags)
    )


def due_entries(names: list[bytes], values: list[bytes], keys: Keys) -> Entries:
    """Stored states whose timer or end has come, as entries without rows."""
    heads = Heads.of(values, np.arange(len(values)))
    return Entries(
        keys, without_rows(heads.used), names, values, list(map(body, values)), heads.timer, (heads.flags & _DOUBT) != 0
    )


def _in_order(column: Any) -> Ints:
    """The numbers of bytes in sort order."""
    numbers: Ints = (column.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
    return numbers


def without_rows(until: Ints) -> Lives:
    """Entries of keys that have no rows, each key's only one.

    Args:
        until: int64, n: the time of each one's last row.
    """
    every = np.ones(len(until), bool)
    return Lives(np.zeros(len(until) + 1, np.int64), np.arange(len(until)), every, every, until)


def forget(t: int, ttl_us: int, state: KeyedState) -> None:
    """Delete states that no event at or after `t` can find. A step that has no timers any more drops those that it had."""
    due = state.due(t)
    until = unbiased([value[:8] for _, value in due])
    over = (np.minimum(until, MAX_TIME - ttl_us) + ttl_us <= t).tolist()
    state.delete([name for (name, _), o in zip(due, over, strict=True) if o])
    kept = [i for i, o in enumerate(over) if not o]
    if kept:
        doubt = np.fromiter((in_doubt(due[i][1]) for i in kept), bool, len(kept))
        store([due[i][0] for i in kept], [body(due[i][1]) for i in kept], until[kept], doubt, ttl_us, state)


def store(
    names: Sequence[bytes],
    values: Sequence[bytes],
    until: Ints,
    doubt: Any,
    ttl_us: int,
    state: KeyedState,
    at: Ints | None = None,
) -> None:
    """Store states with when they were last used, and have them deleted in time.

    Args:
        names: Where. Likewise the ``values``, when they were used, and whether they are in doubt.
        values: See there.
        until: See there.
        doubt: See there.
        ttl_us: The time to live.
        state: The step's state.
        at: Their timers, `MAX_TIME`: none; None: none has one.
    """
    ends = np.minimum(until, MAX_TIME - ttl_us) + ttl_us - 1
    found = np.zeros(len(until), _LAYOUT)
    found["used"], found["flags"] = _to_order(until), np.asarray(doubt, np.uint8)
    if at is not None:
        found["timer"] = _to_order(at)
        found["flags"] |= np.where(at == MAX_TIME, 0, _TIMER).astype(np.uint8)
        ends = np.where(at <= ends + 1, at, ends)
    raw, size = found.tobytes(), _LAYOUT.itemsize
    lengths = (np.arange(len(until)) * size + np.where(found["flags"] & _TIMER, size, _HEAD)).tolist()
    state.put(list(names), [raw[i * size : end] + v for i, (end, v) in enumerate(zip(lengths, values, strict=True))], ends)


def _to_order(numbers: Ints) -> Any:
    """The inverse of `_in_order`."""
    return np.ascontiguousarray(numbers).view(np.uint64) ^ np.uint64(1 << 63)


def body(value: bytes) -> bytes:
    """A stored value without what stands before the state."""
    return value[_HEAD + 8 :] if value[8] & _TIMER else value[_HEAD:]


def in_doubt(value: bytes) -> bool:
    """Whether a stored value may hang on records that a replay has not read."""
    return value[8] & _DOUBT != 0


__all__ = [
    "Entries",
    "Lives",
    "body",
    "due_entries",
    "forget",
    "in_doubt",
    "lives",
    "living",
    "store",
    "with_timers",
    "without_rows",
]
