"""The columns of the result.

Pure and columnar: from numbers of events to Arrow arrays by ``take``; no match is ever a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import HasColumns, to_indices
from penstock.errors import OperatorError
from penstock.patterns.algebra import Chosen, CountAll, Everything, Query
from penstock.patterns.automaton.build import outputs
from penstock.patterns.recogniser.recogniser import Block
from penstock.patterns.source_locations import error_in

EVENTS, START, END, MATCHES = "events", "match_start", "match_end", "matches"
_TWO = "the result would have two columns"
COUNT_TYPE = pa.decimal128(38, 0)


@dataclass(frozen=True, slots=True)
class Bound:
    """One array column of the result.

    Attributes:
        name: the column.
        variable: the variable whose events it holds; ``None``: all marked events.
        attributes: the fields of each event.
    """

    name: str
    variable: str | None
    attributes: tuple[str, ...]


class Table(HasColumns, Protocol):
    """Events: an Arrow batch, or another table with columns."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The result's columns after the key's.

    Attributes:
        counts: whether there is one row per closing event, with the number of its matches.
        bound: the array columns.
        kinds: the variables each kind of mark binds, see ``Automaton.kinds``.
    """

    counts: bool
    bound: tuple[Bound, ...]
    kinds: tuple[tuple[str, ...], ...]

    @property
    def attributes(self) -> tuple[str, ...]:
        """The event columns that the result shows."""
        return tuple(dict.fromkeys(name for bound in self.bound for name in bound.attributes))

    def fields(self, columns: pa.Schema, order: pa.DataType) -> list[pa.Field[Any]]:
        """The result's fields after the key's, given the event's columns and the type of the order column."""
        if self.counts:
            return [pa.field(END, order), pa.field(MATCHES, COUNT_TYPE)]
        arrays = [pa.field(b.name, pa.list_(pa.struct([columns.field(a) for a in b.attributes]))) for b in self.bound]
        return [pa.field(START, order), pa.field(END, order), *arrays]

    def arrays(self, block: Block, events: Table) -> list[Any]:
        return [self._array(bound, block, events) for bound in self.bound]

    def _array(self, bound: Bound, block: Block, events: Table) -> Any:
        positions, offsets = block.positions, block.offsets
        if bound.variable is not None:
            binds = np.array([False, *(bound.variable in kind for kind in self.kinds)])
            chosen = binds[block.kinds]
            before = np.concatenate([[0], np.cumsum(chosen)])
            positions, offsets = positions[chosen], before[offsets]
        return list_of(events, bound.attributes, positions, offsets)


def list_of(events: Table, attributes: tuple[str, ...], positions: NDArray[np.int32], offsets: NDArray[np.int64]) -> Any:
    """Lists of events as structs: row i has the events at ``positions[offsets[i]:offsets[i + 1]]``."""
    rows = to_indices(positions)
    fields = [events.schema.field(name) for name in attributes]
    columns = [events.column(name).take(rows) for name in attributes]
    structs = pa.StructArray.from_arrays(columns, fields=fields) if fields else pa.array([{}] * len(rows), pa.struct([]))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def check_case(query: str, shape: Shape, keys: Iterable[str]) -> None:
    """Refuse a result in which SQL, which may follow in a flow, does not tell two columns apart.

    Args:
        query: the query's text.
        shape: the result's.
        keys: the names of the key's columns in the result.

    Raises:
        QueryError: two names differ in case only.
    """
    there = {name.lower(): name for name in (*keys, *((END, MATCHES) if shape.counts else (START, END)))}
    for bound in shape.bound:
        if (other := there.setdefault(bound.name.lower(), bound.name)) != bound.name:
            raise error_in(
                query,
                bound.name,
                f"{_TWO} {other!r} and {bound.name!r}, which are the same to SQL; name the variable differently with AS.",
            )


def shape_of(query: Query, columns: tuple[str, ...], kinds: tuple[tuple[str, ...], ...], keys: tuple[str, ...]) -> Shape:
    """The result's shape for a query over events with these columns.

    Args:
        query: a parsed query.
        columns: the events' columns.
        kinds: see ``Automaton.kinds``.
        keys: the names of the key's columns in the result.

    Raises:
        QueryError: two columns of the result would have one name.
    """
    projection = query.projection
    taken = [*keys, END, MATCHES] if isinstance(projection, CountAll) else [*keys, START, END]
    for n, name in enumerate(taken):
        if name in taken[:n]:
            word = next((word for group in query.partition_by for word in group if word == name), None)
            raise error_in(query.text, word, f"{_TWO} {name!r}, of which one is the key's; rename that of the events.")
    if isinstance(projection, CountAll):
        return Shape(counts=True, bound=(), kinds=kinds)
    bound: list[Bound] = []
    if isinstance(projection, Everything):
        bound = [Bound(EVENTS, None, columns), *(Bound(name, name, columns) for name in outputs(query))]
    elif isinstance(projection, Chosen):
        for item in projection.items:
            label = item.variable if item.stream is None else f"{item.stream}>{item.variable}"
            bound.append(Bound(item.variable, label, item.attributes or columns))
    for name in (b.name for b in bound):
        if name in taken:
            raise error_in(query.text, name, f"{_TWO} {name!r}; name the variable differently with AS.")
        taken.append(name)
    return Shape(counts=False, bound=tuple(bound), kinds=kinds)


def summed(ends: NDArray[np.int64], words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Any]:
    """One count per closing event, which may close runs that end in several ways.

    Args:
        ends: The closing events, int64[n]; equal ones are adjacent.
        words: Low and high words of their counts, uint64[2, n]; the top bit is set on overflow.

    Returns:
        Each closing event once, and the sum of its counts as decimal(38, 0).

    Raises:
        OperatorError: A sum has more than 38 digits.
    """
    if not len(ends):
        return ends, pa.array([], COUNT_TYPE)
    first = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1])))
    half, low_half = np.uint64(32), np.uint64(0xFFFFFFFF)
    # In parts of 32 bits, with room for the carry.
    a, b, c, d = (np.add.reduceat(part, first) for word in words for part in (word & low_half, word >> half))
    b += a >> half
    c += b >> half
    d += c >> half
    low, high = (a & low_half) | (b << half), (c & low_half) | (d << half)
    most_high, most_low = divmod(10**38 - 1, 1 << 64)
    if ((d >> half > 0) | (high > most_high) | ((high == most_high) & (low > most_low))).any():
        raise OperatorError("One event closes more matches than a decimal(38) can count; use a smaller window.")
    raw = np.stack([low, high], axis=1).astype("<u8").tobytes()
    return ends[first], pa.Array.from_buffers(COUNT_TYPE, len(first), [None, pa.py_buffer(raw)])
