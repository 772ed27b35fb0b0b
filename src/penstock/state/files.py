"""Small durable files on any file system of pyarrow: local, HDFS, S3, GCS.

Invariant: a file under its final name is complete. On file systems with a rename, bytes go to a temporary name, are forced to
disk and renamed. On object stores an object appears only when its upload is complete, so it is written in place.

Read next: `penstock.state.deltas`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import re
import string
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import CheckpointError, StateError, TornFileError

_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TEMPORARY: Final = ".tmp"
"""Ending of every temporary name; such a file is a leftover of an attempt that died and may be deleted."""


def location_of(given: object) -> str:
    """Where a checkpoint is, as text.

    Raises:
        CheckpointError: It is neither text nor a path, or no file system can have such a name.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise CheckpointError(f"checkpoint={given!r} is no folder; give the path or URI of one, such as checkpoint='state'.")
    return text


def resolve(uri: str) -> tuple[pafs.FileSystem, str]:
    """Find the file system of a path or URI, and the path within it.

    Args:
        uri: A plain path, or a URI such as ``file:///data``, ``s3://bucket/prefix`` or ``hdfs://host/path``.

    Returns:
        The file system and the root, without a trailing slash.

    Raises:
        CheckpointError: No file system understands the URI. Nothing was changed.

    Example:
        >>> resolve("/tmp/checkpoint/")[1]
        '/tmp/checkpoint'
    """
    # Spark writes file:/ for file:///, s3a:// for s3://, and does not escape letters beyond ASCII.
    local = re.match("^file:(?://)?(?=/(?!/))", uri)
    if local or ("://" not in uri and not uri.startswith("file:")):
        path = unquote(uri[local.end() :]) if local else uri
        return pafs.LocalFileSystem(), os.path.abspath(path)  # noqa: PTH100  (resolve() would follow links, which a checkpoint's users chose)
    known = quote(re.sub("^s3a://", "s3://", uri), safe=string.printable)
    try:
        fs, root = pafs.FileSystem.from_uri(known)
    except (OSError, ValueError, NotImplementedError) as wrong:
        raise CheckpointError(
            f"The location {uri!r} cannot be used ({wrong}); give a local path or a file://, s3://, gs:// or hdfs:// URI."
        ) from wrong
    return fs, root


def join(root: str, path: str) -> str:
    """A path relative to a root, as a path of the file system. An empty root leaves the path as it is."""
    return f"{root.rstrip('/')}/{path}" if root else path


@contextlib.contextmanager
def atomic_output(fs: pafs.FileSystem, path: str, suffix: str) -> Iterator[Any]:
    """Write a file that appears under its name only when it is complete and on disk.

    Args:
        fs: The file system.
        path: Final path; missing parent directories are created.
        suffix: Distinguishes this writer's temporary file.

    Yields:
        A file object with ``write``.

    Raises:
        StateError: The disk is full. The temporary file is gone and ``path`` is as before.
    """
    renames = fs.type_name not in _OBJECT_STORES
    # Spark watches folders such as the control log, but ignores names that begin with a dot.
    target = f"{_parent(path)}/.{posixpath.basename(path)}.{suffix}{TEMPORARY}" if renames else path
    try:
        if renames:
            fs.create_dir(_parent(path), recursive=True)
        with fs.open_output_stream(target) as out:
            yield out
        _force(fs, target)
        if renames:
            fs.move(target, path)
            _force(fs, _parent(path))
    except BaseException as wrong:
        if renames:
            delete_quietly(fs, target)
        if isinstance(wrong, OSError) and wrong.errno in _FULL:
            raise StateError(
                f"{path} could not be written because the disk is full; free space there and run again."
            ) from wrong
        raise


def write_atomic(fs: pafs.FileSystem, path: str, data: bytes, suffix: str | None = None) -> None:
    """Write or replace a small file in one step: readers see all of the old content or all of the new.

    Args:
        fs: The file system.
        path: The file.
        data: Its whole content.
        suffix: Distinguishes this writer's temporary file; by default no other writer has it, on any host.

    Raises:
        StateError: The disk is full. ``path`` is as before.
    """
    with atomic_output(fs, path, suffix or uuid.uuid4().hex) as out:
        out.write(data)


def create_exclusive(fs: pafs.FileSystem, path: str, data: bytes, suffix: str | None = None) -> bool:
    """Write a small file unless one of that name exists. Exact on local file systems, best effort elsewhere.

    Elsewhere two writers may both find the name free. The later one wins, so a caller that needs certainty reads the file back.

    Args:
        fs: The file system.
        path: The file.
        data: Its whole content.
        suffix: As for `write_atomic`.

    Returns:
        Whether this call created the file.

    Raises:
        StateError: The disk is full. Nothing was created.
    """
    if not isinstance(fs, pafs.LocalFileSystem):
        if fs.get_file_info(path).type != pafs.FileType.NotFound:
            return False
        write_atomic(fs, path, data, suffix)
        return True
    suffix = suffix or uuid.uuid4().hex  # a process number is another host's, too, or another thread's
    mine = f"{path}.{suffix}.new"
    write_atomic(fs, mine, data, suffix)
    try:
        # Only a link fails on an existing name and never shows a half-written file.
        os.link(mine, path)
        _force(fs, _parent(path))
    except FileExistsError:
        return False
    finally:
        delete_quietly(fs, mine)
    return True


def read_bytes(fs: pafs.FileSystem, path: str) -> bytes:
    """Read a whole small file.

    Raises:
        TornFileError: The file is missing. Nothing was changed.
    """
    try:
        with fs.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())
    except FileNotFoundError as wrong:
        raise TornFileError(f"The file {path} is missing; restore it from a copy or go back to an older checkpoint.") from wrong


def read_json(fs: pafs.FileSystem, path: str, *fields: str) -> Any:
    """Read a whole small file of JSON: a list, or an object that has some fields.

    Raises:
        TornFileError: The file is missing, or holds something else. Nothing was changed.
    """
    return _parsed(read_bytes(fs, path), path, fields)


def read_json_if_there(fs: pafs.FileSystem, path: str) -> Any:
    """As `read_json`; None of a file that is missing."""
    try:
        text = read_bytes(fs, path)
    except TornFileError:
        return None
    return _parsed(text, path, ())


def _parsed(text: bytes, path: str, fields: Sequence[str]) -> Any:
    try:
        found = json.loads(text)
        if not isinstance(found, (dict, list)) or any(name not in found for name in fields):
            raise ValueError("it holds something else")  # noqa: TRY301
    except ValueError as wrong:
        raise TornFileError(f"The file {path} is damaged ({wrong}); restore it from a copy.") from wrong
    return found


def list_dir(fs: pafs.FileSystem, path: str) -> list[str]:
    """Names in a directory, sorted, temporary files included; none if the directory does not exist."""
    selector = pafs.FileSelector(path, allow_not_found=True)
    try:
        found = fs.get_file_info(selector)
    except FileNotFoundError:  # it was made between the two looks that Arrow takes
        found = fs.get_file_info(selector)
    return sorted(info.base_name for info in found)


def delete_quietly(fs: pafs.FileSystem, path: str) -> bool:
    """Try to delete a file or a whole directory.

    Returns:
        Whether this call deleted it. A failure is no error: leftovers cost space, never correctness.
    """
    try:
        kind = fs.get_file_info(path).type
        if kind == pafs.FileType.Directory:
            fs.delete_dir(path)
        elif kind == pafs.FileType.File:
            fs.delete_file(path)
        else:
            return False
    except (OSError, pa.ArrowException):
        return False
    return True


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _force(fs: pafs.FileSystem, path: str) -> None:
    """Force a local file or directory to disk; other file systems do so when a file is closed."""
    if not isinstance(fs, pafs.LocalFileSystem):
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
