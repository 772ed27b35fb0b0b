"""What a server knows of a group, read for people. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import GroupError
from penstock.redis_client import keys, library
from penstock.redis_client.connection import connect, shown, why

_COUNTED: Final = 5_000
_COUNT: Final = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
if #found == 0 then return {0, ARGV[1]} end
return {#found, found[#found][1]}
"""


@dataclass(frozen=True)
class Lock:
    """What the server holds of a partition.

    Attributes:
        member: The owner's id, empty: nobody.
        incarnation: The owner's.
        token: The fencing token.
        position: Id of the last acked entry.
        taken: Epoch of the document by which it was taken; 0: never.
        taken_ms: When it was taken, by the server's clock.
        lag: Entries behind the position.
        foreign: Whether something is there that penstock did not write.
    """

    member: str = ""
    incarnation: str = ""
    token: int = 0
    position: str = "0-0"
    taken: int = 0
    taken_ms: int = 0
    lag: int = 0
    foreign: bool = False


@dataclass(frozen=True)
class View:
    """What the server holds of a group.

    Attributes:
        document: The membership document, JSON; None: there is no such group.
        left_ms: By incarnation, for how long the server takes it to be alive if it stays silent; negative: since when it does not.
        changed_ms: By epoch, when the document got it, as far back as that is kept.
        locks: By partition.
    """

    document: bytes | None
    left_ms: dict[str, int]
    changed_ms: dict[int, int]
    locks: list[Lock]


class GroupView:
    """A connection for looking at groups.

    Args:
        url: The server's address.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = connect(url)

    def streams(self, group: str) -> list[str]:
        """The streams that a group of this name shares.

        Raises:
            GroupError: The server cannot be asked.
        """
        try:
            found = {key.decode() for key in self._client.scan_iter(match="{*}:" + group, count=1000, _type="hash")}
        except library.RedisError as error:
            raise self._failed(error) from error
        names = {key[1 : -len(group) - 2] for key in found}
        return sorted(n for n in names if not (n.rpartition(":")[0] in names and n.rpartition(":")[2].isdigit()))

    def partitions(self, stream: str) -> int | None:
        """How many partitions a stream has; None: nobody has used it."""
        try:
            found = self._client.hget(keys.settings_key(stream), "partitions")
        except library.RedisError as error:
            raise self._failed(error) from error
        return None if found is None else int(found)

    def look(self, stream: str, group: str, partitions: int) -> View:
        """All of a group.

        Raises:
            GroupError: The server cannot be asked.

        Cost: the server looks at each entry that is not acked.
        """
        try:
            document = self._client.hget(keys.members_key(stream, group), "document")
            seconds, micros = self._client.time()
            now_ms = seconds * 1000 + micros // 1000
            alive = self._client.zrange(keys.alive_key(stream, group), 0, -1, withscores=True)
            changes = self._client.xrange(keys.changes_key(stream, group))
            locks = [self._lock(stream, group, number) for number in range(partitions)]
        except library.RedisError as error:
            raise self._failed(error) from error
        changed = {
            int(fields[b"epoch"]): int(entry.split(b"-")[0])
            for entry, fields in changes
            if fields.get(b"kind") == b"changed" and fields.get(b"epoch", b"").isdigit()
        }
        return View(document, {one[0].decode(): int(one[1]) - now_ms for one in alive}, changed, locks)

    def _lock(self, stream: str, group: str, number: int) -> Lock:
        names = ("member", "owner", "token", "position", "taken", "taken_ms")
        try:
            found = self._client.hmget(keys.group_partition_key(stream, number, group), *names)
        except library.ResponseError:
            return Lock(foreign=True, lag=self._lag(stream, number, "0-0"))
        member, owner, token, position, taken, taken_ms = (None if f is None else f.decode() for f in found)
        position = position or "0-0"
        lag = self._lag(stream, number, position)
        return Lock(member or "", owner or "", int(token or 0), position, int(taken or 0), int(taken_ms or 0), lag)

    def _lag(self, stream: str, partition: int, position: str) -> int:
        """How many entries there are behind a position; the server answers others after each few thousand."""
        key, count = keys.partition_key(stream, partition), 0
        if position == "0-0":
            return int(self._client.xlen(key))
        while True:
            found = self._client.eval(_COUNT, 1, key, position, _COUNTED)
            count += found[0]
            if found[0] < _COUNTED:
                return int(count)
            position = found[1].decode()

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def _failed(self, error: library.RedisError) -> GroupError:
        return GroupError(f"The server at {shown(self._url)} cannot be asked: {why(error)}.")


__all__ = ["GroupView", "Lock", "View"]
