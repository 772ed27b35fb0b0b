"""Aggregates per key, or per key and window: partial states in columns, merged in bulk.

Aggregates are commutative, so their input needs no order and does not wait for the frontier; only their *results* do. (Input of
users' own aggregates, which need not be commutative, waits.) Rows, or the JVM's partial aggregates, are reduced to one row per
(key, window), merged with the stored ones, and stored. A window is emitted once, when the frontier has reached its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, lexicographic, to_indices
from penstock.errors import DeclarationError, OperatorError, StateError, raised
from penstock.operators.aggregates.base import Bound, Columns, Kernel
from penstock.operators.aggregates.codec import Codec, layout
from penstock.operators.aggregates.user import Aggregate, UserFailed
from penstock.operators.base import Context, KeyedState, Layout, Operator, Output, Partials, Parts
from penstock.operators.windows import WINDOW, Spans, window_meaning
from penstock.rows.keys import Ints, biased, unbiased
from penstock.rows.rows import Emitted, Keys, Order, Rows
from penstock.sql_text.schema import quoted
from penstock.types import LAST_MOMENT, ORDER, TIME


def bind_kernels(kernels: Sequence[tuple[str, Kernel]], source: pa.Schema) -> tuple[Bound, ...]:
    """Bind each aggregate to its column.

    Raises:
        DeclarationError: The column does not exist or has a type that the aggregate does not accept.
    """
    bounds = []
    for name, kernel in kernels:
        if kernel.column is not None and kernel.column not in source.names:
            raise DeclarationError(
                f"Aggregate {name!r} reads column {kernel.column!r}, which does not exist; there are {', '.join(source.names)}."
            )
        bounds.append(kernel.bind(None if kernel.column is None else source.field(kernel.column).type))
    return tuple(bounds)


def check_names(names: Sequence[str], keys: pa.Schema, *, window: bool) -> None:
    """Refuse aggregates named like another column of the output: SQL does not tell names apart by their case."""
    taken = {name.lower() for name in (*keys.names, *(WINDOW if window else ()))}
    there: dict[str, str] = {}
    for name in names:
        if name.lower() in taken:
            raise DeclarationError(f"Aggregate {name!r} has the name of a key or window column; give it another.")
        if (other := there.setdefault(name.lower(), name)) != name:
            raise DeclarationError(f"Aggregates {other!r} and {name!r} have names that are the same to SQL; rename one.")


def result_schema(
    kernels: Sequence[tuple[str, Kernel]], bounds: Sequence[Bound], keys: pa.Schema, *, window: bool
) -> pa.Schema:
    """Key columns, the window's, then the aggregates."""
    spans = [pa.field(name, UTC) for name in WINDOW] if window else []
    return pa.schema([*keys, *spans, *(pa.field(n, b.output_type) for (n, _), b in zip(kernels, bounds, strict=True))])


def as_times(values: Ints) -> Any:
    """Bounds of windows (µs) as Arrow timestamps; those beyond the year 9999 become its last microsecond.

    SQLite and Python have no later times.
    """
    return pa.array(np.minimum(values, LAST_MOMENT), pa.int64()).cast(UTC)


def concat_columns(parts: Sequence[Sequence[Columns]]) -> list[Columns]:
    """States one after the other: ``parts[i][aggregate][field]``."""
    return [tuple(np.concatenate(fields) for fields in zip(*states, strict=True)) for states in zip(*parts, strict=True)]


def take_columns(states: Sequence[Columns], index: Any) -> list[Columns]:
    """The rows at `index` of every state column."""
    return [tuple(c[index] for c in columns) for columns in states]


@contextlib.contextmanager
def telling(step: Operator, key_of: Callable[[int], tuple[Keys, int]], rows: Rows | None = None) -> Iterator[None]:
    """Raise an exception of a user's aggregate as an error with step, key and, when rows are added, position.

    Args:
        step: The step.
        key_of: From the number of a row, state or result: the keys, and the index of its key.
        rows: The rows that are added.

    Raises:
        OperatorError: A function of the aggregate raised.
    """
    try:
        yield
    except UserFailed as failed:
        keys, at = key_of(failed.row)
        key = keys.take(np.array([at])).values()[0]
        where = "" if rows is None or not failed.add else f" at position {step.context.position_text(rows.order, failed.row)}"
        error = failed.__cause__ or failed
        raise OperatorError(
            f"{step.describe()} of region {step.context.region!r} failed in {failed.what} on key {key!r}{where}: "
            f"{raised(error)}; fix the aggregate, or leave such records out before it with where(...)."
        ) from error


def finished(
    step: Operator,
    bounds: Sequence[Bound],
    states: Sequence[Columns],
    key_of: Callable[[int], tuple[Keys, int]],
    *,
    running: bool,
) -> list[Any]:
    """The results of states, an Arrow array per aggregate.

    Args:
        step: The step.
        bounds: Its aggregates.
        states: The state columns of each.
        key_of: From the number of a result: the keys, and the index of its key.
        running: Whether more may follow: then a sum that does not fit its type is null, because epochs decide which values are
            seen, and a later record may make it fit again.

    Raises:
        OperatorError: A function of a user's aggregate raised.
        StateError: A final result does not fit its type.
    """
    results = []
    with telling(step, key_of):
        for bound, columns in zip(bounds, states, strict=True):
            over = bound.too_great(columns)
            if over is None or not over.any():
                results.append(bound.finish(columns))
            elif running:
                results.append(bound.finish(bound.without(columns, over)))
            else:
                keys, at = key_of(int(np.flatnonzero(over)[0]))
                key = keys.take(np.array([at])).values()[0]
                what = f"A result of {step.describe()} of region {step.context.region!r} for key {key!r}"
                raise StateError(f"{what} does not fit in {bound.output_type}; {bound.remedy}.")
    return results


class Aggregating(Operator):
    """The common part of steps that aggregate, whatever their window.

    Attributes:
        kernels: Output name and aggregate function, in order.
    """

    kernels: tuple[tuple[str, Kernel], ...]
    reads_only = True
    migrate = None

    def __post_init__(self) -> None:
        in_order = [
            type(kernel).__name__ for _, kernel in self.kernels if isinstance(kernel, Aggregate) and not kernel.commutative
        ]
        self.ordered, self.mergeable = bool(in_order), not in_order
        if in_order:
            self.to_merge = (
                f"say commutative = True in {in_order[0]} if its result is the same in whatever order rows are added and merged"
            )
        self.name = f"{self.kind}({', '.join(n for n, _ in self.kernels)})"

    def layout(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Layout:
        described = {
            name: kernel.describe() + ("" if kernel.column is None else f" of {inputs[0].field(kernel.column).type}")
            for name, kernel in self.kernels
        }
        return layout(described, bind_kernels(self.kernels, inputs[0]))

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return [
            n for (n, _), bound in zip(self.kernels, bind_kernels(self.kernels, inputs[0]), strict=True) if not bound.widens
        ]

    def reads(self) -> Sequence[str]:
        return [k.column for _, k in self.kernels if k.column is not None]

    def user_functions(self) -> Iterable[Any]:
        return [*super().user_functions(), *(type(kernel) for _, kernel in self.kernels)]

    def start(self, context: Context) -> None:
        super().start(context)
        self._bounds = bind_kernels(self.kernels, context.inputs[0])
        self._codec = Codec([n for n, _ in self.kernels], self._bounds, context.layouts)


@dataclass
class AggregateStep(Aggregating):
    """Aggregates per key (`window` None) or per key and tumbling or sliding window.

    Attributes:
        kernels: Output name and aggregate function, in order.
        window: The window, or None for one running value per key.
        emit: ``"final"``: a window's result once, when it is complete; ``"update"``: the value after each epoch in which it
            changed.
    """

    kernels: tuple[tuple[str, Kernel], ...]
    window: Spans | None
    emit: str
    kind = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.updates = self.emit == "update"
        self.output_key = () if self.window is None else WINDOW[:1]

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        check_names([n for n, _ in self.kernels], keys, window=self.window is not None)
        bounds = bind_kernels(self.kernels, inputs[0])
        return result_schema(self.kernels, bounds, keys, window=self.window is not None)

    def span(self) -> int | None:
        return None if self.window is None else self.window.longest_us

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return window_meaning(self.window) | ({"emit": self.emit} if self.window is not None else {})

    def partials(self, source: pa.Schema) -> Partials | None:
        columns: list[str] = []
        for (_, kernel), bound in zip(self.kernels, bind_kernels(self.kernels, source), strict=True):
            sql = bound.sql(None if kernel.column is None else quoted(kernel.column), ORDER)
            if sql is None:
                return None
            columns += sql
        return Partials(tuple(columns), "" if self.window is None else self.window.pane_sql(TIME))

    def on_data(self, rows: Rows, state: KeyedState) -> Output:
        return self._merge(rows.keys, *self._lifted(rows), state)

    def lift(self, rows: Rows) -> Parts:
        group, panes, states = self._lifted(rows)
        return Parts(rows.keys, group, panes, self._codec.encode(states))

    def on_parts(self, parts: Parts, state: KeyedState) -> Output:
        return self._merge(parts.keys, parts.group, parts.panes, self._codec.decode(list(parts.values)), state)

    def _lifted(self, rows: Rows) -> tuple[Ints, Ints, list[Columns]]:
        """The key, pane and state of each (key, pane)."""
        panes = np.zeros(len(rows), np.int64) if self.window is None else self.window.panes(rows.order.time)
        new = np.concatenate(([True], (rows.group[1:] != rows.group[:-1]) | (panes[1:] != panes[:-1])))
        starts = np.flatnonzero(new)
        time, part, offset, sub = rows.order.columns()
        # The arrival epoch must not matter.
        order = (time if self.context.timed else np.zeros_like(time), part, offset, sub)
        with telling(self, lambda row: (rows.keys, rows.group[row]), rows):
            states = [
                bound.lift_reduce(None if kernel.column is None else rows.column(kernel.column), order, len(rows), starts)
                for (_, kernel), bound in zip(self.kernels, self._bounds, strict=True)
            ]
        return rows.group[starts], panes[starts], states

    def on_partials(self, batch: pa.RecordBatch, keys: Keys, group: Ints, state: KeyedState) -> Output:
        at, states = len(self.context.codec.schema), []
        panes = np.zeros(batch.num_rows, np.int64)
        if self.window is not None:
            panes, at = self.window.panes(batch.column(at).to_numpy(zero_copy_only=False).astype(np.int64)), at + 1
        for (_, kernel), bound in zip(self.kernels, self._bounds, strict=True):
            width = len(bound.sql(kernel.column, ("", "", "", "")) or ())
            states.append(bound.from_sql([batch.column(at + i) for i in range(width)]))
            at += width
        return self._merge(keys, group, panes, states, state)

    def _merge(self, keys: Keys, group: Ints, panes: Ints, states: list[Columns], state: KeyedState) -> Output:
        """Merge partial states, sorted by (key, pane), with the stored ones; emit what is complete."""
        subs = None
        new = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (panes[1:] != panes[:-1]))))
        if len(new) < len(group):  # of several workers of a split stage, or of epochs, queued while a key was on hold
            with telling(self, lambda state: (keys, group[state])):
                states = [b.reduce(c, new) for b, c in zip(self._bounds, states, strict=True)]
            group, panes = group[new], panes[new]
        starts = panes
        if self.window is not None:
            index, starts = self.window.spread(panes)
            if self.window.overlapping:
                by_window = lexicographic([group[index], starts])
                index, starts = index[by_window], starts[by_window]
                group, states = group[index], take_columns(states, index)
                first = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (starts[1:] != starts[:-1]))))
                with telling(self, lambda state: (keys, group[state])):
                    states = [b.reduce(c, first) for b, c in zip(self._bounds, states, strict=True)]
                group, starts = group[first], starts[first]
            subs = biased(starts)
        whole = subs is None and len(group) == len(keys)
        names = state.names(keys, None if whole else group, subs)
        states, held = self._with_stored(names, states, state)
        if self.window is None:
            state.put(names, self._codec.encode(states))
            return self._rows(keys, group, starts, states, state) if self.updates else None
        ends = self.window.ends(starts)
        done = ends <= self.context.frontier
        still = np.flatnonzero(~done)
        state.put([names[i] for i in still.tolist()], self._codec.encode(take_columns(states, still)), ends[still] - 1)
        state.delete([names[i] for i in np.flatnonzero(done & held).tolist()])
        shown = np.arange(len(names)) if self.updates else np.flatnonzero(done)
        return self._rows(keys, group[shown], starts[shown], take_columns(states, shown), state)

    def _with_stored(self, names: list[bytes], states: list[Columns], state: KeyedState) -> tuple[list[Columns], Any]:
        """Merge each state with the stored one; also returns which were stored."""
        old = state.get(names)
        held = np.fromiter((v is not None for v in old), bool, len(old))
        at = np.flatnonzero(held)
        if not len(at):
            return states, held
        stored = self._codec.decode([v for v in old if v is not None])
        both = concat_columns([stored, states])
        owner = np.concatenate([at, np.arange(len(names))])
        index = np.argsort(owner, kind="stable")
        first = np.flatnonzero(np.concatenate(([True], np.diff(owner[index]) > 0)))
        with telling(self, lambda entry: (state.keys_of([names[owner[index[entry]]]])[0], 0)):
            return [b.reduce(c, first) for b, c in zip(self._bounds, take_columns(both, index), strict=True)], held

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.window is None:
            return None
        entries = state.due(t)
        if not entries:
            return None
        names = [n for n, _ in entries]
        state.delete(names)
        if self.updates:
            return None
        keys, subs = state.keys_of(names)
        return self._rows(keys, np.arange(len(keys)), unbiased(subs), self._codec.decode([v for _, v in entries]), state)

    def show_state(self, value: bytes) -> Any:
        states = self._codec.decode([value])
        shown = [b.shown(c) for b, c in zip(self._bounds, states, strict=True)]
        return {n: values.to_pylist()[0] for (n, _), values in zip(self.kernels, shown, strict=True)}

    def _rows(self, keys: Keys, group: Ints, starts: Ints, states: Sequence[Columns], state: KeyedState) -> Emitted:
        results = finished(self, self._bounds, states, lambda result: (keys, group[result]), running=self.updates)
        at_keys = to_indices(group)
        columns = [c.take(at_keys) for c in keys.columns]
        ranks = None
        if self.window is None:
            times = np.zeros(len(group), np.int64)
        else:
            ends, ranks = self.window.ends(starts), self.window.ranks(starts)
            times = ends - 1
            columns += [as_times(starts), as_times(ends)]
        data = pa.RecordBatch.from_arrays([*columns, *results], schema=self.context.output)
        return state.emit(data, keys, times, group, ranks)


__all__ = ["AggregateStep", "Aggregating", "Order"]
