"""A Python function per event, with a state per key (or per key and window).

Only here does Python run per record; everything around it is in bulk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, lexicographic, to_indices, values_of, within_calendar
from penstock.errors import DeclarationError, OperatorError, raised
from penstock.operators.aggregate import as_times
from penstock.operators.base import Context, KeyedState, Operator, Output
from penstock.operators.layouts import NONE_DROPPED, columns_text
from penstock.operators.lifetimes import body, in_doubt, lives, living, store
from penstock.operators.migration import told_with_key
from penstock.operators.stored_state import StoredState
from penstock.operators.windows import WINDOW, Spans, window_text
from penstock.rows.keys import Ints, biased
from penstock.rows.named import row_type
from penstock.rows.returned import Returned, Unfit
from penstock.rows.rows import Keys, Order, Rows
from penstock.types import MAX_TIME

_FIXED = frozenset({type(None), bool, int, float, str, bytes})


def event_type(names: Sequence[str]) -> Any:
    """The type of what a function gets per event."""
    return row_type("Event", tuple(names))


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
        ttl_us: How long after a key's last event its state is forgotten; None: never.
    """

    fn: Callable[[Any, Any, Any], tuple[Any, Any]]
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
        lives = {} if self.ttl_us is None else {"time to live": f"{self.ttl_us / 1e6:g} s"}
        return {"state": state, "window": window_text(self.window), **lives}

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
        calls = _Calls(self, rows.keys.values(), spread, _events(spread.data), self._current(names, state.get(names), state))
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
        held, doubt = living(found, stored, rows, ttl_us, self.context)
        spread = _Spread(rows.data, rows.order, found.starts, found.owner, np.arange(len(rows)))
        calls = _Calls(self, rows.keys.values(), spread, _events(rows.data), self._current(names, held, state))
        batch, after = calls.run()
        ends = np.flatnonzero(found.last).tolist()
        kept = [i for i in ends if after[i] is not None]
        values = self._tagged([after[i] for i in kept])
        store([names[i] for i in kept], values, found.until[kept], doubt[kept], ttl_us, state)
        state.delete([names[i] for i in ends if after[i] is None and stored[i] is not None])
        return rows.emit(batch, np.array(calls.trigger, np.int64))

    def _tagged(self, values: list[Any]) -> list[Any]:
        return [self._kept.tagged(value) for value in values] if self._kept.has_others else values

    def _current(self, names: list[bytes], held: list[bytes | None], state: KeyedState) -> list[bytes | None]:
        """What is stored, in today's layout. `on_data` stores every entry that it reads again, in that layout."""
        for i, value in enumerate(held) if self._kept.has_others else ():
            if value is not None:
                with told_with_key(self, lambda: state.keys_of([names[i]])[0].values()[0]):  # noqa: B023
                    held[i] = self._kept.current(value)
        return held

    def show_state(self, value: bytes) -> Any:
        state = self.codec.load(self._kept.current(value if self.ttl_us is None else body(value)))
        return state._asdict() if hasattr(state, "_asdict") else state

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.window is not None or self.ttl_us is not None:
            state.delete([n for n, _ in state.due(t)])
        return None


def _events(data: pa.RecordBatch) -> list[Any]:
    """What the function gets, for each row."""
    make = partial(tuple.__new__, event_type(data.schema.names))  # as its `_make`, without Python code
    return list(map(make, zip(*map(values_of, data.columns), strict=True)))


class _Calls:
    """The function's calls for all rows of an epoch, by (key, window).

    Return values are checked in bulk at the end. If one does not fit, its entries (key, window) are run again with a check per
    record, so that the error names the record.

    Attributes:
        held: Each entry's state before, as stored.
        out: Output rows.
        trigger: The event that triggered each of them; ascending.
    """

    def __init__(self, step: StatefulMap, keys: list[Any], spread: _Spread, events: list[Any], held: Sequence[Any]) -> None:
        self._step, self._codec, self._returned = step, step.codec, step.returned
        self._keys, self._spread, self._events, self.held = keys, spread, events, held
        self._starts, self._owner = spread.starts.tolist(), spread.owner.tolist()
        self._after: list[Any] = []
        self._skipped: dict[int, tuple[str, str, str, str]] = {}
        self._suspects: set[int] = set()
        self.out: list[Any] = []
        self.trigger: list[int] = []

    def run(self) -> tuple[pa.RecordBatch, list[Any]]:
        """Call the function for every row. Returns the output rows, and each entry's new state as stored; None: none."""
        self._call()
        batch, (after, changed) = self._batch(), self._stored()
        if changed:
            batch, (after, _) = self._batch(), self._stored()
        self._step.context.skipped += [about for _, about in sorted(self._skipped.items())]
        return batch, after

    def _call(self) -> None:
        fn, settle, rows, load = self._step.fn, self._codec.settle, self._returned.rows, self._codec.load
        keys, owner, starts, events = self._keys, self._owner, self._starts, self._events
        out, trigger, plain = self.out, self.trigger, self._returned.plain
        for g, raw in enumerate(self.held):
            key, now, begin = keys[owner[g]], None if raw is None else load(raw), len(out)
            for i in range(starts[g], starts[g + 1]):
                try:
                    outputs, after = fn(key, events[i], now)
                    given = (outputs,) if plain and type(outputs) is tuple else rows(outputs)
                    now = None if after is None else settle(after)
                except Exception as error:  # noqa: BLE001  (the user's code may raise anything)
                    self._failed(i, error)
                    if self._codec.fixed or type(now) in _FIXED:
                        continue
                    del out[begin:], trigger[begin:]
                    more, now = self._with_care(g)  # the function may have changed its state before it raised
                    out += [row for _, row in more]
                    trigger += [at for at, _ in more]
                    break
                if given:
                    out += given
                    trigger += [i] * len(given)
            self._after.append(now)

    def _stored(self) -> tuple[list[Any], bool]:
        dump, raws, changed = self._codec.dump, [], False
        for g, state in enumerate(self._after):
            try:
                raws.append(None if state is None else dump(state))
            except Unfit:
                changed = True
                self._again(g, everything=False)
                raws.append(None if self._after[g] is None else dump(self._after[g]))
        return raws, changed

    def _batch(self) -> pa.RecordBatch:
        for attempt in range(3):
            try:
                return self._returned.batch(self.out)
            except Unfit:
                unfit = self._returned.unfit(self.out)
            self._suspects |= {self.trigger[i] for i in unfit}
            at = np.array([self.trigger[i] for i in unfit], np.int64)
            for g in np.unique(np.searchsorted(self._spread.starts, at, "right") - 1).tolist():
                self._again(g, everything=attempt > 0)  # first only known suspects: a key may have many records
        return self._returned.batch(self.out)

    def _again(self, g: int, *, everything: bool) -> None:
        """Run an entry again with a check per record, and replace its first results."""
        a, b = self._starts[g], self._starts[g + 1]
        begin, end = bisect_left(self.trigger, a), bisect_left(self.trigger, b)
        more, self._after[g] = self._with_care(g, everything=everything)
        self.out[begin:end] = [row for _, row in more]
        self.trigger[begin:end] = [at for at, _ in more]

    def _with_care(self, g: int, *, everything: bool = False) -> tuple[list[tuple[int, Any]], Any]:
        """Run an entry with a copy of its state per call, and check the rows of suspects or of every record.

        Returns:
            (event, row) of each output row, and the new state.
        """
        key, now, out = self._keys[self._owner[g]], self.held[g], []
        for i in range(self._starts[g], self._starts[g + 1]):
            self._skipped.pop(i, None)
        for i in range(self._starts[g], self._starts[g + 1]):
            try:
                outputs, after = self._step.fn(key, self._events[i], None if now is None else self._codec.load(now))
                given = self._returned.rows(outputs)
                if everything or i in self._suspects:
                    self._returned.batch(given)
                now = None if after is None else self._codec.dump(after)
            except Exception as error:  # noqa: BLE001
                self._failed(i, error)
                continue
            out += [(i, row) for row in given]
        return out, None if now is None else self._codec.load(now)

    def _failed(self, i: int, error: Exception) -> None:
        """Raise a record's error, or leave the record out."""
        key, position, text, event = self._about(i, error)
        if self._step.on_error == "fail":
            raise OperatorError(
                f"{self._step.name} of region {self._step.context.region!r} failed on key {key} at position {position}: "
                f'{text}; fix the function, or leave such records out with on_error="skip".'
            ) from error
        self._skipped[i] = key, position, text, event

    def _about(self, i: int, error: Exception) -> tuple[str, str, str, str]:
        """A record that is left out: key, position, error, record."""
        entry = int(np.searchsorted(self._spread.starts, i, "right")) - 1
        position = self._step.context.position_text(self._spread.order, i)
        shown = raised(error) if self._step.on_error == "fail" else f"{type(error).__name__}: {error}"
        text = f"it {error}" if isinstance(error, Unfit) else shown
        return repr(self._keys[self._owner[entry]]), position, text, repr(self._events[i])


@dataclass(frozen=True)
class _Spread:
    """Rows by (key, window): for each entry its first row and its key, for each row its original row."""

    data: pa.RecordBatch
    order: Order
    starts: Ints
    owner: Ints
    row: Ints


def _in_windows(rows: Rows, window: Spans | None) -> tuple[_Spread, list[bytes] | None, Ints | None]:
    """Repeat each row for each of its windows and group by (key, window)."""
    if window is None:
        spread = _Spread(rows.data, rows.order, rows.starts, np.arange(len(rows.keys)), np.arange(len(rows)))
        return spread, None, None
    index, starts = window.spread(window.panes(rows.order.time))
    by_window = lexicographic([rows.group[index], starts, index])
    index, starts = index[by_window], starts[by_window]
    group = rows.group[index]
    first = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (starts[1:] != starts[:-1]))))
    data = rows.data.take(to_indices(index))
    data = data.append_column(pa.field(WINDOW[0], UTC), within_calendar(as_times(starts)))
    data = data.append_column(pa.field(WINDOW[1], UTC), as_times(window.ends(starts)))
    spread = _Spread(data, rows.order.take(index), np.append(first, len(index)), group[first], index)
    return spread, biased(starts[first]), window.ends(starts[first]) - 1


__all__ = ["MAX_TIME", "Keys", "StatefulMap", "event_type"]
