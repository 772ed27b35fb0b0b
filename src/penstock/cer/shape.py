"""The columns of the result: what of each matched event goes where.

Pure and columnar: from numbers of events to Arrow arrays by ``take``; no match is ever a Python object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.cer.automaton import outputs
from penstock.cer.recogniser import Block
from penstock.cer.syntax import Chosen, CountAll, Everything, Query
from penstock.columns import places
from penstock.errors import DeclarationError

EVENTS, START, END, MATCHES = "events", "match_start", "match_end", "matches"
COUNT_TYPE = pa.decimal128(38, 0)


@dataclass(frozen=True, slots=True)
class Bound:
    """One array column of the result.

    Attributes:
        name: the column.
        variable: whose events it holds; ``None``: all marked events.
        attributes: the fields of each event.
    """

    name: str
    variable: str | None
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The result's columns behind the key's.

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
        """The columns of the events that the result shows."""
        return tuple(dict.fromkeys(name for bound in self.bound for name in bound.attributes))

    def fields(self, columns: pa.Schema, order: pa.DataType) -> list[pa.Field[Any]]:
        """The result's fields behind the key's, given the event's columns and the type of what orders them."""
        if self.counts:
            return [pa.field(END, order), pa.field(MATCHES, COUNT_TYPE)]
        arrays = [pa.field(b.name, pa.list_(pa.struct([columns.field(a) for a in b.attributes]))) for b in self.bound]
        return [pa.field(START, order), pa.field(END, order), *arrays]

    def arrays(self, block: Block, events: pa.RecordBatch) -> list[Any]:
        """The array columns of some matches.

        Args:
            block: the matches; event number i is row i of ``events``.
            events: the columns ``attributes`` names, at least.
        """
        return [self._array(bound, block, events) for bound in self.bound]

    def _array(self, bound: Bound, block: Block, events: pa.RecordBatch) -> Any:
        positions, offsets = block.positions, block.offsets
        if bound.variable is not None:
            binds = np.array([False, *(bound.variable in kind for kind in self.kinds)])
            chosen = binds[block.kinds]
            before = np.concatenate([[0], np.cumsum(chosen)])
            positions, offsets = positions[chosen], before[offsets]
        return list_of(events, bound.attributes, positions, offsets)


def list_of(
    events: pa.RecordBatch, attributes: tuple[str, ...], positions: NDArray[np.int32], offsets: NDArray[np.int64]
) -> Any:
    """Lists of events as structs: row i has the events at ``positions[offsets[i]:offsets[i + 1]]``."""
    rows = places(positions)
    fields = [events.schema.field(name) for name in attributes]
    columns = [events.column(name).take(rows) for name in attributes]
    structs = pa.StructArray.from_arrays(columns, fields=fields) if fields else pa.array([{}] * len(rows), pa.struct([]))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def shape_of(query: Query, columns: tuple[str, ...], kinds: tuple[tuple[str, ...], ...]) -> Shape:
    """The result's shape for a query over events with these columns.

    Raises:
        DeclarationError: a variable is named like one of the result's own columns.
    """
    projection = query.projection
    if isinstance(projection, CountAll):
        return Shape(counts=True, bound=(), kinds=kinds)
    bound: list[Bound] = []
    if isinstance(projection, Everything):
        bound = [Bound(EVENTS, None, columns), *(Bound(name, name, columns) for name in outputs(query))]
    elif isinstance(projection, Chosen):
        for item in projection.items:
            label = item.variable if item.stream is None else f"{item.stream}>{item.variable}"
            bound.append(Bound(item.variable, label, item.attributes or columns))
    taken = [START, END]
    for name in (b.name for b in bound):
        if name in taken:
            raise DeclarationError(f"The result would have two columns {name!r}; name the variable differently with AS.")
        taken.append(name)
    return Shape(counts=False, bound=tuple(bound), kinds=kinds)


def counts_array(words: NDArray[np.uint64]) -> Any:
    """Counts as decimals, from their low and high words, uint64[2, n]."""
    raw = np.ascontiguousarray(words.T).astype("<u8").tobytes()
    return pa.Array.from_buffers(COUNT_TYPE, words.shape[1], [None, pa.py_buffer(raw)])


def summed(groups: NDArray[np.int64], counts: Any) -> tuple[NDArray[np.int64], Any]:
    """One count for each group: an event may close runs that end in several ways."""
    table = (
        pa.table({"group": places(groups), "count": counts}).group_by("group", use_threads=False).aggregate([("count", "sum")])
    )
    total = table.column("count_sum").combine_chunks()
    return table.column("group").to_numpy(), pc.cast(total, COUNT_TYPE)
