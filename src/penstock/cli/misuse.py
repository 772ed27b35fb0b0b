"""Errors in how a command was used, as opposed to its failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import DeclarationError, PenstockError, QueryError


class MisuseError(PenstockError):
    """The command's arguments are wrong; nothing has run. Exit code 2."""


@contextmanager
def as_typed() -> Iterator[None]:
    """Raise declaration errors inside as misuse, because the command has all declarations.

    Raises:
        MisuseError: A declaration is wrong.
    """
    try:
        yield
    except DeclarationError as error:
        raise MisuseError(str(error)) from error


def sentence(error: PenstockError) -> str:
    """An error in one line; a query error keeps its caret below."""
    keeps_lines = isinstance(error, QueryError) or isinstance(error.__cause__, QueryError)
    return str(error) if keeps_lines else " ".join(str(error).split())


__all__ = ["MisuseError", "as_typed", "sentence"]
