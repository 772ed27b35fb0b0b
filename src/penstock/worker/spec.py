"""A worker's view of its region: a frozen, picklable value, compiled from the declared region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from penstock.arrow.columns import to_indices
from penstock.operators.base import Layout, Operator
from penstock.routing.hashing import spark_xxhash64
from penstock.types import HASH, ORDER

PACKED_BITS: Final = 8  # of an offset that carries a byte
PORT: Final = "__ps_port"
OUT: Final = "__ps_out"

Input = tuple[Literal["port", "operator"], int]


@dataclass(frozen=True)
class Port:
    """One input of a region.

    Attributes:
        schema: Its columns without hidden ones; for partial aggregates key columns, pane, partial columns.
        partial_of: Index of the operator whose partial results these are; None: plain rows.
        waits: Whether rows wait for the frontier before operators see them.
        known: Hidden columns that are not sent because the worker knows them: a constant, or the column with the same values.
            Hashes of keys are never sent: they cannot be compressed.
        packed: A column of bytes, never null, that is sent in the lower bits of `OFFSET`; None: there is none.
        slot: The number under which its waiting rows are kept; it stays the same for the checkpoint's life
            (`penstock.driver.shape`).
        takes: Until an epoch is committed, rows that wait under this slot are given to it, as its step once waited there; None: none.
    """

    schema: pa.Schema
    partial_of: int | None = None
    waits: bool = True
    known: tuple[tuple[str, int | str], ...] = ()
    packed: str | None = None
    slot: int = 0
    takes: int | None = None

    @property
    def own(self) -> pa.Schema:
        """The columns of `schema` that are sent by themselves."""
        return pa.schema([field for field in self.schema if field.name != self.packed])

    @property
    def hidden(self) -> tuple[str, ...]:
        """Its hidden columns."""
        return (HASH,) if self.partial_of is not None else (*ORDER, HASH)

    @property
    def sent(self) -> tuple[str, ...]:
        """Those that are sent."""
        return tuple(name for name in self.hidden if name != HASH and name not in dict(self.known))

    @property
    def columns(self) -> pa.Schema:
        """All columns, as they are in a port's own batches."""
        return packed([(self.schema, self.hidden)], PORT)


@dataclass(frozen=True)
class Step:
    """One operator of a region and where its input comes from.

    Attributes:
        operator: The operator.
        inputs: Where its rows come from.
        in_schemas: Columns of each input.
        out_schema: Columns of its output.
        slot: The number under which its state is kept; it stays the same for the checkpoint's life (`penstock.driver.shape`).
        layouts: What its stored values consist of: all layouts there ever were, the present one last.
        parts: The port by which partial results come of rows that a split stage has handled, which an epoch may lack; None: no stage does.
    """

    operator: Operator
    inputs: tuple[Input, ...]
    in_schemas: tuple[pa.Schema, ...]
    out_schema: pa.Schema
    slot: int = 0
    layouts: tuple[Layout, ...] = ()
    parts: int | None = None


@dataclass(frozen=True)
class Out:
    """One output of a region: an operator's rows, or the records it skipped.

    Attributes:
        operator: The operator; −1 − i: the region's own input i (``key_by(...).local()``).
        schema: Columns without hidden ones.
        errors: The skipped records instead of the rows.
        positions: Whether rows carry their position (they do if what follows reads it: another region, a stateless step, or a sink that wants it).
        port: For an input of the region, the port it comes in by.
    """

    operator: int
    schema: pa.Schema
    errors: bool = False
    positions: bool = False
    port: int = 0


@dataclass(frozen=True)
class RegionSpec:
    """One region, compiled.

    Attributes:
        timed: Whether its rows have an event time.
        report_above: As `penstock.routing.strategy.Strategy.report_above`.
        files: By the number of a source of files, names of files by their numbers, for messages; not of all, and only in a task.
    """

    name: str
    ordinal: int
    keys: pa.Schema
    ports: tuple[Port, ...]
    steps: tuple[Step, ...]
    outs: tuple[Out, ...]
    sources: tuple[str, ...] = ()
    timed: bool = True
    files: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    report_above: float = 0.0

    @property
    def in_schema(self) -> pa.Schema:
        """Columns of the task's input: one port as it is, several side by side with prefixes."""
        return packed([(p.own, p.sent) for p in self.ports], PORT)

    @property
    def out_schema(self) -> pa.Schema:
        """Columns of the task's output."""
        return packed([(o.schema, ORDER if o.positions else ()) for o in self.outs], OUT)


def split_stage(spec: RegionSpec, step: int) -> RegionSpec:
    """The stage that makes partial results of rows of a region's step: its input is that of the step, and it keeps no state."""
    one = spec.steps[step]
    (_, port), *_ = one.inputs
    return replace(
        spec, ports=(replace(spec.ports[port], waits=False),), steps=(replace(one, inputs=(("port", 0),), parts=None),), outs=()
    )


def epoch_ports(
    spec: RegionSpec, inputs: Sequence[Any], empty: Callable[[], Any], *, releases: bool
) -> tuple[RegionSpec, list[Any]]:
    """The region and its inputs in an epoch; without the ports of partial results, which come last, if there are none at all.

    Args:
        spec: The region.
        inputs: By port, its rows; None: a split stage gave no partial results.
        empty: Makes an input without partial results, beside others that have some.
        releases: Whether a key on hold is released, for which partial results may be queued.
    """
    parts = {step.parts for step in spec.steps} - {None}
    if not parts or releases or any(inputs[i] is not None for i in parts if i is not None):
        return spec, [empty() if rows is None else rows for rows in inputs]
    kept = [i for i in range(len(spec.ports)) if i not in parts]
    return replace(spec, ports=tuple(spec.ports[i] for i in kept)), [inputs[i] for i in kept]


def key_columns(spec: RegionSpec) -> list[list[int]]:
    """For each port, the indices of the key's columns in ``spec.in_schema``."""
    names, alone = spec.in_schema.names, len(spec.ports) == 1
    return [[names.index(key if alone else f"{i}.{key}") for key in spec.keys.names] for i in range(len(spec.ports))]


def key_hashes(ports: Sequence[Sequence[int]], rows: pa.RecordBatch) -> Any:
    """int64, n: xxhash64 of each row's key.

    Args:
        ports: From `key_columns`.
        rows: In the columns of ``spec.in_schema``; with several ports the first column is the port.
    """
    if len(ports) == 1:
        return spark_xxhash64([rows.column(i) for i in ports[0]])
    tags = rows.column(0).to_numpy()
    hashes = np.empty(rows.num_rows, np.int64)
    for port, columns in enumerate(ports):
        mine = np.flatnonzero(tags == port)
        hashes[mine] = spark_xxhash64([rows.column(i).take(to_indices(mine)) for i in columns])
    return hashes


def packed(parts: list[tuple[pa.Schema, tuple[str, ...]]], tag: str) -> pa.Schema:
    """One part: its columns and hidden ones. Several: a tag, then each part's columns with a prefix.

    The prefixed form lets rows of different shape travel in one Arrow stream; what is not a row's own is null.
    """
    if len(parts) == 1:
        schema, hidden = parts[0]
        return pa.schema([*schema, *(pa.field(h, pa.int64()) for h in hidden)])
    fields: list[pa.Field[Any]] = [pa.field(tag, pa.int32())]
    for i, (schema, hidden) in enumerate(parts):
        fields += [pa.field(f"{i}.{f.name}", f.type) for f in schema]
        fields += [pa.field(f"{i}.{h}", pa.int64()) for h in hidden]
    return pa.schema(fields)
