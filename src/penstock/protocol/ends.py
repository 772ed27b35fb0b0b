"""How a flow ends, as a pure machine: what the record keeps, and what a run does next.

::

    reads on ── drain ──> reads what there is ── end of it ──> end of the input ──> finished
       │ stop                    │ stop                            │ stop
       └─────────────────────────┴──> stopped: the next run reads on <──┘

Only an ``end`` finishes a flow, and only a run that has read all its input submits one. The rules are in
`penstock.protocol.controller`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Told:
    """What an epoch's commands say about the end; the later one counts.

    Attributes:
        end: The input has ended.
        drain: Process the present input, then end it.
        stop: End the run.
        withdrawn: An earlier drain or end no longer holds.
    """

    end: bool = False
    drain: bool = False
    stop: bool = False
    withdrawn: bool = False

    def drained(self) -> Told:
        """After a drain."""
        return replace(self, drain=True, stop=False)

    def stopped(self, *, late: bool) -> Told:
        """After a stop; one that came too late for its run still withdraws a drain."""
        return Told(stop=not late, withdrawn=True)

    def ended(self) -> Told:
        """After an end; a run that is to stop does not end its input."""
        return self if self.stop else replace(self, end=True)


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a flow is on its way to an end; kept in the epoch record.

    Attributes:
        ending: The end of the input was requested in this epoch and put off, because a key was on hold.
        finished: The frontier is MAX: the flow is never scheduled again.
        stopped: A command stopped the run in this epoch.
        draining: A command asked to process the present input and then to end.
    """

    ending: bool = False
    finished: bool = False
    stopped: bool = False
    draining: bool = False

    def after(self, told: Told, *, held: bool) -> Ends:
        """After an epoch.

        Args:
            told: What its commands said.
            held: Whether a key is on hold, which puts off the end (rule H7). It is submitted again, because input may arrive
                meanwhile.
        """
        if self.finished:
            return replace(self, stopped=told.stop)
        end = told.end and not (told.drain and not self.draining)  # a new drain counts what has arrived until now
        return Ends(
            ending=end and held,
            finished=end and not held,
            stopped=told.stop,
            draining=told.drain or (self.draining and not told.withdrawn),
        )


class Step(StrEnum):
    """What a run does next."""

    READ = "read"
    READ_AVAILABLE = "read what there is"
    END = "end the input"
    COPY = "wait for keys on hold"
    GO_BACK = "go back to a snapshot"
    LEAVE = "leave"


def next_step(ends: Ends, *, rollback_pending: bool, bounded: bool, drain: bool, ended_reading: Step | None) -> Step:
    """What a run does next.

    Args:
        ends: Where the flow is; `stopped` and `ending` as far as they concern this run.
        rollback_pending: Whether a rollback is pending.
        bounded: Whether the run reads only the present input.
        drain: Whether that is then the whole input.
        ended_reading: How it has read, if reading ended by itself since the last call; None: it begins, or has gone back.
    """
    if ends.finished or ends.stopped:
        return Step.LEAVE
    if rollback_pending:
        return Step.GO_BACK
    if not bounded and not ends.draining:
        return Step.LEAVE if ended_reading is Step.READ else Step.READ
    if ended_reading is not Step.READ_AVAILABLE:
        return Step.READ_AVAILABLE
    if not drain and not ends.draining:
        return Step.LEAVE
    return Step.COPY if ends.ending else Step.END


class Reader(Protocol):
    """What runs the epochs."""

    def where(self) -> tuple[Ends, bool]:
        """Where the flow is, as far as it concerns this run, and whether a rollback is pending."""
        ...

    def read(self, available: bool) -> bool:
        """Run epochs until there is nothing more to read, or a command ends that; raises what an epoch raised.

        Args:
            available: Whether to read only the present input.

        Returns:
            Whether that has happened; False if somebody else has ended the reading.
        """
        ...

    def end(self) -> None:
        """Submit the command that ends the input."""
        ...

    def copy(self) -> None:
        """Wait until keys on hold have been copied, or a command has arrived."""
        ...

    def roll_back(self) -> None:
        """Go back to a snapshot."""
        ...


def supervise(reader: Reader, *, bounded: bool, drain: bool, leaving: Callable[[], bool] = lambda: False) -> None:
    """Take a run from its start to its end.

    Args:
        reader: Runs the epochs.
        bounded: Whether the run reads only the present input.
        drain: Whether that is then the whole input.
        leaving: Whether the run ends although the flow goes on, elsewhere.
    """
    read: Step | None = None
    draining = reader.where()[0].draining
    while not leaving():
        ends, rollback_pending = reader.where()
        if ends.draining and not draining:
            read = read if read is Step.READ else None  # what arrived before the drain belongs to the input
        draining = ends.draining
        step = next_step(ends, rollback_pending=rollback_pending, bounded=bounded, drain=drain, ended_reading=read)
        match step:
            case Step.READ | Step.READ_AVAILABLE:
                if not reader.read(step is Step.READ_AVAILABLE):
                    return
                read = step
            case Step.END | Step.COPY:
                reader.end() if step is Step.END else reader.copy()
                if not reader.read(True):
                    return
            case Step.GO_BACK:
                reader.roll_back()
                read = None
            case Step.LEAVE:
                return
