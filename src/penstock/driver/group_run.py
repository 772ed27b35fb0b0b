"""The handle of a flow in a group: one run for each partition that this application owns, begun and ended as the group says.

The group decides who should work on a partition, the partition's checkpoint and the marks in its sinks decide who may: the run that claimed them
last. So a partition is handed over by ending one run and beginning another, and an application that was paused, or that does not hear of the
group, stores nothing of what it has lost.

Read next: `penstock.flow.shared`, `penstock.group.agent`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.arrow.html_tables import html_table
from penstock.checkpoint.group_folder import GroupFolder
from penstock.driver.commands import CommandHandle
from penstock.driver.run import Run
from penstock.driver.shown import group_html
from penstock.errors import DeclarationError, FencedError, FinishedError, PenstockError, without_trace

_LOOK_S: Final = 0.1
_STARTS: Final = threading.Semaphore(2)
"""More starts at a time would only make each of them slower: a driver plans with one or two cores."""
_TAKEN_BACK: Final = 3
"""How often in a row a partition is begun again that somebody else has claimed although the group says that it is this application's, or
whose engine has failed.
"""


class Membership(Protocol):
    """What a run needs of its member of the group; `penstock.group.agent.Agent` is one."""

    @property
    def epoch(self) -> int:
        """The group's epoch, as far as it is known."""
        ...

    @property
    def owned(self) -> Mapping[int, int]:
        """The partitions that are this application's, with their epochs."""
        ...

    @property
    def error(self) -> BaseException | None:
        """Why the member cannot go on; None: it can."""
        ...

    @property
    def figures(self) -> dict[str, Any]:
        """What it knows of its membership."""
        ...

    def start(self) -> None:
        """Join."""
        ...

    def stopped(self, partition: int) -> None:
        """Say that the work on a partition has ended."""
        ...

    def leave(self, grace_s: float | None = None) -> object:
        """Leave: hand everything over within the grace period; returns when that is done."""
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...


class _Work:
    """One partition's thread: it sees to it that the partition has a run while the group says that it is this application's.

    Args:
        name: Of the thread.
        begin: Begins a run.
        stopped: Called when the work has ended that the group wanted to end.
        failed: Called with what went wrong.
        lease_s: See `GroupRun`.

    Attributes:
        run: Its run, while there is one.
        finished: Whether the end of its input was reached, so that nobody works on it any more.
        told_to_stop: Whether a command has stopped its run, for which the whole application stops.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Run],
        stopped: Callable[[], None],
        failed: Callable[[PenstockError], None],
        lease_s: float,
    ) -> None:
        self._begin, self._stopped, self._failed, self._lease_s = begin, stopped, failed, lease_s
        self.run: Run | None = None
        self.finished: bool = False
        self.told_to_stop: bool = False
        self._wanted, self._until, self._owes_answer, self._over = False, 0.0, False, False
        self._told_to_leave = False
        self._lost, self._began = 0, 0.0
        self._failures, self._reached = 0, -1
        self._changed = threading.Condition()
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def order(self, *, wanted: bool, within_s: float = 0.0) -> None:
        """What the group says: to work on the partition, or to end that within so many seconds, 0: at once. Returns at once."""
        with self._changed:
            self._wanted, self._until = wanted, time.monotonic() + within_s
            self._owes_answer = not wanted
            self._changed.notify()

    def close(self) -> None:
        """Let go of the thread; a run is abandoned."""
        with self._changed:
            self._wanted, self._until, self._over = False, 0.0, True
            self._changed.notify()

    def _live(self) -> None:
        while True:
            with self._changed:
                if self._over and self.run is None:
                    return
                self._changed.wait(_LOOK_S)
            try:
                self._step()
            except FencedError as error:  # another application works on the partition
                self.run = None
                self._lose(error)
            except PenstockError as error:
                run, self.run = self.run, None
                if type(error) is PenstockError and self._again(run):
                    continue  # of the engine, such as a process of Spark's that did not come up
                self._wanted = False
                self._failed(error)
            except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
                self.run, self._wanted = None, False
                self._failed(PenstockError(f"{type(error).__name__}: {error}"))

    def _step(self) -> None:
        run = self.run
        if self._wanted and run is None and not self.finished and time.monotonic() >= self._until:
            with _STARTS:
                if self._wanted:
                    self.run, self._began, self._told_to_leave = self._opened(), time.monotonic(), False
        elif run is not None and not run.active:
            run.await_termination()  # raises its error
            self.run = None
            self.finished = run.finished
            self.told_to_stop = self._wanted and run.stopped
            if not (run.finished or run.stopped or self._told_to_leave):
                raise PenstockError(run.outcome)
        elif run is not None and not self._wanted:
            self._told_to_leave = True
            if time.monotonic() < self._until:
                run.leave(_LOOK_S)
            else:
                run.abandon()
        with self._changed:
            answers = self._owes_answer and self.run is None
            self._owes_answer = self._owes_answer and not answers
        if answers:
            self._stopped()

    def _opened(self) -> Run | None:
        try:
            return self._begin()
        except FinishedError:  # its end was reached, here or elsewhere
            self.finished = True
            return None

    def _again(self, run: Run | None) -> bool:
        """Whether to begin once more after the engine has failed: a few times, unless it had come further meanwhile."""
        epoch = -1 if run is None else run.progress["epoch"]
        self._failures = 1 if epoch > self._reached else self._failures + 1
        self._reached, self._until = max(epoch, self._reached), time.monotonic() + _LOOK_S * 10
        return self._wanted and self._failures <= _TAKEN_BACK

    def _lose(self, error: FencedError) -> None:
        """Somebody else has claimed the partition. The group will say so within a lease; if it does not, the other one was late, and this one claims it."""
        quiet = time.monotonic() - self._began > 3 * self._lease_s
        self._lost = 1 if quiet else self._lost + 1
        if self._wanted and self._lost > _TAKEN_BACK:
            self._wanted = False
            self._failed(error)
        self._until = time.monotonic() + self._lease_s


@dataclass(frozen=True)
class GroupHandle:
    """A command to all partitions of an application. `handles`: by partition, that of the command."""

    handles: Mapping[int, CommandHandle]

    def __repr__(self) -> str:
        return f"<{'; '.join(f'partition {number}: {handle!r}' for number, handle in self.handles.items())}>"

    def _repr_html_(self) -> str:
        return html_table(("partition", "command"), [(number, repr(handle)) for number, handle in self.handles.items()])

    @property
    def done(self) -> bool:
        """Whether it has been carried out in all of them; raises as `CommandHandle.done`."""
        return all(handle.done for handle in self.handles.values())

    @property
    def progress(self) -> dict[int, dict[str, Any]]:
        """By partition; see `CommandHandle.progress`."""
        return {number: handle.progress for number, handle in self.handles.items()}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done in all of them, or (False) `timeout` seconds have passed or a partition has gone; raises as `done`."""
        until = None if timeout is None else time.monotonic() + timeout
        return all(h.wait(None if until is None else max(0.0, until - time.monotonic())) for h in self.handles.values())


class GroupRun:
    """A flow that shares a stream with other applications. Made by `Flow.start` with ``group=``.

    Args:
        name: The flow's name.
        folder: The folder that the applications share.
        open_partition: Begins the run of a partition.
        lease_s: For how long another application may work on a partition before this one hears of it.
        warm_up_s: See the attribute.

    Attributes:
        warm_up_s: Seconds for which the application warmed up before it joined: first epochs of a session are slow, so it ran some without
            input of the flow.

    Example:
        >>> orders = ps.redis_streams("redis://localhost:6379", "orders", partitions=2, schema="customer string, at timestamp, amount double")
        >>> flow = ps.Flow("totals")
        >>> by_customer = flow.source("orders", orders, time="at").key_by("customer", distribute=ps.ByPartition())
        >>> days = by_customer.window(ps.tumbling("1 day")).aggregate(total=ps.sum("amount"))
        >>> stored = days.sink(ps.sql("sqlite:///totals.db", "totals"))
        >>> run = flow.start(spark, checkpoint="checkpoint", group=ps.Group("redis://localhost:6379", "billing"))
        >>> while run.owned != {0, 1}:
        ...     time.sleep(0.1)
        >>> run.active, run.epoch >= 1, run.figures["owned"], run.warm_up_s > 0
        (True, True, 2, True)
        >>> while set(run.partitions) != {0, 1} or len(run.progress) < 2:  # their runs begin
        ...     time.sleep(0.1)
        >>> run.scale("customer", 2).wait()
        True
        >>> run.shutdown(), run.await_termination()
        (True, True)
    """

    warm_up_s: float = 0.0

    def __init__(
        self, name: str, folder: GroupFolder, open_partition: Callable[[int], Run], lease_s: float, warm_up_s: float = 0.0
    ) -> None:
        self.warm_up_s = warm_up_s
        self._name, self._folder, self._open, self._lease_s = name, folder, open_partition, lease_s
        self._work: dict[int, _Work] = {}
        self._ended, self._leaving = threading.Event(), threading.Event()
        self._error: PenstockError | None = None
        self._drain = False
        self._member: Membership | None = None

    def join(self, member: Membership) -> None:
        """Begin to work as a member of the group."""
        self._member = member
        member.start()
        threading.Thread(target=self._supervise, name=f"penstock-group-{self._name}", daemon=True).start()

    def __repr__(self) -> str:
        return f"<{self._line()}>"

    def _repr_html_(self) -> str:
        return group_html(self._line(), self.partitions)

    def _line(self) -> str:
        state = (
            self.outcome.rstrip(".")
            or f"a member of the group, with partitions {', '.join(map(str, sorted(self.owned))) or 'none'}"
        )
        return f"Run of flow {self._name!r}: {state}"

    # -- what the group says; see `penstock.group.agent.Work`

    def start(self, partition: int, token: int, position: str) -> None:
        """The partition is this application's."""
        del token, position  # its checkpoint and the marks in its sinks say more
        if partition not in self._work:
            self._work[partition] = _Work(
                f"penstock-{self._name}@{partition}",
                lambda: self._open(partition),
                lambda: self._stopped(partition),
                lambda error: self._fail(error, f"Partition {partition}: "),
                self._lease_s,
            )
        self._work[partition].order(wanted=True)

    def stop(self, partition: int, within_s: float) -> None:
        """Another application is to have the partition."""
        self._work[partition].order(wanted=False, within_s=within_s)

    def abandon(self, partition: int) -> None:
        """The partition may be another application's already."""
        self._work[partition].order(wanted=False)

    def _stopped(self, partition: int) -> None:
        if self._member is not None:
            self._member.stopped(partition)

    def _fail(self, error: BaseException, where: str = "") -> None:
        if not isinstance(error, PenstockError):
            error = PenstockError(f"{where}{type(error).__name__}: {error}")
        self._error = self._error or without_trace(error, error.__cause__)
        self._leaving.set()

    # -- the whole

    def _supervise(self) -> None:
        """Look after the whole until the application leaves."""
        while not self._leaving.wait(_LOOK_S):
            if self._member is not None and self._member.error is not None:
                self._fail(self._member.error)
            own = [self._work.get(number) for number in self.owned]
            if any(work.told_to_stop for work in own if work) or (own and all(work and work.finished for work in own)):
                self._leaving.set()
        try:
            if self._drain and self._error is None:
                runs = [work.run for work in self._work.values() if work.run is not None and work.run.active]
                for seconds in (0.0, None):  # all are told before the first one is waited for
                    for run in runs:
                        run.shutdown(drain=True, timeout=seconds)
            if self._member is not None:
                self._member.leave()
                self._member.close()
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            self._fail(error)
        finally:
            for work in self._work.values():
                work.close()
            self._ended.set()

    @property
    def owned(self) -> set[int]:
        """The partitions that are this application's now."""
        return set() if self._member is None else set(self._member.owned)

    @property
    def epoch(self) -> int:
        """The group's epoch: it rises whenever a member comes or goes."""
        return 0 if self._member is None else self._member.epoch

    @property
    def figures(self) -> dict[str, Any]:
        """This application's membership in figures: epoch, members, partitions owned, rebalances and fences; see the reference, "Figures", of an application."""
        return {} if self._member is None else self._member.figures

    @property
    def partitions(self) -> dict[int, Run]:
        """The runs of this application's partitions."""
        runs = [(number, work.run) for number, work in sorted(self._work.items())]
        return {number: run for number, run in runs if run is not None}

    @property
    def progress(self) -> dict[int, dict[str, Any]]:
        """By partition, the figures of its last epoch; see `Run.progress`."""
        return {n: run.progress for n, run in self.partitions.items()}

    @property
    def changes(self) -> tuple[str, ...]:
        """What of the state begins empty or was forgotten because the flow has changed, a sentence each; by partition."""
        return tuple(f"Partition {n}: {sentence}" for n, run in self.partitions.items() for sentence in run.changes)

    @property
    def last_end(self) -> str:
        """How the runs before ended that this application has taken over, if they did not end cleanly, in sentences; by partition."""
        return " ".join(f"Partition {n}: {run.last_end}" for n, run in self.partitions.items() if run.last_end)

    @property
    def active(self) -> bool:
        """Whether this application is a member."""
        return not self._ended.is_set()

    @property
    def exception(self) -> PenstockError | None:
        """Why the application left; None if it did not fail."""
        return self._error

    @property
    def outcome(self) -> str:
        """How the run has ended, in a sentence; empty while it runs."""
        if self.active:
            return ""
        if self._error is not None:
            return str(self._error)
        return f"The application left the group; started again on {self._folder.uri} it joins again."

    def scale(self, region: str | None = None, workers: int | None = None) -> GroupHandle:
        """Change the number of workers of a region, or of all, in each of this application's partitions; see `Run.scale`.

        A partition keeps its number when another application takes it over.
        """
        return self._each(lambda run: run.scale(region, workers))

    def snapshot(self, name: str) -> GroupHandle:
        """Keep a named copy of each of this application's partitions, each as of the end of an epoch of its own; see `Run.snapshot`.

        There is none of the whole group: its applications share no moment, and its partitions no state.
        """
        return self._each(lambda run: run.snapshot(name))

    def load(self, name: str, *, keep_output: bool = False) -> GroupHandle:
        """Go back to a snapshot in each of this application's partitions; see `Run.load`."""
        return self._each(lambda run: run.load(name, keep_output=keep_output))

    def _each(self, command: Callable[[Run], CommandHandle]) -> GroupHandle:
        runs = self.partitions
        if not runs:
            raise DeclarationError(
                "This application has no partition at this moment, so there is nothing to command; see run.owned."
            )
        return GroupHandle({number: command(run) for number, run in runs.items()})

    def shutdown(self, *, drain: bool = False, timeout: float | None = None) -> bool:
        """Leave the group; the other applications go on with this one's partitions.

        Args:
            drain: True: process what there is of this application's partitions and end them for good, everything is given out. Then no
                application can go on with them.
            timeout: Seconds to wait; None: no limit.

        Returns:
            Whether the application has left.

        Raises:
            PenstockError: The flow failed meanwhile.
        """
        self._drain = self._drain or drain
        self._leaving.set()
        return self.await_termination(timeout)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the application has left.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            Whether it has.

        Raises:
            PenstockError: It failed; the error says why.
        """
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise without_trace(self._error)
        return ended


__all__ = ["GroupRun", "Membership"]
