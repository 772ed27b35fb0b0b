"""Entries of a Redis stream as Arrow columns, column by column: no Python code runs for a field, unless it is malformed or nested.

Entries with the same fields in the same order have one *shape*, and are read at once; the usual stream has one shape, or a few.

Read next: `penstock.redis_client.values`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.redis_client.keys import NO_VALUES
from penstock.redis_client.values import decoded

_SHOWN: Final = 40


@dataclass(frozen=True)
class Columns:
    """What entries hold.

    Attributes:
        table: The columns, one row for each entry; those of a malformed one are as far as they could be read.
        malformed: By row, what is wrong with it.
    """

    table: pa.Table
    malformed: dict[int, str] = field(default_factory=dict)


def to_columns(entries: Sequence[list[bytes]], schema: pa.Schema, *, other_fields: bool = False) -> Columns:
    """Read entries.

    Args:
        entries: Of each one its fields: name, value, name, value, and so on.
        schema: The columns; a field that an entry lacks is null there.
        other_fields: Whether fields of other names are passed over; else their entry is malformed.

    Cost: with one shape, about 0.1 µs for each field that is a number.
    """
    if not entries:
        return Columns(schema.empty_table())
    whole = _uniform(entries)
    if whole is not None:
        columns, malformed = _of_shape(whole[0], whole[1], len(entries), schema, other_fields=other_fields)
        return Columns(pa.Table.from_arrays(columns, schema=schema), malformed)
    shapes: dict[tuple[bytes, ...], list[int]] = {}
    for at, fields in enumerate(entries):
        shapes.setdefault(tuple(fields[::2]), []).append(at)
    tables, malformed = [], {}
    for names, rows in shapes.items():
        flat = list(chain.from_iterable(entries[at] for at in rows))
        columns, bad = _of_shape(names, flat, len(rows), schema, other_fields=other_fields)
        tables.append(pa.Table.from_arrays(columns, schema=schema))
        malformed.update({rows[at]: why for at, why in bad.items()})
    order: Any = np.argsort(np.fromiter(chain.from_iterable(shapes.values()), np.int64, len(entries)))
    return Columns(pa.concat_tables(tables).take(order).combine_chunks(), malformed)


def _uniform(entries: Sequence[list[bytes]]) -> tuple[tuple[bytes, ...], list[bytes]] | None:
    """The fields' names and all fields one after the other, if all entries have one shape; else None."""
    width = len(entries[0])
    if any(len(fields) != width for fields in entries):
        return None
    flat = list(chain.from_iterable(entries))
    names = tuple(flat[:width:2])
    if any(flat[2 * i :: width].count(name) != len(entries) for i, name in enumerate(names)):
        return None
    return names, flat


def _of_shape(
    names: tuple[bytes, ...], flat: list[bytes], rows: int, schema: pa.Schema, *, other_fields: bool
) -> tuple[list[Any], dict[int, str]]:
    """The columns of entries of one shape, and what is wrong with which row."""
    malformed: dict[int, str] = {}
    places: dict[bytes, int] = {}
    for i, name in enumerate(names):
        if name in places:
            malformed = dict.fromkeys(range(rows), f"it has field {_text(name)} twice")
        places[name] = i
    known = {column.name.encode() for column in schema}
    if not other_fields and (more := [name for name in names if name not in known and name != NO_VALUES]):
        malformed = dict.fromkeys(range(rows), f"it has a field {_text(more[0])}, and there is no such column")
    columns: list[Any] = []
    for column in schema:
        place = places.get(column.name.encode())
        if place is None:
            columns.append(pa.nulls(rows, column.type))
            continue
        values = flat[2 * place + 1 :: 2 * len(names)]
        read, bad = decoded(pa.array(values, pa.binary()), column.type)
        columns.append(read)
        for at in bad:
            malformed[at] = f"its field {column.name!r} is {_text(values[at])}, which is no {column.type}"
    return columns, malformed


def shown(fields: Sequence[bytes]) -> str:
    """An entry as text, for people: JSON, or an array of pairs where a field comes twice."""
    pairs = [(n.decode(errors="backslashreplace"), v.decode(errors="backslashreplace")) for n, v in _pairs(fields)]
    twice = len(dict(pairs)) < len(pairs)
    return json.dumps(pairs if twice else dict(pairs), ensure_ascii=False)


def _pairs(fields: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(fields[::2], fields[1::2], strict=True))


def _text(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


__all__ = ["NO_VALUES", "Columns", "shown", "to_columns"]
