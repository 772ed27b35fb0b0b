"""Users' functions from an old state to a new one: `migrate=` of a step.

The number of a step's functions is the version of its state. A value of version v goes through the functions from the v-th on when it is
first read, and is stored again at once, so each function sees each value once, wherever its key has moved.

Read next: `penstock.operators.stored_state`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.errors import OperatorError
from penstock.operators.base import KeyedState, Operator, StateView
from penstock.operators.layouts import MIGRATED
from penstock.operators.stored_state import MigrationFailed, StoredState
from penstock.rows.keys import Ints
from penstock.sql_text.schema import as_function
from penstock.types import MAX_TIME


def as_migrations(given: Any) -> tuple[Callable[[Any], Any], ...]:
    """One function, or several, as given for `migrate=`.

    Raises:
        DeclarationError: Something else was given.
    """
    functions = (given,) if callable(given) else tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for function in functions:
        as_function(function, "migrate", "migrate(state)", 1)
    return functions


@contextlib.contextmanager
def told_with_key(step: Operator, key_of: Callable[[], Any]) -> Iterator[None]:
    """Raise what a migration fails with as an error with step and key.

    Raises:
        OperatorError: It failed. Nothing was committed.
    """
    try:
        yield
    except MigrationFailed as error:
        raise OperatorError(
            f"The migration of {step.describe()} of region {step.context.region!r} failed on key {key_of()!r}: {error}; fix the function."
        ) from (error.__cause__ or error)


class MigratedView:
    """State of an operator of a user's own that keeps objects (`KeyedState.put_objects`), some from before its migrations."""

    def __init__(self, view: StateView, operator: Operator) -> None:
        context = operator.context
        layouts = [{"": "any value"} | {n: v for n, v in layout.items() if n == MIGRATED} for layout in context.layouts]
        self._view, self._operator = view, operator
        self._kept = StoredState(None, layouts, tuple(operator.migrate or ()))
        self._keys = KeyedState(view, context)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        values = self._view.get_many(keys)
        there = [(key, value) for key, value in dict(zip(keys, values, strict=True)).items() if value is not None]
        now = dict(self._current(there))
        return [now.get(key) for key in keys]

    def get_timed(self, keys: list[bytes], due: tuple[int, int] | None = None) -> tuple[list[bytes | None], Ints]:
        values = self.get_many(keys)
        return values, self._view.get_timed(keys, due)[1]

    def put_many(self, keys: list[bytes], values: list[bytes], timers: Ints | None = None) -> None:
        self._view.put_many(keys, list(map(self._kept.tagged, values)), timers)

    def delete_many(self, keys: list[bytes]) -> None:
        self._view.delete_many(keys)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return self._current(self._view.scan(prefix))

    def due(self, operator: int, upto_us: int) -> list[tuple[bytes, bytes]]:
        return self._current(self._view.due(operator, upto_us))

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        timers = {name: timer for name, _, timer in self._view.entries(prefix)}
        return [(name, value, timers[name]) for name, value in self.scan(prefix)]

    def _current(self, entries: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Entries as they are now; those from before a migration are stored again, with their timers."""
        out, names, values = [], [], []
        for name, stored in entries:
            with told_with_key(self._operator, lambda: self._keys.keys_of([name])[0].values()[0]):  # noqa: B023
                value = self._kept.current(stored)
            out.append((name, value))
            if self._kept.is_older(stored):
                names.append(name)
                values.append(self._kept.tagged(value))
        if names:
            timers = [next((t for n, _, t in self._view.entries(name) if n == name), MAX_TIME) for name in names]
            self._view.put_many(names, values, np.array(timers, np.int64))
        return out


def view_of(view: StateView, operator: Operator) -> StateView:
    """What a started operator sees of its state."""
    own = operator.typed or operator.migrates_itself
    return MigratedView(view, operator) if operator.migrate and not own else view


__all__ = ["MigratedView", "as_migrations", "told_with_key", "view_of"]
