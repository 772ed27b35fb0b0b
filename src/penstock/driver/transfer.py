"""What workers' reports come to once the epoch is committed: answers to the controller, state that changes hands, figures.

Invariant: the file that leaves the giver's version joins the receiver's in the same record (rule C3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.checkpoint.record import RegionState
from penstock.driver.estimates import left_ms
from penstock.protocol.reports import WorkerReport
from penstock.protocol.rescale import Limits
from penstock.protocol.rescale.collect import pending_bins, pending_keys
from penstock.state.deltas import FileRef, Version

Deltas = Mapping[int, tuple[FileRef, WorkerReport]]
"""By worker, its delta and its report."""


def hand_over(
    versions: Sequence[Version], deltas: Deltas, workers: int, epoch: int
) -> tuple[list[Version], dict[int, list[str]]]:
    """The versions once state has changed hands, and by receiver the files that came.

    Args:
        versions: By worker, with the epoch's own deltas.
        deltas: The workers' deltas, with the moves they report.
        workers: Number of workers of the next epoch; the state of those above must be gone.
        epoch: Number of the epoch.
    """
    out = [*versions, *[Version(epoch)] * (workers - len(versions))]
    acquired: dict[int, list[str]] = {}
    for giver, (_, report) in sorted(deltas.items()):
        for move in report.moves:
            ref = FileRef.from_json(move.file)
            if move.to < 0:  # a list of names: deletions as they stand
                out[giver] = out[giver].with_delta(ref, epoch)
                continue
            out[giver] = out[giver].with_delta(replace(ref, role="gone"), epoch)
            out[move.to] = out[move.to].with_delta(replace(ref, role="came"), epoch)
            acquired.setdefault(move.to, []).append(ref.path)
    return out[:workers], acquired


def region_figures(
    state: RegionState, deltas: Deltas, now_us: int, limits: Limits, before: Mapping[str, Any]
) -> dict[str, Any]:
    """A region's figures of an epoch, for people.

    Args:
        state: The region after the epoch.
        deltas: What its workers wrote.
        now_us: Clock time.
        limits: What bounds a step of a rescale.
        before: The figures of the epoch before.
    """
    reports = [r for _, r in deltas.values()]
    figures = {
        "workers": state.workers,
        "rows_in": sum(r.rows_in for r in reports),
        "rows_out": sum(r.rows_out for r in reports),
        "changes": sum(r.rows for r in reports),
        "delta_bytes": sum(ref.bytes for ref, _ in deltas.values()),
        "state_files": sum(len(v.files()) for v in state.versions),
        "state_bytes": sum(f.bytes for v in state.versions for f in v.files() if f.role != "gone"),
        "skipped": sum(n for r in reports for n in r.skipped.values()),
        "first_skipped": next((r.first_skipped for r in reports if r.first_skipped), ""),
        "phase": str(state.control.phase),
    }
    goal = state.control.goal
    if goal is None:
        figures["last_rescale"] = dict(zip(("moved_bins", "moved_keys", "moved_bytes"), state.control.last_moved, strict=True))
    else:
        left = len(pending_bins(state.control, goal)) if goal.target is not None else None
        elapsed_ms = (now_us - state.rescale_us) // 1000 if state.rescale_us else 0
        epoch_ms = elapsed_ms - before["rescale"]["elapsed_ms"] if before.get("rescale") else elapsed_ms
        cost_us = max((r.answer.cost_us for r in reports), default=0)
        figures["rescale"] = {
            "to_workers": goal.workers,
            "bins_left": left,
            "keys_left": len(pending_keys(state.control)),
            "moved_bins": goal.moved_bins,
            "moved_keys": goal.moved_keys,
            "moved_bytes": goal.moved_bytes,
            "held_keys": len(state.control.held),
            "queued_bytes": sum(h.queued for h in state.control.held),
            "held_rows": sum(r.held_rows for r in reports),
            "step_bytes": goal.step_bytes,
            "cost_us": cost_us,
            "elapsed_ms": elapsed_ms,
            "left_ms": left_ms(state.control, limits, cost_us, epoch_ms),
        }
    return figures
