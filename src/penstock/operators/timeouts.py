"""Runs of a pattern that time out, in a flow: "A, and no B within ten minutes".

The same recogniser as `Match`, over the same rows, with the ends of windows as events between them. The end of a window is a
fact of event time, so it does not matter when an epoch ends: everything after the window's end comes after that event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, concat_batches, lexicographic, to_indices
from penstock.operators.base import KeyedState, Output
from penstock.operators.match import Match, tables_of
from penstock.patterns.automaton.timeouts import Stopping
from penstock.patterns.memory import dump, load
from penstock.patterns.recogniser import kernel
from penstock.patterns.recogniser.recogniser import Batch, Block, Recogniser
from penstock.patterns.windows import micros
from penstock.rows.keys import Ints
from penstock.rows.rows import Keys, Rows
from penstock.types import MAX_TIME


@dataclass(frozen=True)
class _Line:
    """Rows and window ends of some keys in one order.

    Attributes:
        group: int64, the key of each. ``time``: int64 µs.
        row: int64, the row of the epoch's rows, or -1 for a window's end.
        letters: int32.
    """

    group: Ints
    time: Ints
    row: Ints
    letters: Any


class Timeouts(Match):
    """Emits the runs that have bound a variable and whose window closes without a match that continues them."""

    kind = "timeouts"

    def __post_init__(self) -> None:
        self.name = f"timeouts of {self.pattern.stops_at}"

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        fresh = pa.RecordBatch.from_arrays([rows.column(name) for name in self._columns.names], schema=self._columns)
        recogniser = self._recogniser()
        letters = recogniser.tables.letters(self.pattern.masks(rows))
        return self._feed(recogniser, rows.keys, state.names(rows.keys), fresh, rows.group, rows.order.time, letters, state)

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        names = [name for name, _ in state.due(t)]
        if not names:
            return None
        keys, _ = state.keys_of(names)
        none = np.zeros(0, np.int64)
        return self._feed(
            self._recogniser(), keys, names, concat_batches([], self._columns), none, none, none.astype(np.int32), state
        )

    @property
    def _size(self) -> int:
        assert self.pattern.window is not None
        return int(self.pattern.window.size)

    def _feed(
        self,
        recogniser: Recogniser,
        keys: Keys,
        names: list[bytes],
        fresh: pa.RecordBatch,
        group: Ints,
        time: Ints,
        letters: Any,
        state: KeyedState,
    ) -> Output:
        stored = state.get(names)
        before = load(recogniser, stored, self._forms)
        was = micros(before.events.column(self.pattern.order[0]))
        line = self._line(recogniser, before.owner, was, group, time, letters)
        ends = line.row < 0
        low = np.where(ends, self._size - line.time, kernel.NEVER)
        segments = np.searchsorted(line.group, np.arange(len(names) + 1))
        batch = Batch(line.letters, -line.time, low, segments, np.arange(len(names)))
        taken = fresh.take(to_indices(pa.array(np.where(ends, 0, line.row), mask=ends)))
        events = concat_batches([before.events, taken])
        at = np.concatenate([was, line.time])
        out = self._rows(list(recogniser.feed(batch)), events, line, len(was), keys, state)
        self._keep(recogniser, names, stored, np.concatenate([before.owner, line.group]), at, events, state)
        return out

    def _line(self, recogniser: Recogniser, owner: Ints, was: Ints, group: Ints, time: Ints, letters: Any) -> _Line:
        """Insert the ends of all windows that close before the frontier after the rows of the same time."""
        tables = recogniser.tables
        begins = np.array([tables.begins(letter) for letter in range(int(letters.max(initial=-1)) + 1)], np.bool_)
        first = np.zeros(0, np.bool_) if not len(letters) else begins[letters]
        nodes = recogniser.arena.get()
        pos = nodes["pos"][nodes["prev"] == -1]
        numbers = np.where(pos < 0, -1 - pos, pos)
        whose = np.concatenate([owner[numbers], group[first]])
        starts = np.concatenate([was[numbers], time[first]])
        closing = starts < self.context.frontier - self._size
        pairs = np.unique(np.stack([whose[closing], starts[closing]]), axis=1)
        close = tables.letter(Stopping.of(self.pattern.automaton, self.pattern.stops_at).close)
        all_groups = np.concatenate([group, pairs[0]])
        all_times = np.concatenate([time, pairs[1] + self._size])
        row = np.concatenate([np.arange(len(group)), np.full(pairs.shape[1], -1)])
        all_letters = np.concatenate([letters, np.full(pairs.shape[1], close, np.int32)]).astype(np.int32)
        order = lexicographic([all_groups, all_times, row < 0, row])
        return _Line(all_groups[order], all_times[order], row[order], all_letters[order])

    def _recogniser(self) -> Recogniser:
        p = self.pattern
        return Recogniser(
            tables_of(p), strategy=p.strategy, consume="EXPIRED", max_matches_per_event=p.max_matches_per_event, room=1 << 17
        )

    def _rows(
        self, blocks: list[Block], events: pa.RecordBatch, line: _Line, first: int, keys: Keys, state: KeyedState
    ) -> Output:
        if not blocks:
            return None
        order = self.pattern.order[0]
        kind = events.schema.field(order).type
        batches, groups, times = [], [], []
        for block in blocks:
            group, time = line.group[block.ends - first], line.time[block.ends - first]
            key_columns = [column.take(to_indices(group)) for column in keys.columns]
            start = events.column(order).take(to_indices(block.starts))
            stop: Any = pa.array(time, UTC).cast(kind)
            arrays = [*key_columns, start, stop, *self.pattern.shape.arrays(block, events)]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.context.output))
            groups.append(group)
            times.append(time)
        group, time = np.concatenate(groups), np.concatenate(times)
        new = np.concatenate([[True], (group[1:] != group[:-1]) | (time[1:] != time[:-1])])
        nth = np.arange(len(group)) - np.maximum.accumulate(np.where(new, np.arange(len(group)), 0))
        return state.emit(concat_batches(batches), keys, time, group, nth)

    def _keep(
        self,
        recogniser: Recogniser,
        names: list[bytes],
        stored: list[bytes | None],
        owner: Ints,
        at: Ints,
        events: pa.RecordBatch,
        state: KeyedState,
    ) -> None:
        needed = recogniser.keep(np.arange(len(names)), np.full(len(names), kernel.NEVER))
        values = dump(recogniser, events.take(to_indices(needed)), owner[needed], np.zeros(len(names), np.int64), self._forms)
        nodes = recogniser.arena.get()
        pos = nodes["pos"][nodes["prev"] == -1]
        numbers = needed[np.where(pos < 0, -1 - pos, pos)]
        earliest = np.full(len(names), MAX_TIME - self._size - 1)
        np.minimum.at(earliest, owner[numbers], at[numbers])
        there = [i for i, value in enumerate(values) if value is not None]
        kept = [value for value in values if value is not None]
        state.put([names[i] for i in there], kept, (earliest + self._size)[there])
        state.delete(
            [name for name, value, old in zip(names, values, stored, strict=True) if value is None and old is not None]
        )
