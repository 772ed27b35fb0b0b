"""A Python function per event with a state and a timer per key: `StatefulMap` with a second function, for timers that fire.

A timer is part of a key's state: it is stored with it, and moves, recovers and is forgotten with it. The store finds those that are due by
an index. Timers of keys with rows fire among these, in `on_data`; those of other keys in `on_frontier`.

A step may get timers, or lose them, when the flow is changed: the state is stored the same way. Without a time to live, the timer is that of
the stored entry; otherwise that is when the state is to be looked at, and the timer stands in the value (`penstock.operators.lifetimes`).

Read next: `penstock.operators.timed_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.operators.base import KeyedState, Output
from penstock.operators.calls import Events, Spread
from penstock.operators.lifetimes import Entries, Lives, due_entries, lives, living, store, with_timers, without_rows
from penstock.operators.stateful_map import StatefulMap
from penstock.operators.timed_calls import UNREAD, TimedCalls, Timers
from penstock.rows.rows import Emitted, Order, Rows
from penstock.types import MAX_TIME, MIN_TIME


@dataclass
class TimedMap(StatefulMap):
    """``fn(key, event, state) -> (outputs, state, timer)``, and ``on_timer(key, state, at) -> (outputs, state, timer)``.

    Attributes:
        timer_fn: ``on_timer``, called for each timer that fires. What either function returns as the key's timer replaces the one before; without a
            third value `fn` keeps it, unless it forgets the key.
    """

    timer_fn: Callable[[Any, Any, Any], tuple[Any, ...]] = lambda *_: (None, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None:
            raise DeclarationError(f"{self.name} in a window has the window's end; timers need a step without a window.")

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        names: list[bytes]
        if self.ttl_us is None:
            names, index = state.names(rows.keys), np.arange(len(rows.keys))
            every, until = np.ones(len(index), bool), rows.order.time[rows.starts[1:] - 1]
            # Mostly the function replaces a timer before it is due: then nobody asks for it.
            stored, at = state.view.get_timed(names, (state.slot, self.context.frontier))
            at = np.where(at < self.context.frontier, at, UNREAD if self.context.frontier < MAX_TIME else MAX_TIME)
            entries = Entries(
                rows.keys, Lives(rows.starts, index, every, every, until), names, stored, list(stored), at, ~every
            )
        else:
            found = lives(rows, self.ttl_us)
            names = state.names(rows.keys, found.owner)
            stored = state.get(names)
            held, doubt, heads = living(found, stored, rows, self.ttl_us, self.context)
            begins = rows.order.time[found.starts[:-1]]
            entries = with_timers(Entries(rows.keys, found, names, stored, held, begins, doubt), heads, begins, self.ttl_us)
        return list(self._run(entries, rows, state))

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        due = state.due(t)
        if not due:
            return None
        names, values = [name for name, _ in due], [value for _, value in due]
        keys, _ = state.keys_of(names)
        if self.ttl_us is not None:
            entries = due_entries(names, values, keys)
        else:
            _, at = state.view.get_timed(names, (state.slot, t))
            none = np.zeros(len(names), bool)
            entries = Entries(keys, without_rows(np.full(len(names), MIN_TIME)), names, values, list(values), at, none)
        return list(self._run(entries, None, state))

    def _run(self, entries: Entries, rows: Rows | None, state: KeyedState) -> Iterable[Emitted]:
        """Call both functions for some entries, store what comes of it, and give out the rows."""
        found, names = entries.lives, entries.names
        data = self._none() if rows is None else rows.data
        order = _NO_ORDER if rows is None else rows.order
        spread = Spread(data, order, found.starts, found.owner, np.arange(data.num_rows))
        since = self.context.not_past(entries.at, entries.keys.hashes[found.owner])
        timers = Timers.of(since, found.until, found.last, entries.doubt, self.ttl_us, self.context)
        held = self._current(names, entries.held, state)
        calls = TimedCalls(self, entries.keys.values(), spread, Events.of(data), held, timers)
        batch, after = calls.run()
        at = calls.at
        if len(unread := np.flatnonzero(at == UNREAD)):
            at[unread] = state.get_timed([names[i] for i in unread.tolist()])[1]
        there = at != MAX_TIME
        if not there.all():
            there |= np.fromiter((value is not None for value in after), bool, len(after))
        if self.ttl_us is not None:  # what no event can find any more is not stored
            ends_at = np.minimum(found.until, MAX_TIME - self.ttl_us) + self.ttl_us
            there &= (ends_at > self.context.frontier) | (at <= ends_at)
        kept, gone = np.flatnonzero(found.last & there), np.flatnonzero(found.last & ~there).tolist()
        put, values = names, [value or b"" for value in after]
        if len(kept) < len(names):
            put, values = [names[i] for i in kept.tolist()], [values[i] for i in kept.tolist()]
        values = self._tagged(values)
        if self.ttl_us is None:
            state.put(put, values, at[kept])
        else:
            store(put, values, found.until[kept], entries.doubt[kept], self.ttl_us, state, at[kept])
        state.delete([names[i] for i in gone if entries.stored[i] is not None])
        fired = calls.emit(entries.keys, state)
        if rows is not None:
            yield rows.emit(batch, np.array(calls.trigger, np.int64))
        if fired is not None:
            yield fired

    def _none(self) -> pa.RecordBatch:
        """No events."""
        return pa.RecordBatch.from_pylist([], schema=self.context.inputs[0])


_NO_ORDER = Order(*(np.empty(0, np.int64) for _ in range(4)))

__all__ = ["TimedMap"]
