"""As-of join: each left row with the latest right row of its key that is not after it.

A left row is handled once the frontier has passed it, as the region's rows are: then every right row up to its time is there, so that the
answer does not depend on when either came. Of right rows of one time the last in the order of positions counts. What a later left row may
still get is the latest right row before the frontier, so one row of each key is kept, and with a tolerance only until it is too old.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import to_indices, values_of
from penstock.operators.base import Context, KeyedState, Layout, Operator, Output
from penstock.operators.join import LEFT, RIGHT, all_keys, joined_schema, without_null
from penstock.rows.keys import Ints
from penstock.rows.rows import Emitted, Rows
from penstock.types import MAX_TIME, seconds_text

_Kept = tuple[int, int, tuple[Any, ...]]  # the time, which layout the row has, the row


@dataclass
class AsOfJoin(Operator):
    """Joins two inputs of one region.

    Attributes:
        tolerance_us: How far before the left row the right one may be (µs, inclusive); None: however far.
    """

    tolerance_us: int | None
    name = "asof join"
    kind = "asof_join"
    migrate = None

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        return joined_schema(inputs, keys)

    def span(self) -> int | None:
        return self.tolerance_us

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return {"tolerance": "none" if self.tolerance_us is None else seconds_text(self.tolerance_us)}

    def layout(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Layout:
        return {f.name: str(f.type) for f in inputs[RIGHT] if f.name not in keys.names}

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return ()

    def start(self, context: Context) -> None:
        super().start(context)
        self._fields = [f for f in context.inputs[RIGHT] if f.name not in context.codec.schema.names]
        self._columns = [f.name for f in self._fields]
        self._layouts = [list(layout) for layout in context.layouts]

    def on_inputs(self, inputs: Sequence[Rows], state: KeyedState) -> Output:
        left, right = inputs
        if not len(left) and not len(right):
            return None
        keys, owners = all_keys(inputs)
        names = state.names(keys)
        kept = [None if raw is None else self._load(raw) for raw in state.get(names)]
        held = [g for g, entry in enumerate(kept) if entry is not None]
        # Kept rows first: they are before all that come now, and what comes now is in order for each key.
        group = np.concatenate([np.array(held, np.int64), owners[RIGHT][right.group]])
        time = np.concatenate([np.array([entry[0] for entry in kept if entry is not None], np.int64), right.order.time])
        index = np.argsort(group, kind="stable")
        group, time = group[index], time[index]
        columns = self._right(right, [entry[2] for entry in kept if entry is not None])
        if len(right):
            self._keep(names, group, time, index, columns, without_null(keys), len(held), state)
        if not len(left):
            return None
        mine = owners[LEFT][left.group]
        at, met = self._partner(group, time, mine, left.order.time, without_null(keys))
        where = pa.array(np.where(met, index[at] if len(index) else 0, 0), mask=~met)
        added = [column.take(where) for column in columns.values()]
        data = pa.RecordBatch.from_arrays([*left.data.columns, *added], schema=self.context.output)
        return Emitted(data, left.order, left.group, left.keys)

    def _right(self, rows: Rows, kept: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """The right side's columns: kept rows, then those that come now."""
        if not kept:
            return {name: rows.column(name) for name in self._columns}
        return {
            f.name: pa.concat_arrays([pa.array([row[i] for row in kept], f.type), rows.column(f.name)])
            for i, f in enumerate(self._fields)
        }

    def _partner(self, group: Ints, time: Ints, mine: Ints, at: Ints, meets: Any) -> tuple[Ints, Any]:
        """For each left row the last right row of its key not after it, and whether there is one within the tolerance."""
        if not len(group):
            return np.zeros(len(mine), np.int64), np.zeros(len(mine), bool)
        ranks = np.unique(np.concatenate([time, at]))
        width = len(ranks)
        places = group * width + np.searchsorted(ranks, time)
        found = np.searchsorted(places, mine * width + np.searchsorted(ranks, at), "right") - 1
        last = np.maximum(found, 0)
        met = (found >= 0) & (group[last] == mine) & meets[mine]
        if self.tolerance_us is not None:
            met &= at - time[last] <= self.tolerance_us
        return last, met

    def _keep(
        self,
        names: list[bytes],
        group: Ints,
        time: Ints,
        index: Ints,
        columns: Mapping[str, Any],
        meets: Any,
        old: int,
        state: KeyedState,
    ) -> None:
        """Keep the last right row of each key that can be met."""
        ends = np.flatnonzero(np.append(group[1:] != group[:-1], True))
        ends = ends[(index[ends] >= old) & meets[group[ends]]]
        taken = to_indices(index[ends])
        values = [values_of(column.take(taken)) for column in columns.values()]
        last = len(self._layouts) - 1
        entries = [(t, last, tuple(column[i] for column in values)) for i, t in enumerate(time[ends].tolist())]
        tolerance = self.tolerance_us
        timers = None if tolerance is None else np.minimum(time[ends], MAX_TIME - tolerance - 1) + tolerance
        state.put_objects([names[g] for g in group[ends].tolist()], entries, timers)

    def _load(self, raw: bytes) -> _Kept:
        """A kept row in today's columns: found by name, and null where it was missing at any time."""
        time, layout, row = pickle.loads(raw)
        if layout == len(self._layouts) - 1:
            return time, layout, row
        had, since = self._layouts[layout], set.intersection(*map(set, self._layouts[layout:]))
        return time, layout, tuple(row[had.index(name)] if name in since else None for name in self._columns)

    def show_state(self, value: bytes) -> Any:
        return dict(zip(self._columns, self._load(value)[2], strict=True))

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        if self.tolerance_us is not None:
            state.delete([name for name, _ in state.due(t)])
        return None


__all__ = ["AsOfJoin"]
