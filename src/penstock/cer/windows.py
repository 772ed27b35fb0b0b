"""Windows as integers: where a run starts, and the least start that is inside the window at each event.

``end - start <= size`` becomes ``start >= low(end)``, evaluated once per event for the whole batch, exactly: floating-point values are
mapped to integers of the same order.
"""

from __future__ import annotations

from decimal import Decimal
from math import floor
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cer.plan import WHEN, Pattern
from penstock.columns import HasColumns
from penstock.errors import RecordError

Ints = NDArray[np.int64]
_ALL = np.iinfo(np.int64).min
_SIGN = np.int64(_ALL)


def times(pattern: Pattern, chunk: HasColumns, place: Ints) -> Ints:
    """The start of a run that begins with each event, in the window's unit, int64[events].

    Args:
        pattern: its window says what is measured.
        chunk: the events.
        place: the number of each event within its key's events, int64[events].

    Raises:
        RecordError: an event has no value of the window's attribute.
    """
    if pattern.counts_own_events:
        return np.asarray(place, np.int64)
    window = pattern.window
    assert window is not None
    column = chunk.column(pattern.order[0] if window.kind == "time" else WHEN)
    if column.null_count:
        raise RecordError(f"An event has no value of {window.attribute!r}, which its window needs; leave such events out.")
    if pa.types.is_floating(column.type):
        return ordered(np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False)))
    return micros(column)


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
    if window.kind == "attribute" and pa.types.is_floating(chunk.column(WHEN).type):
        return ordered(_least_start(_values(when), window.size))
    size = floor(window.size)
    return np.where(when >= _ALL + size, when - size, _ALL)


def ordered(values: NDArray[np.float64]) -> Ints:
    """Integers in the order of the values; -0.0 and 0.0 are one."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, _SIGN - bits, bits)


def _values(ordered: Ints) -> NDArray[np.float64]:
    return np.where(ordered < 0, _SIGN - ordered, ordered).view(np.float64)


def _least_start(ends: NDArray[np.float64], size: Decimal | int) -> NDArray[np.float64]:
    """The least s with ``end - s <= size`` as floating-point numbers are subtracted."""
    width = float(size)
    start = ends - width
    for _ in range(4):
        start = np.where(ends - start > width, np.nextafter(start, np.inf), start)
        less = np.nextafter(start, -np.inf)
        start = np.where(ends - less <= width, less, start)
    return start
