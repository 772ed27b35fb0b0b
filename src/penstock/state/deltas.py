"""The files that are the truth about keyed state: bases (everything) and deltas (one epoch's changes).

A file is an Arrow IPC stream (zstd) with our metadata in its schema, then a footer of 32 bytes: magic, length of the stream,
xxh3-128 of the stream. A file does not say whether it is valid: a `Version` names the valid ones, so files of failed attempts
are harmless.

Invariants: rows are sorted by key and no key occurs twice in a file. The `lineage` of a version depends only on the files that
led to it, and compaction does not change it.

Read next: `penstock.state.store`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from penstock.errors import StateError, TornFileError
from penstock.state.files import atomic_output, join

_FIELDS: Final[list[Any]] = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("value", pa.binary()),
    pa.field("timer", pa.int64(), nullable=False),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""Rows of state: key, value (null: deleted), timer in µs (`penstock.types.MAX_TIME`: none)."""

BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 1 << 20
"""Rows and bytes of a record batch in a file, so that many files can be read side by side. A larger row has a batch of its own."""
EMPTY_LINEAGE: Final = "empty"
"""Lineage of a state that no file has touched."""

_META: Final = b"penstock"
_MAGIC: Final = b"PENSTOK1"
_FOOTER: Final = struct.Struct(">8sQ16s")
_WHOLE_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FileRef:
    """A valid file, and how to recognise it.

    Attributes:
        path: Relative to the checkpoint's root.
        version: Version of the state after this file.
        bytes: Size, footer included.
        rows: Number of rows.
        checksum: xxh3-128 of the Arrow stream, hexadecimal.
        lineage: For a base that replaces older files: their lineage. Empty for all others.
        role: ``"came"``: another worker gave this state up to this one; ``"gone"``: this worker gave it up, so the file's keys
            are deletions here; empty: a worker's own file.
    """

    path: str
    version: int
    bytes: int
    rows: int
    checksum: str
    lineage: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """The files of one version of a worker's state: a base, then deltas in order.

    Attributes:
        version: The epoch after which the state was so; −1 before the first.
        base: Full content at some version, or None for a state that began empty.
        deltas: Changes after the base, oldest first.
    """

    version: int = -1
    base: FileRef | None = None
    deltas: tuple[FileRef, ...] = ()

    def lineages(self) -> list[str]:
        """The lineage after the base (or of the empty state), then after each delta."""
        chain = [_base_lineage(self.base)]
        for delta in self.deltas:
            chain.append(_link(chain[-1], delta))
        return chain

    def lineage(self) -> str:
        """A digest of everything that led to this version. Equal lineages mean equal state."""
        return self.lineages()[-1]

    def files(self) -> tuple[FileRef, ...]:
        """Base and deltas, in the order they apply."""
        return ((self.base,) if self.base else ()) + self.deltas

    def with_delta(self, delta: FileRef | None, version: int) -> Version:
        """The version that follows this one.

        Args:
            delta: The committed epoch's changes, or None if nothing changed.
            version: Number of the new version.
        """
        return replace(self, version=version, deltas=(*self.deltas, delta) if delta else self.deltas)

    def with_base(self, base: FileRef) -> Version:
        """The same version with a compacted base in place of the files it was made from.

        Args:
            base: What `penstock.state.compaction.compact` returned for this version or for an earlier one.

        Raises:
            StateError: The base was not made from these files. Nothing was changed.
        """
        chain = self.lineages()
        if base.lineage not in chain:
            raise StateError(
                f"The base {base.path} was not compacted from the files of version {self.version}; delete it and keep the old files."
            )
        return replace(self, base=base, deltas=self.deltas[chain.index(base.lineage) :])


@dataclass(frozen=True, slots=True)
class Metadata:
    """A file's description of itself.

    Attributes:
        kind: ``"base"`` or ``"delta"``.
        identity: The state's owner: checkpoint, region and worker.
        version: Version of the state after this file.
        report: JSON that travels with the file, such as a worker's report.
    """

    kind: str
    identity: str
    version: int
    report: Any = field(default=None)


class _Hashing:
    """A file object that passes bytes on and computes their digest and length."""

    closed = False

    def __init__(self, out: Any) -> None:
        self._out = out
        self.digest = xxhash.xxh3_128()
        self.length = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.length += view.nbytes
        self._out.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The owner closes the file."""


def write_file(
    fs: pafs.FileSystem,
    root: str,
    path: str,
    batches: Iterable[pa.RecordBatch],
    metadata: Metadata,
    suffix: str,
    lineage: str = "",
) -> FileRef:
    """Write a base or a delta.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        path: The file, relative to the root. Give every attempt its own path.
        batches: Rows of `SCHEMA`, sorted by key over all batches, no key twice.
        metadata: The file's description of itself.
        suffix: Distinguishes this attempt's temporary file.
        lineage: For a base that replaces older files: their lineage.

    Returns:
        The reference with which the file is read.

    Raises:
        StateError: The disk is full. This call left no file of that name.
    """
    text = json.dumps({name: getattr(metadata, name) for name in metadata.__slots__}, sort_keys=True)
    schema = SCHEMA.with_metadata({_META: text.encode()})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    rows = 0
    with atomic_output(fs, join(root, path), suffix) as out:
        hashing = _Hashing(out)
        file: Any = hashing
        with pa.PythonFile(file, "w") as stream, pa.ipc.new_stream(stream, schema, options=options) as writer:
            for batch in batches:
                for part in _cut(batch.replace_schema_metadata(schema.metadata)):
                    writer.write_batch(part)
                rows += batch.num_rows
        out.write(_FOOTER.pack(_MAGIC, hashing.length, hashing.digest.digest()))
    return FileRef(path, metadata.version, hashing.length + _FOOTER.size, rows, hashing.digest.hexdigest(), lineage)


def read_file(fs: pafs.FileSystem, root: str, ref: FileRef) -> tuple[Metadata, pa.Table]:
    """Read a whole file after checking it.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        ref: The file.

    Returns:
        Its description of itself, and its rows.

    Raises:
        TornFileError: The file is missing, truncated or altered. Nothing was changed.
    """
    with _checked(fs, root, ref) as stream, pa.ipc.open_stream(stream) as reader:
        return _metadata(reader.schema), reader.read_all().replace_schema_metadata(None)


def read_batches(fs: pafs.FileSystem, root: str, ref: FileRef, among: int = 1) -> Iterator[pa.RecordBatch]:
    """The rows of a file as changes to the state whose version names it. The whole file is checked before the first row is
    yielded.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        ref: The file. If its role is `gone`, its rows are deletions.
        among: The number of files read at once. A file that is large for that is not kept in memory but read twice.

    Yields:
        Record batches of `SCHEMA`, sorted by key.

    Raises:
        TornFileError: The file is missing, truncated or altered. Nothing was changed.
    """
    with _checked(fs, root, ref, among) as stream, pa.ipc.open_stream(stream) as reader:
        for batch in reader:
            value = pa.nulls(batch.num_rows, pa.binary()) if ref.role == "gone" else batch.column(1)
            yield pa.RecordBatch.from_arrays([batch.column(0), value, batch.column(2)], schema=SCHEMA)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts no larger than a batch of a file may be."""
    rest = [batch.slice(at, BATCH_ROWS) for at in reversed(range(0, batch.num_rows, BATCH_ROWS))]
    while rest:
        part = rest.pop()
        if part.num_rows == 1 or part.nbytes <= BATCH_BYTES:
            yield part
        else:
            middle = part.num_rows // 2
            rest += [part.slice(middle), part.slice(0, middle)]


def _checked(fs: pafs.FileSystem, root: str, ref: FileRef, among: int = 1) -> Any:
    """Open a file at its start after its footer, length and checksum were checked."""
    path = join(root, ref.path)
    try:
        source: Any = fs.open_input_file(path)
    except FileNotFoundError as wrong:
        raise _torn(path, "is missing") from wrong
    size = source.size()
    if size != ref.bytes:
        source.close()
        raise _torn(
            path, f"is truncated to {size} of {ref.bytes} bytes" if size < ref.bytes else f"has {size} bytes, not {ref.bytes}"
        )
    if size <= _WHOLE_BYTES // among:
        # One request to a remote store instead of two passes.
        with source:
            source = pa.BufferReader(source.read_buffer())
    length = size - _FOOTER.size
    digest = xxhash.xxh3_128()
    for start in range(0, length, _CHUNK_BYTES):
        digest.update(source.read_buffer(min(_CHUNK_BYTES, length - start)))
    footer = bytes(source.read(_FOOTER.size))
    # Reference and footer must agree: a complete file of another attempt has a valid footer, too.
    if digest.hexdigest() != ref.checksum or footer != _FOOTER.pack(_MAGIC, length, digest.digest()):
        source.close()
        raise _torn(path, "was altered: its checksum differs")
    source.seek(0)
    return source


def _torn(path: str, what: str) -> TornFileError:
    return TornFileError(f"The state file {path} {what}; restore it from a copy or go back to an older checkpoint.")


def _metadata(schema: pa.Schema) -> Metadata:
    return Metadata(**json.loads((schema.metadata or {})[_META]))


def _base_lineage(base: FileRef | None) -> str:
    if base is None:
        return EMPTY_LINEAGE
    return base.lineage or _link(EMPTY_LINEAGE, base)


def _link(lineage: str, ref: FileRef) -> str:
    sign = "-" if ref.role == "gone" else ""
    return xxhash.xxh3_128_hexdigest(f"{lineage}/{ref.version}/{sign}{ref.checksum}".encode())


def read_ref(fs: pafs.FileSystem, root: str, path: str) -> tuple[FileRef, Metadata]:
    """The reference of a file, made from its head and footer; its rows are checked when they are read.

    Args:
        fs: File system of the checkpoint.
        root: Root of the checkpoint.
        path: The file, relative to the root. Its report, if there is one, has the number of ``rows``.

    Raises:
        TornFileError: The file is missing or truncated.
    """
    try:
        file: Any = fs.open_input_file(join(root, path))
        with file:
            size = file.size()
            magic, length, digest = _FOOTER.unpack(file.read_at(_FOOTER.size, max(size - _FOOTER.size, 0)))
            if magic != _MAGIC or length + _FOOTER.size != size:
                raise _torn(path, "is truncated")
            file.seek(0)
            metadata = _metadata(pa.ipc.open_stream(file).schema)
    except (OSError, pa.ArrowInvalid, struct.error) as wrong:
        raise _torn(path, f"cannot be read ({wrong})") from wrong
    return FileRef(path, metadata.version, size, int((metadata.report or {}).get("rows", 0)), digest.hex()), metadata
