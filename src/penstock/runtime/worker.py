"""One worker's task with its files: state in, `run_region_task`, delta out. The same in a Spark task and in process.

The delta file is written before the first output row is handed on, so rows that reach a sink always have their state on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from penstock.protocol.messages import Message
from penstock.runtime.checkpoint import delta_name
from penstock.runtime.spec import RegionSpec
from penstock.runtime.task import run_region_task
from penstock.state.deltas import Metadata, Version, write_file
from penstock.state.files import resolve
from penstock.state.store import LocalStore
from penstock.state.worker import WorkerState

States = Callable[["Assignment", int, str], WorkerState]
"""Gives the state that a worker starts from: assignment, worker, identity of the state."""


@dataclass(frozen=True)
class Assignment:
    """What the driver gives a worker for an epoch.

    Attributes:
        checkpoint: URI of the checkpoint.
        flow: Unique id of the flow.
        spec: The region.
        epoch: Number of the epoch.
        run: Number of the run.
        messages: From the controller.
        versions: By worker, the state to start from.
        local: Folder on a local disk for state caches.
    """

    checkpoint: str
    flow: str
    spec: RegionSpec
    epoch: int
    run: int
    messages: tuple[Message, ...]
    versions: tuple[Version, ...]
    local: str


def local_states(boot_id: str) -> States:
    """States cached in LMDB on the local disk; `boot_id` says which boot of the machine this is, as caches do not outlive one."""

    def open_state(assignment: Assignment, worker: int, identity: str) -> WorkerState:
        fs, root = resolve(assignment.checkpoint)
        store = LocalStore.open(f"{assignment.local}/{identity}", identity, boot_id)
        return store.at(fs, root, assignment.versions[worker])

    return open_state


def run_worker(
    assignment: Assignment, worker: int, attempt: int, states: States, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one worker through one epoch and write its delta.

    Args:
        assignment: What the driver says.
        worker: Which worker this is.
        attempt: Unique number of this attempt of the task.
        states: Gives the state to start from.
        rows: The worker's rows.

    Yields:
        Output rows, after the delta is on disk.

    Raises:
        PenstockError: As `run_region_task`; nothing was committed.
    """
    a = assignment
    fs, root = resolve(a.checkpoint)
    identity = f"{a.flow}/{a.spec.name}/{worker}"
    with states(a, worker, identity) as state:
        out, report = run_region_task(a.spec, worker, a.epoch, a.messages, rows, state)
        changes = state.changes()
        if changes.num_rows or report.rows_in or report.rows_out:
            about = {**asdict(report), "rows": changes.num_rows, "stats": asdict(state.stats())}
            path = f"state/{a.spec.name}/{delta_name(worker, a.epoch, a.run, attempt)}"
            write_file(
                fs, root, path, [changes] if changes.num_rows else [], Metadata("delta", identity, a.epoch, about), str(attempt)
            )
    yield from out
