"""What operators see of keyed state during one epoch: a snapshot of the committed version, and their own changes over it.

Invariant: the snapshot never changes under a `WorkerState`. All writes are in an overlay in memory until `changes` returns
them, so abandoning an epoch only drops the object.

Keys are ``bin (2 bytes, big-endian) ‖ operator (1 byte) ‖ anything``, at most 480 bytes. Read next: `penstock.state.store`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat, takewhile
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from penstock.errors import StateError
from penstock.state.deltas import BATCH_ROWS, SCHEMA
from penstock.state.overlay import Due, Ints, Layered, Overlay, Snapshot
from penstock.types import MAX_TIME

MAX_KEY_BYTES: Final = 480
MIN_KEY_BYTES: Final = 3


class WorkerState:
    """The state of one worker during one epoch. Not thread-safe; use it as a context manager or call `close`.

    Args:
        snapshot: The committed version to start from.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._overlay = Overlay()
        self._view = Layered(snapshot, self._overlay)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def committed(self) -> Snapshot:
        """The committed version, without own changes."""
        return self._snapshot

    def close(self) -> None:
        """Release the snapshot. The changes remain readable, the state does not."""
        self._snapshot.close()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many values, own changes first. Sorted keys are faster.

        Args:
            keys: The keys; may repeat.

        Returns:
            Values in the order of the keys, None for missing ones.

        Raises:
            StateError: A key is too long or too short. Nothing was changed.
        """
        _check_keys(keys)
        return self._view.get_many(keys)

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        """As `get_many`, with the entries' timers.

        Args:
            keys: The keys; may repeat.
            due: An operator, whose keys they are, and a time (µs): only timers before that must be known; the others may be missing.

        Returns:
            Values, None for missing ones; timers in µs, `MAX_TIME` for none.

        Raises:
            StateError: A key is too long or too short. Nothing was changed.
        """
        _check_keys(keys)
        return self._view.get_timed(keys, due)

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[bytes], timers: np.typing.NDArray[np.int64] | None = None
    ) -> None:
        """Write many entries; the last one of a repeated key counts.

        Args:
            keys: The keys.
            values: One per key.
            timers: int64, µs, one per key: when the entry is due, `MAX_TIME` for never. None: no entry has a timer, and an
                existing timer is removed.

        Raises:
            StateError: A key is too long or too short, or the lengths differ. Nothing was changed.
        """
        _check_keys(keys)
        if len(values) != len(keys) or (timers is not None and len(timers) != len(keys)):
            raise StateError(
                f"put_many got {len(keys)} keys, {len(values)} values and "
                f"{'no' if timers is None else len(timers)} timers; give one of each for every key."
            )
        self._overlay.put(keys, values, None if timers is None else np.asarray(timers, np.int64))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete many entries and their timers; absent ones are no error.

        Raises:
            StateError: A key is too long or too short. Nothing was changed.
        """
        _check_keys(keys)
        self._overlay.put(keys, repeat(None, len(keys)))

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Keys and values of all entries with the prefix, own changes included, sorted by key.

        Args:
            prefix: Any number of bytes; a bin is its first two.
        """
        return [(key, value) for key, value, _ in self.entries(prefix)]

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        """Keys, values and timers (µs, `MAX_TIME`: none) of all entries with the prefix, own changes included, sorted by key.

        Args:
            prefix: Any number of bytes; a bin is its first two.
        """
        return self._view.entries(prefix)

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        """Sizes of bins as of the committed version, without own changes.

        Args:
            start: First bin.
            stop: Bin to stop before.
            entries: Stop after the bin in which so many entries have been seen.

        Returns:
            Bin and bytes of every bin that has entries, and the next bin; `stop` at the end.
        """
        return self._snapshot.measure(start, stop, entries)

    def due(self, operator: int, upto_us: int) -> list[tuple[bytes, bytes]]:
        """Keys and values of an operator's due entries, sorted by (timer, key). They stay due until they are rewritten or
        deleted.

        Args:
            operator: The operator's byte, third of the key.
            upto_us: Entries with a timer before this, in µs.
        """
        return [(key, value) for _, key, value in self._view.due(operator, upto_us)]

    def changes(self) -> pa.RecordBatch:
        """Everything written since the snapshot, as the rows of a delta.

        A key that was written and deleted again is a deletion even if the snapshot never had it. Deleting an absent key is
        harmless, and finding out would cost a read.

        Returns:
            Rows of `penstock.state.deltas.SCHEMA`, sorted by key; a null value is a deletion.

        Raises:
            StateError: More than 2 GiB changed. The changes are still there.
        """
        return self._overlay.changes()


class _MemorySnapshot:
    """A version in a dict with a sorted list of its keys."""

    def __init__(self) -> None:
        self.entries_by_key: dict[bytes, tuple[bytes, int]] = {}
        self.keys: list[bytes] = []

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        entries = self.entries_by_key
        return [entries[key][0] if key in entries else None for key in keys]

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        del due
        found = list(map(self.entries_by_key.get, keys, repeat((None, MAX_TIME))))
        return [value for value, _ in found], np.array([timer for _, timer in found], np.int64)

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        after = map(self.keys.__getitem__, range(bisect.bisect_left(self.keys, prefix), len(self.keys)))
        return [(key, *self.entries_by_key[key]) for key in takewhile(lambda key: key.startswith(prefix), after)]

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        sizes: dict[int, int] = {}
        at = start
        for seen, key in enumerate(self.keys[bisect.bisect_left(self.keys, start.to_bytes(2, "big")) :]):
            found = key[0] << 8 | key[1]
            if found != at:
                if seen >= entries or found >= stop:
                    return list(sizes.items()), min(found, stop)
                at = found
            sizes[at] = sizes.get(at, 0) + len(key) + len(self.entries_by_key[key][0]) + 8
        return list(sizes.items()), stop

    def due(self, operator: int, upto_us: int, apart: Sequence[AbstractSet[bytes]]) -> list[tuple[int, bytes, bytes]]:
        byte = bytes([operator])
        return sorted(
            (timer, key, value)
            for key, (value, timer) in self.entries_by_key.items()
            if timer < upto_us and timer != MAX_TIME and key[2:3] == byte and not any(key in others for others in apart)
        )

    def iterate(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self.keys), BATCH_ROWS):
            part = self.keys[start : start + BATCH_ROWS]
            values, timers = zip(*(self.entries_by_key[key] for key in part), strict=True)
            arrays: list[Any] = [pa.array(part, pa.binary()), pa.array(values, pa.binary()), pa.array(timers, pa.int64())]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def close(self) -> None:
        """Nothing is held."""


class MemoryState(WorkerState):
    """State in memory only, for tests of flows without Spark: epochs follow each other in the same object.

    Example:
        >>> state = MemoryState()
        >>> state.put_many([b"00-ada"], [b"36"])
        >>> state.apply(state.changes())
        >>> state.get_many([b"00-ada", b"00-bob"])
        [b'36', None]
    """

    def __init__(self) -> None:
        self._committed = _MemorySnapshot()
        super().__init__(self._committed)

    def apply(self, changes: pa.RecordBatch) -> None:
        """Commit an epoch; the next one begins from there.

        Args:
            changes: From `changes` of this object or of another; any other own changes are dropped.
        """
        entries = self._committed.entries_by_key
        columns = (changes.column(name).to_pylist() for name in ("key", "value", "timer"))
        for key, value, timer in zip(*columns, strict=True):
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = (value, timer)
        self._committed.keys = sorted(entries)
        self._overlay.clear()

    def discard(self) -> None:
        """Abandon the epoch: drop all changes since the last `apply`."""
        self._overlay.clear()

    def iterate(self) -> Iterator[pa.RecordBatch]:
        """The committed entries, sorted by key, with the columns of `penstock.state.deltas.SCHEMA`."""
        return self._committed.iterate()


def order_bytes(timers: Any) -> Any:
    """Timers as 8 bytes each in sort order, as an Arrow binary array."""
    biased = timers.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    return _fixed(biased.astype(">u8"))


def timer_bytes(timers: Any) -> Any:
    """Timers as 8 big-endian bytes each, as an Arrow binary array."""
    return _fixed(timers.astype(">i8"))


def _fixed(numbers: Any) -> Any:
    buffers: Any = [None, pa.py_buffer(numbers.tobytes())]
    return pa.Array.from_buffers(pa.binary(8), len(numbers), buffers).cast(pa.binary())


def _check_keys(keys: Sequence[bytes]) -> None:
    if not keys:
        return
    longest, shortest = max(map(len, keys)), min(map(len, keys))
    if longest > MAX_KEY_BYTES:
        raise StateError(f"A state key has {longest} bytes, more than {MAX_KEY_BYTES}; shorten it, for example to a digest.")
    if shortest < MIN_KEY_BYTES:
        raise StateError(f"A state key has {shortest} bytes, but bin and operator need {MIN_KEY_BYTES}; begin it with them.")
