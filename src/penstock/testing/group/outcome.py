"""What a simulated group shows: entries handled, acks, starts of work, renewals, in the order in which they happened.

It is all that the checkers see. Numbers of entries count from 1 within their partition; 0 is the position before the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.testing.group.schedule import Schedule


class Taken(NamedTuple):
    """A process starts to work on a partition, after the entry `position`."""

    at: float
    process: str
    partition: int
    token: int
    position: int


class Handled(NamedTuple):
    """A process has handled an entry."""

    at: float
    process: str
    partition: int
    token: int
    entry: int
    begun: float


class Ack(NamedTuple):
    """The server has accepted or refused an ack."""

    at: float
    process: str
    partition: int
    token: int
    entry: int
    accepted: bool


class AckKnown(NamedTuple):
    """A process has learnt that its ack was accepted."""

    at: float
    process: str
    partition: int
    entry: int


class Renewed(NamedTuple):
    """A process has learnt that a heartbeat was accepted that it had sent at `at`."""

    at: float
    process: str


class DataLost(NamedTuple):
    """The server lost what it was told after `since`."""

    at: float
    since: float


class Gone(NamedTuple):
    """A process was killed, or has left."""

    at: float
    process: str


Record = Taken | Handled | Ack | AckKnown | Renewed | DataLost | Gone


@dataclass(slots=True)
class Outcome:
    """One run.

    Attributes:
        schedule: What happened to it.
        log: What it did.
        healed: When the last disturbance was over.
        settled: When it had settled after that; None: it had not within the bound.
        shares: By process that is alive in the end, the partitions that it works on.
        entries: By partition, how many entries there are in the end.
        refused: Processes that exited with a refusal, and the sentence.
        before: The shares just before the change, if the run is a calm one.
        names: By process, its member id.
        leases_s: By process, its lease.
        paused: Processes that were paused.
        leaving: By process that was told to leave, when its grace was to end.
        ended: When the run ended.
        strict: Whether also a process that was paused begins nothing after its lease.
        seen: Kinds of things that happened, to see what a search has met.
    """

    schedule: Schedule
    log: list[Record] = field(default_factory=list)
    healed: float = 0.0
    settled: float | None = None
    shares: dict[str, tuple[int, ...]] = field(default_factory=dict)
    entries: list[int] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    before: dict[str, tuple[int, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    leases_s: dict[str, float] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    leaving: dict[str, float] = field(default_factory=dict)
    ended: float = 0.0
    strict: bool = False
    seen: set[str] = field(default_factory=set)


__all__ = ["Ack", "AckKnown", "DataLost", "Gone", "Handled", "Outcome", "Record", "Renewed", "Taken"]
