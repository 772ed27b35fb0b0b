"""Rows of keys on hold, queued in the state of the worker that will get the key.

A queue is part of the worker's state like any other entry: it is in the epoch's delta, so a crash neither loses nor repeats a
row. It never moves, because a key on hold does not (rule H6). Waiting rows that the key had at its old worker come as the first
entries of the queue, with the copied state.

Read next: `penstock.protocol.rescale.hold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.base import StateView
from penstock.rows.keys import WORKER_BIN
from penstock.types import TIME
from penstock.worker.waiting_rows import from_bytes, to_bytes

OPERATOR: Final = 253


def queue_name(port: int, key: int, epoch: int, part: int = 0) -> bytes:
    """Name of an entry: port, key's hash, epoch in which the rows arrived."""
    return (
        WORKER_BIN
        + bytes([OPERATOR, port])
        + key.to_bytes(8, "big", signed=True)
        + epoch.to_bytes(8, "big")
        + part.to_bytes(4, "big")
    )


def split_held(
    rows: pa.RecordBatch, hashes: np.typing.NDArray[np.int64], keys: Sequence[int]
) -> tuple[pa.RecordBatch, dict[int, pa.RecordBatch]]:
    """The rows of other keys, and those of each key on hold."""
    held = np.isin(hashes, np.array(keys, np.int64))
    if not held.any():
        return rows, {}
    return rows.filter(pa.array(~held)), {k: rows.filter(pa.array(hashes == k)) for k in keys if (hashes == k).any()}


def enqueue(view: StateView, port: int, epoch: int, held: dict[int, pa.RecordBatch]) -> dict[int, int]:
    """Queue this epoch's rows of keys on hold; returns the bytes stored by key."""
    stored = {k: to_bytes(rows) for k, rows in held.items()}
    if stored:
        view.put_many([queue_name(port, k, epoch) for k in stored], list(stored.values()))
    return {k: len(rows) for k, rows in stored.items()}


def dequeue(view: StateView, port: int, epoch: int, keys: Sequence[int], *, in_turn: bool) -> list[pa.RecordBatch]:
    """Remove and return the queued rows of keys, in order of arrival.

    Args:
        view: The worker's state.
        port: The input's index.
        epoch: Number of this epoch.
        keys: Hashes of the keys.
        in_turn: The rows have no event time: their hidden one is the number of epochs since they arrived in the flow, so that
            sorting by it and position keeps the order of arrival.
    """
    out, gone = [], []
    for key in keys:
        for name, value in view.scan(queue_name(port, key, 0)[:12]):
            rows = from_bytes(value)
            if in_turn and TIME in rows.schema.names:
                at = rows.schema.get_field_index(TIME)
                arrived = int.from_bytes(name[12:20], "big")
                times = rows.column(at).to_numpy() + (arrived - epoch)  # of a queue in a region before this one, too
                rows = rows.set_column(at, rows.schema.field(at), pa.array(times))
            out.append(rows)
            gone.append(name)
    if gone:
        view.delete_many(gone)
    return out
