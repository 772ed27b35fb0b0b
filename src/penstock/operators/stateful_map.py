"""A Python function per event, with a state per key (or per key and window).

Only here does Python run per record; everything around it is in bulk.
"""

from __future__ import annotations

import datetime as dt
import pickle
import re
import struct
from bisect import bisect_left
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, lexicographic, to_indices, values_of, within_calendar
from penstock.errors import DeclarationError, OperatorError, raised
from penstock.operators.aggregate import as_times
from penstock.operators.base import Context, KeyedState, Operator, Output
from penstock.operators.windows import WINDOW, Sliding, window_text
from penstock.rows.keys import Ints, biased
from penstock.rows.returned import Returned, Unfit, to_column
from penstock.rows.rows import Keys, Order, Rows
from penstock.types import MAX_TIME

_FIXED = frozenset({type(None), bool, int, float, str, bytes})
_CODES = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "double": "d", "float": "f", "bool": "?"}


class StateCodec:
    """A state declared by a schema, as bytes: fixed-width columns packed, others pickled as one tuple."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._row: Any = namedtuple("State", schema.names)  # type: ignore[misc]  # noqa: PYI024  (fields known at run time only)
        codes = [_CODES.get(str(f.type)) for f in schema]
        self._packer = struct.Struct("<H" + "".join(str(c) for c in codes)) if all(codes) and len(codes) <= 16 else None
        self._flags = [i for i, code in enumerate(codes) if code == "?"]  # struct accepts anything as a boolean
        self._fields = [(*_usual(field.type), field) for field in schema]
        self.fixed: bool = not any(pa.types.is_nested(field.type) for field in schema)

    def dump(self, state: Any) -> bytes:
        """Bytes of a state: a tuple, named tuple or dict with the declared fields.

        Raises:
            Unfit: The value does not fit the declared schema.
        """
        try:
            values = self._values(state)
            if len(values) != len(self._schema):
                raise TypeError(f"{len(values)} values for {len(self._schema)} fields")  # noqa: TRY301
            if self._packer is None:
                self._check(values)
                return pickle.dumps(values, protocol=5)
            for i in self._flags:
                if values[i] is not None and not isinstance(values[i], (bool, np.bool_)):
                    raise TypeError(f"{values[i]!r} is not true or false")  # noqa: TRY301
            missing = sum(1 << i for i, v in enumerate(values) if v is None)
            return self._packer.pack(missing, *(0 if v is None else v for v in values))
        except Exception as error:
            fields = ", ".join(f"{f.name} {f.type}" for f in self._schema)
            raise Unfit(f"returned the state {state!r}, which is not ({fields}): {error}") from error

    def _values(self, state: Any) -> tuple[Any, ...]:
        values = tuple(state[n] for n in self._schema.names) if isinstance(state, dict) else state
        return tuple(values) if isinstance(values, tuple) else (values,)  # a named tuple of ours cannot be pickled

    def _check(self, values: tuple[Any, ...]) -> None:
        """Refuse values that do not fit; for usual types, checking the Python type suffices."""
        for value, (usual, least, most, field) in zip(values, self._fields, strict=True):
            if value is not None and (type(value) is not usual or (most and not least <= value <= most)):
                to_column([value], field)

    def settle(self, state: Any) -> Any:
        """A returned state as `load` would return it, so that a function does not see where an epoch ends.

        Raises:
            Unfit: As `dump`.
        """
        if self._packer is not None or isinstance(state, dict):
            return self.load(self.dump(state))
        values = self._values(state)
        if len(values) != len(self._schema):
            return self.load(self.dump(state))
        try:
            self._check(values)
        except Unfit:
            self.dump(state)
        return self._row._make(values)

    def load(self, raw: bytes) -> Any:
        """A stored state as a named tuple."""
        if self._packer is None:
            return self._row._make(pickle.loads(raw))
        missing, *values = self._packer.unpack(raw)
        return self._row._make(None if missing >> i & 1 else v for i, v in enumerate(values))


class _PickleCodec:
    """Any picklable value as state."""

    fixed = False

    def dump(self, state: Any) -> bytes:
        try:
            return pickle.dumps(state, protocol=5)
        except Exception as error:
            raise Unfit(
                f'returned a state of type {type(state).__name__} that cannot be stored ({error}); keep plain data, or declare state="…"'
            ) from error

    def settle(self, state: Any) -> Any:
        return state

    def load(self, raw: bytes) -> Any:
        return pickle.loads(raw)


def _usual(kind: pa.DataType) -> tuple[Any, int, int]:
    """The Python type of most values of a type, and for whole numbers the least and the greatest; else 0."""
    types: list[tuple[Any, Any]] = [
        (pa.types.is_string, str),
        (pa.types.is_binary, bytes),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_timestamp, dt.datetime),
        (pa.types.is_date, dt.date),
    ]
    if pa.types.is_integer(kind):
        most = 2 ** (cast("Any", kind).bit_width - 1)
        return int, -most, most - 1
    return next((usual for is_it, usual in types if is_it(kind)), None), 0, 0


def event_type(names: Sequence[str]) -> Any:
    """The named tuple that a function gets per event; names that are invalid in Python get underscores."""
    clean = [re.sub(r"\W|^(?=\d)", "_", n) for n in names]
    return namedtuple("Event", clean, rename=True)  # noqa: PYI024  (fields known at run time only)


@dataclass
class StatefulMap(Operator):
    """``fn(key, event, state) -> (outputs, state)`` for every event, in event-time order per key.

    Attributes:
        fn: The user's function.
        schema: Output columns.
        state: Schema of the state, or None: any picklable value.
        window: None, or the window that the state belongs to; it is dropped when the window is complete.
        on_error: ``"fail"``, or ``"skip"``: leave out a record whose function raised, and keep its state as it was.
    """

    fn: Callable[[Any, Any, Any], tuple[Any, Any]]
    schema: pa.Schema
    state: pa.Schema | None = None
    window: Sliding | None = None
    on_error: str = "fail"
    kind = "stateful_map"

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
        state = "any value" if self.state is None else f"({', '.join(f'{f.name} {f.type}' for f in self.state)})"
        return {"state": state, "window": window_text(self.window)}

    def start(self, context: Context) -> None:
        super().start(context)
        self.codec: Any = _PickleCodec() if self.state is None else StateCodec(self.state)
        self.returned: Returned = Returned(context.output)

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        spread, subs, timers = _in_windows(rows, self.window)
        data = spread.data
        make = partial(tuple.__new__, event_type(data.schema.names))  # as its `_make`, without Python code
        events = map(make, zip(*map(values_of, data.columns), strict=True))
        names = state.names(rows.keys, spread.owner, subs)
        calls = _Calls(self, rows.keys.values(), spread, list(events), state.get(names))
        batch, after = calls.run()
        kept = [i for i, s in enumerate(after) if s is not None]
        state.put([names[i] for i in kept], [after[i] for i in kept], None if timers is None else timers[kept])
        state.delete([names[i] for i, s in enumerate(after) if s is None and calls.held[i] is not None])
        row = spread.row[np.array(calls.trigger, np.int64)]
        if self.window is not None:  # a row's outputs in all of its windows share their numbering
            by_row = np.argsort(row, kind="stable")
            batch, row = batch.take(to_indices(by_row)), row[by_row]
        return rows.emit(batch, row)

    def show_state(self, value: bytes) -> Any:
        state = self.codec.load(value)
        return state._asdict() if hasattr(state, "_asdict") else state

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.window is not None:
            state.delete([n for n, _ in state.due(t)])
        return None


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


def _in_windows(rows: Rows, window: Sliding | None) -> tuple[_Spread, list[bytes] | None, Ints | None]:
    """Repeat each row for each of its windows and group by (key, window)."""
    if window is None:
        spread = _Spread(rows.data, rows.order, rows.starts, np.arange(len(rows.keys)), np.arange(len(rows)))
        return spread, None, None
    index, starts = window.spread(rows.order.time - rows.order.time % window.pane_us)
    by_window = lexicographic([rows.group[index], starts, index])
    index, starts = index[by_window], starts[by_window]
    group = rows.group[index]
    first = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (starts[1:] != starts[:-1]))))
    data = rows.data.take(to_indices(index))
    data = data.append_column(pa.field(WINDOW[0], UTC), within_calendar(as_times(starts)))
    data = data.append_column(pa.field(WINDOW[1], UTC), as_times(starts + window.size_us))
    spread = _Spread(data, rows.order.take(index), np.append(first, len(index)), group[first], index)
    return spread, biased(starts[first]), starts[first] + window.size_us - 1


__all__ = ["MAX_TIME", "Keys", "StateCodec", "StatefulMap", "event_type"]
