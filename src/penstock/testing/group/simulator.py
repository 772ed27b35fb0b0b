"""A group in a world in one process: members, a store, a network and clocks, all drawn from a seed.

    outcome = simulate(7)
    assert not check(outcome)          # penstock.testing.group.checkers
    simulate(7, trace=print)           # what happened, event by event

The members are real (`penstock.protocol.group.member`); store, network and work are models. Steps reach the server at once, late, never,
or after their sender has given up; their answers get lost. Messages of the control stream get lost, doubled, late, reordered, and
some are garbage. Processes are paused, killed between any two commands, started again with the same id, or twice. The server is
paused, restarted with its data or without, or replaced by another with older data and another clock.

Invariant: a seed gives the same run in every process. The checkers see the `Outcome` only.

Read next: `penstock.testing.group.checkers`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

from penstock.protocol.group.dispatch import Dispatcher
from penstock.protocol.group.events import (
    Acquire,
    Announce,
    Announced,
    Beaten,
    Command,
    Confirm,
    Edit,
    Edited,
    Event,
    Exit,
    Failed,
    ReadDocument,
    Release,
    SendBeat,
    Started,
    StopRequested,
)
from penstock.protocol.group.member import Member
from penstock.protocol.group.store import Message, Wanted
from penstock.testing.group.outcome import Ack, DataLost, Gone, Outcome, Renewed
from penstock.testing.group.process import Process, Work
from penstock.testing.group.schedule import LEASE_S, Disturbance, Schedule, draw
from penstock.testing.group.store import Kept, ModelStore

FAST_S: Final = 0.002
TIMEOUT_S: Final = 0.15
LOOK_EVERY_S: Final = 0.2
SETTLING_S: Final = 12 * LEASE_S
"""Within so long after the last disturbance, work that is stuck apart, a group settles."""
GHOST_S: Final = 0.6
"""A step may be carried out so long after its sender has given it up."""


class World:
    """A group that runs; subclasses break it on purpose.

    Args:
        schedule: What happens.
        rng: Draws durations, and what becomes of steps and messages.
        trace: Gets a line for everything that happens.
    """

    member: type[Member] = Member
    process: type[Process] = Process
    model: type[ModelStore] = ModelStore

    def __init__(self, schedule: Schedule, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.schedule, self.rng, self.trace = schedule, rng, trace
        self.now = 0.0
        self.outcome = Outcome(schedule)
        self.log = self.outcome.log
        self.entries = list(schedule.entries)
        self.processes: list[Process] = []
        self.queue: list[tuple[float, int, Process | None, Callable[[Any], None], Any]] = []
        self.numbers = count()
        self.names = count()
        self.server_offset_s = self.skew()
        self.down_until = 0.0
        self.store = self.model(lambda: int((self.now + self.server_offset_s) * 1000), self.publish)
        self.kept: dict[float, Kept] = {}
        self.disturbed = 0
        self.looked: tuple[int, ...] = ()
        last = max((d.at for d in schedule.disturbances), default=0.0)
        self.heal_at = max(last, *schedule.starts) + 0.01
        self.give_up_at = 0.0

    def skew(self) -> float:
        """What a clock shows more than the world's; never less than nothing for the machine's own clock, which starts anywhere."""
        return 2 * self.schedule.skew_s * self.rng.random() + 10_000.0

    def at(self, time: float, process: Process | None, call: Callable[[Any], None], argument: Any) -> None:
        """Do something at a time; in a process, not before it is awake."""
        heappush(self.queue, (time, next(self.numbers), process, call, argument))

    def later(self, seconds: float, process: Process | None, call: Callable[[Any], None], argument: Any) -> None:
        """Do something in so many seconds."""
        heappush(self.queue, (self.now + seconds, next(self.numbers), process, call, argument))

    # ------------------------------------------------------------------------------------------------------------- a run

    def run(self) -> Outcome:
        """Play the schedule."""
        schedule, queue, outcome = self.schedule, self.queue, self.outcome
        for time in schedule.starts:
            self.at(time, None, self.start, None)
        for each in schedule.disturbances:
            if each.kind == "server failed over":
                self.at(max(0.0, each.at - each.amount), None, self.keep, each)
            self.at(each.at, None, self.disturb, each)
        self.at(self.heal_at, None, self.look, None)
        while queue:
            time, number, process, call, argument = heappop(queue)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until > time:
                    heappush(queue, (process.paused_until, number, process, call, argument))
                    continue
            self.now = time
            call(argument)
        outcome.entries, outcome.ended = self.entries, self.now
        outcome.shares = {p.origin: tuple(p.member.owned) for p in self.living}
        return outcome

    @property
    def living(self) -> list[Process]:
        """Processes that are not dead."""
        return [p for p in self.processes if p.alive]

    def start(self, name: str | None) -> None:
        """Start a process, with this member id or a new one."""
        number = next(self.names)
        schedule = self.schedule
        lease_s = schedule.long_s if number % 2 else LEASE_S
        member = self.member(
            name or f"m{number}",
            f"i{number}",
            schedule.partitions,
            lease_s=lease_s,
            grace_s=schedule.grace_s,
            seed=schedule.seed + number,
        )
        process = self.process(self, member, self.skew())
        self.processes.append(process)
        if self.trace:
            self.trace(f"{self.now:.3f} {process.origin} starts as {member.name}")
        self.outcome.names[process.origin] = member.name
        self.outcome.leases_s[process.origin] = lease_s
        process.tell(Started())

    def look(self, _: None) -> None:
        """Whether it has settled, after everything that was to happen; if not, look again later."""
        living = self.living
        awake = max((p.paused_until for p in living), default=0.0)
        if self.now < max(awake, self.down_until):
            self.heal_at = max(awake, self.down_until) + 0.001
            self.at(self.heal_at, None, self.look, None)
            return
        if not self.give_up_at:
            self.outcome.healed = self.now
            self.give_up_at = self.now + SETTLING_S * self.schedule.long_s / LEASE_S + self.schedule.stuck_s
        if self.is_settled(living):
            epochs = tuple(p.member.epoch for p in living)
            if self.looked == epochs:
                self.outcome.settled = self.now
                self.queue.clear()
                return
            self.looked = epochs
        else:
            self.looked = ()
        if self.now >= self.give_up_at:
            self.queue.clear()
        else:
            self.later(LOOK_EVERY_S, None, self.look, None)

    def is_settled(self, living: list[Process]) -> bool:
        """Whether everybody works on what it should, and everything is handled."""
        if not living:
            return True
        document = self.store.document
        if document is None or {e.incarnation for e in document.members.values()} != {p.member.incarnation for p in living}:
            return False
        positions = {p: int(row.position.partition("-")[0]) for p, row in self.store.rows.items()}
        return (
            all(p.member.settled and p.member.epoch == document.epoch for p in living)
            and sum(len(p.member.owned) for p in living) == self.schedule.partitions
            and all(positions.get(p, 0) >= n for p, n in enumerate(self.entries))
        )

    # --------------------------------------------------------------------------------------------------------- the network

    @property
    def healthy(self) -> bool:
        """Whether steps and messages arrive."""
        return self.now >= self.heal_at

    def send(self, process: Process, command: Command) -> None:
        """A command leaves a process."""
        if type(command) is Exit:
            process.alive = False
            self.log.append(Gone(self.now, process.origin))
            if command.refusal:
                self.outcome.refused[process.origin] = command.refusal.sentence
            if self.trace:
                self.trace(f"{self.now:.3f} {process.origin} exits: {command.refusal}")
            return
        self.travel(process, self.carry_out, (process, command, self.now), self.answer, command)

    def travel(
        self, process: Process, carry_out: Callable[[Any], Any], what: Any, answer: Callable[[Any], None], about: Any
    ) -> None:
        """A step goes to the server and its answer comes back; or not."""
        random, schedule = self.rng.random, self.schedule
        fails = not self.healthy and schedule.failing and random() < schedule.failing
        slow = schedule.slow and random() < schedule.slow
        delay = random() * 0.03 if slow else 0.0
        if self.now < self.down_until:
            if random() < 0.5:
                self.later(FAST_S, process, answer, (process, about, None))  # refused
                return
            delay, fails = self.down_until - self.now, fails or self.down_until - self.now > TIMEOUT_S
        if fails:
            self.later(TIMEOUT_S, process, answer, (process, about, None))
            if (chance := random()) < 0.3:
                return  # never arrives
            delay = random() * GHOST_S if chance < 0.5 else delay
            self.later(delay, None, lambda each: carry_out(each) and None, what)
        elif delay:
            self.later(delay, None, lambda each: self.later(FAST_S, process, answer, (process, about, carry_out(each))), what)
        else:
            result = carry_out(what)
            self.later(FAST_S * (0.5 + random()), process, answer, (process, about, result))

    def carry_out(self, what: tuple[Process, Command, float]) -> Any:
        """The server carries out a step; the event that answers it, or True if none does."""
        process, command, sent = what
        event = Dispatcher.answered(command, self.step(process, command), sent + process.offset_s)
        return True if event is None else event

    def step(self, process: Process, command: Command) -> Any:
        """The server carries out a step; its answer."""
        store = self.store
        answer: Any = None
        match command:
            case SendBeat(incarnation, lease_ms):
                answer = store.beat(incarnation, lease_ms)
            case ReadDocument():
                answer = store.read()
            case Edit(expected, document, lease_ms):
                answer = store.edit(expected, document, lease_ms)
            case Acquire(partition, member, incarnation, epoch, instead_of, token, position):
                answer = store.acquire(partition, member, incarnation, epoch, instead_of, token, position)
            case Release(partition, incarnation, token, position):
                answer = store.release(partition, incarnation, token, position)
            case Confirm(partition, incarnation, token, position):
                answer = store.ack(partition, incarnation, token, position)
            case Announce(message):
                store.announce(message)
        if self.trace:
            self.trace(f"{self.now:.3f} {process.origin} {command} -> {answer}")
        return answer

    def answer(self, what: tuple[Process, Any, Any]) -> None:
        """An answer comes, or the time for it is over."""
        process, command, event = what
        if event is not None:
            if event is not True:
                self.note_renewal(process, event)
                process.tell(event)
            return
        self.note_no_answer(process, command)
        if type(command) is not Announce:
            process.tell(Failed(command))

    def note_renewal(self, process: Process, event: Event | None) -> None:
        """A process has learnt of a heartbeat, or of its joining."""
        kind = type(event)
        if (kind is Beaten and event.beat.known) or (kind is Edited and event.done):  # type: ignore[union-attr]
            self.log.append(Renewed(event.sent - process.offset_s, process.origin))  # type: ignore[union-attr]

    def note_no_answer(self, process: Process, command: Command) -> None:
        """No answer has come to a command in time."""
        self.outcome.seen.add("no answer")
        if self.trace:
            self.trace(f"{self.now:.3f} {process.origin} gets no answer to {command}")

    def send_ack(self, work: Work, entry: int) -> None:
        """An ack leaves a process."""
        self.travel(work.process, self.carry_out_ack, (work, entry), self.answer_ack, (work, entry))

    def carry_out_ack(self, what: tuple[Work, int]) -> bool:
        """The server carries out an ack."""
        work, entry = what
        return self.step_ack(work.process, work.partition, work.incarnation, work.token, entry)

    def step_ack(self, process: Process, partition: int, incarnation: str, token: int, entry: int) -> bool:
        """The server carries out an ack; its answer."""
        accepted = self.store.ack(partition, incarnation, token, f"{entry}-0")
        self.log.append(Ack(self.now, process.origin, partition, token, entry, accepted))
        if self.trace:
            self.trace(f"{self.now:.3f} {process.origin} ack {partition} token {token} entry {entry}: {accepted}")
        return accepted

    def answer_ack(self, what: tuple[Process, tuple[Work, int], bool | None]) -> None:
        """The answer to an ack comes, or the time for it is over."""
        _, (work, entry), accepted = what
        work.answered((entry, accepted))

    def publish(self, message: Message) -> None:
        """A message was appended to the control stream; each member reads it, or not."""
        random, schedule = self.rng.random, self.schedule
        if type(message) is Wanted:
            self.outcome.seen.add("lock wanted")
        for process in self.processes:
            if not process.alive:
                continue
            if not self.healthy and random() < schedule.losing:
                continue
            times = 2 if not self.healthy and random() < schedule.doubling else 1
            for _ in range(times):
                delay = random() * 0.1 if schedule.slow and random() < schedule.slow else FAST_S
                self.later(delay, process, self.read_message, (process, message))

    def read_message(self, what: tuple[Process, Message | None]) -> None:
        """A member reads a message of the control stream."""
        process, message = what
        process.tell(Announced(message))

    def work_s(self, partition: int, entry: int) -> float:
        """How long an entry takes."""
        schedule = self.schedule
        if (partition, entry) in schedule.stuck:
            return schedule.stuck_s
        return schedule.work_s * self.rng.random()

    # -------------------------------------------------------------------------------------------------------- disturbances

    def keep(self, each: Disturbance) -> None:
        """A replica has the data of this time, when it takes over."""
        self.kept[each.at] = self.store.kept()

    def disturb(self, each: Disturbance) -> None:
        """Something happens."""
        kind, living, outcome = each.kind, self.living, self.outcome
        if self.trace:
            self.trace(f"{self.now:.3f} --- {each}")
        if self.schedule.calm and not outcome.before:
            outcome.before = {p.member.name: tuple(p.member.owned) for p in living}
        if kind.startswith("server"):
            self.disturb_server(each)
        elif kind == "entries":
            self.entries = [n + int(each.amount) for n in self.entries]
            for process in living:
                for work in list(process.works.values()):
                    self.later(0.0, process, work.go_on_later, None)
        elif kind == "join":
            self.start(None)
        elif living:
            self.disturb_process(each, living[each.who % len(living)], living)
        outcome.seen.add(kind)

    def disturb_server(self, each: Disturbance) -> None:
        """Something happens to the server."""
        self.down_until = max(self.down_until, self.now + each.amount)
        if each.kind == "server emptied":
            self.log.append(DataLost(self.now, -1.0))
            self.store.put_back(None)
        elif each.kind == "server restarted":
            self.store.put_back(self.store.kept())
        elif each.kind == "server failed over":
            self.log.append(DataLost(self.now, max(0.0, each.at - each.amount)))
            self.store.put_back(self.kept.pop(each.at))
            self.server_offset_s += each.jump_s

    def disturb_process(self, each: Disturbance, process: Process, living: list[Process]) -> None:
        """Something happens to a process, or to all."""
        name = process.member.name if self.schedule.static else None
        match each.kind:
            case "kill":
                process.die("killed")
            case "kill at a command":
                process.commands_left = int(each.amount)
            case "restart at once":
                process.die("killed")
                self.later(0.001, None, self.start, name)
            case "pause" | "restart of a paused one":
                process.paused_until = max(process.paused_until, self.now + each.amount)
                self.outcome.paused.add(process.origin)
                if each.kind != "pause":
                    self.later(0.2, None, self.start, process.member.name)
            case "twin":
                self.start(process.member.name)
            case "leave" | "leave at once" | "all leave":
                for one in living if each.kind == "all leave" else [process]:
                    self.outcome.leaving[one.origin] = min(self.now + each.amount, self.outcome.leaving.get(one.origin, 1e9))
                    self.later(0.0, one, one.tell, StopRequested(each.amount))
            case "garbage":
                for message in (None, Wanted(10**9, "x"), Wanted(0, process.member.incarnation)):
                    self.read_message((process, message))


def simulate(
    seed: int, world: type[World] = World, *, large: bool = False, trace: Callable[[str], None] | None = None
) -> Outcome:
    """One run.

    Args:
        seed: Decides everything.
        world: The world to run; a broken one, if the checkers are to be checked.
        large: Up to 20 first members and 40 partitions.
        trace: Gets a line for everything that happens.

    Example:
        >>> simulate(7).settled is not None
        True
    """
    rng = Random(seed)  # noqa: S311 (not for secrets)
    return world(draw(seed, rng, large=large), rng, trace).run()


__all__ = ["World", "simulate"]
