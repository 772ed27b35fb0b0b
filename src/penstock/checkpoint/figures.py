"""The figures of an epoch, each declared once, as `penstock.progress.figures` says.

Read next: `penstock.driver.transfer`, which fills in a region's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, Final

from penstock.progress.figures import Figure, declared
from penstock.progress.source_state import SourceState
from penstock.types import MIN_TIME


@dataclass(frozen=True, slots=True)
class Moved:
    """What the last rescale of a region has moved."""

    moved_bins: Annotated[int, Figure("counter", "bins", "Bins moved since it began")]
    moved_keys: Annotated[int, Figure("counter", "keys", "Keys moved since it began")]
    moved_bytes: Annotated[int, Figure("counter", "bytes", "State moved since it began")]


@dataclass(frozen=True, slots=True)
class RescaleFigures(Moved):
    """A region's rescale under way."""

    to_workers: Annotated[int, Figure("gauge", "workers", "Workers wanted")]
    bins_left: Annotated[int | None, Figure("gauge", "bins", "Bins still to be moved; none while sizes are measured")]
    keys_left: Annotated[int, Figure("gauge", "keys", "Single keys still to be moved")]
    held_keys: Annotated[int, Figure("gauge", "keys", "Keys on hold")]
    queued_bytes: Annotated[int, Figure("gauge", "bytes", "Rows queued for keys on hold")]
    held_rows: Annotated[int, Figure("counter", "rows", "Rows queued for keys on hold in the epoch")]
    step_bytes: Annotated[int, Figure("gauge", "bytes", "What one worker may give up in the next epoch")]
    cost_us: Annotated[int, Figure("gauge", "us", "What the epoch's step cost the slowest worker")]
    elapsed_ms: Annotated[int, Figure("gauge", "ms", "Time since it began")]
    left_ms: Annotated[int | None, Figure("gauge", "ms", "Estimated time left; none while nothing is known")]


@dataclass(frozen=True, slots=True)
class HotKeyFigures:
    """A hot key in an epoch: its value as text, its share of the region's rows, the worker where its state is, whether the strategy has pinned it
    there, and how many workers had rows of it.
    """

    key: str
    hash: int
    share: float
    worker: int
    isolated: bool
    workers: int = 1


@dataclass(frozen=True, slots=True)
class RegionFigures:
    """A region in an epoch; `first_skipped` is one of the records skipped, `phase` where it is in a rescale, `strategy` its distribution strategy.

    `worker_rows` has the rows that each worker handled, those of divided keys included, and `worker_cpu_ms` the CPU time it took; `hot_keys` the hottest keys that are isolated or divided, or may come to be.
    """

    workers: Annotated[int, Figure("gauge", "workers", "Workers of the next epoch", "workers")]
    rows_in: Annotated[int, Figure("counter", "rows", "Rows, or partial results, that its workers received", "in")]
    rows_out: Annotated[int, Figure("counter", "rows", "Rows that its workers gave, to all who read them", "out")]
    changes: Annotated[int, Figure("counter", "entries", "Entries of state written or deleted", "changed")]
    state_bytes: Annotated[int, Figure("gauge", "bytes", "Size of its files of state", "state")]
    state_files: Annotated[int, Figure("gauge", "files", "Number of its files of state", "files")]
    delta_bytes: Annotated[int, Figure("counter", "bytes", "Size of the files of changes written")]
    skipped: Annotated[int, Figure("counter", "records", "Records skipped because a function raised", "skipped")]
    first_skipped: str
    phase: str
    rescale: RescaleFigures | None = None
    last_rescale: Moved | None = None
    divided_rows: Annotated[int, Figure("counter", "rows", "Rows of keys that the strategy divided over the workers")] = 0
    imbalance: Annotated[
        float, Figure("gauge", "share", "Rows that the busiest worker handled more than the mean, as a share of all rows")
    ] = 0.0
    busiest: Annotated[
        float, Figure("gauge", "times", "Rows that the busiest worker handled, as a multiple of the mean", "busiest")
    ] = 1.0
    pinned_keys: Annotated[int, Figure("gauge", "keys", "Keys that users or the strategy have pinned to a worker")] = 0
    strategy: str = ""
    worker_rows: tuple[int, ...] = ()
    worker_cpu_ms: tuple[int, ...] = ()
    hot_keys: tuple[HotKeyFigures, ...] = ()

    def progress(self) -> dict[str, Any]:
        """As users get it in ``run.progress["regions"]``."""
        raw = asdict(self)
        del raw["last_rescale" if self.last_rescale is None else "rescale"]
        return raw

    def rescaled(self) -> dict[str, Any]:
        """The rescale under way, or else the last one, as users get it of a command."""
        found = self.rescale or self.last_rescale
        return {"phase": self.phase, **(asdict(found) if found else {})}


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """A source since the flow began."""

    rows: Annotated[int, Figure("counter", "records", "Records read")]
    late: Annotated[int, Figure("counter", "records", "Records that came too late")]
    malformed: Annotated[int, Figure("counter", "records", "Records that could not be read")]
    files: Annotated[int, Figure("counter", "files", "Files read")]
    ahead: Annotated[int, Figure("counter", "records", "Records too far ahead")] = 0

    @staticmethod
    def of(state: SourceState) -> SourceFigures:
        """Those of what is known of a source."""
        return SourceFigures(**{f.name: getattr(state, f.name) for f in fields(SourceFigures)})


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """An epoch; `rows_out` is by output."""

    rows_in: Annotated[int, Figure("counter", "records", "Records read, of all sources")] = 0
    rows_out: Annotated[Mapping[str, int], Figure("counter", "rows", "Rows stored")] = field(default_factory=dict)
    frontier: Annotated[int, Figure("gauge", "time", "Event time before which all records have come")] = MIN_TIME
    epoch_ms: Annotated[int, Figure("gauge", "ms", "Time that the epoch took")] = 0
    regions: Mapping[str, RegionFigures] = field(default_factory=dict)


FIGURES: Final[Mapping[str, Mapping[str, Figure]]] = MappingProxyType(
    {
        "epoch": declared(EpochFigures),
        "region": declared(RegionFigures),
        "rescale": declared(RescaleFigures),
        "source": declared(SourceFigures),
    }
)
"""By what they are of, then by name."""
