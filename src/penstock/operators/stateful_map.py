"""A Python function per event, with a state per key (or per key and window).

The function is the user's, so this is the one place where Python runs per record; everything around it is in bulk.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.columns import lexicographic, places, values_of
from penstock.errors import DeclarationError, OperatorError, StateError
from penstock.operators.aggregate import TIMESTAMP, as_times
from penstock.operators.base import Context, KeyedState, Operator, Output
from penstock.operators.keys import Ints, biased
from penstock.operators.rows import Keys, Order, Rows
from penstock.operators.windows import Sliding
from penstock.types import MAX_TIME

_FRACTIONS = frozenset({float, Decimal, np.float64, np.float32})
_CODES = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "double": "d", "float": "f", "bool": "?"}


class StateCodec:
    """How a state declared by a schema becomes bytes: fixed-width columns packed, others pickled as one tuple."""

    def __init__(self, schema: pa.Schema, what: str) -> None:
        self._schema = schema
        self._what = what
        self._row: Any = namedtuple("State", schema.names)  # type: ignore[misc]  # noqa: PYI024  (fields known at run time only)
        codes = [_CODES.get(str(f.type)) for f in schema]
        self._packer = struct.Struct("<H" + "".join(str(c) for c in codes)) if all(codes) and len(codes) <= 16 else None

    def dump(self, state: Any) -> bytes:
        """Bytes of a state: a tuple, named tuple or dict with the declared fields.

        Raises:
            StateError: The value does not fit the declared schema.
        """
        try:
            values = self._values(state)
            if len(values) != len(self._schema):
                raise TypeError(f"{len(values)} values for {len(self._schema)} fields")  # noqa: TRY301
            if self._packer is None:
                for field, value in zip(self._schema, values, strict=True):
                    pa.scalar(value, field.type)
                return pickle.dumps(tuple(values), protocol=5)  # a named tuple's own class cannot be pickled
            missing = sum(1 << i for i, v in enumerate(values) if v is None)
            return self._packer.pack(missing, *(0 if v is None else v for v in values))
        except (TypeError, ValueError, struct.error, pa.ArrowInvalid, KeyError) as error:
            fields = ", ".join(f"{f.name} {f.type}" for f in self._schema)
            raise StateError(f"{self._what} returned the state {state!r}, which is not ({fields}): {error}.") from error

    def _values(self, state: Any) -> tuple[Any, ...]:
        values = tuple(state[n] for n in self._schema.names) if isinstance(state, dict) else state
        return tuple(values) if isinstance(values, tuple) else (values,)  # a named tuple of ours cannot be pickled

    def settle(self, state: Any) -> Any:
        """A returned state as `load` gives it, so that what a function sees does not depend on where an epoch ends."""
        if self._packer is not None or isinstance(state, dict) or len(self._values(state)) != len(self._schema):
            return self.load(self.dump(state))
        return self._row._make(self._values(state))

    def load(self, raw: bytes) -> Any:
        """The state again, as a named tuple."""
        if self._packer is None:
            return self._row._make(pickle.loads(raw))
        missing, *values = self._packer.unpack(raw)
        return self._row._make(None if missing >> i & 1 else v for i, v in enumerate(values))


class _PickleCodec:
    """Any picklable value as state."""

    def __init__(self, what: str) -> None:
        self._what = what

    def dump(self, state: Any) -> bytes:
        try:
            return pickle.dumps(state, protocol=5)
        except Exception as error:
            raise StateError(
                f'{self._what} returned a state of type {type(state).__name__} that cannot be stored ({error}); keep plain data, or declare state="…".'
            ) from error

    def settle(self, state: Any) -> Any:
        return state

    def load(self, raw: bytes) -> Any:
        return pickle.loads(raw)


def event_type(names: Sequence[str]) -> Any:
    """The named tuple that a function gets per event; names that Python does not allow get underscores."""
    clean = [re.sub(r"\W|^(?=\d)", "_", n) for n in names]
    return namedtuple("Event", clean, rename=True)  # noqa: PYI024  (fields known at run time only)


@dataclass
class StatefulMap(Operator):
    """``fn(key, event, state) -> (outputs, state)`` for every event, in event-time order per key.

    Attributes:
        fn: The user's function.
        schema: Output columns.
        state: Schema of the state, or None: any picklable value.
        window: None, or the window that the state belongs to; it is forgotten when the window is complete.
        on_error: ``"fail"``, or ``"skip"``: leave a record out whose function raised, and keep its state as it was.
    """

    fn: Callable[[Any, Any, Any], tuple[Any, Any]]
    schema: pa.Schema
    state: pa.Schema | None = None
    window: Sliding | None = None
    on_error: str = "fail"

    def __post_init__(self) -> None:
        self.name = f"stateful_map({getattr(self.fn, '__name__', type(self.fn).__name__)})"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        del keys
        if self.window is not None and {"window_start", "window_end"} & set(inputs[0].names):
            raise DeclarationError(
                f"{self.name} in a window needs the names window_start and window_end; rename those columns before."
            )
        return self.schema

    def start(self, context: Context) -> None:
        super().start(context)
        what = f"{self.name} of region {context.region!r}"
        self._codec = _PickleCodec(what) if self.state is None else StateCodec(self.state, what)

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        """Call the function for every row."""
        spread, subs, timers = _in_windows(rows, self.window)
        data = spread.data
        make = partial(tuple.__new__, event_type(data.schema.names))  # as its `_make`, but no step of it is Python
        events = map(make, zip(*map(values_of, data.columns), strict=True))
        names = state.names(rows.keys, spread.owner, subs)
        loaded = [None if v is None else self._codec.load(v) for v in state.get(names)]
        keys = rows.keys.values()
        out, trigger, after = self._call(keys, spread, list(events), loaded)
        kept = [i for i, s in enumerate(after) if s is not None]
        state.put(
            [names[i] for i in kept], [self._codec.dump(after[i]) for i in kept], None if timers is None else timers[kept]
        )
        state.delete([names[i] for i, s in enumerate(after) if s is None and loaded[i] is not None])
        batch = to_batch(out, self.context.output, self.name)
        row = spread.row[np.array(trigger, np.int64)]
        if self.window is not None:  # a row's outputs in all of its windows are numbered together
            by_row = np.argsort(row, kind="stable")
            batch, row = batch.take(places(by_row)), row[by_row]
        return rows.emit(batch, row)

    def show_state(self, value: bytes) -> Any:
        """The user's state."""
        state = self._codec.load(value)
        return state._asdict() if hasattr(state, "_asdict") else state

    def _call(
        self, keys: list[Any], spread: _Spread, events: list[Any], loaded: list[Any]
    ) -> tuple[list[Any], list[int], list[Any]]:
        """The loop over events. Returns output rows, which event triggered each, and each entry's state after."""
        fn, settle, owner = self.fn, self._codec.settle, spread.owner.tolist()
        out: list[Any] = []
        trigger: list[int] = []
        after: list[Any] = []
        starts = spread.starts.tolist()
        for g, held in enumerate(loaded):
            key, now = keys[owner[g]], held
            for i in range(starts[g], starts[g + 1]):
                try:
                    outputs, now_next = fn(key, events[i], now)
                    given = (outputs,) if type(outputs) is tuple else _as_list(outputs)
                except Exception as error:  # noqa: BLE001  (the user's code may raise anything)
                    self._failed(error, key, events[i], spread, i)
                    continue
                now = None if now_next is None else settle(now_next)
                if given:
                    out += given
                    trigger += [i] * len(given)
            after.append(now)
        return out, trigger, after

    def _failed(self, error: Exception, key: Any, event: Any, spread: _Spread, i: int) -> None:
        position = self.context.position_text(spread.order, i)
        if self.on_error == "fail":
            raise OperatorError(
                f"{self.name} of region {self.context.region!r} failed on key {key!r} at position {position}: "
                f'{type(error).__name__}: {error}; mend the function, or leave such records out with on_error="skip".'
            ) from error
        self.context.skipped.append((repr(key), position, f"{type(error).__name__}: {error}", repr(event)))

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        """Forget the state of windows that are complete."""
        if self.window is not None:
            state.delete([n for n, _ in state.due(t)])
        return None


@dataclass(frozen=True)
class _Spread:
    """Rows by (key, window): for each entry its first row and its key, for each row the row it came from."""

    data: pa.RecordBatch
    order: Order
    starts: Ints
    owner: Ints
    row: Ints


def _in_windows(rows: Rows, window: Sliding | None) -> tuple[_Spread, list[bytes] | None, Ints | None]:
    """Repeat each row for each window it belongs to and group by (key, window)."""
    if window is None:
        spread = _Spread(rows.data, rows.order, rows.starts, np.arange(len(rows.keys)), np.arange(len(rows)))
        return spread, None, None
    index, starts = window.spread(rows.order.time - rows.order.time % window.pane_us)
    by_window = lexicographic([rows.group[index], starts, index])
    index, starts = index[by_window], starts[by_window]
    group = rows.group[index]
    first = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (starts[1:] != starts[:-1]))))
    data = rows.data.take(places(index))
    data = data.append_column(pa.field("window_start", TIMESTAMP), as_times(starts))
    data = data.append_column(pa.field("window_end", TIMESTAMP), as_times(starts + window.size_us))
    spread = _Spread(data, rows.order.take(index), np.append(first, len(index)), group[first], index)
    return spread, biased(starts[first]), starts[first] + window.size_us - 1


def _as_list(outputs: Any) -> Sequence[Any]:
    """What a function returned as rows: None, one row (tuple, dict) or an iterable of rows."""
    if outputs is None:
        return ()
    if isinstance(outputs, (tuple, dict)):
        return (outputs,)
    if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
        return ((outputs,),)
    return [o if isinstance(o, (tuple, dict)) else (o,) for o in outputs]


def to_batch(rows: Sequence[Any], schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Python rows as columns.

    Raises:
        OperatorError: A row does not fit the schema; names the column.
    """
    names = schema.names
    plain = rows
    if any(issubclass(kind, dict) for kind in set(map(type, rows))):
        wanted = set(names)
        for row in rows:
            if isinstance(row, dict) and row.keys() != wanted:
                odd = min(row.keys() ^ wanted, key=str)
                about = "has no" if odd in names else "has a"
                raise OperatorError(
                    f"{what} returned the row {row!r}, which {about} column {odd!r}; its schema has {', '.join(names)}."
                )
        plain = [tuple(r[n] for n in names) if isinstance(r, dict) else r for r in rows]
    for row in plain if set(map(len, plain)) - {len(names)} else ():
        if len(row) != len(names):
            raise OperatorError(
                f"{what} returned the row {row!r} of {len(row)} values; its schema has {len(names)}: {', '.join(names)}."
            )
    columns = list(zip(*plain, strict=True)) if plain else [()] * len(names)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            array = pa.array(values, field.type)
            if pa.types.is_integer(field.type) and not _FRACTIONS.isdisjoint(map(type, values)):
                _check_whole(values)
            arrays.append(array)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise OperatorError(
                f"{what} returned a value for column {field.name!r} that is not {field.type}: {error}."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_whole(values: Sequence[Any]) -> None:
    for value in values:
        if type(value) in _FRACTIONS and value % 1:
            raise TypeError(f"{value!r} is no whole number")  # Arrow would cut it


__all__ = ["MAX_TIME", "Keys", "StateCodec", "StatefulMap", "event_type", "to_batch"]
