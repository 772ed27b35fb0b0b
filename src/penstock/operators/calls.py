"""The calls of a function per event, and what becomes of what it returns; the loop of `StatefulMap`.

Only here does Python run per record. Read next: `penstock.operators.timed_calls`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, values_of
from penstock.errors import OperatorError, raised
from penstock.rows.keys import Ints
from penstock.rows.named import row_type
from penstock.rows.returned import Unfit
from penstock.rows.rows import Order

if TYPE_CHECKING:
    from penstock.operators.stateful_map import StatefulMap

_FIXED = frozenset({type(None), bool, int, float, str, bytes})


def event_type(names: Sequence[str]) -> Any:
    """The type of what a function gets per event."""
    return row_type("Event", tuple(names))


@dataclass(frozen=True)
class Spread:
    """Rows by (key, window): for each entry its first row and its key, for each row its original row."""

    data: pa.RecordBatch
    order: Order
    starts: Ints
    owner: Ints
    row: Ints


@dataclass(frozen=True)
class Events:
    """What the function gets, for each row, and the values of which it consists."""

    rows: list[Any]
    data: pa.RecordBatch
    columns: list[list[Any]]

    @staticmethod
    def of(data: pa.RecordBatch) -> Events:
        """The events that are the rows of a batch."""
        make = partial(tuple.__new__, event_type(data.schema.names))  # as its `_make`, without Python code
        columns = list(map(values_of, data.columns))
        return Events(list(map(make, zip(*columns, strict=True))), data, columns)

    def moments(self, time: Ints) -> list[Any]:
        """Their event times (µs), as Python has them. Mostly a column has them: then no further object is made per row."""
        for column, values in zip(self.data.columns, self.columns, strict=True):
            if column.type == UTC and not column.null_count and np.array_equal(column.cast(pa.int64()).to_numpy(), time):
                return values
        return values_of(pa.array(time, UTC))


class Calls:
    """The function's calls for all rows of an epoch, by (key, window).

    Return values are checked in bulk at the end. If one does not fit, its entries (key, window) are run again with a check per
    record, so that the error names the record.

    Attributes:
        held: Each entry's state before, as stored; None or empty: it has none.
        out: Output rows.
        trigger: The event that triggered each of them; ascending.
    """

    def __init__(self, step: StatefulMap, keys: list[Any], spread: Spread, events: list[Any], held: Sequence[Any]) -> None:
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
            key, now, begin = keys[owner[g]], load(raw) if raw else None, len(out)
            for i in range(starts[g], starts[g + 1]):
                try:
                    outputs, after = fn(key, events[i], now)
                    given = None if plain and type(outputs) is tuple else rows(outputs)
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
                if given is None:  # what most functions return: one row, as it is
                    out.append(outputs)
                    trigger.append(i)
                elif given:
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
                outputs, after = self._step.fn(key, self._events[i], self._codec.load(now) if now else None)
                given = self._returned.rows(outputs)
                if everything or i in self._suspects:
                    self._returned.batch(given)
                now = None if after is None else self._codec.dump(after)
            except Exception as error:  # noqa: BLE001
                self._failed(i, error)
                continue
            out += [(i, row) for row in given]
        return out, self._codec.load(now) if now else None

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
        if (
            str(error).startswith("too many values to unpack (expected 2")
            and error.__traceback__
            and not error.__traceback__.tb_next
        ):
            shown += "; a third value is the key's timer, which needs on_timer="  # it was raised here, not in the function
        text = f"it {error}" if isinstance(error, Unfit) else shown
        return repr(self._keys[self._owner[entry]]), position, text, repr(self._events[i])


__all__ = ["Calls", "Events", "Spread", "event_type"]
