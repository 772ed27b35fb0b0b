"""Which files an epoch reads, in which order, and whether they are unchanged. Pure.

Files are ordered by (modification time in ms, URI). Spark orders them by time alone, and cuts an epoch of limited size anywhere
among files of one time. `choose` corrects that without reading more or fewer files than Spark gave: it replaces a file by an
earlier one that Spark has not given yet (`Order.ahead`), and owes the replaced one (`Order.owed`) to a later epoch. Both are
equally many, so nothing is owed once Spark has given the last file of that time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from penstock.errors import RecordError


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was found.

    Attributes:
        uri: In Spark's form, local ones with ``file:///``.
        size: Bytes.
        mtime_ms: Modification time.
    """

    uri: str
    size: int
    mtime_ms: int

    @property
    def place(self) -> tuple[int, str]:
        """The order of files."""
        return self.mtime_ms, self.uri

    def to_json(self) -> list[Any]:
        """Plain values."""
        return [self.uri, self.size, self.mtime_ms]


@dataclass(frozen=True, slots=True)
class Order:
    """How far the files of a source have been read.

    Attributes:
        reached: The greatest place read; None: unknown.
        ahead: URIs of files that were read before Spark gave them, with their modification times.
        owed: Files that Spark gave and that have not been read yet.
    """

    reached: tuple[int, str] | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)
    owed: tuple[InputFile, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, none where there is nothing to say."""
        raw = {
            "reached": self.reached,
            "ahead": dict(sorted(self.ahead.items())),
            "owed": [f.to_json() for f in self.owed],
        }
        return {name: value for name, value in raw.items() if value}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Order:
        """Read what `to_json` returned."""
        reached = raw.get("reached")
        return Order(
            (reached[0], reached[1]) if reached else None,
            dict(raw.get("ahead", {})),
            tuple(InputFile(*f) for f in raw.get("owed", ())),
        )


def choose(given: Iterable[InputFile], rest: Iterable[InputFile], order: Order) -> tuple[tuple[InputFile, ...], Order]:
    """The files to read in an epoch, in order, and how far that goes.

    Args:
        given: Those that Spark gives in this epoch.
        rest: Those that Spark has found and not given, of the last given one's time and after `order.reached`; as many of the
            first as are given suffice.
        order: How far they have been read.
    """
    came = {f.uri: f for f in given}
    last = max((f.mtime_ms for f in came.values()), default=None)
    # What Spark has passed by will not be given any more: it was removed after it was read. Then one more of those owed is due.
    due = {uri: at for uri, at in order.ahead.items() if last is not None and uri not in came and at >= last}
    number = len(came) + len(order.ahead.keys() - came.keys() - due.keys())
    new = [f for f in came.values() if f.uri not in order.ahead]
    left = {f.uri: f for f in rest if f.uri not in order.ahead and f.uri not in came}
    pool = sorted([*order.owed, *new, *left.values()], key=lambda f: f.place)
    chosen = tuple(pool[:number] if due or left else pool)
    read = {f.uri for f in chosen}
    ahead = due | {uri: f.mtime_ms for uri, f in left.items() if uri in read}
    owed = tuple(f for f in pool if f.uri not in read and f.uri not in left)
    greatest = max([f.place for f in chosen[-1:]] + [order.reached or (0, "")])
    return chosen, Order(greatest if greatest[1] else None, ahead, owed)


def cut(chosen: Sequence[InputFile], after: Order, before: Order, most: int) -> tuple[tuple[InputFile, ...], Order, bool]:
    """Only the first files of an epoch, whose input Spark then gives once more.

    Args:
        chosen: Its files, as `choose` gives them, with the order after them.
        after: See there.
        before: The order before it.
        most: How many are read.

    Returns:
        The files, the order after them, and whether some are left.
    """
    if len(chosen) <= most:
        return tuple(chosen), after, False
    read = tuple(chosen[: max(most, 0)])
    uris, owed = {f.uri for f in read}, {f.uri for f in before.owed}
    ahead = {**before.ahead, **{f.uri: f.mtime_ms for f in read if f.uri not in owed}}
    reached = max([f.place for f in read] + [before.reached or (0, "")])
    return read, Order(reached if reached[1] else None, ahead, tuple(f for f in before.owed if f.uri not in uris)), True


def first_difference(
    kept: Sequence[InputFile], now: Mapping[str, InputFile], *, seconds: bool = False
) -> tuple[InputFile, InputFile | None] | None:
    """The first file that is gone (None) or changed, with what is there now; None: all are unchanged.

    Args:
        kept: Files as they were found first.
        now: Files by URI as they are.
        seconds: Whether times came from a source that may have whole seconds only.
    """
    for file in kept:
        found = now.get(file.uri)
        if found is None or found.size != file.size or not _same_time(file.mtime_ms, found.mtime_ms, seconds=seconds):
            return file, found
    return None


def _same_time(first: int, second: int, *, seconds: bool) -> bool:
    least, most = sorted((first, second))
    return least == most or (seconds and least % 1000 == 0 and least == most // 1000 * 1000)


def gone(source: str, epoch: int, uri: str) -> RecordError:
    """The message for a file that an epoch must read and that is gone."""
    return RecordError(
        f"File {unquote(uri)} of source {source!r} is gone, and epoch {epoch}, which is not committed, must read it; put it back as it "
        "was and start the flow again, or begin with a new checkpoint."
    )


def changed(source: str, epoch: int, was: InputFile, found: InputFile) -> RecordError:
    """The message for a file that changed since an epoch read it."""
    return RecordError(
        f"File {unquote(was.uri)} of source {source!r} is not the one that epoch {epoch} began to read ({_told(was)}; now {_told(found)}), "
        "and what it said then may be stored; put it back as it was, with its time, and start the flow again, or begin with a new checkpoint."
    )


def _told(file: InputFile) -> str:
    try:
        at = dt.datetime.fromtimestamp(file.mtime_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (ValueError, OverflowError, OSError):
        at = f"{file.mtime_ms} ms"
    return f"{file.size:,} bytes of {at}"
