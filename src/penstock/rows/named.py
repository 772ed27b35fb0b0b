"""Rows that users' functions are given: tuples whose values also have names, whatever the names are.

A namedtuple would rename a column called ``class`` or ``_x``. Here it keeps its name: ``event._x``, ``getattr(event, "class")``,
``event["class"]``. A row can be pickled, although its type is made while a flow runs, so a function may return it as its state.
"""

from __future__ import annotations

import difflib
import re
from collections import namedtuple
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any


class NamedRow(tuple[Any, ...]):
    """The base of the types that `row_type` makes."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    @classmethod
    def _make(cls, values: Iterable[Any]) -> NamedRow:
        return tuple.__new__(cls, values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(type(self)._fields, self, strict=True))

    def _replace(self, **changes: Any) -> NamedRow:
        """The row with other values in some columns."""
        row = self._asdict()
        if odd := changes.keys() - row.keys():
            raise ValueError(f"the row has no column {min(odd)!r}; there are {', '.join(row)}")
        return self._make((row | changes).values())

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            fields = type(self)._fields
            if at not in fields:
                raise KeyError(at)
            return tuple.__getitem__(self, fields.index(at))
        return tuple.__getitem__(self, at)

    def __getattr__(self, name: str) -> Any:
        fields = type(self)._fields
        if name.startswith("__"):
            raise AttributeError(name)
        near = difflib.get_close_matches(name, fields, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(fields)}"
        raise AttributeError(f"the {type(self).__name__.lower()} has no column {name!r}; {hint}")

    def __reduce__(self) -> Any:
        return _made, (type(self).__name__, type(self)._fields, tuple(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(type(self)._fields, self, strict=True))
        return f"{type(self).__name__}({shown})"


@lru_cache(maxsize=512)
def row_type(kind: str, names: Sequence[str]) -> type[NamedRow]:
    """A type of rows with these columns.

    Args:
        kind: Its name, for people.
        names: The columns. One whose name is no Python name, such as ``a b``, is also an attribute with underscores, ``a_b``.

    Example:
        >>> row = row_type("Event", ("class", "a b"))._make([1, 2])
        >>> row["class"], row.a_b, row
        (1, 2, Event(class=1, a b=2))
    """
    names = tuple(names)
    values: dict[str, Any] = {"__slots__": (), "_fields": names, "__doc__": f"A row with the columns {', '.join(names)}."}
    clean = [re.sub(r"\W|^(?=\d)", "_", n) for n in names]
    # Its getters are in C; `__getitem__` above is not. The class must outlive the loop: collected, it would take them along.
    numbered: type = namedtuple("At", [f"at{i}" for i in range(len(names))])  # type: ignore[misc]  # noqa: PYI024
    for attributes in (clean, names):  # an exact name wins
        for at, name in enumerate(attributes):
            if not (name.startswith("__") and name.endswith("__")) and name not in _OWN:
                values[name] = getattr(numbered, f"at{at}")
    return type(kind, (NamedRow,), values)


def values_by_name(row: tuple[Any, ...], names: Sequence[str]) -> tuple[Any, ...]:
    """The values of a row for these columns: of a named one that has them all by name, otherwise as they are."""
    fields = getattr(type(row), "_fields", None) if isinstance(row, NamedRow) else None
    if fields is None or fields == tuple(names) or not set(names) <= set(fields):
        return row
    return tuple(tuple.__getitem__(row, fields.index(name)) for name in names)


_OWN = frozenset({"_fields", "_make", "_asdict", "_replace"})


def _made(kind: str, names: tuple[str, ...], values: tuple[Any, ...]) -> NamedRow:
    """A row, unpickled."""
    return row_type(kind, names)._make(values)


__all__ = ["NamedRow", "row_type", "values_by_name"]
