"""Changes to keyed state in memory, over a fixed version of it: an epoch's own changes, and committed ones that the local store
lacks.

Read next: `penstock.state.worker` for the former, `penstock.state.store` for the latter.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StateError
from penstock.state.deltas import SCHEMA
from penstock.types import MAX_TIME

Ints: TypeAlias = npt.NDArray[np.int64]
Due: TypeAlias = tuple[int, int]
"""An operator, and a time (µs): its entries with a timer before that."""
_FEW: Final = 32
_ABSENT: Final[Any] = object()
_operator_of: Final = itemgetter(2)
TIMER_BYTES: Final = 8
"""What an entry takes up beside its key and value."""


class Snapshot(Protocol):
    """A version of the state, which does not change while it is read."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of the keys, None where there is none."""

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        """Values as `get_many`, and timers (int64), `MAX_TIME` where there is none. With `due`, a timer that is not due may be missing."""

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


class _Timers:
    """The timers of an operator's changed entries.

    They are kept as they were put, as columns, until somebody asks for the timer of a key. Mostly nobody does: the key's next event
    replaces it, and none is due before.
    """

    def __init__(self) -> None:
        self.least = MAX_TIME  # no entry ever had an earlier one
        self._by_key: dict[bytes, int] = {}  # never changed in place: other overlays may have the same
        self._put: list[tuple[Sequence[bytes], Ints]] = []  # what `_by_key` lacks, oldest first

    def copy(self) -> _Timers:
        other = _Timers()
        other.least, other._by_key, other._put = self.least, self._by_key, self._put.copy()
        return other

    def put(self, keys: Sequence[bytes], timers: Ints) -> None:
        """The last one of a repeated key counts; `MAX_TIME`: it has none."""
        self.least = min(self.least, int(timers.min()))
        self._put.append((keys, timers))

    @property
    def by_key(self) -> dict[bytes, int]:
        """The timers of entries that have one."""
        if self._put:
            found = self._by_key.copy()
            for keys, timers in self._put:
                if (timers != MAX_TIME).all():
                    found.update(zip(keys, timers.tolist(), strict=True))
                    continue
                for key, timer in zip(keys, timers.tolist(), strict=True):
                    if timer == MAX_TIME:
                        found.pop(key, None)
                    else:
                        found[key] = timer
            self._by_key, self._put = found, []
        return self._by_key

    def in_order(self, ordered: list[bytes]) -> Ints:
        """The timers of sorted keys, among which are all of its own."""
        if len(self._put) == 1 and not self._by_key:
            ((keys, timers),) = self._put
            first = bisect.bisect_left(ordered, keys[0])
            if ordered[first : first + len(keys)] == keys:  # as they mostly come: sorted, each once
                found = np.full(len(ordered), MAX_TIME)
                found[first : first + len(keys)] = timers
                return found
        if _FEW * len(self.by_key) < len(ordered):
            found = np.full(len(ordered), MAX_TIME)
            for key, timer in self.by_key.items():
                found[bisect.bisect_left(ordered, key)] = timer
            return found
        return np.array(list(map(self.by_key.get, ordered, repeat(MAX_TIME))), np.int64)


class Overlay:
    """Changed entries. No key ever leaves it: a deleted one remains as a deletion."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}  # None: deleted
        self._timers: dict[int, _Timers] = {}  # of operators of which some entry ever had one
        self._sorted: list[bytes] = []  # this many of the oldest keys, in order

    def copy(self) -> Overlay:
        """The same changes, to which others may be added."""
        other = Overlay()
        other.values, other._sorted = self.values.copy(), self._sorted.copy()
        other._timers = {operator: timers.copy() for operator, timers in self._timers.items()}
        return other

    def clear(self) -> None:
        """Drop all changes."""
        self.values.clear()
        self._timers.clear()
        self._sorted.clear()

    def put(self, keys: Sequence[bytes], values: Iterable[bytes | None], timers: Any = None) -> None:
        """Change entries; the last one of a repeated key counts.

        Args:
            keys: The keys.
            values: One per key; None deletes it.
            timers: int64, µs, one per key, `MAX_TIME` for none; None: no entry has one.
        """
        self.values.update(zip(keys, values, strict=True))
        timed = timers is not None and bool((timers != MAX_TIME).any())
        if not keys or not (timed or self._timers):
            return
        at = np.array(timers, np.int64) if timed else np.full(len(keys), MAX_TIME)
        operators = np.frombuffer(bytes(map(_operator_of, keys)), np.uint8)
        if (operators == operators[0]).all():
            self._put_timers(int(operators[0]), list(keys), at)
            return
        for operator in np.unique(operators).tolist():
            mine = np.flatnonzero(operators == operator)
            self._put_timers(operator, [keys[i] for i in mine.tolist()], at[mine])

    def _put_timers(self, operator: int, keys: list[bytes], timers: Ints) -> None:
        known = self._timers.get(operator)
        if known is None and (timers != MAX_TIME).any():
            known = self._timers[operator] = _Timers()
        if known is not None:
            known.put(keys, timers)

    def timer_of(self, key: bytes) -> int:
        """The timer of a key, `MAX_TIME`: none."""
        mine = self._timers.get(key[2])
        return MAX_TIME if mine is None else mine.by_key.get(key, MAX_TIME)

    def timers_of(self, keys: Sequence[bytes], due: Due | None) -> Ints:
        """The timers of keys, `MAX_TIME`: none; with `due`, one that is not due may be missing."""
        if due is None:
            found = list(map(self.timer_of, keys)) if self._timers else []
        else:
            mine = self._timers.get(due[0])
            found = list(map(mine.by_key.get, keys, repeat(MAX_TIME))) if mine is not None and mine.least < due[1] else []
        return np.array(found, np.int64) if found else np.full(len(keys), MAX_TIME)

    def due(self, operator: int, upto_us: int) -> list[tuple[int, bytes]]:
        """Timer and key of an operator's entries with a timer before ``upto_us``."""
        mine = self._timers.get(operator)
        return [] if mine is None or mine.least >= upto_us else [(t, key) for key, t in mine.by_key.items() if t < upto_us]

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
        timers = np.full(len(ordered), MAX_TIME)
        for mine in self._timers.values():
            timers = np.minimum(timers, mine.in_order(ordered))
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
        if len(missing) == len(keys):
            return self._below.get_many(keys)
        if missing:
            for i, value in zip(missing, self._below.get_many([keys[i] for i in missing]), strict=True):
                found[i] = value
        return found

    def get_timed(self, keys: Sequence[bytes], due: Due | None = None) -> tuple[list[bytes | None], Ints]:
        """As `Snapshot.get_timed`."""
        if not self._layer.values:
            return self._below.get_timed(keys, due)
        values: list[bytes | None] = list(map(self._layer.values.get, keys, repeat(_ABSENT)))
        missing = [i for i, value in enumerate(values) if value is _ABSENT]
        if len(missing) == len(keys):
            return self._below.get_timed(keys, due)
        timers = self._layer.timers_of(keys, due)
        if missing:
            found, timers[missing] = self._below.get_timed([keys[i] for i in missing], due)
            for i, value in zip(missing, found, strict=True):
                values[i] = value
        return values, timers

    def entries(self, prefix: bytes) -> list[tuple[bytes, bytes, int]]:
        """As `Snapshot.entries`."""
        found = self._below.entries(prefix)
        mine = self._layer.under(prefix)
        if not mine:
            return found
        merged: dict[bytes, tuple[bytes | None, int]] = {key: (value, timer) for key, value, timer in found}
        merged.update((key, (self._layer.values[key], self._layer.timer_of(key))) for key in mine)
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
        mine = self._layer.due(operator, upto_us)
        for others in apart:
            mine = [(timer, key) for timer, key in mine if key not in others]
        fresh = [(timer, key, value) for timer, key in mine if (value := self._layer.values[key]) is not None]
        return sorted(found + fresh) if fresh else found

    def close(self) -> None:
        """Release the older version."""
        self._below.close()


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value) + TIMER_BYTES
