"""A Python function per event, with a state per key (or per key and window).

Read next: `penstock.operators.calls`, which calls the function; everything around it is in bulk. `penstock.operators.timed_map` adds timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, lexicographic, to_indices, within_calendar
from penstock.errors import DeclarationError
from penstock.operators.aggregate import as_times
from penstock.operators.base import Context, KeyedState, Operator, Output
from penstock.operators.calls import Calls, Events, Spread
from penstock.operators.layouts import NONE_DROPPED, columns_text
from penstock.operators.lifetimes import body, forget, in_doubt, lives, living, store
from penstock.operators.migration import told_with_key
from penstock.operators.stored_state import StoredState
from penstock.operators.windows import WINDOW, Spans, window_meaning
from penstock.rows.keys import Ints, biased
from penstock.rows.returned import Returned
from penstock.rows.rows import Keys, Rows
from penstock.types import MAX_TIME, seconds_text


@dataclass
class StatefulMap(Operator):
    """``fn(key, event, state) -> (outputs, state)`` for every event, in event-time order per key.

    Attributes:
        fn: The user's function.
        schema: Output columns.
        state: Schema of the state, or None: any picklable value.
        window: None, or the window that the state belongs to; it is dropped when the window is complete.
        on_error: ``"fail"``, or ``"skip"``: leave out a record whose function raised, and keep its state as it was.
        migrate: Functions from an older state to the next one, oldest first.
        ttl_us: How long after a key's last event its state is forgotten, and its timer; None: never.
    """

    fn: Callable[[Any, Any, Any], tuple[Any, ...]]
    schema: pa.Schema
    state: pa.Schema | None = None
    window: Spans | None = None
    on_error: str = "fail"
    migrate: tuple[Callable[[Any], Any], ...] = ()
    ttl_us: int | None = None
    kind = "stateful_map"
    typed = "state"

    def __post_init__(self) -> None:
        self.name = f"stateful_map({getattr(self.fn, '__name__', type(self.fn).__name__)})"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        del keys
        if self.window is not None and set(WINDOW) & set(inputs[0].names):
            raise DeclarationError(
                f"{self.name} in a window needs the names {' and '.join(WINDOW)}; rename those columns before."
            )
        return self.schema

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        state = "any value" if self.state is None else columns_text(self.state)
        lives = {} if self.ttl_us is None else {"time to live": seconds_text(self.ttl_us)}
        return {"state": state, **window_meaning(self.window), **lives}

    def span(self) -> int | None:
        return None if self.window is None else self.window.longest_us

    def link(self) -> int | None:
        return self.ttl_us

    def sure(self, state: KeyedState) -> bool:
        return self.ttl_us is not None and not any(in_doubt(value) for _, value in state.due(MAX_TIME))

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return [NONE_DROPPED]

    def start(self, context: Context) -> None:
        super().start(context)
        self._kept = StoredState(self.state, context.layouts, self.migrate)
        self.codec: Any = self._kept.codec
        self.returned: Returned = Returned(context.output)

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        if self.ttl_us is not None:
            return self._on_bursts(rows, self.ttl_us, state)
        spread, subs, timers = _in_windows(rows, self.window)
        names = state.names(rows.keys, spread.owner, subs)
        calls = Calls(
            self, rows.keys.values(), spread, Events.of(spread.data).rows, self._current(names, state.get(names), state)
        )
        batch, after = calls.run()
        kept = [i for i, s in enumerate(after) if s is not None]
        state.put([names[i] for i in kept], self._tagged([after[i] for i in kept]), None if timers is None else timers[kept])
        state.delete([names[i] for i, s in enumerate(after) if s is None and calls.held[i] is not None])
        row = spread.row[np.array(calls.trigger, np.int64)]
        if self.window is not None:  # a row's outputs in all of its windows share their numbering
            by_row = np.argsort(row, kind="stable")
            batch, row = batch.take(to_indices(by_row)), row[by_row]
        return rows.emit(batch, row)

    def _on_bursts(self, rows: Rows, ttl_us: int, state: KeyedState) -> Output:
        """The same with a time to live: each burst of a key's rows begins with a state of its own, the first one with the stored one."""
        found = lives(rows, ttl_us)
        names = state.names(rows.keys, found.owner)
        stored = state.get(names)
        held, doubt, _ = living(found, stored, rows, ttl_us, self.context)
        spread = Spread(rows.data, rows.order, found.starts, found.owner, np.arange(len(rows)))
        calls = Calls(self, rows.keys.values(), spread, Events.of(rows.data).rows, self._current(names, held, state))
        batch, after = calls.run()
        ends = np.flatnonzero(found.last).tolist()
        kept = [i for i in ends if after[i] is not None]
        values = self._tagged([after[i] for i in kept])
        store([names[i] for i in kept], values, found.until[kept], doubt[kept], ttl_us, state)
        state.delete([names[i] for i in ends if after[i] is None and stored[i] is not None])
        return rows.emit(batch, np.array(calls.trigger, np.int64))

    def _tagged(self, values: list[Any]) -> list[Any]:
        return [value and self._kept.tagged(value) for value in values] if self._kept.has_others else values

    def _current(self, names: list[bytes], held: list[bytes | None], state: KeyedState) -> list[bytes | None]:
        """What is stored, in today's layout. `on_data` stores every entry that it reads again, in that layout."""
        for i, value in enumerate(held) if self._kept.has_others else ():
            if value:
                with told_with_key(self, lambda: state.keys_of([names[i]])[0].values()[0]):  # noqa: B023
                    held[i] = self._kept.current(value)
        return held

    def show_state(self, value: bytes) -> Any:
        """The state; None if there is only a timer."""
        kept = value if self.ttl_us is None else body(value)
        state: Any = self.codec.load(self._kept.current(kept)) if kept else None
        return state._asdict() if hasattr(state, "_asdict") else state

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.ttl_us is not None:
            forget(t, self.ttl_us, state)
        elif self.window is not None:
            state.delete([n for n, _ in state.due(t)])
        return None


def _in_windows(rows: Rows, window: Spans | None) -> tuple[Spread, list[bytes] | None, Ints | None]:
    """Repeat each row for each of its windows and group by (key, window)."""
    if window is None:
        spread = Spread(rows.data, rows.order, rows.starts, np.arange(len(rows.keys)), np.arange(len(rows)))
        return spread, None, None
    index, starts = window.spread(window.panes(rows.order.time))
    by_window = lexicographic([rows.group[index], starts, index])
    index, starts = index[by_window], starts[by_window]
    group = rows.group[index]
    first = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (starts[1:] != starts[:-1]))))
    data = rows.data.take(to_indices(index))
    data = data.append_column(pa.field(WINDOW[0], UTC), within_calendar(as_times(starts)))
    data = data.append_column(pa.field(WINDOW[1], UTC), as_times(window.ends(starts)))
    spread = Spread(data, rows.order.take(index), np.append(first, len(index)), group[first], index)
    return spread, biased(starts[first]), window.ends(starts[first]) - 1


__all__ = ["MAX_TIME", "Keys", "StatefulMap"]
