"""Merging: one sorted stream of live entries from a base and its deltas, and new bases made of it.

Invariant: at most two record batches of each file are in memory, so memory does not depend on the size of the state.

Read next: `penstock.state.deltas`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock.state.deltas import BATCH_BYTES, BATCH_ROWS, FileRef, Metadata, Version, read_batches, write_file

COMPACT_BYTES: Final = 4 << 20
COMPACT_DELTAS: Final = 64
Pace = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def should_compact(version: Version, *, least_bytes: int = COMPACT_BYTES, most_deltas: int = COMPACT_DELTAS) -> bool:
    """Whether the deltas have outgrown their base, so that a restore would read more deltas than base.

    Args:
        version: The version to restore from.
        least_bytes: Deltas whose sum is smaller are not compacted, however small the base.
        most_deltas: This many deltas are compacted, however small.

    Example:
        >>> should_compact(Version())
        False
    """
    delta_bytes = sum(delta.bytes for delta in version.deltas)
    base_bytes = version.base.bytes if version.base else 0
    return delta_bytes > max(base_bytes, least_bytes) or len(version.deltas) >= most_deltas


def iterate(fs: pafs.FileSystem, root: str, version: Version) -> Iterator[pa.RecordBatch]:
    """The live entries of a version, straight from the checkpoint.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        version: The version.

    Yields:
        Record batches of at most `penstock.state.deltas.BATCH_ROWS` rows of its `SCHEMA`, sorted by key, no value null.

    Raises:
        TornFileError: A file is missing or altered. Nothing was changed.
    """
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in _merged(fs, root, version):
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            whole = pa.concat_tables(waiting).combine_chunks()
            full = rows - rows % BATCH_ROWS if size < BATCH_BYTES else rows
            yield from whole.slice(0, full).to_batches(max_chunksize=BATCH_ROWS)
            waiting, rows, size = [whole.slice(full)], rows - full, whole.slice(full).nbytes
    if rows:
        yield from pa.concat_tables(waiting).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def compact(
    fs: pafs.FileSystem, root: str, version: Version, out_path: str, metadata: Metadata, suffix: str, pace: Pace = iter
) -> FileRef:
    """Write the whole content of a version as one new base.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        version: The version; its files are read, never changed or deleted.
        out_path: The new file, relative to the root.
        metadata: The base's description of itself.
        suffix: Distinguishes this attempt's temporary file.
        pace: Passes on the batches to write, and may pause.

    Returns:
        The base; `Version.with_base` replaces the files with it, also in a later version.

    Raises:
        TornFileError: A file of the version is missing or altered. No base was written.
        StateError: The disk is full. No base was written.
    """
    return write_file(fs, root, out_path, pace(iterate(fs, root, version)), metadata, suffix, version.lineage())


class _Reader:
    """The rows of a file that have not been taken: the rest of one batch, and the next batch."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._head, self._next = next(self._batches, None), next(self._batches, None)

    def __bool__(self) -> bool:
        return self._head is not None

    @property
    def bound(self) -> bytes | None:
        """The last key in memory; None if the file has no further keys."""
        return None if self._head is None or self._next is None else self._head.column("key")[-1].as_py()

    def take(self, upto: bytes | None) -> list[pa.RecordBatch]:
        """Take the rows in memory whose keys are at most `upto` (None: all), in one batch if there are any."""
        if self._head is None:
            return []
        head, keys = self._head, self._head.column("key")
        count = len(keys) if upto is None else bisect.bisect_right(keys, upto, key=lambda key: key.as_py())
        self._head = head.slice(count)
        if count == len(keys):
            self._head, self._next = self._next, next(self._batches, None)
        return [head.slice(0, count)] if count else []


def _merged(fs: pafs.FileSystem, root: str, version: Version) -> Iterator[pa.Table]:
    """Live entries in order of key, in tables of any size."""
    files = version.files()
    readers = [_Reader(read_batches(fs, root, file, len(files))) for file in files]
    while any(readers):
        # All rows up to this key are in memory, for every file.
        upto = min((bound for reader in readers if (bound := reader.bound) is not None), default=None)
        merged = _last_wins([batch for reader in readers for batch in reader.take(upto)])
        yield merged.filter(merged["value"].is_valid()) if merged["value"].null_count else merged


def _last_wins(batches: list[pa.RecordBatch]) -> pa.Table:
    """Merge sorted batches, oldest first, into one table sorted by key with the newest row of each key."""
    if len(batches) > 1:
        keys: Any = pa.chunked_array([batch.column("key") for batch in batches])
        starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        age = np.repeat(-np.arange(len(batches)), np.diff(starts))
        by_key: Any = [("key", "ascending"), ("age", "ascending")]
        order: Any = pc.sort_indices(pa.table({"key": keys, "age": pa.array(age)}), sort_keys=by_key)
        ordered = keys.take(order)
        newest = np.ones(len(keys), bool)
        newest[1:] = pc.not_equal(ordered.slice(1), ordered.slice(0, len(keys) - 1))
        order = order.to_numpy()[newest]
        chosen = np.zeros(len(keys), bool)
        chosen[order] = True
        # Drop outdated values first: a large key may have one in every file.
        left = [b.filter(pa.array(chosen[at : at + b.num_rows])) for b, at in zip(batches, starts, strict=False)]
        return pa.Table.from_batches(left).take(pa.array(np.cumsum(chosen)[order] - 1))
    return pa.Table.from_batches(batches)
