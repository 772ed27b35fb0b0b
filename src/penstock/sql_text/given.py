"""What users give where columns and expressions go, as text: SQL, Spark's `Column` objects, lists of either.

Whatever is declared is text from here on, so that a flow is declared, compared and stored without Spark. A `Column` exists only where the
user has imported PySpark; this is the one place that knows one, and `penstock.spark.column_text` reads it.

Read next: `penstock.sql_text.schema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import DeclarationError
from penstock.sql_text.schema import as_text, quoted, unknown_column

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.column_text import Column, StructType

    Expression: TypeAlias = str | Column
    """SQL text or a Spark Column."""
    Schema: TypeAlias = str | pa.Schema | StructType
    """Columns as text, as Arrow or as Spark has them."""


def is_column(value: Any) -> bool:
    """Whether a value is a Spark `Column`."""
    return any(kind.__name__ == "Column" and kind.__module__.startswith("pyspark.sql") for kind in type(value).__mro__)


def as_expression(value: Any, what: str) -> str:
    """An expression as SQL text.

    Raises:
        DeclarationError: It is neither text nor a Column, or a Column that has no text.
    """
    if is_column(value):
        from penstock.spark.column_text import text_of  # noqa: PLC0415  (there is a Column, so there is Spark)

        return text_of(value, what)
    return as_text(value, what)


def as_expressions(values: Mapping[str, Any], what: str) -> dict[str, str]:
    """Expressions by name, as SQL text."""
    return {name: as_expression(value, f"{what} {name}") for name, value in values.items()}


def as_texts(define: Any) -> Any:
    """Conditions by event type, with Columns as text; what is no dict of conditions is refused where they are checked."""
    if not isinstance(define, Mapping):
        return define
    return {name: as_expression(c, f"The condition of {name!r} in define") if is_column(c) else c for name, c in define.items()}


def as_operand(value: Any, what: str) -> str:
    """What an aggregate reads: the name of a column, or an expression.

    Example:
        >>> as_operand("delay / 60", "The column of sum")
        'delay / 60'
    """
    if not is_column(value):
        return as_text(value, what)
    text = as_expression(value, what)
    name = text[1:-1].replace("``", "`")
    return name if text == quoted(name) else text


def as_name(value: Any, what: str) -> str:
    """The name of a column: text, or a Column that is nothing but a name.

    Raises:
        DeclarationError: It is neither.
    """
    text = as_operand(value, what)
    if is_column(value) and as_expression(value, what) == text and not text.isidentifier():
        raise DeclarationError(
            f"{what} must be a column, not the expression {text!r}; give it a name before: with_columns(name=…)."
        )
    return text


def without_name(sql: str) -> tuple[str, str]:
    """An expression that may end in ``AS name``, as (expression, name or empty). What cannot be parsed comes back as it is.

    Example:
        >>> without_name("delay / 60 AS hours"), without_name("delay")
        (('delay / 60', 'hours'), ('delay', ''))
    """
    import sqlglot  # noqa: PLC0415
    from sqlglot import exp  # noqa: PLC0415

    try:
        parsed: Any = sqlglot.parse_one(f"SELECT {sql}", dialect="spark").expressions[0]
    except Exception:  # noqa: BLE001  (the parser's own, of many kinds; whoever checks the expression says what is wrong)
        return sql, ""
    return (str(parsed.this.sql("spark")), str(parsed.alias)) if isinstance(parsed, exp.Alias) else (sql, "")


def flat(values: Iterable[Any]) -> list[Any]:
    """Arguments of which some may be lists.

    Example:
        >>> flat(["a", ["b", "c"]])
        ['a', 'b', 'c']
    """
    return [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]


def spelled_in(name: str, names: Iterable[str]) -> str | None:
    """The column that a name means: it itself, or as in Spark the one that differs in case only; None: there is none.

    Example:
        >>> spelled_in("Delay", ["tail", "delay"])
        'delay'
    """
    there = list(names)
    return name if name in there else next((n for n in there if n.lower() == name.lower()), None)


def as_spelled(value: Any, names: Iterable[str], what: str) -> Any:
    """The column that a user means, by name or as a Column, as `spelled_in`; what is no column of these, or no column at all, as it is.

    Example:
        >>> as_spelled("Delay", ["tail", "delay"], "order_by"), as_spelled("at", ["tail"], "order_by"), as_spelled(5, ["tail"], "order_by")
        ('delay', 'at', 5)
    """
    if not (isinstance(value, str) or is_column(value)):
        return value
    name = as_name(value, what)
    return spelled_in(name, names) or name


def known_column(name: str, names: Iterable[str], what: str) -> str:
    """As `spelled_in`.

    Raises:
        DeclarationError: There is no such column.
    """
    there = list(names)
    found = spelled_in(name, there)
    if found is None:
        raise unknown_column(name, there, what)
    return found
