"""Compaction and removal of old files in a thread beside the epochs; what they do is in `penstock.runtime.upkeep`."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from penstock.errors import PenstockError
from penstock.runtime.checkpoint import Checkpoint
from penstock.runtime.driver import Settings
from penstock.runtime.record import EpochRecord
from penstock.runtime.upkeep import TIDY_EVERY, Place, adopt, due, remove_unused
from penstock.state.deltas import FileRef


class Maintenance:
    """Looks after one flow's files.

    Args:
        checkpoint: The flow's checkpoint.
        settings: The run's settings.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Settings) -> None:
        self._checkpoint = checkpoint
        self._settings = settings
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-compact")
        self._running: dict[Place, Future[FileRef]] = {}

    def look(self, record: EpochRecord) -> None:
        """Begin what is due after an epoch."""
        for compaction in due(record, self._settings.flow, self._settings.run, self._running):
            self._running[compaction.place] = self._pool.submit(compaction.carry_out, self._checkpoint)
        if record.epoch % TIDY_EVERY == 0:
            self._pool.submit(remove_unused, self._checkpoint, record)

    def adopt(self, record: EpochRecord) -> EpochRecord:
        """The record with finished bases in place of the files they were made from."""
        bases: dict[Place, FileRef] = {}
        for place in [p for p, f in self._running.items() if f.done()]:
            future = self._running.pop(place)
            try:
                bases[place] = future.result()
            except (PenstockError, OSError):
                continue  # the old files still count; it is tried again after the next epoch
        return adopt(record, bases)

    def close(self) -> None:
        """Wait for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
