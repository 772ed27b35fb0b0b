"""Windows of people's calendars: days of a time zone, months, quarters, years.

A window begins when the zone's clock first shows its start, or a later time, and ends when the next one begins. So each moment is in one window of
tumbling ones, a day has 23, 24 or 25 hours, and what the clock shows twice, when it is put back, is one window. One that the clock passes over
does not exist.

All times in microseconds.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.operators.zones import Zone
from penstock.rows.keys import Ints
from penstock.types import DAY_US, seconds_text

MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}


@dataclass(frozen=True)
class Calendar:
    """Windows that start every `slide` on the clock of a zone, and last for `size` on it.

    Attributes:
        size: How long a window is: months, or µs.
        slide: How much later the next one starts, in the same unit.
        offset: How much later than 1970-01-01 00:00 on the clock of the zone one starts: months and µs.
        months: Whether `size` and `slide` are months.
        zone: The zone.
    """

    size: int
    slide: int
    offset: tuple[int, int]
    months: bool
    zone: Zone

    @property
    def overlapping(self) -> bool:
        """Whether a time may have several windows."""
        return self.size != self.slide

    @functools.cached_property
    def longest_us(self) -> int:
        """No window is longer: local days differ by at most a day from others, in all zones that ever were."""
        return self.size * 31 * DAY_US + DAY_US if self.months else self.size + DAY_US

    @functools.cached_property
    def _pane(self) -> int:
        return math.gcd(self.size, self.slide)

    def _numbers(self, times: Ints) -> Ints:
        """The number of the pane that each moment is in."""
        local = self.zone.reached(times) - self.offset[1]
        if self.months:
            local = local.view("datetime64[us]").astype("datetime64[M]").astype(np.int64) - self.offset[0]
        return local // self._pane

    def _moments(self, numbers: Ints) -> Ints:
        """When each pane begins."""
        local = numbers * self._pane
        if self.months:
            local = (local + self.offset[0]).astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
        return self.zone.first(local + self.offset[1])

    def panes(self, times: Ints) -> Ints:
        """Start of each time's pane."""
        return self._moments(self._numbers(times))

    def pane_sql(self, time: str) -> str:
        """SQL of the start of a span that lies within one pane: zones are penstock's own, whatever Spark's Java knows of them."""
        since, fine, before = self.zone.steps()
        within = self.offset[1] if self.months else math.gcd(self._pane, self.offset[1])
        units = tuple(math.gcd(step or DAY_US, within or DAY_US, DAY_US) for step in (fine, before))
        late, early = (f"{time} - pmod({time}, {unit}L)" for unit in units)
        return late if units[0] == units[1] else f"CASE WHEN {time} >= {since}L THEN {late} ELSE {early} END"

    def spread(self, panes: Ints) -> tuple[Ints, Ints]:
        """The windows of each pane.

        Returns:
            index: int64, m: the pane; ascending. starts: int64, m: start of one of its windows.
        """
        if not self.overlapping:
            return np.arange(len(panes)), panes
        step, long = self.slide // self._pane, self.size // self._pane
        numbers = self._numbers(panes)[:, None]
        first = (numbers // step - np.arange(-(-long // step) - 1, -1, -1)[None, :]) * step
        starts = self._moments(first)
        # Of windows that begin at one moment, because the clock passed over a start, there is the last one only.
        inside = (first + long > numbers) & (
            starts < np.append(starts[:, 1:], np.full((len(panes), 1), np.iinfo(np.int64).max), 1)
        )
        index = np.broadcast_to(np.arange(len(panes))[:, None], starts.shape)
        return index[inside], starts[inside]

    def ends(self, starts: Ints) -> Ints:
        """End of the window that begins at each of these times."""
        step, long = self.slide // self._pane, self.size // self._pane
        return self._moments(self._numbers(starts) // step * step + long)

    def ranks(self, starts: Ints) -> Ints:
        """How many windows end when the one that begins at each of these times ends, and begin before it.

        Overlapping windows end at one moment where the clock passes over their ends.
        """
        step, long = self.slide // self._pane, self.size // self._pane
        ends = self._numbers(starts) // step * step + long
        first = self._numbers(self._moments(ends) - 1) + 1  # the first pane that the same moment begins
        return (ends - first) // step

    def __str__(self) -> str:
        size, slide = (f"{n} months" if self.months else seconds_text(n) for n in (self.size, self.slide))
        every = f" every {slide}" if self.overlapping else ""
        months, us = self.offset
        later = [text for n, text in ((months, f"{months} months"), (us, seconds_text(us))) if n]
        return f"of {size}{every} in {self.zone.name}" + (f", {' and '.join(later)} later" if later else "")


def months_of(text: object) -> int | None:
    """How many months a text such as ``"1 month"``, ``"2 quarters"`` or ``"1 year"`` says; None if it is another duration."""
    found = re.fullmatch(r"\s*([0-9]+)\s*(month|quarter|year)s?\s*", text, re.IGNORECASE) if isinstance(text, str) else None
    return int(found[1]) * MONTHS[found[2].lower()] if found else None


__all__ = ["Calendar", "months_of"]
