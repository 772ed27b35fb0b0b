"""What goes on beside the epochs: compaction and removal of old files, and copies of keys on hold.

What they do is in `penstock.checkpoint.housekeeping` and `penstock.worker.copying`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.housekeeping import TIDY_EVERY, WorkerId, adopt, due, remove_unused
from penstock.checkpoint.record import EpochRecord
from penstock.driver.commands import Commander
from penstock.driver.epoch import Settings
from penstock.errors import PenstockError
from penstock.protocol.commands import Copied
from penstock.state.compaction import COMPACT_DELTAS
from penstock.state.deltas import FileRef
from penstock.worker.copying import Copy, HoldId, copies_due

_T = TypeVar("_T")
REST: Final = 3
"""After each batch a compaction rests so many times as long as that took; the epochs beside it should hardly take longer."""


LOOK_S: Final = 0.2


class Background:
    """Looks after one flow's files.

    Args:
        checkpoint: The flow's checkpoint.
        settings: The run's settings.
        copy: Carries a copy out and gives the command that reports it.
        beside: Whether it runs in threads. If not, files are compacted at once, and keys are copied when the flow waits for that.
    """

    def __init__(
        self, checkpoint: Checkpoint, settings: Settings, copy: Callable[[Copy], Copied], *, beside: bool = True
    ) -> None:
        self._beside = beside
        self._checkpoint = checkpoint
        self._settings = settings
        self._copy = copy
        self._copying: dict[HoldId, Future[None]] = {}
        self._copier = ThreadPoolExecutor(2, thread_name_prefix="penstock-copy") if beside else _AtOnce()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-compact") if beside else _AtOnce()
        self._running: dict[WorkerId, Future[FileRef]] = {}
        self._closing = threading.Event()

    def look(self, record: EpochRecord) -> None:
        """Begin what is due after an epoch."""
        for compaction in due(record, self._settings.flow, self._settings.run, self._running):
            behind = len(compaction.version.deltas) > 2 * COMPACT_DELTAS
            pace = iter if behind or not self._beside else self._unhurried
            self._running[compaction.place] = self._pool.submit(compaction.carry_out, self._checkpoint, pace)
        if self._beside:
            self._copy_keys(record)
        if record.epoch % TIDY_EVERY == 0:
            self._pool.submit(remove_unused, self._checkpoint, record)

    def _copy_keys(self, record: EpochRecord) -> None:
        for place in [p for p, f in self._copying.items() if f.done() and f.exception() is not None]:
            del self._copying[place]  # it is tried again
        for copy in copies_due(record, self._settings.flow, self._settings.run, self._copying):
            self._copying[copy.place] = self._copier.submit(self._report, copy)

    def adopt(self, record: EpochRecord) -> EpochRecord:
        """The record with finished bases in place of the files they were made from."""
        bases: dict[WorkerId, FileRef] = {}
        for place in [p for p, f in self._running.items() if f.done()]:
            future = self._running.pop(place)
            try:
                bases[place] = future.result()
            except (PenstockError, OSError):
                continue  # the old files still count; it is tried again after the next epoch
        return adopt(record, bases)

    def _unhurried(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        for batch in batches:
            yield batch
            self._closing.wait(REST * (time.monotonic() - began))
            began = time.monotonic()

    def _report(self, copy: Copy) -> None:
        Commander(self._checkpoint).submit(self._copy(copy))

    def hold_back(self, record: EpochRecord) -> None:
        """Before an epoch: wait for copies where the queues of keys on hold have reached their bound (rule H8).

        Raises:
            PenstockError: One of them failed.
        """
        bound = self._settings.limits.queue_bytes
        full = {n for n, r in record.regions.items() if sum(h.queued for h in r.control.held) > bound}
        for place, future in list(self._copying.items()):
            if place[0] in full:
                future.result()

    def wait_for_copies(self, record: EpochRecord, until: Callable[[], bool]) -> None:
        """Wait for the copies under way, or until something else has come.

        Raises:
            PenstockError: One of them failed.
        """
        if not self._beside:
            self._copy_keys(record)
        copying = list(self._copying.values())
        while wait(copying, LOOK_S).not_done and not until():
            pass
        for future in copying:
            if future.done():
                future.result()

    def close(self) -> None:
        """Wait for what runs; it does not rest any more."""
        self._closing.set()
        wait(self._copying.values())
        self._copier.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)


class _AtOnce(Executor):
    """Carries out a job when it is given."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **options: Any) -> Future[_T]:
        done: Future[_T] = Future()
        done.set_result(fn(*args, **options))
        return done
