"""Conditions on one event as Spark SQL.

A condition holds if SQL says that it is true: null is not. Only the meaning is fixed here; who evaluates it (the JVM, DuckDB in the
in-process harness) is the engine's business.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from penstock.cer import syntax as s
from penstock.cer.scopes import subformulas
from penstock.errors import DeclarationError, QueryError
from penstock.schema import check_expression, quoted, sql_text, unknown_column

_DIGITS = 18  # of a decimal that is a whole number of 64 bits times a power of ten
BEGIN, END = r"\A", r"\z"  # not ^ and $: a $ is also true before a line break that ends the text


def predicate_sql(predicate: s.Predicate) -> str:
    """A condition on one event as a Spark SQL expression of type boolean, null where it is unknown."""
    match predicate:
        case s.Compare(op=op, left=left, right=right):
            return f"({_operand(left)} {op} {_operand(right)})"
        case s.Like(attribute=name, pattern=pattern):
            return f"({quoted(name)} RLIKE {text_sql(whole_text(pattern))})"
        case s.In(attribute=name, values=values, negated=negated):
            return f"({quoted(name)} {'NOT ' if negated else ''}IN ({', '.join(map(_operand, values))}))"
        case s.Between(attribute=name, low=low, high=high):
            ends = [f"{quoted(name)} {op} {end.text}" for op, end in ((">=", low), ("<=", high)) if end is not None]
            return f"({' AND '.join(ends)})"
        case s.Negation(inner=inner):
            return f"(NOT {predicate_sql(inner)})"
        case s.Both(left=first, right=second):
            return f"({predicate_sql(first)} AND {predicate_sql(second)})"
        case s.Either(left=first, right=second):
            return f"({predicate_sql(first)} OR {predicate_sql(second)})"


def whole_text(expression: str) -> str:
    """A regular expression that is true of a text only as a whole."""
    return f"{BEGIN}(?:{expression}){END}"


def filter_sql(condition: s.Filter) -> str:
    """The filter inside ``NOT(type FILTER ...)``, which speaks of one event, as a condition that is never null."""
    match condition:
        case s.Bound(predicate=predicate):
            return f"coalesce({predicate_sql(predicate)}, false)"
        case s.AllOf(left=left, right=right):
            return f"({filter_sql(left)} AND {filter_sql(right)})"
        case s.AnyOf(left=left, right=right):
            return f"({filter_sql(left)} OR {filter_sql(right)})"


def text_sql(value: str) -> str:
    """A string as a Spark SQL literal."""
    return f"'{sql_text(value)}'"


def _operand(operand: s.Operand) -> str:
    match operand:
        case s.Number(text=text):
            return f"({text})" if text.startswith("-") else text
        case s.Text(value=value):
            return text_sql(value)
        case s.Attribute(name=name):
            return quoted(name)
        case s.Minus(inner=inner):
            return f"(-{_operand(inner)})"
        case s.Arithmetic(op="/" | "%" as op, left=left, right=right):  # by zero is unknown, not an error
            return f"({_operand(left)} {op} nullif({_operand(right)}, 0))"
        case s.Arithmetic(op=op, left=left, right=right):
            return f"({_operand(left)} {op} {_operand(right)})"


# ------------------------------------------------------------------------------------------------- against the columns


def check_query(query: s.Query, columns: pa.Schema, *, types: dict[str, str] | None) -> None:
    """Check a query against the events' columns.

    Args:
        query: a parsed query.
        columns: the events' columns; a type that is not known yet is ``pa.null()``.
        types: the condition of each event type, if types are defined by conditions.

    Raises:
        QueryError: an attribute does not exist or has a type that the query cannot use; an event type is not defined.
        DeclarationError: a type's condition is not one.
    """
    for condition in types.values() if types is not None else ():
        kind = check_expression(condition, columns, "define").type
        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            raise DeclarationError(f"define needs conditions, but {condition!r} is of type {kind}.")
    for part in subformulas(query.formula):
        if isinstance(part, s.Event | s.Not) and types is not None and part.type not in types:
            raise QueryError(f"Event type {part.type!r} is not defined; define= has {', '.join(types) or 'none'}.")
        if isinstance(part, s.Filtered):
            _check_filter(part.filter, columns)
        elif isinstance(part, s.Not) and part.condition is not None:
            _check_filter(part.condition, columns)
    if isinstance(query.projection, s.Chosen):
        for item in query.projection.items:
            for name in item.attributes:
                _type(name, columns, f"SELECT {item}")
    for name in (name for group in query.partition_by for name in group):
        if pa.types.is_nested(_type(name, columns, "PARTITION BY")):
            raise QueryError(f"PARTITION BY cannot use column {name!r}, which is nested; use numbers, strings or times.")
    for group in query.partition_by:
        kinds = {str(_type(name, columns, "PARTITION BY")) for name in group} - {"null"}
        if len(kinds) > 1:
            raise QueryError(
                f"PARTITION BY [{', '.join(group)}] needs attributes of one type, but they are {' and '.join(sorted(kinds))}."
            )
    if query.window is not None and query.window.attribute is not None:
        name = query.window.attribute
        kind = _type(name, columns, "WITHIN")
        if pa.types.is_decimal(kind) and kind.precision > _DIGITS:
            raise QueryError(
                f"WITHIN {query.window} measures decimals of at most {_DIGITS} digits, but {name!r} is {kind}; cast it to fewer."
            )
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise QueryError(f"WITHIN {query.window} needs a column of numbers, but {name!r} is {kind}.")


def check_time(query: s.Query, name: str, kind: pa.DataType) -> None:
    """Check that a window of time can be measured in the column that orders the events."""
    if query.window is not None and query.window.kind == "time" and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise QueryError(
            f"WITHIN {query.window} needs events ordered by a time, but {name!r} is {kind}; "
            f"measure in its own unit: WITHIN number [{s.name_text(name)}]."
        )


def expressions_of(part: object) -> set[str]:
    """Every regular expression in a query, or in a part of it."""
    if isinstance(part, s.Like):
        return {part.pattern}
    parts = part if isinstance(part, tuple) else [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else ()
    return {pattern for inner in parts for pattern in expressions_of(inner)}


def _check_filter(condition: s.Filter, columns: pa.Schema) -> None:
    if isinstance(condition, s.Bound):
        _check_predicate(condition.predicate, columns, f"The filter {condition}")
    else:
        _check_filter(condition.left, columns)
        _check_filter(condition.right, columns)


def _check_predicate(predicate: s.Predicate, columns: pa.Schema, where: str) -> None:
    match predicate:
        case s.Negation(inner=inner):
            _check_predicate(inner, columns, where)
        case s.Both(left=first, right=second) | s.Either(left=first, right=second):
            _check_predicate(first, columns, where)
            _check_predicate(second, columns, where)
        case s.Compare(left=left, right=right):
            kinds = _kind(left, columns, where), _kind(right, columns, where)
            if None not in kinds and kinds[0] != kinds[1]:
                raise QueryError(f"{where} compares a {kinds[0]} with a {kinds[1]}: {predicate}.")
            if kinds[0] not in {None, "number", "string"}:
                raise QueryError(f"{where} compares a {kinds[0]}, but only numbers and strings can be compared: {predicate}.")
        case s.Like(attribute=name):
            _expect(name, columns, {"string"}, where)
        case s.Between(attribute=name):
            _expect(name, columns, {"number"}, where)
        case s.In(attribute=name, values=values):
            kinds_in = {"string" if isinstance(value, s.Text) else "number" for value in values}
            if len(kinds_in) > 1:
                raise QueryError(f"{where} mixes numbers and strings in one list: {predicate}.")
            _expect(name, columns, kinds_in, where)


def _expect(name: str, columns: pa.Schema, wanted: set[str], where: str) -> None:
    kind = _kind(s.Attribute(name), columns, where)
    if kind is not None and kind not in wanted:
        raise QueryError(
            f"{where} needs {name!r} to be a {' or '.join(sorted(wanted))}, but it is {_type(name, columns, where)}."
        )


def _kind(operand: s.Operand, columns: pa.Schema, where: str) -> str | None:
    """``"number"``, ``"string"``, the name of another type, or ``None`` if it is not known yet."""
    match operand:
        case s.Number():
            return "number"
        case s.Text():
            return "string"
        case s.Attribute(name=name):
            kind = _type(name, columns, where)
            if pa.types.is_null(kind):
                return None
            if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
                return "number"
            return "string" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)
        case s.Minus(inner=inner):
            parts: tuple[s.Operand, ...] = (inner,)
        case s.Arithmetic(left=left, right=right):
            parts = (left, right)
    for part in parts:
        kind_of = _kind(part, columns, where)
        if kind_of not in {None, "number"}:
            raise QueryError(f"{where} calculates with {part}, which is a {kind_of}, not a number.")
    return "number"


def _type(name: str, columns: pa.Schema, where: str) -> Any:
    if name not in columns.names:
        raise QueryError(str(unknown_column(name, columns.names, where)))
    return columns.field(name).type
