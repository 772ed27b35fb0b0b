"""What runs inside a Spark task: find out which worker this is, then `run_worker`."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.errors import StateError
from penstock.sinks.base import Stager
from penstock.spark.columns import to_utc
from penstock.spark.memory import begin_task
from penstock.worker.run import Assignment, local_states, run_worker
from penstock.worker.spec import key_columns, key_hashes

_CHECKED_EVERY: Final = 32
"""Of the small batches that Spark hands over, one in so many is looked at: rows that are routed by another table are in every one."""


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Which boot of this machine it is; local state written without fsync is worth nothing after another one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def local_folder() -> str:
    """Where this host keeps state caches: ``PENSTOCK_LOCAL_DIR``, or a folder of this user in the temporary directory."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, by a number that no name belongs to
        user = str(os.getuid())
    return os.environ.get("PENSTOCK_LOCAL_DIR") or str(Path(tempfile.gettempdir()) / f"penstock-{user}")


Batches = Iterable[pa.RecordBatch]
BatchFunction = Callable[[Batches], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""


def _begun() -> Any:
    """Spark's context of the task that begins here."""
    from pyspark import TaskContext

    begin_task()
    context = TaskContext.get()
    assert context is not None
    return context


def task(assignment: Assignment, read: Callable[[Batches], Batches] | None = None) -> BatchFunction:
    """The function for ``mapInArrow`` of a region. `read`: makes rows of what comes; None: it is rows."""

    def run(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _begun()
        worker = context.partitionId()
        checked = _checked(rows if read is None else read(rows), worker, assignment)
        yield from run_worker(assignment, worker, context.taskAttemptId(), local_states(boot_id()), checked)

    return run


def whole_task(assignment: Assignment, worker_of: Callable[[pa.RecordBatch], Any]) -> BatchFunction:
    """The function for ``mapInArrow`` of a region whose workers are run by one task, one after the other.

    Args:
        assignment: What the driver says.
        worker_of: Gives the worker of each row of a batch.
    """

    def run(rows: Batches) -> Iterator[pa.RecordBatch]:
        context = _begun()
        batches = [batch for batch in rows if batch.num_rows]
        owners = [worker_of(batch) for batch in batches]
        for worker in range(len(assignment.versions)):
            mine = [batch.filter(pa.array(to == worker)) for batch, to in zip(batches, owners, strict=True)]
            yield from run_worker(assignment, worker, context.taskAttemptId(), local_states(boot_id()), mine)

    return run


def staging(stager: Stager, names: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` that stages the rows of an output, whose columns are called `names`, and gives the tokens."""

    def run(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _begun()
        for token in stager((to_utc(batch).rename_columns(names) for batch in rows), context.taskAttemptId()):
            yield pa.record_batch({"token": pa.array([token], pa.binary())})

    return run


def _checked(rows: Iterable[pa.RecordBatch], worker: int, assignment: Assignment) -> Iterator[pa.RecordBatch]:
    """Refuse rows of another worker: the task would apply them to the wrong state."""
    ports = key_columns(assignment.spec)
    region, routing = assignment.spec.name, assignment.routing
    if worker >= len(assignment.versions):
        raise StateError(
            f"Region {region!r} has {len(assignment.versions)} workers, but a task of it ran as number {worker}; report this as a bug."
        )
    for number, batch in enumerate(rows):
        if (
            assignment.spec.keys.names
            and number % _CHECKED_EVERY == 0
            and (routing.workers_of(key_hashes(ports, batch.slice(0, 64))) != worker).any()
        ):
            raise StateError(f"Region {region!r}: worker {worker} got rows of another worker; report this as a bug.")
        yield batch
