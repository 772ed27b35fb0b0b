"""A simulated agent: the real one without its threads (`penstock.protocol.group.dispatch`), and a model of each thread.

    outcome = simulate(7, AgentWorld)

The machine's thread takes all events that have come, a moment later; commands wait for the one before them, and for its answer; orders to
work wait for theirs. A pause stops all of them at once, with whatever is under way, and which goes on first is chance. Handlers take time
and fail: then the entry is tried again after a while, or the process leaves. A partition's next entry is begun, and an ack is sent, only if
the agent says that the partition is this process's by its own clock; so here that also holds for processes that were paused.

Read next: `penstock.testing.group.simulator`, the world without agents; `penstock.group.agent`, the threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from penstock.protocol.group.dispatch import Channel, Dispatcher
from penstock.protocol.group.events import AbandonWork, Command, Event, StartWork, StopRequested, StopWork
from penstock.protocol.group.member import Member
from penstock.testing.group.outcome import AckKnown
from penstock.testing.group.process import Process, Work
from penstock.testing.group.schedule import Schedule
from penstock.testing.group.simulator import World

TURN_S: Final = 0.0005
"""A thread that has something to do goes on after so long, as a rule; `LATE_S` at most."""
LATE_S: Final = 0.05
LOOK_S: Final = 0.05
RETRY_S: Final = 0.1


class AgentWork(Work):
    """Work on one partition, as a consumer's thread does it."""

    __slots__ = ()
    process: AgentProcess

    def go_on(self) -> None:
        """Handle the next entry, if there is one and it is allowed; end, if it is to end."""
        process, world = self.process, self.process.world
        if self.ended or self.busy:
            return
        if self.stopping or self.abandoned:
            self.end()
        elif self.done < world.entries[self.partition]:
            if process.dispatcher.holds(self.partition, process.clock()):
                self.busy = True
                self.begin(self.done + 1)
            else:
                world.later(LOOK_S, process, self.go_on_later, None)

    def begin(self, entry: int) -> None:
        """Call the handler."""
        world = self.process.world
        world.later(world.work_s(self.partition, entry), self.process, self.handled, (entry, world.now))

    def handled(self, what: tuple[int, float]) -> None:
        """The handler has returned, or raised."""
        world, random = self.process.world, self.process.world.rng.random
        if world.healthy or random() >= self.process.world.raising:
            super().handled(what)
        elif random() < 0.7:
            world.outcome.seen.add("handler tried again")
            world.later(RETRY_S, self.process, self.again, what[0])
        else:
            world.outcome.seen.add("handler failed")
            self.process.tell(StopRequested(world.schedule.grace_s))
            self.over()

    def again(self, entry: int) -> None:
        """After a failure, when that is allowed, or the work is to end."""
        if self.stopping or self.abandoned:
            self.over()
        elif self.process.dispatcher.holds(self.partition, self.process.clock()):
            self.begin(entry)
        else:
            self.process.world.later(LOOK_S, self.process, self.again, entry)

    def over(self) -> None:
        """Nothing more is handled."""
        self.stopping, self.busy = True, False
        self.go_on()

    def ack(self, entry: int) -> None:
        """Send an ack, for the first time or again, if that is allowed."""
        process = self.process
        order = None if self.abandoned else process.dispatcher.may_ack(self.partition, process.clock())
        if order is None:
            self.over()
        else:
            process.world.travel(process, self.carried_out, (order, entry), self.came, (order, entry))

    def carried_out(self, what: tuple[StartWork, int]) -> bool:
        """The server carries out the ack."""
        order, entry = what
        return self.process.world.step_ack(self.process, order.partition, order.incarnation, order.token, entry)

    def came(self, what: tuple[Process, tuple[StartWork, int], bool | None]) -> None:
        """The answer to the ack, or none."""
        _, (order, entry), accepted = what
        process, world = self.process, self.process.world
        if accepted is None:
            world.later(0.05, process, self.ack, entry)
            return
        process.hear(process.dispatcher.acked(order, f"{entry}-0", done=accepted))
        self.busy = False
        if accepted:
            self.done = max(self.done, entry)
            world.log.append(AckKnown(world.now, process.origin, self.partition, entry))
        else:
            self.stopping = True
        self.go_on()

    def end(self) -> None:
        """Nothing is done or acked any more."""
        self.ended = True
        if self.process.works.get(self.partition) is self:
            del self.process.works[self.partition]
        self.process.hear(self.process.dispatcher.stopped(self.partition))


class AgentProcess(Process):
    """A process with an agent."""

    work: type[Work] = AgentWork
    agent: type[Dispatcher] = Dispatcher
    world: AgentWorld

    def __init__(self, world: AgentWorld, member: Member, offset_s: float) -> None:
        super().__init__(world, member, offset_s)
        self.dispatcher = self.agent(member, member.lease_s)
        self.events: list[Event] = []
        self.awake = False
        self.queues: dict[Channel, deque[Command]] = {each: deque() for each in Channel}
        self.sending: set[Channel] = set()

    def clock(self) -> float:
        """The process's own clock."""
        return self.world.now + self.offset_s

    def tell(self, event: Event) -> None:
        """An event comes; the machine's thread takes it soon."""
        self.hear(event)

    def hear(self, event: Event | None) -> None:
        """As `tell`; nothing, for nothing."""
        if event is not None:
            self.events.append(event)
            self.wake()

    def wake(self) -> None:
        """The machine's thread goes on."""
        if not self.awake:
            self.awake = True
            self.world.later(self.world.turn_s(), self, self.run, None)

    def tick(self, due: float) -> None:
        """The time that the machine has asked for has come."""
        if due == self.tick_at:
            self.tick_at = -1.0
            self.wake()

    def run(self, _: None) -> None:
        """A turn of the machine's thread."""
        world, self.awake = self.world, False
        events, self.events = self.events, []
        for channel, command in self.dispatcher.handle(events, self.clock):
            if self.commands_left == 0:
                self.die("died at a command")
                return
            self.commands_left -= 1
            self.queues[channel].append(command)
        for channel in Channel:
            self.next_of(channel)
        due = self.member.wake_at - self.offset_s
        if due != self.tick_at and due < 1e12:
            self.tick_at = due if due > world.now else world.now + 1e-6
            world.at(self.tick_at, self, self.tick, self.tick_at)

    def next_of(self, channel: Channel) -> None:
        """A thread goes on, if it has something to do and is not waiting for an answer."""
        if self.queues[channel] and channel not in self.sending:
            self.sending.add(channel)
            self.world.later(self.world.turn_s(), self, self.send_next, channel)

    def send_next(self, channel: Channel) -> None:
        """A turn of a thread that carries out commands."""
        commands, world = self.queues[channel], self.world
        if channel is Channel.ORDERS:
            self.sending.discard(channel)
            while commands and self.alive:
                self.obey(commands.popleft())
            return
        batch = next(iter(self.dispatcher.together(commands)))
        for _ in batch:
            commands.popleft()
        world.travel(self, world.carry_out_all, (self, batch, world.now), self.came, (channel, batch, world.now))

    def came(self, what: tuple[Process, tuple[Channel, list[Command], float], list[Any] | None]) -> None:
        """The answers to a thread's commands, or none."""
        _, (channel, batch, sent), answers = what
        world, dispatcher = self.world, self.dispatcher
        self.sending.discard(channel)
        for command, answer in zip(batch, answers or batch, strict=True):
            if answers is None:
                world.note_no_answer(self, command)
                self.hear(dispatcher.unanswered(command))
            else:
                event = dispatcher.answered(command, answer, sent + self.offset_s)
                world.note_renewal(self, event)
                self.hear(event)
        self.next_of(channel)

    def obey(self, order: Command) -> None:
        """An order to the work."""
        match order:
            case StartWork():
                self.dispatcher.begin(order)
                self.start(order)
            case StopWork():
                self.stop(order)
            case AbandonWork():
                self.abandon(order)
            case _:
                self.world.send(self, order)

    def stop(self, order: StopWork) -> None:
        """Finish what is in hand: an agent does not say under which token."""
        self.finish(order.partition, abandoned=False)

    def abandon(self, order: AbandonWork) -> None:
        """Ack nothing more."""
        self.finish(order.partition, abandoned=True)

    def finish(self, partition: int, *, abandoned: bool) -> None:
        """The work on a partition is to end."""
        if (work := self.works.get(partition)) is not None:
            work.stopping, work.abandoned = True, work.abandoned or abandoned
            self.world.later(0.0, self, work.go_on_later, None)


class AgentWorld(World):
    """A group whose members have agents."""

    process: type[Process] = AgentProcess

    def __init__(self, schedule: Schedule, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(schedule, rng, trace)
        self.outcome.strict = True
        self.late = 0.0 if schedule.calm else rng.choice((0.0, 0.0, 0.1))
        self.raising = 0.0 if schedule.calm else rng.choice((0.0, 0.0, 0.1))

    def turn_s(self) -> float:
        """After how long a thread goes on."""
        random = self.rng.random
        return random() * (LATE_S if self.late and not self.healthy and random() < self.late else TURN_S)

    def carry_out_all(self, what: tuple[Process, list[Command], float]) -> list[Any]:
        """The server carries out steps, one after the other; their answers."""
        process, batch, _ = what
        return [self.step(process, command) for command in batch]


__all__ = ["AgentProcess", "AgentWork", "AgentWorld"]
