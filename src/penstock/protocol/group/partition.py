"""What a member is doing about one partition: the states, and the table of transitions that the machine runs by.

P1  A lock is asked for only while the document says that the partition is mine, and my lease holds.
P2  Work starts with a grant, and only after earlier work on the partition has ended here.
P3  A partition that stays mine is not touched: no command is sent for it.
P4  A partition that is no longer mine is released when its work has ended and its last ack is in; after the grace, without.
P5  What is fenced, or outlived the lease, is abandoned at once. Its lock is asked for again if it is still mine.
P6  A grant that comes when the partition is not wanted any more is given back.
P7  When the server may have lost data, work goes on, and its lock is confirmed by an ack of what was acked last.
P8  If another waits for a lock that is said to be mine while I do nothing about the partition, an answer was lost: I ask for it, and
    give it back.

`TRANSITIONS` is the whole machine as data; `docs/internals/groups.md` draws it, and tests walk it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock.protocol.group.store import START


class State(StrEnum):
    """What a member is doing about a partition."""

    ELSEWHERE = "elsewhere"
    WAITING = "waiting"
    ACQUIRING = "acquiring"
    OWNED = "owned"
    STOPPING = "stopping"
    ENDING = "ending"


TRANSITIONS: Final[tuple[tuple[State, str, State, str], ...]] = (
    (State.ELSEWHERE, "assigned", State.WAITING, "P1"),
    (State.ELSEWHERE, "wanted by another", State.ACQUIRING, "P8"),
    (State.WAITING, "withdrawn", State.ELSEWHERE, "P1"),
    (State.WAITING, "asked", State.ACQUIRING, "P1"),
    (State.ACQUIRING, "granted", State.OWNED, "P2"),
    (State.ACQUIRING, "not granted", State.WAITING, "P1"),
    (State.ACQUIRING, "granted too late", State.WAITING, "P5"),
    (State.ACQUIRING, "granted, withdrawn", State.ELSEWHERE, "P6"),
    (State.ACQUIRING, "not granted, withdrawn", State.ELSEWHERE, "P6"),
    (State.OWNED, "withdrawn", State.STOPPING, "P4"),
    (State.OWNED, "server changed", State.OWNED, "P7"),
    (State.OWNED, "fenced", State.ENDING, "P5"),
    (State.OWNED, "lease over", State.ENDING, "P5"),
    (State.OWNED, "stopped", State.ELSEWHERE, "P4"),
    (State.STOPPING, "stopped", State.ELSEWHERE, "P4"),
    (State.STOPPING, "grace over", State.ENDING, "P4"),
    (State.STOPPING, "server changed", State.STOPPING, "P7"),
    (State.STOPPING, "fenced", State.ENDING, "P5"),
    (State.STOPPING, "lease over", State.ENDING, "P5"),
    (State.ENDING, "stopped", State.ELSEWHERE, "P2"),
)
"""(state, what happened, state after it, rule)"""

AFTER: Final = MappingProxyType({(before, what): after for before, what, after, _ in TRANSITIONS})

WORKING: Final = frozenset({State.OWNED, State.STOPPING})
"""States in which acks are allowed."""


@dataclass(slots=True)
class Partition:
    """What a member knows of one partition.

    Attributes:
        number: Its number.
        state: What is being done about it.
        token: The highest token that this member had; 0: none.
        position: The highest position that it has acked, or was granted.
        unconfirmed: Whether the server may have lost the lock, and was not asked with success since.
        held: Whether a lock may be held that has not been given back.
        incarnation: Under which the lock was asked for last.
        instead_of: Whose lock the next attempt may take over.
        tries: Attempts without a grant since it was assigned.
        due: When to try again, or (stopping) when the grace is over.
        since: When it began to wait.
        wanted_after_s: How long it waits before it announces that it does.
    """

    number: int
    state: State = State.ELSEWHERE
    token: int = 0
    position: str = START
    unconfirmed: bool = False
    held: bool = False
    incarnation: str = ""
    instead_of: str = ""
    tries: int = 0
    due: float = 0.0
    since: float = 0.0
    wanted_after_s: float = 0.0

    def go(self, what: str) -> None:
        """Take the transition of the table for what has happened."""
        self.state = AFTER[self.state, what]


__all__ = ["AFTER", "TRANSITIONS", "WORKING", "Partition", "State"]
