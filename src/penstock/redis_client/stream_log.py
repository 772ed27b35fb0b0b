"""One partition of a stream as a log: where an epoch ends, what was removed before it was read, and the entries between two positions.

A server removes entries silently: by length or id (XTRIM, XADD with MAXLEN), one by one (XDEL), all (DEL, a restart without data). So a position
has, besides an entry's id, how many entries the stream had ever been given up to there. The server counts them, too (``entries-added``); what
is missing between two positions follows by subtraction, whatever removed it.

Exactly these cannot be told: a stream that was deleted and created anew, and trimmed since by just as many entries as were read; and, of a server before
7.0, which does not count, how many entries are missing (there, a last read entry that is gone counts as a gap).

Read next: `penstock.redis_client.entries`, `penstock.sources.redis_streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.redis_client import library
from penstock.redis_client.entry_ids import FIRST, Id, parsed, written
from penstock.redis_client.keys import settings_key

_PAGE_ENTRIES: Final = 10_000
_PAGE_BYTES: Final = 16 << 20
_COUNTED: Final = 2_000
"""So many entries are counted in one step, during which the server answers nobody else."""
_COUNT: Final = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
if #found == 0 then return {0, ARGV[1]} end
return {#found, found[#found][1]}
"""


@dataclass(frozen=True)
class Position:
    """A place in a partition: behind an entry.

    Attributes:
        entry: The entry's id; `FIRST`: before all.
        added: How many entries the stream had been given until there; None: the server does not count.
        since: The same of the place at which reading began.
    """

    entry: Id
    added: int | None
    since: int | None

    def to_json(self) -> list[Any]:
        """As JSON has it."""
        return [written(self.entry), self.added, self.since]

    @staticmethod
    def from_json(raw: list[Any]) -> Position:
        """Read what `to_json` gave."""
        return Position(parsed(raw[0]), raw[1], raw[2])

    def expected(self, start: Position) -> int | None:
        """How many entries there are behind `start` up to here; None: that is not known."""
        begin = self.since if start.entry == FIRST else start.added
        return None if self.added is None or begin is None else self.added - begin


@dataclass(frozen=True)
class Stream:
    """What a server says of a stream.

    Attributes:
        first: Id of the first entry; None: there is none. Likewise `last`.
        generated: The greatest id that it ever gave.
        length: Number of entries.
        added: How many it was ever given; None: the server does not count.
        deleted: Greatest id that was deleted by itself; None: the server does not know.
    """

    first: Id | None
    last: Id | None
    generated: Id
    length: int
    added: int | None
    deleted: Id | None


@dataclass(frozen=True)
class Gap:
    """What was removed before it was read.

    Attributes:
        sentence: The rest of a sentence that begins with the stream.
        lost: How many entries; None: that cannot be told.
        another: Whether it is no gap but another stream, or an earlier state of this one: its entries do not follow the position.
    """

    sentence: str
    lost: int | None = None
    another: bool = False


def begin(stream: Stream | None) -> Position:
    """The position before all entries that there are."""
    if stream is None:
        return Position(FIRST, 0, 0)
    gone = None if stream.added is None else stream.added - stream.length
    return Position(FIRST, gone, gone)


def begun_at(entry: Id, stream: Stream | None) -> int | None:
    """How many entries a stream had been given up to one, if nothing behind it was removed; None: that cannot be told, or the server does not count."""
    if stream is None or stream.added is None or (stream.first is not None and stream.first <= entry):
        return None
    return stream.added - stream.length


def gap(position: Position, stream: Stream | None, *, there: bool) -> Gap | None:
    """What is missing behind a position; None: nothing that shows yet.

    Args:
        position: Where reading goes on.
        stream: The stream; None: there is none.
        there: Whether the entry of the position was there before the server was asked for `stream`.
    """
    at = written(position.entry)
    if stream is None:
        if position.entry == FIRST and not position.added:
            return None
        return Gap("is gone: it was deleted, or the server was started without its data", another=True)
    if stream.generated < position.entry:
        return Gap(f"was given no entry after {written(stream.generated)}: it is an earlier or another one", another=True)
    first = "there is none" if stream.first is None else f"the first one there is {written(stream.first)}"
    if stream.first is not None and stream.first <= position.entry:
        untouched = stream.deleted is not None and stream.deleted < position.entry
        if not there and untouched:
            return Gap(f"does not have entry {at}: it is an earlier or another one", another=True)
        return None
    if stream.added is None or position.added is None:
        lost_some = position.entry != FIRST and not there and stream.generated > position.entry
        return Gap(f"lacks entry {at}, and perhaps more that were not read: {first}") if lost_some else None
    lost = stream.added - position.added - stream.length
    if lost < 0:
        return Gap("has more entries than were added since: it was deleted and created anew", another=True)
    return Gap(f"has lost {lost:,} entries that were not read: {first}", lost) if lost else None


@dataclass(frozen=True)
class Target:
    """Where reading may end at most: a place that was the end once."""

    entry: Id
    added: int | None


def end_of(stream: Stream) -> Target:
    """The end of a stream now."""
    return Target(stream.generated if stream.last is None else stream.last, stream.added)


def end(position: Position, stream: Stream, target: Target, most: int) -> Position | None:
    """Where an epoch ends that reads at most so many entries; None: they must be counted, by `PartitionLog.count`.

    Args:
        position: Where it begins.
        stream: The stream now, whose entries follow the position.
        target: Where it ends at most.
        most: So many entries.
    """
    if stream.added is None or position.added is None or target.added is None:
        unread = stream.length if target.entry > position.entry else 0
    else:
        unread = target.added - position.added
    if unread <= 0:
        return position
    # The last entries may be gone: then the end is no further, and still more were added until there than are found.
    return Position(max(target.entry, position.entry), target.added, position.since) if unread <= most else None


def counted(position: Position, stream: Stream, found: int, last: Id, *, target: Target | None = None) -> Position:
    """The position behind `found` entries, the last one of which has id `last`. `target`: these are all up to there."""
    added = position.added
    if target is not None:
        return Position(last, None if added is None else target.added, position.since)
    if stream.added is not None and (stream.first is None or stream.first > position.entry):
        added = stream.added - stream.length  # of all that is there nothing was read: also after a gap
    return Position(last, None if added is None else added + found, position.since)


def stream_of(raw: Any) -> Stream:
    """What XINFO STREAM answers, as it comes."""
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)  # by the protocol's version
    told = {name.decode(): value for name, value in pairs}
    first, last = (told[f"{which}-entry"] for which in ("first", "last"))
    deleted = told.get("max-deleted-entry-id")
    return Stream(
        None if not first else parsed(first[0]),
        None if not last else parsed(last[0]),
        parsed(told["last-generated-id"]),
        told["length"],
        told.get("entries-added"),
        None if deleted is None else parsed(deleted),
    )


def agreed_partitions(client: Any, stream: str) -> int | None:
    """The number of partitions that producers and groups have settled on; None: they have not."""
    told = client.hget(settings_key(stream), "partitions")
    return None if told is None else int(told)


class PartitionLog:
    """One partition on the server.

    Args:
        client: The connections.
        key: The key of its stream.
    """

    def __init__(self, client: library.Redis, key: str) -> None:
        self._client: Any = client
        self.key = key
        client.set_response_callback("XRANGE", lambda reply, **_: reply)
        client.set_response_callback("XINFO STREAM", lambda reply, **_: reply)

    def look(self, position: Position) -> tuple[Stream | None, bool]:
        """The stream, and whether the position's entry was there before that."""
        at = written(position.entry)
        # In this order: if the first entry, asked for later, is not behind the position, nothing was trimmed there meanwhile.
        there = bool(self._client.execute_command("XRANGE", self.key, at, at))
        return self.stream(), there

    def stream(self) -> Stream | None:
        """What the server says; None: there is no such stream."""
        try:
            raw: Any = self._client.execute_command("XINFO STREAM", self.key)
        except library.ResponseError as error:
            if "no such key" in str(error):
                return None
            raise
        return stream_of(raw)

    def count(self, position: Position, target: Target, most: int) -> tuple[int, Id]:
        """The number of entries behind a position, up to `most` and up to the target, and the id of the last one."""
        found, at = 0, position.entry
        while found < most:
            step = min(_COUNTED, most - found)
            n, last = self._client.eval(_COUNT, 1, self.key, written(at), written(target.entry), str(step))
            found, at = found + n, parsed(last)
            if n < step:
                break
        return found, at

    def entries(self, start: Id, until: Id, page: int | None = None) -> Iterator[tuple[list[bytes], list[list[bytes]]]]:
        """Ids and fields of the entries behind `start` up to `until`, page by page. `page`: entries of the first one."""
        page, begin_at = page or _PAGE_ENTRIES // 10, f"({written(start)}"
        while True:
            found: Any = self._client.execute_command("XRANGE", self.key, begin_at, written(until), "COUNT", page)
            if found:
                ids, fields = map(list, zip(*found, strict=True))
                begin_at = f"({ids[-1].decode()}"
                size = sum(map(len, fields[0])) * len(found) or 1
            full = len(found) == page
            if found:
                page = max(1, min(_PAGE_ENTRIES, page * _PAGE_BYTES // size))
                yield ids, fields
            if not full:
                return


__all__ = [
    "Gap",
    "PartitionLog",
    "Position",
    "Stream",
    "Target",
    "agreed_partitions",
    "begin",
    "counted",
    "end",
    "end_of",
    "gap",
]
