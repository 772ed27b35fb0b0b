"""One worker's task with its files: state in, `run_region_task`, delta out. The same in a Spark task and in process.

The delta file is written while the output rows are handed on, and the task ends when both are done. Sinks get the rows of tasks that have
ended, so rows that reach a sink always have their state on disk.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.checkpoint.folder import delta_path, move_path
from penstock.operators.base import Operator
from penstock.protocol.messages import Acquire, Message
from penstock.protocol.reports import StateMove, encode_report
from penstock.routing.table import Routing
from penstock.rows.keys import WORKER_BIN
from penstock.state.deltas import FileRef, Metadata, Version, read_file, read_ref, write_file
from penstock.state.environment import remove_environment
from penstock.state.files import resolve
from penstock.state.store import LocalStore
from penstock.state.worker import WorkerState
from penstock.types import plain
from penstock.worker.collect_state import GivenUp
from penstock.worker.spec import RegionSpec
from penstock.worker.task import run_region_task

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
        routing: Which rows belong to which worker.
        messages: By worker, from the controller.
        versions: By worker, the state to start from.
        local: Folder on a local disk for state caches.
        compute: Runs the task: `run_region_task`, or what does so twice (`penstock.worker.audit`).
    """

    checkpoint: str
    flow: str
    spec: RegionSpec
    epoch: int
    run: int
    routing: Routing
    messages: tuple[tuple[Message, ...], ...]
    versions: tuple[Version, ...]
    local: str
    compute: Callable[..., Any] = run_region_task


def local_states(boot_id: str) -> States:
    """States cached in LMDB on the local disk; `boot_id` says which boot of the machine this is, as caches do not outlive one."""

    def open_state(assignment: Assignment, worker: int, identity: str) -> WorkerState:
        fs, root = resolve(assignment.checkpoint)
        _remove_retired(Path(assignment.local, identity).parent, len(assignment.versions))
        store = LocalStore.open(f"{assignment.local}/{identity}", identity, boot_id)
        return store.at(fs, root, assignment.versions[worker])

    return open_state


def _remove_retired(region: Path, workers: int) -> None:
    """Remove this host's caches of workers that a region no longer has (rule S3)."""
    if not region.is_dir():
        return
    for found in os.listdir(region):  # noqa: PTH208  (names only, once per task)
        if found.isdigit() and int(found) >= workers:
            remove_environment(str(region / found))


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Have Python look for cycles of objects less often: what a function is given per event is no garbage yet.

    By default every 700th new object starts a search, which took up to half the time of `stateful_map`.
    """
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], 50_000), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
        Output rows, while the delta is written; it is on disk once all have been taken.

    Raises:
        PenstockError: As `run_region_task`, or the delta cannot be written; nothing was committed.
    """
    a = assignment
    fs, root = resolve(a.checkpoint)
    identity = f"{a.flow}/{a.spec.name}/{worker}"
    messages, version = a.messages[worker], a.versions[worker]
    began, cpu = time.perf_counter(), time.thread_time_ns()
    with seldom_collecting(), states(a, worker, identity) as state:
        cost = (time.perf_counter() - began) * _share_moved(version, a.epoch - 1)
        came = _acquired(a.spec, messages, fs, root, version)
        out, report, given = a.compute(a.spec, worker, a.epoch, messages, rows, state, came, time.perf_counter)
        began = time.perf_counter()
        changes = state.changes()
        write: Callable[[], object] | None = None
        if (
            changes.num_rows
            or report.rows_in
            or report.rows_out
            or given is not None
            or report.answer.sized is not None
            or report.unsure
        ):
            moves = [] if given is None else _write_moves(a, worker, attempt, given, fs, root, identity)
            cost += 0.0 if given is None else time.perf_counter() - began
            answer = replace(report.answer, cost_us=report.answer.cost_us + int(cost * 1e6))
            cpu_us = (time.thread_time_ns() - cpu) // 1000
            about = encode_report(replace(report, rows=changes.num_rows, moves=tuple(moves), answer=answer, cpu_us=cpu_us))
            path = delta_path(a.spec.name, worker, a.epoch, a.run, attempt)
            metadata = Metadata("delta", identity, a.epoch, about)
            write = partial(write_file, fs, root, path, [changes] if changes.num_rows else [], metadata, str(attempt))
    if write is None or not out:  # otherwise it is written while they are handed on
        if write is not None:
            write()
        yield from out
        return
    with ThreadPoolExecutor(1, "penstock-delta") as pool:
        written = pool.submit(write)
        yield from out
        written.result()


def _write_moves(
    a: Assignment, worker: int, attempt: int, given: GivenUp, fs: pafs.FileSystem, root: str, identity: str
) -> list[StateMove]:
    """One file per receiver; they count once the epoch's record names them."""
    out = []
    for to, batch in sorted([*given.rows.items(), *([(-1, given.dropped)] if given.dropped is not None else [])]):
        path = move_path(a.spec.name, worker, a.epoch, a.run, attempt, to)
        ref = write_file(fs, root, path, [batch], Metadata("move", identity, a.epoch), str(attempt))
        out.append(StateMove(to, plain(ref)))
    return out


def _share_moved(version: Version, last: int) -> float:
    """How much of catching up with the last epoch is due to state that came or went."""
    fresh = [d for d in version.deltas if d.version == last]
    rows = sum(d.rows for d in fresh)
    return sum(d.rows for d in fresh if d.role) / rows if rows else 0.0


def _acquired(spec: RegionSpec, messages: tuple[Message, ...], fs: pafs.FileSystem, root: str, version: Version) -> list[bytes]:
    """Names of entries that have come, if an operator has a hook for them."""
    paths = {p for m in messages if isinstance(m, Acquire) for p in m.paths}
    if not paths or all(type(s.operator).on_acquire is Operator.on_acquire for s in spec.steps):
        return []
    came: list[FileRef] = [d for d in version.deltas if d.path in paths]
    merged = sorted(paths - {d.path for d in came})  # into a base that was adopted since
    came += [read_ref(fs, root, path)[0] for path in merged]
    names: list[Any] = [name for ref in came for name in read_file(fs, root, ref)[1]["key"].to_pylist()]
    return [name for name in names if name[:2] != WORKER_BIN]
