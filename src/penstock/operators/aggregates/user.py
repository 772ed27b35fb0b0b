"""Aggregates that users write: four functions over Python objects.

Read next: `penstock.operators.aggregates.codec`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import UTC, values_of
from penstock.errors import DeclarationError
from penstock.operators.aggregates.base import (
    OBJECT,
    Array,
    ArrowValues,
    Bound,
    Columns,
    Kernel,
    Order,
    arrow,
    input_of,
    lengths,
    objects,
)
from penstock.rows.returned import to_array

_SQL_NAMES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC,
    "timestamp_ntz": pa.timestamp("us"),
}


class Aggregate(Kernel):
    """Subclass this to write an aggregate: a monoid over Python objects, with functions to add a value and to return the
    result.

    ``merge`` must be associative, with ``zero()`` as its neutral element, and ``add(s, v)`` must equal ``merge(s, add(zero(),
    v))``: the division of a group's rows into partial states is not defined. Rows are added in the operator's order, so
    ``merge`` need not be commutative if that order is defined (with event time) and a key's rows stay together. A strategy that
    divides them (``key_by(distribute=ps.Histogram())``) leaves keys whole for aggregates that do not say they are `commutative`. Values are Python
    objects; nulls are skipped. If `column` is None every row is added with the value None. States must be picklable.

    Attributes:
        column: The column it reads, or None.
        type: Name of the result's type, in SQL (``"bigint"``, ``"array<double>"``) or Arrow (``"int64"``).
        commutative: Whether the result is the same however a key's rows are divided and in whatever order they are added and merged, so
            that they need not wait to be put in order. Nobody checks it.

    Example:
        >>> class Longest(Aggregate):
        ...     type = "string"
        ...     def zero(self): return ""
        ...     def add(self, state, value): return self.merge(state, value)
        ...     def merge(self, a, b): return b if len(b) > len(a) else a
        ...     def finish(self, state): return state
        >>> Longest("word").bind(pa.string()).output_type
        DataType(string)
    """

    type: ClassVar[str] = "double"
    commutative: ClassVar[bool] = False

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    def describe(self) -> str:
        """Its class and its plain attributes."""
        kept = {n: v for n, v in vars(self).items() if isinstance(v, (str, int, float, bool, tuple, type(None)))}
        return f"{type(self).__qualname__}({', '.join(f'{n}={v!r}' for n, v in kept.items())})"

    @abstractmethod
    def zero(self) -> Any:
        """The state of no rows; a new object each time if states are changed in place."""

    @abstractmethod
    def add(self, state: Any, value: Any) -> Any:
        """The state after one more value; `state` may be changed in place and returned."""

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """The state of the rows of `a` followed by those of `b`; `a` may be changed in place and returned."""

    @abstractmethod
    def finish(self, state: Any) -> Any:
        """The result, of type `type`, or None for null; the state must not be changed."""

    def bind(self, input_type: pa.DataType | None) -> Bound:
        """Bind to a column of any type.

        Raises:
            DeclarationError: `type` is not the name of a type. Nothing was changed.
        """
        return UserBound(self, input_of(input_type), type_of(self.type, f"type of {self.__class__.__name__}"))


class UserFailed(Exception):  # noqa: N818  (never leaves the operators)
    """A function of a user's aggregate raised; the exception is the cause.

    Attributes:
        what: The aggregate's class and the function.
        row: The index of the row, state or result.
        add: Whether it was a row.
    """

    def __init__(self, aggregate: Aggregate, function: str, row: int) -> None:
        super().__init__(f"{type(aggregate).__name__}.{function}", row)
        self.what, self.row, self.add = f"{type(aggregate).__name__}.{function}", row, function == "add"


@dataclass(frozen=True)
class UserBound(Bound):
    """State: one object of the user's. Exceptions of its functions become `UserFailed`."""

    aggregate: Aggregate
    kind: pa.DataType
    output_type: pa.DataType
    fields = (OBJECT,)

    def zero(self, n: int) -> Columns:
        return (objects([self.aggregate.zero() for _ in range(n)]),)

    def lift(self, values: ArrowValues | None, order: Order | None, n: int) -> Columns:
        return self.lift_reduce(values, order, n, np.arange(n, dtype=np.int64))

    def lift_reduce(self, values: ArrowValues | None, order: Order | None, n: int, starts: Array) -> Columns:
        zero, add, every = self.aggregate.zero, self.aggregate.add, self.aggregate.column is None
        items = [None] * n if every else self._items(values)
        out: list[Any] = []
        at = 0
        try:
            for start, size in zip(starts.tolist(), lengths(starts, n).tolist(), strict=True):
                state = zero()
                for at, item in enumerate(items[start : start + size], start):  # noqa: B007  (used if it raises)
                    if item is not None or every:
                        state = add(state, item)
                out.append(state)
        except Exception as error:
            raise UserFailed(self.aggregate, "add", at) from error
        return (objects(out),)

    def reduce(self, columns: Columns, starts: Array) -> Columns:
        states, merge = columns[0].tolist(), self.aggregate.merge
        out: list[Any] = []
        start = 0
        try:
            for start, size in zip(starts.tolist(), lengths(starts, len(states)).tolist(), strict=True):
                state = shared = states[start]
                for other in states[start + 1 : start + size]:
                    if state is shared:  # several windows share it, and merge may change its first argument
                        state = copy.deepcopy(state)
                    state, shared = merge(state, other), other
                out.append(state)
        except Exception as error:
            raise UserFailed(self.aggregate, "merge", start) from error
        return (objects(out),)

    def finish(self, columns: Columns) -> Any:
        given: list[Any] = []
        try:
            given += map(self.aggregate.finish, columns[0].tolist())  # keeps those before a failure
            return to_array(given, self.output_type)
        except Exception as error:
            at = next((i for i, value in enumerate(given) if not _fits(value, self.output_type)), len(given))
            raise UserFailed(self.aggregate, "finish", at) from error

    def _items(self, values: ArrowValues) -> list[Any]:
        return values_of(values if pa.types.is_null(self.kind) else arrow(values, self.kind))


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        to_array([value], kind)
    except Exception:  # noqa: BLE001  (what converts a value may raise anything)
        return False
    return True


def type_of(name: str, what: str = "type") -> pa.DataType:
    """The Arrow type of a type name in SQL or Arrow spelling.

    Args:
        name: For example ``"bigint"``, ``"decimal(10, 2)"``, ``"array<struct<a: int, b: string>>"`` or ``"int64"``.
        what: Its purpose, for the error.

    Raises:
        DeclarationError: The name is not known. Nothing was changed.

    Example:
        >>> type_of("array<bigint>")
        ListType(list<element: int64>)
    """
    text = name.strip().lower()
    found = _SQL_NAMES.get(text)
    if found is not None:
        return found
    head, _, inner = text[:-1].partition("(" if text.endswith(")") else "<")
    parts = _split(name.strip()[len(head) + 1 : -1], ",")
    try:
        if text.endswith(")") and head.strip() == "decimal":
            return pa.decimal128(int(parts[0]), int(parts[1]) if len(parts) > 1 else 0)
        if text.endswith(">") and inner:
            if head == "array" and len(parts) == 1:
                return pa.list_(pa.field("element", type_of(parts[0], what)))
            if head == "map" and len(parts) == 2:
                return pa.map_(type_of(parts[0], what), type_of(parts[1], what))
            if head == "struct":
                named = [_split(part, ":", 2) for part in parts]
                return pa.struct([pa.field(key.strip(), type_of(kind, what)) for key, kind in named])
        return cast("pa.DataType", cast("Any", pa).type_for_alias(text))
    except ValueError:
        raise DeclarationError(
            f"{what} {name!r} is not a type; write for example 'bigint', 'decimal(10, 2)' or 'array<double>'."
        ) from None


def _split(text: str, mark: str, most: int = 0) -> list[str]:
    """Split at marks outside of brackets, into at most so many parts."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == mark and depth == 0 and (not most or len(parts) < most):
            parts.append("")
        else:
            parts[-1] += letter
    return parts
