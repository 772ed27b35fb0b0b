"""What an agent does beside its threads, clock and connections: which thread carries out a command, what an answer means to the machine,
and what the threads of the work may do. The agent runs it over a server, the simulator over a model.

D1  Events are told to the machine in order, each with the time at which it is told, and every command that comes of it is carried out.
D2  What is so now (`owned`, the lease) is shown before the commands are carried out: nothing is begun after the machine has let it go.
D3  Work is called in the machine's order. What has ended is reported under the token that it was started with.
D4  An ack is sent only while the partition is the member's by its own clock. The machine learns of acks with the event that comes next.

Each attribute is written by one thread, and read by others as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from penstock.protocol.group.events import (
    AbandonWork,
    Acked,
    Acquire,
    Announce,
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
    StartWork,
    Stopped,
    StopWork,
    Tick,
)
from penstock.protocol.group.member import Member

_MARGIN: Final = 0.9
"""Work ends at this part of the lease, counted from when the last successful heartbeat was sent."""

About = Acquire | Confirm | Release
"""Commands about one partition each; the server may be sent many of them together."""


class Channel(StrEnum):
    """What carries out a command: a thread of its own for each, in order."""

    BEATS = "beats"
    COMMANDS = "commands"
    ORDERS = "orders"


class Dispatcher:
    """Between the machine of one member and the threads that work for it.

    Args:
        machine: The machine.
        lease_s: As the machine has it.

    Attributes:
        owned: The partitions that are this member's, and their tokens.
        epoch: Of the group, as far as is known here.
        settled: Whether the member has what is its own.
        last_rebalance_ms: How long that took at the last change; None: it has not been so yet.
        rebalances: How often the member has come to have what is its own.
        fences: How often work was abandoned, as an ack was refused, or the lease or the grace was over.
    """

    def __init__(self, machine: Member, lease_s: float) -> None:
        self.machine, self._lease_s = machine, lease_s
        self.owned: dict[int, int] = {}
        self.epoch = 0
        self.settled = False
        self.last_rebalance_ms: float | None = None
        self.rebalances = self.fences = 0
        self._unsettled_since: float | None = None
        self._lease_until = 0.0
        self._started: dict[int, StartWork] = {}
        self._acked: dict[int, Acked] = {}

    # -- the machine's thread

    def handle(self, events: Sequence[Event], clock: Callable[[], float]) -> list[tuple[Channel, Command]]:
        """Tell the machine what has happened, show what is so now; the commands that are to be carried out, in this order.

        Args:
            events: In order; nothing: time has passed.
            clock: Seconds of a clock that never goes back.
        """
        machine, commands = self.machine, []
        for event in events or [Tick()]:
            now = clock()
            for partition in list(self._acked):
                commands += machine.handle(self._acked.pop(partition), now)
            commands += machine.handle(event, now)
            if isinstance(event, Beaten) and event.incarnation == machine.incarnation:
                until = event.sent + self._lease_s * _MARGIN
                self._lease_until = max(self._lease_until, until) if event.beat.known else 0.0
        self.owned, self.epoch = machine.owned, machine.epoch
        self._measure(clock())
        self.fences += sum(isinstance(command, AbandonWork) for command in commands)
        return [(self._channel(command), command) for command in commands]

    def _measure(self, now: float) -> None:
        """Note how long it took until this member had what is its own."""
        settled = self.machine.settled
        if settled and self._unsettled_since is not None:
            self.last_rebalance_ms = (now - self._unsettled_since) * 1000
            self._unsettled_since = None
            self.rebalances += 1
        elif not settled and self._unsettled_since is None:
            self._unsettled_since = now
        self.settled = settled

    @staticmethod
    def _channel(command: Command) -> Channel:
        match command:
            case SendBeat():
                return Channel.BEATS
            case StartWork() | StopWork() | AbandonWork() | Exit():
                return Channel.ORDERS
        return Channel.COMMANDS

    # -- the threads that send

    @staticmethod
    def together(commands: Sequence[Command]) -> Iterator[list[Command]]:
        """The same commands in the same order, those about partitions that follow each other in one list."""
        about: list[Command] = []
        for command in commands:
            if isinstance(command, Acquire | Confirm | Release):
                about.append(command)
                continue
            if about:
                yield about
                about = []
            yield [command]
        if about:
            yield about

    @staticmethod
    def answered(command: Command, answer: Any, sent: float) -> Event | None:
        """What the store's answer to a command means to the machine; None: nothing.

        Args:
            command: What was sent.
            answer: What the method of `penstock.protocol.group.store.Store` returned.
            sent: When it was sent, by the machine's clock.
        """
        match command:
            case SendBeat(incarnation):
                return Beaten(answer, incarnation, sent)
            case ReadDocument():
                return DocumentRead(answer)
            case Edit():
                return Edited(answer, sent)
            case Acquire() | Release():
                return answer  # type: ignore[no-any-return]
            case Confirm(partition, _, token) if not answer:
                return Fenced(partition, token)
        return None

    @staticmethod
    def unanswered(command: Command) -> Event | None:
        """What it means to the machine that nobody knows whether a command was carried out; None: nothing."""
        return None if isinstance(command, Announce) else Failed(command)  # type: ignore[arg-type]

    # -- the thread that calls the work, and the work's own

    def begin(self, order: StartWork) -> None:
        """Work is about to start, under this order."""
        self._started[order.partition] = order

    @property
    def begun(self) -> list[int]:
        """Partitions on which work was ever started."""
        return list(self._started)

    def let_go(self) -> None:
        """Nothing is this member's any more, whatever the machine says."""
        self.owned, self._lease_until = {}, 0.0

    def stopped(self, partition: int) -> Event | None:
        """What the machine is to be told when the work on a partition has ended; None: there was none."""
        started = self._started.get(partition)
        return None if started is None else Stopped(partition, started.token)

    def holds(self, partition: int, now: float) -> bool:
        """Whether a partition is this member's at this moment."""
        return partition in self.owned and now < self._lease_until

    def may_ack(self, partition: int, now: float) -> StartWork | None:
        """Under which order an ack may be sent at this moment; None: it may not."""
        started = self._started.get(partition)
        return started if started is not None and self.holds(partition, now) else None

    def acked(self, order: StartWork, position: str, *, done: bool) -> Event | None:
        """What the machine is to be told about the answer to an ack at once; None: nothing, it is told with the next event."""
        if not done:
            return Fenced(order.partition, order.token)
        self._acked[order.partition] = Acked(order.partition, order.token, position)
        return None


__all__ = ["About", "Channel", "Dispatcher"]
