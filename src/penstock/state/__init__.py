"""What a key remembers: state in files of the checkpoint, cached in LMDB on the executors, which operators see through
`WorkerState`.

Read in this order: `files` (durable files), `deltas` (their content, and versions), `overlay` and `worker` (what operators
see), `environment`, `recent_changes` and `store` (the local cache), `compaction` (merging).
"""

from penstock.state.compaction import compact, iterate, should_compact
from penstock.state.deltas import SCHEMA, FileRef, Metadata, Version, read_batches, read_file, write_file
from penstock.state.files import create_exclusive, delete_quietly, list_dir, read_bytes, resolve, write_atomic
from penstock.state.overlay import Snapshot
from penstock.state.store import CatchUp, LocalStore
from penstock.state.worker import MAX_KEY_BYTES, MemoryState, WorkerState

__all__ = [
    "MAX_KEY_BYTES",
    "SCHEMA",
    "CatchUp",
    "FileRef",
    "LocalStore",
    "MemoryState",
    "Metadata",
    "Snapshot",
    "Version",
    "WorkerState",
    "compact",
    "create_exclusive",
    "delete_quietly",
    "iterate",
    "list_dir",
    "read_batches",
    "read_bytes",
    "read_file",
    "resolve",
    "should_compact",
    "write_atomic",
    "write_file",
]
