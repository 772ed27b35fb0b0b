"""The state of users' functions as bytes, also state that was stored in an older layout or before a migration.

A value of the first layout that a checkpoint had is stored as its codec gives it. Later ones end with the number of their layout and 0xff,
which tells them apart: a pickle ends with a full stop, and packed columns have one length, which a longer value is made not to have.

Read next: `penstock.operators.stateful_map`.
"""

from __future__ import annotations

import datetime as dt
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.operators.layouts import MIGRATED
from penstock.rows.named import row_type, values_by_name
from penstock.rows.returned import Unfit, to_column

_CODES: Final = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "double": "d", "float": "f", "bool": "?"}
_MOST_PACKED: Final = 16
_LATER: Final = 0xFF


class StateCodec:
    """A state declared by a schema, as bytes: fixed-width columns packed, others pickled as one tuple."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._row: Any = row_type("State", tuple(schema.names))
        self._packer = _packer([str(f.type) for f in schema])
        self._flags = [i for i, f in enumerate(schema) if pa.types.is_boolean(f.type)]  # struct accepts anything as a boolean
        self._fields = [(*_usual(field.type), field) for field in schema]
        self.fixed: bool = not any(pa.types.is_nested(field.type) for field in schema)

    def dump(self, state: Any) -> bytes:
        """Bytes of a state: a tuple, named tuple or dict with the declared fields.

        Raises:
            Unfit: The value does not fit the declared schema.
        """
        try:
            values = self._values(state)
            if len(values) != len(self._schema):
                raise TypeError(f"{len(values)} values for {len(self._schema)} fields")  # noqa: TRY301
            if self._packer is None:
                self._check(values)
                return pickle.dumps(values, protocol=5)
            for i in self._flags:
                if values[i] is not None and not isinstance(values[i], (bool, np.bool_)):
                    raise TypeError(f"{values[i]!r} is not true or false")  # noqa: TRY301
            missing = sum(1 << i for i, v in enumerate(values) if v is None)
            return self._packer.pack(missing, *(0 if v is None else v for v in values))
        except Exception as error:
            fields = ", ".join(f"{f.name} {f.type}" for f in self._schema)
            raise Unfit(f"returned the state {state!r}, which is not ({fields}): {error}") from error

    def _values(self, state: Any) -> tuple[Any, ...]:
        values = tuple(state[n] for n in self._schema.names) if isinstance(state, dict) else state
        return (
            tuple(values_by_name(values, self._schema.names)) if isinstance(values, tuple) else (values,)
        )  # the columns are known

    def _check(self, values: tuple[Any, ...]) -> None:
        """Refuse values that do not fit; for usual types, checking the Python type suffices."""
        for value, (usual, least, most, field) in zip(values, self._fields, strict=True):
            if value is not None and (type(value) is not usual or (most and not least <= value <= most)):
                to_column([value], field)

    def settle(self, state: Any) -> Any:
        """A returned state as `load` would return it, so that a function does not see where an epoch ends.

        Raises:
            Unfit: As `dump`.
        """
        if self._packer is not None or isinstance(state, dict):
            return self.load(self.dump(state))
        values = self._values(state)
        if len(values) != len(self._schema):
            return self.load(self.dump(state))
        try:
            self._check(values)
        except Unfit:
            self.dump(state)
        return self._row._make(values)

    def body(self, stored: bytes) -> bytes:
        """A value without what tells its layout."""
        return stored[:-2] if self._packer is None else stored[: self._packer.size]

    def load(self, raw: bytes) -> Any:
        """A stored state as a named tuple."""
        if self._packer is None:
            return self._row._make(pickle.loads(raw))
        missing, *values = self._packer.unpack(raw)
        return self._row._make(None if missing >> i & 1 else v for i, v in enumerate(values))


class PickleCodec:
    """Any picklable value as state."""

    fixed = False

    def dump(self, state: Any) -> bytes:
        try:
            return pickle.dumps(state, protocol=5)
        except Exception as error:
            raise Unfit(
                f'returned a state of type {type(state).__name__} that cannot be stored ({error}); keep plain data, or declare state="…"'
            ) from error

    def settle(self, state: Any) -> Any:
        return state

    def body(self, stored: bytes) -> bytes:
        return stored[:-2]

    def load(self, raw: bytes) -> Any:
        return pickle.loads(raw)


def _usual(kind: pa.DataType) -> tuple[Any, int, int]:
    """The Python type of most values of a type, and for whole numbers the least and the greatest; else 0."""
    types: list[tuple[Any, Any]] = [
        (pa.types.is_string, str),
        (pa.types.is_binary, bytes),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_timestamp, dt.datetime),
        (pa.types.is_date, dt.date),
    ]
    if pa.types.is_integer(kind):
        most = 2 ** (cast("Any", kind).bit_width - 1)
        return int, -most, most - 1
    return next((usual for is_it, usual in types if is_it(kind)), None), 0, 0


class MigrationFailed(Exception):  # noqa: N818  (an error of the user's function, told with step and key by who called it)
    """A user's migration raised, or gave what cannot be stored; the cause is what it raised."""


class StoredState:
    """A step's stored values: today's, and those of all layouts that it ever had in this checkpoint.

    Args:
        schema: The declared state; None: any picklable value.
        layouts: All layouts, the present one last; one or none: there never was another.
        migrate: The functions from an older state to the next one, oldest first.
    """

    def __init__(
        self, schema: pa.Schema | None, layouts: Sequence[Mapping[str, str]], migrate: Sequence[Callable[[Any], Any]]
    ) -> None:
        self.codec: Any = PickleCodec() if schema is None else StateCodec(schema)
        self._readers = [_Reader(layout) for layout in layouts]
        self._last = max(0, len(layouts) - 1)
        self._migrated = [int(layout.get(MIGRATED, 0)) for layout in layouts]
        self._migrate = migrate
        self._first = self._readers[0].size if layouts else 0

    @property
    def has_others(self) -> bool:
        """Whether there ever was another layout."""
        return self._last > 0

    def tagged(self, value: bytes) -> bytes:
        """A value of today's codec as it is stored."""
        if not self._last:
            return value
        pad = b"\0" if len(value) + 2 == self._first else b""
        return value + pad + bytes([self._last, _LATER])

    def current(self, stored: bytes) -> bytes:
        """A stored value as today's codec gives it: columns are found by name, and what is older than a migration goes through it.

        Raises:
            MigrationFailed: A migration raised, or gave what cannot be stored. Nothing was changed.
        """
        if not self._last:
            return stored
        generation = self._generation(stored)
        if generation == self._last:
            return self.codec.body(stored)  # type: ignore[no-any-return]
        state = self._readers[generation].load(stored)
        for before, now in pairwise(range(generation, self._last + 1)):
            functions = self._migrate[self._migrated[before] : self._migrated[now]]
            state = self._readers[now].row(_through(functions, state) if functions else self._readers[before].by_name(state))
        try:
            return self.codec.dump(state)  # type: ignore[no-any-return]
        except Unfit as error:
            raise MigrationFailed(f"it {error}") from error

    def is_older(self, stored: bytes) -> bool:
        """Whether a stored value is of an older layout."""
        return self._last > 0 and self._generation(stored) < self._last

    def _generation(self, stored: bytes) -> int:
        first = len(stored) == self._first if self._first else stored[-1] != _LATER
        return 0 if first else stored[-2]


def _through(functions: Sequence[Callable[[Any], Any]], state: Any) -> Any:
    """A state as migrations give it. Between two of them a dict becomes a named tuple, as it does between two runs."""
    declared = hasattr(state, "_fields")
    for function in functions:
        if declared and isinstance(state, dict):
            state = row_type("State", tuple(state))._make(state.values())
        name = getattr(function, "__name__", "the function")
        try:
            state = function(state)
        except Exception as error:
            raise MigrationFailed(f"{name} raised {type(error).__name__}: {error}") from error
        if state is None:
            raise MigrationFailed(f"{name} returned None; return the new state")
    return state


class _Reader:
    """Reads values of one layout."""

    def __init__(self, layout: Mapping[str, str]) -> None:
        columns = {name: kind for name, kind in layout.items() if name != MIGRATED}
        self.names = None if "" in columns else list(columns)
        self._row: Any = None if self.names is None else row_type("State", tuple(self.names))
        self._packer = None if self.names is None else _packer(list(columns.values()))
        self.size = self._packer.size if self._packer else 0
        """Bytes of every value of it, without what tells its layout; 0: they differ."""

    def load(self, stored: bytes) -> Any:
        """A state of this layout."""
        if self._packer is None:
            return self.row(pickle.loads(stored))  # ignores what follows the pickle
        missing, *values = self._packer.unpack_from(stored)
        return self._row._make(None if missing >> i & 1 else v for i, v in enumerate(values))

    def by_name(self, state: Any) -> Any:
        """A state of this layout for a layout with further columns."""
        return state if self.names is None else dict(zip(self.names, state, strict=True))

    def row(self, state: Any) -> Any:
        """A state as a function gets it; columns that it lacks are null.

        Raises:
            MigrationFailed: It has another number of columns.
        """
        if self.names is None:
            return state
        if isinstance(state, dict):
            strange = [name for name in state if name not in self.names]
            values = tuple(state.get(name) for name in self.names)
        else:
            strange, values = [], tuple(state) if isinstance(state, tuple) else (state,)
        if strange or len(values) != len(self.names):
            raise MigrationFailed(f"it returned the state {state!r}, which has not the columns {', '.join(self.names)}")
        return self._row._make(values)


def _packer(types: Sequence[str]) -> struct.Struct | None:
    """How columns of fixed width are packed; None: they are pickled."""
    codes = [_CODES.get(kind) for kind in types]
    return struct.Struct("<H" + "".join(str(c) for c in codes)) if all(codes) and len(codes) <= _MOST_PACKED else None


__all__ = ["MigrationFailed", "PickleCodec", "StateCodec", "StoredState"]
