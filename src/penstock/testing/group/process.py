"""A process of a simulated group: the real member machine, and the work it starts.

It does what an agent does: carries out commands, answers each of them once, handles entries one by one, acks each, and retries an ack
whose answer is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.group.events import AbandonWork, Acked, Event, Fenced, StartWork, Stopped, StopWork, Tick
from penstock.protocol.group.member import Member
from penstock.testing.group.outcome import AckKnown, Gone, Handled, Taken

if TYPE_CHECKING:
    from penstock.testing.group.simulator import World

ACK_RETRY_S = 0.05


class Work:
    """Work on one partition under one token: one entry after the other.

    Args:
        process: Whose it is.
        order: What started it.
    """

    __slots__ = ("abandoned", "busy", "done", "ended", "incarnation", "partition", "process", "stopping", "token")

    def __init__(self, process: Process, order: StartWork) -> None:
        self.process = process
        self.partition, self.incarnation, self.token = order.partition, order.incarnation, order.token
        self.done = int(order.position.partition("-")[0])
        self.busy = self.stopping = self.abandoned = self.ended = False

    def go_on(self) -> None:
        """Handle the next entry, if there is one; end, if it is to end."""
        world = self.process.world
        if self.ended or self.busy:
            return
        if self.stopping or self.abandoned:
            self.end()
        elif self.done < world.entries[self.partition]:
            self.busy = True
            entry = self.done + 1
            world.later(world.work_s(self.partition, entry), self.process, self.handled, (entry, world.now))

    def go_on_later(self, _: None) -> None:
        """As an event."""
        self.go_on()

    def handled(self, what: tuple[int, float]) -> None:
        """An entry is done; ack it, if that is still allowed."""
        entry, begun = what
        process, world = self.process, self.process.world
        world.log.append(Handled(world.now, process.origin, self.partition, self.token, entry, begun))
        self.ack(entry)

    def ack(self, entry: int) -> None:
        """Send an ack, for the first time or again."""
        if self.abandoned:
            self.busy = False
            self.go_on()
        else:
            self.process.world.send_ack(self, entry)

    def answered(self, what: tuple[int, bool | None]) -> None:
        """An ack was accepted, refused, or nobody knows."""
        entry, accepted = what
        process, world = self.process, self.process.world
        if accepted is None:
            world.later(ACK_RETRY_S, process, self.ack, entry)
            return
        self.busy = False
        if accepted:
            self.done = max(self.done, entry)
            world.log.append(AckKnown(world.now, process.origin, self.partition, entry))
            process.tell(Acked(self.partition, self.token, f"{entry}-0"))
        else:
            self.abandoned = True
            process.tell(Fenced(self.partition, self.token))
        self.go_on()

    def end(self) -> None:
        """Nothing is done or acked any more."""
        self.ended = True
        if self.process.works.get(self.partition) is self:
            del self.process.works[self.partition]
        self.process.tell(Stopped(self.partition, self.token))


class Process:
    """One start of an application.

    Args:
        world: Where it lives.
        member: Its machine.
        offset_s: What its clock shows more than the world's.
    """

    work: type[Work] = Work

    def __init__(self, world: World, member: Member, offset_s: float) -> None:
        self.world, self.member, self.offset_s = world, member, offset_s
        self.origin = member.incarnation
        self.paused_until = 0.0
        self.alive = True
        self.tick_at = -1.0
        self.commands_left = -1
        self.works: dict[int, Work] = {}

    def tell(self, event: Event) -> None:
        """Give the machine an event, and carry out what it orders."""
        if not self.alive:
            return
        world, member = self.world, self.member
        for command in member.handle(event, world.now + self.offset_s):
            if self.commands_left == 0:
                self.die("died at a command")
                return
            self.commands_left -= 1
            if isinstance(command, StartWork):
                self.start(command)
            elif isinstance(command, StopWork):
                self.stop(command)
            elif isinstance(command, AbandonWork):
                self.abandon(command)
            else:
                world.send(self, command)
        if self.alive:
            due = member.wake_at - self.offset_s
            if due != self.tick_at and due < 1e12:
                self.tick_at = due if due > world.now else world.now + 1e-6
                world.at(self.tick_at, self, self.tick, self.tick_at)

    def tick(self, due: float) -> None:
        """The time that the machine has asked for has come, unless it asked for another since."""
        if due == self.tick_at:
            self.tick_at = -1.0
            self.tell(Tick())

    def start(self, order: StartWork) -> None:
        """Begin to work on a partition."""
        world = self.world
        if order.partition in self.works:
            world.outcome.seen.add("two works at once")
        work = self.works[order.partition] = self.work(self, order)
        world.log.append(Taken(world.now, self.origin, order.partition, order.token, work.done))
        world.later(0.0, self, work.go_on_later, None)

    def stop(self, order: StopWork) -> None:
        """Finish what is in hand."""
        if (work := self.works.get(order.partition)) is not None and work.token == order.token:
            work.stopping = True
            self.world.later(0.0, self, work.go_on_later, None)

    def abandon(self, order: AbandonWork) -> None:
        """Ack nothing more; what is being handled cannot be interrupted."""
        if (work := self.works.get(order.partition)) is not None and work.token == order.token:
            work.abandoned = True
            self.world.later(0.0, self, work.go_on_later, None)

    def die(self, why: str) -> None:
        """End at once, in the middle of whatever it is."""
        self.alive = False
        self.world.outcome.seen.add(why)
        self.world.log.append(Gone(self.world.now, self.origin))


__all__ = ["Process", "Work"]
