"""Conditions on one event as Spark SQL.

A condition holds if SQL says that it is true; null is not. This module fixes the meaning. The engine evaluates it: the JVM, or
DuckDB in the in-process harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import QueryError
from penstock.patterns import algebra as s
from penstock.patterns import comparing
from penstock.patterns.scopes import subformulas
from penstock.patterns.source_locations import error_in, error_in_clause
from penstock.sql_text.schema import check_condition, quoted, sql_text, unknown_column

_DIGITS = 18  # of a decimal whose unscaled value fits 64 bits
BEGIN, END = r"\A", r"\z"  # not ^ and $: a $ also matches before a final line break


def predicate_sql(predicate: s.Predicate) -> str:
    """A condition on one event as a boolean Spark SQL expression; null if unknown."""
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
    """A regular expression that matches only a whole text."""
    return f"{BEGIN}(?:{expression}){END}"


def filter_sql(condition: s.Filter) -> str:
    """The filter inside ``NOT(type FILTER ...)`` as a condition that is never null."""
    match condition:
        case s.Bound(predicate=predicate):
            return f"coalesce({predicate_sql(predicate)}, false)"
        case s.AllOf(left=left, right=right):
            return f"({filter_sql(left)} AND {filter_sql(right)})"
        case s.AnyOf(left=left, right=right):
            return f"({filter_sql(left)} OR {filter_sql(right)})"
        case s.Relation():
            raise AssertionError(condition)  # refused inside NOT


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
        case s.Of():
            raise AssertionError(operand)  # of another event
        case s.Minus(inner=inner):
            return f"(-{_operand(inner)})"
        case s.Arithmetic(op="/" | "%" as op, left=left, right=right):  # division by zero is unknown, not an error
            return f"({_operand(left)} {op} nullif({_operand(right)}, 0))"
        case s.Arithmetic(op=op, left=left, right=right):
            return f"({_operand(left)} {op} {_operand(right)})"


# ------------------------------------------------------------------------------------------------- against the columns


def check_query(query: s.Query, columns: pa.Schema, *, types: Mapping[str, str] | None) -> None:
    """Check a query against the events' columns.

    Args:
        query: a parsed query.
        columns: the events' columns; an unknown type is ``pa.null()``.
        types: the condition of each event type, if types are defined by conditions.

    Raises:
        QueryError: an attribute does not exist or has a type that the query cannot use; an event type is not defined.
        DeclarationError: a type's condition is invalid.
    """
    for condition in types.values() if types is not None else ():
        check_condition(condition, columns, "define")
    _Check(query, columns).run(types)


def check_time(query: s.Query, name: str, kind: pa.DataType) -> None:
    """Check that the order column can measure a window of time, and gaps."""
    for part in subformulas(query.formula):
        gap = part.gap if isinstance(part, s.Plus | s.Times | s.Then) else None
        if gap is not None and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise QueryError(f"{s.gap_text(gap)} needs events ordered by a time, but {name!r} is {kind}.")
    if query.window is not None and query.window.kind == "time" and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise error_in_clause(
            query,
            "window",
            f"WITHIN {query.window} needs events ordered by a time, but {name!r} is {kind}; "
            f"measure in its own unit: WITHIN number [{s.name_text(name)}].",
        )


def expressions_of(part: object) -> set[str]:
    """Every regular expression in a query, or in a part of it."""
    if isinstance(part, s.Like):
        return {part.pattern}
    parts = part if isinstance(part, tuple) else [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else ()
    return {pattern for inner in parts for pattern in expressions_of(inner)}


@dataclass(frozen=True)
class _Check:
    """A query and the events' columns."""

    query: s.Query
    columns: pa.Schema

    def run(self, types: Mapping[str, str] | None) -> None:
        query = self.query
        for part in subformulas(query.formula):
            if isinstance(part, s.Event | s.Not) and types is not None and part.type not in types:
                there = ", ".join(types) or "none"
                raise self._fail(part.type, f"event type {part.type!r} is not defined; define= has {there}.")
            if isinstance(part, s.Filtered):
                self._filter(part.filter)
            elif isinstance(part, s.Not) and part.condition is not None:
                self._filter(part.condition)
        if isinstance(query.projection, s.Chosen):
            for item in query.projection.items:
                for name in item.attributes:
                    self._type(name, f"SELECT {item}")
        for group in query.partition_by:
            self._group(group)
        if query.window is not None and query.window.attribute is not None:
            self._window(query.window, query.window.attribute)

    def _fail(self, word: str, message: str) -> QueryError:
        return error_in(self.query.text, word, message)

    def _group(self, group: tuple[str, ...]) -> None:
        kinds = {name: self._type(name, "PARTITION BY") for name in group}
        for name, kind in kinds.items():
            if pa.types.is_nested(kind):
                raise self._fail(
                    name, f"PARTITION BY cannot use column {name!r}, which is nested; use numbers, strings or times."
                )
        different = sorted({str(kind) for kind in kinds.values()} - {"null"})
        if len(different) > 1:
            shown = f"[{', '.join(group)}]"
            raise self._fail(
                group[0], f"PARTITION BY {shown} needs attributes of one type, but they are {' and '.join(different)}."
            )

    def _window(self, window: s.Window, name: str) -> None:
        kind = self._type(name, "WITHIN")
        if pa.types.is_decimal(kind) and kind.precision > _DIGITS:
            raise self._fail(
                name,
                f"WITHIN {window} measures decimals of at most {_DIGITS} digits, but {name!r} is {kind}; cast it to fewer.",
            )
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise self._fail(name, f"WITHIN {window} needs a column of numbers, but {name!r} is {kind}.")

    def _filter(self, condition: s.Filter) -> None:
        if isinstance(condition, s.Bound):
            self._predicate(condition.predicate, f"the filter {condition}")
        elif isinstance(condition, s.Relation):
            self._relation(condition)
        else:
            self._filter(condition.left)
            self._filter(condition.right)

    def _relation(self, relation: s.Relation) -> None:
        where = f"the filter {relation}"
        for value in relation.values:
            if pa.types.is_nested(self._type(value.attribute, where)):
                kind = self._type(value.attribute, where)
                raise self._fail(
                    value.attribute, f"{where} compares a {kind}; compare one of its fields, as a column of its own."
                )
        one, two = self._kind(relation.left, where), self._kind(relation.right, where)
        if one is not None and two is not None and one != two:
            raise self._fail(relation.op, f"{where} compares a {one} with a {two}.")
        try:
            comparing.check(relation, lambda value: self._type(value.attribute, where))
        except pa.ArrowInvalid:
            raise self._fail(
                relation.op,
                f"{where} needs numbers of more than {comparing.WIDEST} digits; cast the decimals to fewer, or to double.",
            ) from None

    def _predicate(self, predicate: s.Predicate, where: str) -> None:
        match predicate:
            case s.Negation(inner=inner):
                self._predicate(inner, where)
            case s.Both(left=first, right=second) | s.Either(left=first, right=second):
                self._predicate(first, where)
                self._predicate(second, where)
            case s.Compare(op=op, left=left, right=right):
                one, two = self._kind(left, where), self._kind(right, where)
                if one is not None and two is not None and one != two:
                    raise self._fail(op, f"{where} compares a {one} with a {two}: {predicate}.")
                if one not in {None, "number", "string"}:
                    only = "only numbers and strings can be compared; say it in SQL with define="
                    raise self._fail(op, f"{where} compares a {one}, but {only}: {predicate}.")
            case s.Like(attribute=name):
                self._expect(name, {"string"}, where)
            case s.Between(attribute=name):
                self._expect(name, {"number"}, where)
            case s.In(attribute=name, values=values):
                kinds = {"string" if isinstance(value, s.Text) else "number" for value in values}
                if len(kinds) > 1:
                    raise self._fail(name, f"{where} mixes numbers and strings in one list: {predicate}.")
                self._expect(name, kinds, where)

    def _expect(self, name: str, wanted: set[str], where: str) -> None:
        kind = self._kind(s.Attribute(name), where)
        if kind is not None and kind not in wanted:
            needed = " or ".join(sorted(wanted))
            raise self._fail(name, f"{where} needs {name!r} to be a {needed}, but it is {self._type(name, where)}.")

    def _kind(self, operand: s.Operand, where: str) -> str | None:
        """``"number"``, ``"string"``, the name of another type, or ``None`` if unknown."""
        match operand:
            case s.Number():
                return "number"
            case s.Text():
                return "string"
            case s.Attribute(name=name) | s.Of(attribute=name):
                kind = self._type(name, where)
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
            kind_of = self._kind(part, where)
            if kind_of not in {None, "number"}:
                word = part.name if isinstance(part, s.Attribute) else part.attribute if isinstance(part, s.Of) else ""
                raise self._fail(word, f"{where} calculates with {part}, which is a {kind_of}, not a number.")
        return "number"

    def _type(self, name: str, where: str) -> Any:
        if name in self.columns.names:
            return self.columns.field(name).type
        message = str(unknown_column(name, self.columns.names, where))
        if name.lower() in {"true", "false"}:
            message = (
                f"{where} uses {name}, which is not a value here; write it in SQL with define=, as define={{'Type': 'column'}}."
            )
        raise self._fail(name, message)
