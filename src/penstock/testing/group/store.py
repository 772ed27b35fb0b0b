"""A model of the store of a group: the same contract as the scripts over Redis (`penstock.protocol.group.store`), over plain dicts.

It can lose what a server can lose: all its data, or the newest part of it. Subclasses break it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.protocol.group.document import Document, Entry
from penstock.protocol.group.store import START, Beat, Busy, Changed, Granted, Message, Raised, Stale, later


@dataclass(slots=True)
class Row:
    """What the store keeps of one partition."""

    owner: str = ""
    member: str = ""
    token: int = 0
    epoch: int = 0
    position: str = START


@dataclass(slots=True)
class Kept:
    """All that a server keeps, at some time."""

    document: Document | None
    deadlines: dict[str, int]
    last_beat_ms: int
    rows: dict[int, Row]


class ModelStore:
    """The store of one group.

    Args:
        clock_ms: The server's clock; it may jump.
        publish: Gets what is appended to the control stream.
    """

    def __init__(self, clock_ms: Callable[[], int], publish: Callable[[Message], None]) -> None:
        self.clock_ms = clock_ms
        self.publish = publish
        self.document: Document | None = None
        self.deadlines: dict[str, int] = {}
        self.last_beat_ms = 0
        self.rows: dict[int, Row] = {}
        self.starts = 0

    def kept(self) -> Kept:
        """A copy of all data."""
        return Kept(self.document, dict(self.deadlines), self.last_beat_ms, {p: replace(r) for p, r in self.rows.items()})

    def put_back(self, kept: Kept | None) -> None:
        """Start anew, with the data of some time; None: with none."""
        self.starts += 1
        kept = kept or Kept(None, {}, 0, {})
        self.document, self.deadlines, self.last_beat_ms = kept.document, dict(kept.deadlines), kept.last_beat_ms
        self.rows = {p: replace(r) for p, r in kept.rows.items()}

    # --------------------------------------------------------------------------------------------------------- the steps

    def read(self) -> Document | None:
        """As `Store.read`."""
        return self.document

    def edit(self, expected: int, document: Document, lease_ms: int) -> bool:
        """As `Store.edit`."""
        if (self.document.epoch if self.document else 0) != expected:
            return False
        now, kept = self.clock_ms(), {e.incarnation for e in document.members.values()}
        for name, entry in self.document.members.items() if self.document else ():
            out = entry.incarnation not in kept and name not in document.members and entry.incarnation != document.editor
            if out and self.deadlines[entry.incarnation] > now:
                return False
        self.document = document
        self.deadlines = {
            e.incarnation: self.deadlines.get(e.incarnation, now + self.lease_of(e, lease_ms))
            for e in document.members.values()
        }
        self.publish(Changed(document.epoch))
        return True

    @staticmethod
    def lease_of(entry: Entry, lease_ms: int) -> int:
        """For how long a member may be silent; its own lease, else that of whoever asks."""
        return entry.lease_ms or lease_ms

    def beat(self, incarnation: str, lease_ms: int) -> Beat:
        """As `Store.beat`."""
        now, document = self.clock_ms(), self.document
        epoch, editor = (document.epoch, document.editor) if document else (0, "")
        if incarnation not in self.deadlines:
            return Beat(epoch, editor, known=False)
        if not 0 <= now - self.last_beat_ms <= lease_ms:
            members = document.members.values() if document else ()
            self.deadlines |= {e.incarnation: now + self.lease_of(e, lease_ms) for e in members}
        self.last_beat_ms = now
        self.deadlines[incarnation] = now + lease_ms
        dead = tuple(i for i, d in self.deadlines.items() if d <= now)
        ahead = [d - now for i, d in self.deadlines.items() if d > now and i != incarnation]
        return Beat(epoch, editor, True, dead, min(ahead) / 1000 if ahead else None, f"s{self.starts}")

    def acquire(
        self, partition: int, member: str, incarnation: str, epoch: int, instead_of: str, token: int, position: str
    ) -> Granted | Busy | Stale:
        """As `Store.acquire`."""
        row = self.rows.get(partition) or self.rows.setdefault(partition, Row())
        if row.epoch > epoch:
            return Stale(partition, row.epoch)
        if row.owner and row.owner not in {incarnation, instead_of}:
            return Busy(partition, row.member, row.owner, row.token)
        row.owner, row.member, row.epoch = incarnation, member, epoch
        row.token = max(row.token + 1, token + 1, epoch)
        row.position = later(row.position, position)
        return Granted(partition, row.token, row.position)

    def release(self, partition: int, incarnation: str, token: int, position: str) -> Raised | None:
        """As `Store.release`."""
        row = self.rows.get(partition) or self.rows.setdefault(partition, Row())
        ahead = token > row.token or later(row.position, position) != row.position
        row.position = later(row.position, position)
        if row.owner == incarnation:
            if row.token == token:
                row.owner = ""
        elif row.owner and ahead:
            row.token = max(row.token, token) + 1
            return Raised(partition, row.owner)
        elif not row.owner:
            row.token = max(row.token, token)
        return None

    def ack(self, partition: int, incarnation: str, token: int, position: str) -> bool:
        """As `Store.ack`."""
        row = self.rows.get(partition)
        if row is None or row.owner != incarnation or row.token != token:
            return False
        row.position = later(row.position, position)
        return True

    def announce(self, message: Message) -> None:
        """As `Store.announce`."""
        self.publish(message)


__all__ = ["Kept", "ModelStore", "Row"]
