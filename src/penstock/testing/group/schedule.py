"""What happens to one simulated group, drawn from its seed: members, partitions, entries, the network, and disturbances.

Invariant: the seed decides everything. Runs are kept small on purpose (a few members, a few partitions, a few leases; some are large): most bugs of a
protocol show in small runs, and small runs are fast, so there can be many. The lease is one second, in some runs four for every other process.

Read next: `penstock.testing.group.simulator`, which plays a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

LEASE_S: Final = 1.0
HOUR_S: Final = 3600.0

KINDS: Final = (
    "join",
    "kill",
    "kill at a command",
    "restart at once",
    "pause",
    "pause",
    "restart of a paused one",
    "twin",
    "leave",
    "leave at once",
    "all leave",
    "server restarted",
    "server emptied",
    "server failed over",
    "server paused",
    "garbage",
    "entries",
)


class Disturbance(NamedTuple):
    """Something that happens.

    Attributes:
        at: Seconds from the start of the run.
        kind: One of `KINDS`.
        who: Which of the members, counted round.
        amount: How much: seconds of a pause, of a grace, of loss; number of commands or entries.
        jump_s: By how much the server's clock jumps.
    """

    at: float
    kind: str
    who: int = 0
    amount: float = 0.0
    jump_s: float = 0.0


@dataclass(slots=True)
class Schedule:
    """One run.

    Attributes:
        seed: What it was drawn from.
        partitions: How many the stream has.
        starts: When each of the first members starts.
        static: Whether a process that comes again has the id of the one before it.
        grace_s: Of every member.
        entries: By partition, how many there are at the start.
        work_s: The longest that an entry takes, as a rule.
        stuck: Some of the entries (partition, number) that take very long.
        stuck_s: So long.
        calm: Nothing fails; there is one change to a settled group.
        slow: Share of the steps that do not reach the server at once.
        failing: Share of the steps without an answer.
        losing: Share of the messages on the control stream that a member does not get.
        doubling: Share that it gets twice.
        long_s: The lease of every other process, from the second on.
        skew_s: The clocks of processes and server differ by up to so much.
        disturbances: In order.
    """

    seed: int
    partitions: int
    starts: list[float]
    static: bool
    grace_s: float
    entries: list[int]
    work_s: float
    stuck: frozenset[tuple[int, int]] = frozenset()
    stuck_s: float = 0.0
    calm: bool = False
    slow: float = 0.0
    failing: float = 0.0
    losing: float = 0.0
    doubling: float = 0.0
    long_s: float = LEASE_S
    skew_s: float = 0.0
    disturbances: list[Disturbance] = field(default_factory=list)


def draw(seed: int, rng: Random, *, large: bool = False) -> Schedule:
    """A schedule, and whatever else the run draws later from the same `rng`.

    Args:
        seed: Of the run.
        rng: What it is drawn from.
        large: Up to 40 partitions and 20 first members, in place of 6 and 4.
    """
    random, choice = rng.random, rng.choice
    partitions = int(random() * 41) if large else choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6))
    members = 1 + int(random() * 20) if large else choice((1, 2, 2, 2, 3, 3, 4))
    together = random() < 0.3
    schedule = Schedule(
        seed,
        partitions,
        [0.0 if together else random() * 0.3 for _ in range(members)],
        random() < 0.6,
        choice((0.0, 0.2, 0.5, 2.0)),
        [choice((0, 1, 3)) for _ in range(partitions)],
        choice((0.005, 0.05, 0.4)),
        skew_s=choice((0.0, HOUR_S)),
    )
    if random() < 0.2:
        return _calm(schedule, rng)
    if random() < 0.7:
        schedule.slow, schedule.failing = choice((0.0, 0.1, 0.5)), choice((0.0, 0.02, 0.1))
        schedule.losing, schedule.doubling = choice((0.0, 0.2, 1.0)), choice((0.0, 0.3))
    if partitions and random() < 0.2:
        schedule.stuck = frozenset({(int(random() * partitions), int(random() * 3))})
        schedule.stuck_s = choice((0.6, 1.2, 2.5))
    count = choice((1, 1, 2, 2, 3, 4))
    drawn = [_disturbance(0.05 + random() * choice((0.2, 1.5, 2.5)), choice(KINDS), rng) for _ in range(count)]
    if random() < 0.3:
        drawn += [Disturbance(0.3 + 0.45 * i, "entries", amount=1.0) for i in range(6)]
    schedule.disturbances = sorted(drawn)
    schedule.long_s = 4 * LEASE_S if random() < 0.1 else LEASE_S
    return schedule


def _calm(schedule: Schedule, rng: Random) -> Schedule:
    """One change to a settled group; work ends within the grace."""
    schedule.calm, schedule.grace_s, schedule.static = True, 2.0, True
    kind = rng.choice(("join", "kill", "restart at once", "leave", "none"))
    if kind != "none":
        schedule.disturbances = [_disturbance(2.0, kind, rng)._replace(amount=2.0)]
    schedule.disturbances.append(Disturbance(2.0, "entries", amount=3))
    return schedule


def _disturbance(at: float, kind: str, rng: Random) -> Disturbance:
    who = int(rng.random() * 8)
    match kind:
        case "pause" | "restart of a paused one" | "server paused":
            amount = rng.choice((0.5, 1.0, 1.2, 2.0)) * LEASE_S
        case "kill at a command":
            amount = float(int(rng.random() * 12))
        case "leave":
            amount = rng.choice((0.1, 0.5, 2.0))
        case "all leave":
            amount = rng.choice((0.0, 0.5, 2.0))
        case "server restarted" | "server emptied" | "server failed over":
            jump = rng.choice((0.0, -HOUR_S, HOUR_S)) if kind == "server failed over" else 0.0
            return Disturbance(at, kind, who, rng.choice((0.01, 0.3, 1.2)), jump)
        case "entries":
            amount = rng.choice((1.0, 3.0))
        case _:
            amount = 0.0
    return Disturbance(at, kind, who, amount)


__all__ = ["KINDS", "LEASE_S", "Disturbance", "Schedule", "draw"]
