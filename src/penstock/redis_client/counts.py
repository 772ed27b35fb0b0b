"""Counts of entries per key that come out right although entries come again: of each key the set of its entries' ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.redis_client.connection import connect


class Counts:
    """Counts at a server.

    Args:
        url: The server's address.
        name: A name for them.
    """

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = connect(url)
        self._name = name

    def add(self, entries: Sequence[tuple[str, str]]) -> None:
        """Count entries, each given as key and id; one that was counted before changes nothing."""
        pipe = self._client.pipeline(transaction=False)
        for key, entry in entries:
            pipe.sadd(f"{{{self._name}:count}}:{key}", entry)
        pipe.execute()

    def of(self, key: str) -> int:
        """How many entries a key has had."""
        return int(self._client.scard(f"{{{self._name}:count}}:{key}"))


__all__ = ["Counts"]
