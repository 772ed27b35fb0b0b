"""What a simulated run shows from outside: all that the checkers get to see.

Invariant: nothing here is a variable of the protocol. A table says where records go, a state what a worker holds; both could be
read from a checkpoint.

Read next: `penstock.testing.checkers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.routing.table import Routing
from penstock.testing.schedule import Record, Schedule
from penstock.testing.simulated_worker import Emitted, State


class Copy(NamedTuple):
    """A state moved beside the epochs: given up in epoch `since`, told to be there in epoch `done`."""

    region: int
    key: int
    since: int
    done: int


class RegionEpoch(NamedTuple):
    """What can be seen of a region from outside in an epoch that was committed.

    Attributes:
        tasks: Number of tasks that ran.
        states: By worker, what it held at the end.
        table: Where the next epoch's records go.
        announced: The frontier that others were told.
        own: By key that the strategy has pinned, its worker.
        pins: By key, the worker at which users want it.
    """

    tasks: int
    states: dict[int, State]
    table: Routing
    announced: int
    own: Mapping[int, int]
    pins: Mapping[int, int]


@dataclass(slots=True)
class Outcome:
    """All that a run has shown.

    Attributes:
        schedule: What was asked.
        input: By epoch, the records of the source.
        frontiers: By epoch, the frontier of the source.
        emitted: What the sink holds, in order.
        epochs: By epoch, what each region showed.
        copies: States moved beside the epochs.
        reruns: What the sink had stored when an epoch was run again, and what it was then given.
        asked: By region, the number of workers that was last asked for.
        pins: By region, the worker at which each key was last asked to be.
        accepted: (epoch, fault) of messages that a worker should have refused.
        quiet_from: The epoch of the last `scale` or `move`, of the last going back, or in which the strategy last changed its mind.
        ended: Whether the run came to its end by itself.
        seen: What happened in it, for coverage.
    """

    schedule: Schedule
    input: list[list[Record]] = field(default_factory=list)
    frontiers: list[int] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)
    epochs: list[list[RegionEpoch]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    reruns: list[tuple[list[Emitted], list[Emitted]]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    pins: list[dict[int, int]] = field(default_factory=list)
    accepted: list[tuple[int, str]] = field(default_factory=list)
    quiet_from: int = 0
    ended: bool = False
    seen: set[str] = field(default_factory=set)
