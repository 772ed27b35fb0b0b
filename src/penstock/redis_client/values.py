"""How a value is written into a field of an entry, and read again: each type as text that every other program can write, too.

| type | text |
|---|---|
| string, binary | its bytes; text is UTF-8 |
| whole numbers | decimal: ``-12`` |
| float, double | the shortest decimal that gives the number again: ``0.1``, ``1e+300``, ``-0``, ``inf``, ``nan`` |
| decimal | ``12.50``, ``1E-8`` |
| boolean | ``true``, ``false`` |
| timestamp | ``2024-01-31 12:00:00.000001Z``, also with ``T`` and with ``+05:30``; without a zone: without ``Z`` |
| date | ``2024-01-31`` |
| array, map, struct | JSON, see `_plain_json` |

A time outside of the years 0 to 9999 is a whole number, µs (of a date: days) since 1970. Such numbers are read for every time.
Null is no text: the entry lacks the field.

Read next: `penstock.redis_client.entries`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_FIRST_US: Final = -62_167_219_200_000_000
_LAST_US: Final = 253_402_300_799_999_999
_FIRST_DAY: Final = -719_528
_LAST_DAY: Final = 2_932_896
"""The years 0 to 9999, which Arrow reads as text."""


def refusal(kind: Any) -> str:
    """Why values of a type cannot be written, as the rest of a sentence; empty: they can."""
    t = pa.types
    if t.is_list(kind):
        return refusal(kind.value_type)
    if t.is_map(kind):
        return refusal(kind.key_type) or refusal(kind.item_type)
    if t.is_struct(kind):
        return next(filter(None, (refusal(kind.field(i).type) for i in range(kind.num_fields))), "")
    plain = (t.is_integer, t.is_floating, t.is_boolean, t.is_string, t.is_binary, t.is_date32, t.is_decimal128, t.is_null)
    if any(is_one(kind) for is_one in plain) and kind != pa.float16():
        return ""
    if t.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        return ""
    return f"is of type {kind}, which has no text form here: cast it"


# -- writing


def encoded(column: Any) -> list[bytes | None]:
    """A column's values as bytes; null is None.

    Args:
        column: An Arrow array of a type that `refusal` does not refuse.
    """
    kind, t = column.type, pa.types
    if t.is_binary(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if t.is_nested(kind):
        values = column.cast(countable(kind)).to_pylist()
        return [None if v is None else json.dumps(_plain_json(v, kind), ensure_ascii=False).encode() for v in values]
    text = column.cast(pa.string())
    if t.is_timestamp(kind) or t.is_date32(kind):
        numbers: Any = column.cast(pa.int64() if t.is_timestamp(kind) else pa.int32())
        bounds: tuple[Any, Any] = (_FIRST_US, _LAST_US) if t.is_timestamp(kind) else (_FIRST_DAY, _LAST_DAY)
        far: Any = pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1]))
        if far.true_count:
            text = pc.if_else(far, numbers.cast(pa.string()), text)
    return text.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def countable(kind: Any) -> Any:
    """A nested type with numbers in place of times."""
    t = pa.types
    if t.is_timestamp(kind):
        return pa.int64()
    if t.is_date32(kind):
        return pa.int32()
    if t.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, countable(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(countable(kind.key_type), countable(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, countable(f.type)) for f in _fields(kind)])
    return kind


def _plain_json(value: Any, kind: Any) -> Any:
    """A nested value as JSON has it: decimals, infinities and NaN as text, bytes as Base64, times as whole numbers (µs or days since 1970).

    A map whose keys are text is an object, any other an array of pairs.
    """
    t = pa.types
    if value is None:
        return None
    if t.is_list(kind):
        return [_plain_json(v, kind.value_type) for v in value]
    if t.is_struct(kind):
        return {f.name: _plain_json(value[f.name], f.type) for f in _fields(kind)}
    if t.is_map(kind):
        pairs = [(_plain_json(k, kind.key_type), _plain_json(v, kind.item_type)) for k, v in value]
        return dict(pairs) if t.is_string(kind.key_type) else pairs
    if t.is_binary(kind):
        return base64.b64encode(value).decode()
    if t.is_decimal128(kind) or (t.is_floating(kind) and not math.isfinite(value)):
        return str(value)
    return value


# -- reading


def decoded(raw: Any, kind: Any) -> tuple[Any, list[int]]:
    """A column of values, and the indices of those that are none of the type; these are null.

    Args:
        raw: Array of binary.
        kind: A type that `refusal` does not refuse.

    Cost: one cast of the whole array, if all are well.
    """
    try:
        return _cast(raw, kind), []
    except (pa.ArrowException, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        pass
    if len(raw) == 1:
        try:
            return _cast_number(raw, kind), []
        except (pa.ArrowException, OverflowError, ValueError):
            return pa.nulls(1, kind), [0]
    half = len(raw) // 2
    (left, bad), (right, other) = decoded(raw.slice(0, half), kind), decoded(raw.slice(half), kind)
    return pa.concat_arrays([left, right]), bad + [half + i for i in other]


def _cast(raw: Any, kind: Any) -> Any:
    t = pa.types
    if t.is_binary(kind):
        return raw
    text = raw.cast(pa.string())
    if t.is_nested(kind):
        values = [None if v is None else _of_json(json.loads(v), kind) for v in text.to_pylist()]
        return pa.array(values, countable(kind)).cast(kind)
    if t.is_integer(kind) and pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():
        raise pa.ArrowInvalid("hexadecimal")
    return text.cast(kind)


def _cast_number(raw: Any, kind: Any) -> Any:
    """A time that is a whole number."""
    if pa.types.is_timestamp(kind):
        return _cast(raw, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return _cast(raw, pa.int32()).cast(kind)
    raise ValueError(raw)


def _of_json(value: Any, kind: Any) -> Any:
    """What `_plain_json` wrote.

    Raises:
        ValueError: It is of another type. Likewise KeyError and TypeError.
    """
    t = pa.types
    if value is None:
        return None
    if t.is_list(kind):
        return [_of_json(v, kind.value_type) for v in _a(list, value)]
    if t.is_struct(kind):
        return {f.name: _of_json(_a(dict, value).get(f.name), f.type) for f in _fields(kind)}
    if t.is_map(kind):
        pairs = _a(dict, value).items() if t.is_string(kind.key_type) else [_a(list, pair) for pair in _a(list, value)]
        return [(_of_json(k, kind.key_type), _of_json(v, kind.item_type)) for k, v in pairs]
    if t.is_binary(kind):
        return base64.b64decode(_a(str, value), validate=True)
    if t.is_decimal128(kind):
        return Decimal(_a(str, value))
    if t.is_floating(kind):
        return float(value)
    return _a(bool if t.is_boolean(kind) else str if t.is_string(kind) else int, value)


def _a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(value)
    return value


def _fields(kind: Any) -> Sequence[Any]:
    return [kind.field(i) for i in range(kind.num_fields)]


__all__ = ["countable", "decoded", "encoded", "refusal"]
