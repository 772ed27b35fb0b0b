"""Changes to keyed state in memory, over a fixed version of it: an epoch's own changes, and committed ones that the local store
lacks.

Read next: `penstock.state.worker` for the former, `penstock.state.store` for the latter.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, repeat
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import StateError
from penstock.state.deltas import SCHEMA
from penstock.types import MAX_TIME

_FEW: Final = 32
_ABSENT: Final[Any] = object()
TIMER_BYTES: Final = 8
"""What an entry takes up beside its key and value."""


class Snapshot(Protocol):
    """A version of the state, which does not change while it is read."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of the keys, None where there is none."""

    def get_timed(self, keys: Sequence[bytes]) -> tuple[list[bytes | None], list[int]]:
        """Values as `get_many`, and timers, `MAX_TIME` where there is none."""

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        """Keys with the prefix, their values and timers, sorted by key."""

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        """Bytes of each bin from `start` up to `stop`, until so many entries were seen; and the next bin."""

    def due(self, operator: int, upto_us: int, apart: Sequence[AbstractSet[bytes]]) -> list[tuple[int, bytes, bytes]]:
        """Timer, key and value of an operator's entries with a timer before ``upto_us``, without keys of `apart`; sorted by
        (timer, key).
        """

    def close(self) -> None:
        """Release the version."""


class Overlay:
    """Changed entries. No key ever leaves it: a deleted one remains as a deletion."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}  # None: deleted
        self.timers: dict[bytes, int] = {}  # of entries with a timer
        self._sorted: list[bytes] = []  # this many of the oldest keys, in order

    def copy(self) -> Overlay:
        """The same changes, to which others may be added."""
        other = Overlay()
        other.values, other.timers, other._sorted = self.values.copy(), self.timers.copy(), self._sorted.copy()
        return other

    def clear(self) -> None:
        """Drop all changes."""
        self.values.clear()
        self.timers.clear()
        self._sorted.clear()

    def put(self, keys: Sequence[bytes], values: Iterable[bytes | None], timers: Any = None) -> None:
        """Change entries; the last one of a repeated key counts.

        Args:
            keys: The keys.
            values: One per key; None deletes it.
            timers: int64, µs, one per key, `MAX_TIME` for none; None: no entry has one.
        """
        self.values.update(zip(keys, values, strict=True))
        if timers is not None and (timers != MAX_TIME).all():
            self.timers.update(zip(keys, timers.tolist(), strict=True))
        elif timers is not None or self.timers:
            for key, timer in zip(keys, repeat(MAX_TIME) if timers is None else timers.tolist()):  # noqa: B905  (endless)
                if timer == MAX_TIME:
                    self.timers.pop(key, None)
                else:
                    self.timers[key] = timer

    def put_rows(self, rows: pa.RecordBatch) -> None:
        """Apply the rows of a delta (`penstock.state.deltas.SCHEMA`)."""
        columns: list[Any] = rows.columns
        keys, values, timers = columns
        self.put(keys.to_pylist(), values.to_pylist(), timers.to_numpy())

    def changes(self) -> pa.RecordBatch:
        """All changes as the rows of a delta, sorted by key.

        Raises:
            StateError: There are more than 2 GiB. The changes are still there.
        """
        ordered = sorted(self.values)
        timers = np.full(len(ordered), MAX_TIME, np.int64)
        if self.timers:
            timers[:] = list(map(self.timers.get, ordered, repeat(MAX_TIME)))
        keys: Any = pa.array(ordered, pa.binary())
        values: Any = pa.array(list(map(self.values.__getitem__, ordered)), pa.binary())
        if isinstance(keys, pa.ChunkedArray) or isinstance(values, pa.ChunkedArray):
            raise StateError("One worker changed more than 2 GiB of state in one epoch; use more workers or smaller epochs.")
        return pa.RecordBatch.from_arrays([keys, values, pa.array(timers)], schema=SCHEMA)

    def under(self, prefix: bytes) -> list[bytes]:
        """Changed keys with the prefix, sorted."""
        # A dict keeps insertion order, so the keys that `_sorted` lacks are its last ones.
        fresh = list(islice(reversed(self.values), len(self.values) - len(self._sorted)))
        if len(fresh) < _FEW:
            # An operator that alternates writes and scans must not sort everything each time.
            for key in fresh:
                bisect.insort(self._sorted, key)
        else:
            self._sorted += fresh
            self._sorted.sort()
        start = bisect.bisect_left(self._sorted, prefix)
        end = start
        while end < len(self._sorted) and self._sorted[end].startswith(prefix):
            end += 1
        return self._sorted[start:end]


class Layered:
    """A snapshot with changes over it.

    Args:
        below: The older version.
        layer: The changes since.
    """

    def __init__(self, below: Snapshot, layer: Overlay) -> None:
        self._below = below
        self._layer = layer

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `Snapshot.get_many`."""
        if not self._layer.values:
            return self._below.get_many(keys)
        found: list[bytes | None] = list(map(self._layer.values.get, keys, repeat(_ABSENT)))
        missing = [i for i, value in enumerate(found) if value is _ABSENT]
        if missing:
            for i, value in zip(missing, self._below.get_many([keys[i] for i in missing]), strict=True):
                found[i] = value
        return found

    def get_timed(self, keys: Sequence[bytes]) -> tuple[list[bytes | None], list[int]]:
        """As `Snapshot.get_timed`."""
        if not self._layer.values:
            return self._below.get_timed(keys)
        values: list[bytes | None] = list(map(self._layer.values.get, keys, repeat(_ABSENT)))
        timers: list[int] = list(map(self._layer.timers.get, keys, repeat(MAX_TIME)))
        missing = [i for i, value in enumerate(values) if value is _ABSENT]
        if missing:
            for i, value, timer in zip(missing, *self._below.get_timed([keys[i] for i in missing]), strict=True):
                values[i], timers[i] = value, timer
        return values, timers

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        """As `Snapshot.entries`."""
        found = self._below.entries(prefix)
        mine = self._layer.under(prefix)
        if not mine:
            return found
        merged: dict[bytes, tuple[bytes | None, int]] = {key: (value, timer) for key, value, timer in found}
        merged.update((key, (self._layer.values[key], self._layer.timers.get(key, MAX_TIME))) for key in mine)
        return sorted((key, value, timer) for key, (value, timer) in merged.items() if value is not None)

    def measure(self, start: int, stop: int, entries: int) -> tuple[list[tuple[int, int]], int]:
        """As `Snapshot.measure`; entries below and changed ones count separately."""
        found, after = self._below.measure(start, stop, entries)
        sizes = dict(found)
        changed: dict[int, int] = {}
        mine = [key for key in self._layer.values if start <= (key[0] << 8 | key[1]) < after]
        for key, old in zip(mine, self._below.get_many(mine), strict=True):
            at = key[0] << 8 | key[1]
            sizes[at] = sizes.get(at, 0) + _size(key, self._layer.values[key]) - _size(key, old)
            changed[at] = changed.get(at, 0) + 1
        seen = 0
        listed: list[tuple[int, int]] = []
        for at in sorted(sizes):
            if seen >= entries:
                return listed, at
            seen += changed.get(at, 0)
            listed += [(at, sizes[at])] if sizes[at] else []
        return listed, after

    def due(self, operator: int, upto_us: int, apart: Sequence[AbstractSet[bytes]] = ()) -> list[tuple[int, bytes, bytes]]:
        """As `Snapshot.due`."""
        found = self._below.due(operator, upto_us, (*apart, self._layer.values.keys()))
        byte = bytes([operator])
        mine = [(timer, key) for key, timer in self._layer.timers.items() if timer < upto_us and key[2:3] == byte]
        for others in apart:
            mine = [(timer, key) for timer, key in mine if key not in others]
        fresh = [(timer, key, value) for timer, key in mine if (value := self._layer.values[key]) is not None]
        return sorted(found + fresh) if fresh else found

    def close(self) -> None:
        """Release the older version."""
        self._below.close()


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value) + TIMER_BYTES
