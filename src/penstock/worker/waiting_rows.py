"""Rows that wait for the frontier, at the start of a region.

Rows that the frontier has not passed are stored as columns: per epoch a few chunks, each a span of event time, sorted by time.
When the frontier enters a chunk's span, the due part is read; a chunk that is wholly before the frontier is deleted. The
frontier alone decides which rows of a chunk still wait, so releasing writes only deletions.

Rows whose keys move to another worker are copied, and a tombstone is written: a small entry with the keys that left and the
epoch. Rows of older chunks that it covers no longer count. So a step of a rescale rewrites no chunk, and a key may return.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.columns import conformed, to_indices
from penstock.operators.base import StateView
from penstock.routing.table import sub_of
from penstock.rows.keys import WORKER_BIN, Ints
from penstock.types import BINS, HASH, MAX_TIME, TIME

OPERATOR: Final = 255
TOMBSTONE: Final = 254
_SPANS: Final = 8
_TOMBSTONES: Final = WORKER_BIN + bytes([TOMBSTONE])
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """Keys by hash: whole bins, parts of bins, single keys; without those of `pinned_keys`.

    Attributes:
        bins: Whole bins.
        parts: (bin, lo, hi): keys of a bin with ``lo <= sub < hi``.
        keys: Hashes of single keys.
        pinned_keys: Hashes that do not go with their bin.
    """

    bins: tuple[int, ...] = ()
    parts: tuple[tuple[int, int, int], ...] = ()
    keys: tuple[int, ...] = ()
    pinned_keys: tuple[int, ...] = ()

    def joined(self, other: Selection) -> Selection:
        """The keys of both."""
        pinned_keys = tuple(dict.fromkeys((*self.pinned_keys, *other.pinned_keys)))
        return Selection(self.bins + other.bins, self.parts + other.parts, self.keys + other.keys, pinned_keys)

    def mask(self, hashes: Ints) -> Mask:
        """Which of the hashes (int64, n) are selected."""
        bins = hashes % BINS
        chosen = np.zeros(BINS, bool)
        chosen[list(self.bins)] = True
        out: Mask = chosen[bins]
        for at, low, high in self.parts:
            sub = sub_of(hashes)
            out |= (bins == at) & (sub >= low) & (sub < high)
        if self.pinned_keys:
            out &= ~np.isin(hashes, np.array(self.pinned_keys, np.int64))
        if self.keys:
            out |= np.isin(hashes, np.array(self.keys, np.int64))
        return out


class Waiting:
    """The waiting rows of one input of a region.

    Args:
        view: The worker's state.
        port: The input's index.
        schema: The rows' columns, hidden ones included.
    """

    def __init__(self, view: StateView, port: int, schema: pa.Schema) -> None:
        self._view = view
        self._prefix = WORKER_BIN + bytes([OPERATOR, port])
        self._schema = schema

    def keep(self, epoch: int, rows: pa.RecordBatch) -> None:
        """Store rows that the frontier has not passed.

        Args:
            epoch: Number of this epoch; it makes the chunks' names.
            rows: The rows, in any order.
        """
        if not rows.num_rows:
            return
        times = rows.column(self._schema.get_field_index(TIME)).to_numpy()
        index = np.argsort(times, kind="stable")
        times = times[index]
        rows = rows.take(to_indices(index))
        edges = times[0] + (int(times[-1]) - int(times[0])) // _SPANS * np.arange(1, _SPANS)
        cuts = np.unique(np.concatenate(([0], np.searchsorted(times, edges), [len(times)])))
        names, values, timers = [], [], []
        for i, (a, b) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            names.append(self._prefix + epoch.to_bytes(8, "big") + bytes([i]))
            values.append(int(times[b - 1]).to_bytes(8, "big", signed=True) + to_bytes(rows.slice(a, b - a)))
            timers.append(int(times[a]))
        self._view.put_many(names, values, np.array(timers, np.int64))

    def release(self, before: int, frontier: int, *, stay: bool = False) -> list[pa.RecordBatch]:
        """Take out the rows with ``before <= time < frontier``.

        Args:
            before: The frontier of the epoch before, in µs; earlier rows have been taken out already.
            frontier: The frontier now.
            stay: Whether they go on waiting for others.
        """
        out, gone = [], []
        tombstoned: list[tuple[int, Selection]] | None = None
        for name, value in self._view.due(OPERATOR, frontier):
            if not name.startswith(self._prefix):
                continue
            rows = from_bytes(value[8:])
            times = rows.column(rows.schema.get_field_index(TIME)).to_numpy()
            a, b = np.searchsorted(times, [before, frontier])
            if b > a:
                tombstoned = read_tombstones(self._view) if tombstoned is None else tombstoned
                due = rows.slice(int(a), int(b - a))
                due = due.filter(pa.array(live(due, epoch_of(name), tombstoned))) if tombstoned else due
                out += [conformed(due, self._schema)] if due.num_rows else []  # the flow may have had other columns then
            if int.from_bytes(value[:8], "big", signed=True) < frontier:
                gone.append(name)
        if gone and not stay:
            self._view.delete_many(gone)
        return out


def epoch_of(name: bytes) -> int:
    """The epoch in which a chunk was written."""
    return int.from_bytes(name[4:12], "big")


def read_tombstones(view: StateView) -> list[tuple[int, Selection]]:
    """The keys that have left this worker, with the epoch at whose end they did."""
    return [(int.from_bytes(name[3:11], "big"), pickle.loads(value)) for name, value in view.scan(_TOMBSTONES)]


def live(rows: pa.RecordBatch, epoch: int, tombstoned: Sequence[tuple[int, Selection]]) -> Mask:
    """Which rows of a chunk still belong to this worker."""
    keep = np.ones(rows.num_rows, bool)
    hashes = rows.column(rows.schema.get_field_index(HASH)).to_numpy()
    for left, selection in tombstoned:
        if left >= epoch:
            keep &= ~selection.mask(hashes)
    return keep


def forget_tombstones(view: StateView, frontier: int) -> None:
    """Delete tombstones once every chunk that they cover has been released."""
    gone = [name for name, _ in view.due(TOMBSTONE, frontier)]
    if gone:
        view.delete_many(gone)


def take_out(
    view: StateView, chosen: Mapping[int, Selection], lost: Selection, epoch: int, worker: int, frontier: int
) -> dict[int, list[tuple[bytes, bytes, int]]]:
    """Copy waiting rows of keys that leave at the end of an epoch, and write a tombstone.

    Args:
        view: The worker's state; gets the tombstone.
        chosen: By receiver, its keys.
        lost: Keys that leave without a copy (on hold: a job copies them while epochs run).
        epoch: Number of the epoch.
        worker: This worker.
        frontier: Rows of a chunk before it (µs) have been processed already.

    Returns:
        By receiver, entries (name, value, timer) for its state.
    """
    out: dict[int, list[tuple[bytes, bytes, int]]] = {}
    last = None
    tombstoned = read_tombstones(view)
    for i, (name, value) in enumerate(view.scan(WORKER_BIN + bytes([OPERATOR]))):
        rows = from_bytes(value[8:])
        times = rows.column(rows.schema.get_field_index(TIME)).to_numpy()
        keep = live(rows, epoch_of(name), tombstoned) & (times >= frontier)
        hashes = rows.column(rows.schema.get_field_index(HASH)).to_numpy()
        for to, selection in chosen.items():
            mine = keep & selection.mask(hashes)
            if mine.any():
                left_at = times[mine]
                new = name[:4] + epoch.to_bytes(8, "big") + i.to_bytes(4, "big") + worker.to_bytes(2, "big")
                body = int(left_at[-1]).to_bytes(8, "big", signed=True) + to_bytes(rows.filter(pa.array(mine)))
                out.setdefault(to, []).append((new, body, int(left_at[0])))
                last = max(last or 0, int.from_bytes(value[:8], "big", signed=True))
        if (keep & lost.mask(hashes)).any():
            last = max(last or 0, int.from_bytes(value[:8], "big", signed=True))
    if last is not None:
        left = lost
        for selection in chosen.values():
            left = left.joined(selection)
        timer = np.array([min(last + 1, MAX_TIME - 1)], np.int64)
        view.put_many([_TOMBSTONES + epoch.to_bytes(8, "big")], [pickle.dumps(left)], timer)
    return out


class WaitingBytes:
    """The approximate size of each key's waiting rows: a chunk's bytes, divided by its rows.

    Args:
        hashes: The keys, int64, each once.
        sizes: Their bytes, int64.
    """

    def __init__(self, hashes: Ints, sizes: Ints) -> None:
        index = np.argsort(hashes % BINS, kind="stable")
        self._hashes, self._sizes = hashes[index], sizes[index]
        self._starts = np.searchsorted(self._hashes % BINS, np.arange(BINS + 1)).tolist()

    def of_bin(self, at: int) -> dict[int, int]:
        """The bytes of each key (hash) of a bin."""
        a, b = self._starts[at], self._starts[at + 1]
        return dict(zip(self._hashes[a:b].tolist(), self._sizes[a:b].tolist(), strict=True)) if b > a else {}


def waiting_bytes(view: StateView, frontier: int) -> WaitingBytes:
    """The size of a worker's rows that will wait after this frontier (µs), by key. Reads all its chunks."""
    tombstoned: list[tuple[int, Selection]] | None = None
    hashes, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, value in view.scan(WORKER_BIN + bytes([OPERATOR])):
        rows = from_bytes(value[8:])
        tombstoned = read_tombstones(view) if tombstoned is None else tombstoned
        times = rows.column(rows.schema.get_field_index(TIME)).to_numpy()
        keep = live(rows, epoch_of(name), tombstoned) & (times >= frontier)
        mine = rows.column(rows.schema.get_field_index(HASH)).to_numpy()[keep]
        found, counts = np.unique(mine, return_counts=True)
        hashes.append(found)
        sizes.append(counts * max(1, len(value) // max(1, rows.num_rows)))
    keys, where = np.unique(np.concatenate(hashes), return_inverse=True)
    return WaitingBytes(keys, np.bincount(where, np.concatenate(sizes), len(keys)).astype(np.int64))


def rows_waiting(entries: Any, key: int, before_epoch: int, frontier: int) -> list[tuple[int, pa.RecordBatch]]:
    """Waiting rows of one key (hash) in a worker's entries, as (port, rows), before the tombstone of `before_epoch`.

    Args:
        entries: (name, value) of all worker-wide entries.
        key: The key's hash.
        before_epoch: Tombstones of this epoch and later ones do not count.
        frontier: Rows before it (µs) have been processed already, though their chunk is still there.
    """
    listed = list(entries)
    prefix = _TOMBSTONES
    tombstoned = [
        (int.from_bytes(n[3:11], "big"), pickle.loads(v))
        for n, v in listed
        if n.startswith(prefix) and int.from_bytes(n[3:11], "big") < before_epoch
    ]
    out = []
    for name, value in listed:
        if name[:3] == WORKER_BIN + bytes([OPERATOR]):
            rows = from_bytes(value[8:])
            hashes = rows.column(rows.schema.get_field_index(HASH)).to_numpy()
            times = rows.column(rows.schema.get_field_index(TIME)).to_numpy()
            mine = live(rows, epoch_of(name), tombstoned) & (hashes == key) & (times >= frontier)
            if mine.any():
                out.append((name[3], rows.filter(pa.array(mine))))
    return out


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """Rows as they are stored."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_bytes(raw: bytes) -> pa.RecordBatch:
    """Rows as they were given to `to_bytes`."""
    return pa.ipc.open_stream(raw).read_next_batch()
