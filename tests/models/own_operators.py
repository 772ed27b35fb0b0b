"""Operators of a user's own with timers, for random flows: one that calls a pair of functions, and one with several timers per key.

They import nothing from tests, as they travel to Spark's workers. Read next: `recipes`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import penstock as ps

SECOND = 1_000_000
NEVER = (1 << 63) - 1
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COLUMNS = ("k", "j", "v", "x", "s")
SCHEMA = "k string, j long, v long, x double, s string"
TYPES = pa.schema({"k": pa.string(), "j": pa.int64(), "v": pa.int64(), "x": pa.float64(), "s": pa.string()})


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    plain = [row if isinstance(row, dict) else dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(plain, schema=TYPES)


def given_rows(given: Any) -> list[Any]:
    return [] if given is None else given if isinstance(given, list) else [given]


@dataclass
class Event:
    """The columns of a row."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


def further(state: Any) -> Any:
    """A migration: what is stored counts a hundred more."""
    if isinstance(state, tuple):
        return tuple(map(further, state))
    return state + 100 if isinstance(state, int) else state


@dataclass
class Untimed(ps.Operator):
    """A function as `stateful_map` has it, without timers; what `Calling` may have been or become."""

    fn: Callable[[Any, Any, Any], Any]
    schema = SCHEMA
    kind = "Calling"

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        held, events, keys = state.get_objects(names), rows.data.to_pylist(), rows.keys.values()
        out, trigger = [], []
        for g, key in enumerate(keys):
            now = None if held[g] is None else held[g][0]
            for i in range(rows.starts[g], rows.starts[g + 1]):
                outputs, now = self.fn(key, Event(events[i]), now)
                given = given_rows(outputs)
                out += given
                trigger += [i] * len(given)
            held[g] = None if now is None else (now,)
        state.put_objects(names, held)
        return rows.emit(batch_of(out), trigger)


@dataclass
class Calling(ps.Operator):
    """Two functions as `stateful_map` has them; an entry is the state in a tuple."""

    fn: Callable[[Any, Any, Any], Any]
    timer_fn: Callable[[Any, Any, Any], Any]
    schema = SCHEMA

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        held, (_, timers) = state.get_objects(names), state.get_timed(names)
        events, times, keys, timers = rows.data.to_pylist(), rows.order.time.tolist(), rows.keys.values(), timers.tolist()
        out, trigger = [], []
        for g, key in enumerate(keys):
            now = None if held[g] is None else held[g][0]
            for i in range(rows.starts[g], rows.starts[g + 1]):
                outputs, now, *more = self.fn(key, Event(events[i]), now)
                if more:
                    timers[g] = NEVER if more[0] is None else micros(more[0])
                elif now is None:
                    timers[g] = NEVER
                given = given_rows(outputs)
                out += given
                trigger += [i] * len(given)
            held[g] = None if now is None and timers[g] == NEVER else (now,)
            assert len(set(times[rows.starts[g] : rows.starts[g + 1]])) == 1, "rows of one moment come together"
        state.put_objects(names, held, as_ints(timers))
        return rows.emit(batch_of(out), trigger)

    def on_timer(self, fired, state):
        held, out, which, timers = state.get_objects(fired.names), [], [], []
        for i, (key, at) in enumerate(zip(fired.keys.values(), fired.at.tolist(), strict=True)):
            outputs, now, *more = self.timer_fn(key, held[i][0], BEGIN + dt.timedelta(microseconds=at))
            timers.append(NEVER if not more or more[0] is None else micros(more[0]))
            held[i] = None if now is None and timers[-1] == NEVER else (now,)
            given = given_rows(outputs)
            out += given
            which += [i] * len(given)
        state.put_objects(fired.names, held, as_ints(timers))
        return fired.emit(batch_of(out), as_ints(which))


@dataclass
class Deadlines(ps.Operator):
    """A key's rows in three entries by v, each with a timer of its own; a timer may set that of another entry.

    `lead`: how long after its row a deadline is at least (s).
    """

    lead: int
    schema = SCHEMA

    def __post_init__(self):
        self.timer_lead = self.lead

    def on_data(self, rows, state):
        events, times, names = rows.data.to_pylist(), rows.order.time.tolist(), state.names(rows.keys)
        out = []
        for g, name in enumerate(names):
            entries = self.read(state, name)
            mine = range(rows.starts[g], rows.starts[g + 1])
            out += [deadline_of_row(entries, events[i], times[i], self.lead) for i in mine]
            self.write(state, name, entries)
        return rows.emit(batch_of(out))

    def on_timer(self, fired, state):
        out, which, at = [], [], 0
        while at < len(fired.names):
            name = fired.names[at][:-1]
            subs = [n[len(name) :] for n in fired.names if n[:-1] == name]
            entries = self.read(state, name)
            for sub in subs:
                given = deadline_fired(entries, sub.decode(), int(fired.at[at]))
                out += given
                which += [at] * len(given)
                at += 1
            self.write(state, name, entries)
        return fired.emit(batch_of(out), as_ints(which))

    def read(self, state, name):
        names = [n for n, _ in state.scan(name)]
        counts, (_, timers) = state.get_objects(names), state.get_timed(names)
        return {n[len(name) :].decode(): [c, t] for n, c, t in zip(names, counts, timers.tolist(), strict=True)}

    def write(self, state, name, entries):
        gone = [n for n, _ in state.scan(name) if n[len(name) :].decode() not in entries]
        state.delete(gone)
        names = [name + sub.encode() for sub in entries]
        state.put_objects(names, [c for c, _ in entries.values()], as_ints([t for _, t in entries.values()]))


def deadline_of_row(entries: dict[str, list[int]], event: Any, time: int, lead: int) -> dict[str, Any]:
    """What a row does to a key's entries (a count, a timer), and the row that it gives."""
    sub = str((event["v"] or 0) % 3)
    if event["v"] == 5:
        entries.pop(sub, None)
    else:
        entry = entries.setdefault(sub, [0, NEVER])
        entry[0] += 1
        if event["v"] != 4:  # otherwise its timer stays
            entry[1] = time + (lead + (event["j"] or 0) % 3 - (0 if lead else 1)) * SECOND
    return {**{n: event[n] for n in COLUMNS}, "s": shown(entries)}


def deadline_fired(entries: dict[str, list[int]], sub: str, at: int) -> list[dict[str, Any]]:
    """What a timer does to a key's entries, and the rows that it gives."""
    entry = entries.get(sub)
    if entry is None:  # another one of the same moment has deleted it
        return []
    entry[0] += 7
    entry[1] = NEVER
    other = str((int(sub) + 1) % 3)
    if entry[0] % 3 == 1:
        entries.setdefault(other, [0, NEVER])[1] = at + SECOND
    elif entry[0] > 20:
        del entries[sub]
    elif entry[0] % 2:
        entry[1] = at + SECOND + 1
    elif entry[0] % 5 == 3:
        entries.pop(other, None)
    return [{"k": "fired", "j": int(sub), "v": entry[0], "x": None, "s": shown(entries)}] * (1 + entry[0] % 2)


def shown(entries: dict[str, list[int]]) -> str:
    return " ".join(f"{sub}:{n}" for sub, (n, _) in sorted(entries.items()))


def micros(at: dt.datetime) -> int:
    return (at - BEGIN) // dt.timedelta(microseconds=1)


def as_ints(values: list[int]) -> Any:
    return pa.array(values, pa.int64()).to_numpy()
