"""Windows: the spans of event time that a record belongs to.

All times in microseconds. Windows are aligned to 1970-01-01 UTC, or to the clock of a zone (`penstock.operators.calendar`). A window holds
times ``start <= t < end``; it is complete when the frontier has reached its end.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import DeclarationError
from penstock.operators.calendar import Calendar, months_of
from penstock.operators.zones import zone as zone_of
from penstock.rows.keys import Ints
from penstock.types import DAY_US, Duration, duration_us, seconds_text

WINDOW: Final = ("window_start", "window_end")
"""Columns that a window adds to its rows."""
_SHORTEST_MONTH_US: Final = 28 * DAY_US
_MOST_MONTHS: Final = 12 * 200


@dataclass(frozen=True)
class Sliding:
    """Windows of `size_us` that start every `slide_us`, `offset_us` later than at 1970-01-01; tumbling if size and slide are equal."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def overlapping(self) -> bool:
        """Whether a time may have several windows."""
        return self.size_us != self.slide_us

    @property
    def longest_us(self) -> int:
        """No window is longer."""
        return self.size_us

    @property
    def _pane_us(self) -> int:
        """Length of a pane: partial aggregates are kept per pane, then combined to windows."""
        return math.gcd(self.size_us, self.slide_us)

    def panes(self, times: Ints) -> Ints:
        """Start of each time's pane."""
        return times - (times - self.offset_us) % self._pane_us

    def pane_sql(self, time: str) -> str:
        """SQL of the start of a span that lies within one pane."""
        return f"{time} - pmod({time} - {self.offset_us}L, {self._pane_us}L)"

    def spread(self, panes: Ints) -> tuple[Ints, Ints]:
        """The windows of each pane.

        Returns:
            index: int64, m: the pane; ascending. starts: int64, m: start of one of its windows.
        """
        if not self.overlapping:
            return np.arange(len(panes)), panes
        latest = panes - (panes - self.offset_us) % self.slide_us
        count = -(-self.size_us // self.slide_us)
        starts = latest[:, None] - self.slide_us * np.arange(count - 1, -1, -1)[None, :]
        inside = starts + self.size_us > panes[:, None]
        index = np.broadcast_to(np.arange(len(panes))[:, None], starts.shape)
        return index[inside], starts[inside]

    def ends(self, starts: Ints) -> Ints:
        """End of the window that begins at each of these times."""
        return starts + self.size_us

    def ranks(self, starts: Ints) -> Ints:
        """How many windows end when the one that begins at each of these times ends, and begin before it."""
        return np.zeros(len(starts), np.int64)

    def __str__(self) -> str:
        every = f" every {seconds_text(self.slide_us)}" if self.overlapping else ""
        return f"of {seconds_text(self.size_us)}{every}" + (f", {seconds_text(self.offset_us)} later" if self.offset_us else "")


@dataclass(frozen=True)
class Session:
    """A window per burst of records of one key, ended by `gap_us` without any."""

    gap_us: int


Spans = Sliding | Calendar
"""Windows whose extent does not depend on records."""
Window = Spans | Session


def window_text(window: Window | None) -> str:
    """A window for people."""
    if window is None:
        return "none"
    return f"of sessions with a gap of {seconds_text(window.gap_us)}" if isinstance(window, Session) else str(window)


def window_meaning(window: Window | None) -> dict[str, str]:
    """What makes state of a window worthless if it changes, for `Operator.meaning`: also the rules of its zone, which come from outside."""
    zone = window.zone if isinstance(window, Calendar) else None
    rules = {"zone": f"{zone.name} by rules {zone.rules}"} if zone is not None and zone.changes else {}
    return {"window": window_text(window), **rules}


def tumbling(size: Duration, *, offset: Duration | None = None, zone: str | dt.tzinfo | None = None) -> Spans:
    """Windows of one size, side by side.

    Args:
        size: A duration, or a number of months, quarters or years, such as ``"1 month"``.
        offset: How much later a window begins: weeks begin on a Thursday, and with ``offset="4 days"`` on a Monday; years of
            ``offset="3 months"`` begin in April.
        zone: Where windows begin and end by the clock: a day has 23 hours when it is put forth. Months without a zone are UTC's.

    Raises:
        DeclarationError: The size is not a positive duration, or there is no such zone.

    Example:
        >>> tumbling("1 hour")
        Sliding(size_us=3600000000, slide_us=3600000000, offset_us=0)
        >>> print(tumbling("1 day", zone="Europe/Berlin"), "|", tumbling("1 year", offset="3 months"))
        of 86400 s in Europe/Berlin | of 12 months in UTC, 3 months later
    """
    return sliding(size, size, offset=offset, zone=zone)


def sliding(
    size: Duration,
    slide: Duration,
    *,
    offset: Duration | None = None,
    zone: str | dt.tzinfo | None = None,
) -> Spans:
    """Overlapping windows of one size, one every `slide`.

    Args:
        size: See `tumbling`.
        slide: A duration too, or months as the size.
        offset: See `tumbling`.
        zone: See `tumbling`.

    Raises:
        DeclarationError: A duration is not positive, or the slide is longer than the size (records would be left out), or one of them is
            months and the other is not; there is no such zone.

    Example:
        >>> print(sliding("1 hour", "15 minutes"))
        of 3600 s every 900 s
    """
    months, every = months_of(size), months_of(slide)
    if (months is None) != (every is None):
        raise DeclarationError(
            f"Windows of {size} every {slide} mix months with another unit, and months differ in length; write both in months, or both in days."
        )
    by_months = months is not None
    long = duration_us(size, "the size of a window") if months is None else months
    step = duration_us(slide, "the slide of a window") if every is None else every
    if long <= 0 or step <= 0:
        raise DeclarationError(f"A window of {size} every {slide} is empty; give positive durations.")
    if step > long:
        raise DeclarationError(f"Windows of {size} every {slide} would leave records out; the slide must not exceed the size.")
    if by_months and long > _MOST_MONTHS:
        raise DeclarationError(f"A window of {size} is too long; give at most {_MOST_MONTHS} months.")
    later = months_of(offset)
    if later is not None and not by_months:
        raise DeclarationError(f"offset={offset!r} is in months, but the windows of {size} are not; write it in days or hours.")
    shift = (
        0 if later is None else later,
        0 if later is not None or offset is None else duration_us(offset, "the offset of a window"),
    )
    if shift[1] and by_months and shift[1] >= _SHORTEST_MONTH_US:
        raise DeclarationError(f"offset={offset!r} of windows of months must be less than 28 days, or months.")
    if not by_months and zone is None:
        return Sliding(long, step, shift[1] % step)
    named = "UTC" if zone in (None, dt.UTC) else getattr(zone, "key", zone)
    beginning = (shift[0] % step, shift[1]) if by_months else (0, shift[1] % step)
    return Calendar(long, step, beginning, by_months, zone_of(named))


def session(gap: Duration) -> Session:
    """A window per burst of records, ended by a pause of `gap`.

    Raises:
        DeclarationError: The gap is not a positive duration.

    Example:
        >>> bursts = by_plane.window(session("30 minutes")).aggregate(flights=ps.count())
    """
    window = Session(duration_us(gap, "the gap of a session"))
    if window.gap_us <= 0:
        raise DeclarationError(f"A session gap of {gap} is empty; give a positive duration.")
    return window
