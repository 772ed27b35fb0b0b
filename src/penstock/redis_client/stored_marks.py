"""An output's mark beside the entries it closes: both are stored by one script, or neither.

The caller decides on the mark that it has read; the script stores only if that is still the mark. It checks all that could fail before it changes
anything, since a script that fails half-way is not taken back.

Read next: `penstock.sinks.redis_stream`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.redis_client import library

_STORE: Final = """
local held = redis.call('GET', KEYS[1]) or ''
if held ~= ARGV[1] then return {'changed', held} end
for i = 2, #KEYS do
    local kind = redis.call('TYPE', KEYS[i]).ok
    if kind == 'stream' then
        local told = redis.call('XINFO', 'STREAM', KEYS[i])
        for j = 1, #told, 2 do
            if told[j] == 'last-generated-id' and string.find(told[j + 1], '-') > 16 then
                return {'refused', KEYS[i] .. ' has an entry with the id ' .. told[j + 1] .. ', behind which there is no room'}
            end
        end
    elseif kind ~= 'none' then
        return {'refused', KEYS[i] .. ' is a ' .. kind .. ', not a stream'}
    end
    if redis.acl_check_cmd and not redis.acl_check_cmd('XADD', KEYS[i], '*', 'a', 'a') then
        return {'refused', 'this user may not add to ' .. KEYS[i]}
    end
end
if redis.acl_check_cmd and not redis.acl_check_cmd('SET', KEYS[1], ARGV[2]) then
    return {'refused', 'this user may not set ' .. KEYS[1]}
end
for b = 3, #ARGV do
    local entries = cmsgpack.unpack(ARGV[b])
    local at, last = 1, #entries
    while at < last do
        local upto = at + 1 + entries[at + 1]
        redis.call('XADD', KEYS[entries[at] + 1], '*', unpack(entries, at + 2, upto))
        at = upto + 1
    end
end
redis.call('SET', KEYS[1], ARGV[2])
return {'stored', ARGV[2]}
"""
MOST_COLUMNS: Final = 2_000
"""Lua hands over some 8,000 texts at most."""


class StoredMark:
    """The mark of an output, and the streams that it closes.

    Args:
        client: The connections.
        key: The mark's key.
        streams: Keys of the streams, by partition.
    """

    def __init__(self, client: library.Redis, key: str, streams: Sequence[str]) -> None:
        self._client: Any = client
        self._keys = [key, *streams]

    def read(self) -> bytes:
        """The mark as it is stored; empty: there is none."""
        found: bytes | None = self._client.get(self._keys[0])
        return found or b""

    def store(self, held: bytes, mark: bytes, blocks: Sequence[bytes]) -> tuple[str, str]:
        """Add entries and replace the mark, if it still is `held`.

        Args:
            held: The mark, as it was read.
            mark: The mark afterwards.
            blocks: The entries, as `penstock.redis_client.packing` packs them.

        Returns:
            ``"stored"``, ``"changed"`` or ``"refused"``, and with the last one why. Nothing was changed but by the first.
        """
        said, told = self._client.eval(_STORE, len(self._keys), *self._keys, held, mark, *blocks)
        return said.decode(), told.decode(errors="backslashreplace")

    def in_cluster(self) -> bool:
        """Whether the server is one of a cluster, in which a script has the keys of one slot only."""
        return bool(self._client.info("cluster").get("cluster_enabled"))


__all__ = ["MOST_COLUMNS", "StoredMark"]
