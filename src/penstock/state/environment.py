"""The LMDB environment under a local store: opened once per process, and checked before it is trusted.

An environment is written without fsync, so it is valid only until the machine reboots. A small file beside it names its owner
and boot. That file and the size of the data are checked before LMDB maps the data, because reading a truncated map kills the
process. An invalid environment is removed, never repaired: the truth is in the checkpoint. A page that another program
overwrote in place is not noticed.

Read next: `penstock.state.store`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb

from penstock.errors import StateError

FORMAT: Final = 2
_DATA: Final = "data.mdb"
_FILES: Final = (_DATA, "lock.mdb", "owner.json")
_OWNER: Final = "owner.json"
_GUARD: Final = "guard"
_MAGIC: Final = 0xBEEFC0DE
# Of a meta page, after its 16 bytes of page header: magic, (version, address, map size), page size, (two trees), last page, transaction.
_HEADER: Final = struct.Struct("<16xI20xI92xQQ")


@dataclass(slots=True)
class Environment:
    """An open environment.

    Attributes:
        env: The LMDB environment.
        state: key → timer (8 bytes, big-endian) ‖ time in the index (likewise) ‖ value.
        timers: operator byte ‖ time (8 bytes, in order) ‖ key → nothing; an index over `state`. An entry is found there at its timer or earlier:
            a timer that is put off, as most are, leaves the index as it is until that time has come.
        meta: One record: the state's owner and version.
        inode: Shows whether the file of that name is still the open one.
        asked: By operator, up to when this process asked for its due entries.
        moved: Entries that it found in the index before their timers since the store was last written.
    """

    env: Any
    state: Any
    timers: Any
    meta: Any
    inode: tuple[int, int]
    asked: dict[int, int] = field(default_factory=dict)
    moved: set[bytes] = field(default_factory=set)


# LMDB forbids opening an environment twice in a process. The process id keeps a forked child from using or closing its parent's.
_open: dict[tuple[int, str], Environment] = {}  # most recently used last
MOST_OPEN: Final = 64
"""So many environments a process keeps open. Each takes its map size of address space, of which a process has some 128 TiB, and two files."""


def open_environment(directory: str, identity: str, boot_id: str, map_size: int) -> Environment:
    """Open the environment in a directory. It is emptied first if it is another's, damaged or from before the last boot.

    Args:
        directory: Directory on a local disk; created if missing.
        identity: The owner that it must have.
        boot_id: The boot of the machine under which it must have been written.
        map_size: Most bytes it may ever have.

    Raises:
        StateError: The directory cannot be used, or the disk is full. Nothing trusted was changed.
    """
    path = os.path.realpath(directory)
    owner = json.dumps({"format": FORMAT, "identity": identity, "boot": boot_id}, sort_keys=True)
    try:
        with _guarded(path):
            if _read_owner(path) != owner or not _is_whole(path):
                _remove(path)
            try:
                opened = _reuse_or_open(path, map_size)
            except lmdb.Error as wrong:
                if is_full(wrong):
                    raise
                _remove(path)
                opened = _reuse_or_open(path, map_size)
            if _read_owner(path) != owner:
                Path(path, _OWNER).write_text(owner, encoding="utf-8")
    except (OSError, lmdb.Error) as wrong:
        raise unusable(path, wrong) from wrong
    return opened


def remove_environment(directory: str) -> None:
    """Remove a directory with its environment. Processes that have it open keep their view until they open it again.

    Raises:
        StateError: The files cannot be deleted.
    """
    path = os.path.realpath(directory)
    try:
        with _guarded(path):
            _remove(path)
            shutil.rmtree(path, ignore_errors=True)
    except OSError as wrong:
        raise unusable(path, wrong) from wrong


def close_environment(directory: str) -> None:
    """Close this process's environment of a directory, if open. Its snapshots can no longer be read."""
    opened = _open.pop((os.getpid(), os.path.realpath(directory)), None)
    if opened:
        opened.env.close()


def close_below(directory: str) -> list[str]:
    """Close this process's environments in a directory and below it; returns their directories."""
    below = os.path.realpath(directory)
    found = [path for pid, path in _open if pid == os.getpid() and Path(path).is_relative_to(below)]
    for path in found:
        close_environment(path)
    return found


def fill_up(path: str, opened: Environment) -> None:
    """Extend the data file to the length in its header, so that a shorter one is always damaged.

    LMDB does not write pages that a transaction allocated and freed, so the file may end before them.
    """
    # Another process may have removed the files meanwhile.
    with contextlib.suppress(FileNotFoundError, ValueError):
        if _missing_bytes(path) == 0 or _inode(path) != opened.inode:
            return
        with opened.env.begin(write=True):  # nobody else writes meanwhile
            missing = _missing_bytes(path)
            if missing:
                data = Path(path, _DATA)
                os.truncate(data, data.stat().st_size + missing)


def moving(directory: str) -> contextlib.ExitStack:
    """Keep other processes of this host from moving the store in a directory to another version, or distrusting it, meanwhile.

    This is for fairness; correctness does not depend on it. A damaged store, or that of a removed worker, is removed without
    it.

    Args:
        directory: The directory; created if missing. It is locked itself, because a file beside it would outlive it.

    Returns:
        A stack that unlocks when it is closed.

    Raises:
        StateError: The directory cannot be used.
    """
    path = Path(os.path.realpath(directory))
    try:
        while True:
            with contextlib.suppress(FileExistsError):  # `exist_ok` raises too if another process removes it at this moment
                path.mkdir(parents=True)
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as held:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                held.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(fd), path.stat()):  # otherwise it was removed while this waited
                    return held.pop_all()
    except OSError as wrong:
        raise unusable(str(path), wrong) from wrong


def is_full(wrong: Exception) -> bool:
    """Whether an error of LMDB or of the system means that there is no room."""
    number = getattr(wrong, "errno", None) or getattr(wrong, "code", None)
    # LMDB reports a short write as EIO, and a full disk causes short writes.
    return isinstance(wrong, lmdb.MapFullError) or number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def unusable(path: str, wrong: Exception) -> StateError:
    """The error for a local store that cannot be used."""
    if isinstance(wrong, lmdb.MapFullError):
        return StateError(f"The local state store in {path} has reached its map_size; open it with a larger one.")
    if is_full(wrong):
        return StateError(
            f"The local state store in {path} cannot grow ({wrong}) because the disk is full or failing; free space there and run again."
        )
    return StateError(f"The local state store in {path} cannot be used ({wrong}); name another directory or delete this one.")


def _reuse_or_open(path: str, map_size: int) -> Environment:
    name = (os.getpid(), path)
    opened = _open.get(name)
    if opened:
        if opened.inode == _inode(path):
            _open[name] = _open.pop(name)
            return opened
        close_environment(path)
    for _, oldest in [known for known in _open if known[0] == os.getpid()][: 1 - MOST_OPEN]:  # a task reads one store at a time
        close_environment(oldest)
    env = lmdb.open(
        path, map_size=map_size, max_dbs=3, max_readers=512, sync=False, metasync=False, writemap=False, readahead=False
    )
    try:
        env.reader_check()  # killed readers would pin old pages for ever
        trees = [env.open_db(tree) for tree in (b"state", b"timers", b"meta")]
        opened = Environment(env, trees[0], trees[1], trees[2], _inode(path) or (0, 0))
    except BaseException:
        env.close()
        raise
    fill_up(path, opened)
    _open[name] = opened
    return opened


def _remove(path: str) -> None:
    close_environment(path)
    for name in _FILES:
        Path(path, name).unlink(missing_ok=True)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path, _DATA).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read_owner(path: str) -> str | None:
    try:
        return Path(path, _OWNER).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _is_whole(path: str) -> bool:
    """Whether the data file is valid and not shorter than its header says."""
    try:
        return _missing_bytes(path) == 0
    except (OSError, ValueError):
        return False


def _missing_bytes(path: str) -> int:
    """By how many bytes the data file is shorter than the newer of its two headers says."""
    with Path(path, _DATA).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        heads = []
        at = 0
        for _ in range(2):
            raw = os.pread(file.fileno(), _HEADER.size, at)
            if len(raw) < _HEADER.size or _HEADER.unpack(raw)[0] != _MAGIC:
                raise ValueError("not an LMDB file")
            heads.append(_HEADER.unpack(raw))
            at = heads[0][1]
    _, page, last, _ = max(heads, key=lambda head: head[3])
    return max(0, int((last + 1) * page - size))


@contextlib.contextmanager
def _guarded(path: str) -> Iterator[None]:
    """Keep other processes of this host from opening or removing the same environment, or one beside it, meanwhile.

    The guard is beside the directories, not in them: a process that waits for it may wait for the directory's removal.
    """
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / _GUARD, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        Path(path).mkdir(exist_ok=True)
        yield
    finally:
        os.close(fd)
