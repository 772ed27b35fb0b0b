"""Copy the state of a key on hold from its old worker's files to one file for its new worker, beside the epochs.

Invariant: it reads only files that the record pins and writes one file that counts when a later record names it; so it may run
anywhere, any number of times, and a crash wastes it, no more. Its end is reported by a command in the control log (rule H3).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint.folder import Checkpoint, copy_path
from penstock.checkpoint.record import EpochRecord
from penstock.protocol.commands import Copied
from penstock.protocol.rescale import Held
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import WORKER_BIN, KeyCodec
from penstock.state.compaction import iterate
from penstock.state.deltas import SCHEMA, Metadata, Version, write_file
from penstock.types import BINS, MAX_TIME, plain
from penstock.worker.held_rows import queue_name
from penstock.worker.spec import RegionSpec
from penstock.worker.waiting_rows import rows_waiting, to_bytes

HoldId = tuple[str, int, int]
"""A region's name, a key's hash, the epoch since which it is on hold."""


@dataclass(frozen=True)
class Copy:
    """One key's state to be copied.

    Attributes:
        region: The region's name.
        held: The hold.
        version: The old worker's state.
        flow: Unique id of the flow.
        run: Number of the run.
    """

    region: str
    held: Held
    version: Version
    flow: str
    run: int

    @property
    def place(self) -> HoldId:
        """Which copy this is."""
        return self.region, self.held.key, self.held.since

    def carry_out(self, checkpoint: Checkpoint) -> Copied:
        """Write the file; gives the command that reports it.

        Raises:
            TornFileError: A file of the old worker is damaged. Nothing was changed.
            StateError: The disk is full. Nothing was changed.
        """
        held = self.held
        specs: dict[str, RegionSpec] = pickle.loads(checkpoint.specs(self.run))
        codec = KeyCodec(specs[self.region].keys)
        table = self._rows(codec, iterate(checkpoint.fs, checkpoint.root, self.version))
        path = copy_path(self.region, held.to, held.since, self.run, held.key)
        metadata = Metadata("move", f"{self.flow}/{self.region}/{held.source}", held.since)
        ref = write_file(checkpoint.fs, checkpoint.root, path, table.to_batches(), metadata, f"r{self.run}")
        file = plain(replace(ref, role="came"))
        return Copied(self.region, held.key, held.since, file)

    def _rows(self, codec: KeyCodec, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The key's entries, and its waiting rows as the beginning of its queue."""
        held = self.held
        found: list[pa.RecordBatch] = []
        others: list[tuple[bytes, bytes]] = []
        for batch in batches:
            found.append(of_key(codec, batch, held.key))
            whole = _of_bin(batch, WORKER_BIN)
            stored: Any = whole.to_pydict()
            others += zip(stored["key"], stored["value"], strict=True)
        waiting = rows_waiting(others, held.key, held.since, held.frontier)
        if waiting:
            names = [queue_name(port, held.key, held.since, i) for i, (port, _) in enumerate(waiting)]
            order = np.argsort(np.array(names, dtype=object))
            columns: list[Any] = [
                pa.array([names[i] for i in order], pa.binary()),
                pa.array([to_bytes(waiting[i][1]) for i in order], pa.binary()),
                pa.array(np.full(len(names), MAX_TIME, np.int64)),
            ]
            found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        return pa.Table.from_batches(found, SCHEMA)


def of_key(codec: KeyCodec, batch: pa.RecordBatch, key: int) -> pa.RecordBatch:
    """The entries of one key (hash) among those of a worker."""
    mine = _of_bin(batch, (key % BINS).to_bytes(2, "big"))
    if not mine.num_rows:
        return mine
    listed: list[Any] = mine.column(0).to_pylist()
    return mine.filter(pa.array(spark_xxhash64(codec.decode([n[3:] for n in listed])) == key))


def _of_bin(batch: pa.RecordBatch, low: bytes) -> pa.RecordBatch:
    names: Any = batch.column(0)
    return batch.filter(pc.equal(pc.binary_slice(names, 0, 2), pa.scalar(low, pa.binary())))


def copies_due(record: EpochRecord, flow: str, run: int, under_way: Iterable[HoldId] = ()) -> list[Copy]:
    """Copies of keys on hold that are not under way."""
    busy = set(under_way)
    found = [
        Copy(name, held, region.copies[held.key], flow, run)
        for name, region in record.regions.items()
        for held in region.control.held
    ]
    return [c for c in found if c.place not in busy]
