"""What reads a flow's input and calls for its epochs: a streaming query of Spark's, or a thread of the driver's where the driver can plan all input.

A query costs seconds until its first epoch (a source in Python starts a process in the driver) and tenths of a second with each epoch. A
thread that asks the sources itself costs neither. Both keep the same log of input, in Spark's own format, and either can go on with the other's.

Read next: `penstock.spark.logs`, `penstock.spark.sources.planned`, decision 46.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint
from penstock.errors import PenstockError
from penstock.spark import logs
from penstock.spark.internals.queries import ran_out
from penstock.spark.internals.sessions import activate_in_java
from penstock.spark.sources.planned import Ends, Planned, PlannedSlices

if TYPE_CHECKING:
    from penstock.driver.loop import Loop

_KEPT: Final = 100
"""So many epochs remain in the log of input, as Spark has it."""
_LEAST_WAIT_S: Final = 0.01
_CANCELLED_EVERY_S: Final = 0.2


class Stopped(Exception):  # noqa: N818  (no error: the flow was told to)
    """Raised instead of an epoch after the flow, or its reading, was stopped."""


class Reading(Protocol):
    """What reads, and calls for epochs."""

    def stop(self) -> None:
        """End it at once; an epoch under way is not committed. Returns when it has ended."""
        ...

    def ended(self, seconds: float | None) -> bool:
        """Wait for its end so long, None: for ever; gives whether it has ended, and raises what ended it."""
        ...

    def waits(self) -> bool:
        """Whether it waits for input."""
        ...

    def ran_out(self) -> bool:
        """Whether it has ended because there was nothing more to read, and not because somebody has stopped it."""
        ...


class SparkReading:
    """A streaming query of Spark's. `query`: it runs."""

    def __init__(self, query: Any) -> None:
        self._query = query

    def stop(self) -> None:
        self._query.stop()

    def ended(self, seconds: float | None) -> bool:
        ended = not seconds or bool(self._query.awaitTermination(seconds))
        if ended:  # so says Spark of a query that another one stops while its last epoch still runs
            self._query.awaitTermination()
        return ended

    def waits(self) -> bool:
        return "Waiting for" in str(self._query.status["message"])

    def ran_out(self) -> bool:
        return ran_out(self._query)


class PlannedLog:
    """The log of input of epochs that the driver plans.

    Args:
        checkpoint: The checkpoint.
        folder: The log's folder in it.
        sources: Number of sources.
    """

    def __init__(self, checkpoint: Checkpoint, folder: str, sources: int) -> None:
        self._checkpoint, self._folder, self._sources = checkpoint, folder, sources

    def pending(self, last: int) -> tuple[list[Ends | None], list[Ends | None] | None]:
        """Where the input of the epoch after `last` begins, and where it ends if it was planned before; by source, None: it had none yet.

        Raises:
            PenstockError: The log does not reach as far as the flow, or further than one epoch.
        """
        planned = logs.planned_epochs(self._checkpoint, self._folder)
        newest = max(planned, default=-1)
        if newest not in (last, last + 1):
            raise PenstockError(
                f"The log of input of checkpoint {self._checkpoint.uri} ends with epoch {newest}, and its last epoch record is of epoch {last}: "
                "they do not belong together; restore both from one backup."
            )
        for old in planned:
            if old <= newest - _KEPT:
                logs.forget(self._checkpoint, self._folder, old)
        none: list[Ends | None] = [None] * self._sources
        starts = self._ends(last) if last in planned else none
        return starts, self._ends(newest) if newest > last else None

    def plan(self, epoch: int, ends: Sequence[Ends | None]) -> list[Ends | None]:
        """Store where an epoch's input ends, unless another run has done so already; gives what is stored."""
        logs.plan(self._checkpoint, self._folder, epoch, ends)
        if epoch >= _KEPT:
            logs.forget(self._checkpoint, self._folder, epoch - _KEPT)
        return self._ends(epoch)

    def _ends(self, epoch: int) -> list[Ends | None]:
        _, *found = logs.ends_of(logs.input_of(self._checkpoint, self._folder, epoch))
        if len(found) != self._sources:
            raise PenstockError(
                f"The log of input of checkpoint {self._checkpoint.uri} is of {len(found)} sources, and the flow has {self._sources}: they do not "
                "belong together; restore both from one backup."
            )
        return found


class DriverReading:
    """Reads sources that the driver plans, in a thread of its own.

    An epoch's input is stored before it runs. So an epoch that was interrupted runs again with the same input, also in another process.

    Args:
        spark: The session of the epochs.
        log: The log of input.
        sources: The flow's sources.
        loop: Says how far the flow is.
        run_epoch: Runs an epoch by its number and input.
        stopping: Set when no further epoch is wanted.
        every_s: How often an epoch begins, if there is input; None: what there is now is read, and no more.
        check: Called before input is looked for; raises what ends the reading.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: PlannedLog,
        sources: Sequence[Planned],
        loop: Loop,
        run_epoch: Callable[[int, PlannedSlices], None],
        stopping: threading.Event,
        every_s: float | None,
        check: Callable[[], None],
    ) -> None:
        self._spark, self._log, self._sources, self._loop = spark, log, sources, loop
        self._run_epoch, self._stopping, self._every_s, self._check = run_epoch, stopping, every_s, check
        self._stop, self._waits, self._ran_out = threading.Event(), False, False
        self._error: BaseException | None = None
        self._seen: set[str] = set()
        self._group = f"penstock-{uuid.uuid4().hex}"
        self._thread = threading.Thread(target=self._live, name=f"penstock-epochs-{loop.flow.plan.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by `stop`."""
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._group)  # once more, as the epoch may begin another job
            self._thread.join(_CANCELLED_EVERY_S)

    def ended(self, seconds: float | None) -> bool:
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def waits(self) -> bool:
        return self._waits

    def ran_out(self) -> bool:
        return self._ran_out

    def _live(self) -> None:
        try:
            activate_in_java(self._spark)  # as in a query's
            self._spark.sparkContext.setJobGroup(self._group, self._loop.flow.plan.name, interruptOnCancel=True)
            self._read()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            self._error = error

    def _read(self) -> None:
        only = None
        if self._every_s is None:
            for source in self._sources:
                source.planner.prepareForTriggerAvailableNow()
            only = self._commands()
        epoch = self._loop.last.epoch + 1
        known, ends = self._log.pending(epoch - 1)
        while not (self._stop.is_set() or self._stopping.is_set()):
            began = time.monotonic()
            self._check()
            starts = [s.planner.initialOffset() if k is None else k for s, k in zip(self._sources, known, strict=True)]
            if ends is None:
                ends = self._planned(epoch, known, starts, only)
            if ends is None and self._every_s is None:
                self._ran_out = True
                return
            ran = ends is not None
            if ends is not None:
                self._run_epoch(epoch, self._slices(starts, ends))
                known, ends, epoch = [k if e is None else e for k, e in zip(known, ends, strict=True)], None, epoch + 1
            if self._every_s is not None:
                rest = began + self._every_s - time.monotonic()
                self._wait(rest if ran else max(rest, _LEAST_WAIT_S))

    def _planned(
        self, epoch: int, known: Sequence[Ends | None], starts: Sequence[Ends], only: set[str] | None
    ) -> list[Ends | None] | None:
        """Plan an epoch, if there is input or a command. `only`: commands that count; None: all."""
        commands = self._commands()
        new = (commands if only is None else commands & only) - self._seen
        ends = [s.planner.latestOffset(start, None) for s, start in zip(self._sources, starts, strict=True)]
        if ends == list(known) and not new:
            return None
        self._seen |= commands
        return self._log.plan(epoch, ends)

    def _slices(self, starts: Sequence[Ends], ends: Sequence[Ends | None]) -> PlannedSlices:
        each = zip(self._sources, starts, ends, strict=True)
        return PlannedSlices(self._spark, [(s, [] if e is None else s.planner.partitions(b, e)) for s, b, e in each])

    def _commands(self) -> set[str]:
        """Commands that were not obeyed yet."""
        return set(self._loop.checkpoint.control_names()).difference(self._loop.last.control)

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._waits = True
            self._stop.wait(seconds)
            self._waits = False


__all__ = ["DriverReading", "PlannedLog", "Reading", "SparkReading", "Stopped"]
