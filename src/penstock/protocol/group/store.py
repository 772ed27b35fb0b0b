"""What a group asks of its store: six atomic steps, what they answer, and the messages of the control stream.

The Lua scripts over Redis and the simulator's model both follow this contract. The server's clock is the only clock that is compared
between processes, and only inside `beat` and `edit`.

S1  The members of the document and the deadlines of their incarnations are the same set, at every time.
S2  A lock has no expiry. It belongs to an incarnation, and is taken over only by who has seen a document without that incarnation
    (`instead_of`), in an epoch that is not older than that in which it was taken.
S3  The token of a partition rises with each grant, above what the acquirer remembers, and is never below the epoch.
S4  A position never goes down, whoever reports it: members report only what was acked.
S5  If a member that does not own a partition remembers a higher token or position than the store, the store has lost data. The token
    rises above both, so that the owner is fenced and goes on from the position that was lost. Who reports it announces `Raised`, for an
    owner that has nothing to ack.
S6  If nobody has beaten for a lease of who beats, or the clock has gone back, the server was away or is another one: every deadline starts
    anew, each by its own member's lease.
S7  Only itself takes a member out before its deadline has passed. A later process with its id may replace it at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.protocol.group.document import Document

START: Final = "0-0"
"""The position before the first entry."""


def order(position: str) -> tuple[int, int]:
    """An entry id as two numbers that compare as the ids do.

    Example:
        >>> order("1700000000000-2") < order("1700000000000-10")
        True
    """
    ms, _, sequence = position.partition("-")
    return int(ms), int(sequence or 0)


def later(one: str, other: str) -> str:
    """The later of two positions."""
    return one if order(one) >= order(other) else other


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat.

    Attributes:
        epoch: Of the document; 0: there is none.
        editor: Of the document (`Document.editor`); empty: there is none.
        known: Whether the incarnation is in the group. If not, its deadline was not set.
        dead: Incarnations in the group whose deadline has passed.
        next_s: Seconds until the next deadline of another incarnation passes, if it stays silent; None: there is no other.
        server: Another text after each start of the server, and at each server; empty: unknown. What another server says may be older.
    """

    epoch: int
    editor: str
    known: bool
    dead: tuple[str, ...] = ()
    next_s: float | None = None
    server: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock of a partition was given to the caller, or was its own already.

    Attributes:
        partition: Its number.
        token: The fencing token that acks must carry.
        position: Id of the last entry that was acked.
    """

    partition: int
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class Busy:
    """Another incarnation has the lock; nothing was changed.

    Attributes:
        partition: Its number.
        member: Id of the owner.
        incarnation: Of the owner.
        token: The owner's.
    """

    partition: int
    member: str
    incarnation: str
    token: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The partition was taken in a later epoch than the caller's; nothing was changed."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Changed:
    """On the control stream: the document has this epoch now."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """On the control stream: somebody waits for a partition whose lock this incarnation has, perhaps without knowing it."""

    partition: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The token of a partition has risen while this incarnation has its lock: it works from a position that was lost (S5). An answer to
    `Store.release`, and then on the control stream.
    """

    partition: int
    incarnation: str


Message = Changed | Wanted | Raised


def to_fields(message: Message) -> dict[str, str]:
    """A message as the fields of an entry of the control stream."""
    match message:
        case Changed(epoch):
            return {"kind": "changed", "epoch": str(epoch)}
        case Wanted(partition, incarnation):
            return {"kind": "wanted", "partition": str(partition), "incarnation": incarnation}
        case Raised(partition, incarnation):
            return {"kind": "raised", "partition": str(partition), "incarnation": incarnation}


def from_fields(fields: Mapping[str, str]) -> Message | None:
    """The message of an entry of the control stream; None if it is none that this version knows."""
    try:
        match fields.get("kind"):
            case "changed":
                return Changed(int(fields["epoch"]))
            case "wanted":
                return Wanted(int(fields["partition"]), fields["incarnation"])
            case "raised":
                return Raised(int(fields["partition"]), fields["incarnation"])
    except (KeyError, ValueError):
        return None
    return None


class Store(Protocol):
    """The steps. Each is atomic; each may be carried out although its answer is lost."""

    def read(self) -> Document | None:
        """The document, if there is one."""

    def edit(self, expected: int, document: Document, lease_ms: int) -> bool:
        """Replace the document if its epoch is the expected one (0: there is none), and announce `Changed`.

        Deadlines of incarnations that left are dropped; those of new ones are set to their own lease from now, or to `lease_ms` where the
        document has none (S1). It is not done if it would
        take out a member, other than the editor, whose deadline has not passed (S7).
        """

    def beat(self, incarnation: str, lease_ms: int) -> Beat:
        """Set the deadline of an incarnation that is in the group; say who has missed theirs (S6)."""

    def acquire(
        self, partition: int, member: str, incarnation: str, epoch: int, instead_of: str, token: int, position: str
    ) -> Granted | Busy | Stale:
        """Take a partition's lock if it is free, the caller's own, or that of the incarnation `instead_of` (empty: of none).

        Args:
            partition: Its number.
            member: Id of the caller, which is stored for people.
            incarnation: Of the caller.
            epoch: Of the document by which the caller acts. Stale if the partition was taken in a later one (S2).
            instead_of: An incarnation that is not in that document.
            token: The highest that the caller remembers of this partition; 0: none. The new one is higher (S3).
            position: The highest that the caller remembers; the partition's does not stay below it (S4).
        """

    def release(self, partition: int, incarnation: str, token: int, position: str) -> Raised | None:
        """Give the lock back if it is the caller's and has this token; in any case keep what the caller remembers.

        The position becomes the later of both (S4). If another owns the partition, and `token` or `position` is higher than the
        store's, the stored token becomes one more than the higher token, and the answer names that owner (S5); if nobody owns it, the higher
        token is kept.
        """

    def ack(self, partition: int, incarnation: str, token: int, position: str) -> bool:
        """Commit a position if the lock is the caller's and has this token; otherwise change nothing (fenced)."""

    def announce(self, message: Message) -> None:
        """Append a message to the control stream."""


__all__ = [
    "START",
    "Beat",
    "Busy",
    "Changed",
    "Granted",
    "Message",
    "Raised",
    "Stale",
    "Store",
    "Wanted",
    "from_fields",
    "later",
    "order",
    "to_fields",
]
