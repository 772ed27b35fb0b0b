"""Spark's `Column` objects as SQL text: what a user builds with ``F.col("delay") > 5`` as ``(delay > 5)``.

A classic Column holds a small tree (Spark's ``ColumnNode``, from 4.0). Each kind of node is written here as the SQL that Spark's parser
reads as the same expression; a kind that is not listed has no such text and is refused. So the text is exact or there is none.

Read next: `penstock.sql_text.given`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql.types import StructType

from penstock.errors import DeclarationError
from penstock.sql_text.schema import quoted, sql_text
from penstock.types import time_text

_INFIX: Final = {
    "and": "AND", "or": "OR", "=": "=", "==": "=", "<=>": "<=>", "!=": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">=",
    "+": "+", "-": "-", "*": "*", "/": "/", "%": "%", "&": "&", "|": "|", "^": "^", "like": "LIKE", "rlike": "RLIKE", "ilike": "ILIKE",
}  # fmt: skip
_PREFIX: Final = {"!": "NOT ", "not": "NOT ", "~": "~", "negative": "-", "-": "-"}
_SUFFIX: Final = {"isnull": " IS NULL", "isnotnull": " IS NOT NULL"}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = frozenset(
    [
        "all",
        "and",
        "any",
        "array",
        "as",
        "asc",
        "between",
        "both",
        "by",
        "case",
        "cast",
        "collate",
        "column",
        "cross",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_user",
        "date",
        "desc",
        "distinct",
        "else",
        "end",
        "escape",
        "except",
        "exists",
        "extract",
        "false",
        "filter",
        "for",
        "from",
        "full",
        "group",
        "having",
        "ilike",
        "in",
        "inner",
        "intersect",
        "interval",
        "into",
        "is",
        "join",
        "lateral",
        "leading",
        "left",
        "like",
        "limit",
        "map",
        "minus",
        "natural",
        "not",
        "null",
        "offset",
        "on",
        "or",
        "order",
        "outer",
        "over",
        "overlaps",
        "position",
        "right",
        "rlike",
        "select",
        "session_user",
        "some",
        "struct",
        "substring",
        "sum",
        "table",
        "then",
        "time",
        "timestamp",
        "to",
        "trailing",
        "trim",
        "true",
        "try_cast",
        "union",
        "unique",
        "unknown",
        "user",
        "using",
        "values",
        "when",
        "where",
        "window",
        "with",
        "within",
        "x",
    ]
)
"""Names that are quoted because they may mean something else in SQL; to quote one too many does no harm."""


_GREGORIAN_US: Final = -12_212_553_600_000_000
"""The year 1583: Java's older types count earlier days by another calendar."""


class _NoText(Exception):  # noqa: N818  (becomes a sentence at the door)
    """A node has no SQL; the text says what it is."""


def text_of(column: Any, what: str) -> str:
    """A Column as SQL text; of one with a name, the text ends in ``AS name``.

    Args:
        column: ``pyspark.sql.Column``.
        what: Where it stands, for the error.

    Raises:
        DeclarationError: It is one of Spark Connect, or has a part that cannot be written as SQL.
    """
    node = getattr(getattr(column, "_jc", None), "node", None)
    if node is None:
        raise DeclarationError(
            f"{what} is {column!r}, a Column of Spark Connect; write the expression as SQL text, which needs no session."
        )
    try:
        text = _sql(node())
    except _NoText as part:
        raise DeclarationError(f"{what} is a Column that {part}; write it as SQL text, or use map_batches.") from None
    return text[1:-1].strip() if _is_one_bracket(text) else text


def _sql(node: Any) -> str:
    kind = node.getClass().getSimpleName()
    write = _KINDS.get(kind)
    if write is None:
        raise _NoText(f"has a part without SQL, {node.sql()[:80]} ({kind})")
    return write(node)


def _attribute(node: Any) -> str:
    return ".".join(_name(part) for part in _all(node.nameParts()))


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name.lower() not in _WORDS else quoted(name)


def _frame_column(node: Any) -> str:
    """``df.delay``: a column of a DataFrame that Spark has looked up already."""
    expression = node.expression()
    kind = expression.getClass().getSimpleName()
    if kind != "AttributeReference":
        called = f"calls a Python function, {expression.name()}" if "UDF" in kind else f"has a part without SQL ({kind})"
        raise _NoText(called)
    return _name(expression.name())


def _star(node: Any) -> str:
    if node.unparsedTarget().isDefined():
        raise _NoText("takes the fields of a struct apart")
    return "*"


def _alias(node: Any) -> str:
    names = _all(node.name())
    if len(names) != 1:
        raise _NoText("has several names")
    child = _sql(node.child())
    return f"{child[1:-1] if _is_one_bracket(child) else child} AS {_name(names[0])}"


def _cast(node: Any) -> str:
    mode = node.evalMode()
    word = "CAST"
    if mode.isDefined():
        if not mode.get().getClass().getSimpleName().startswith("Try"):
            raise _NoText("has a cast of a mode of its own")
        word = "TRY_CAST"
    return f"{word}({_sql(node.child())} AS {node.dataType().sql()})"


def _case(node: Any) -> str:
    branches = "".join(
        f" WHEN {_sql(pair.productElement(0))} THEN {_sql(pair.productElement(1))}" for pair in _all(node.branches())
    )
    rest = f" ELSE {_sql(node.otherwise().get())}" if node.otherwise().isDefined() else ""
    return f"CASE{branches}{rest} END"


def _extract(node: Any) -> str:
    return f"{_sql(node.child())}[{_sql(node.extraction())}]"


def _lambda(node: Any) -> str:
    names = [_sql(argument) for argument in _all(node.arguments())]
    return f"{names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} -> {_sql(node.function())}"


def _function(node: Any) -> str:
    name = node.functionName()
    if node.isInternal():
        raise _NoText(f"calls {name}, which is Spark's own")
    arguments = [_sql(argument) for argument in _all(node.arguments())]
    low = name.lower()
    if node.isDistinct():
        return f"{name}(DISTINCT {', '.join(arguments)})"
    if low in _INFIX and len(arguments) == 2:
        return f"({arguments[0]} {_INFIX[low]} {arguments[1]})"
    if low in _PREFIX and len(arguments) == 1:
        return f"({_PREFIX[low]}{arguments[0]})"
    if low in _SUFFIX and len(arguments) == 1:
        return f"({arguments[0]}{_SUFFIX[low]})"
    if low == "in" and len(arguments) > 1:
        return f"({arguments[0]} IN ({', '.join(arguments[1:])}))"
    if low == "when":
        pairs = "".join(f" WHEN {a} THEN {b}" for a, b in zip(arguments[::2], arguments[1::2], strict=False))
        return f"CASE{pairs}{f' ELSE {arguments[-1]}' if len(arguments) % 2 else ''} END"
    if not all(_PLAIN.fullmatch(part) for part in name.split(".")):
        raise _NoText(f"has an operator that penstock does not know, {name}")
    return f"{name}({', '.join(arguments)})"


def _expression(node: Any) -> str:
    text = str(node.expression())
    return f"({text}\n)" if "--" in text else f"({text})"


def _literal(node: Any) -> str:
    value = node.value()
    if type(value) is int and not node.dataType().isDefined():
        text = node.sql()  # tells a long from an int
        if value == -(1 << 63):
            return "(-9223372036854775807L - 1L)"
        return f"({text})" if value < 0 else str(text)
    if node.dataType().isDefined():
        kind = node.dataType().get().sql()
        if value is not None and kind not in ("BOOLEAN", "INT", "BIGINT", "DOUBLE", "STRING"):
            return f"CAST({_value(value)} AS {kind})"
        return f"CAST(NULL AS {kind})" if value is None else _value(value)
    return _value(value)


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"({value})" if value < 0 else str(value)
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS DOUBLE)"
        text = f"{value!r}D"
        return f"({text})" if text.startswith("-") else text
    if isinstance(value, Decimal):
        return f"CAST('{value}' AS DECIMAL({max(len(value.as_tuple().digits), _scale(value))},{_scale(value)}))"
    if isinstance(value, str):
        return f"'{sql_text(value)}'"
    if isinstance(value, (bytes, bytearray)):
        return f"X'{bytes(value).hex().upper()}'"
    return _java_value(value)


def _scale(value: Decimal) -> int:
    return max(-int(value.as_tuple().exponent), 0)


def _java_value(value: Any) -> str:
    """A value that Python has no type for on this way: dates, times and time spans of Java's."""
    kind = value.getClass().getName()
    if kind in ("java.sql.Date", "java.time.LocalDate") and value.toString()[:4] >= "1583":
        return f"DATE '{value.toString()}'"
    if kind in ("java.sql.Timestamp", "java.time.Instant"):
        instant = value.toInstant() if kind == "java.sql.Timestamp" else value
        us = instant.getEpochSecond() * 1_000_000 + instant.getNano() // 1000
        if us >= _GREGORIAN_US:
            return f"TIMESTAMP '{time_text(us)}Z'"
    if kind == "java.time.Duration":
        us = value.getSeconds() * 1_000_000 + value.getNano() // 1000
        return f"INTERVAL '{'-' * (us < 0)}{abs(us) // 1_000_000}.{abs(us) % 1_000_000:06}' SECOND"
    raise _NoText(f"has a value without SQL, {value.toString()[:80]} ({kind})")


def _all(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


def _is_one_bracket(text: str) -> bool:
    """Whether a text is one expression in brackets, which are then not needed."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth, quote, at = 0, "", 0
    while at < len(text):
        letter = text[at]
        if quote:
            at += letter == "\\" and quote != "`"
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        else:
            depth += (letter == "(") - (letter == ")")
            if not depth and at < len(text) - 1:
                return False
        at += 1
    return True


_KINDS: Final[dict[str, Callable[[Any], str]]] = {
    "UnresolvedAttribute": _attribute,
    "UnresolvedStar": _star,
    "ExpressionColumnNode": _frame_column,
    "Literal": _literal,
    "UnresolvedFunction": _function,
    "Alias": _alias,
    "Cast": _cast,
    "CaseWhenOtherwise": _case,
    "UnresolvedExtractValue": _extract,
    "LambdaFunction": _lambda,
    "UnresolvedNamedLambdaVariable": lambda node: str(node.name()),
    "SqlExpression": _expression,
}
"""By the kind of a node, what writes it."""

__all__ = ["Column", "StructType", "text_of"]
