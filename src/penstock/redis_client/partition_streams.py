"""The Redis streams of a stream's partitions, for producers and consumers: append entries, and read those of many partitions with one command."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import xxhash

from penstock.errors import DeclarationError, GroupError
from penstock.redis_client import keys, library
from penstock.redis_client.connection import connect, shown, why
from penstock.redis_client.group_server import entries_by_stream
from penstock.redis_client.stream_log import Stream, stream_of

TOGETHER: Final = 1_000
"""So many entries are sent before their answers are read."""
_WAKES: Final = 200
_SHORT_WAIT_MS: Final = 20

Row = tuple[int, list[bytes]]
"""A partition and the fields of an entry: name, value, name, value…"""
Found = list[tuple[bytes, dict[bytes, bytes]]]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, as `penstock.redis_client.group_server.HASH` says.

    Example:
        >>> partition_of(b"user-1", 8)
        0
    """
    return int(xxhash.xxh64_intdigest(key) % partitions)


def as_bytes(value: Any, what: str) -> bytes | None:
    """A plain Python value as the text of a field, in the form that `penstock.redis_client.values` reads; None for None.

    Raises:
        DeclarationError: It has no such form.
    """
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case bytes():
            return value
        case bool():
            return b"true" if value else b"false"
        case int() | float() | Decimal():
            return str(value).encode()
        case dt.datetime() | dt.date():
            return value.isoformat().encode()
        case list() | dict() | tuple():
            return json.dumps(value, ensure_ascii=False).encode()
    raise DeclarationError(f"{what} is a {type(value).__name__}, which has no text form here; give text, bytes or a number.")


class PartitionStreams:
    """A connection to append entries, and one to read and wait.

    Args:
        url: The server's address.
        stream: The stream.
        wait_s: For how long a read waits for entries at most.

    Attributes:
        wakes: How often `wake` was called.
    """

    def __init__(self, url: str, stream: str, *, wait_s: float = 2.0) -> None:
        self._url, self._stream, self._wait_s = url, stream, wait_s
        self._client: Any = connect(url, tries=1)
        self._readers: Any = connect(url, timeout_s=wait_s + 5.0, tries=1)
        self._reader: Any = None
        self._reader_id: int | None = None
        self._readers.set_response_callback("XINFO STREAM", lambda reply, **_: reply)
        self._waiting = self._woken = 0
        self._reads = 0
        self.wakes = 0

    def add(self, rows: Sequence[Row]) -> list[str]:
        """Append entries; many are sent together.

        Returns:
            Their ids.

        Raises:
            GroupError: The server did not take them all; some of the last thousand may have been stored.
        """
        ids: list[str] = []
        rest: Iterator[Row] = iter(rows)
        while part := list(islice(rest, TOGETHER)):
            pipe = self._client.pipeline(transaction=False)
            for partition, words in part:
                pipe.execute_command(
                    "XADD", keys.partition_key(self._stream, partition), "*", *(words or (keys.NO_VALUES, b""))
                )
            try:
                ids.extend(entry.decode() for entry in pipe.execute())
            except library.RedisError as error:
                raise GroupError(
                    f"Stream {self._stream!r} at {shown(self._url)} did not take {'the entry' if len(rows) == 1 else 'all entries'}: {why(error)}; the "
                    f"first {len(ids):,} of {len(rows):,} are stored, and perhaps more."
                ) from error
        return ids

    def read(self, after: Mapping[int, str], count: int, *, wakes: int, short: bool = False) -> dict[int, Found]:
        """Entries of partitions behind an id each, at most `count` of each; waits until there are some. For one thread only.

        Args:
            after: By partition, the id.
            count: At most so many entries of each partition.
            wakes: `wakes` when `after` was made, so that no call of `wake` since then is missed.
            short: Whether to wait only a moment.

        Raises:
            Unanswered: The server did not answer.
        """
        names = {keys.partition_key(self._stream, p).encode(): p for p in after}
        try:
            if self._reader is None:
                self._reader = self._readers.client()  # one connection, whose id is known
            if self._reader_id is None:
                self._reader_id = int(self._reader.client_id())
            self._reads += 1
            self._waiting = self._reads
            wait_ms = _SHORT_WAIT_MS if short or self.wakes != wakes else int(self._wait_s * 1000)
            answer = self._reader.xread({n: after[p] for n, p in names.items()}, count=count, block=wait_ms)
        except library.RedisError:
            self._reader_id = None
            raise
        finally:
            self._waiting = 0
        return {names[name]: entries for name, entries in entries_by_stream(answer).items()}

    def look(self, partitions: Sequence[int], group: str) -> dict[int, tuple[Stream | None, str]]:
        """By partition, the stream (None: there is none), and the group's note of how many entries it had been given until a position. For the thread
        that reads; without partitions that the user may not ask about.

        Raises:
            Unanswered: The server did not answer.
        """
        pipe = self._readers.pipeline(transaction=False)
        for each in partitions:
            pipe.execute_command("XINFO STREAM", keys.partition_key(self._stream, each))
            pipe.hget(keys.group_partition_key(self._stream, each, group), "added")
        answers = pipe.execute(raise_on_error=False)
        found: dict[int, tuple[Stream | None, str]] = {}
        for each, stream, added in zip(partitions, answers[::2], answers[1::2], strict=True):
            note = added.decode() if isinstance(added, bytes) else ""
            if not isinstance(stream, Exception):
                found[each] = stream_of(stream), note
            elif "no such key" in str(stream):
                found[each] = None, note
        return found

    def wake(self) -> None:
        """End the wait of the read that is under way, in another thread. Where the server does not allow that, it ends by itself."""
        self.wakes += 1
        reading = self._waiting
        if reading == self._woken:  # it is ended already
            return
        self._woken = reading
        try:
            for _ in range(_WAKES):  # it may be about to wait
                if not reading or self._waiting != reading or self._reader_id is None:
                    return
                if self._client.client_unblock(self._reader_id):
                    return
                time.sleep(0.001)
        except library.RedisError:
            return  # the read ends by itself

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
        if self._reader is not None:
            self._reader.close()
        self._readers.close()


__all__ = ["Found", "PartitionStreams", "Row", "as_bytes", "partition_of"]
