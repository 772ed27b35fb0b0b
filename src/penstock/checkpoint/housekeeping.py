"""Bounds the number of state files: compaction, and removal of unneeded files.

Compaction merges committed files, so it changes nothing and may run while epochs do. Its result is adopted between two epochs
and is valid once the next epoch's record is committed; a crash before that only wastes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from penstock.checkpoint.folder import Checkpoint, base_path, copy_tag, parse_state_name, state_path
from penstock.checkpoint.record import EpochRecord, RegionState
from penstock.state.compaction import Pace, compact, should_compact
from penstock.state.deltas import FileRef, Metadata, Version
from penstock.state.files import delete_quietly
from penstock.state.recent_changes import may_be_held

TIDY_EVERY: Final = 16
"""Epochs between two removals of unneeded files."""

TURNS: Final = 16
"""One in so many workers is compacted at a time. Workers of like load are due in the same epoch, which all of them would slow together."""

WorkerId = tuple[str, int]
"""A region's name and a worker's number."""


@dataclass(frozen=True)
class Compaction:
    """One worker's files to be merged.

    Attributes:
        place: The region and worker.
        version: The files.
        flow: Unique id of the flow.
        run: Number of the run.
    """

    place: WorkerId
    version: Version
    flow: str
    run: int

    def carry_out(self, checkpoint: Checkpoint, pace: Pace = iter) -> FileRef:
        """Write the new base. `pace`: see `compact`.

        Raises:
            TornFileError: A file is damaged. Nothing was changed.
            StateError: The disk is full. Nothing was changed.
        """
        region, worker = self.place
        path = base_path(region, worker, self.version.version, self.run)
        metadata = Metadata("base", f"{self.flow}/{region}/{worker}", self.version.version)
        return compact(checkpoint.fs, checkpoint.root, self.version, path, metadata, f"r{self.run}", pace)


def due(record: EpochRecord, flow: str, run: int, under_way: Iterable[WorkerId] = ()) -> list[Compaction]:
    """Compactions that are due after an epoch and not running: those that have waited longest, a few at a time.

    The epoch's own files are left out, and earlier ones that may be held in memory. Local stores have everything else; one that
    lacked a part of a base would have to be filled anew from it.
    """
    busy = set(under_way)
    places = [(name, worker, v) for name, region in record.regions.items() for worker, v in enumerate(region.versions)]
    wanted = [
        Compaction((name, worker), applied, flow, run)
        for name, worker, version in places
        if (name, worker) not in busy and should_compact(applied := _stored(version, record.epoch))
    ]
    wanted.sort(key=lambda compaction: -len(compaction.version.deltas))
    return wanted[: max(0, -(-len(places) // TURNS) - len(busy))]


def _stored(version: Version, epoch: int) -> Version:
    """What every store that took part in an epoch has on disk. Its number differs between epochs, because it names a base."""
    older = tuple(takewhile(lambda delta: delta.version < epoch, version.deltas))
    held = next((n for n in range(len(older)) if may_be_held(older[n:])), len(older))
    return replace(version, version=epoch - 1, deltas=older[:held])


def adopt(record: EpochRecord, bases: Mapping[WorkerId, FileRef]) -> EpochRecord:
    """The record with new bases in place of the files they were made from."""
    regions: dict[str, RegionState] = dict(record.regions)
    for (name, worker), base in bases.items():
        versions = list(regions[name].versions)
        if worker >= len(versions) or base.lineage not in versions[worker].lineages():
            continue  # the worker has gone meanwhile, and perhaps another has come under its number
        versions[worker] = versions[worker].with_base(base)
        regions[name] = replace(regions[name], versions=versions)
    return replace(record, regions=regions)


def remove_unused(checkpoint: Checkpoint, record: EpochRecord) -> None:
    """Delete old epoch records, and state files that no epoch can need.

    A base that is newer than the record's stays: it may have been adopted and wait for the next record.

    Args:
        checkpoint: The checkpoint.
        record: A committed epoch's record.
    """
    checkpoint.tidy(record)
    kept = [s.regions[n].files() for s in checkpoint.snapshots() for n in s.regions]
    for name, region in record.regions.items():
        used = {path.rsplit("/", 1)[-1] for paths in (region.files(), *kept) for path in paths}
        copies = [copy_tag(h.key) for h in region.control.held]  # written, perhaps, and not named by a record yet
        bases = [v.base.version if v.base else -1 for v in region.versions]
        for file in checkpoint.state_files(name):
            place = parse_state_name(file)
            if place is None or file in used or any(tag in file for tag in copies):
                continue
            worker, epoch, is_base = place
            limit = bases[worker] if is_base and worker < len(bases) else record.epoch - 1
            if epoch < limit:
                delete_quietly(checkpoint.fs, checkpoint.path(state_path(name, file)))
