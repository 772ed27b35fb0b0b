"""What a member does about its partitions: asks for locks, starts work, stops it, gives locks back. The rules are in
`penstock.protocol.group.partition`.

Read next: `penstock.protocol.group.member`, which adds the document, the lease and leaving.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.protocol.group.document import Document
from penstock.protocol.group.events import (
    AbandonWork,
    Acked,
    Acquire,
    Announce,
    Command,
    Confirm,
    Release,
    StartWork,
    Stopped,
    StopWork,
)
from penstock.protocol.group.jitter import Backoff
from penstock.protocol.group.partition import WORKING, Partition, State
from penstock.protocol.group.store import Busy, Granted, Wanted, later

NEVER: Final = math.inf
WANTED_AFTER_S: Final = 1.0
"""Who has waited so long for a lock says so on the control stream; again after twice the time, and so on."""


class Holdings:
    """The partitions of one member.

    Args:
        name: Id of the member.
        incarnation: Its present one.
        seed: Of the jitter.
    """

    def __init__(self, name: str, incarnation: str, seed: int) -> None:
        self.name, self.incarnation = name, incarnation
        self.document: Document | None = None
        self._backoff = Backoff(seed)
        self._mine: frozenset[int] = frozenset()
        self._known: dict[int, Partition] = {}  # all that it has ever had
        self._active: dict[int, Partition] = {}  # those that are not elsewhere
        self._fence_at = -NEVER  # then the lease is over here
        self._scan_due = self._confirm_due = NEVER
        self._out: list[Command] = []

    @property
    def epoch(self) -> int:
        """Of the last document that counts here; 0: none."""
        return self.document.epoch if self.document else 0

    @property
    def owned(self) -> dict[int, int]:
        """The partitions that are worked on, and the token of each."""
        return {n: p.token for n, p in sorted(self._active.items()) if p.state in WORKING}

    def _abandon_all(self, why: str, now: float) -> None:
        for each in list(self._active.values()):
            if each.state in WORKING:
                self._abandon(each, why, now)

    def _abandon(self, each: Partition, why: str, now: float) -> None:
        self._out.append(AbandonWork(each.number, each.token))
        each.go(why)
        self._give_back(each)
        self._scan_due = min(self._scan_due, now)

    def _reconcile(self, now: float, within_s: float) -> None:
        """Compare what is mine with what is done about it; work that is to stop has so many seconds."""
        for number in sorted(self._mine - self._active.keys()):
            self._assign(number, now)
        for number in sorted(self._active.keys() - self._mine):
            each = self._active[number]
            if each.state is State.WAITING:
                each.go("withdrawn")
                del self._active[number]
            elif each.state is State.OWNED:
                each.go("withdrawn")
                each.due = now + within_s
                self._out.append(StopWork(number, each.token, within_s))
            elif each.state is State.ENDING:
                self._give_back(each)
        self._scan_due = now

    def _assign(self, number: int, now: float, tries: int = 0) -> None:
        each = self._known.setdefault(number, Partition(number))
        each.go("assigned")
        each.tries, each.since, each.wanted_after_s, each.instead_of = tries, now, WANTED_AFTER_S, ""
        each.due = now + (self._backoff.after(tries) if tries else 0.0)
        self._active[number] = each
        self._scan_due = min(self._scan_due, each.due)

    def _ask(self, each: Partition, what: str) -> None:
        each.go(what)
        each.incarnation = self.incarnation
        order = Acquire(each.number, self.name, self.incarnation, self.epoch, each.instead_of, each.token, each.position)
        self._out.append(order)

    def _give_back(self, each: Partition) -> None:
        """Release the lock of a partition that is not mine, and that no work acks any more."""
        if each.held and each.number not in self._mine:
            each.held = False
            self._out.append(Release(each.number, each.incarnation, each.token, each.position))

    def _confirm_all(self, now: float) -> None:
        """The server may have lost data: tell it every token and position that this member remembers, and confirm the locks."""
        for each in self._known.values():
            each.unconfirmed = each.token > 0
        self._confirm_due = now

    def _confirm(self) -> None:
        """Confirm, or report, what is not confirmed; a failure is tried again."""
        self._confirm_due = NEVER
        for each in self._known.values():
            if each.unconfirmed and each.state is not State.ACQUIRING:  # that tells what it remembers, too
                each.unconfirmed = False
                if each.state in WORKING:
                    each.go("server changed")
                    self._out.append(Confirm(each.number, each.incarnation, each.token, each.position))
                elif each.state is State.ELSEWHERE or each.number not in self._mine:
                    each.held = False
                    self._out.append(Release(each.number, each.incarnation, each.token, each.position))

    def _on_granted(self, event: Granted, now: float) -> None:
        each = self._active.get(event.partition)
        if each is None or each.state is not State.ACQUIRING:
            return
        if each.incarnation != self.incarnation:
            self._not_granted(event.partition, now)
            return
        each.token, each.position, each.held = event.token, later(event.position, each.position), True
        if event.partition not in self._mine:
            each.go("granted, withdrawn")
            self._give_back(each)
            del self._active[event.partition]
        elif now >= self._fence_at:
            each.go("granted too late")
            each.due = now
        else:
            each.go("granted")
            self._out.append(StartWork(each.number, each.incarnation, each.token, each.position))

    def _on_busy(self, event: Busy, now: float) -> None:
        each = self._not_granted(event.partition, now)
        if each is None:
            return
        if self.document is not None and not self.document.has(event.incarnation):
            each.instead_of, each.due = event.incarnation, now
            self._scan_due = now
        elif now - each.since >= each.wanted_after_s:
            each.wanted_after_s *= 2
            self._out.append(Announce(Wanted(event.partition, event.incarnation)))

    def _not_granted(self, number: int, now: float) -> Partition | None:
        """The lock is not mine, or nobody knows; the partition, if it still is to be."""
        each = self._active.get(number)
        if each is None or each.state is not State.ACQUIRING:
            return None
        if number not in self._mine:
            each.go("not granted, withdrawn")
            del self._active[number]
            return None
        each.go("not granted")
        each.tries += 1
        each.instead_of = ""
        each.due = now + self._backoff.after(each.tries)
        self._scan_due = min(self._scan_due, each.due)
        return each

    def _on_acked(self, event: Acked, _: float) -> None:
        if (each := self._known.get(event.partition)) is not None:
            each.position = later(event.position, each.position)

    def _on_stopped(self, event: Stopped, now: float) -> None:
        each = self._active.get(event.partition)
        if each is None or each.token != event.token or each.state not in {*WORKING, State.ENDING}:
            return
        alone = each.state is State.OWNED
        each.go("stopped")
        self._give_back(each)
        del self._active[event.partition]
        if event.partition in self._mine:
            self._assign(event.partition, now, tries=5 * alone)

    def _scan(self, now: float) -> None:
        """Try what waits, end what was given its time, and note when to look again."""
        self._scan_due, may_ask = NEVER, now < self._fence_at
        for each in self._active.values():
            if each.state is State.STOPPING and now >= each.due:
                self._out.append(AbandonWork(each.number, each.token))
                each.go("grace over")
                self._give_back(each)
            elif each.state is State.WAITING and may_ask and now >= each.due:
                self._ask(each, "asked")
            if each.state is State.STOPPING or (each.state is State.WAITING and may_ask):
                self._scan_due = min(self._scan_due, each.due)


__all__ = ["NEVER", "Holdings"]
