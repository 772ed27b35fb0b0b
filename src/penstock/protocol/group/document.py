"""The membership document of a group: who is in it, and which partitions each member should work on. A frozen value.

Redis holds one document per stream and group, as JSON. Each edit replaces it whole, by compare and set: the edit names the epoch
of the document it was made from, and has a higher one itself.

D1  The epoch rises with each edit, also above every epoch that the editor has seen and the server has lost.
D2  An incarnation that has left the document never comes back: who is taken out joins again under a new one.
D3  The shares are within one, and every partition has a member, as soon as there is a member that is not leaving.
D4  A document from before a loss of data is restored with another generation, by which every member learns of the loss.

Read next: `penstock.protocol.group.assignment`, then `penstock.protocol.group.member`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.protocol.group.assignment import assign

PROTOCOL: Final = 1
"""Version of the protocol; members of another version are refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A member in the document.

    Attributes:
        incarnation: The process behind it: unique, and new at each start.
        joined: The epoch in which this incarnation came in.
        partitions: What it should work on, ascending.
        leaving: It is finishing its work and gets no partitions.
        version: Of the protocol it speaks.
        lease_ms: Who has not beaten for so long is taken out: a member's own, as members may be started with others. 0: that of whoever asks.
    """

    incarnation: str
    joined: int
    partitions: tuple[int, ...] = ()
    leaving: bool = False
    version: int = PROTOCOL
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """The membership document.

    Attributes:
        epoch: Number of this edit.
        partitions: How many partitions the stream has.
        members: By member id.
        editor: The incarnation that made this edit. Two documents of one epoch by different editors: the server has lost one.
        generation: Another one in each document that was made from nothing, or from memory after the server had lost data. In front of
            a slash stands the incarnation that made the first of them from nothing.
        version: Of the protocol.
    """

    epoch: int
    partitions: int
    members: Mapping[str, Entry] = field(default_factory=dict)
    editor: str = ""
    generation: str = ""
    version: int = PROTOCOL

    @property
    def target(self) -> dict[int, str]:
        """The member of each partition."""
        return {p: name for name, entry in self.members.items() for p in entry.partitions}

    @property
    def root(self) -> str:
        """Who made this history of documents from nothing."""
        return self.generation.partition("/")[0]

    def has(self, incarnation: str) -> bool:
        """Whether an incarnation is in the group."""
        return any(e.incarnation == incarnation for e in self.members.values())

    def edited(self, epoch: int, editor: str, members: Mapping[str, Entry], generation: str) -> Document:
        """The document with other members, and the partitions shared among them; as few move as possible.

        Args:
            epoch: Its number; higher than this one's.
            editor: The incarnation that edits.
            members: By member id; what they have of partitions is what they had until now.
            generation: Another one if data was lost.
        """
        shares = assign(self.partitions, {n: e.partitions for n, e in members.items() if not e.leaving})
        shared = {n: replace(e, partitions=shares.get(n, ())) for n, e in sorted(members.items())}
        return replace(self, epoch=epoch, members=shared, editor=editor, generation=generation)

    def to_json(self) -> str:
        """As text; the same for equal documents."""
        members = {
            name: {
                "incarnation": e.incarnation,
                "joined": e.joined,
                "partitions": list(e.partitions),
                "leaving": e.leaving,
                "version": e.version,
                "lease_ms": e.lease_ms,
            }
            for name, e in self.members.items()
        }
        plain = {
            "version": self.version,
            "epoch": self.epoch,
            "editor": self.editor,
            "generation": self.generation,
            "partitions": self.partitions,
            "members": members,
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Document:
        """Read what `to_json` wrote. Fields that this version does not know are left out.

        Raises:
            ValueError: It is no membership document; the message says what is wrong.
        """
        try:
            raw = json.loads(text)
            document = cls(
                _whole(raw["epoch"]),
                _whole(raw["partitions"]),
                editor=str(raw["editor"]),
                generation=str(raw["generation"]),
                version=_whole(raw["version"]),
            )
            if document.version != PROTOCOL:
                return document  # of its members this version knows nothing; who reads it refuses it by its version
            members = {str(name): _entry(each) for name, each in sorted(raw["members"].items())}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"It is no membership document ({type(error).__name__}: {error}).") from error
        placed = [p for e in members.values() for p in e.partitions]
        if len(set(placed)) != len(placed) or not all(0 <= p < document.partitions for p in placed):
            raise ValueError("It is no membership document: a partition has two members, or there is no such partition.")
        return replace(document, members=members)


def _entry(raw: Mapping[str, Any]) -> Entry:
    partitions = tuple(_whole(p) for p in raw["partitions"])
    return Entry(
        str(raw["incarnation"]),
        _whole(raw["joined"]),
        partitions,
        bool(raw["leaving"]),
        _whole(raw["version"]),
        _whole(raw.get("lease_ms", 0)),
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value


def without(members: Mapping[str, Entry], incarnations: Iterable[str]) -> dict[str, Entry]:
    """Members but those of some incarnations."""
    gone = set(incarnations)
    return {n: e for n, e in members.items() if e.incarnation not in gone}


__all__ = ["PROTOCOL", "Document", "Entry", "without"]
