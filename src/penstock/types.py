"""Frozen values that every layer shares: times, frontiers, marks and hidden columns; and how dataclasses become JSON.

Times inside penstock are ``int`` microseconds since 1970-01-01 UTC. A frontier is such a time: every record before it has
been seen. `MIN_TIME` means nothing has been seen, `MAX_TIME` that nothing will ever come again.

Read next: `penstock.errors`, then `penstock.flow.plan`.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, partial
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
FIRST_MOMENT: Final = -62_135_596_800_000_000
LAST_MOMENT: Final = 253_402_300_799_999_999
"""The first microsecond of the year 1 and the last of the year 9999: the times that Python's ``datetime`` has."""

BINS: Final = 4096
"""Key groups: ``bin = pmod(xxhash64(key), BINS)``."""

HIDDEN: Final = "__ps_"
"""Begins the names of all columns that are penstock's own."""

# The hidden columns that every record carries beside the user's own. Order of records: (TIME, PART, OFFSET, SUB).
TIME: Final = "__ps_time"  # int64, event time in µs; 0 for a source without time
PART: Final = "__ps_part"  # int64, source ordinal << 48 | partition's number
OFFSET: Final = "__ps_offset"  # int64, ascending within a partition
SUB: Final = "__ps_sub"  # int64, which of several rows that one record triggered
ORDER: Final = (TIME, PART, OFFSET, SUB)
PARTITION: Final = "__ps_partition"
"""Only in stored rows: what `PART` stands for, as text."""
MASK: Final = "__ps_mask"
"""Begins the names of columns that tell which tests of a pattern a record passes; they are whole numbers, never null."""

HASH: Final = "__ps_hash"
"""int64, the hash of a record's key; only within a worker."""


def visible(names: Iterable[str]) -> list[str]:
    """Those of some columns that are the user's."""
    return [name for name in names if not name.startswith(HIDDEN)]


PART_BITS: Final = 48
PART_MASK: Final = (1 << PART_BITS) - 1
ROW_BITS: Final = 33
"""Of the offset of a record of a file: the lower bits are its row, the upper ones the file's number."""
NULL_PARTITION: Final = 1 << (PART_BITS - 1)
"""Number of a source's partition null where partitions are whole numbers; these are less than this, and more than its negative."""

_UNITS: Final = {
    name: us
    for us, names in {
        1: "microsecond us usec µs",
        1_000: "millisecond ms msec millis",
        1_000_000: "second s sec",
        60_000_000: "minute m min",
        3_600_000_000: "hour h hr",
        86_400_000_000: "day d",
        604_800_000_000: "week w wk",
    }.items()
    for name in names.split()
}
Duration: TypeAlias = str | float | dt.timedelta
"""How a user writes a duration; see `duration_us`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not done, as a sentence for people."""

    sentence: str


def whole_partition(part: int) -> int | None:
    """The partition that a `PART` stands for, where partitions are whole numbers; None is null."""
    number = part & PART_MASK
    return None if number == NULL_PARTITION else number - (1 << PART_BITS) * (number > NULL_PARTITION)


DAY_US: Final = 86_400_000_000
_LONGEST_US: Final = 100_000 * DAY_US


def duration_us(given: Duration, what: str = "duration") -> int:
    """Read a duration, in microseconds.

    Args:
        given: Text such as ``"10 minutes"``, ``"5m"``, ``"10 sec"`` or ``"1 hour 30 minutes"``, a number of seconds, or a timedelta.
        what: What it is for, used in the error.

    Raises:
        DeclarationError: It is not a duration. Nothing was changed.

    Example:
        >>> duration_us("1 hour 30 minutes"), duration_us("5m"), duration_us(0.5)
        (5400000000, 300000000, 500000)
    """
    from penstock.errors import DeclarationError  # noqa: PLC0415  (errors imports nothing; types is imported first)

    if _is_number(given):
        seconds: Any = given
        if abs(seconds) > _LONGEST_US // 1_000_000:
            raise _too_long(what)
        given = dt.timedelta(seconds=float(seconds))
    if isinstance(given, dt.timedelta):
        if given < dt.timedelta(0):
            shown = seconds_text(-given // dt.timedelta(microseconds=1))
            raise DeclarationError(f"{what} is -{shown}, which is negative; give a duration from 0.")
        return _checked(given // dt.timedelta(microseconds=1), what)
    total, rest = 0, str(given).strip()
    if not rest:
        raise DeclarationError(f"{what} is empty; write for example '10 minutes'.")
    while rest:
        found = re.match(r"([0-9]+(?:\.[0-9]+)?)\s*([^\W\d_]+)\s*,?\s*", rest)
        unit = found and (_UNITS.get(found[2].lower()) or _UNITS.get(found[2].lower().removesuffix("s")))
        if not found or not unit:
            hint = f"; a number alone is of seconds: write {given} without quotes" if rest.isdigit() and not total else ""
            raise DeclarationError(
                f"{what} {given!r} is not a duration; write for example '10 minutes', '5m' or '1 hour 30 minutes'{hint}."
            )
        total += round(float(found[1]) * unit)
        rest = rest[found.end() :]
    return _checked(total, what)


def _is_number(given: Any) -> bool:
    return type(given) is not bool and isinstance(given, Real) and not math.isnan(given)


def _too_long(what: str) -> Exception:
    from penstock.errors import DeclarationError  # noqa: PLC0415

    return DeclarationError(f"{what} is longer than 100,000 days.")


def _checked(us: int, what: str) -> int:
    if us > _LONGEST_US:
        raise _too_long(what)
    return us


def duration_text(us: int) -> str:
    """A duration in µs as a user would write it.

    Example:
        >>> duration_text(5_400_000_000), duration_text(86_400_000_000), duration_text(0)
        ('1 hour 30 minutes', '1 day', '0 seconds')
    """
    parts = []
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        n, us = divmod(us, _UNITS[name])
        parts += [f"{n:,} {name}{'s' * (n != 1)}"] if n else []
    return " ".join(parts) or "0 seconds"


def seconds_text(us: int) -> str:
    """A duration in µs as text by which two are told apart: checkpoints have it.

    Example:
        >>> seconds_text(90_000_000), seconds_text(1_000_000_000_000), seconds_text(1_000_001_000_000)
        ('90 s', '1e+06 s', '1000001 s')
    """
    short = f"{us / 1e6:g}"
    whole, rest = divmod(us, 1_000_000)
    exact = f"{whole}.{rest:06d}".rstrip("0").rstrip(".")
    return f"{short if round(float(short) * 1e6) == us else exact} s"


def plain_seconds(text: str) -> str:
    """A text with durations as `seconds_text` writes them, for people.

    Example:
        >>> plain_seconds("of 2.592e+06 s in Europe/Berlin")
        'of 2592000 s in Europe/Berlin'
    """
    return re.sub(r"\b[0-9.]+e\+[0-9]+(?= s\b)", lambda found: f"{float(found[0]):.0f}", text)


def time_text(us: int) -> str:
    """A time in µs as people read it.

    Example:
        >>> time_text(0)
        '1970-01-01 00:00:00'
    """
    if us >= MAX_TIME:
        return "end of input"
    if us <= MIN_TIME:
        return "nothing seen yet"
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} µs"
    return moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{us % 1_000_000:06d}" if us % 1_000_000 else "")


@dataclass(frozen=True, slots=True)
class Mark:
    """A sink's high-water mark: what it holds, stored in the sink itself in the same transaction as the rows.

    Attributes:
        flow: Identity of the flow's checkpoint; a mark of another one is refused.
        output: Name of the output within the flow.
        run: Fencing token: the number of the run that wrote it. A lower one may not write any more.
        epoch: The last epoch whose rows the sink holds; −1 for none.
        frontier: Frontier of that epoch in µs.
        positions: Source partition (``"source/partition"``) → last offset that is reflected.
        trail: Text that the sink keeps and gives back as it is.
    """

    flow: str
    output: str
    run: int
    epoch: int = -1
    frontier: int = MIN_TIME
    positions: dict[str, int] = field(default_factory=dict)
    trail: str = ""

    def to_json(self) -> str:
        """The mark as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Mark:
        """Read what `to_json` wrote."""
        raw: dict[str, Any] = json.loads(text)
        return Mark(**raw)


def plain(value: Any) -> Any:
    """A dataclass as a dict of its fields, or what its method `to_json` gives: for ``json.dumps(value, default=plain)``."""
    own = getattr(value, "to_json", None)
    return own() if own else {name: getattr(value, name) for name in value.__dataclass_fields__}


def from_plain(kind: Any, raw: Any, others: Readers = ()) -> Any:
    """A value of a type, of what JSON gives of it once `plain` has written it.

    Args:
        kind: See `reader`.
        raw: What JSON gives. The value may share lists and dicts with it.
        others: See `reader`.

    Example:
        >>> from_plain(dict[int, tuple[int, ...] | None], {"3": [1, 2], "4": None})
        {3: (1, 2), 4: None}
    """
    read = reader(kind, others)
    return raw if read is None else read(raw)


Readers: TypeAlias = tuple[tuple[Any, Callable[[Any], Any]], ...]
"""Types, and what reads them."""


@cache
def reader(kind: Any, others: Readers = ()) -> Callable[[Any], Any] | None:
    """What reads values of a type, made once: records of epochs are read all the time. None: a value is what JSON gives.

    Args:
        kind: A dataclass, a container of such, a union of one with None, or any type that JSON has. A class may have its own method `from_json`.
        others: What reads some types in place of this function.
    """
    for other, read in others:
        if kind == other:
            return read
    if is_dataclass(kind):
        own: Callable[[Any], Any] | None = getattr(kind, "from_json", None)
        return own or partial(_read_fields, kind, others)
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        one = reader(next(a for a in args if a is not NoneType), others)
        return None if one is None else lambda raw: None if raw is None else one(raw)
    if origin in (dict, Mapping):
        number, value = args[0] is int, reader(args[1], others)
        if value is None:
            return (lambda raw: {int(k): v for k, v in raw.items()}) if number else None
        return lambda raw: {int(k) if number else k: value(v) for k, v in raw.items()}
    if origin not in (tuple, list):
        return None
    each = reader(args[0], others)
    if each is None:
        return tuple if origin is tuple else None
    return lambda raw: origin(map(each, raw))


def _read_fields(kind: Any, others: Readers, raw: Mapping[str, Any]) -> Any:
    found = dict(raw)
    for name, read in _field_readers(kind, others):
        if name in found:
            found[name] = read(found[name])
    return kind(**found)


@cache
def _field_readers(kind: Any, others: Readers) -> list[tuple[str, Callable[[Any], Any]]]:
    """The fields of a dataclass that are not as JSON gives them; looked up late, for a class may be a field of itself."""
    readers = ((name, reader(of, others)) for name, of in get_type_hints(kind).items())
    return [(name, read) for name, read in readers if read is not None]
