"""The clock of a time zone, as tables: at which moments it shows which local time.

The rules are read once, where a flow is declared, and travel with its steps: all workers go by the same, whatever their machines know of zones.

All times in microseconds; a local time is what the clock shows, counted from what it shows as 1970-01-01 00:00.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import zoneinfo
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from penstock.errors import DeclarationError
from penstock.rows.keys import Ints
from penstock.types import DAY_US

_FIRST: Final = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
_LAST: Final = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
LOOK: Final = dt.timedelta(days=3)  # no zone has put its clock forth and back within so little: Freetown did in four days
_MODERN_US: Final = 2 * 365 * DAY_US  # 1972: since then zones differ from UTC by quarters of an hour
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Zone:
    """The rules of a zone from 1900 to 2200; before and after, its clock keeps the difference to UTC that it had then.

    Attributes:
        name: Such as ``Europe/Berlin``.
        changes: When the clock was put forth or back, UTC, ascending.
        offsets: What it shows less UTC: before the first change, then from each change on.
    """

    name: str
    changes: tuple[int, ...]
    offsets: tuple[int, ...]

    @functools.cached_property
    def rules(self) -> str:
        """A digest of its rules: another one means that other windows could come of the same records."""
        return xxhash.xxh3_64_hexdigest(repr((self.changes, self.offsets)).encode())[:8]

    @functools.cached_property
    def _tables(self) -> tuple[Ints, Ints, Ints]:
        """Changes, offsets, and the local time that the clock has come to before each change."""
        changes, offsets = np.array(self.changes, np.int64), np.array(self.offsets, np.int64)
        return changes, offsets, np.maximum.accumulate(changes + offsets[:-1])

    def reached(self, times: Ints) -> Ints:
        """The latest local time that the clock has shown by each moment: it stands still when the clock is put back."""
        changes, offsets, ends = self._tables
        at = np.searchsorted(changes, times, "right")
        shown = times + offsets[at]
        before = np.append(np.int64(np.iinfo(np.int64).min), ends - 1)
        latest: Ints = np.maximum(shown, before[at])
        return latest

    def first(self, local: Ints) -> Ints:
        """The first moment at which the clock shows each local time or a later one."""
        changes, offsets, ends = self._tables
        at = np.searchsorted(ends, local, "right")
        since = np.append(np.int64(np.iinfo(np.int64).min), changes)[at]
        moments: Ints = np.maximum(local - offsets[at], since)
        return moments

    def steps(self) -> tuple[int, int, int]:
        """What all changes and differences to UTC are multiples of: a moment, µs from it on, µs before it."""
        modern = [c for c in self.changes if c >= _MODERN_US]
        offsets = self.offsets[len(self.changes) - len(modern) :]
        return _MODERN_US, math.gcd(*modern, *offsets), math.gcd(*self.changes, *self.offsets)


def zone(name: object) -> Zone:
    """Read a zone's rules.

    Raises:
        DeclarationError: There is no such zone. Nothing was changed.
    """
    try:
        return _read(str(name) if isinstance(name, str) and name else "no zone")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise DeclarationError(
            f"zone={name!r} is not the name of a time zone; write for example zone='Europe/Berlin', or offset= for a fixed difference."
        ) from None


@functools.lru_cache(maxsize=64)
def _read(name: str) -> Zone:
    rules = zoneinfo.ZoneInfo(name)

    def offset(moment: dt.datetime) -> int:
        shown = moment.astimezone(rules).utcoffset()
        assert shown is not None
        return shown // dt.timedelta(microseconds=1)

    changes, offsets, before = [], [offset(_FIRST)], _FIRST
    while before < _LAST:
        after = before + LOOK
        if (new := offset(after)) != offsets[-1]:
            low, high = before, after
            while high - low > dt.timedelta(seconds=1):
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                low, high = (middle, high) if offset(middle) == offsets[-1] else (low, middle)
            changes.append((high - EPOCH) // dt.timedelta(microseconds=1))
            offsets.append(new)
        before = after
    return Zone(rules.key, tuple(changes), tuple(offsets))


__all__ = ["EPOCH", "LOOK", "Zone", "zone"]
