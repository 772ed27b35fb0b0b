"""Interval join: pairs of records of one key whose event times are at most `within` apart.

Both sides are kept per key until no partner can arrive. A pair is emitted at the later of its two records; a record without
partner (left, right and full joins) when its time has run out. As in SQL, a key with a null part matches nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import lexicographic, values_of
from penstock.errors import DeclarationError
from penstock.operators.base import Context, KeyedState, Layout, Operator, Output
from penstock.rows.keys import Ints
from penstock.rows.rows import Emitted, Keys, Order, Rows, numbered
from penstock.types import MAX_TIME, seconds_text

LEFT, RIGHT = 0, 1
_SIDES: Final = ("left", "right")
Entry = tuple[int, int, int, int, bool, tuple[Any, ...]]  # time, part, offset, sub, has a partner, the row


@dataclass
class _Side:
    """Stored and new rows of one side, sorted by (group, order)."""

    group: Ints
    order: Order
    fresh: Any
    matched: Any
    rows: list[tuple[Any, ...]]


@dataclass
class IntervalJoin(Operator):
    """Joins two inputs of one region.

    Attributes:
        within_us: The largest distance of a pair's event times (µs, inclusive).
        how: ``"inner"``, ``"left"`` (also left records without partner), ``"right"`` (right ones) or ``"full"`` (of both sides).
    """

    within_us: int
    how: str = "inner"
    kind = "join"
    migrate = None

    def __post_init__(self) -> None:
        self.name = f"{self.how} join"

    def output_schema(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
        return joined_schema(inputs, keys)

    def span(self) -> int | None:
        return (
            self.within_us if self.how == "inner" else 2 * self.within_us
        )  # a row without a partner is given out that much later

    def meaning(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Mapping[str, str]:
        return {"within": seconds_text(self.within_us), "how": self.how}

    def layout(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Layout:
        return {f"{side}.{f.name}": str(f.type) for side, schema in zip(_SIDES, inputs, strict=True) for f in schema}

    def fixed(self, inputs: Sequence[pa.Schema], keys: pa.Schema) -> Sequence[str]:
        return ()

    def start(self, context: Context) -> None:
        super().start(context)
        names = context.codec.schema.names
        self._right = [i for i, f in enumerate(context.inputs[RIGHT]) if f.name not in names]
        self._key_at = {n: context.inputs[RIGHT].get_field_index(n) for n in names}
        last = len(context.layouts) - 1
        self._generation = [last] if last > 0 else []  # the first one is implied
        columns = [[[n.removeprefix(f"{s}.") for n in old if n.startswith(f"{s}.")] for old in context.layouts] for s in _SIDES]
        self._layouts = [[side[at:] for side in columns] for at in range(last + 1)]

    def on_inputs(self, inputs: Sequence[Rows], state: KeyedState) -> Output:
        if not len(inputs[LEFT]) and not len(inputs[RIGHT]):
            return None
        keys, owners = all_keys(inputs)
        names = state.names(keys)
        stored = [None if v is None else self._load(v) for v in state.get(names)]
        sides = [self._side(s, inputs[s], owners[s], stored) for s in (LEFT, RIGHT)]
        meets = without_null(keys)
        a, b = self._pairs(sides[LEFT], sides[RIGHT], meets)
        sides[LEFT].matched[a] = True
        sides[RIGHT].matched[b] = True
        entries = [_entries(side, len(keys)) for side in sides]
        both: list[Any] = [(entries[LEFT][g], entries[RIGHT][g], *self._generation) for g in range(len(keys))]
        for g in np.flatnonzero(~meets).tolist():  # kept only to be emitted without a partner
            pair = tuple(side if which in self._shown() else [] for which, side in enumerate(both[g][:2]))
            both[g] = (*pair, *self._generation) if any(pair) else None
        timers = np.array([MAX_TIME if pair is None else self._timer(pair) for pair in both], np.int64)
        state.put_objects(names, both, timers)
        return self._emit_pairs(sides, a, b, keys)

    def _side(self, which: int, rows: Rows, owner: Ints, stored: Sequence[Any]) -> _Side:
        old = [(g, e) for g, pair in enumerate(stored) if pair is not None for e in pair[which]]
        columns = np.array([e[:4] for _, e in old], np.int64).reshape(-1, 4)
        group = np.concatenate([np.array([g for g, _ in old], np.int64), owner[rows.group]])
        order = Order.concat([Order(*(np.ascontiguousarray(columns[:, i]) for i in range(4))), rows.order])
        fresh = np.concatenate([np.zeros(len(old), bool), np.ones(len(rows), bool)])
        matched = np.concatenate([np.array([e[4] for _, e in old], bool), np.zeros(len(rows), bool)])
        data = [e[5] for _, e in old] + list(zip(*map(values_of, rows.data.columns), strict=True))
        index = lexicographic([group, *order.columns()])
        return _Side(group[index], order.take(index), fresh[index], matched[index], [data[i] for i in index.tolist()])

    def _pairs(self, left: _Side, right: _Side, meets: Any) -> tuple[Ints, Ints]:
        """Indices of all pairs within reach with at least one new row, and a key for which `meets` is true."""
        low, high = left.order.time - self.within_us, left.order.time + self.within_us
        ranks = np.unique(np.concatenate([low, high, right.order.time]))
        width = len(ranks) + 1
        place = right.group * width + np.searchsorted(ranks, right.order.time)
        first = np.searchsorted(place, left.group * width + np.searchsorted(ranks, low), "left")
        last = np.searchsorted(place, left.group * width + np.searchsorted(ranks, high), "right")
        count = np.where(meets[left.group], last - first, 0)
        a = np.repeat(np.arange(len(count)), count)
        b = np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        keep = left.fresh[a] | right.fresh[b]
        return a[keep], b[keep]

    def _emit_pairs(self, sides: list[_Side], a: Ints, b: Ints, keys: Keys) -> Emitted:
        left, right = sides[LEFT].order.take(a), sides[RIGHT].order.take(b)
        later = _after(left, right)
        order = Order(*(np.where(later, x, y) for x, y in zip(left.columns(), right.columns(), strict=True)))
        partner = Order(*(np.where(later, y, x) for x, y in zip(left.columns(), right.columns(), strict=True)))
        group = sides[LEFT].group[a]
        index = lexicographic([group, *order.columns(), later, *partner.columns()])
        a, b, group, order, later = a[index], b[index], group[index], order.take(index), later[index]
        same = np.concatenate(([False], (group[1:] == group[:-1]) & (later[1:] == later[:-1])))
        for column in order.columns():
            same[1:] &= column[1:] == column[:-1]
        rows = [self._row(sides[LEFT].rows[i], sides[RIGHT].rows[j]) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
        return Emitted(self._batch(rows), numbered(order, np.cumsum(~same)), group, keys)

    def _row(self, left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if left is None:
            assert right is not None
            fields = self.context.inputs[LEFT].names
            left = tuple(right[self._key_at[n]] if n in self._key_at else None for n in fields)
        tail = tuple(None for _ in self._right) if right is None else tuple(right[i] for i in self._right)
        return left + tail

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        schema = self.context.output
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _timer(self, pair: Sequence[Any]) -> int:
        return int(min(min(e[0] for e in side) for side in pair[:2] if side)) + self.within_us

    def _load(self, raw: bytes) -> tuple[list[Entry], list[Entry]]:
        """The entries of a key, with their rows in today's columns."""
        left, right, *generation = pickle.loads(raw)
        if generation == self._generation:
            return left, right
        had = self._layouts[generation[0] if generation else 0]
        return _conformed(left, had[LEFT]), _conformed(right, had[RIGHT])

    def show_state(self, value: bytes) -> Any:
        return self._load(value)

    def on_frontier(self, t: int, state: KeyedState) -> Output:
        due = state.due(t)
        if not due:
            return None
        names = [n for n, _ in due]
        keys, _ = state.keys_of(names)
        left_over: list[Any] = []
        out: list[tuple[int, int, Entry]] = []
        for g, (_, raw) in enumerate(due):
            pair = self._load(raw)
            kept = tuple([e for e in side if t != MAX_TIME and e[0] + self.within_us >= t] for side in pair)
            left_over.append((*kept, *self._generation) if kept[LEFT] or kept[RIGHT] else None)
            for which in self._shown():
                out += [(g, which, e) for e in pair[which] if not e[4] and (t == MAX_TIME or e[0] + self.within_us < t)]
        timers = np.array([MAX_TIME if p is None else self._timer(p) for p in left_over], np.int64)
        state.put_objects(names, left_over, timers)
        rows = [self._row(e[5], None) if which == LEFT else self._row(None, e[5]) for _, which, e in out]
        positions = np.array([(e[0] + self.within_us, *e[1:4]) for _, _, e in out], np.int64).reshape(-1, 4)
        order = Order(*(np.ascontiguousarray(positions[:, i]) for i in range(4)))
        return Emitted(self._batch(rows), order, np.array([g for g, _, _ in out], np.int64), keys)

    def _shown(self) -> tuple[int, ...]:
        return {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}[self.how]


def joined_schema(inputs: Sequence[pa.Schema], keys: pa.Schema) -> pa.Schema:
    """The columns of the left side, then those of the right one without its keys; a name that both have, in any case, gets ``_right``.

    Raises:
        DeclarationError: Two columns would have one name.
    """
    left, right = inputs
    fields, taken = list(left), {name.lower() for name in left.names}
    both = taken.copy()
    for field in right:
        if field.name in keys.names:
            continue
        name = field.name if field.name.lower() not in both else f"{field.name}_right"
        if name.lower() in taken:
            raise DeclarationError(f"The join would have two columns named {name!r}; rename one of them before joining.")
        taken.add(name.lower())
        fields.append(pa.field(name, field.type))
    return pa.schema(fields)


def all_keys(inputs: Sequence[Rows]) -> tuple[Keys, list[Ints]]:
    """The distinct keys of both inputs, and the index of each input's keys in them."""
    left, right = inputs[LEFT].keys, inputs[RIGHT].keys
    known = {k: i for i, k in enumerate(left.encoded)}
    new = [i for i, k in enumerate(right.encoded) if k not in known]
    at = {right.encoded[i]: len(left) + n for n, i in enumerate(new)}
    extra = right.take(np.array(new, np.int64))
    columns = tuple(pa.concat_arrays([x, y]) for x, y in zip(left.columns, extra.columns, strict=True))
    keys = Keys(columns, np.concatenate([left.hashes, extra.hashes]), left.codec)
    owner = np.array([known.get(k, at.get(k, 0)) for k in right.encoded], np.int64)
    return keys, [np.arange(len(left)), owner]


def without_null(keys: Keys) -> Any:
    """Which keys can have a partner: as in SQL, null equals nothing, not even null."""
    meets = np.ones(len(keys), bool)
    for column in keys.columns:
        if column.null_count:
            meets &= column.is_valid().to_numpy(zero_copy_only=False)
    return meets


def _entries(side: _Side, keys: int) -> list[list[Entry]]:
    out: list[list[Entry]] = [[] for _ in range(keys)]
    columns = [c.tolist() for c in side.order.columns()]
    for g, t, p, o, s, m, row in zip(side.group.tolist(), *columns, side.matched.tolist(), side.rows, strict=True):
        out[g].append((t, p, o, s, m, row))
    return out


def _conformed(entries: list[Entry], columns: Sequence[Sequence[str]]) -> list[Entry]:
    """Entries with rows in other columns, found by name; a column that was missing at any time is null.

    Args:
        entries: The entries.
        columns: The rows' columns, and all that rows of this side have had since, today's last.
    """
    had, since = columns[0], set.intersection(*map(set, columns))
    at = [had.index(name) if name in since else -1 for name in columns[-1]]
    return [(*entry[:5], tuple(entry[5][i] if i >= 0 else None for i in at)) for entry in entries]


def _after(left: Order, right: Order) -> Any:
    """Whether each left position is after the right one."""
    after = np.zeros(len(left.time), bool)
    undecided = np.ones(len(left.time), bool)
    for x, y in zip(left.columns(), right.columns(), strict=True):
        after |= undecided & (x > y)
        undecided &= x == y
    return after
