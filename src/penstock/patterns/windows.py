"""Windows as integers: the start of a run, and the least start inside the window at each event.

``end - start <= size`` becomes ``start >= low(end)``, computed once per event for the whole batch, exactly: floating-point
values are mapped to integers of the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import floor
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import HasColumns
from penstock.patterns.comparing import SIGN, ordered
from penstock.patterns.plan import WHEN, Pattern

Ints = NDArray[np.int64]
_ALL, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def times(pattern: Pattern, chunk: HasColumns, place: Ints, missing: Callable[[int], Exception]) -> Ints:
    """The start of a run that begins with each event, in the window's unit, int64[events].

    Args:
        pattern: has the window.
        chunk: the events.
        place: the number of each event within its key's events, int64[events].
        missing: the error for an event without a value of the window's attribute, or with NaN or infinity.
    """
    if pattern.counts_own_events:
        return np.asarray(place, np.int64)
    column = chunk.column(pattern.order[0] if pattern.in_time else WHEN)
    if column.null_count:
        raise missing(int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]))
    if pa.types.is_floating(column.type):
        values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        if not np.isfinite(values).all():
            raise missing(int(np.flatnonzero(~np.isfinite(values))[0]))
        return ordered(values)
    return _unscaled(column) if pa.types.is_decimal(column.type) else micros(column)


def steps_back(when: Ints, low: Ints, first: Ints, before: Ints) -> tuple[Ints, Ints]:
    """Events whose ``when`` is less than that of their key's previous event.

    Args:
        when, low: see ``Batch``; events are grouped by key.
        first: the first event of each key, int64[keys].
        before: ``when`` of the event before each of these, int64[keys]; the least number if there was none.

    Returns:
        Their indices, ascending, and ``low`` of the event before each. For first events that is the least number: runs outside
        their windows were dropped before them.
    """
    earlier, edge = np.roll(when, 1), np.roll(low, 1)
    earlier[first], edge[first] = before, _ALL
    back = np.flatnonzero(when < earlier)
    return back, edge[back]


def step_back_text(pattern: Pattern, event: str) -> str:
    """The message for a decrease that no window can interpret."""
    name = "" if pattern.window is None else pattern.window.attribute
    return (
        f"A window of {name!r} needs values that do not decrease within a key while a match is under way, but that of {event} is "
        "less than the one before; measure in another column, or correct the data."
    )


def without_text(pattern: Pattern) -> str:
    """The message for an event that the window cannot measure."""
    name = "" if pattern.window is None else pattern.window.attribute
    return f"has no value of {name!r}, which its window needs, or NaN or infinity; leave such events out."


def _unscaled(column: Any) -> Ints:
    """Decimals of at most 18 digits as their unscaled values: the low half of each, sign included."""
    halves = np.frombuffer(column.buffers()[1], np.int64)
    return halves[2 * column.offset : 2 * (column.offset + len(column)) : 2].copy()


def micros(column: Any) -> Ints:
    """Times or integers as int64; times in µs."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))


def earliest(pattern: Pattern, chunk: HasColumns, when: Ints) -> Ints:
    """The least start inside the window of a match that ends with each event, int64[events]."""
    window = pattern.window
    if window is None:
        return np.full(len(when), _ALL)
    size = window.size
    if window.kind == "attribute":
        kind = chunk.column(WHEN).type
        if pa.types.is_floating(kind):
            return ordered(_least_start(_values(when), size))
        if pa.types.is_decimal(kind):
            size *= 10**kind.scale
    low, left = when, floor(size)
    for _ in range(3):  # three steps of an int64 exceed any window
        step = min(left, _MOST)
        low, left = np.where(low >= _ALL + step, low - step, _ALL), left - step
        if not left:
            break
    return low


def _values(ordered: Ints) -> NDArray[np.float64]:
    return np.where(ordered < 0, SIGN - ordered, ordered).view(np.float64)


def _least_start(ends: NDArray[np.float64], size: Decimal | int) -> NDArray[np.float64]:
    """The least s with ``end - s <= size`` as floating-point numbers are subtracted."""
    width = float(size)
    start = ends - width
    less = np.nextafter(start, -np.inf)
    near = (ends - start > width) | (ends - less <= width)  # inexact: near 0 there are many neighbours
    start[near] = _searched(ends[near], width)
    return start


def _searched(ends: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """The same by bisection between minus infinity, which is outside, and the end itself."""
    outside, inside = np.full(len(ends), ordered(np.array([-np.inf]))[0]), ordered(ends)
    for _ in range(64):
        middle = (outside >> 1) + (inside >> 1) + (outside & inside & 1)
        reached = ends - _values(middle) <= width
        inside, outside = np.where(reached, middle, inside), np.where(reached, outside, middle)
    return _values(inside)
