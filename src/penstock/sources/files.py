"""Files in a folder, declared as a source."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.sources.base import Source
from penstock.sql_text.schema import as_number, as_schema, as_text

if TYPE_CHECKING:
    from penstock.sql_text.given import Schema

FORMATS = ("csv", "json", "parquet")
_RECORDS: Final = "penstock finds malformed records itself, and on_error= of the source says what becomes of them"
_ORDER: Final = "files are read in the order of (modification time, name)"
_KEPT: Final = (
    "a flow that runs an epoch again, or goes back to a snapshot, must find its files where they were; remove old ones yourself"
)
_LOST: Final = "a file that vanished or is damaged must not be passed over without a word"
_ALL: Final = "each file is read once, however old it is"
_KNOWN: Final = "penstock must know all files that are left, to keep the order of those of one moment"
OURS: Final = {
    "mode": _RECORDS,
    "columnNameOfCorruptRecord": _RECORDS,
    "columnPruning": _RECORDS,
    "maxFilesPerTrigger": "max_files_per_epoch= says it",
    "maxFileAge": _ALL,
    "fileNameOnly": _ALL,
    "modifiedBefore": _ALL,
    "modifiedAfter": _ALL,
    "latestFirst": _ORDER,
    "maxCachedFiles": _KNOWN,
    "discardCachedInputRatio": _KNOWN,
    "cleanSource": _KEPT,
    "sourceArchiveDir": _KEPT,
    "ignoreMissingFiles": _LOST,
    "ignoreCorruptFiles": _LOST,
    "ignoreInvalidPartitionPaths": _LOST,
}
"""Options of Spark's readers that cannot be chosen, and why: by them records or files could be lost, or their order."""


@dataclass(frozen=True)
class Files(Source):
    """Files that appear in a folder. One partition; records are ordered by (time of the file, its name, row)."""

    path: str
    schema: pa.Schema
    format: str
    max_files_per_epoch: int | None = None
    missing_columns: str = "fail"
    options: dict[str, str] = field(default_factory=dict)
    steady = True

    def folder(self) -> str:
        return self.path

    def meaning(self) -> dict[str, str]:
        return {"kind": "files", "path": self.path.removeprefix("file://"), "format": self.format}


def files(
    path: str | os.PathLike[str],
    schema: Schema,
    format: Literal["csv", "json", "parquet"] = "parquet",  # noqa: A002  (Spark's word)
    *,
    max_files_per_epoch: int | None = None,
    missing_columns: Literal["fail", "null"] = "fail",
    **options: Any,
) -> Files:
    """Files in a folder, read as they appear.

    A file must appear complete (write it elsewhere, then move it in) and is read once. Its records' position is the file's
    place in the order of (modification time in ms, name), and the row in it. Until its epoch is committed it must stay as it is: an epoch
    that runs again stops at a file that is gone, or has another size or time. Hidden files (``_SUCCESS``, ``.part``) are not looked at.

    Args:
        path: Folder, or a glob of files.
        schema: Columns and types, ``"tail string, at timestamp"``.
        format: ``"csv"`` (with a header line unless ``header="false"``), ``"json"`` (one object per line), ``"parquet"``.
        max_files_per_epoch: At most so many files per epoch.
        missing_columns: What becomes of a Parquet file that lacks a declared column: the flow stops and names it, or (``"null"``)
            the column is null. A JSON field that is not there is always null; a CSV file must always have all columns.
        **options: Options of Spark's reader for this format. A quote inside a quoted field of CSV is doubled, as RFC 4180 has it; for
            files that put a backslash before it give that as ``escape=``. Fields with line breaks need ``multiLine=True``.

    Raises:
        DeclarationError: The format is not known, or the schema is none, or an argument is out of range, or an option is one
            by which records or files could be lost, or their order.

    Example:
        >>> files("trips", "tail string, at timestamp", "csv", header=True).schema.names
        ['tail', 'at']
    """
    if format not in FORMATS:
        raise DeclarationError(f"files(format={format!r}) is not known; use one of {', '.join(FORMATS)}.")
    if max_files_per_epoch is not None:
        as_number(max_files_per_epoch, "max_files_per_epoch of files")
    if missing_columns not in ("fail", "null"):
        raise DeclarationError(f'files(missing_columns={missing_columns!r}) is not known; use "fail" or "null".')
    reasons = {name.lower(): why for name, why in OURS.items()}
    for name in options:
        if name.lower() in reasons:
            raise DeclarationError(f"files({name}=...) cannot be chosen: {reasons[name.lower()]}.")
    path = as_text(os.fspath(path) if isinstance(path, os.PathLike) else path, "The path of files")
    if "://" not in path:
        path = str(Path.cwd() / path)  # the JVM may have another working directory
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
    return Files(path, as_schema(schema, f"the schema of files({path!r})"), format, max_files_per_epoch, missing_columns, texts)
