"""What one member wants of the membership document: to be in it, to leave it, to take out the dead, to restore what was lost.

Pure functions of the document that the store has and of what the member remembers. Rules M3 to M6 of `penstock.protocol.group.member`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.protocol.group.document import PROTOCOL, Document, Entry, without
from penstock.types import Refusal


class Wish(StrEnum):
    """What a member wants to be."""

    IN = "in"
    LEAVING = "leaving"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a member brings to an edit.

    Attributes:
        name: Its id.
        incarnation: Its present one.
        partitions: How many it was started with.
        lease_ms: Its lease.
        document: The last one that counted for it.
        seen: The highest epoch that the store has shown it.
    """

    name: str
    incarnation: str
    partitions: int
    lease_ms: int
    document: Document | None
    seen: int

    def is_lost(self, stored: Document | None) -> bool:
        """Whether the store has lost a document that this member has seen (rule M5)."""
        if stored is None:
            return self.seen > 0
        mine = self.document
        other = mine is not None and stored.epoch == mine.epoch and stored.editor != mine.editor
        return stored.epoch < self.seen or other

    def proposed(self, stored: Document | None, wish: Wish, dead: AbstractSet[str]) -> Document | None:
        """The document as this member would have it; None: as it is.

        Args:
            stored: What the store has.
            wish: What the member wants to be.
            dead: Incarnations that have missed their deadline.
        """
        lost = self.is_lost(stored)
        base = stored or Document(0, self.partitions)
        epoch = max(self.seen, base.epoch) + 1
        members, generation = dict(base.members), base.generation
        root = (self.document.root if lost and self.document else base.root) or self.incarnation
        if lost or not generation:
            generation = f"{root}/{self.incarnation}@{epoch}"
        if lost and self.document is not None:
            members = _restored(self.document, stored, epoch)
        mine = members.get(self.name)
        is_in = mine is not None and mine.incarnation == self.incarnation
        if wish is Wish.IN and not is_in:
            members[self.name] = Entry(self.incarnation, epoch, mine.partitions if mine else (), lease_ms=self.lease_ms)
        elif wish is Wish.LEAVING and mine is not None and is_in:
            members[self.name] = replace(mine, leaving=True)
        elif wish is Wish.OUT and is_in:
            del members[self.name]
        members = without(members, dead - {self.incarnation})
        proposed = base.edited(epoch, self.incarnation, members, generation)
        return proposed if lost or proposed.members != base.members else None


def _restored(remembered: Document, stored: Document | None, epoch: int) -> dict[str, Entry]:
    """The members after a loss: those that were remembered with their shares, and those that the store has.

    Of two incarnations of one id the later counts. If the store was begun anew, that is the one in the store: it lives.
    """
    members = dict(remembered.members)
    if stored is None:
        return members
    anew = stored.root != remembered.root
    for name, entry in stored.members.items():
        before = members.get(name)
        if before is None or anew or entry.joined >= before.joined:
            shares = before.partitions if before else ()
            members[name] = replace(entry, joined=epoch if anew else entry.joined, partitions=shares)
    return members


def refusal(stored: Document, partitions: int) -> Refusal | None:
    """Why a process that was started with so many partitions cannot be in a group, if it cannot."""
    if stored.version != PROTOCOL:
        return Refusal(
            f"The group speaks version {stored.version} of the protocol, and this process version {PROTOCOL}; "
            "start all its members with one version of penstock."
        )
    if stored.partitions != partitions:
        return Refusal(
            f"The group shares {stored.partitions} partitions, and this process was started with {partitions}; "
            f"give partitions={stored.partitions}."
        )
    return None


__all__ = ["Remembered", "Wish", "refusal"]
