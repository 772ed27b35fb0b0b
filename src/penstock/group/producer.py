"""A producer: writes entries into the partitions of a stream, a key's entries into one partition, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from penstock.errors import DeclarationError
from penstock.group.settings import checked_name, checked_partitions
from penstock.protocol.group.document import PROTOCOL
from penstock.redis_client.group_server import GroupServer
from penstock.redis_client.partition_streams import PartitionStreams, Row, as_bytes, partition_of


class Producer:
    """Writes a stream over Redis or Valkey.

    Nothing is sent twice by itself: if the server does not answer, the error says so, and it is yours to send again.

    Args:
        url: Address of the server.
        stream: The stream's name.
        partitions: How many partitions it has; the first who uses a stream decides, and another number is refused.
        key: The field whose value chooses the partition, by XXH64 of its bytes; all entries of a key are in one partition, in the order in which
            one producer sent them. None: the partitions in turn.

    Raises:
        DeclarationError: An argument is not of its kind.
        GroupError: The server cannot be used, or the stream has another number of partitions.

    Example:
        >>> with ps.Producer("redis://localhost:6379", "orders", 4, key="customer") as producer:
        ...     partition, entry = producer.send(customer="ann", amount=12.5)
        ...     more = producer.send_many([{"customer": "ann", "amount": 1.0}, {"customer": "bob", "amount": 2.0}])
        >>> more[0][0] == partition, len(more)
        (True, 2)
        >>> producer.close()  # the end of the `with` did so already
    """

    def __init__(self, url: str, stream: str, partitions: int, *, key: str | None = None) -> None:
        checked_name("A stream's name", stream)
        self._partitions, self._key, self._turn = checked_partitions(stream, partitions), key, 0
        server = GroupServer(url, stream, "", timeout_s=5.0)
        server.check(partitions, PROTOCOL)
        server.close()
        self._streams = PartitionStreams(url, stream)

    def send(self, /, **fields: Any) -> tuple[int, str]:
        """Write an entry.

        Args:
            fields: Text, bytes, numbers, booleans, times, or lists and dicts, which become JSON. A field that is None is left out.

        Returns:
            Its partition and its id.

        Raises:
            DeclarationError: The key is missing, or a value has no text form. Nothing was sent.
            GroupError: The server did not take it, or did not answer; then it may have been stored.
        """
        return self.send_many([fields])[0]

    def send_many(self, rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, str]]:
        """Write many entries, without waiting for the answer to each; see `send`.

        Returns:
            The partition and the id of each.
        """
        words = [self._row(fields) for fields in rows]
        return [(partition, entry) for (partition, _), entry in zip(words, self._streams.add(words), strict=True)]

    def _row(self, fields: Mapping[str, Any]) -> Row:
        words: list[bytes] = []
        chosen: bytes | None = None
        for name, value in fields.items():
            text = as_bytes(value, f"Field {name!r}")
            if text is not None:
                words += (name.encode(), text)
                if name == self._key:
                    chosen = text
        if self._key is None:
            self._turn = (self._turn + 1) % self._partitions
            return (self._turn - 1) % self._partitions, words
        if chosen is None:
            raise DeclarationError(
                f"The entry {dict(fields)!r} has no field {self._key!r}, which is the producer's key; nothing was sent."
            )
        return partition_of(chosen, self._partitions), words

    def close(self) -> None:
        """Let go of the connection."""
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Producer"]
