"""Keep the number of state files bounded: compaction beside the epochs, removal of what no epoch needs.

Compaction merges files that are committed already, so it changes nothing and may run while epochs go on. Its result is adopted
between two epochs and counts once the next epoch's record is committed; a crash before that wastes it, no more.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.runtime.checkpoint import Checkpoint
from penstock.runtime.driver import Settings
from penstock.runtime.record import EpochRecord, RegionState
from penstock.state.compact import compact, should_compact
from penstock.state.deltas import FileRef, Metadata, Version
from penstock.state.files import delete_quietly

_TIDY_EVERY = 16


class Maintenance:
    """Looks after one flow's files.

    Args:
        spark: The session; compaction of large states could run there.
        checkpoint: The flow's checkpoint.
        settings: The run's settings.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, settings: Settings) -> None:
        del spark
        self._checkpoint = checkpoint
        self._settings = settings
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-compact")
        self._running: dict[tuple[str, int], Future[FileRef]] = {}

    def look(self, record: EpochRecord) -> None:
        """Begin what is due after an epoch."""
        for name, region in record.regions.items():
            for worker, version in enumerate(region.versions):
                if (name, worker) not in self._running and should_compact(version):
                    self._running[name, worker] = self._pool.submit(self._compact, name, worker, version)
        if record.epoch % _TIDY_EVERY == 0:
            self._checkpoint.tidy(record)
            self._pool.submit(self._remove_unused, record)

    def adopt(self, record: EpochRecord) -> EpochRecord:
        """The record with finished bases in place of the files they were made from."""
        done = {key: f for key, f in self._running.items() if f.done()}
        if not done:
            return record
        regions: dict[str, RegionState] = dict(record.regions)
        for (name, worker), future in done.items():
            del self._running[name, worker]
            try:
                base = future.result()
            except (PenstockError, OSError):
                continue  # the old files still count; it is tried again after the next epoch
            versions = list(regions[name].versions)
            versions[worker] = versions[worker].with_base(base)
            regions[name] = replace(regions[name], versions=versions)
        return replace(record, regions=regions)

    def _compact(self, region: str, worker: int, version: Version) -> FileRef:
        c, s = self._checkpoint, self._settings
        path = f"state/{region}/w{worker:04d}-e{version.version:012d}-r{s.run:06d}.base"
        metadata = Metadata("base", f"{s.flow}/{region}/{worker}", version.version)
        return compact(c.fs, c.root, version, path, metadata, f"r{s.run}")

    def _remove_unused(self, record: EpochRecord) -> None:
        """Delete files of state that the record does not name and that are no newer than it."""
        for name, region in record.regions.items():
            used = {f.path.rsplit("/", 1)[-1] for v in region.versions for f in v.files()}
            for file in self._checkpoint.state_files(name):
                epoch = int(file.split("-")[1][1:]) if file.startswith("w") and "-e" in file else record.epoch
                if file not in used and epoch < record.epoch - 1:
                    delete_quietly(self._checkpoint.fs, self._checkpoint.path("state", name, file))

    def close(self) -> None:
        """Wait for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
