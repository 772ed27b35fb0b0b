"""The state that a worker gives up at the end of an epoch: its size, and its entries.

It is generic: state is entries under a bin, whatever operator wrote them (values, panes, timers, buffered events), and rows that
wait for the frontier. No operator has code for it; those that want to know override `on_collect` and `on_acquire`.

Invariant: what is given up is read, never written: the giver's own delta is made before and the file that joins the receiver's
state is the one that leaves the giver's. What is chosen, and in which order, is decided by `penstock.protocol.rescale.worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.protocol.messages import Collect, Collected
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import BIN_BYTES, WORKER_BIN, KeyCodec
from penstock.state.deltas import SCHEMA
from penstock.state.worker import WorkerState
from penstock.types import BINS, MAX_TIME
from penstock.worker.waiting_rows import Selection, WaitingBytes, take_out, waiting_bytes

Entry = tuple[bytes, bytes, int]
_HEAD: Final = 3  # bin and operator, before the key


@dataclass(frozen=True)
class GivenUp:
    """What a worker gives up.

    Attributes:
        rows: By receiver, rows of `penstock.state.deltas.SCHEMA`, sorted by key.
        dropped: Names of entries of keys that are too large, as deletions; None: there are none.
        names: Names of the entries that leave, for operators that want to hear.
        keys, bytes: Number of keys whose state goes to a receiver, and the bytes that do.
    """

    rows: dict[int, pa.RecordBatch]
    dropped: pa.RecordBatch | None
    names: list[bytes]
    keys: int
    bytes: int


class LeavingState:
    """A worker's state at the end of an epoch, of which something is to leave.

    Args:
        codec: Codec of the region's keys.
        state: The worker's state with this epoch's changes; gets a record of waiting rows that left, nothing else.
        frontier: Rows before it (µs) do not wait any more.
        worker: The worker.
        epoch: Number of the epoch.
    """

    def __init__(self, codec: KeyCodec, state: WorkerState, frontier: int, worker: int, epoch: int) -> None:
        self._codec, self._state, self._frontier, self._worker, self._epoch = codec, state, frontier, worker, epoch
        self._entries: dict[int, list[Entry]] = {}

    def bytes_of(self, at: int) -> int:
        """The bytes of a bin."""
        return _bytes(self._of_bin(at)) + sum(self._waiting.of_bin(at).values())

    def keys_of(self, at: int) -> dict[int, int]:
        """By key (hash) of a bin, its bytes."""
        sizes = self._waiting.of_bin(at)
        for (name, value, _), key in zip(self._of_bin(at), self._hashes(at).tolist(), strict=True):
            sizes[key] = sizes.get(key, 0) + len(name) + len(value)
        return sizes

    def take(self, leaving: Collected, asked: Collect) -> GivenUp:
        """What leaves, by receiver."""
        lost = Selection(keys=tuple(k for k, _, _ in leaving.too_large))
        receivers = {to for _, to, *_ in (*leaving.bins, *leaving.splits, *leaving.keys)}
        chosen = {to: _selection(leaving, asked, to) for to in receivers}
        out: dict[int, list[Entry]] = {to: [] for to in chosen}
        dropped: list[bytes] = []
        for at, to in leaving.bins:
            out[to] += self._of_bin(at)
        for at in {*(at for at, *_ in leaving.splits), *(k % BINS for k, *_ in (*leaving.keys, *leaving.too_large))}:
            found, hashes = self._of_bin(at), self._hashes(at)
            for to, selection in chosen.items():
                out[to] += [found[i] for i in np.flatnonzero(selection.mask(hashes)).tolist()]
            dropped += [found[i][0] for i in np.flatnonzero(lost.mask(hashes)).tolist()]
        for to, entries in take_out(self._state, chosen, lost, self._epoch, self._worker, self._frontier).items():
            out[to] += entries
        names = [name for entries in out.values() for name, _, _ in entries if name[:2] != WORKER_BIN]
        return GivenUp(
            {to: _batch(sorted(entries)) for to, entries in out.items() if entries},
            _deletions(sorted(dropped)) if dropped else None,
            [*names, *dropped],
            len({key_of(name) for name in names}),
            sum(map(_bytes, out.values())),
        )

    @cached_property
    def _waiting(self) -> WaitingBytes:
        return waiting_bytes(self._state, self._frontier)

    def _of_bin(self, at: int) -> list[Entry]:
        if at not in self._entries:
            self._entries[at] = self._state.entries(BIN_BYTES[at])
        return self._entries[at]

    def _hashes(self, at: int) -> Any:
        entries = self._of_bin(at)
        return spark_xxhash64(self._codec.decode([n[_HEAD:] for n, _, _ in entries])) if entries else np.empty(0, np.int64)


def _selection(leaving: Collected, asked: Collect, to: int) -> Selection:
    """The keys that one worker gets."""
    starts = {item.bin: item.start for item in asked.items}
    return Selection(
        tuple(at for at, receiver in leaving.bins if receiver == to),
        tuple((at, starts[at], upto) for at, receiver, upto in leaving.splits if receiver == to),
        tuple(key for key, receiver in leaving.keys if receiver == to),
        tuple(dict.fromkeys((*asked.pinned_keys, *(k for k, _, _ in leaving.too_large)))),
    )


def key_of(name: bytes) -> bytes:
    """The encoded key of an entry's name: length and key."""
    return name[_HEAD : _HEAD + 2 + (name[_HEAD] << 8 | name[_HEAD + 1])]


def _bytes(entries: Sequence[Entry]) -> int:
    return sum(len(name) + len(value) for name, value, _ in entries)


def _batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    names, values, timers = zip(*entries, strict=True)
    columns: list[Any] = [pa.array(names, pa.binary()), pa.array(values, pa.binary()), pa.array(timers, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _deletions(names: Sequence[bytes]) -> pa.RecordBatch:
    n = len(names)
    columns: list[Any] = [pa.array(names, pa.binary()), pa.nulls(n, pa.binary()), pa.array(np.full(n, MAX_TIME, np.int64))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
