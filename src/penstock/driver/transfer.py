"""State that changes hands as files, and a region's figures of an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final, TypeVar

from penstock.checkpoint.figures import HotKeyFigures, Moved, RegionFigures, RescaleFigures
from penstock.checkpoint.record import RegionState
from penstock.driver.engine import Divided
from penstock.driver.estimates import left_ms
from penstock.progress.source_state import SourceState
from penstock.protocol.reports import WorkerReport
from penstock.protocol.rescale import Limits, Placement
from penstock.protocol.rescale.collect import pending_bins, pending_keys
from penstock.protocol.rescale.transfer import Versions
from penstock.routing.strategy import Strategy
from penstock.state.deltas import FileRef, Version
from penstock.types import MIN_TIME

Deltas = Mapping[int, tuple[FileRef, WorkerReport]]
"""By worker, its delta and its report."""

N = TypeVar("N", int, float)
_HOTTEST: Final = 5
"""Of so many hot keys that are not pinned figures are kept."""


def state_files(epoch: int) -> Versions[Version, FileRef]:
    """How versions change when files change hands at the end of an epoch: the giver's takes what it reads as deletions."""
    return Versions(
        Version(epoch),
        lambda version, file: version.with_delta(replace(file, role="came"), epoch),
        lambda version, file: version.with_delta(replace(file, role="gone"), epoch),
    )


def mark_frontier(sources: Iterable[SourceState], controls: Iterable[Placement]) -> int:
    """The frontier of a sink's mark: that of the sources, and no key on hold is behind it (rule H5)."""
    least = min((s.frontier for s in sources), default=MIN_TIME)
    return min((c.announced(least) for c in controls), default=least)


def region_figures(
    state: RegionState,
    deltas: Deltas,
    now_us: int,
    limits: Limits,
    before: RegionFigures | None,
    strategy: Strategy,
    divided: Sequence[Divided],
    workers: int,
) -> RegionFigures:
    """A region's figures of an epoch, for people.

    Args:
        state: The region after the epoch.
        deltas: What its workers wrote.
        now_us: Clock time.
        limits: What bounds a step of a rescale.
        before: The figures of the epoch before.
        strategy: The region's.
        divided: What the split stages did.
        workers: Number of workers in the epoch, with those that had nothing to do.
    """
    loads = _by_worker({w: r.rows_in for w, (_, r) in deltas.items()}, [d.rows for d in divided], workers)
    cpu_ms = _by_worker({w: r.cpu_us / 1000 for w, (_, r) in deltas.items()}, [d.cpu_ms for d in divided], workers)
    reports, control = [r for _, r in deltas.values()], state.control
    return RegionFigures(
        workers=state.workers,
        rows_in=sum(r.rows_in for r in reports),
        rows_out=sum(r.rows_out for r in reports),
        changes=sum(r.rows for r in reports),
        state_bytes=sum(f.bytes for v in state.versions for f in v.files() if f.role != "gone"),
        state_files=sum(len(v.files()) for v in state.versions),
        delta_bytes=sum(ref.bytes for ref, _ in deltas.values()),
        skipped=sum(n for r in reports for n in r.skipped.values()),
        first_skipped=next((r.first_skipped for r in reports if r.first_skipped), ""),
        phase=str(control.phase),
        rescale=_rescale(state, reports, now_us, limits, before.rescale if before else None),
        last_rescale=None if control.goal else Moved(*control.last_moved),
        pinned_keys=len(control.pins),
        strategy=strategy.describe(),
        worker_rows=loads,
        worker_cpu_ms=tuple(map(round, cpu_ms)),
        divided_rows=sum(sum(d.rows) for d in divided),
        imbalance=round((max(loads) - sum(loads) / len(loads)) / sum(loads), 6) if any(loads) else 0.0,
        busiest=round(max(loads) * len(loads) / sum(loads), 4) if any(loads) else 1.0,
        hot_keys=_hot_keys(control, reports, divided, sum(loads)),
    )


def _by_worker(own: Mapping[int, N], divided: Iterable[Sequence[N]], workers: int) -> tuple[N, ...]:
    """By worker, what it has in the region and in split stages."""
    listed = [own.get(w, 0) for w in range(workers)]
    return tuple(map(sum, zip_longest(listed, *divided, fillvalue=0)))


def _hot_keys(
    control: Placement, reports: Sequence[WorkerReport], divided: Sequence[Divided], total: int
) -> tuple[HotKeyFigures, ...]:
    """The hottest keys of an epoch, and all that the strategy has pinned."""
    rows, texts, at = dict.fromkeys(control.watch.own, 0), dict(control.watch.texts), defaultdict[int, set[int]](set)
    in_stages = [(worker, hot) for stage in divided for worker, hot in enumerate(stage.hot)]
    for worker, hot in [*((r.worker, r.hot) for r in reports), *in_stages]:
        for found in hot:
            rows[found.key] = rows.get(found.key, 0) + found.rows
            texts[found.key] = found.text
            at[found.key].add(worker)
    own, hottest_first = set(control.watch.own), sorted(rows, key=lambda k: (-rows[k], k))
    others = [k for k in hottest_first if k not in own][:_HOTTEST]
    return tuple(
        HotKeyFigures(
            texts.get(k, ""),
            k,
            round(rows[k] / max(total, 1), 4),
            control.routing.worker_of(k),
            k in own,
            max(1, len(at[k])),
        )
        for k in hottest_first
        if k in own or k in others
    )


def _rescale(
    state: RegionState, reports: Sequence[WorkerReport], now_us: int, limits: Limits, before: RescaleFigures | None
) -> RescaleFigures | None:
    control, goal = state.control, state.control.goal
    if goal is None:
        return None
    elapsed_ms = (now_us - state.rescale_us) // 1000 if state.rescale_us else 0
    epoch_ms = elapsed_ms - before.elapsed_ms if before else elapsed_ms
    cost_us = max((r.answer.cost_us for r in reports), default=0)
    return RescaleFigures(
        moved_bins=goal.moved_bins,
        moved_keys=goal.moved_keys,
        moved_bytes=goal.moved_bytes,
        to_workers=goal.workers,
        bins_left=len(pending_bins(control, goal)) if goal.target is not None else None,
        keys_left=len(pending_keys(control)),
        held_keys=len(control.held),
        queued_bytes=sum(h.queued for h in control.held),
        held_rows=sum(r.held_rows for r in reports),
        step_bytes=goal.step_bytes,
        cost_us=cost_us,
        elapsed_ms=elapsed_ms,
        left_ms=left_ms(control, limits, cost_us, epoch_ms),
    )
