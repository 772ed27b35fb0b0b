"""Column types as people write them, and SQL that is checked when a flow is declared.

Declaring a flow starts no Spark. sqlglot parses expressions as Spark SQL and their columns are checked; an embedded DuckDB
gives their types. A type that it does not know stays unknown (``pa.null()``) until Spark analyses the plan at start.
"""

from __future__ import annotations

import difflib
import inspect
import re
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Final

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.types import HIDDEN

QUOTED: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)+`"""
"""A regular expression for strings and names in quotes, as Spark and CEQL have them."""
_BETWEEN: Final = re.compile(rf"""(\b[rR]'[^']*'|\b[rR]"[^"]*"|{QUOTED})|\s+""")
_UTC: Final = pa.timestamp("us", "UTC")
_TYPES: Final[dict[str, Any]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": _UTC,
    "TIMESTAMPTZ": _UTC,
    "TIMESTAMPLTZ": _UTC,
    "TIMESTAMPNTZ": pa.timestamp("us"),
}


def _arrow_type(kind: Any, what: str) -> Any:
    name = kind.this.name
    if name in _TYPES:
        return _TYPES[name]
    if name == "DECIMAL":
        precision, scale = ([int(p.name) for p in kind.expressions] + [10, 0])[:2] if kind.expressions else (10, 0)
        return pa.decimal128(precision, scale if len(kind.expressions) > 1 else 0)
    if name in ("ARRAY", "LIST"):
        return pa.list_(_arrow_type(kind.expressions[0], what))
    if name == "MAP":
        return pa.map_(_arrow_type(kind.expressions[0], what), _arrow_type(kind.expressions[1], what))
    if name == "STRUCT":
        return pa.struct([pa.field(e.name, _arrow_type(e.args["kind"], what)) for e in kind.expressions])
    raise DeclarationError(f"{what} has the type {kind.sql('spark')}, which penstock does not know; use Spark SQL type names.")


def as_text(value: Any, what: str) -> str:
    """A value that must be text, such as a name.

    Raises:
        DeclarationError: It is not text, or empty, or has half a surrogate pair, which cannot be stored.
    """
    if not isinstance(value, str) or not value.strip() or any("\ud800" <= c <= "\udfff" for c in value):
        raise DeclarationError(f"{what} must be text, not {value!r}.")
    return value


def as_number(value: Any, what: str, least: int = 1) -> int:
    """A value that must be a whole number.

    Raises:
        DeclarationError: It is not, or it is less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise DeclarationError(f"{what} must be a whole number from {least}, not {value!r}.")
    return int(value)


def as_float(value: Any, what: str) -> float:
    """A value that must be a number.

    Raises:
        DeclarationError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise DeclarationError(f"{what} must be a number, not {value!r}.")
    return float(value)


def as_function(value: Any, what: str, form: str, arguments: int = 1) -> None:
    """Check that a value can be called with so many arguments.

    Raises:
        DeclarationError: It cannot.
    """
    if not callable(value):
        raise DeclarationError(f"{what} needs a function {form}, not {value!r}.")
    try:
        inspect.signature(value).bind(*range(arguments))
    except TypeError as error:
        raise DeclarationError(
            f"{what} calls its function as {form}; {getattr(value, '__name__', value)!r} does not take these ({error})."
        ) from error
    except ValueError:
        return  # built in, without a signature


@lru_cache(maxsize=256)
def parse_schema(text: str, what: str) -> pa.Schema:
    """Read ``"tail string, at timestamp, delay double"`` (Spark's DDL form, also ``struct<…>``).

    Args:
        text: The columns.
        what: What the schema describes, for the error.

    Raises:
        DeclarationError: The text is not a schema, or two columns have one name.

    Example:
        >>> parse_schema("tail string, delay double", "the example").names
        ['tail', 'delay']
    """
    import sqlglot  # noqa: PLC0415  (0.2 s to import; `penstock --version` must not pay)
    from sqlglot import exp  # noqa: PLC0415

    body = text.strip()
    struct = body.lower().startswith("struct<") and body.endswith(">")
    before = "" if struct else "CREATE TABLE t ("
    whole = body if struct else f"{before}{body})"
    try:
        if struct:
            parsed: Any = sqlglot.parse_one(whole, into=exp.DataType, dialect="spark")
            names = [(e.name, e.args["kind"]) for e in parsed.expressions]
        else:
            parsed = sqlglot.parse_one(whole, dialect="spark")
            names = [(c.name, c.args.get("kind")) for c in parsed.this.expressions]
    except Exception as error:  # noqa: BLE001  (the parser's own, of many kinds)
        where = trouble_of(error, whole, len(before))
        raise DeclarationError(
            f"{what} is not a list of columns such as 'tail string, delay double': {text!r}: {where}."
        ) from None
    fields = []
    for name, kind in names:
        if not name:
            raise DeclarationError(
                f"{what} has a column without a name: {text!r}; put a name with a dot in it between backquotes."
            )
        if kind is None:
            raise DeclarationError(f"{what} gives column {name!r} no type; write for example '{name} string'.")
        fields.append(pa.field(name, _arrow_type(kind, f"Column {name!r} of {what}")))
    repeated = {f.name for f in fields if [g.name for g in fields].count(f.name) > 1}
    if not fields or repeated:
        raise DeclarationError(f"{what} names no column." if not fields else f"{what} names column {min(repeated)!r} twice.")
    return pa.schema(fields)


def of_struct(given: Any, what: str) -> Any:
    """A Spark ``StructType`` as an Arrow schema; anything else as it is.

    Raises:
        DeclarationError: It has a type that penstock does not know.
    """
    if not (type(given).__name__ == "StructType" and type(given).__module__.startswith("pyspark.sql")):
        return given
    return pa.schema([pa.field(f.name, _of_spark(f.dataType, f"Column {f.name!r} of {what}")) for f in given.fields])


def _of_spark(kind: Any, what: str) -> Any:
    name = kind.typeName()
    if name == "struct":
        return pa.struct([pa.field(f.name, _of_spark(f.dataType, what)) for f in kind.fields])
    if name == "array":
        return pa.list_(_of_spark(kind.elementType, what))
    if name == "map":
        return pa.map_(_of_spark(kind.keyType, what), _of_spark(kind.valueType, what))
    return parse_schema(f"c {kind.simpleString()}", what).field(0).type


def as_schema(given: Any, what: str) -> pa.Schema:
    """A schema given as text, as Arrow or as Spark's ``StructType``.

    Raises:
        DeclarationError: It is not a schema, or has a column name that is reserved for penstock.
    """
    schema = parse_schema(given, what) if isinstance(given, str) else of_struct(given, what)
    if not isinstance(schema, pa.Schema):
        raise DeclarationError(
            f"{what} must be text such as 'tail string, delay double', a StructType, or a pyarrow.Schema, not {given!r}."
        )
    there: dict[str, str] = {}
    for i, name in enumerate(schema.names):
        if name in schema.names[:i]:
            raise DeclarationError(f"{what} names column {name!r} twice.")
        if name.startswith(HIDDEN):
            raise DeclarationError(f"{what} names column {name!r}, but names that start with {HIDDEN} are penstock's own.")
        if (other := there.setdefault(name.lower(), name)) != name:
            raise DeclarationError(f"{what} names columns {other!r} and {name!r}, which are the same to SQL; rename one.")
    return in_micros(schema)


def in_micros(schema: pa.Schema) -> pa.Schema:
    """The schema with times in µs, as in Spark, also within lists, structs and maps.

    Example:
        >>> in_micros(pa.schema([("at", pa.timestamp("ms", "UTC"))])).field("at").type
        TimestampType(timestamp[us, tz=UTC])
    """
    return pa.schema([field.with_type(_in_micros(field.type)) for field in schema])


def _in_micros(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_micros(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_in_micros(kind.key_type)), kind.item_field.with_type(_in_micros(kind.item_type))
        )
    return kind


def quoted(name: str | None) -> str:
    """A column's name in SQL.

    Example:
        >>> quoted("a b")
        '`a b`'
    """
    return "`" + (name or "").replace("`", "``") + "`"


def sql_text(text: str) -> str:
    """Text for a literal in Spark SQL, without its quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def unknown_column(name: str, there: list[str], what: str) -> DeclarationError:
    """The error for a column that does not exist, with the nearest name that does."""
    near = difflib.get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}."
    return DeclarationError(f"{what} names column {name!r}, which does not exist; {hint}")


def as_sql(text: str, schema: pa.Schema) -> str:
    """A user's expression as SQL: the exact name of a column, or SQL.

    Example:
        >>> as_sql("a b", pa.schema([("a b", pa.int64())]))
        '`a b`'
    """
    return quoted(text) if text in schema.names else text


def check_expression(sql: str, schema: pa.Schema, what: str) -> pa.Field[Any]:
    """Check a Spark SQL expression against columns.

    Args:
        sql: The expression; may end in ``AS name``.
        schema: The columns; types may be unknown (``pa.null()``).
        what: Where it stands, for the error.

    Returns:
        A field with the result's name (``""`` if it has none) and its type, ``pa.null()`` if unknown.

    Raises:
        DeclarationError: It is not SQL, names a column that does not exist, or depends on more than its row.
    """
    return _checked(sql, schema, what)[1]


def _checked(sql: str, schema: pa.Schema, what: str) -> tuple[Any, pa.Field[Any]]:
    """The parsed expression, and the result of `check_expression`."""
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415

    as_text(sql, f"What {what} is given")
    try:
        parsed: Any = sqlglot.parse_one(f"SELECT {sql}", dialect="spark")
    except Exception as error:  # noqa: BLE001  (the parser's own, of many kinds)
        raise DeclarationError(
            f"{what} is not a Spark SQL expression: {sql!r}: {trouble_of(error, f'SELECT {sql}', len('SELECT '))}."
        ) from None
    if len(parsed.expressions) != 1 or parsed.args.get("from") or parsed.args.get("from_") or parsed.args.get("where"):
        raise DeclarationError(f"{what} must be one SQL expression: {sql!r}.")
    plain = parsed.expressions[0]
    if isinstance(plain, exp.Star):
        raise DeclarationError(f"{what} must be one value, and '*' means all columns; name one of {', '.join(schema.names)}.")
    _check_by_row(plain, f"{what} {sql!r}")
    there = {n.lower(): n for n in schema.names}
    bound = {i.name.lower() for lam in parsed.find_all(exp.Lambda) for i in lam.expressions}
    for column in parsed.find_all(exp.Column):
        root = (column.parts[0].name if column.parts else column.name).lower()
        if root not in there and root not in bound:
            raise unknown_column(column.sql("spark"), schema.names, f"{what} {sql!r}")
    if isinstance(plain, exp.Column) and plain.name.lower() in there:
        return plain, schema.field(there[plain.name.lower()])
    return plain, pa.field(plain.alias_or_name, _type_of(sql, schema))


def trouble_of(error: Exception, text: str, before: int) -> str:
    """What is wrong with SQL, in plain words.

    Args:
        error: The parser's error.
        text: The parser's input.
        before: The length of its beginning that the user did not write.
    """
    found = getattr(error, "errors", None)
    if not found:  # of the tokens
        opened = _open_quote(text)
        return "it cannot be read" if opened < 0 else f"a quote that is opened at {_spot(text, opened, before)} is not closed"
    first = found[0]
    word, line = first["highlight"], first["line"]
    begins = sum(map(len, text.splitlines(keepends=True)[: line - 1]))
    at = begins + first["col"] - len(word)
    spot, rest = _spot(text, at, before), text[at + len(word) :].strip()
    said = first["description"]
    if said.startswith("Required keyword"):
        return f"something is missing {'before' if word == ')' else 'after'} {word!r} at {spot}"
    if said.startswith("The number of provided arguments"):
        return f"a function has too many arguments before {word!r} at {spot}"
    if said.startswith("Expected") and "type" in said.lower():
        return f"{word!r} at {spot} is no type"
    if said.startswith("Expecting") and not rest:
        return f"a {said.split()[1]!r} is missing at its end"
    return f"{word!r} at {spot} is not expected there"


def _spot(text: str, at: int, before: int) -> str:
    """A place in SQL for people, who count from 1 and did not write the beginning."""
    line = text.count("\n", 0, at)
    column = at - (text.rfind("\n", 0, at) + 1 if line else before) + 1
    return f"line {line + 1}, character {column}" if line else f"character {column}"


def _open_quote(text: str) -> int:
    """Where an unclosed quote begins; −1: there is none."""
    opened, skip = -1, False
    for i, letter in enumerate(text):
        if skip:
            skip = False
        elif opened >= 0:
            skip = letter == "\\" and text[opened] != "`"
            opened = -1 if letter == text[opened] else opened
        elif letter in "'\"`":
            opened = i
    return opened


def check_condition(sql: str, schema: pa.Schema, what: str) -> None:
    """Check a Spark SQL condition against columns, as `check_expression` does an expression.

    Raises:
        DeclarationError: It is not one expression that is true or false for a row.
    """
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415

    plain, field = _checked(sql, schema, what)
    kind = field.type
    if isinstance(plain, exp.Alias):
        raise DeclarationError(f"{what} needs a condition, which has no name, but {sql!r} gives one; leave the name out.")
    last = sqlglot.tokenize(sql, dialect="spark")[-1]
    if last.text == ";" or "--" in sql[last.end + 1 :]:  # which would hide what follows
        raise DeclarationError(f"{what} needs a condition alone, but {sql!r} ends in a ';' or a comment; leave it out.")
    if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
        raise DeclarationError(f"{what} needs a condition, but {sql!r} is of type {kind}.")


_BY_CHANCE = frozenset(
    [
        "rand",
        "randn",
        "random",
        "uniform",
        "randstr",
        "uuid",
        "shuffle",
        "now",
        "curdate",
        "current_date",
        "current_timestamp",
        "localtimestamp",
        "current_time",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
    ]
)


def _check_by_row(parsed: Any, what: str) -> None:
    """Refuse what depends on other rows, on the clock or on chance, because a re-run would give another value."""
    from sqlglot import exp  # noqa: PLC0415

    for part in parsed.find_all(exp.Window, exp.Func, exp.Select):
        if isinstance(part, (exp.Window, exp.AggFunc, exp.Select)):
            raise DeclarationError(
                f"{what} depends on other rows, and an epoch has only some of them; do that in a stateful step after key_by: "
                "aggregate, window or stateful_map."
            )
        if isinstance(part, exp.UDTF):
            raise DeclarationError(
                f"{what} returns several rows per row; use map_batches, whose column _row has the input row of each."
            )
        name = part.name if isinstance(part, exp.Anonymous) else part.sql_name()
        if name.lower() in _BY_CHANCE or (isinstance(part, exp.StrToUnix) and part.this is None):
            raise DeclarationError(
                f"{what} has another value whenever an epoch runs again; use only values of the row, such as its event time."
            )


@lru_cache(maxsize=1024)
def to_duckdb(sql: str) -> str:
    """A Spark SQL expression in DuckDB's dialect."""
    import sqlglot  # noqa: PLC0415

    return str(sqlglot.transpile(f"SELECT {sql}", read="spark", write="duckdb")[0])[len("SELECT ") :]


def run_sql(table: pa.Table, query: str) -> pa.Table:
    """Run a DuckDB query over ``t``. Timestamps are UTC on both sides (DuckDB's time zones need an extension)."""
    naive = [c.cast(pa.timestamp("us")) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    cursor = _connection().cursor()
    cursor.register("t", pa.table(naive, names=table.column_names))
    found: Any = cursor.sql(query).to_arrow_table()
    cursor.close()
    columns = [c.cast(_UTC) if pa.types.is_timestamp(c.type) else c for c in found.columns]
    return pa.table(columns, names=found.column_names)


@lru_cache(maxsize=1)
def _connection() -> Any:
    import duckdb  # noqa: PLC0415  (loads when the first expression is checked)

    return duckdb.connect(":memory:", config={"threads": 1})


def _type_of(sql: str, schema: pa.Schema) -> Any:
    if any(pa.types.is_null(f.type) for f in schema):
        return pa.null()
    try:
        return run_sql(schema.empty_table(), f"SELECT {to_duckdb(sql)} FROM t LIMIT 0").schema.field(0).type  # noqa: S608
    except Exception:  # noqa: BLE001  (Spark decides at start what DuckDB cannot)
        return pa.null()


def on_one_line(sql: str) -> str:
    r"""SQL with one space in place of other white space, but for strings and names in backquotes; as it is where it has comments.

    Example:
        >>> on_one_line("v > 3\n  and s = 'a  b'")
        "v > 3 and s = 'a  b'"
    """
    return sql if "--" in sql or "/*" in sql else _BETWEEN.sub(lambda found: found[1] or " ", sql).strip()
