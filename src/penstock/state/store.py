"""A worker's state on an executor's local disk: an LMDB cache of the files in the checkpoint.

Invariant: the local store never holds an uncommitted version. An epoch's task reads from exactly the last committed version,
and writes its own changes to a new delta file; later tasks apply that file here if it was committed. So nothing is ever rolled
back. The last few deltas stay in memory over the store (`penstock.state.recent_changes`) and are written to it together. The
lineage identifies the store's version; a store that is not on the way to the wanted version is rebuilt from the files.

Read next: `penstock.state.worker` for what operators see, `penstock.state.compaction` for how bases are made.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain as joined
from typing import Any, Final, TypeVar

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from penstock.arrow.columns import concat
from penstock.errors import StateError
from penstock.state import recent_changes
from penstock.state.deltas import FileRef, Version, read_batches
from penstock.state.environment import (
    FORMAT,
    Environment,
    close_below,
    close_environment,
    fill_up,
    is_full,
    moving,
    open_environment,
    remove_environment,
    unusable,
)
from penstock.state.overlay import TIMER_BYTES, Due, Ints, Layered, Overlay
from penstock.state.recent_changes import Layer
from penstock.state.worker import WorkerState, order_bytes, timer_bytes
from penstock.types import MAX_TIME, MIN_TIME

MAP_SIZE: Final = 64 << 30
_META_KEY: Final = b"store"
_INDEX_ROWS: Final = 1 << 20
_ATTEMPTS: Final = 5
_HEAD: Final = 16  # of a stored entry: its timer, and the time under which the index has it
_NO_ENTRY: Final = MAX_TIME.to_bytes(8, "big")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The cost of catching up: whether the store was emptied first, and how many files and rows were applied."""

    rebuilt: bool
    files: int
    rows: int


def close_stores(directory: str) -> None:
    """Close, in this process, all stores in a directory and below it. Their snapshots can no longer be read; they can be
    reopened.
    """
    for path in close_below(directory):
        recent_changes.evict(path)


class LocalStore:
    """The local cache of one (region, worker). Several processes of a host may open the same one. Create it with `open`."""

    def __init__(self, directory: str, identity: str, boot_id: str, map_size: int) -> None:
        self._directory = os.path.realpath(directory)
        self._identity = identity
        self._boot_id = boot_id
        self._map_size = map_size
        self._env: Environment = self._open()

    @classmethod
    def open(cls, directory: str, identity: str, boot_id: str, map_size: int = MAP_SIZE) -> LocalStore:
        """Open the store in a directory. It is emptied first if it is another's, damaged or from before the last boot.

        Args:
            directory: Directory on a local disk; created if missing.
            identity: The state's owner: checkpoint, region and worker.
            boot_id: The boot of the machine; the store is written without fsync and invalid after another boot.
            map_size: Most bytes the store may ever have; costs address space only.

        Raises:
            StateError: The directory cannot be used or the disk is full. Nothing trusted was changed.
        """
        return cls(directory, identity, boot_id, map_size)

    def close(self) -> None:
        """Close it in this process; snapshots can no longer be read. Only needed before the directory goes away."""
        recent_changes.evict(self._directory)
        close_environment(self._directory)

    def at(self, fs: pafs.FileSystem, root: str, version: Version) -> WorkerState:
        """The state at exactly one version: from the store, caught up if necessary, and from the layer over it.

        Args:
            fs: File system of the checkpoint.
            root: Root of the checkpoint.
            version: The committed version that the epoch starts from.

        Raises:
            TornFileError: A file of the version is missing or altered. The store holds an earlier version.
            StateError: The store cannot hold it, or other processes keep removing it. It holds some committed version.
        """
        state = self._safely(lambda: self._seen(fs, root, version))
        for _ in range(_ATTEMPTS):
            if state is not None:
                break
            # Otherwise processes that want different versions could take it from each other for ever.
            with moving(self._directory):
                self._safely(lambda: self._apply_missing(fs, root, version))
                state = self._safely(lambda: self._seen(fs, root, version))
        if state is None:
            raise StateError(
                f"The local state store in {self._directory} was removed by another process on its way to version {version.version} "
                f"{_ATTEMPTS} times; end the tasks of older runs on this host."
            )
        return state

    def catch_up(self, fs: pafs.FileSystem, root: str, version: Version) -> CatchUp:
        """Bring the store to a version with the files it lacks, or rebuild it if it is not on the way there.

        Args:
            fs: File system of the checkpoint.
            root: Root of the checkpoint.
            version: The wanted version.

        Raises:
            TornFileError: A file of the version is missing or altered. The store holds an earlier version.
            StateError: The store cannot hold it. It holds an earlier version.
        """
        with moving(self._directory):
            return self._safely(lambda: self._apply_missing(fs, root, version))

    def distrust(self) -> None:
        """Remove the local files, so that the next process to open the store rebuilds it."""
        with moving(self._directory):
            self._distrust()

    def _distrust(self) -> None:
        recent_changes.evict(self._directory)
        remove_environment(self._directory)

    def _safely(self, action: Callable[[], _T]) -> _T:
        """Use the store as it is now on disk."""
        try:
            try:
                self._env = self._open()
                return action()
            except lmdb.Error as wrong:
                if is_full(wrong):
                    raise
                # Whatever the cause, the files are the truth.
                self._distrust()
                self._env = self._open()
                return action()
        except (lmdb.Error, OSError) as wrong:
            raise unusable(self._directory, wrong) from wrong

    def _seen(self, fs: pafs.FileSystem, root: str, version: Version) -> WorkerState | None:
        """The state at a version, if what the store lacks may stay in memory over it."""
        env, chain = self._env, version.lineages()
        txn = env.env.begin()
        stored = _LmdbSnapshot(self, env, txn)
        try:
            have = self._lineage(env, txn)
            if have is not None and have in chain and recent_changes.may_be_held(version.deltas[chain.index(have) :]):
                layer = self._held_over(have, chain) or Layer(have, have, Overlay())
                fresh = version.deltas[chain.index(layer.lineage) :]
                rows = joined.from_iterable(read_batches(fs, root, delta) for delta in fresh)
                more = layer.with_rows(rows, chain[-1]) if 0 < len(fresh) <= recent_changes.READ_DELTAS else None
                if more is not None or not fresh:
                    layer = recent_changes.hold(self._directory, more or layer)
                    return WorkerState(Layered(stored, layer.changes) if layer.changes.values else stored)
        except BaseException:
            stored.close()
            raise
        stored.close()
        return None

    def _held_over(self, have: str | None, chain: Sequence[str]) -> Layer | None:
        """This process's layer, if it is over the store's version and on the way to the wanted one."""
        layer = recent_changes.held(self._directory)
        return layer if layer is not None and layer.below == have and layer.lineage in chain else None

    def _open(self) -> Environment:
        return open_environment(self._directory, self._identity, self._boot_id, self._map_size)

    def _apply_missing(self, fs: pafs.FileSystem, root: str, version: Version) -> CatchUp:
        env = self._env
        chain = version.lineages()
        rebuilt, files, rows = False, 0, 0
        # Every pass is one transaction, and other processes may move the store between two; the bound covers that.
        for _ in range(2 * len(chain) + _ATTEMPTS):
            with env.env.begin() as txn:
                have = self._lineage(env, txn)
            if have == chain[-1]:
                break
            done = chain.index(have) if have in chain else -1
            layer = self._nearer(fs, root, version, have)
            upto = done + 1 if layer is None else chain.index(layer.lineage)
            with env.env.begin(write=True) as txn:
                if self._lineage(env, txn) != have:
                    continue
                if layer is not None:
                    recent_changes.evict(self._directory)
                    _apply_changes(env, txn, layer.changes.changes())
                elif done >= 0:
                    for batch in read_batches(fs, root, version.deltas[done]):
                        _apply_changes(env, txn, batch)
                else:
                    _load(env, txn, fs, root, version.base)
                    rebuilt = True
                self._stamp(env, txn, version.files(), chain, upto)
            base = (version.base,) if version.base and upto == 0 else ()
            for file in (*base, *version.deltas[max(done, 0) : upto]):
                files, rows = files + 1, rows + file.rows
        if files or rebuilt:
            fill_up(self._directory, env)
        return CatchUp(rebuilt, files, rows)

    def _nearer(self, fs: pafs.FileSystem, root: str, version: Version, have: str | None) -> Layer | None:
        """The changes that take the store towards a version in one transaction: the layer and the next deltas. None: none."""
        chain = version.lineages()
        layer = self._held_over(have, chain)
        if layer is None and have is not None and have in chain:
            layer = Layer(have, have, Overlay())
        if layer is None:
            return None
        done = chain.index(layer.lineage)
        fresh = version.deltas[done : done + recent_changes.HELD_DELTAS]
        while not recent_changes.may_be_held(fresh):
            fresh = fresh[:-1]
        rows = joined.from_iterable(read_batches(fs, root, delta) for delta in fresh)
        layer = layer.with_rows(rows, chain[done + len(fresh)]) or layer
        return layer if layer.lineage != layer.below else None

    def _lineage(self, env: Environment, txn: Any) -> str | None:
        """Lineage of the store's content; None if it is invalid."""
        raw = txn.get(_META_KEY, db=env.meta)
        meta = json.loads(raw) if raw else {}
        mine = (FORMAT, self._identity, self._boot_id)
        return meta["lineage"] if (meta.get("format"), meta.get("identity"), meta.get("boot")) == mine else None

    def _stamp(self, env: Environment, txn: Any, files: Sequence[FileRef], chain: Sequence[str], step: int) -> None:
        applied = files[: step + len(files) - len(chain) + 1]
        meta = {
            "format": FORMAT,
            "identity": self._identity,
            "boot": self._boot_id,
            "version": applied[-1].version if applied else -1,
            "lineage": chain[step],
        }
        txn.put(_META_KEY, json.dumps(meta).encode(), db=env.meta)


class _LmdbSnapshot:
    """One version of the store, held by a read transaction."""

    def __init__(self, store: LocalStore, env: Environment, txn: Any) -> None:
        self._store = store
        self._env = env
        self._txn = txn

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reading():
            found = self._txn.cursor(self._env.state).getmulti(keys)
        if len(found) == len(keys):
            return [raw[_HEAD:] for _, raw in found]
        values = dict(found)
        return [raw[_HEAD:] if (raw := values.get(key)) is not None else None for key in keys]

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        del due
        with self._reading():
            found = self._txn.cursor(self._env.state).getmulti(keys)
        if len(found) == len(keys):
            raws = [raw for _, raw in found]
        else:
            there = dict(found)
            raws = [there.get(key, _NO_ENTRY) for key in keys]
        timers = _times(raws, 0)
        return [None if raw is _NO_ENTRY else raw[_HEAD:] for raw in raws], timers

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        found = []
        with self._reading(), self._txn.cursor(self._env.state) as cursor:
            if cursor.set_range(prefix) if prefix else cursor.first():
                for key, raw in cursor.iternext():
                    if not key.startswith(prefix):
                        break
                    found.append((key, raw[_HEAD:], int.from_bytes(raw[:8], "big", signed=True)))
        return found

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        sizes: dict[int, int] = {}
        seen, at = 0, start
        with self._reading(), self._txn.cursor(self._env.state) as cursor:
            if cursor.set_range(start.to_bytes(2, "big")):
                for key, raw in cursor.iternext():
                    found = key[0] << 8 | key[1]
                    if found != at:
                        if seen >= entries or found >= stop:
                            break
                        at = found
                    sizes[at] = sizes.get(at, 0) + len(key) + len(raw) - _HEAD + TIMER_BYTES
                    seen += 1
                else:
                    found = stop
                return list(sizes.items()), min(found, stop)
        return [], stop

    def due(self, operator: int, upto_us: int, apart: Sequence[AbstractSet[bytes]]) -> list[tuple[int, bytes, bytes]]:
        byte = bytes([operator])
        stop = byte + order_bytes(np.array([upto_us], np.int64))[0].as_py()
        keys: list[bytes] = []
        with self._reading(), self._txn.cursor(self._env.timers) as cursor:
            if cursor.set_range(byte):
                for index_key in cursor.iternext(keys=True, values=False):
                    if index_key >= stop:
                        break
                    keys.append(index_key[9:])
            for others in apart:
                keys = [key for key in keys if key not in others]
            found = dict(self._txn.cursor(self._env.state).getmulti(keys)) if keys else {}
            if len(found) != len(keys):
                raise lmdb.CorruptedError("the index of timers names an absent entry")
        raws = [found[key] for key in keys]
        timers = _times(raws, 0)
        reached = timers < upto_us
        if upto_us < MAX_TIME:
            asked, moved = self._env.asked, np.flatnonzero(~reached)
            asked[operator] = max(upto_us, asked.get(operator, MIN_TIME))
            self._env.moved.update(keys[i] for i in moved.tolist())
        now = np.flatnonzero(reached)
        return sorted((t, keys[i], raws[i][_HEAD:]) for t, i in zip(timers[now].tolist(), now.tolist(), strict=True))

    def close(self) -> None:
        self._txn.abort()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as wrong:
            self._store.distrust()
            raise StateError(
                f"The local state store could not be read ({wrong}); it was removed and is rebuilt from the checkpoint when the epoch "
                f"runs again."
            ) from wrong


def _load(env: Environment, txn: Any, fs: pafs.FileSystem, root: str, base: FileRef | None) -> None:
    """Empty the store and fill it from a base."""
    txn.drop(env.timers, delete=False)
    txn.drop(env.state, delete=False)
    env.asked, env.moved = {}, set()
    if base is None:
        return
    cursor = txn.cursor(env.state)
    index: list[Any] = []
    rows = added = waiting = 0
    for batch in read_batches(fs, root, base):
        key, value, timer = batch.columns
        added += cursor.putmulti(_state_items(key, value, timer, timer), append=True)[1]
        index.append(_index_keys(key, timer))
        rows, waiting = rows + batch.num_rows, waiting + len(index[-1])
        if waiting >= _INDEX_ROWS:
            _put_index(env, txn, index)
            index, waiting = [], 0
    _put_index(env, txn, index)
    if added != rows:
        raise StateError(
            f"The base {base.path} is not sorted by key, so it was not written by penstock; go back to an older checkpoint."
        )


def _put_index(env: Environment, txn: Any, parts: list[Any]) -> None:
    # Sorted: LMDB fills pages many times faster in order.
    keys = pa.chunked_array(parts, pa.binary())
    ordered = keys.take(pc.array_sort_indices(keys)).to_pylist()
    txn.cursor(env.timers).putmulti((key, b"") for key in ordered)


def _apply_changes(env: Environment, txn: Any, changes: pa.RecordBatch) -> None:
    """Apply the rows of a delta."""
    columns: list[Any] = changes.columns
    key, value, timer = columns
    live, timers = value.is_valid(), timer.to_numpy()
    indexed = np.full(len(key), MAX_TIME)  # under which time the index has each of them
    cursor = txn.cursor(env.state)
    if txn.stat(env.timers)["entries"]:
        # Only a store with timers reads what it overwrites.
        names = key.to_pylist()
        _move_index(env, txn, cursor, names)
        old = cursor.getmulti(names)
        there = dict(old)
        at = np.arange(len(names)) if len(there) == len(names) else np.flatnonzero([name in there for name in names])
        indexed[at] = _times([raw for _, raw in old], 8)
    alive = live.to_numpy(zero_copy_only=False)
    stays = alive & (indexed <= timers) & (indexed >= _passed(env, key))
    gone, fresh = pa.array((indexed < MAX_TIME) & ~stays), pa.array(alive & ~stays)
    for name in _index_keys(key.filter(gone), pa.array(indexed).filter(gone)).to_pylist():
        txn.delete(name, db=env.timers)
    _put_index(env, txn, [_index_keys(key.filter(fresh), timer.filter(fresh))])
    for name in key.filter(pc.invert(live)).to_pylist():
        txn.delete(name, db=env.state)
    now = [key, value, timer, pa.array(np.where(stays, indexed, timers))]
    cursor.putmulti(_state_items(*(now if alive.all() else [column.filter(live) for column in now])))


def _move_index(env: Environment, txn: Any, cursor: Any, changed: Sequence[bytes]) -> None:
    """Put entries whose place in the index was reached, and whose timer was not, where they belong; those that change anyway are left."""
    names, env.moved = sorted(env.moved.difference(changed)), set()
    found = cursor.getmulti(names) if names else []
    timers, indexed = _times([raw for _, raw in found], 0), _times([raw for _, raw in found], 8)
    key = pa.array([name for name, _ in found], pa.binary())
    moves = (indexed < timers) & (indexed < _passed(env, key))
    for name in _index_keys(key.filter(pa.array(moves)), pa.array(indexed[moves])).to_pylist():
        txn.delete(name, db=env.timers)
    _put_index(env, txn, [_index_keys(key.filter(pa.array(moves)), pa.array(timers[moves]))])
    cursor.putmulti((found[i][0], found[i][1][:8] * 2 + found[i][1][_HEAD:]) for i in np.flatnonzero(moves).tolist())


def _passed(env: Environment, key: Any) -> Ints:
    """Up to when the index was asked for the operator of each key: what it has before that is found each time."""
    asked = np.full(256, MIN_TIME)
    asked[list(env.asked)] = list(env.asked.values())
    operators = np.frombuffer(b"".join(pc.binary_slice(key, 2, 3).to_pylist()), np.uint8)
    passed: Ints = asked[operators]
    return passed


def _times(raws: Sequence[bytes], at: int) -> Ints:
    """The timers of stored entries (at 0), or the times under which the index has them (at 8)."""
    return np.frombuffer(b"".join([raw[at : at + 8] for raw in raws]), ">i8").astype(np.int64)


def _state_items(key: Any, value: Any, timer: Any, indexed: Any) -> Iterator[tuple[bytes, bytes]]:
    stored = concat(timer_bytes(timer.to_numpy()), timer_bytes(indexed.to_numpy()), value)
    return zip(key.to_pylist(), stored.to_pylist(), strict=True)


def _index_keys(key: Any, timer: Any) -> Any:
    """Keys of the index of timers, for entries with a timer."""
    timed = pc.not_equal(timer, pa.scalar(MAX_TIME, pa.int64()))
    key, timer = key.filter(timed), timer.filter(timed)
    return concat(pc.binary_slice(key, 2, 3), order_bytes(timer.to_numpy()), key)
