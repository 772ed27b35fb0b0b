"""Windows: the spans of event time that a record belongs to.

All times in microseconds. Windows are aligned to 1970-01-01 UTC. A window holds times ``start <= t < end``; it is complete when
the frontier has reached its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import DeclarationError
from penstock.rows.keys import Ints
from penstock.types import Duration, duration_us

WINDOW: Final = ("window_start", "window_end")
"""Columns that a window adds to its rows."""


@dataclass(frozen=True)
class Sliding:
    """Windows of `size_us` that start every `slide_us`; tumbling if both are equal."""

    size_us: int
    slide_us: int

    @property
    def pane_us(self) -> int:
        """Length of a pane: partial aggregates are kept per pane, then combined to windows."""
        return self.slide_us if self.size_us == self.slide_us else math.gcd(self.size_us, self.slide_us)

    def panes(self, times: Ints) -> Ints:
        """Start of each time's pane."""
        return times - times % self.pane_us

    def spread(self, panes: Ints) -> tuple[Ints, Ints]:
        """The windows of each pane.

        Returns:
            index: int64, m: the pane; ascending. starts: int64, m: start of one of its windows.
        """
        if self.size_us == self.slide_us:
            return np.arange(len(panes)), panes
        latest = panes - panes % self.slide_us
        count = -(-self.size_us // self.slide_us)
        starts = latest[:, None] - self.slide_us * np.arange(count - 1, -1, -1)[None, :]
        inside = starts + self.size_us > panes[:, None]
        index = np.broadcast_to(np.arange(len(panes))[:, None], starts.shape)
        return index[inside], starts[inside]


@dataclass(frozen=True)
class Session:
    """A window per burst of records of one key, ended by `gap_us` without any."""

    gap_us: int


Window = Sliding | Session


def window_text(window: Window | None) -> str:
    """A window for people."""
    if window is None:
        return "none"
    if isinstance(window, Session):
        return f"of sessions with a gap of {window.gap_us / 1e6:g} s"
    every = "" if window.size_us == window.slide_us else f" every {window.slide_us / 1e6:g} s"
    return f"of {window.size_us / 1e6:g} s{every}"


def tumbling(size: Duration) -> Sliding:
    """Windows of one size, side by side.

    Raises:
        DeclarationError: The size is not a positive duration.

    Example:
        >>> tumbling("1 hour")
        Sliding(size_us=3600000000, slide_us=3600000000)
    """
    return sliding(size, size)


def sliding(size: Duration, slide: Duration) -> Sliding:
    """Overlapping windows of one size, one every `slide`.

    Raises:
        DeclarationError: A duration is not positive, or the slide is longer than the size (records would be left out).
    """
    window = Sliding(duration_us(size, "the size of a window"), duration_us(slide, "the slide of a window"))
    if window.size_us <= 0 or window.slide_us <= 0:
        raise DeclarationError(f"A window of {size} every {slide} is empty; give positive durations.")
    if window.slide_us > window.size_us:
        raise DeclarationError(f"Windows of {size} every {slide} would leave records out; the slide must not exceed the size.")
    return window


def session(gap: Duration) -> Session:
    """A window per burst of records, ended by a pause of `gap`.

    Raises:
        DeclarationError: The gap is not a positive duration.
    """
    window = Session(duration_us(gap, "the gap of a session"))
    if window.gap_us <= 0:
        raise DeclarationError(f"A session gap of {gap} is empty; give a positive duration.")
    return window
