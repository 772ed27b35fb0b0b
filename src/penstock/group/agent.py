"""The agent: it drives the pure machine of one member against a server, with threads, clocks and connections.

A1  The machine's thread sends nothing and waits for nobody, so a server that does not answer cannot delay what is due: work is abandoned
    before the lease ends, by this process's monotonic clock alone.
A2  Heartbeats have a thread and a connection of their own. Commands are sent in the machine's order; those about partitions together.
A3  The control stream is read from the id seen last, also over a broken connection. What is missed is found by the next heartbeat.
A4  `Work` is called in one thread, in the machine's order. An ack is sent only while the lease holds, and the server checks it again.

Read next: `penstock.protocol.group.dispatch`, the agent without its threads; `penstock.group.store`, the steps at the server.
"""

from __future__ import annotations

import logging
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, Protocol

from penstock.errors import GroupError, PenstockError
from penstock.group.figures import ApplicationFigures
from penstock.group.settings import Group, checked_name, checked_partitions
from penstock.group.store import RedisStore, acquired, released
from penstock.protocol.group.dispatch import About, Channel, Dispatcher
from penstock.protocol.group.document import PROTOCOL
from penstock.protocol.group.events import (
    AbandonWork,
    Acquire,
    Announce,
    Announced,
    Command,
    Confirm,
    Edit,
    Event,
    Exit,
    ReadDocument,
    Release,
    SendBeat,
    Started,
    StartWork,
    StopRequested,
    StopWork,
)
from penstock.protocol.group.member import Member
from penstock.protocol.group.store import order
from penstock.redis_client.connection import is_refused, why
from penstock.redis_client.group_server import GroupServer, Unanswered

LOG: Final = logging.getLogger("penstock.group")
BLOCK_MS: Final = 2_000
"""So long one read of the control stream waits."""
_LONGEST_WAIT_S: Final = 1.0
_TOGETHER: Final = 500


class Work(Protocol):
    """What a member does with its partitions. Each method returns soon: the work is done in other threads.

    After each `start` the agent waits until `Agent.stopped` is called for the partition, whether the work was asked to stop, was abandoned, or has
    ended by itself. Only then can the partition be this member's again.
    """

    def start(self, partition: int, token: int, position: str) -> None:
        """The partition is this member's: work on what comes behind `position`."""

    def stop(self, partition: int, within_s: float) -> None:
        """Another member is to have it: finish what is in hand within so many seconds, ack it, and call `Agent.stopped`."""

    def abandon(self, partition: int) -> None:
        """It is not this member's any more: ack and write nothing from now on, and call `Agent.stopped` when the work has ended."""


class Agent:
    """This process as a member of a group.

    Args:
        group: The group.
        stream: The stream whose partitions it shares.
        partitions: How many partitions the stream has.
        work: What is done with those that are this member's.
    """

    def __init__(self, group: Group, stream: str, partitions: int, work: Work) -> None:
        checked_name("A stream's name", stream)
        checked_partitions(stream, partitions)
        self._group, self._stream, self._work = group, stream, work
        incarnation = secrets.token_hex(8)
        lease_s = group.lease_ms / 1000
        self.member = group.member or f"{_host()}-{incarnation[:8]}"
        self._machine = Member(
            self.member,
            incarnation,
            partitions,
            lease_s=lease_s,
            grace_s=group.grace_s,
            seed=secrets.randbits(64),
        )
        self._dispatcher = Dispatcher(self._machine, lease_s)
        self._partitions = partitions
        answer_s = min(5.0, max(0.5, lease_s))
        self._servers = {
            name: GroupServer(group.url, stream, group.name, timeout_s=timeout_s)
            for name, timeout_s in (
                ("beats", min(5.0, max(0.1, lease_s / 3))),
                ("commands", answer_s),
                ("acks", answer_s),
                ("changes", BLOCK_MS / 1000 + answer_s),
            )
        }
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._queues: dict[Channel, queue.SimpleQueue[Command | None]] = {each: queue.SimpleQueue() for each in Channel}
        self._exited, self._begun, self._changes_seen = threading.Event(), False, "0-0"
        self.error: PenstockError | None = None
        self.trouble: str | None = None

    # -- for whoever owns the agent

    @property
    def owned(self) -> dict[int, int]:
        """The partitions that are this member's, and their tokens."""
        return self._dispatcher.owned

    @property
    def epoch(self) -> int:
        """Of the group, as far as is known here."""
        return self._dispatcher.epoch

    @property
    def settled(self) -> bool:
        """Whether the member has what is its own."""
        return self._dispatcher.settled

    @property
    def last_rebalance_ms(self) -> float | None:
        """How long that took at the last change; None: it has not been so yet."""
        return self._dispatcher.last_rebalance_ms

    @property
    def figures(self) -> dict[str, Any]:
        """What it knows of its membership; see `penstock.group.figures.ApplicationFigures`."""
        d, document = self._dispatcher, self._machine.document
        took_ms = None if d.last_rebalance_ms is None else round(d.last_rebalance_ms)
        members = len(document.members) if document else 0
        return asdict(ApplicationFigures(d.epoch, members, len(d.owned), took_ms, d.rebalances, d.fences))

    @property
    def incarnation(self) -> str:
        """By what the server knows this start of the process."""
        return self._machine.incarnation

    def start(self) -> None:
        """Join the group, in threads of the agent.

        Raises:
            GroupError: The server cannot be used, or the stream's settings are other ones. Nothing was changed.
        """
        server = self._servers["commands"]
        server.check(self._partitions, PROTOCOL)
        try:
            self._changes_seen = server.last_change()
        except Unanswered as error:
            raise GroupError(f"Group {self._group.name!r} cannot be joined: {why(error)}.") from error
        self._begun = True
        for work in (self._run, self._send_beats, self._send_commands, self._read_changes, self._give_orders):
            name = f"penstock-{self._group.name}-{work.__name__.strip('_')}"
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()

    def stopped(self, partition: int) -> None:
        """Say that the work on a partition has ended: nothing of it is done or acked any more."""
        self._tell(self._dispatcher.stopped(partition))

    def holds(self, partition: int) -> bool:
        """Whether a partition is this member's at this moment, by this process's own clock."""
        return self._dispatcher.holds(partition, time.monotonic())

    def ack(
        self,
        partition: int,
        position: str,
        dead_letters: Sequence[Sequence[str | bytes]] = (),
        added: int | None = None,
    ) -> bool:
        """Commit a position, and store dead letters with it; False: the partition is not this member's any more, nothing was changed.

        Args:
            partition: The partition.
            position: Id of the last entry that is done.
            dead_letters: Each as name, value, …
            added: How many entries the stream had been given up to the position; None: that is not known.

        Raises:
            Unanswered: The server did not answer; the position may have been committed.
        """
        order = self._dispatcher.may_ack(partition, time.monotonic())
        if order is None:
            return False
        server = self._servers["acks"]
        done = bool(server.one(server.ack(partition, order.incarnation, order.token, position, dead_letters, added)))
        self._tell(self._dispatcher.acked(order, position, done=done))
        return done

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._events.put(event)

    def request_leave(self, grace_s: float | None = None) -> None:
        """Begin to leave, and return; a second call may shorten the time. May be called in a signal handler."""
        self._events.put(StopRequested(self._group.grace_s if grace_s is None else grace_s))

    def leave(self, grace_s: float | None = None) -> None:
        """Leave the group: work ends within the grace period, then others have its partitions. Returns when that is done.

        Args:
            grace_s: Seconds; None: the group's. 0: work is abandoned at once.
        """
        if self._begun:
            self.request_leave(grace_s)
            self._exited.wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the member has left, or for so many seconds; whether it has."""
        return self._exited.wait(timeout_s)

    def close(self) -> None:
        """Let go of connections and threads. A member that has not left is taken out when its lease has ended."""
        self._exited.set()
        self._end_threads()
        for name, server in self._servers.items():
            if name != "changes":  # its thread may be waiting in it, and closes it
                server.close()

    # -- the machine's thread

    def _run(self) -> None:
        machine, events = self._machine, self._events
        found: list[Event] = [Started()]
        while not self._exited.is_set():
            for channel, command in self._dispatcher.handle(found, time.monotonic):
                if isinstance(command, Exit) and command.refusal is not None:
                    self.error = self.error or GroupError(command.refusal.sentence)
                self._queues[channel].put(command)
            if machine.exited:
                self._end_threads()
                return
            wait_s = min(_LONGEST_WAIT_S, machine.wake_at - time.monotonic())
            try:
                found = [events.get(timeout=wait_s) if wait_s > 0 else events.get_nowait()]
                while len(found) < _TOGETHER and not events.empty():
                    found.append(events.get_nowait())
            except queue.Empty:
                found = []

    def _end_threads(self) -> None:
        for each in self._queues.values():
            each.put(None)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread; what it did not expect ends the membership, and is the agent's error."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  (it becomes the agent's error)
            found = error if isinstance(error, PenstockError) else GroupError(f"{type(error).__name__}: {error}")
            found.cause = error
            self._fail(found, work)

    def _fail(self, error: PenstockError, work: Callable[[], None]) -> None:
        self.error = self.error or error
        if work in (self._run, self._give_orders):  # nobody is left who could leave in good order
            self._dispatcher.let_go()
            for partition in self._dispatcher.begun:
                self._work.abandon(partition)
            self._exited.set()
            self._end_threads()
        else:
            self._events.put(StopRequested(0.0))

    # -- the threads that send

    def _send_beats(self) -> None:
        store = RedisStore(self._servers["beats"])
        while (command := self._queues[Channel.BEATS].get()) is not None:
            self._send(store, command)

    def _send_commands(self) -> None:
        store, commands = RedisStore(self._servers["commands"]), self._queues[Channel.COMMANDS]
        ended = False
        while not ended:
            batch: list[Command] = []
            while len(batch) < _TOGETHER and (not batch or not commands.empty()):
                command = commands.get()
                if command is None:
                    ended = True
                    break
                batch.append(command)
            for each in self._dispatcher.together(batch):
                if isinstance(each[0], Acquire | Confirm | Release):
                    self._send_about(store.server, each)  # type: ignore[arg-type]
                else:
                    self._send(store, each[0])

    def _send(self, store: RedisStore, command: Command) -> None:
        sent = time.monotonic()
        answer: object = None
        try:
            match command:
                case SendBeat(incarnation, lease_ms):
                    answer = store.beat(incarnation, lease_ms)
                case ReadDocument():
                    answer = store.read()
                case Edit(expected, document, lease_ms):
                    answer = store.edit(expected, document, lease_ms)
                case Announce(message):
                    store.announce(message)
        except (Unanswered, GroupError) as error:
            self._not_done(command, error)
        else:
            self._tell(self._dispatcher.answered(command, answer, sent))

    def _send_about(self, server: GroupServer, commands: Sequence[About]) -> None:
        """Send commands about partitions together."""
        steps = [
            server.acquire(c.partition, c.member, c.incarnation, c.epoch, c.instead_of, c.token, c.position)
            if isinstance(c, Acquire)
            else (server.ack if isinstance(c, Confirm) else server.release)(c.partition, c.incarnation, c.token, c.position)
            for c in commands
        ]
        sent = time.monotonic()
        for command, answer in zip(commands, server.many(steps), strict=True):
            if isinstance(answer, Exception):
                self._not_done(command, answer)
            else:
                found = answer
                match command:
                    case Acquire(partition):
                        found = acquired(partition, answer)
                    case Release(partition):
                        found = released(partition, answer)
                self._tell(self._dispatcher.answered(command, found, sent))

    def _not_done(self, command: Command, error: Exception) -> None:
        if is_refused(error):
            self.error = self.error or GroupError(f"The server of group {self._group.name!r} refuses a step: {why(error)}.")
            self._tell(StopRequested(0.0))
        trouble = str(error) if isinstance(error, PenstockError) else f"The server did not answer: {why(error)}."
        if trouble != self.trouble:
            LOG.warning("Group %s of stream %s: %s", self._group.name, self._stream, trouble)
        self.trouble = trouble
        self._tell(self._dispatcher.unanswered(command))

    def _read_changes(self) -> None:
        store, tries = RedisStore(self._servers["changes"]), 0
        while not self._exited.is_set():
            try:
                if tries:  # the server may be another one, or have lost data: then ids begin anew, and nobody has said how the stream is used
                    with suppress(GroupError):  # a foreign key: the next who joins names it
                        store.server.agree(self._partitions, PROTOCOL)
                    last = store.server.last_change()
                    self._changes_seen = self._changes_seen if order(last) >= order(self._changes_seen) else "0-0"
                for entry, message in store.changes(self._changes_seen, BLOCK_MS):
                    self._changes_seen = entry
                    self._events.put(Announced(message))
                tries = 0
            except Unanswered as error:
                if is_refused(error) and not tries:
                    LOG.warning(
                        "Group %s is only polled, as its control stream cannot be read: %s", self._group.name, why(error)
                    )
                tries += 1
                self._exited.wait(random.uniform(0.5, 1.5) * min(1.0, 0.02 * 2 ** min(tries, 6)))  # noqa: S311  (jitter)
        store.server.close()

    # -- the thread that calls the work

    def _give_orders(self) -> None:
        while (command := self._queues[Channel.ORDERS].get()) is not None:
            match command:
                case StartWork(partition, _, token, position):
                    self._dispatcher.begin(command)
                    self._work.start(partition, token, position)
                case StopWork(partition, _, within_s):
                    self._work.stop(partition, within_s)
                case AbandonWork(partition, _):
                    self._work.abandon(partition)
                case Exit():
                    self._exited.set()
        self._exited.set()


def _host() -> str:
    """This machine's name, as far as it can be part of a member's."""
    return "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.")[:60] or "member"


__all__ = ["Agent", "Work"]
