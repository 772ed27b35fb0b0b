"""Rows of one worker, grouped by key and in order: the input and output of operators.

Invariants: rows of one key are adjacent; within a key they ascend by (time, part, offset, sub); `starts` has one entry per key
and a last one with the number of rows. Everything is columnar: Arrow for the user's columns, NumPy for the hidden ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.columns import MANY, concat_batches, in_long_runs, key_values, lexicographic, to_indices, values_of
from penstock.errors import OperatorError
from penstock.rows.keys import BIN_BYTES, Ints, KeyCodec
from penstock.types import BINS, ORDER

if TYPE_CHECKING:
    from penstock.arrow.grouping import Grouped

_SUB_BITS: Final = 16
_SUB_LIMIT: Final = 1 << 47


@dataclass(frozen=True)
class Order:
    """The position of every row: four int64 arrays of equal length, compared from left to right."""

    time: Ints
    part: Ints
    offset: Ints
    sub: Ints

    def take(self, index: Any) -> Order:
        """The rows at `index` (integers, a slice or a mask)."""
        return Order(self.time[index], self.part[index], self.offset[index], self.sub[index])

    def narrow(self) -> Order:
        """The same with a constant column as one number, which is faster to take from."""
        return Order(*(np.broadcast_to(c[:1], c.shape) if len(c) and (c == c[0]).all() else c for c in self.columns()))

    def columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The arrays, most significant first."""
        return self.time, self.part, self.offset, self.sub

    @staticmethod
    def concat(orders: Sequence[Order]) -> Order:
        """One after the other."""
        return Order(*(np.concatenate(c) for c in zip(*(o.columns() for o in orders), strict=True)))


def with_order(schema: pa.Schema) -> pa.Schema:
    """A schema with the hidden columns that are a row's position."""
    return pa.schema([*schema, *(pa.field(n, pa.int64()) for n in ORDER)])


@dataclass(frozen=True)
class Keys:
    """The distinct keys of some rows.

    Attributes:
        columns: One Arrow array per key column, one entry per key.
        hashes: int64, xxhash64 of each key.
        codec: Encodes them as bytes.
    """

    columns: tuple[Any, ...]
    hashes: Ints
    codec: KeyCodec

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(map(key_values, self.columns)))

    def __len__(self) -> int:
        return len(self.hashes)

    @cached_property
    def encoded(self) -> list[bytes]:
        """Length and bytes of each key."""
        return self.codec.encode(self.columns)

    @cached_property
    def bins(self) -> list[bytes]:
        """The two bytes of each key's bin."""
        return [BIN_BYTES[b] for b in (self.hashes % BINS).tolist()]

    def state_keys(self, operator: int) -> list[bytes]:
        """The state key of every key for one operator."""
        op = bytes([operator])
        return [b + op + k for b, k in zip(self.bins, self.encoded, strict=True)]

    def take(self, index: Any) -> Keys:
        """The keys at `index` (integers)."""
        taken = to_indices(index)
        return Keys(tuple(c.take(taken) for c in self.columns), self.hashes[index], self.codec)

    def values(self) -> list[Any]:
        """The keys as Python values: a scalar for one column, a tuple for several."""
        lists = [values_of(c) for c in self.columns]
        return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


@dataclass(frozen=True)
class Rows:
    """Rows grouped by key and in order. A column is sorted when it is requested.

    Attributes:
        source: The user's columns, in another order and maybe with further rows.
        index: int64, n: the source's row at each position, or a layout of that; None: the same rows.
        order: Position of each row.
        keys: The g distinct keys.
        starts: int64, g + 1: first row of each key, and n.
    """

    source: pa.RecordBatch
    index: Ints | Grouped | None
    order: Order
    keys: Keys
    starts: Ints
    _columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def column(self, name: str) -> Any:
        """One of the user's columns as an Arrow array, n values."""
        if name not in self._columns:
            column = self.source.column(name)  # by name: an index of −1 would be the last column
            self._columns[name] = column if self.index is None else self._in_order(column)
        return self._columns[name]

    def _in_order(self, column: Any) -> Any:
        placed = None if self.index is None or isinstance(self.index, np.ndarray) else self.index.arrow(column)
        return column.take(to_indices(self._at)) if placed is None else placed

    @cached_property
    def _at(self) -> Ints:
        """int64, n: the source's row at each position."""
        assert self.index is not None
        return self.index if isinstance(self.index, np.ndarray) else self.index.at()

    def some(self, name: str, at: Ints) -> Any:
        """A few values of one of the user's columns."""
        if self.index is None or name in self._columns:
            return self.column(name).take(to_indices(at))
        return self.source.column(name).take(to_indices(self._at[at]))

    def timed(self, name: str | None) -> Rows:
        """These rows, with a column that is the event time and so need not be sorted again."""
        if name is not None:
            self._columns[name] = pa.array(self.order.time).view(self.source.schema.field(name).type)
        return self

    @property
    def data(self) -> pa.RecordBatch:
        """The user's columns, n rows."""
        if self.index is not None:
            columns = [self.column(name) for name in self.source.schema.names]
            object.__setattr__(self, "source", pa.RecordBatch.from_arrays(columns, schema=self.source.schema))
            object.__setattr__(self, "index", None)  # the unsorted ones are no longer needed
            self.__dict__.pop("_at", None)
        return self.source

    def of_keys(self, chosen: Any) -> Rows:
        """The rows of some keys (bool, g)."""
        sizes = np.diff(self.starts)
        rows = np.flatnonzero(np.repeat(chosen, sizes))
        starts = np.concatenate(([0], np.cumsum(sizes[chosen])))
        return Rows(
            self.data.take(to_indices(rows)), None, self.order.take(rows), self.keys.take(np.flatnonzero(chosen)), starts
        )

    def between(self, begin: Ints, end: Ints) -> Rows:
        """The rows from `begin` up to `end` of each key (int64, g); keys of which there are none are left out."""
        sizes = end - begin
        chosen = np.flatnonzero(sizes > 0)
        starts = np.concatenate(([0], np.cumsum(sizes[chosen])))
        at = np.repeat(begin[chosen] - starts[:-1], sizes[chosen]) + np.arange(starts[-1])
        return Rows(self.data, at, self.order.take(at), self.keys.take(chosen), starts)

    @cached_property
    def group(self) -> Ints:
        """int64, n: the key of each row."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.starts))

    def emit(self, columns: pa.RecordBatch | Mapping[str, Any], trigger: Any = None) -> Emitted:
        """Output rows.

        Args:
            columns: The output's columns.
            trigger: int64 ascending, for each output row the index of the row that triggered it; None if there is exactly one
                output row per row.

        Returns:
            The return value of an operator's `on_data`. The sub-index distinguishes rows of one trigger.

        Raises:
            OperatorError: The number of rows does not fit, or one record triggered more than 65,536 rows.
        """
        batch = columns if isinstance(columns, pa.RecordBatch) else pa.RecordBatch.from_pydict(dict(columns))
        if trigger is None:
            if batch.num_rows != len(self):
                raise OperatorError(
                    f"An operator returned {batch.num_rows} rows for {len(self)}; say which triggered which with `trigger`."
                )
            return Emitted(batch, self.order, self.group, self.keys)
        index = np.asarray(trigger, np.int64)
        return Emitted(batch, numbered(self.order.take(index), index), self.group[index], self.keys)


@dataclass(frozen=True)
class Emitted:
    """An operator's output: not yet grouped, each row with its position and its key (an index into `keys`)."""

    data: pa.RecordBatch
    order: Order
    group: Ints
    keys: Keys

    def __len__(self) -> int:
        return self.data.num_rows


def numbered(order: Order, trigger: Ints) -> Order:
    """Number the outputs of each trigger below the trigger's own sub-index, ascending."""
    if not len(trigger):
        return order
    new = np.flatnonzero(np.concatenate(([True], trigger[1:] != trigger[:-1])))
    nth = np.arange(len(trigger)) - np.repeat(new, np.diff(np.append(new, len(trigger))))
    if nth.max(initial=0) >= 1 << _SUB_BITS or order.sub.max(initial=0) >= _SUB_LIMIT:
        raise OperatorError(
            "One record triggered more than 65,536 rows (or more than three steps multiplied rows); aggregate before."
        )
    return Order(order.time, order.part, order.offset, (order.sub << _SUB_BITS) + nth)


def grouped(hashes: Ints, order: Order, chosen: Ints | None = None, codes: Ints | None = None) -> tuple[Ints, Ints, Order]:
    """Group rows by key, and sort each key's rows.

    Rows mostly arrive in order, so a stable sort by hash often suffices. If not, all columns are sorted. Rows of several files
    arrive in a few long runs, which are cheap to sort.

    Args:
        hashes: int64, n: xxhash64 of each row's key.
        order: Their positions.
        chosen: The selected rows (ascending); None for all.
        codes: int64, n: numbers that distinguish keys of one hash.

    Returns:
        The row at each position (int64), and the hashes and positions of these rows.
    """

    def permuted(by: list[Ints]) -> Ints:
        return lexicographic(by) if chosen is None else chosen[lexicographic([column[chosen] for column in by])]

    order = order.narrow()
    varying = [c for c in order.columns() if c.strides[0]]
    if codes is None and not (varying and in_long_runs(varying[0])):
        index = permuted([hashes])
        there, ordered = hashes[index], order.take(index)
        if ascending_within(there, ordered):
            return index, there, ordered
    index = permuted([hashes, *([codes] if codes is not None else []), *varying])
    return index, hashes[index], order.take(index)


def ascending_within(group: Ints, order: Order) -> bool:
    """Whether positions ascend within each run of equal `group`."""
    undecided = group[1:] == group[:-1]
    for column in order.columns():
        before, after = column[:-1], column[1:]
        if (undecided & (after < before)).any():
            return False
        undecided = undecided & (after == before)
    return True


def group_rows(
    data: pa.RecordBatch,
    order: Order,
    hashes: Ints,
    key_columns: Sequence[str] | Sequence[Any],
    codec: KeyCodec,
    chosen: Ints | None = None,
    timed_by: str | None = None,
) -> Rows:
    """Group and sort rows.

    Args:
        data: The user's columns, n rows in any order.
        order: Their positions.
        hashes: int64, n: xxhash64 of each row's key.
        key_columns: The key's columns: names of the user's columns, or n rows each.
        codec: The region's key codec.
        chosen: The selected rows (ascending); None for all.
        timed_by: The user's column that has the times of the positions.
    """
    n = len(hashes) if chosen is None else len(chosen)
    if n == 0:
        none = np.empty(0, np.int64)
        empty = Keys(tuple(pa.array([], f.type) for f in codec.schema), none, codec)
        return Rows(data.slice(0, 0), None, order.take(none), empty, np.zeros(1, np.int64))
    unsorted = [data.column(c) if isinstance(c, str) else c for c in key_columns]
    if n >= MANY and (rows := _in_runs(data, order, hashes, unsorted, codec, chosen)) is not None:
        return rows.timed(timed_by)

    def in_groups(codes: Ints | None = None) -> tuple[Ints, Ints, Order, list[Any], Any, Any]:
        index, there, ordered = grouped(hashes, order, chosen, codes)
        keys = [column.take(to_indices(index)) for column in unsorted]
        return index, there, ordered, keys, *_changes(there, keys)

    index, there, ordered, keys, new_hash, new_key = in_groups()
    if (new_key & ~new_hash).any():  # two keys with one hash: distinguish them by their values
        codes = pc.rank(pa.array(codec.encode(unsorted), pa.binary()), tiebreaker="dense").to_numpy().astype(np.int64)
        index, there, ordered, keys, new_hash, new_key = in_groups(codes)
    first = np.flatnonzero(new_hash | new_key)
    at_first = to_indices(first)
    distinct = Keys(tuple(k.take(at_first) for k in keys), there[first], codec)
    known = {name: key for name, key in zip(key_columns, keys, strict=True) if isinstance(name, str)}
    return Rows(data, index, ordered, distinct, np.append(first, n), known).timed(timed_by)


def _in_runs(
    data: pa.RecordBatch, order: Order, hashes: Ints, keys: Sequence[Any], codec: KeyCodec, chosen: Ints | None
) -> Rows | None:
    """As `group_rows`, for many rows in a few runs and a key of one whole number; None if they are not such."""
    from penstock.arrow.grouping import grouped_runs  # noqa: PLC0415  (numba takes a fifth of a second to load)

    if len(keys) != 1 or not pa.types.is_integer(keys[0].type) or keys[0].null_count:
        return None
    values = hashes if chosen is None else hashes[chosen]
    found = grouped_runs(values, chosen, order.columns(), keys[0].cast(pa.int64()).to_numpy())
    if found is None:
        return None
    distinct = Keys((keys[0].take(to_indices(found.heads)),), found.placing.values, codec)
    return Rows(data, found, Order(*map(found.numbers, order.narrow().columns())), distinct, found.placing.starts)


def _changes(hashes: Ints, keys: Sequence[Any]) -> tuple[Any, Any]:
    """For each row: whether its hash, and whether its key differs from the previous row's."""
    new_hash = np.concatenate(([True], hashes[1:] != hashes[:-1]))
    new_key = np.zeros(len(hashes), bool)
    for key in keys:
        before, after = key[:-1], key[1:]
        same = pc.or_(pc.fill_null(pc.equal(before, after), False), pc.and_(pc.is_null(before), pc.is_null(after)))
        if pa.types.is_floating(key.type):
            same = pc.or_(same, pc.and_(pc.fill_null(pc.is_nan(before), False), pc.fill_null(pc.is_nan(after), False)))
        new_key[1:] |= ~np.asarray(same.to_numpy(zero_copy_only=False), bool)
    return new_hash, new_key


def regroup(parts: Sequence[Emitted], schema: pa.Schema, codec: KeyCodec) -> Rows:
    """Group an operator's output for the next operator."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return group_rows(
            pa.RecordBatch.from_pylist([], schema=schema),
            Order(*(np.empty(0, np.int64) for _ in range(4))),
            np.empty(0, np.int64),
            [],
            codec,
        )
    if len(parts) == 1 and _already(parts[0]):
        return _as_rows(parts[0])
    data = concat_batches([p.data.cast(schema) for p in parts])
    keys = [pa.concat_arrays([p.keys.columns[i].take(to_indices(p.group)) for p in parts]) for i in range(len(codec.schema))]
    hashes = np.concatenate([p.keys.hashes[p.group] for p in parts])
    return group_rows(data, Order.concat([p.order for p in parts]), hashes, keys, codec)


def _already(part: Emitted) -> bool:
    """Whether rows are grouped and in order. Not if a key may occur twice, as in `KeyedState.keys_of`."""
    hashes, group = part.keys.hashes, part.group
    if not (hashes[1:] > hashes[:-1]).all() or not (group[1:] >= group[:-1]).all():
        return False
    return ascending_within(group, part.order)


def _as_rows(part: Emitted) -> Rows:
    first = np.flatnonzero(np.concatenate(([True], part.group[1:] != part.group[:-1])))
    present = part.group[first]
    keys = part.keys if len(present) == len(part.keys) else part.keys.take(present)
    return Rows(part.data, None, part.order, keys, np.append(first, len(part)))


def running_max(group: Ints, values: Ints) -> Any:
    """The greatest value so far within each run of equal `group`."""
    if not len(values):
        return values
    rank = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    least = int(values.min())
    width = int(values.max()) - least + 1
    if width * (int(rank[-1]) + 1) < 1 << 62:  # each run in its own range, so that one running maximum serves all
        lift = rank * width
        return np.maximum.accumulate(values - least + lift) - lift + least
    out = values.copy()
    for i in range(1, len(out)):
        if group[i] == group[i - 1] and out[i] < out[i - 1]:
            out[i] = out[i - 1]
    return out
