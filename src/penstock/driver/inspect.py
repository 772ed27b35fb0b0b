"""Look into a checkpoint: its progress, and the state of a region as rows. Changes nothing."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.checkpoint.folder import Checkpoint, open_checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.errors import CheckpointError, raised
from penstock.operators.base import Context
from penstock.protocol.rescale import Held
from penstock.rows.keys import WORKER_BIN, KeyCodec, unbiased
from penstock.state.compaction import iterate
from penstock.state.deltas import Version
from penstock.types import time_text
from penstock.worker.copying import of_key
from penstock.worker.spec import RegionSpec


@dataclass(frozen=True)
class RegionView:
    """One region's state as of the last committed epoch."""

    checkpoint: Checkpoint
    spec: RegionSpec
    versions: tuple[Version, ...]
    held: tuple[tuple[Held, Version], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then ``operator``, ``worker``, ``bin``, ``entry`` (a window's start, or empty) and ``state`` (JSON)."""
        text, number = pa.string(), pa.int32()
        rest = [("operator", text), ("worker", number), ("bin", number), ("entry", text), ("state", text)]
        return pa.schema([*self.spec.keys, *(pa.field(n, t) for n, t in rest)])

    def rows(self, worker: int) -> Iterator[pa.RecordBatch]:
        """The state that one worker holds; that of keys on hold, which is on its way to it, included.

        Raises:
            TornFileError: A file of the state is damaged.
        """
        operators = {}
        codec = KeyCodec(self.spec.keys)
        for step in self.spec.steps:
            about = (self.spec.name, step.slot, self.spec.ordinal, codec, step.in_schemas, step.out_schema)
            step.operator.start(Context(*about, layouts=step.layouts))
            operators[step.slot] = step.operator
        for batch in self._entries(worker, codec):
            names: list[Any] = batch.column(0).to_pylist()
            values: list[Any] = batch.column(1).to_pylist()
            own = [
                i for i, n in enumerate(names) if n[:2] != WORKER_BIN and n[2] in operators
            ]  # steps may have been taken away
            encoded = [names[i][3:] for i in own]
            subs = [e[2 + int.from_bytes(e[:2], "big") :] for e in encoded]
            states = [json.dumps(operators[names[i][2]].show_state(values[i]), default=str) for i in own]
            columns: list[Any] = [
                *codec.decode(encoded),
                pa.array([operators[names[i][2]].describe() for i in own], pa.string()),
                pa.array(np.full(len(own), worker), pa.int32()),
                pa.array([int.from_bytes(names[i][:2], "big") for i in own], pa.int32()),
                pa.array([_entry(s) for s in subs], pa.string()),
                pa.array(states, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _entries(self, worker: int, codec: KeyCodec) -> Iterator[pa.RecordBatch]:
        fs, root = self.checkpoint.fs, self.checkpoint.root
        yield from iterate(fs, root, self.versions[worker])
        for held, version in self.held:
            if held.to == worker:
                for batch in iterate(fs, root, version):
                    mine = of_key(codec, batch, held.key)
                    if mine.num_rows:
                        yield mine


def _entry(sub: bytes) -> str:
    if not sub:
        return ""
    return time_text(int(unbiased([sub])[0])) if len(sub) == 8 else sub.hex()


def view_region(uri: str | os.PathLike[str], region: str, snapshot: str | None = None) -> RegionView:
    """Open a region's state for reading.

    Args:
        uri: The checkpoint.
        region: The region's name.
        snapshot: Name of a snapshot; None: the last committed epoch.

    Raises:
        CheckpointError: There is no such checkpoint or region, or nothing has been committed.
    """
    checkpoint, _ = open_checkpoint(uri)
    record = checkpoint.last() if snapshot is None else checkpoint.read_snapshot(snapshot)
    if region not in record.regions:
        there = ", ".join(record.regions) or "none yet"
        raise CheckpointError(f"Checkpoint {uri} has no state of region {region!r}; it has {there}.")
    specs, state = _specs(checkpoint, checkpoint.run_with_specs(record.run)), record.regions[region]
    held = tuple((h, state.copies[h.key]) for h in state.control.held)
    return RegionView(checkpoint, specs[region], tuple(state.versions), held)


def _specs(checkpoint: Checkpoint, run: int) -> dict[str, RegionSpec]:
    """What a run's regions are; a pickle, which only the version that wrote it is sure to read."""
    data = checkpoint.specs(run)
    try:
        specs: dict[str, RegionSpec] = pickle.loads(data)
    except Exception as error:
        raise CheckpointError(
            f"The regions of checkpoint {checkpoint.uri} cannot be loaded ({raised(error)}): start the flow once with this version of penstock, "
            "and run this where the modules that the flow imports can be found."
        ) from error
    return specs


def key_schema(checkpoint: Checkpoint, region: str) -> pa.Schema:
    """The key columns of a region.

    Raises:
        CheckpointError: There is no such region.
    """
    specs = _specs(checkpoint, checkpoint.newest_run())
    if region not in specs:
        raise CheckpointError(f"There is no region {region!r}; there are {', '.join(specs)}.")
    return specs[region].keys


def read_progress(uri: str) -> tuple[EpochRecord, dict[str, Any]]:
    """The last committed epoch of a checkpoint, and its newest run's description of itself.

    Raises:
        CheckpointError: There is no such checkpoint.
    """
    checkpoint, identity = open_checkpoint(uri)
    run = checkpoint.newest_run()
    return checkpoint.last(), {"flow": identity.name, "run": run, **checkpoint.about(run), "end": checkpoint.end_of(run)}
