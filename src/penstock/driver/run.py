"""The handle of a running flow: follows it to its end in a thread, submits commands, and reports its state. It knows no engine.

Read next: `penstock.driver.loop`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint.record import EpochRecord, outcome_of, progress_of
from penstock.driver.commands import Commander, CommandHandle
from penstock.driver.loop import Loop
from penstock.driver.recovery import recovery_figures
from penstock.driver.shown import run_html, run_line
from penstock.errors import DeclarationError, FencedError, FinishedError, PenstockError, without_trace
from penstock.flow.spellings import RUN, missing

_LOOKS: Final = 20
"""So often a command looks for the first epoch, within a second; then it asks for one."""


class Run:
    """A running flow. Made by `Flow.start`. `ended` is called with how it has ended: its error, or a sentence.

    Example:
        >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
        >>> run = flow.start(spark, checkpoint="checkpoint", workers=1)
        >>> run.scale("tail", 2).wait(), run.move("tail", ["N1"], 0).wait(), run.snapshot("before").wait()
        (True, True, True)
        >>> run.name, run.state
        ('example', 'running')
        >>> run.active, run.exception, run.outcome, run.changes, run.last_end, run.recovery
        (True, None, '', (), '', None)
        >>> run.progress["rows_in"] >= 0, run.regions["tail"]["workers"], len(run.routing("tail"))
        (True, 2, 4096)
        >>> run.load("before", keep_output=True).wait()
        True
        >>> run.shutdown(drain=False), run.await_termination()
        (True, True)
    """

    def __init__(
        self,
        loop: Loop,
        complain: Callable[[str], None],
        *,
        bounded: bool,
        drain: bool,
        ended: Callable[[PenstockError | str], None] = lambda _: None,
    ) -> None:
        self._loop, self._bounded, self._drain = loop, bounded, drain
        self._ended, self._process = threading.Event(), os.getpid()
        self._commander = Commander(loop.checkpoint, self._latest, lambda: self.active, loop.opener.rollback_refusal)
        self._note = ended
        self._was_finished = not loop.start(bounded=bounded, complain=complain)
        if self._was_finished:
            self._ended.set()
            loop.note_end(self.outcome)
            ended(self.outcome)
            return
        self._thread = threading.Thread(target=self._supervise, name=f"penstock-{loop.flow.plan.name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{run_line(self.name, self.progress, self.state)}>"

    def _repr_html_(self) -> str:
        return run_html(self.name, self.progress, self.state)

    @property
    def name(self) -> str:
        """The flow's name."""
        return self._loop.flow.plan.name

    @property
    def state(self) -> str:
        """Where the run is: ``starting``, ``running``, or how it has ended, in a sentence."""
        return self.outcome.rstrip(".") or ("starting" if self._loop.last.epoch < 0 else "running")

    @property
    def changes(self) -> tuple[str, ...]:
        """What of the state begins empty or was forgotten because the flow has changed, a sentence each."""
        return tuple(self._loop.opener.notices)

    @property
    def last_end(self) -> str:
        """How the run before this start ended and what is done about it, in a sentence or two; empty if it ended cleanly."""
        return self._loop.opener.last_end

    def _missing(self, attribute: str) -> Any:
        raise missing("A run", attribute, RUN, dir(type(self)))

    if not TYPE_CHECKING:
        __getattr__ = _missing  # a checker that saw it would let every name pass

    def _supervise(self) -> None:
        """Follow the run to its end."""
        loop = self._loop
        try:
            loop.supervise(bounded=self._bounded, drain=self._drain)
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            loop.error = loop.error or loop.engine.translated(error)
        finally:
            loop.error = self._replaced() or loop.error
            self._close()

    def _close(self) -> None:
        loop = self._loop
        try:
            loop.close()
        except Exception as error:  # noqa: BLE001  (handed to whoever waits)
            loop.error = loop.error or loop.engine.translated(error)
        finally:
            how = loop.error or self._outcome()
            loop.note_end(how)
            self._note(how)
            self._ended.set()

    def _replaced(self) -> PenstockError | None:
        """The error if a newer run took over the checkpoint, or the engine has ended, when reading ended without one."""
        loop = self._loop
        ends, _ = loop.where()
        quiet = loop.error is None and not (ends.stopped or ends.finished)
        if not (quiet or type(loop.error) in (PenstockError, FencedError)):
            return None
        try:
            loop.checkpoint.check_owner(loop.settings.run)
        except FencedError as error:
            return error
        except (OSError, PenstockError):  # what is known says more
            return None
        return loop.engine.lost()

    def scale(self, region: str | None = None, workers: int | None = None) -> CommandHandle:
        """Change the number of workers of a region while the flow runs, or of all regions at the same time.

        Args:
            region: The region's name; None, or left out as in ``scale(workers=4)``: all.
            workers: The number wanted.

        Returns:
            A handle: `done`, `wait(timeout)`, `progress`.

        Raises:
            DeclarationError: There is no such region, or it cannot have so many workers. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        return self._commander.scale(region, workers)  # type: ignore[arg-type]  # None is refused there, with a sentence

    def move(self, region: str, keys: Sequence[Any], worker: int | None) -> CommandHandle:
        """Place single keys at a worker, whatever their bins do, or (None) where they belong.

        Args:
            region: The region's name.
            keys: Key values; tuples if the key has several columns.
            worker: Number of the worker, or None.

        Raises:
            DeclarationError: There is no such region or worker, or a key does not fit. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        if region not in self._loop.flow.regions:
            raise DeclarationError(f"There is no region {region!r}; there are {', '.join(self._loop.flow.regions)}.")
        return self._commander.move(region, keys, worker, self._loop.flow.regions[region].spec.keys)

    def snapshot(self, name: str) -> CommandHandle:
        """Keep a named, consistent copy of all state, routing and positions as of the end of an epoch.

        Raises:
            DeclarationError: The name cannot be used, or is taken. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        return self._commander.snapshot(name)

    def load(self, name: str, *, keep_output: bool = False) -> CommandHandle:
        """Go back to a snapshot: state, routing and positions are as they were, and the flow continues reading from there.

        Sinks take back their later rows (`penstock.sinks.Rewinding`); in a table that is upserted or replaced the rows stay
        until the flow, which processes its input again, replaces them.

        Args:
            name: The snapshot.
            keep_output: Go back even if a sink cannot take rows back. Its rows stay, and those since the snapshot are stored
                again.

        Returns:
            A handle: `done`, `wait(timeout)`.

        Raises:
            DeclarationError: There is no such snapshot, or the flow cannot go back to it. Nothing was changed.
        """
        self._ready()
        return self._commander.load(name, keep_output=keep_output)

    def _latest(self) -> EpochRecord:
        """The last record; raises the flow's error."""
        if self._loop.error is not None:
            raise without_trace(self._loop.error)
        return self._loop.last

    def _ready(self) -> None:
        """Wait for the first epoch; before it there is nothing to command. Without records it has to be asked for."""
        self._check_process()
        looks = 0
        while self._loop.last.epoch < 0 and not self._ended.wait(0.05):
            looks += 1
            if looks == _LOOKS:
                self._commander.ask_for_an_epoch()
        if self._loop.error is not None:
            raise without_trace(self._loop.error)

    def _check_process(self) -> None:
        """Refuse a process that was forked from the flow's: it has a copy of the run, and neither its thread nor a Java of its own."""
        if os.getpid() != self._process:
            raise PenstockError(
                f"Flow {self.name!r} runs in process {self._process}, from which this one was forked and has but a copy; "
                "give commands there, or from the command line (penstock stop, penstock scale)."
            )

    def shutdown(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """End the flow.

        Args:
            drain: True: the present input is processed, the frontier becomes MAX, everything is emitted, and the flow is
                finished for good. False: stop after the epoch that sees the command; the flow can be started again, and a
                pending drain is withdrawn.
            timeout: Seconds to wait; None: no limit.

        Returns:
            Whether the flow has ended as requested: with `drain` also False if a later stop came first, or a load.

        Raises:
            PenstockError: The flow failed meanwhile, or runs in another process.
        """
        self._check_process()
        if not self._ended.is_set():
            with suppress(FinishedError):
                self._commander.stop(drain=drain, run=self._loop.settings.run)
        ended = self.await_termination(timeout)
        return ended and (self._loop.last.finished or not drain)

    def leave(self, timeout: float | None = None) -> bool:
        """End the run after the epoch under way, for another process to go on with the flow. No command is written.

        Args:
            timeout: Seconds to wait; None: no limit.

        Returns:
            Whether it has ended.

        Raises:
            PenstockError: The flow failed meanwhile.
        """
        self._loop.leaving = True
        return self.await_termination(timeout)

    def abandon(self) -> None:
        """End the run at once, because another process may have taken the flow over: an epoch under way is not committed."""
        self._check_process()
        self._loop.leaving = True
        if self.active:
            self._loop.engine.interrupt()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            Whether the flow has ended.

        Raises:
            PenstockError: It failed, or runs in another process; the error says why.
        """
        self._check_process()
        ended = self._ended.wait(timeout)
        if self._loop.error is not None:
            raise without_trace(self._loop.error)
        return ended

    @property
    def outcome(self) -> str:
        """How the run has ended, in a sentence; empty while it runs."""
        if self.active:
            return ""
        return str(self._loop.error or self._outcome())

    def _outcome(self) -> str:
        ends, _ = self._loop.where()
        if self._loop.leaving and not (ends.stopped or ends.finished):
            return f"The run left the flow after epoch {self._loop.last.epoch}, for another process to go on."
        return outcome_of(self._loop.last, self._loop.settings.since, before=self._was_finished, cut=self._loop.cut)

    @property
    def finished(self) -> bool:
        """Whether the flow has reached the end of its input, and is never scheduled again."""
        return self._loop.last.finished

    @property
    def stopped(self) -> bool:
        """Whether a command has stopped the run."""
        return self._loop.where()[0].stopped

    @property
    def exception(self) -> PenstockError | None:
        """Why the flow failed; None if it did not."""
        return self._loop.error

    @property
    def active(self) -> bool:
        """Whether the flow is running."""
        return not self._ended.is_set()

    @property
    def progress(self) -> dict[str, Any]:
        """Figures of the last epoch."""
        return progress_of(self._loop.last)

    @property
    def recovery(self) -> dict[str, Any] | None:
        """How far this start's recomputation of state is; None: there was nothing to recover.

        ``active``; ``partitions``: by ``"source/partition"`` the offsets ``start``, ``now``, ``mark`` (of the sink that is least far) and ``end`` (of that
        which is farthest), of files their numbers; ``rows_replayed``; ``outputs_suppressed``: those that are given nothing yet; ``seconds`` taken and
        ``seconds_left``, an estimate, None if there is none yet; ``why`` it began there.
        """
        return recovery_figures(self._loop.last, self._loop.engine.clock_us()) if self._loop.recovers else None

    @property
    def regions(self) -> dict[str, dict[str, Any]]:
        """By region: workers, frontier, rows, bytes and files of state."""
        return dict(self.progress["regions"])

    def routing(self, region: str) -> list[int]:
        """The worker of every key group of a region, 4096 of them.

        Raises:
            DeclarationError: There is no such region.
        """
        if region not in self._loop.settings.workers:
            raise DeclarationError(f"There is no region {region!r}; there are {', '.join(self._loop.settings.workers)}.")
        return list(self._loop.driver.placements()[region].routing.owners)


__all__ = ["Run"]
