"""Merging: one sorted stream of live entries from a base and its deltas, and new bases made of it.

Invariant: of the base only one record batch is in memory at a time; the deltas are, all of them, which `should_compact` bounds.

Read next: `penstock.state.deltas`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock.state.deltas import BATCH_ROWS, SCHEMA, FileRef, Metadata, Version, read_batches, read_changes, write_file

COMPACT_BYTES: Final = 4 << 20
COMPACT_DELTAS: Final = 64


def should_compact(version: Version, *, least_bytes: int = COMPACT_BYTES, most_deltas: int = COMPACT_DELTAS) -> bool:
    """Whether the deltas have outgrown their base, so that a restore would read more deltas than base.

    Args:
        version: The version to restore from.
        least_bytes: Deltas smaller than this together are left alone, however small the base.
        most_deltas: So many deltas are compacted, however small.

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
        version: Which files make it.

    Yields:
        Record batches of at most 65,536 rows of `penstock.state.deltas.SCHEMA`, sorted by key, no value null.

    Raises:
        TornFileError: A file is missing or altered. Nothing was changed.
    """
    waiting: list[pa.Table] = []
    rows = 0
    for table in _merged(fs, root, version):
        waiting.append(table)
        rows += table.num_rows
        if rows >= BATCH_ROWS:
            whole = pa.concat_tables(waiting).combine_chunks()
            full = rows - rows % BATCH_ROWS
            yield from whole.slice(0, full).to_batches(max_chunksize=BATCH_ROWS)
            waiting, rows = [whole.slice(full)], rows - full
    if rows:
        yield from pa.concat_tables(waiting).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def compact(fs: pafs.FileSystem, root: str, version: Version, out_path: str, metadata: Metadata, suffix: str) -> FileRef:
    """Write the whole content of a version as one new base.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        version: What to compact; its files are read, never changed or deleted.
        out_path: Where to, relative to the root.
        metadata: What the base says about itself.
        suffix: Tells this attempt's temporary file from another's.

    Returns:
        The base; `Version.with_base` puts it in place of the files, also in a later version.

    Raises:
        TornFileError: A file of the version is missing or altered. No base was written.
        StateError: The disk is full. No base was written.
    """
    return write_file(fs, root, out_path, iterate(fs, root, version), metadata, suffix, version.lineage())


def _merged(fs: pafs.FileSystem, root: str, version: Version) -> Iterator[pa.Table]:
    """Live entries in order of key, in tables of any size."""
    changes = _collapse([read_changes(fs, root, delta) for delta in version.deltas])
    done = 0
    for batch in read_batches(fs, root, version.base) if version.base else ():
        if batch.num_rows == 0:
            continue
        upto = _count_upto(changes["key"], batch.column("key")[-1].as_py(), done)
        base = pa.Table.from_batches([batch])
        yield _live(_last_wins([base, changes.slice(done, upto - done)]) if upto > done else base)
        done = upto
    yield _live(changes.slice(done))


def _collapse(tables: list[pa.Table]) -> pa.Table:
    """The last change of every key, sorted by key."""
    return _last_wins(tables) if len(tables) > 1 else tables[0] if tables else SCHEMA.empty_table()


def _last_wins(tables: list[pa.Table]) -> pa.Table:
    """Merge tables, oldest first, into one that is sorted by key and has of each key the newest row."""
    age = np.concatenate([np.full(table.num_rows, -at, np.int32) for at, table in enumerate(tables)])
    whole = pa.concat_tables(tables).append_column("age", pa.array(age))
    whole = whole.sort_by([("key", "ascending"), ("age", "ascending")]).combine_chunks()
    key: Any = whole["key"]
    if len(key) > 1:
        first = pa.chunked_array([pa.array([True]), *_chunks(pc.not_equal(key.slice(1), key.slice(0, len(key) - 1)))])
        whole = whole.filter(first)
    return whole.select(SCHEMA.names)


def _chunks(column: Any) -> list[Any]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _live(table: pa.Table) -> pa.Table:
    return table.filter(table["value"].is_valid()) if table["value"].null_count else table


def _count_upto(keys: Any, last: bytes, low: int) -> int:
    """How many of the sorted keys are at most ``last``, given that ``low`` are."""
    high = len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle].as_py() <= last:
            low = middle + 1
        else:
            high = middle
    return low
