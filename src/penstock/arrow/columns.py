"""Arrow columns and batches: convert, join, sort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.errors import OperatorError
from penstock.types import FIRST_MOMENT, LAST_MOMENT

UTC: Final = pa.timestamp("us", "UTC")
"""The type of times that have a zone, wherever penstock makes them."""
_FEW: Final = 1 << 12  # below, one comparing sort is as fast
MANY: Final = 1 << 16  # from here on counting pays
_LONG_RUNS: Final = 64  # average run length from which that sort is cheap
GATHERED_ROWS: Final = 1 << 16
GATHERED_BYTES: Final = 64 << 20
Integers = NDArray[np.int64] | NDArray[np.bool_]
EPOCH: Final[Any] = pa.scalar(0, UTC).as_py()
"""1970 as Arrow gives it. Times are compared thirty times as fast if their zones are one object, and those of columns have this one."""


class HasColumns(Protocol):
    """An Arrow batch, or another table with columns by name."""

    def column(self, name: str, /) -> Any:
        """A column, from which values can be taken."""


def values_of(column: Any) -> list[Any]:
    """A column's values as `to_pylist` gives them, but times thirty times as fast (Arrow looks up the time zone for every
    value).

    Raises:
        OverflowError: Python cannot represent a time.
    """
    if column.type != UTC:
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except OverflowError as error:
            raise _beyond(error) from error
    since: Any = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    try:
        values: list[Any] = list(map(EPOCH.__add__, since.astype("timedelta64[us]").tolist()))
    except OverflowError as error:
        raise _beyond(error) from error
    for i in np.flatnonzero(column.is_null()).tolist() if column.null_count else ():
        values[i] = None
    return values


def _beyond(error: Exception) -> OverflowError:
    return OverflowError(
        f"a time is outside of the years 1 to 9999, which Python cannot represent ({error}); "
        "leave such records out with where(...) before a step that is written in Python"
    )


def within_calendar(column: Any) -> Any:
    """A column whose times beyond Python's range are replaced by the nearest within it; other columns as they are."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
        return column
    micros = column.cast(pa.int64())
    first, last = (pa.scalar(moment, pa.int64()) for moment in (FIRST_MOMENT, LAST_MOMENT))
    return pc.max_element_wise(pc.min_element_wise(micros, last, skip_nulls=False), first, skip_nulls=False).cast(column.type)


def to_indices(index: Any) -> Any:
    """Row numbers for Arrow's ``take``."""
    return pa.array(index)


def key_values(column: Any) -> Any:
    """A column of keys for output: −0.0 and 0.0 are one key, shown as 0.0."""
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def concat_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """The rows of all batches, one after the other.

    Args:
        batches: All of one schema.
        schema: The schema, if there may be no batch.

    Raises:
        OperatorError: A column of text exceeds what an Arrow array can address. (A table would use a second chunk.)
    """
    if len(batches) == 1:
        return batches[0]
    if not batches:
        assert schema is not None
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    except pa.ArrowInvalid as error:
        if "overflow" not in str(error):
            raise
        rows = sum(batch.num_rows for batch in batches)
        raise OperatorError(
            f"{rows:,} rows that one worker gets at once have more than 2 GiB of text in one column; "
            "read less per epoch (max_files_per_epoch) or use more workers."
        ) from error
    return joined


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in the columns of `schema`, found by name: a missing column is null, a further one is dropped.

    Args:
        rows: The rows; not modified.
        schema: The columns; existing ones are cast to its types.
    """
    if rows.schema.equals(schema):
        return rows
    there = set(rows.schema.names)
    columns: list[Any] = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def coalesce_batches(
    batches: Iterable[pa.RecordBatch], rows: int = GATHERED_ROWS, size: int = GATHERED_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches. Spark hands over small ones, see `penstock.spark.session.local.HANDING`.

    Args:
        batches: All of one schema; empty ones are dropped.
        rows: A batch has at least this many rows,
        size: or this many bytes.
    """
    held: list[pa.RecordBatch] = []
    count = filled = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
            filled += batch.nbytes
        if count >= rows or filled >= size:
            count = filled = 0
            yield _emptied(held)
    if held:
        yield _emptied(held)


def _emptied(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of a list of batches, which is emptied first so that it holds no reference to them."""
    joined = concat_batches(held)
    held.clear()
    return joined


def concat(*parts: Any) -> Any:
    """Join Arrow arrays of binary, or of large_binary, row by row."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", parts[0].type))


def lexicographic(columns: Sequence[Integers]) -> NDArray[np.int64]:
    """The stable permutation that sorts rows by several columns, the first being most significant.

    As ``numpy.lexsort`` with the columns reversed, which takes two or three times as long.
    """
    *before, index = columns
    index = ascending(index)
    for column in reversed(before):
        index = index[ascending(column[index])]
    return index


def in_long_runs(values: Integers) -> bool:
    """Whether values are unsorted but ascend in long runs, so that sorting them is cheap."""
    return 0 < int(np.count_nonzero(values[1:] < values[:-1])) < len(values) // _LONG_RUNS


def ascending(values: Integers) -> NDArray[np.int64]:
    """The stable permutation that sorts values.

    Many values with few distinct ones are sorted by counting. Otherwise: NumPy sorts 16 bits by counting and 64 by comparing,
    which is fast only for almost sorted input. Two passes sort by the upper 32 of the bits that differ; a comparing sort does
    the rest.
    """
    values = values.astype(np.int64, copy=False)
    if not (values[1:] < values[:-1]).any():
        return np.arange(len(values))
    if len(values) < _FEW or in_long_runs(values):
        return np.argsort(values, kind="stable")
    if len(values) >= MANY:
        from penstock.arrow.grouping import by_counting  # noqa: PLC0415  (numba takes a fifth of a second to load)

        counted = by_counting(values)
        if counted is not None:
            return counted
    least = int(values.min())
    bits = (int(values.max()) - least).bit_length()
    lower = max(0, bits - 32)
    digits = (values.view(np.uint64) - np.uint64(least % (1 << 64))) >> np.uint64(lower)
    index = np.argsort(digits.astype(np.uint16), kind="stable")
    if bits > 16:
        index = index[np.argsort((digits >> np.uint64(16)).astype(np.uint16)[index], kind="stable")]
    if lower:
        index = index[np.argsort(values[index], kind="stable")]
    return index
