"""Aggregates per key and session: bursts of records, ended by a gap.

A key's open sessions are one state entry: for each session its first and last time and its partial aggregates. New rows are
divided into bursts; these and the stored sessions are then merged where they are less than the gap apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic, to_indices
from penstock.operators.aggregate import (
    Aggregating,
    as_times,
    bind_kernels,
    check_names,
    concat_columns,
    finished,
    result_schema,
    take_columns,
    telling,
)
from penstock.operators.aggregates.base import Columns, Kernel
from penstock.operators.base import KeyedState, Output, Parts
from penstock.operators.windows import Session, window_text
from penstock.rows.keys import Ints
from penstock.rows.rows import Emitted, Keys, Rows, running_max
from penstock.types import MAX_TIME, MIN_TIME


def _firsts(value: bytes) -> Ints:
    """First times of the sessions of an entry."""
    return np.frombuffer(value, np.int64, int.from_bytes(value[:4], "big"), 4)


@dataclass(frozen=True)
class _Spans:
    """Sessions: key, first and last time, partial aggregates."""

    group: Ints
    first: Ints
    last: Ints
    states: list[Columns]

    def take(self, index: Any) -> _Spans:
        return _Spans(self.group[index], self.first[index], self.last[index], take_columns(self.states, index))


def _both(some: _Spans, others: _Spans) -> _Spans:
    """Sessions one after the other."""
    return _Spans(
        np.concatenate([some.group, others.group]),
        np.concatenate([some.first, others.first]),
        np.concatenate([some.last, others.last]),
        concat_columns([some.states, others.states]),
    )


@dataclass
class SessionStep(Aggregating):
    """Aggregates per key and session window.

    Attributes:
        kernels: Output name and aggregate function, in order.
        window: The session window.
    """

    kernels: tuple[tuple[str, Kernel], ...]
    window: Session
    kind = "session aggregate"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        check_names([n for n, _ in self.kernels], keys, window=True)
        return result_schema(self.kernels, bind_kernels(self.kernels, inputs[0]), keys, window=True)

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return {"window": window_text(self.window)}

    def link(self) -> int:
        return self.window.gap_us

    def sure(self, state: KeyedState) -> bool:
        """A session that began less than a gap after what is missing may have begun earlier."""
        edge = self.context.missing + self.window.gap_us
        return all(_firsts(value).min() >= edge for _, value in state.due(MAX_TIME))

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        return self._take(rows.keys, self._bursts(rows), state)

    def lift(self, rows: Rows) -> Parts:
        found = self._bursts(rows)
        ends = found.last.astype("<i8").tobytes()
        values = [ends[8 * i : 8 * i + 8] + raw for i, raw in enumerate(self._codec.encode(found.states))]
        return Parts(rows.keys, found.group, found.first, values)

    def on_parts(self, parts: Parts, state: KeyedState) -> Output:
        last = np.frombuffer(b"".join(value[:8] for value in parts.values), "<i8").astype(np.int64)
        states = self._codec.decode([value[8:] for value in parts.values])
        return self._take(parts.keys, self._merged(_Spans(parts.group, parts.panes, last, states), parts.keys), state)

    def _bursts(self, rows: Rows) -> _Spans:
        """Rows of a key that are less than the gap apart."""
        time = rows.order.time
        cut = (rows.group[1:] != rows.group[:-1]) | (time[1:] - time[:-1] >= self.window.gap_us)
        starts = np.flatnonzero(np.concatenate(([True], cut)))
        order = rows.order.columns()
        with telling(self, lambda row: (rows.keys, rows.group[row]), rows):
            states = [
                bound.lift_reduce(None if kernel.column is None else rows.column(kernel.column), order, len(rows), starts)
                for (_, kernel), bound in zip(self.kernels, self._bounds, strict=True)
            ]
        return _Spans(rows.group[starts], time[starts], time[np.append(starts[1:], len(rows)) - 1], states)

    def _take(self, keys: Keys, new: _Spans, state: KeyedState) -> Output:
        """Merge sessions of the keys with the stored ones."""
        names = state.names(keys)
        stored = self._stored(state.get(names))
        return self._keep(keys, names, new if stored is None else self._merged(_both(stored, new), keys), state)

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        entries = state.due(t)
        if not entries:
            return None
        names = [n for n, _ in entries]
        keys, _ = state.keys_of(names)
        spans = self._stored([v for _, v in entries])
        assert spans is not None
        return self._keep(keys, names, spans, state)

    def show_state(self, value: bytes) -> Any:
        spans = self._stored([value])
        assert spans is not None
        shown = [b.shown(c).to_pylist() for b, c in zip(self._bounds, spans.states, strict=True)]
        names = [n for n, _ in self.kernels]
        times = zip(as_times(spans.first).to_pylist(), as_times(spans.last).to_pylist(), strict=True)
        return [
            {"first": str(a), "last": str(b), **dict(zip(names, row, strict=True))}
            for (a, b), row in zip(times, zip(*shown, strict=True), strict=True)
        ]

    def _stored(self, values: Sequence[bytes | None]) -> _Spans | None:
        """Decode entries: count, then first and last times, then the states' rows, each with its length."""
        group, first, last, raw = [], [], [], []
        for g, value in enumerate(values):
            if value is None:
                continue
            n = int.from_bytes(value[:4], "big")
            times = np.frombuffer(value, np.int64, 2 * n, 4)
            at = 4 + 16 * n
            for _ in range(n):
                size = int.from_bytes(value[at : at + 4], "big")
                raw.append(value[at + 4 : at + 4 + size])
                at += 4 + size
            group += [g] * n
            first.append(times[:n])
            last.append(times[n:])
        if not raw:
            return None
        return _Spans(np.array(group, np.int64), np.concatenate(first), np.concatenate(last), self._codec.decode(raw))

    def _merged(self, both: _Spans, keys: Keys) -> _Spans:
        """Merge sessions of one key that are less than the gap apart."""
        both = both.take(lexicographic([both.group, both.first]))
        reach = running_max(both.group, both.last)
        cut = (both.group[1:] != both.group[:-1]) | (both.first[1:] - reach[:-1] >= self.window.gap_us)
        starts = np.flatnonzero(np.concatenate(([True], cut)))
        with telling(self, lambda state: (keys, both.group[state])):
            states = [b.reduce(c, starts) for b, c in zip(self._bounds, both.states, strict=True)]
        return _Spans(both.group[starts], both.first[starts], np.maximum.reduceat(both.last, starts), states)

    def _keep(self, keys: Keys, names: list[bytes], spans: _Spans, state: KeyedState) -> Output:
        """Store open sessions, emit complete ones."""
        ends = spans.last + self.window.gap_us
        done = ends <= self.context.frontier
        if self.context.missing > MIN_TIME:
            matters = spans.first < self.context.missing + self.window.gap_us
            self.context.unsure |= bool((done & matters & (ends > self.context.needed)).any())
        still = spans.take(~done)
        raw = self._codec.encode(still.states) if len(still.group) else []
        bounds = np.searchsorted(still.group, np.arange(len(names) + 1))
        puts, values, timers, gone = [], [], [], []
        for g, name in enumerate(names):
            a, b = int(bounds[g]), int(bounds[g + 1])
            if a == b:
                gone.append(name)
                continue
            body = b"".join(len(r).to_bytes(4, "big") + r for r in raw[a:b])
            puts.append(name)
            values.append((b - a).to_bytes(4, "big") + still.first[a:b].tobytes() + still.last[a:b].tobytes() + body)
            timers.append(int(still.last[a:b].min()) + self.window.gap_us - 1)
        state.put(puts, values, np.array(timers, np.int64))
        state.delete(gone)
        return self._rows(keys, spans.take(done), state)

    def _rows(self, keys: Keys, spans: _Spans, state: KeyedState) -> Emitted:
        ends = spans.last + self.window.gap_us
        results = finished(self, self._bounds, spans.states, lambda result: (keys, spans.group[result]), running=False)
        columns = [c.take(to_indices(spans.group)) for c in keys.columns]
        data = pa.RecordBatch.from_arrays(
            [*columns, as_times(spans.first), as_times(ends), *results], schema=self.context.output
        )
        return state.emit(data, keys, ends - 1, spans.group)
