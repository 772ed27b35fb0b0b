"""What a member is told (events, past facts) and what it orders (commands). Both are sealed: the machine refuses any other value.

Who drives the machine answers every command but `Announce`, those to work and `Exit`: with the event that its comment names, or with
`Failed(command)` when no answer came. A failed command may have been carried out, and may still be.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.group.document import Document
from penstock.protocol.group.store import Beat, Busy, Granted, Message, Raised, Stale
from penstock.types import Refusal

# --------------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """Read the membership document. Answer: `DocumentRead`."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the document if its epoch is still `expected`. Answer: `Edited`."""

    expected: int
    document: Document
    lease_ms: int


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Renew the lease. Answer: `Beaten`. In a thread of its own, so that nothing makes it wait."""

    incarnation: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take the lock of a partition; arguments as in `Store.acquire`. Answer: `Granted`, `Busy` or `Stale`."""

    partition: int
    member: str
    incarnation: str
    epoch: int
    instead_of: str
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ack again what was acked last: is the lock still mine? Answer: `Fenced` if not, else nothing; `Failed` if nobody knows."""

    partition: int
    incarnation: str
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lock back, and tell the store what this member remembers of the partition. Answer: `Raised`, else nothing."""

    partition: int
    incarnation: str
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Append a message to the control stream. No answer."""

    message: Message


@dataclass(frozen=True, slots=True)
class StartWork:
    """The partition is mine: work on it from after `position`; acks carry the incarnation and the token."""

    partition: int
    incarnation: str
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class StopWork:
    """Finish what is in hand, ack it, and report `Stopped`. After `within_s` the work is abandoned."""

    partition: int
    token: int
    within_s: float


@dataclass(frozen=True, slots=True)
class AbandonWork:
    """The partition is not mine any more: ack and write nothing from now on; report `Stopped` when the work has ended."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The member has left and does nothing more. With a refusal, it could not stay; the sentence says why."""

    refusal: Refusal | None = None


Command = ReadDocument | Edit | SendBeat | Acquire | Confirm | Release | Announce | StartWork | StopWork | AbandonWork | Exit

# ----------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Started:
    """The process has started; the first event."""


@dataclass(frozen=True, slots=True)
class DocumentRead:
    """The answer to `ReadDocument`; None: there is no document."""

    document: Document | None


@dataclass(frozen=True, slots=True)
class Edited:
    """The answer to `Edit`.

    Attributes:
        done: Whether the document was replaced.
        sent: When the command was sent, by the clock that `now` is of.
    """

    done: bool
    sent: float


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to `SendBeat`.

    Attributes:
        beat: What the store said.
        incarnation: The one that the command was sent for.
        sent: When it was sent, by the clock that `now` is of: the lease runs from then.
    """

    beat: Beat
    incarnation: str
    sent: float


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer came to this command: it was carried out, will be, or never."""

    command: ReadDocument | Edit | SendBeat | Acquire | Confirm | Release


@dataclass(frozen=True, slots=True)
class Announced:
    """A message of the control stream; None: one that this version cannot read."""

    message: Message | None


@dataclass(frozen=True, slots=True)
class Acked:
    """The store has accepted an ack. Only for the member to remember; it may be reported once for many acks."""

    partition: int
    token: int
    position: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The store has refused an ack of this token."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The work that was started with this token has ended: nothing of it is done or acked any more."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The process is to end, within so many seconds; 0: at once, without finishing. A later request may shorten the time."""

    within_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: due at `Member.wake_at`, harmless at any other time."""


Event = (
    Started
    | DocumentRead
    | Edited
    | Beaten
    | Granted
    | Busy
    | Stale
    | Raised
    | Failed
    | Announced
    | Acked
    | Fenced
    | Stopped
    | StopRequested
    | Tick
)

__all__ = [
    "AbandonWork",
    "Acked",
    "Acquire",
    "Announce",
    "Announced",
    "Beat",
    "Beaten",
    "Busy",
    "Command",
    "Confirm",
    "DocumentRead",
    "Edit",
    "Edited",
    "Event",
    "Exit",
    "Failed",
    "Fenced",
    "Granted",
    "Raised",
    "ReadDocument",
    "Release",
    "SendBeat",
    "Stale",
    "StartWork",
    "Started",
    "StopRequested",
    "StopWork",
    "Stopped",
    "Tick",
]
