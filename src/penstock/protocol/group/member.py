"""One member of a group: a machine that is told events and answers with commands. No clock, no I/O; `now` is an argument.

    member = Member("app-1", incarnation, 8, lease_s=10, grace_s=8, seed=1)
    commands = member.handle(Started(), now)

`now` is in seconds of a clock that never goes back, and is compared with nothing outside of this process.

M1  At most one command about the document is under way. An edit is made from a document just read; if it fails, or nobody knows, the
    document is read again. So an edit that was carried out unknown is found, and a late one changes nothing.
M2  The lease runs from when the last successful beat was sent. A tenth of it before its end all work is abandoned.
M3  Who finds itself taken out joins again, as another incarnation; who finds its id taken by a later process exits and says so. After
    a loss of data nobody knows which of two is the later one: then both may join again, and the first to be replaced exits.
M4  Whoever is told of a missed deadline edits the member out. Messages of the control stream only make things faster: each beat says
    which document there is.
M5  A document that is older than one I have seen means that the server has lost data: I write back what I remember, in a higher epoch
    and another generation. Who sees a new generation, or another server, reports all tokens and positions that it remembers, and
    confirms its locks. What is not confirmed is abandoned, and asked for again.
M6  A leaver first says so in the document, and keeps its place until its work has ended: others wait for its locks, and take them
    over one by one.

Read next: `penstock.protocol.group.partition` for the states of a partition, `penstock.protocol.group.store` for what a step is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from penstock.protocol.group.document import Document, Entry
from penstock.protocol.group.events import (
    Acked,
    Acquire,
    Announce,
    Announced,
    Beaten,
    Command,
    Confirm,
    DocumentRead,
    Edit,
    Edited,
    Event,
    Exit,
    Failed,
    Fenced,
    ReadDocument,
    Release,
    SendBeat,
    Started,
    Stopped,
    StopRequested,
    Tick,
)
from penstock.protocol.group.holdings import NEVER, Holdings
from penstock.protocol.group.jitter import FIRST_RETRY_S, LAST_RETRY_S
from penstock.protocol.group.membership import Remembered, Wish, refusal
from penstock.protocol.group.partition import WORKING, Partition, State
from penstock.protocol.group.store import Busy, Changed, Granted, Raised, Stale, Wanted
from penstock.types import Refusal

EXIT_WITHIN_S: Final = 1.0
"""So long after the end of its grace a leaver tries to take itself out of the document."""


class Member(Holdings):
    """A member of a group.

    Args:
        name: Its id: given by the user (then a restart gets the same share), or unique.
        incarnation: Unique to this start of the process.
        partitions: How many partitions the stream has.
        lease_s: Who has not beaten for so long is taken out.
        grace_s: So long may work take to end when its partition moves.
        seed: Of the jitter.

    Attributes:
        incarnation: The present one: another after each time that the member was taken out.
        document: The last one that counts here.
        exited: Whether it has left; nothing happens any more.
    """

    def __init__(self, name: str, incarnation: str, partitions: int, *, lease_s: float, grace_s: float, seed: int) -> None:
        super().__init__(name, incarnation, seed)
        self.partitions = partitions
        self.lease_s, self.grace_s = lease_s, grace_s
        self._lease_ms = math.ceil(lease_s * 1000)
        self.exited = False
        self._origin, self._starts = incarnation, 0
        self._seen = 0  # highest epoch that the store has shown
        self._joined = 0  # epoch in which this incarnation joined; 0: it is not in
        self._was = 0  # epoch in which this process joined last
        self._dead: frozenset[str] = frozenset()
        self._proposed: Document | None = None
        self._asking, self._read_due, self._read_tries = False, NEVER, 0
        self._beating, self._beat_due, self._beat_tries = False, NEVER, 0
        self._server = ""
        self._leaving, self._leave_by, self._leave_due = False, NEVER, NEVER
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Started: self._on_started,
            DocumentRead: self._on_read,
            Edited: self._on_edited,
            Beaten: self._on_beaten,
            Granted: self._on_granted,
            Busy: self._on_busy,
            Stale: self._on_stale,
            Raised: lambda event, _: self._out.append(Announce(event)),
            Failed: self._on_failed,
            Announced: self._on_announced,
            Acked: self._on_acked,
            Fenced: self._on_fenced,
            Stopped: self._on_stopped,
            StopRequested: self._on_stop_requested,
            Tick: lambda *_: None,  # whatever is due is done after every event
        }

    # ----------------------------------------------------------------------------------------------------- what is shown

    @property
    def settled(self) -> bool:
        """Whether it is in the group and works on exactly what it should."""
        return (
            bool(self._joined)
            and self._mine == self._active.keys()
            and all(p.state is State.OWNED for p in self._active.values())
        )

    @property
    def wake_at(self) -> float:
        """When a `Tick` is due at the latest; infinite: only an event matters."""
        if self.exited:
            return NEVER
        due = min(self._scan_due, self._confirm_due)
        if self._joined and not self._beating:
            due = min(due, self._beat_due)
        if not self._asking:
            due = min(due, self._read_due)
        if self._leaving:
            due = min(due, self._leave_due)
        if any(p.state in WORKING for p in self._active.values()):
            due = min(due, self._fence_at)
        return due

    def handle(self, event: Event, now: float) -> list[Command]:
        """What to do about an event, in this order.

        Args:
            event: What has happened.
            now: Seconds of a clock that never goes back.

        Raises:
            TypeError: It is no event; nothing was changed.
        """
        handler = self._handlers.get(type(event))
        if handler is None:
            raise TypeError(f"{event!r} is no event of a member; give one of penstock.protocol.group.events.")
        if self.exited:
            return []
        out: list[Command] = []
        self._out = out
        if now >= self._fence_at:
            self._abandon_all("lease over", now)
        handler(event, now)
        if type(event) is not Acked:
            self._act(now)
        return out

    def _within_s(self, now: float) -> float:
        """So long may work take to end."""
        return max(0.0, self._leave_by - now) if self._leaving else self.grace_s

    # -------------------------------------------------------------------------------------------------------- the document

    def _on_started(self, _: Started, now: float) -> None:
        self._read_due = now

    def _on_read(self, event: DocumentRead, now: float) -> None:
        self._asking, self._read_tries = False, 0
        stored = event.document
        if stored is not None and (refused := refusal(stored, self.partitions)):
            self._exit(now, refused)
            return
        if stored is not None and not self._remembered().is_lost(stored) and not self._adopt(stored, now):
            return
        wish = Wish.IN if not self._leaving else Wish.OUT if self._may_go else Wish.LEAVING
        if (proposed := self._remembered().proposed(stored, wish, self._dead)) is not None:
            self._asking, self._proposed = True, proposed
            self._out.append(Edit(stored.epoch if stored else 0, proposed, self._lease_ms))

    def _on_edited(self, event: Edited, now: float) -> None:
        self._asking, proposed, self._proposed = False, self._proposed, None
        if not event.done or proposed is None:
            if self._dead:  # was it in time after all?
                self._dead, self._beat_due = frozenset(), now
            self._read_again(now)
            return
        if not self._joined:
            self._fence_at = event.sent + self.lease_s * 0.9
        self._read_tries, self._dead = 0, frozenset()
        self._adopt(proposed, now)

    def _remembered(self) -> Remembered:
        return Remembered(self.name, self.incarnation, self.partitions, self._lease_ms, self.document, self._seen)

    def _read_again(self, now: float) -> None:
        self._read_tries += 1
        self._read_due = min(self._read_due, now + self._backoff.after(self._read_tries))

    def _adopt(self, document: Document, now: float) -> bool:
        """From now on this document counts; false: it says that the member is out."""
        before, self.document = self.document, document
        self._seen = max(self._seen, document.epoch)
        entry = document.members.get(self.name)
        inside = entry is not None and entry.incarnation == self.incarnation
        if entry is not None and inside:
            self._beat_due = self._beat_due if self._joined else now
            self._joined = self._was = entry.joined
        elif self._leaving:
            self._exit(now)
            return False
        elif entry is not None and self._is_later(entry) and before is not None and before.generation == document.generation:
            self._exit(now, Refusal(f"Another process has joined the group as {self.name!r}; give each its own member id."))
            return False
        elif self._joined:  # taken out
            self._abandon_all("fenced", now)
            self._joined, self._fence_at = 0, -NEVER
            self._starts += 1
            self.incarnation = f"{self._origin}.{self._starts}"
            self._confirm_all(now)
        if before is not None and document.generation != before.generation:
            self._confirm_all(now)
        self._mine = frozenset(entry.partitions) if entry and inside and not self._leaving else frozenset()
        self._reconcile(now, self._within_s(now))
        return True

    def _is_later(self, entry: Entry) -> bool:
        """Whether this entry with my id is of a process that joined after me."""
        return 0 < self._was <= entry.joined and entry.incarnation.partition(".")[0] != self._origin

    # ----------------------------------------------------------------------------------------------------------- the lease

    def _on_beaten(self, event: Beaten, now: float) -> None:
        failed_before = self._beat_tries > 0
        self._beating, self._beat_tries = False, 0
        if event.incarnation != self.incarnation:
            self._beat_due = now
            return
        beat = event.beat
        self._seen = max(self._seen, beat.epoch)
        self._beat_due = max(now, event.sent + self.lease_s / 3)
        if not beat.known:
            self._fence_at = -NEVER
            self._abandon_all("lease over", now)
            self._read_due = now
            return
        self._fence_at = max(self._fence_at, event.sent + self.lease_s * 0.9)
        self._scan_due = now  # partitions may have waited for the lease
        if beat.next_s is not None:
            self._beat_due = min(self._beat_due, now + beat.next_s + FIRST_RETRY_S)
        if failed_before if "" in {self._server, beat.server} else self._server != beat.server:
            self._confirm_all(now)
        self._dead, self._server = frozenset(beat.dead), beat.server
        document = self.document
        if (
            document is None
            or (beat.epoch, beat.editor) != (document.epoch, document.editor)
            or any(map(document.has, beat.dead))
        ):
            self._read_due = now

    def _on_failed(self, event: Failed, now: float) -> None:
        match event.command:
            case ReadDocument() | Edit():
                self._asking, self._proposed = False, None
                self._read_again(now)
            case SendBeat():
                self._beating = False
                self._beat_tries += 1
                self._beat_due = now + min(self._backoff.after(self._beat_tries), self.lease_s / 6)
            case Acquire(partition=number):
                self._not_granted(number, now)
            case Confirm(partition=number) | Release(partition=number) if number in self._known:
                self._known[number].unconfirmed = True
                self._confirm_due = now + LAST_RETRY_S
        self._beat_due = min(self._beat_due, now + self._backoff.after(0))  # is the server there, and does it know me?

    # ------------------------------------------------------------------------------------------------------ the partitions

    def _on_stale(self, event: Stale, now: float) -> None:
        self._seen = max(self._seen, event.epoch)
        self._not_granted(event.partition, now)
        self._read_due = now

    def _on_announced(self, event: Announced, now: float) -> None:
        match event.message:
            case Changed(epoch) if epoch == self.epoch:
                pass
            case Wanted(partition, incarnation) | Raised(partition, incarnation) if (
                incarnation != self.incarnation or not 0 <= partition < self.partitions
            ):
                pass
            case Raised(partition):
                if partition in self._active:
                    self._active[partition].unconfirmed, self._confirm_due = True, now
            case Wanted(partition) if partition not in self._active:
                if now < self._fence_at:
                    each = self._active[partition] = self._known.setdefault(partition, Partition(partition))
                    each.instead_of = ""
                    self._ask(each, "wanted by another")
            case _:
                self._read_due = min(self._read_due, now)

    def _on_fenced(self, event: Fenced, now: float) -> None:
        each = self._active.get(event.partition)
        if each is not None and each.token == event.token and each.state in WORKING:
            self._abandon(each, "fenced", now)
            self._read_due = min(self._read_due, now)

    # ----------------------------------------------------------------------------------------------------------- the leave

    @property
    def _may_go(self) -> bool:
        """Whether a leaver has nothing left to finish."""
        return not any(p.state is not State.ACQUIRING for p in self._active.values())

    def _on_stop_requested(self, event: StopRequested, now: float) -> None:
        self._leaving = True
        self._leave_by = self._leave_due = min(self._leave_by, now + event.within_s)
        self._mine = frozenset()
        self._reconcile(now, self._within_s(now))
        for each in self._active.values():
            if each.state is State.STOPPING:
                each.due = min(each.due, self._leave_by)
        self._read_due = now

    def _exit(self, now: float, refusal: Refusal | None = None) -> None:
        self._mine = frozenset()
        self._abandon_all("fenced", now)
        self.exited = True
        self._out.append(Exit(refusal))

    # ------------------------------------------------------------------------------------------------------------ what is due

    def _act(self, now: float) -> None:
        if self.exited:
            return
        if now >= self._scan_due:
            self._scan(now)
        if now >= self._confirm_due:
            self._confirm()
        if self._leaving and self._leave(now):
            return
        if self._joined and not self._beating and now >= self._beat_due:
            self._beating = True
            self._out.append(SendBeat(self.incarnation, self._lease_ms))
        if not self._asking and now >= self._read_due:
            self._asking, self._read_due = True, NEVER
            self._out.append(ReadDocument())

    def _leave(self, now: float) -> bool:
        """Go on leaving; whether it is done."""
        if now >= self._leave_by:
            for each in [p for p in self._active.values() if p.state is State.ENDING]:
                each.go("stopped")  # its work ends with the process
                del self._active[each.number]
            self._leave_due = self._leave_by + EXIT_WITHIN_S
        if now >= self._leave_by + EXIT_WITHIN_S or not (self._joined or self._asking):
            self._exit(now)
            return True
        if not self._asking and self._read_due == NEVER and self._may_go:
            self._read_due = now
        return False


__all__ = ["Member"]
