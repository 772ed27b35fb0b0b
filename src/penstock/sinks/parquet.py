"""Rows in Parquet files: one file per epoch that has rows, committed by a manifest that is renamed last.

Tasks write parts of that file where the rows are; `commit` joins them (`penstock.sinks.parquet_parts`).

::

    path/epoch-000000012-totals-000.parquet        the rows of epoch 12 of output "totals"
    path/_penstock/staging/                        files that are being written; readers skip names that start with "_"
    path/_penstock/totals/mark-0000000003-0000000013.json   the manifest of run 3 after 13 epochs (0 to 12)

A data file appears under its final name in one step and complete. Invariant: a data file above the highest manifest belongs to an
epoch that was not committed; it is replaced when the epoch runs again, and removed by the next `open`. So between a crash and the
restart a reader may see one epoch more than the manifest says, never part of one.

Read next: `penstock.sinks.base`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.errors import DeclarationError, SinkAheadError, SinkError
from penstock.sinks import marks
from penstock.sinks.base import Sink
from penstock.sinks.parquet_parts import PartFiles, join, part_file, reported
from penstock.sinks.parquet_rows import FileRows
from penstock.sinks.parts import Part, PartWriter, decoded, row_groups
from penstock.sql_text.schema import as_text
from penstock.types import Mark, Refusal

KEPT_MANIFESTS: Final = 16
"""How many manifests of an output are kept; older ones are removed."""

_MANIFEST: Final = re.compile(r"mark-(\d+)-(\d+)\.json$")


def parquet(path: str | os.PathLike[str]) -> Sink:
    """Keep an output as Parquet files in a directory, exactly once.

    Any reader of the directory (``spark.read.parquet(path)``, pandas, DuckDB) sees complete epochs only. Several outputs with the same
    columns may share a directory. There is one file per epoch that has rows; nothing merges them.

    *On a local file system* files are synced before they are renamed, and a lock is held while an epoch is committed, so an old run
    that wakes up stores nothing. *On an object store* a finished upload appears at once, but there is no lock: the manifest is read
    just before each rename, and a run that is replaced between that look and its rename can still replace the file of the one epoch
    that it was writing. Its manifest is never believed, since the highest run wins. Stop the old driver before you start a new one there.

    Args:
        path: A directory, or a URI that `pyarrow.fs.FileSystem.from_uri` knows, such as ``s3://bucket/folder``.

    Returns:
        A durable sink. Nothing is created before the flow starts.

    Example:
        >>> parquet("results/totals")
        parquet('results/totals')
    """
    return ParquetSink(path)


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A mark with what its epoch stored, as it is written to the manifest."""

    mark: Mark
    columns: dict[str, str]
    files: tuple[str, ...] = ()
    rows: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @staticmethod
    def from_json(text: str) -> _Manifest:
        raw: dict[str, Any] = json.loads(text)
        return _Manifest(Mark(**raw["mark"]), raw["columns"], tuple(raw["files"]), raw["rows"])


class ParquetSink:
    """The sink that `parquet` makes. Not thread-safe; several sinks may share a directory."""

    durable = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = as_text(os.fspath(path) if isinstance(path, os.PathLike) else path, "The path of parquet")
        self._target = f"Directory {self._path!r}"
        self._files: Any = None
        self._root = self._output = ""
        self._schema: pa.Schema | None = None
        self.declared = pa.schema([])

    @property
    def identity(self) -> str:
        """Alike for two spellings of one directory, as far as the declaration tells."""
        return _resolved(self._path)

    def __repr__(self) -> str:
        return f"parquet({self._path!r})"

    def validate(self, schema: pa.Schema, *, updates: bool, key: tuple[str, ...]) -> None:
        """See `Sink.validate`.

        Raises:
            DeclarationError: The output updates rows, has a column twice or no columns. Nothing was changed.
        """
        marks.refuse_updates(updates, target=self._target, key=key)
        for index, name in enumerate(schema.names):
            if name in schema.names[:index]:
                raise DeclarationError(f"Column {name!r} is twice in the output for {self._target}: rename one.")
        self.declared = schema

    def sharing_refusal(self, other: Sink) -> Refusal | None:
        """See `Sharing.sharing_refusal`: a reader of the directory wants the same columns in all of its files."""
        if not isinstance(other, ParquetSink) or self.identity != other.identity:
            return None
        mine, theirs = ({f.name: f.type for f in sink.declared} for sink in (self, other))
        for name in [*mine, *theirs]:
            kinds = mine.get(name), theirs.get(name)
            if kinds[0] != kinds[1] and not any(kind is not None and pa.types.is_null(kind) for kind in kinds):
                has, lacks = ("nothing" if kind is None else str(kind) for kind in kinds)
                return Refusal(
                    f"{self._target} cannot keep two outputs because column {name!r} is {lacks} in one and {has} in the other"
                )
        return None

    def open(self, claim: Mark, schema: pa.Schema) -> Mark | None:
        """See `Sink.open`; removes what an epoch that was not committed has left.

        Raises:
            FencedError: As in the contract.
            SinkAheadError: As in the contract; also if there are files of this output but no manifest.
            SinkError: The storage cannot be used, or the files have other columns. Nothing was changed.
        """
        with reported(self._target, f"be opened for output {claim.output!r}"):
            self._connect(claim.output)
            columns = {field.name: str(field.type) for field in schema}
            with self._locked():
                held = self._manifest()
                leftovers = self._data_files(above=held.mark.epoch if held else -1)
                if held is None and leftovers:
                    raise SinkAheadError(
                        f"{self._target} holds {len(leftovers)} files of output {claim.output!r} but no mark in _penstock: "
                        "choose another directory, or delete the files."
                    )
                remedy = f"delete its files epoch-*-{self._output}-*.parquet and the folder _penstock/{self._output}"
                marks.refuse_claim(held.mark if held else None, claim, target=self._target, remedy=remedy)
                if held and held.mark.epoch >= 0:
                    self._refuse_columns(held.columns, columns, "choose another directory")
                for other, beside in self._others():
                    if beside.mark.epoch >= 0 or (beside.mark.flow, beside.mark.run) == (claim.flow, claim.run):
                        remedy = (
                            f"choose another directory for it, or, if output {other!r} is no more, delete its files and mark"
                        )
                        self._refuse_columns(beside.columns, columns, remedy)
                mark = replace(held.mark, flow=claim.flow, run=claim.run) if held else Mark(claim.flow, claim.output, claim.run)
                self._commit(replace(held, mark=mark, columns=columns) if held else _Manifest(mark, columns))
                for name in leftovers:
                    self._files.delete_file(f"{self._root}/{name}")
                self._clear_staging(claim.run)
        self._schema = schema
        return held.mark if held and held.mark.epoch >= 0 else None

    def held(self, output: str) -> Mark | None:
        """See `Sink.held`; waits for no writer.

        Raises:
            SinkError: As in the contract; also if the manifest is damaged.
        """
        with reported(self._target, f"read the mark of output {output!r}"):
            self._locate()
            found = self._manifest(_file_name(output))
        return found.mark if found and found.mark.epoch >= 0 else None

    def outputs(self) -> list[str]:
        """Names of the outputs that have stored an epoch in the directory.

        Raises:
            SinkError: As `held`.
        """
        with reported(self._target, "read its marks"):
            self._locate()
            return [name for name, manifest in self._others() if manifest.mark.epoch >= 0]

    def files_of(self, output: str, epoch: int) -> tuple[Any, list[str]]:
        """The file system, and the data files of an output up to an epoch, in their order."""
        self._locate()
        names = self._data_files(above=-1, output=_file_name(output))
        return self._files, [f"{self._root}/{name}" for name in names if int(name.split("-")[1]) <= epoch]

    def stored_rows(self, output: str | None) -> FileRows:
        """See `penstock.sources.read_back.Readable`.

        Raises:
            SinkError: As `held`.
        """
        declared: Any = self.declared
        known = len(declared) and not any(pa.types.is_null(column.type) for column in declared)
        rows = FileRows(partial(ParquetSink, self._path), output, declared if known else None, self._target)
        if known:
            return rows
        with reported(self._target, "read its columns"):
            mark = rows.held()
            files, paths = self.files_of(mark.output, mark.epoch) if mark else (None, [])
            schema = pq.read_schema(paths[-1], filesystem=files) if paths else declared if len(declared) else None
        return replace(rows, schema=schema)

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """See `Sink.write`.

        Raises:
            FencedError: As in the contract.
            SinkError: As in the contract. A data file of the epoch may be there; it is replaced when the epoch is written again.
        """
        return self._store(row_groups(batches, self._opened(mark), self._target), mark)

    def stager(self, mark: Mark) -> PartWriter:
        """See `Staging.stager`: a task's rows become a part of the epoch's file, or, if they are few, its token."""
        schema, folder = self._opened(mark), f"{self._root}/_penstock"
        with reported(self._target, f"store epoch {mark.epoch}"):
            landmark = f"{folder}/{self._output}/{self._manifests()[-1]}" if self._manifests() else f"{folder}/none"
        prefix = f"run-{mark.run}-epoch-{mark.epoch:09d}-{self._output}"
        store = PartFiles(self._files, f"{folder}/staging", schema, landmark, self._target)
        return PartWriter(store, prefix, schema, mark.epoch)

    def commit(self, tokens: Iterable[bytes], mark: Mark) -> int:
        """See `Staging.commit`; raises as `write`."""
        self._opened(mark)
        return self._store(map(decoded, tokens), mark)

    def _opened(self, mark: Mark) -> pa.Schema:
        if self._schema is None:
            raise SinkError(f"{self._target} was not opened before epoch {mark.epoch} was written: call open() first.")
        return self._schema

    def _store(self, pieces: Iterable[Part | pa.Table], mark: Mark) -> int:
        """Store an epoch's rows, which are staged or given."""
        schema = self._opened(mark)
        with reported(self._target, f"store epoch {mark.epoch}"):
            name = f"epoch-{mark.epoch:09d}-{self._output}-000.parquet"
            try:
                if self._holds(mark):
                    return 0
                rows, staged = self._assemble(pieces, f"{self._root}/_penstock/staging", f"run-{mark.run}-{name}")
                with self._locked():
                    if self._holds(mark):  # again: another run may have come while the rows were staged
                        return 0
                    for old in self._data_files(above=mark.epoch - 1):
                        if old != name or not rows:
                            self._files.delete_file(f"{self._root}/{old}")
                    if rows:
                        self._move(staged, f"{self._root}/{name}")
                    columns = {field.name: str(field.type) for field in schema}
                    self._commit(_Manifest(mark, columns, (name,) if rows else (), rows))
            finally:
                self._clear_staging(mark.run)
            return rows

    def rewind_refusal(self) -> Refusal | None:
        """Every epoch has a file of its own, so they can be removed."""
        return None

    def rewind(self, upto: int, mark: Mark) -> None:
        """See `Rewinding.rewind`: removes the files of the later epochs, the newest first, then writes the manifest.

        Raises:
            FencedError: As in the contract.
            SinkError: As in the contract. Some of the files may be gone; called again, it removes the others.
        """
        if self._schema is None:
            raise SinkError(f"{self._target} was not opened before it went back to epoch {upto}: call open() first.")
        with reported(self._target, f"go back to epoch {upto}"), self._locked():
            if self._holds(mark):
                return
            for name in reversed(self._data_files(above=upto)):
                self._files.delete_file(f"{self._root}/{name}")
            self._commit(_Manifest(mark, {field.name: str(field.type) for field in self._schema}))

    def close(self) -> None:
        """Nothing stays open; files and manifests stay."""
        self._files = self._schema = None

    # -- rows

    def _assemble(self, pieces: Iterable[Part | pa.Table], folder: str, name: str) -> tuple[int, str]:
        """One file of all pieces, out of sight of readers: number of rows and path; no file if there are no rows."""
        parts: list[str] = []
        rows, writer = 0, None
        try:
            for piece in pieces:
                if isinstance(piece, Part):
                    if writer is not None:
                        writer.close()
                        writer = None
                    parts.append(f"{folder}/{piece.name}")
                    rows += piece.rows
                    continue
                if writer is None:  # attempts of tasks have numbers without zeros before them
                    parts.append(f"{folder}/{name.removesuffix('.parquet')}{len(parts)}.parquet")
                    writer = part_file(self._files, parts[-1], piece.schema)
                writer.write_table(piece, row_group_size=piece.num_rows)
                rows += piece.num_rows
        finally:
            if writer is not None:
                writer.close()
        if len(parts) < 2:
            return rows, "".join(parts)
        join(self._files, parts, f"{folder}/{name}")
        return rows, f"{folder}/{name}"

    def _clear_staging(self, run: int) -> None:
        """Remove what this run or an older one has written of this output and not committed."""
        folder = f"{self._root}/_penstock/staging"
        pattern = re.compile(rf"run-(\d+)-epoch-\d+-{re.escape(self._output)}-\d+\.parquet")
        for name in self._listed(folder):
            match = pattern.fullmatch(name)
            if match and int(match[1]) <= run:
                with suppress(FileNotFoundError):  # another run may sweep, too
                    self._files.delete_file(f"{folder}/{name}")

    def _data_files(self, above: int, output: str = "") -> list[str]:
        """Names of this output's data files of epochs above the given one, or of another output's."""
        pattern = re.compile(rf"epoch-(\d+)-{re.escape(output or self._output)}-\d+\.parquet")
        found = ((name, pattern.fullmatch(name)) for name in self._listed(self._root))
        return sorted(name for name, match in found if match and int(match[1]) > above)

    def _others(self) -> list[tuple[str, _Manifest]]:
        """The other outputs in the directory, with their marks."""
        selector: Any = fs.FileSelector(f"{self._root}/_penstock", allow_not_found=True)
        folders = [info.base_name for info in self._files.get_file_info(selector) if info.type == fs.FileType.Directory]
        found = [(folder, self._manifest(folder)) for folder in sorted(folders) if folder not in ("staging", self._output)]
        return [(manifest.mark.output, manifest) for _, manifest in found if manifest is not None]

    def _refuse_columns(self, held: dict[str, str], wanted: dict[str, str], remedy: str) -> None:
        for name in [*held, *wanted]:
            if held.get(name) != wanted.get(name):
                raise SinkError(
                    f"{self._target} holds column {name!r} as {held.get(name, 'nothing')}, but the output now has it as "
                    f"{wanted.get(name, 'nothing')}: {remedy}."
                )

    # -- the mark

    def _holds(self, mark: Mark) -> bool:
        held = self._manifest()
        return marks.holds_epoch(held.mark if held else None, mark, target=self._target)

    def _manifests(self, output: str = "") -> list[str]:
        """Names of the manifests, the valid one last: the highest run, then the highest epoch."""
        found = ((name, _MANIFEST.match(name)) for name in self._listed(f"{self._root}/_penstock/{output or self._output}"))
        return [name for _, name in sorted((int(match[1]) * 10**18 + int(match[2]), name) for name, match in found if match)]

    def _manifest(self, output: str = "") -> _Manifest | None:
        names = self._manifests(output)
        if not names:
            return None
        path = f"{self._root}/_penstock/{output or self._output}/{names[-1]}"
        try:
            with self._files.open_input_stream(path) as stream:
                return _Manifest.from_json(stream.read().decode())
        except (ValueError, KeyError, TypeError) as broken:
            raise SinkError(f"{self._target} has a damaged manifest {path!r} ({broken}): restore it from a backup.") from broken

    def _commit(self, manifest: _Manifest) -> None:
        """Write the manifest out of sight, rename it, drop old ones."""
        # Epochs start at -1 (claimed, nothing written): shifted by one in the name, which has no sign.
        name = f"mark-{manifest.mark.run:010d}-{manifest.mark.epoch + 1:010d}.json"
        staged = f"{self._root}/_penstock/staging/{self._output}-{name}"
        with self._files.open_output_stream(staged) as stream:
            stream.write(manifest.to_json().encode())
        self._move(staged, f"{self._root}/_penstock/{self._output}/{name}")
        for old in self._manifests()[:-KEPT_MANIFESTS]:
            self._files.delete_file(f"{self._root}/_penstock/{self._output}/{old}")

    # -- storage

    def _locate(self) -> None:
        if "://" in self._path:
            self._files, root = fs.FileSystem.from_uri(self._path)
        else:
            self._files, root = fs.LocalFileSystem(), _resolved(self._path)
        self._root = root.rstrip("/")

    def _connect(self, output: str) -> None:
        self._locate()
        self._output = _file_name(output)
        for folder in ("staging", self._output):
            self._files.create_dir(f"{self._root}/_penstock/{folder}", recursive=True)

    def _listed(self, folder: str) -> list[str]:
        selector: Any = fs.FileSelector(folder, allow_not_found=True)
        return [info.base_name for info in self._files.get_file_info(selector) if info.type == fs.FileType.File]

    def _move(self, source: str, target: str) -> None:
        if isinstance(self._files, fs.LocalFileSystem):
            _sync(source)
            self._files.move(source, target)
            _sync(str(Path(target).parent))
        else:
            self._files.move(source, target)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Between a look at the mark and the rename that follows, no other run may come; only local files can do that."""
        if not isinstance(self._files, fs.LocalFileSystem):
            yield
            return
        import fcntl  # noqa: PLC0415  (not on every system, and not needed for object stores)

        with open(f"{self._root}/_penstock/{self._output}/lock", "ab") as lock:  # noqa: PTH123
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _resolved(path: str) -> str:
    """One text for a directory however it is written; of a URI, as far as that can be told without going there."""
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return path.rstrip("/") if "://" in path else str(Path(path).expanduser().resolve())


def _file_name(output: str) -> str:
    """An output's name as part of a file name; changed names get a digest, so that two never meet."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", output)
    if plain == output and output != "staging":
        return plain
    return f"{plain}_{hashlib.blake2b(output.encode(), digest_size=4).hexdigest()}"


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
