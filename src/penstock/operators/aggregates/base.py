"""The contract of aggregates: mergeable state in columns, and kernels that work on many groups at once.

A `Kernel` is what a user declares (``sum("delay")``). Bound to the type of its column it becomes a `Bound`, which lifts rows to
partial states, reduces the partial states of each group to one, and finishes states to results. A state is a tuple of columns,
one array per entry of `Bound.fields`, one row per state. Partial states have the same form wherever they come from: rows of an
epoch, Spark's JVM (`Bound.sql`, `Bound.from_sql`) or storage. So order and grouping of merges never matter.

Read next: `penstock.operators.aggregates.basic`, then `penstock.operators.aggregates.codec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import values_of
from penstock.errors import DeclarationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Columns: TypeAlias = tuple[Array, ...]
Order: TypeAlias = tuple[Array, Array, Array, Array]
ArrowValues: TypeAlias = Any  # pa.Array | pa.ChunkedArray; the stubs make both generic in the scalar type, unknown here

INT64 = np.dtype(np.int64)
FLOAT64 = np.dtype(np.float64)
BOOL = np.dtype(np.bool_)
OBJECT = np.dtype(object)

_WORD = (1 << 64) - 1


class Bound(ABC):
    """An aggregate bound to the type of its column: the bulk kernels.

    No method modifies its arguments; results may share memory with them.

    Attributes:
        output_type: Arrow type of the result.
        fields: Type of each state column; `OBJECT` for Python objects.
    """

    output_type: pa.DataType
    fields: tuple[np.dtype[Any], ...]

    @abstractmethod
    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        """Turn rows into partial states, one per row.

        Args:
            values: The column, n values; None if the aggregate has no column.
            order: The four int64 order columns of the rows.
            n: Number of rows.

        Returns:
            State columns of n rows.
        """

    @abstractmethod
    def reduce(self, columns: Columns, starts: Array) -> Columns:
        """Merge the states of each group to one.

        Args:
            columns: State columns whose rows are sorted by group.
            starts: int64, index of the first row of each group, strictly ascending from 0.

        Returns:
            State columns with one row per group.
        """

    @abstractmethod
    def finish(self, columns: Columns) -> Any:
        """The results of states, as an Arrow array of `output_type`, one per state.

        Raises:
            StateError: A result does not fit its type. The states are unchanged.
        """

    widens: ClassVar[bool] = True
    """Whether states over a narrower type of the column can be taken over, by `widened`."""

    def widened(self, columns: Columns, factor: int) -> Columns:
        """States over a narrower type, cast to `fields`, as states over this type.

        Args:
            columns: The state columns.
            factor: What unscaled numbers of decimals are to be multiplied by; 1 for all other types.
        """
        del factor
        return columns

    remedy: ClassVar[str] = "cast the column before"
    """What to do if a result does not fit, as the end of a sentence."""

    def too_great(self, columns: Columns) -> Array | None:
        """The results (bool) that do not fit their type, which `finish` would refuse; None: that cannot happen."""
        return None

    def without(self, columns: Columns, which: Array) -> Columns:
        """The states, with those of `which` (bool) reset to no values. Their last column counts the values."""
        return (*columns[:-1], np.where(which, 0, columns[-1]))

    def shown(self, columns: Columns) -> Any:
        """As `finish`; a result that does not fit is null."""
        over = self.too_great(columns)
        return self.finish(columns if over is None else self.without(columns, over))

    def zero(self, n: int) -> Columns:
        """States of no rows, n of them: merging one changes nothing."""
        return tuple(objects([None] * n) if dtype == OBJECT else np.zeros(n, dtype) for dtype in self.fields)

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        """``reduce(lift(values, order, n), starts)``, where possible by a shorter way."""
        return self.reduce(self.lift(values, order, n), starts)

    def sql(self, column_sql: str | None, order_sql: tuple[str, str, str, str]) -> list[str] | None:
        """Spark SQL aggregate expressions that compute a partial state inside a GROUP BY.

        Args:
            column_sql: Expression of the column, of the bound type; None if the aggregate has no column.
            order_sql: Expressions of the four order columns.

        Returns:
            Expressions whose results `from_sql` takes; None if the JVM cannot combine this aggregate.
        """
        return None

    def from_sql(self, arrays: list[Any]) -> Columns:
        """State columns from the Arrow columns of the expressions of `sql`, one row per partial state."""
        raise StateError(f"{type(self).__name__} has no partial states in SQL; send it rows instead.")


class Kernel(ABC):
    """An aggregate as declared: a frozen, picklable value.

    Attributes:
        column: The column it reads; None if it only counts rows.
    """

    column: str | None

    def describe(self) -> str:
        """The aggregate as text; equal for equal meaning."""
        return repr(self)

    @abstractmethod
    def bind(self, input_type: pa.DataType | None) -> Bound:
        """Bind to the Arrow type of the column; None or ``pa.null()`` if unknown.

        Raises:
            DeclarationError: The aggregate does not accept that type. Nothing was changed.
        """


def output_field(name: str, bound: Bound) -> Any:
    """The Arrow field of an aggregate's result.

    Args:
        name: Name of the output column.
        bound: The bound aggregate.

    Returns:
        A nullable ``pa.Field``.
    """
    return pa.field(name, bound.output_type, nullable=True)


def refuse(function: str, needs: str, column: str | None, got: pa.DataType) -> DeclarationError:
    """The error for a column of a type that an aggregate does not accept."""
    return DeclarationError(f"{function} needs {needs}: column {column!r} is {got}; choose another column or cast it.")


def input_of(input_type: pa.DataType | None) -> pa.DataType:
    """The type that holds values: dictionaries decoded, narrow decimals widened, unknown as null."""
    if input_type is None:
        return pa.null()
    if pa.types.is_dictionary(input_type):
        return cast("pa.DataType", cast("Any", input_type).value_type)
    if pa.types.is_decimal(input_type) and not pa.types.is_decimal128(input_type):
        kind = cast("Any", input_type)
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else input_type
    return input_type


def lengths(starts: Array, n: int) -> Array:
    """Number of rows of each group (int64)."""
    return np.diff(starts, append=n)


def group_ids(starts: Array, n: int) -> Array:
    """Index of the group of each row (int64)."""
    return np.repeat(np.arange(len(starts), dtype=np.int64), lengths(starts, n))


def starts_of(sizes: Array) -> Array:
    """Index of the first row of each group, from the groups' sizes."""
    return np.cumsum(sizes) - sizes


def objects(items: list[Any]) -> Array:
    """An object array of the items; never a matrix, even if all items are lists of one length."""
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out


def is_some(column: Array) -> Array:
    """Which rows of an object column are not None (bool)."""
    return np.fromiter((item is not None for item in column), dtype=bool, count=len(column))


def reduce_some(merge: Callable[[Array, Array], Array], column: Array, starts: Array) -> Array:
    """Merge the items of an object column that are not None; None where a group has none.

    Args:
        merge: Takes items and group starts, returns one item per group; for example ``np.add.reduceat``.
        column: Object column, sorted by group.
        starts: First row of each group.
    """
    some = is_some(column)
    if some.all():
        return merge(column, starts)
    counts = np.add.reduceat(some.astype(np.int64), starts)
    out = np.full(len(starts), None, dtype=object)
    filled = counts > 0
    if filled.any():
        out[filled] = merge(column[some], starts_of(counts[filled]))
    return out


def arrow(values: ArrowValues, kind: pa.DataType, *, safe: bool = True) -> Any:
    """Values as one Arrow array of the given type; if `safe`, a lossy conversion is an Arrow error."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return whole if whole.type == kind else whole.cast(kind, safe=safe)


def none(n: int, kind: pa.DataType) -> Any:
    """An Arrow array of n nulls."""
    return cast("Any", pa).nulls(n, kind)


def valid(array: Any) -> Array:
    """Which values of an Arrow array are not null (bool)."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=bool)
    return cast("Array", array.is_valid().to_numpy(zero_copy_only=False))


def floats(values: ArrowValues) -> tuple[Array, Array]:
    """Values as the nearest float64, 0.0 for null; and which are not null."""
    array = arrow(values, pa.float64(), safe=False)  # safe would refuse integers beyond 2**53
    return filled(array, 0.0), valid(array)


def filled(array: Any, zero: Any) -> Array:
    """An Arrow array of a primitive type in NumPy, nulls replaced."""
    return cast("Array", (array.fill_null(zero) if array.null_count else array).to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class Values:
    """Converts between Arrow values of one type and state columns.

    Numbers, times and booleans have a fixed width; times are held as integers. Everything else is held as Python objects:
    decimals as their unscaled integers, nested values as Arrow's Python values.

    Attributes:
        type: The Arrow type.
    """

    type: pa.DataType

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the state column."""
        kind = self.type
        if pa.types.is_boolean(kind):
            return BOOL
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return cast("np.dtype[Any]", np.dtype(cast("Any", kind).to_pandas_dtype()))
        if pa.types.is_date32(kind) or pa.types.is_time32(kind):
            return np.dtype(np.int32)
        if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            return INT64
        return OBJECT

    @property
    def fixed(self) -> bool:
        """Whether values have a fixed width."""
        return self.dtype != OBJECT

    def fields(self) -> tuple[np.dtype[Any], ...]:
        """The state columns of one nullable value: the value, and for fixed width whether it is not null."""
        return (self.dtype, BOOL) if self.fixed else (OBJECT,)

    def split(self, values: ArrowValues) -> Columns:
        """The state columns of values; a null is 0 and False, or None."""
        array = arrow(values, self.type)
        if not self.fixed:
            return (self._objects(array),)
        there = valid(array)
        if pa.types.is_temporal(self.type):
            array = array.view(pa.from_numpy_dtype(self.dtype))
        return filled(array, False if self.dtype == BOOL else 0), there

    def join(self, columns: Columns) -> Any:
        """The inverse of `split`.

        Raises:
            StateError: A decimal has more digits than the type allows.
        """
        if not self.fixed:
            return self._join_objects(columns[0])
        data, there = columns
        storage = pa.from_numpy_dtype(self.dtype)
        return cast("Any", pa.array(data, mask=~there, type=storage)).view(self.type)

    def items(self, values: ArrowValues) -> Array:
        """Values as an object column, whatever their width; None for null."""
        columns = self.split(values)
        if not self.fixed:
            return columns[0]
        out = columns[0].astype(object)
        out[~columns[1]] = None
        return out

    def from_items(self, items: Array) -> Any:
        """The inverse of `items`."""
        if not self.fixed:
            return self._join_objects(items)
        there = is_some(items)
        data = np.zeros(len(items), dtype=self.dtype)
        data[there] = items[there]
        return self.join((data, there))

    def _objects(self, array: Any) -> Array:
        if pa.types.is_decimal128(self.type):
            return unscaled(array)
        if pa.types.is_string(self.type) or pa.types.is_large_string(self.type) or pa.types.is_binary(self.type):
            return cast("Array", array.to_numpy(zero_copy_only=False))
        return objects(values_of(array))

    def _join_objects(self, items: Array) -> Any:
        if pa.types.is_decimal128(self.type):
            return decimals(items, self.type)
        return pa.array(items.tolist(), type=self.type)


def unscaled(array: Any) -> Array:
    """The unscaled integers of a decimal128 array, as Python ints; None for null."""
    n = len(array)
    if n == 0:
        return np.empty(0, dtype=object)
    words = np.frombuffer(array.buffers()[1], dtype="<i8", count=2 * (array.offset + n))[2 * array.offset :].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    small = (high == low >> 63).all()
    out = low.astype(object) if small else (high.astype(object) << 64) + low.view("<u8").astype(object)
    out[~valid(array)] = None
    return out


def scaled(items: Array, factor: int) -> Array:
    """Unscaled numbers of decimals with more digits after the point; None for null."""
    return objects([None if item is None else item * factor for item in items])


def decimals(items: Array, kind: pa.DataType) -> Any:
    """A decimal128 array of unscaled Python ints; None is null.

    Raises:
        StateError: A number has more digits than the type allows.
    """
    there = is_some(items)
    numbers = np.where(there, items, 0)
    precision = cast("Any", kind).precision
    if len(numbers) and max(numbers.max(), -numbers.min()) >= 10**precision:
        raise StateError(f"a result has more than the {precision} digits of its type {kind}; cast the column to fewer digits.")
    words = np.empty((len(numbers), 2), dtype="<u8")
    words[:, 0] = (numbers & _WORD).astype(np.uint64)
    words[:, 1] = ((numbers >> 64) & _WORD).astype(np.uint64)
    bitmap = cast("Any", pa.array(there)).buffers()[1]
    return cast("Any", pa.Array).from_buffers(kind, len(numbers), [bitmap, pa.py_buffer(words.tobytes())])
