"""Sorts a worker's events by key and order columns, for `penstock.spark.patterns.match`.

If they do not fit in memory, sorted runs are written to disk and divided into ranges that do. A range is read from every run,
sorted and yielded.

One number distinguishes keys, usually a hash. Keys with one hash are compared when they meet.

Read next: `penstock.patterns.batch`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrow.columns import MANY, coalesce_batches, concat_batches, lexicographic, to_indices
from penstock.errors import RecordError
from penstock.patterns.comparing import ordered
from penstock.patterns.windows import micros
from penstock.routing.hashing import spark_xxhash64

if TYPE_CHECKING:
    from penstock.arrow.grouping import GroupLayout

HELD_BYTES: Final = 128 << 20
"""How much of its events a worker sorts at a time; it needs three times as much memory to do so."""
GIVEN_ROWS: Final = 1 << 18
_SAMPLES: Final = 4  # per run and range
_PLACE: Final = "__ps_sort"
_PLACED_BY: Final = 5  # most key and order columns
LEAST: Final = np.iinfo(np.int64).min

Ints = NDArray[np.int64]


def is_whole(kind: pa.DataType) -> bool:
    """Whether a type's values can be compared and ordered as whole numbers."""
    return pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)


def is_sortable(kind: pa.DataType) -> bool:
    """Whether a column of the type can be sorted here."""
    return is_whole(kind) or pa.types.is_floating(kind)


@dataclass(frozen=True, slots=True)
class Sorting:
    """The columns that sort events.

    Attributes:
        by: Columns of types that are `is_sortable`; if there are keys, the first distinguishes them.
        keys: The key columns, if the first is a hash of them. Events without it get it as their last column.
        held_bytes: The amount sorted at a time.
    """

    by: tuple[str, ...]
    keys: tuple[str, ...] = ()
    held_bytes: int = HELD_BYTES

    def sorted(self, batches: Iterable[pa.RecordBatch], folder: str | None = None) -> Iterator[pa.RecordBatch]:
        """The events in order, however many. Nulls and events of equal position have no defined order.

        Args:
            batches: The events.
            folder: The folder for files; None: the system's.

        Raises:
            RecordError: Two keys have one hash, and more events than are sorted at a time.
        """
        batches = iter(batches)
        first = next(coalesce_batches(batches, sys.maxsize, self.held_bytes), None)
        if first is None:
            return
        another = next(batches, None)
        if another is None:
            yield from self._given(self._hashed(first))
            return
        with tempfile.TemporaryDirectory(prefix="penstock-sort-", dir=folder) as own:
            rest = coalesce_batches(chain([first, another], batches), sys.maxsize, self.held_bytes)
            del first
            runs = [self._run(self._hashed(piece), Path(own, str(i))) for i, piece in enumerate(rest)]
            last: pa.RecordBatch | None = None
            for rows in self._ranges(runs):
                given = self._given(rows)
                head = next(given)
                self._check_apart(last, head)
                for last in chain([head], given):
                    yield last

    def _hashed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self.keys or self.by[0] in rows.schema.names:
            return rows
        return rows.append_column(self.by[0], pa.array(spark_xxhash64(rows.select(list(self.keys)).columns)))

    def _numbers(self, rows: pa.RecordBatch) -> list[Ints]:
        return [_numbers(rows.column(name)) for name in self.by]

    def _index(self, rows: pa.RecordBatch, numbers: Sequence[Ints], placing: GroupLayout | None) -> Any:
        """The indices of the rows in order."""
        index = lexicographic(numbers) if placing is None else placing.at()
        if not self.keys:
            return to_indices(index)
        hashes = numbers[0][index]
        keys = rows.select(list(self.keys)).take(to_indices(index))
        if not (_differ(keys) & (hashes[1:] == hashes[:-1])).any():
            return to_indices(index)
        names = [f"{_PLACE}{i}" for i in range(len(numbers))]
        table = pa.table([*map(pa.array, numbers), *(rows.column(key) for key in self.keys)], names=[*names, *self.keys])
        return pc.sort_indices(table, [(name, "ascending") for name in (names[0], *self.keys, *names[1:])])

    def _given(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = self._numbers(rows)
        placing = _placing(numbers)
        if placing is not None and not self.keys:
            yield from _in_places(rows, self.by[0], placing)
            return
        index = self._index(rows, numbers, placing)
        for begin in range(0, len(index), GIVEN_ROWS):
            yield rows.take(index.slice(begin, GIVEN_ROWS))

    def _run(self, rows: pa.RecordBatch, path: Path) -> _Run:
        """Write events to a file, sorted by numbers alone, so that it can be divided by numbers."""
        numbers = self._numbers(rows)
        index = lexicographic(numbers)
        rows = rows.take(to_indices(index))
        for i, number in enumerate(numbers):
            rows = rows.append_column(f"{_PLACE}{i}", pa.array(number[index]))
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        read = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        width = len(numbers)
        return _Run(read.select(read.schema.names[:-width]), [c.to_numpy() for c in read.columns[-width:]])

    def _ranges(self, runs: Sequence[_Run]) -> Iterator[pa.RecordBatch]:
        """The same ranges of all runs, of about the size that is held at a time."""
        rows = sum(run.rows.num_rows for run in runs)
        held = max(1, rows * self.held_bytes // sum(run.rows.nbytes for run in runs))
        step = max(1, held // (_SAMPLES * len(runs)))
        samples = [np.concatenate([run.numbers[i][::step] for run in runs]) for i in range(len(self.by))]
        index = lexicographic(samples)[:: max(1, held // step)]
        bounds = list(zip(*(sample[index].tolist() for sample in samples), strict=True))[1:]
        begins = [0] * len(runs)
        for before, bound in zip([(None,), *bounds], bounds, strict=False):
            # A key is divided only if it has more events than are held at a time.
            at = bound if bound[0] == before[0] or len(bound) == 1 else (bound[0], *[LEAST] * (len(bound) - 1))
            ends = [run.before(at) for run in runs]
            yield from _joined(runs, begins, ends)
            begins = ends
        yield from _joined(runs, begins, [run.rows.num_rows for run in runs])

    def _check_apart(self, last: pa.RecordBatch | None, first: pa.RecordBatch) -> None:
        """Check that events that continue the last batch's hash have its key."""
        if last is None or not self.keys:
            return
        names = [self.by[0], *self.keys]
        pair = concat_batches([last.select(names).slice(last.num_rows - 1), first.select(names).slice(0, 1)])
        hashes = pair.column(0)
        if hashes[0] == hashes[1] and _differ(pair.select(list(self.keys)))[0]:
            raise RecordError(
                f"Two keys, {pair.slice(0, 1).to_pylist()[0]} and {pair.slice(1).to_pylist()[0]}, have the same hash, and more events than "
                "are sorted at a time; name a further column in PARTITION BY, of which each of them has one value."
            )


@dataclass(frozen=True, slots=True)
class _Run:
    """Sorted events on disk; `numbers` sort them."""

    rows: pa.RecordBatch
    numbers: list[Ints]

    def before(self, bound: Sequence[int]) -> int:
        """The number of events before a bound."""
        begin, end = 0, self.rows.num_rows
        for column, value in zip(self.numbers, bound, strict=True):
            here = column[begin:end]
            begin, end = begin + int(np.searchsorted(here, value)), begin + int(np.searchsorted(here, value, "right"))
        return begin


def _joined(runs: Sequence[_Run], begins: Sequence[int], ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
    found = [run.rows.slice(b, e - b) for run, b, e in zip(runs, begins, ends, strict=True) if e > b]
    if found:
        yield concat_batches(found)


def _placing(numbers: Sequence[Ints]) -> GroupLayout | None:
    """The layout of the rows; None if they are few, or do not arrive in a few ordered runs, as events of files often do."""
    if len(numbers[0]) < MANY or not 2 <= len(numbers) <= _PLACED_BY:
        return None
    from penstock.arrow.grouping import placing  # noqa: PLC0415  (as in `penstock.arrow.columns.ascending`)

    key, *order = numbers
    same = np.zeros(len(key), np.int64)
    position: Any = (*order, *[same] * (_PLACED_BY - len(numbers)))
    return placing(key, np.arange(len(key)), position)


def _in_places(rows: pa.RecordBatch, by: str, placing: GroupLayout) -> Iterator[pa.RecordBatch]:
    """The rows in order, some at a time; columns without a fixed width are gathered.

    A gather waits for memory and takes three times as long as a scatter.
    """
    placed = [_put(name == by, column, placing) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
    index: Any = to_indices(placing.at()) if any(column is None for column in placed) else None
    for begin in range(0, len(rows), GIVEN_ROWS):
        here: Any = None if index is None else index.slice(begin, GIVEN_ROWS)
        pairs = zip(placed, rows.columns, strict=True)
        arrays = [column.take(here) if there is None else there.slice(begin, GIVEN_ROWS) for there, column in pairs]
        yield pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _put(is_key: bool, column: Any, placing: GroupLayout) -> Any:
    """A column in order; None if its values have no fixed width."""
    if is_key and pa.types.is_integer(column.type) and not column.null_count:
        return pa.array(np.repeat(placing.values.astype(column.type.to_pandas_dtype()), np.diff(placing.starts)))
    return placing.put_arrow(column)


def _numbers(column: Any) -> Ints:
    """Whole numbers in the order of the values; those of nulls have no meaning."""
    if pa.types.is_floating(column.type):
        values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        return ordered(np.where(np.isnan(values), np.nan, values))
    if column.null_count:
        column = pc.coalesce(column, pa.scalar(0, column.type))
    return micros(column)


def _differ(keys: pa.RecordBatch) -> NDArray[np.bool_]:
    """Where a row's key differs from the previous row's, bool[rows - 1]."""
    found = np.zeros(max(0, keys.num_rows - 1), np.bool_)
    for column in keys.columns:
        found |= different(column[1:], column[:-1])
    return found


def different(one: Any, other: Any) -> NDArray[np.bool_]:
    """Where the keys of two columns differ; all NaN are one key, as in Spark."""
    differ = pc.not_equal(one, other)
    if pa.types.is_floating(one.type):
        differ = pc.and_not(differ, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return np.asarray(differ.to_numpy(zero_copy_only=False), np.bool_)


__all__ = ["Sorting", "different", "is_sortable", "is_whole"]
