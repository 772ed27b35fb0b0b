"""What a worker does for a rescale at the end of an epoch: say how large its bins are, give up what it is told to.

It is generic: state is entries under a bin, whatever operator wrote them (values, panes, timers, buffered events), and rows that
wait for the frontier. No operator has code for it; those that want to know override `on_collect` and `on_acquire`.

Invariant: what is given up is read, never written: the giver's own delta is made before and the file that joins the receiver's
state is the one that leaves the giver's. See `penstock.protocol.rescale.collect` for the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.operators.base import KeyedState, Operator
from penstock.protocol.messages import BinSizes, Collect, Collected, Frontier, Interrogate, Message
from penstock.protocol.rescale.collect import KeySize, cut
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.table import sub_of
from penstock.rows.keys import BIN_BYTES, WORKER_BIN, KeyCodec
from penstock.rows.rows import Keys
from penstock.state.deltas import SCHEMA
from penstock.state.worker import WorkerState
from penstock.types import BINS, MAX_TIME, MIN_TIME
from penstock.worker.waiting_rows import Selection, take_out, waiting_bytes

Entry = tuple[bytes, bytes, int]
_HEAD: Final = 3  # bin and operator, before the key


@dataclass
class GivenUp:
    """What a worker gives up.

    Attributes:
        taken: The answer to the controller.
        rows: By receiver, rows of `penstock.state.deltas.SCHEMA`, sorted by key.
        dropped: Names of entries of keys that are too large, as deletions; None: there are none.
        names: Names of the entries that leave, for operators that want to hear.
    """

    taken: Collected
    rows: dict[int, pa.RecordBatch] = field(default_factory=dict)
    dropped: pa.RecordBatch | None = None
    names: list[bytes] = field(default_factory=list)


def size_up(state: WorkerState, messages: Sequence[Message]) -> BinSizes | None:
    """Answer `Interrogate`, if it was asked."""
    for message in messages:
        if isinstance(message, Interrogate):
            sizes, after = state.measure(message.start, BINS, message.entries)
            return BinSizes(tuple(sizes), after)
    return None


def collect_state(codec: KeyCodec, state: WorkerState, messages: Sequence[Message], epoch: int, worker: int) -> GivenUp | None:
    """Answer `Collect`, if it was asked.

    Args:
        codec: Codec of the region's keys.
        state: The worker's state with this epoch's changes; gets a record of waiting rows that left, nothing else.
        messages: The epoch's orders.
        epoch: Number of the epoch.
        worker: This worker.
    """
    frontier = next((m.now for m in messages if isinstance(m, Frontier)), MIN_TIME)
    for message in messages:
        if isinstance(message, Collect):
            return _Giving(codec, state, message, frontier).all(epoch, worker)
    return None


class _Giving:
    """One Collect being answered."""

    def __init__(self, codec: KeyCodec, state: WorkerState, message: Collect, frontier: int) -> None:
        self._codec, self._state, self._message, self._frontier = codec, state, message, frontier
        self._left = message.budget_bytes
        self._hold = max(message.hold_bytes, message.budget_bytes)
        self._waiting = waiting_bytes(state, frontier)
        self._apart_bins = {key % BINS for key in message.pinned_keys}
        self._entries: dict[int, list[Entry]] = {}
        self._chosen: dict[int, Selection] = {}
        self._dropped: list[bytes] = []
        self._bins: list[tuple[int, int]] = []
        self._splits: list[tuple[int, int, int]] = []
        self._keys: list[tuple[int, int]] = []
        self._too_large: list[tuple[int, int, int]] = []

    def all(self, epoch: int, worker: int) -> GivenUp:
        for item in self._message.items:
            going_on = self._key(item.key, item.to) if item.bin < 0 else self._bin(item.bin, item.to, item.start)
            if not going_on:
                break
        lost = Selection(keys=tuple(k for k, _, _ in self._too_large))
        stays = tuple(dict.fromkeys((*self._message.pinned_keys, *lost.keys)))
        chosen = {to: replace(s, pinned_keys=stays) for to, s in self._chosen.items()}
        for to, entries in take_out(self._state, chosen, lost, epoch, worker, self._frontier).items():
            self._entries.setdefault(to, []).extend(entries)
        rows = {to: _batch(sorted(entries)) for to, entries in self._entries.items() if entries}
        names = [name for entries in self._entries.values() for name, _, _ in entries if name[:2] != WORKER_BIN]
        taken = Collected(
            tuple(self._bins),
            tuple(self._splits),
            tuple(self._keys),
            tuple(self._too_large),
            len({_key_of(name) for name in names}),
            sum(_bytes(entries) for entries in self._entries.values()),
        )
        dropped = _deletions(sorted(self._dropped)) if self._dropped else None
        return GivenUp(taken, rows, dropped, [*names, *self._dropped])

    def _take(self, to: int, entries: list[Entry], selection: Selection, size: int) -> None:
        self._entries.setdefault(to, []).extend(entries)
        self._chosen[to] = self._chosen.get(to, Selection()).joined(selection)
        self._left -= size

    def _bin(self, at: int, to: int, start: int) -> bool:
        entries = self._state.entries(BIN_BYTES[at])
        size = _bytes(entries) + sum(self._waiting.of_bin(at).values())
        whole = start == 0 and at not in self._apart_bins
        if whole and size <= self._left:
            self._take(to, entries, Selection(bins=(at,)), size)
            self._bins.append((at, to))
            return True
        if whole and size <= self._message.budget_bytes and self._entries:
            return False
        self._part(at, to, start, entries)
        return False

    def _part(self, at: int, to: int, start: int, entries: list[Entry]) -> None:
        """Cut a bin by hash."""
        hashes = self._hashes(entries)
        pinned_keys = set(self._message.pinned_keys)
        sizes = {key: n for key, n in self._waiting.of_bin(at).items() if key not in pinned_keys}
        for (name, value, _), key in zip(entries, hashes, strict=True):
            if key not in pinned_keys:
                sizes[key] = sizes.get(key, 0) + len(name) + len(value)
        done = cut([KeySize(sub_of(k), k, n) for k, n in sizes.items()], start, max(self._left, 1), self._hold)
        going = set(done.keys)
        lost = {k.key for k in done.too_large}
        mine = [e for e, key in zip(entries, hashes, strict=True) if key in going]
        self._take(to, mine, Selection(parts=((at, start, done.upto),)), sum(sizes[k] for k in done.keys))
        self._dropped += [e[0] for e, key in zip(entries, hashes, strict=True) if key in lost]
        self._too_large += [(k.key, to, k.bytes) for k in done.too_large]
        self._splits.append((at, to, done.upto))

    def _key(self, key: int, to: int) -> bool:
        entries = self._state.entries(BIN_BYTES[key % BINS])
        mine = [e for e, found in zip(entries, self._hashes(entries), strict=True) if found == key]
        size = _bytes(mine) + self._waiting.of_bin(key % BINS).get(key, 0)
        if size > self._hold:
            self._dropped += [e[0] for e in mine]
            self._too_large.append((key, to, size))
            return True
        if size > self._left and self._keys:
            return False
        self._take(to, mine, Selection(keys=(key,)), size)
        self._keys.append((key, to))
        return True

    def _hashes(self, entries: list[Entry]) -> list[int]:
        if not entries:
            return []
        found: list[int] = spark_xxhash64(self._codec.decode([name[_HEAD:] for name, _, _ in entries])).tolist()
        return found


def call_hook(
    operators: Sequence[Operator], states: Sequence[KeyedState], codec: KeyCodec, names: Sequence[bytes], hook: str
) -> None:
    """Call a hook of those operators that have it, with the keys that entries belong to."""
    for operator, state in zip(operators, states, strict=True):
        if getattr(type(operator), hook) is getattr(Operator, hook):
            continue
        encoded = sorted({_key_of(name) for name in names if name[2] == state.slot})
        if encoded:
            columns = tuple(codec.decode(encoded))
            getattr(operator, hook)(Keys(columns, spark_xxhash64(columns), codec), state)


def _key_of(name: bytes) -> bytes:
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
