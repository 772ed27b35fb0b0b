"""Places in a query's text, and errors that show them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import QueryError
from penstock.sql_text.schema import QUOTED

if TYPE_CHECKING:
    from penstock.patterns.algebra import Query


_BETWEEN = re.compile(rf"({QUOTED})|(?:\s+|--(?=\s|$)[^\n]*)+")


class Name(str):
    """A word of a query that knows its place. Otherwise a plain `str`; operations return plain strings.

    Attributes:
        line, column: from 1.
    """

    __slots__ = ("column", "line")
    line: int
    column: int

    def __new__(cls, text: str, line: int | None, column: int | None) -> Self:
        name = super().__new__(cls, text)
        name.line, name.column = line or 1, column or 1
        return name

    def __reduce__(self) -> Any:
        return str, (str(self),)


def error_in(text: str, word: object, message: str) -> QueryError:
    """An error that points at a word.

    Args:
        text: the query.
        word: a ``Name``; for anything else the error is only the message.
        message: a sentence.
    """
    return error_at(text, word.line, word.column, message) if text and isinstance(word, Name) else QueryError(message)


def error_in_clause(query: Query, clause: str, message: str) -> QueryError:
    """An error that points at the first word of a clause, if the query has it; see `Query.clauses`."""
    return error_in(query.text, query.clauses.get(clause), message)


def error_at(text: str, line: int, column: int, message: str) -> QueryError:
    """An error with its line and a caret below the place."""
    lines = lines_of(text)
    shown = lines[line - 1] if line <= len(lines) else ""
    before = shown[: column - 1]
    caret = "".join("\t" if c == "\t" else " " for c in before) + " " * (column - 1 - len(before)) + "^"
    return QueryError(f"line {line}, column {column}: {message}\n  {shown}\n  {caret}")


def lines_of(text: str) -> list[str]:
    """The lines as the parser counts them."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def query_on_one_line(text: str) -> str:
    """A query on one line, without its comments: two texts are the same then where they have the same words.

    White space within strings and names in backquotes stays, as it is part of them.
    """
    return _BETWEEN.sub(lambda found: found[1] or " ", text).strip()
