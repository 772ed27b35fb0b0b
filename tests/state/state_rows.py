"""Rows and files of state for the tests in this directory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.state import SCHEMA, Metadata, Version, WorkerState, write_file
from penstock.types import MAX_TIME


def rows(entries):
    """A batch of ``{key: value | None | (value, timer)}``."""
    pairs = [(key, entry if isinstance(entry, tuple) else (entry, MAX_TIME)) for key, entry in sorted(entries.items())]
    columns = [[key for key, _ in pairs], [value for _, (value, _) in pairs], [timer for _, (_, timer) in pairs]]
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def write(fs, root, name, entries, version=0, kind="delta", lineage=""):
    batches = entries if isinstance(entries, list) else [rows(entries)]
    return write_file(fs, root, name, batches, Metadata(kind, "me", version, {"seen": 1}), "s", lineage)


def content(state: WorkerState):
    return dict(state.scan(b""))


def versions(fs, root, *epochs):
    """A version for each epoch's changes, each file on top of the one before."""
    made = [Version()]
    for number, entries in enumerate(epochs):
        made.append(made[-1].with_delta(write(fs, root, f"d{number}", entries, number), number))
    return made[1:]


def times(*values):
    return np.array(values, np.int64)
