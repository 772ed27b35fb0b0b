"""Sorting of values with few distinct ones, compiled: number them as they are met, count them, and write each to its position.

Separate from `penstock.arrow.columns`, because numba takes a fifth of a second to load.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.jit import inlined, jit

_DISTINCT: Final = 1 << 17  # beyond, counters exceed the processor's cache, and NumPy's sorts are as fast
_SHARE: Final = 4  # least values per distinct one for a gain
_RUNS: Final = 64  # or ranges; more are sorted
_PROBES: Final = 4  # per value, on average; random values need one or two
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Knuth's multiplicative hashing

Ints = NDArray[np.int64]


def by_counting(values: Ints) -> Ints | None:
    """The stable permutation that sorts values; None if too many are distinct.

    Args:
        values: int64, n.
    """
    counted = _counted(values)
    if counted is None:
        return None
    numbers, distinct, counts = counted
    return scattered(np.arange(len(values)), numbers, _places(np.argsort(distinct), counts))


def scattered(column: NDArray[Any], numbers: NDArray[np.int32], firsts: Ints) -> NDArray[Any]:
    """A column with the rows of each number together, in order.

    Args:
        column: Whole numbers, n.
        numbers: int32, n: the number of each row, from 0.
        firsts: int64: the first position of each number.
    """
    placed = np.empty(len(numbers), column.dtype)
    _place(column, numbers, firsts.copy(), placed)
    return placed


class GroupLayout(NamedTuple):
    """The positions of rows that arrive in a few ordered runs, grouped by value and in order.

    Attributes:
        numbers: int32, n: the number of each row's value.
        firsts: int64, g: the first position of each value, by number.
        stretches: Ranges of rows, in the order in which they are merged.
        values: int64, g: the values, ascending.
        starts: int64, g + 1: the first position of each, and n.
    """

    numbers: NDArray[np.int32]
    firsts: Ints
    stretches: list[slice]
    values: Ints
    starts: Ints

    def put(self, column: NDArray[Any], rows: Ints | None = None) -> NDArray[Any]:
        """A column of whole numbers scattered to the rows' positions: n values, or more if `rows` (int64, n) selects them."""
        placed, nexts = np.empty(len(self.numbers), column.dtype), self.firsts.copy()
        for stretch in self.stretches:
            if rows is None:
                _place(column[stretch], self.numbers[stretch], nexts, placed)
            else:
                _place_some(column, rows[stretch], self.numbers[stretch], nexts, placed)
        return placed

    def at(self) -> Ints:
        """int64, n: the row at each position."""
        return self.put(np.arange(len(self.numbers)))

    def put_arrow(self, column: Any, rows: Ints | None = None) -> Any:
        """An Arrow column scattered like `put`; None if its values have no fixed width, or if there are nulls."""
        if not _is_fixed(column):
            return None
        return pa.array(self.put(column.view(f"int{column.type.bit_width}").to_numpy(), rows)).view(column.type)


def placing(values: Ints, rows: Ints, position: tuple[Ints, Ints, Ints, Ints]) -> GroupLayout | None:
    """Lay out rows that arrive in a few ordered runs, as those of files do. They are merged by whole ranges, not one by one.

    Args:
        values: int64, n: the values that group the selected rows.
        rows: int64, n: the selected rows.
        position: Time, part, offset and sub-index of all rows, int64 each; compared from left to right.

    Returns:
        None if the rows do not arrive so, or if too many values are distinct.
    """
    stretches = _stretches(rows, position)
    counted = None if stretches is None else _counted(values)
    if stretches is None or counted is None:
        return None
    numbers, distinct, counts = counted
    by_value = np.argsort(distinct)
    firsts = _places(by_value, counts)
    return GroupLayout(numbers, firsts, stretches, distinct[by_value], np.append(firsts[by_value], len(rows)))


class Grouped(NamedTuple):
    """Rows grouped by a value, each group in order.

    Attributes:
        rows: int64, n: the rows, as they arrive; None: all.
        placing: Their positions.
        heads: int64, g: one row of each group.
    """

    rows: Ints | None
    placing: GroupLayout
    heads: Ints

    def at(self) -> Ints:
        """int64, n: the row at each position."""
        return self.placing.at() if self.rows is None else self.placing.put(self.rows)

    def numbers(self, column: Ints) -> Ints:
        """A column of all rows, int64, in order; a constant one (of stride 0) stays so."""
        return self.placing.put(column, self.rows) if column.strides[0] else column[: len(self.placing.numbers)]

    def arrow(self, column: Any) -> Any:
        """An Arrow column of all rows, in order; None as `GroupLayout.put_arrow`."""
        return self.placing.put_arrow(column, self.rows)


def grouped_runs(values: Ints, rows: Ints | None, position: tuple[Ints, Ints, Ints, Ints], key: Ints) -> Grouped | None:
    """Group rows as `placing` does.

    Args:
        values: int64, n: the values that group the selected rows.
        rows: int64, n: the selected rows; None: all.
        position: As there.
        key: int64 of all rows: must be constant within a group.

    Returns:
        None as there, or if a group has two keys.
    """
    placed = placing(values, np.arange(len(values)) if rows is None else rows, position)
    if placed is None:
        return None
    heads = np.full(len(placed.values), -1, np.int64)
    if not _is_alike(key if rows is None else key[rows], placed.numbers, heads):
        return None
    heads = heads[np.argsort(placed.firsts)]
    return Grouped(rows, placed, heads if rows is None else rows[heads])


def _stretches(rows: Ints, position: tuple[Ints, Ints, Ints, Ints]) -> list[slice] | None:
    """The ranges of rows in merged order; None if there are many.

    If two runs have a row at one position, neither advances, so there are too many: a stable sort must decide.
    """
    begins = np.empty(_RUNS, np.int64)
    count = _begins(rows, *position, begins)
    if count < 0:
        return None
    runs = list(zip(begins[:count].tolist(), [*begins[1:count].tolist(), len(rows)], strict=True))
    found: list[slice] = []
    while runs and len(found) < _RUNS:
        heads = {begin: tuple(int(column[rows[begin]]) for column in position) for begin, _ in runs}
        (begin, end), *runs = sorted(runs, key=lambda run: heads[run[0]])
        if not runs:
            return [*found, slice(begin, end)]
        upto = _upto(rows, *position, begin, end, rows[runs[0][0]])
        found.append(slice(begin, upto))
        if upto < end:
            runs.append((upto, end))
    return None


def _counted(values: Ints) -> tuple[NDArray[np.int32], Ints, Ints] | None:
    """Each value's number in order of appearance; the distinct values; their counts. None as `by_counting`."""
    n = len(values)
    most = max(1, min(_DISTINCT, n // _SHARE))
    bits = most.bit_length() + 1  # at most half of the table is filled
    table = np.full(1 << bits, -1, np.int32)
    numbers, distinct = np.empty(n, np.int32), np.empty(most, np.int64)
    found = _number(values, 64 - bits, table, distinct, numbers)
    return None if found < 0 else (numbers, distinct[:found], np.bincount(numbers, minlength=found))


def _places(by_value: Ints, counts: Ints) -> Ints:
    """The first position of each value, once they are sorted."""
    nexts = np.empty(len(counts), np.int64)
    nexts[by_value] = np.cumsum(counts[by_value]) - counts[by_value]
    return nexts


def _is_fixed(column: Any) -> bool:
    kind = column.type
    fixed = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return fixed and not column.null_count and kind.bit_width in (8, 16, 32, 64)


@jit
def _number(values: Ints, shift: int, table: NDArray[np.int32], distinct: Ints, numbers: NDArray[np.int32]) -> Any:
    """Number values in order of appearance.

    Args:
        values: n.
        shift: 64 less the bits of a slot in the table.
        table: -1 everywhere, of a power of two; holds the numbers afterwards, with linear probing.
        distinct: Room for the distinct values.
        numbers: n; holds each value's number afterwards.

    Returns:
        The number of distinct values; -1 if there is no room for them, or if too many collide.
    """
    count, mask = 0, len(table) - 1
    left = _PROBES * len(values)
    for i in range(len(values)):
        value = values[i]
        at = np.int64((np.uint64(value) * GOLDEN) >> np.uint64(shift))
        number = table[at]
        while number >= 0 and distinct[number] != value:
            at = (at + 1) & mask
            left -= 1
            number = table[at]
        if number < 0:
            if count == len(distinct):
                return -1
            number = np.int32(count)
            table[at], distinct[count] = number, value
            count += 1
        if left < 0:
            return -1
        numbers[i] = number
    return count


@jit
def _place(column: NDArray[Any], numbers: NDArray[np.int32], nexts: Ints, placed: NDArray[Any]) -> None:
    """Write each row to the next position of its value; `nexts` is changed."""
    for i in range(len(numbers)):
        number = numbers[i]
        placed[nexts[number]] = column[i]
        nexts[number] += 1


@jit
def _place_some(column: NDArray[Any], rows: Ints, numbers: NDArray[np.int32], nexts: Ints, placed: NDArray[Any]) -> None:
    """Write the selected rows to the next position of each one's value; `nexts` is changed."""
    for i in range(len(numbers)):
        number = numbers[i]
        placed[nexts[number]] = column[rows[i]]
        nexts[number] += 1


@inlined  # type: ignore[untyped-decorator]
def _is_before(a: Any, b: Any, time: Ints, part: Ints, offset: Ints, sub: Ints) -> Any:
    """Whether row `a` comes before row `b`."""
    if time[a] != time[b]:
        return time[a] < time[b]
    if part[a] != part[b]:
        return part[a] < part[b]
    if offset[a] != offset[b]:
        return offset[a] < offset[b]
    return sub[a] < sub[b]


@jit
def _begins(rows: Ints, time: Ints, part: Ints, offset: Ints, sub: Ints, begins: Ints) -> Any:
    """Write the first row of each run that does not descend. Returns how many there are; -1 if there is no room."""
    count = 0
    for i in range(len(rows)):
        if i == 0 or _is_before(rows[i], rows[i - 1], time, part, offset, sub):
            if count == len(begins):
                return -1
            begins[count] = i
            count += 1
    return count


@jit
def _upto(rows: Ints, time: Ints, part: Ints, offset: Ints, sub: Ints, begin: int, end: int, bound: int) -> Any:
    """The first row of a run, from `begin` to `end`, that is not before the row `bound`."""
    while begin < end:
        middle = (begin + end) // 2
        if _is_before(rows[middle], bound, time, part, offset, sub):
            begin = middle + 1
        else:
            end = middle
    return begin


@jit
def _is_alike(key: Ints, numbers: NDArray[np.int32], heads: Ints) -> Any:
    """Whether all rows of each group have one key. `heads`, initially -1, holds the first row of each number afterwards."""
    for i in range(len(numbers)):
        number = numbers[i]
        if heads[number] < 0:
            heads[number] = i
        elif key[i] != key[heads[number]]:
            return False
    return True


__all__ = ["GroupLayout", "Grouped", "by_counting", "grouped_runs", "placing"]
