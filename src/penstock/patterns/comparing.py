"""Values of a condition between events, calculated and compared over arrays as Spark does it row by row.

Whole numbers are calculated with 64 bits, decimals exactly (Spark rounds what needs more than 38 digits), and everything in doubles if one
operand is one; two of 32 bits stay so. What does not fit is an error, as in Spark's ANSI mode. Null gives null.

Read next: ``relations``, which says of which events.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.patterns.algebra import Arithmetic, Minus, Number, Of, Operand, Relation

SIGN = np.int64(np.iinfo(np.int64).min)
WIDEST = 76
"""Digits of a decimal of 256 bits."""

_COMPARE: dict[str, Any] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
    "!=": np.not_equal,
}
_CALCULATE = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked"}

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def calculated(operand: Operand, column: Callable[[Of], Any]) -> Any:
    """The values of one side of a condition: an array, or a scalar if it reads no event.

    Args:
        operand: the side.
        column: gives the values of an attribute.

    Raises:
        pa.ArrowInvalid: one does not fit, or no type is wide enough.
    """
    match operand:
        case Number(text=text):
            return _number(text)
        case Of():
            values = column(operand)
            return values.cast(pa.int64()) if pa.types.is_integer(values.type) else values
        case Minus(inner=inner):
            value = calculated(inner, column)
            return pc.call_function("negate_checked", [_not_null(value, pa.int64())])
        case Arithmetic(op=op, left=left, right=right):
            pair = _operands(calculated(left, column), calculated(right, column))
            return pc.call_function(_CALCULATE[op], pair)
    raise AssertionError(operand)  # refused when the query was read


def ordered_alike(one: Any, other: Any) -> tuple[tuple[NDArray[Any], Bools], tuple[NDArray[Any], Bools]]:
    """Two sides' values as numbers of the same order, and which are not null; a scalar is an array of one."""
    one, other = (pa.array([x.as_py()], x.type) if isinstance(x, pa.Scalar) else x for x in (one, other))
    codes = _codes(one, other)
    there = [np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_) for values in (one, other)]
    return (codes[0], there[0]), (codes[1], there[1])


def compared(op: str, one: tuple[NDArray[Any], Bools], other: tuple[NDArray[Any], Bools]) -> Bools:
    """Where a comparison is true of numbers from `ordered_alike`; with null it is not."""
    true: Bools = _COMPARE[op](one[0], other[0]) & one[1] & other[1]
    return true


def check(relation: Relation, type_of: Callable[[Of], pa.DataType]) -> None:
    """Calculate with no rows, to see whether there is a type for it.

    Raises:
        pa.ArrowInvalid: There is none.
    """
    sides = [calculated(side, lambda value: pa.array([], type_of(value))) for side in (relation.left, relation.right)]
    ordered_alike(*sides)


def _number(text: str) -> Any:
    if "e" in text.lower():
        return pa.scalar(float(text), pa.float64())
    if "." not in text and int(text) < 1 << 63:
        return pa.scalar(int(text), pa.int64())
    number = Decimal(text)
    digits, scale = len(number.as_tuple().digits), max(0, -int(number.as_tuple().exponent))
    return pa.scalar(number, pa.decimal256(max(digits, scale, 1), scale))


def _operands(one: Any, other: Any) -> list[Any]:
    """Two operands of one kind."""
    one, other = _not_null(one, other.type), _not_null(other, one.type)
    kinds = [one.type, other.type]
    if any(map(pa.types.is_floating, kinds)):
        return [one, other] if kinds == [pa.float32()] * 2 else [_as_doubles(one), _as_doubles(other)]
    if any(map(pa.types.is_decimal, kinds)):
        return [_as_decimals(one), _as_decimals(other)]
    return [one, other]


def _not_null(values: Any, kind: pa.DataType) -> Any:
    """A column in which all is null has no type of its own."""
    if not pa.types.is_null(values.type):
        return values
    return values.cast(pa.int64() if pa.types.is_null(kind) else kind)


def _as_decimals(values: Any) -> Any:
    if pa.types.is_integer(values.type):
        return values.cast(pa.decimal256(19, 0))
    return values.cast(pa.decimal256(values.type.precision, values.type.scale))


def _as_doubles(values: Any) -> Any:
    """The nearest doubles. Arrow divides decimals by a power of ten, which need not give the nearest; to read their text does."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    return values.cast(pa.float64(), safe=False)


def _codes(one: Any, other: Any) -> list[NDArray[Any]]:
    """Numbers in the order of both sides' values; those of nulls mean nothing."""
    kinds = one.type, other.type
    if any(map(pa.types.is_floating, kinds)):
        return [_doubles(_as_doubles(values)) for values in (one, other)]
    if all(map(pa.types.is_integer, kinds)):
        return [values.fill_null(0).to_numpy(zero_copy_only=False) for values in (one, other)]
    if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_null, kinds)):
        scale = max(values.type.scale if pa.types.is_decimal(values.type) else 0 for values in (one, other))
        one, other = (values.cast(pa.decimal256(WIDEST, scale)) for values in (one, other))
    if one.type != other.type:  # the type of a column in which all is null, or two kinds of times
        one, other = (one.cast(other.type), other) if pa.types.is_null(one.type) else (one, other.cast(one.type))
    ranks = pc.rank(pa.concat_arrays([one, other]), tiebreaker="dense").to_numpy()
    return [ranks[: len(one)], ranks[len(one) :]]


def ordered(values: NDArray[np.float64]) -> Ints:
    """Integers in the order of the values; -0.0 and 0.0 are one."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, SIGN - bits, bits)


def _doubles(values: Any) -> Ints:
    """Doubles in Spark's order: NaN equals itself and is greatest; -0.0 and 0.0 are one."""
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(numbers), np.iinfo(np.int64).max, ordered(numbers))


__all__ = ["WIDEST", "calculated", "check", "compared", "ordered", "ordered_alike"]
