"""The store of a group over Redis or Valkey: the contract of `penstock.protocol.group.store`, one script for each step."""

from __future__ import annotations

from typing import Any

from penstock.errors import GroupError
from penstock.protocol.group.document import Document
from penstock.protocol.group.store import Beat, Busy, Granted, Message, Raised, Stale, from_fields, to_fields
from penstock.redis_client.group_server import GroupServer, Step


class RedisStore:
    """A `penstock.protocol.group.store.Store`.

    Each step may raise `penstock.redis_client.group_server.Unanswered`: it may have been carried out, or not. A `GroupError` says that a key
    holds something foreign; then it was not.
    """

    def __init__(self, server: GroupServer) -> None:
        self.server = server

    def read(self) -> Document | None:
        """The document, if there is one.

        Raises:
            GroupError: It cannot be read.
        """
        text = self.server.document()
        try:
            return None if text is None else Document.from_json(text)
        except ValueError as error:
            raise GroupError(f"The membership document of the group cannot be used: {error}") from error

    def edit(self, expected: int, document: Document, lease_ms: int) -> bool:
        """Replace the document if its epoch is the expected one."""
        leases_ms = {entry.incarnation: entry.lease_ms or lease_ms for entry in document.members.values()}
        step = self.server.edit(expected, document.epoch, document.editor, document.to_json(), leases_ms)
        return bool(self.server.one(step))

    def beat(self, incarnation: str, lease_ms: int) -> Beat:
        """Set the deadline of an incarnation."""
        epoch, editor, known, next_ms, server, *dead = self.server.one(self.server.beat(incarnation, lease_ms))
        return Beat(
            epoch,
            editor.decode(),
            bool(known),
            tuple(d.decode() for d in dead),
            None if next_ms < 0 else next_ms / 1000,
            server.decode(),
        )

    def acquire(
        self, partition: int, member: str, incarnation: str, epoch: int, instead_of: str, token: int, position: str
    ) -> Granted | Busy | Stale:
        """Take a partition's lock."""
        step = self.server.acquire(partition, member, incarnation, epoch, instead_of, token, position)
        return acquired(partition, self.server.one(step))

    def release(self, partition: int, incarnation: str, token: int, position: str) -> Raised | None:
        """Give the lock back."""
        return released(partition, self.server.one(self.server.release(partition, incarnation, token, position)))

    def ack(self, partition: int, incarnation: str, token: int, position: str) -> bool:
        """Commit a position."""
        return bool(self.server.one(self.server.ack(partition, incarnation, token, position)))

    def announce(self, message: Message) -> None:
        """Append a message to the control stream."""
        self.server.announce(to_fields(message))

    def changes(self, after: str, block_ms: int) -> list[tuple[str, Message | None]]:
        """Messages behind an id, and their ids; waits so long if there are none."""
        return [(entry, from_fields(fields)) for entry, fields in self.server.changes(after, block_ms)]


def acquired(partition: int, answer: list[Any]) -> Granted | Busy | Stale:
    """The answer of the script as a value."""
    match answer:
        case [b"granted", int(token), bytes(position)]:
            return Granted(partition, token, position.decode())
        case [b"busy", bytes(member), bytes(incarnation), int(token)]:
            return Busy(partition, member.decode(), incarnation.decode(), token)
        case [b"stale", int(epoch)]:
            return Stale(partition, epoch)
    raise AssertionError(answer)


def released(partition: int, answer: bytes | None) -> Raised | None:
    """The answer of the script as a value."""
    return None if answer is None else Raised(partition, answer.decode())


__all__ = ["RedisStore", "Step", "acquired", "released"]
