"""The streams that a query reads: those after ``FROM``, and the ``stream`` of ``stream>type``.

A DataFrame, or the rows of one source, are one stream, which a query may give any name. Several streams are merged in order and
have names.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.patterns.algebra import Event, Query
from penstock.patterns.scopes import subformulas
from penstock.patterns.source_locations import error_in


def streams_named(query: Query) -> tuple[str, ...]:
    """Every stream that a query names; the formula has them all, because it binds every variable."""
    types = (part.stream for part in subformulas(query.formula) if isinstance(part, Event))
    return tuple(dict.fromkeys([*query.streams, *(stream for stream in types if stream is not None)]))


def streams_read(query: Query, there: Sequence[str], what: str) -> tuple[str, ...]:
    """The streams that a query reads.

    Args:
        query: A parsed query.
        there: The names of the existing streams; empty: there is one unnamed stream.
        what: A sentence about them, for the error.

    Returns:
        Names of `there`, in that order: all, or those after ``FROM``. Empty if there is one unnamed stream.

    Raises:
        QueryError: The query reads a stream that does not exist, or several where there is one.
    """
    named = streams_named(query)
    if not there and len(named) > 1:
        raise error_in(query.text, named[1], f"the query reads streams {', '.join(named)}, but {what}.")
    for name in named if there else ():
        if name not in there:
            raise error_in(query.text, name, f"the query reads stream {name!r}, but {what}: {', '.join(there)}.")
    return tuple(name for name in there if not query.streams or name in query.streams)


__all__ = ["streams_named", "streams_read"]
