"""How Arrow columns are kept in SQL: the types of new tables, what an existing table may have, and the values themselves.

Everything is decided by the *kind* of a column (`kind_of`), of which there are eleven. The three databases differ only in
`DDL` and `ACCEPTS`. Nothing here opens a connection.

Read next: `penstock.sinks.sql_databases`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.columns import UTC
from penstock.errors import DeclarationError
from penstock.types import DAY_US

# kind of an Arrow column → type of the column in a new table
DDL: Final[dict[str, dict[str, str]]] = {
    "sqlite": {
        "int": "INTEGER", "float": "REAL", "bool": "BOOLEAN", "text": "TEXT", "binary": "BLOB", "date": "DATE",
        "timestamp": "TIMESTAMP", "instant": "TIMESTAMP", "decimal": "TEXT", "json": "TEXT", "null": "TEXT",
    },
    "duckdb": {
        "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR", "binary": "BLOB", "date": "DATE",
        "timestamp": "TIMESTAMP", "instant": "TIMESTAMPTZ", "decimal": "DECIMAL", "json": "VARCHAR", "null": "VARCHAR",
    },
    "postgresql": {
        "int": "BIGINT", "float": "DOUBLE PRECISION", "bool": "BOOLEAN", "text": "TEXT", "binary": "BYTEA", "date": "DATE",
        "timestamp": "TIMESTAMP", "instant": "TIMESTAMPTZ", "decimal": "NUMERIC", "json": "JSONB", "null": "TEXT",
    },
}  # fmt: skip

FLOAT_KEY: Final = "float key"
"""In place of the kind ``float``: values of a key that must stay different."""

_STRICT: Final[dict[str, set[str]]] = {
    "int": {"int", "decimal"}, "float": {"float"}, "bool": {"bool"}, "text": {"text"}, "binary": {"binary"}, "date": {"date"},
    "timestamp": {"timestamp"}, "instant": {"instant"}, "decimal": {"decimal"}, "json": {"text", "json"},
}  # fmt: skip
# SQLite has no types of its own for these. A decimal must be TEXT: NUMERIC affinity would make it a float.
_SQLITE: Final[dict[str, set[str]]] = _STRICT | {
    "int": {"int"}, "float": {"float", "single"}, "bool": {"bool", "int"}, "date": {"date", "text"}, "decimal": {"text"},
    "timestamp": {"timestamp", "instant", "text"}, "instant": {"timestamp", "instant", "text"},
}  # fmt: skip
ACCEPTS: Final = {"sqlite": _SQLITE, "duckdb": _STRICT, "postgresql": _STRICT}

_FAMILIES: Final = [
    (r"timestamp.* with time zone|^timestamptz", "instant"),
    (r"^(timestamp|datetime)", "timestamp"),
    (r"^((big|small|tiny|medium|huge)?int|integer|int[248])\b", "int"),
    (r"^(double|float8)", "float"),
    (r"^(real|float)", "single"),
    (r"^(numeric|decimal)", "decimal"),
    (r"^bool", "bool"),
    (r"char|text|clob|^string", "text"),
    (r"^(bytea|blob|binary|varbinary)", "binary"),
    (r"^date$", "date"),
    (r"^json", "json"),
    (r"^$", "any"),
]


def kind_of(field: pa.Field[Any], database: str) -> str:
    """The kind of an Arrow column, which decides how it is stored.

    Args:
        field: The column.
        database: ``sqlite``, ``duckdb`` or ``postgresql``.

    Returns:
        ``int``, ``float``, ``bool``, ``text``, ``binary``, ``date``, ``timestamp`` (no zone), ``instant`` (µs UTC), ``decimal``,
        ``json`` (lists, structs and maps) or ``null`` (unknown yet).

    Raises:
        DeclarationError: The database cannot store the type. Nothing was changed.

    Example:
        >>> kind_of(pa.field("at", pa.timestamp("us", "UTC")), "sqlite")
        'instant'
    """
    kind, type_ = _kind(field.type), field.type
    if kind is None or (kind == "decimal" and database == "duckdb" and type_.precision > 38):
        raise DeclarationError(
            f"Column {field.name!r} has type {type_}, which {database} cannot store: convert it or leave it out before the sink."
        )
    return kind


def _kind(type_: Any) -> str | None:
    types: Any = pa.types
    if types.is_dictionary(type_):
        return _kind(type_.value_type)
    if types.is_timestamp(type_):
        return "instant" if type_.tz else "timestamp"
    tests = {
        "null": types.is_null(type_),
        "bool": types.is_boolean(type_),
        "int": types.is_integer(type_),
        "float": types.is_floating(type_),
        "decimal": types.is_decimal(type_),
        "date": types.is_date(type_),
        "text": types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_),
        "binary": types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_),
        "json": types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
        or types.is_struct(type_) or types.is_map(type_),
    }  # fmt: skip
    return next((kind for kind, is_it in tests.items() if is_it), None)


def column_ddl(field: pa.Field[Any], database: str) -> str:
    """The type of this column in a new table, such as ``NUMERIC(10, 2)``."""
    kind = kind_of(field, database)
    ddl = DDL[database][kind]
    decimal: Any = field.type
    return f"{ddl}({decimal.precision}, {decimal.scale})" if ddl in {"NUMERIC", "DECIMAL"} else ddl


def fits(field: pa.Field[Any], declared: str, database: str) -> bool:
    """Whether an existing column of type `declared` takes every value of `field` without changing it.

    A narrower integer is accepted: the database refuses a value that is too large, so nothing is lost silently. A column
    that would round (float4 for float64, fewer decimals) is not.

    Example:
        >>> fits(pa.field("n", pa.int64()), "integer", "postgresql"), fits(pa.field("n", pa.int64()), "text", "postgresql")
        (True, False)
    """
    text = declared.lower()
    kind = kind_of(field, database)
    family = next((name for pattern, name in _FAMILIES if re.search(pattern, text)), "other")
    if kind == "null" or family == "any":
        return True
    type_: Any = field.type
    if family == "single" and kind == "float":
        return database == "sqlite" or type_.bit_width <= 32
    scale = re.search(r",\s*(\d+)\)", text)
    if kind == family == "decimal" and scale and int(scale[1]) < type_.scale:
        return False
    return family in ACCEPTS[database][kind]


def _json_text(column: Any) -> Any:
    """Nested values as JSON text: a map as an object, times as columns of SQLite have them, decimals as plain text, binary as base64.

    JSON has no NaN and no infinity: they become null.

    Raises:
        pyarrow.ArrowInvalid: A map has a key twice.
    """
    texts = column.cast(_mapped(column.type, _naive)).cast(_mapped(column.type, _as_text))
    values = [None if v is None else json.dumps(_plain(v, column.type), ensure_ascii=False) for v in texts.to_pylist()]
    return pa.array(values, pa.large_string())


def _naive(kind: Any) -> Any:
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _as_text(kind: Any) -> Any:
    return pa.string() if pa.types.is_temporal(kind) and not pa.types.is_duration(kind) else kind


def _mapped(kind: Any, leaf: Any) -> Any:
    """A type with `leaf` of all that is not nested in it."""
    types: Any = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_mapped(field.type, leaf)) for field in kind])
    if types.is_map(kind):
        item = kind.item_field.with_type(_mapped(kind.item_type, leaf))
        return pa.map_(kind.key_field.with_type(_mapped(kind.key_type, leaf)), item)
    if not types.is_nested(kind):
        return leaf(kind.value_type if types.is_dictionary(kind) else kind)
    inner = kind.value_field.with_type(_mapped(kind.value_type, leaf))
    if types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if types.is_large_list(kind) else pa.list_(inner)


def _plain(value: Any, kind: Any) -> Any:
    """What JSON can hold in place of a value."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        found = {_plain_key(k, kind.key_type): _plain(v, kind.item_type) for k, v in value}
        if len(found) < len(value):
            raise pa.ArrowInvalid(f"a map has a key twice, which a JSON object cannot: {value}")
        return found
    if pa.types.is_nested(kind):
        inner: Any = cast("Any", kind).value_type
        return [_plain(v, inner) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _plain_key(value: Any, kind: Any) -> str:
    plain = _plain(value, kind)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def storable(column: Any, kind: str) -> Any:
    """A column as Arrow with the types that all three databases agree on: timestamps in µs, nested values as JSON text.

    Args:
        column: An Arrow array; not modified.
        kind: Its `kind_of`.

    Raises:
        pyarrow.ArrowInvalid: A value does not fit, for example a timestamp in ns that is not a whole µs.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    wanted: dict[str, Any] = {
        "text": pa.large_string(),
        "binary": pa.large_binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "instant": UTC,
        "null": pa.large_string(),
    }
    if kind == "json":
        return _json_text(column)
    if kind == "float" and column.type.bit_width == 16:
        return column.cast(pa.float32())
    return column.cast(wanted[kind]) if kind in wanted else column


def python_values(column: Any, kind: str) -> list[Any]:
    """A column as the Python values that sqlite3 takes: times and decimals as text, times always 26 characters wide.

    NaN, which SQLite would store as NULL, is the text NaN in a column of kind `FLOAT_KEY`: two keys must not become one.

    Raises:
        pyarrow.ArrowInvalid: A time is outside years 1 to 9999 (of year 0 too, text order is time order), so that text order would not be time order any more.
    """
    column = storable(column, kind)
    if kind in {"timestamp", "instant"}:
        column = column.cast(pa.timestamp("us")).cast(pa.large_string())
        _refuse_width(column, 26)
    elif kind == "date":
        column = column.cast(pa.large_string())
        _refuse_width(column, 10)
    elif kind == "decimal":
        column = column.cast(pa.large_string())
    values: list[Any] = column.to_pylist()
    if kind == "decimal":  # Arrow writes some small ones as 1E-7
        values = [v if v is None or "E" not in v else f"{Decimal(v):f}" for v in values]
    elif kind == FLOAT_KEY:
        values = ["NaN" if v is not None and v != v else v for v in values]  # noqa: PLR0124
    return values


def _refuse_width(column: Any, width: int) -> None:
    sizes: Any = pc.min_max(pc.utf8_length(column)).as_py()
    if sizes["min"] is not None and (sizes["min"], sizes["max"]) != (width, width):
        raise pa.ArrowInvalid("a time is outside the years 1 to 9999, which SQLite cannot keep in order")


def part_ddl(field: pa.Field[Any]) -> str:
    """The type of this column in a table that a task fills by binary COPY, see `binary_values`."""
    return "TEXT" if kind_of(field, "postgresql") == "json" else column_ddl(field, "postgresql")


_TIMES: Final = dict.fromkeys(("timestamp", "instant"), (-2_440_588 * DAY_US, 11_248_738 * DAY_US - 1)) | {
    "date": (-2_440_588, 11_248_737)
}
"""The first and the last time that `copy_text` can store, 4714-11-24 BC and 32767-12-31. By binary COPY an earlier one becomes minus infinity."""


def binary_values(column: Any, kind: str) -> Any:
    """A column as PostgreSQL gets it by binary COPY; what is stored is the same as by `copy_text`.

    Raises:
        pyarrow.ArrowInvalid: A value does not fit.
    """
    column = storable(column, kind)
    if kind == "int":
        return column.cast(pa.int64())
    if kind == "float" and column.type.bit_width < 64:  # 0.1 as float32 is stored as 0.1
        return column.cast(pa.string()).cast(pa.float64())
    if kind in _TIMES:
        found: Any = pc.min_max(column.cast(pa.int32() if kind == "date" else pa.int64())).as_py()
        if found["min"] is not None and not _TIMES[kind][0] <= found["min"] <= found["max"] <= _TIMES[kind][1]:
            raise pa.ArrowInvalid("a time is before 4714-11-24 BC or after the year 32767")
    return column


def moved_sql(column: str, kind: str, declared: str) -> str:
    """SQL that gives a column of such a table, which is quoted, as a column of the declared type takes it."""
    if kind == "null":
        return "NULL"
    return f"CAST({column} AS {declared})" if kind == "json" and declared.lower().startswith("json") else column


def copy_text(columns: Sequence[Any], kinds: Sequence[str]) -> bytes:
    r"""Rows in PostgreSQL's COPY text format, built column by column.

    Args:
        columns: Arrow arrays of equal length; not modified.
        kinds: Their `kind_of`.

    Example:
        >>> copy_text([pa.array([1, None]), pa.array(["a\tb", ""])], ["int", "text"])
        b'1\ta\\tb\n\\N\t\n'
    """
    compute: Any = pc
    texts = [_copy_column(storable(column, kind), kind) for column, kind in zip(columns, kinds, strict=True)]
    end, tab, null = (pa.scalar(text, pa.large_string()) for text in ("\n", "\t", "\\N"))
    rows = compute.binary_join_element_wise(*texts, tab, null_handling="replace", null_replacement=null.as_py())
    lines = compute.binary_join_element_wise(rows, pa.scalar("", pa.large_string()), end)
    # An Arrow string array keeps its texts back to back: its data buffer is the stream.
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])].tobytes() if len(lines) else b""


def _copy_column(column: Any, kind: str) -> Any:
    compute: Any = pc
    if kind == "binary":
        column = _hex(column)
    text = column.cast(pa.large_string())
    if kind in {"date", "timestamp", "instant"}:
        return _before_christ(text)
    if kind in {"text", "json", "null"}:
        for found, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            text = compute.replace_substring(text, found, escaped)
    return text


def _before_christ(text: Any) -> Any:
    """Times as PostgreSQL reads them: the year 0 of Arrow is 1 BC there."""
    early: Any = pc.or_(pc.starts_with(text, "-"), pc.starts_with(text, "0000"))
    if not pc.any(early).as_py():
        return text
    values = text.to_pylist()
    for i in np.flatnonzero(pc.fill_null(early, False).to_numpy(zero_copy_only=False)).tolist():
        year, rest = re.fullmatch(r"(-?\d+)(-.*)", values[i]).groups()  # type: ignore[union-attr]  # it begins so
        values[i] = f"{1 - int(year):04d}{rest.removesuffix('Z')}{'+00' if rest.endswith('Z') else ''} BC"
    return pa.array(values, pa.large_string())


def _hex(column: Any) -> Any:
    r"""Binary as PostgreSQL reads it in COPY, ``\\xdeadbeef``: the whole data buffer is turned at once, offsets double."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    digits = b"" if data is None else memoryview(data)[int(bounds[0]) : int(bounds[-1])].hex().encode()
    valid: Any = pc.is_valid(column)
    starts = pa.py_buffer(((bounds - bounds[0]) * 2).astype(np.int64))
    text: Any = pa.LargeStringArray.from_buffers(len(column), starts, pa.py_buffer(digits))
    marked: Any = pc.binary_join_element_wise(pa.scalar("\\\\x", pa.large_string()), text, pa.scalar("", pa.large_string()))
    return pc.if_else(valid, marked, pa.scalar(None, pa.large_string()))


# -- read again


def read_sql(column: str, kind: str, database: str) -> str:
    """SQL that gives a column, which is quoted, as `read_values` takes it: times of PostgreSQL as numbers, since Python has fewer."""
    if database == "postgresql" and kind in {"timestamp", "instant"}:
        return f"CAST(EXTRACT(EPOCH FROM {column}) * 1000000 AS BIGINT)"
    if database == "postgresql" and kind == "date":
        return f"({column} - DATE '1970-01-01')"
    return f"CAST({column} AS TEXT)" if database == "postgresql" and kind == "decimal" else column


def read_values(values: Sequence[Any], field: pa.Field[Any], database: str) -> Any:
    """Values that SQLite or PostgreSQL gives for `read_sql`, as a column.

    Raises:
        pyarrow.ArrowInvalid: A value is none of the column's type.
    """
    kind, type_ = kind_of(field, database), field.type
    if kind == "decimal":
        return pa.array([None if v is None else Decimal(v) for v in values], type_)
    if kind == "bool":
        return pa.array([None if v is None else bool(v) for v in values], type_)
    if kind in {"date", "timestamp", "instant"}:
        if database == "sqlite":
            plain = pa.date32() if kind == "date" else pa.timestamp("us")
            return pa.array(values, pa.string()).cast(plain).cast(type_)
        numbers: Any = pa.array(values, pa.int32() if kind == "date" else pa.int64())
        return numbers.cast(pa.date32() if kind == "date" else pa.timestamp("us", "UTC" if kind == "instant" else None)).cast(
            type_
        )
    return pa.array(values, pa.float64()).cast(type_) if kind == "float" else pa.array(values, type_)


_ARROW: Final[dict[str, Any]] = {
    "int": pa.int64(), "float": pa.float64(), "single": pa.float32(), "bool": pa.bool_(), "text": pa.string(), "binary": pa.binary(),
    "date": pa.date32(), "timestamp": pa.timestamp("us"), "instant": UTC, "json": pa.list_(pa.null()),
}  # fmt: skip


def arrow_type(declared: str, database: str) -> pa.DataType:
    """The type of what a column of a table holds, as far as that tells; ``pa.null()`` if it does not.

    In SQLite a TIMESTAMP is taken for UTC, as it tells no zone.

    Example:
        >>> arrow_type("DECIMAL(10,2)", "duckdb"), arrow_type("TIMESTAMP", "sqlite")
        (Decimal128Type(decimal128(10, 2)), TimestampType(timestamp[us, tz=UTC]))
    """
    text = declared.lower()
    family = next((name for pattern, name in _FAMILIES if re.search(pattern, text)), "other")
    digits = re.search(r"\((\d+),\s*(\d+)\)", text)
    if family == "decimal" and digits:
        return (
            pa.decimal128(int(digits[1]), int(digits[2]))
            if int(digits[1]) <= 38
            else pa.decimal256(int(digits[1]), int(digits[2]))
        )
    if database == "sqlite" and family == "timestamp":
        family = "instant"
    found: pa.DataType = _ARROW.get(family, pa.null())
    return found
