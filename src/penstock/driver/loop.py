"""One start of a flow, above its engine: it opens runs, runs their epochs and background work, goes back, and ends.

The engine reads and calls `Loop.epoch` for each epoch; all else is here, the same over Spark and in process.

Read next: `penstock.driver.engine`, `penstock.driver.epoch`, `penstock.protocol.ends`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from penstock.checkpoint.record import EpochRecord
from penstock.driver.background import Background
from penstock.driver.commands import Commander
from penstock.driver.engine import Backend
from penstock.driver.epoch import EpochDriver
from penstock.driver.opener import RunOpener
from penstock.driver.replay import failed, refuse_short_log
from penstock.errors import FencedError, FinishedError, OperatorError, PenstockError, RecordError, without_trace
from penstock.protocol.commands import Command, End
from penstock.protocol.ends import Ends, supervise


class Loop:
    """Takes a flow from a start to its end.

    Args:
        opener: Opens its runs.

    Attributes:
        settings: The settings of the open run.
        driver: Runs its epochs.
        error: The first error of an epoch in the engine's own thread.
        cut: Whether somebody else has ended the reading.
        leaving: Whether the run is to end between two epochs, for another process to go on.
        recovers: Whether this start computes state again from the log.
    """

    def __init__(self, opener: RunOpener) -> None:
        self.opener, self.flow, self.checkpoint, self.engine = opener, opener.flow, opener.checkpoint, opener.engine
        self.error: PenstockError | None = None
        self.cut: bool = False
        self.leaving: bool = False
        self._log: str = ""
        self.recovers: bool = False

    def open(self, complain: Callable[[str], None] = lambda _: None) -> None:
        """Begin a run; see `RunOpener.open`."""
        try:
            self.settings = settings = self.opener.open(complain)
        except PenstockError as error:
            self.note_end(error)
            raise
        self.driver = EpochDriver(self.flow, self.checkpoint, settings)
        self.recovers = self.recovers or (self.last.recovery is not None and self.last.recovery.active)
        self._background = Background(self.checkpoint, settings, self.engine.copy, beside=self.engine.beside)

    def start(self, *, bounded: bool, complain: Callable[[str], None] = lambda _: None) -> bool:
        """Begin a run, and reading if the run reads on; `supervise` follows.

        Args:
            bounded: Whether it reads only the present input.
            complain: See `open`.

        Returns:
            False: the flow has finished, and there is nothing to do.

        Raises:
            FinishedError: It has finished, and there is more input, or it should read on. Nothing was read.
            PenstockError: See `open`, or the engine cannot run the flow.
        """
        self.open(complain)
        try:
            if self.last.finished:
                self.close()
                self._refuse_finished(following=not bounded)
                return False
            if not bounded and not self.last.draining:  # otherwise it was ending before it was interrupted
                self.engine.begin(self)  # errors of the first plan belong to the caller
        except PenstockError as error:
            self.note_end(error)
            raise
        return True

    def note_end(self, how: PenstockError | str) -> None:
        """Note how the run has ended, for the next start; a run that was replaced writes nothing.

        Args:
            how: Its error, or how it ended without one; then that was clean unless somebody else ended the reading.
        """
        if isinstance(how, FencedError):
            return
        clean = isinstance(how, FinishedError) or (isinstance(how, str) and not self.cut)
        try:
            self.opener.note_end(str(how), clean=clean)
        except (OSError, PenstockError):  # where nothing can be written now, the next start says that there is no end
            return

    def _refuse_short_log(self) -> None:
        """All there is has been read: refuse it if a replay has not come by the marks."""
        if self.last.recovery is not None and not self.last.recovery.reached(self.last.sources):
            refuse_short_log(self.flow.plan, self.last.recovery, self.last.sources)

    def _refuse_finished(self, *, following: bool) -> None:
        unread = _said_of(self.engine.unread(self.last))
        if unread or following:
            more = f"; {unread}, and will stay so" if unread else ""
            raise FinishedError(
                f"The flow of checkpoint {self.checkpoint.uri} reached the end of its input in epoch {self.last.epoch} and is never scheduled again{more}: "
                'begin on a new checkpoint with new tables, with drain=False if it is started with "available_now" whenever there is more.'
            )

    @property
    def last(self) -> EpochRecord:
        """The last committed epoch's record."""
        return self.driver.last

    def epoch(self, number: int, backend: Backend, *, available: bool) -> bool:
        """Run an epoch; for the engine.

        Args:
            number: Its number.
            backend: Its input.
            available: Whether only the present input is read.

        Returns:
            Whether the reading ends with it.

        Raises:
            PenstockError: Something failed; the epoch is not committed and can be run again.
        """
        self._background.hold_back(self.last)
        self._adopt()
        again = number <= self.last.epoch  # committed, but Spark was stopped before it could note that
        try:
            self._background.look(self.driver.run(number, backend))
        except Exception as error:
            if not self._gives_up(self.engine.translated(error)):
                raise
        self._adopt()
        return self.leaving or (not again and (self.ended(available) or self._gives_again()))

    def _gives_up(self, error: PenstockError) -> bool:
        """Commit the epoch after the last one as one of a replay that must begin anew, if that may be why a user's function failed in it.

        A replay from the middle of the log meets windows and states that lack older records. Nothing that comes of them is given out, but a function
        can fail on them; it is an error of the flow only if it fails with all records, too.
        """
        recovery, run = self.last.recovery, self.settings.run
        if recovery is None or not (recovery.active and recovery.cut) or not isinstance(error, (OperatorError, RecordError)):
            return False
        record = replace(self.last, epoch=self.last.epoch + 1, run=run, recovery=failed(recovery, error))
        self.settings.on_step("commit")
        self.checkpoint.commit(record, run)
        self.driver.last = record
        self.settings.on_step("committed")
        return True

    def _gives_again(self) -> bool:
        """Whether the engine must begin to read anew, because a replay has read an epoch's input in part."""
        recovery = self.last.recovery
        return recovery is not None and recovery.again and not self.engine.inserts

    def _adopt(self) -> None:
        self.driver.last = self._background.adopt(self.last)

    def ended(self, available: bool) -> bool:
        """Whether a command has ended the reading."""
        ends, rollback_pending = self.where()
        return ends.stopped or ends.finished or rollback_pending or (ends.draining and not available)

    def fail(self, error: PenstockError, cause: BaseException) -> PenstockError:
        """Note that an epoch failed; returns the first error."""
        self.error = self.error or without_trace(error, error.__cause__ if cause is error else cause)
        return self.error

    def supervise(self, *, bounded: bool, drain: bool) -> None:
        """Follow the flow to its end; see `penstock.protocol.ends.supervise`."""
        supervise(self, bounded=bounded, drain=drain, leaving=lambda: self.leaving)
        if self.driver.ended_for_another:
            self._refuse_finished(following=False)
        if bounded and not self.cut and not self.leaving and not self.where()[0].stopped:
            self._refuse_short_log()

    def where(self) -> tuple[Ends, bool]:
        """Where the flow is, as far as it concerns this start, and whether a rollback is pending."""
        return self.last.ends_for(self.settings.since), self.last.goes_back

    def read(self, available: bool) -> bool:
        """Read; see `penstock.driver.engine.Engine.read`."""
        while True:
            self.cut, log = not self.engine.read(self, available), self.last.log
            if self.cut or self.leaving or not self._gives_again() or self.ended(available) or log == self._log:
                return not self.cut
            self._log = log

    def end(self) -> None:
        """Submit the command that ends the input."""
        self.checkpoint.check_owner(self.settings.run)
        self._refuse_short_log()
        self.submit(End(self.settings.run))

    def copy(self) -> None:
        """Wait for the copies of keys on hold, or until a command has arrived."""
        known = self.last.control
        self._background.wait_for_copies(self.last, lambda: bool(set(self.checkpoint.control_names()).difference(known)))

    def roll_back(self) -> None:
        """Go back to the pending snapshot, or begin a recomputation anew; the reading has ended."""
        self._background.close()
        self.open()

    def submit(self, command: Command) -> str:
        """Write a command into the control log; returns its name there."""
        return Commander(self.checkpoint).submit(command)

    def close(self) -> None:
        """Wait for background work, and close the sinks: each of them, also if another one fails to close."""
        with ExitStack() as each:
            for output in self.flow.plan.outputs:
                each.callback(output.sink.close)
            self._background.close()


def _said_of(unread: dict[str, int]) -> str:
    """How many files of each source are unread, in words; empty if there are none."""
    each = [f"{n:,} file{'s' * (n != 1)} of source {name!r}" for name, n in unread.items()]
    return " and ".join(each) + (" are" if sum(unread.values()) > 1 else " is") + " unread" if each else ""
