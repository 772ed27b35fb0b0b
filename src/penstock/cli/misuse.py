"""What tells a command that was used wrongly from one that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import DeclarationError, PenstockError, QueryError


class MisuseError(PenstockError):
    """What stands in the command is wrong; nothing has run. It ends with exit code 2."""


@contextmanager
def as_typed() -> Iterator[None]:
    """All that is declared inside stands in the command, so what is wrong with it was typed.

    Raises:
        MisuseError: It is wrong.
    """
    try:
        yield
    except DeclarationError as error:
        raise MisuseError(str(error)) from error


def sentence(error: PenstockError) -> str:
    """An error in one line; that of a query keeps its caret below."""
    keeps_lines = isinstance(error, QueryError) or isinstance(error.__cause__, QueryError)
    return str(error) if keeps_lines else " ".join(str(error).split())


__all__ = ["MisuseError", "as_typed", "sentence"]
