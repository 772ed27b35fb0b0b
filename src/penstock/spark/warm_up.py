"""Warm a session up for a flow: run epochs of it, and of one of penstock's own, that read and store nothing.

The first epochs of a driver take seconds each: Python workers start and import, Java compiles. An application of a group runs them before it joins, so that no
partition stands still meanwhile. They have a checkpoint and sinks of their own, and no input of the flow: users' functions over rows are not called.

Each task that runs at the same time as others has a Python worker of its own. So as many are started as the partitions of the flow can keep busy: otherwise
the first two epochs that meet would start the second one.

Read next: `penstock.spark.reading`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from penstock.arrow.columns import UTC
from penstock.flow.flow import Flow
from penstock.flow.shared import of_partition, shared_by, with_sink
from penstock.sinks.noop import Noop
from penstock.sources.base import MALFORMED
from penstock.sources.redis_streams import ENTRY_OFFSET, ENTRY_PARTITION, redis_streams
from penstock.spark.internals.arrow_types import to_arrow
from penstock.spark.options import workers_of
from penstock.spark.sources.planned import PlannedSlices
from penstock.spark.sources.readers import reader_of
from penstock.spark.task import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.driver.loop import Loop
    from penstock.spark.run import SparkEngine
    from penstock.types import Mark

Opened = Callable[..., "tuple[Loop, SparkEngine]"]

_EPOCHS: Final = 6
_ROWS: Final = 200
_MOST_PYTHONS: Final = 64
"""No more Python workers are started at a time; of a cluster these may be few."""


class _Nowhere(Noop):
    """Takes rows, as sinks do, and forgets them."""

    wants_rows: ClassVar[bool] = True

    def write(self, batches: Iterable[pa.RecordBatch], mark: Mark) -> int:
        """Take them."""
        del mark
        return sum(batch.num_rows for batch in batches)


class _Given(PlannedSlices):
    """An epoch's input whose parts are the rows themselves."""

    def few(self, tag: int) -> pa.Table:
        """The rows."""
        source, rows = self._inputs[tag - 1]
        return pa.Table.from_batches(rows, to_arrow(source.schema))


def _count(key: Any, event: Any, n: Any) -> Any:
    n = (n or 0) + event.v
    return (key, n), n


def _rows(epoch: int) -> pa.RecordBatch:
    numbers = range(epoch * _ROWS, (epoch + 1) * _ROWS)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"k{n}" for n in range(_ROWS)]),
            pa.array([n * 1_000_000 for n in numbers], pa.int64()).cast(UTC),
            pa.array(numbers, pa.int64()),
            pa.array([0] * _ROWS, pa.int64()),
            pa.array(numbers, pa.int64()),
            pa.nulls(_ROWS, pa.string()),
        ],
        ["k", "at", "v", ENTRY_PARTITION, ENTRY_OFFSET, MALFORMED],
    )


def warm_up(flow: Flow, spark: SparkSession, workers: int | Mapping[str, int] | None, opened: Opened) -> float:
    """Run epochs until a flow's own will be quick; gives how many seconds that took.

    Args:
        flow: A flow of a group.
        spark: The session.
        workers: Numbers of its workers.
        opened: Opens a flow on a checkpoint: `penstock.spark.run.opened`.

    Raises:
        PenstockError: The flow cannot run here.
    """
    began, theirs = time.monotonic(), with_sink(of_partition(flow, 0), _Nowhere())
    tasks = shared_by(flow).partitions * max(workers_of(theirs.plan(), workers).values(), default=1)
    pythons = min(tasks, spark.sparkContext.defaultParallelism, _MOST_PYTHONS)
    if (
        pythons > 1
    ):  # the tasks of a stage run side by side, and take longer to import than Spark takes to begin the last of them
        _run(lambda folder: opened(_ours(), spark, folder, pythons), [_rows(0)])
    _run(lambda folder: opened(_ours(), spark, folder, 1), list(map(_rows, range(_EPOCHS))))
    _run(lambda folder: opened(theirs, spark, folder, workers))
    return time.monotonic() - began


def _ours() -> Flow:
    """A flow of penstock's own; its rows are given by `_run`."""
    flow = Flow("warm-up")
    source = flow.source("rows", redis_streams("redis://127.0.0.1", "warm-up", 1, "k string, at timestamp, v long"), time="at")
    source.key_by("k").stateful_map(_count, "k string, n long").sink(_Nowhere())
    return flow


def _run(opened: Callable[[str], tuple[Loop, SparkEngine]], rows: Sequence[pa.RecordBatch] = ()) -> None:
    """Run an epoch without rows, and one for each of `rows`."""
    folder = tempfile.mkdtemp(prefix="penstock-warm-up-")
    try:
        loop, engine = opened(folder)
        sources = [found for source in loop.flow.plan.sources if (found := reader_of(source).planned(source)) is not None]
        if len(sources) < len(loop.flow.plan.sources):
            return
        loop.open()
        try:
            for epoch in range(1 + len(rows)):
                parts = rows[epoch - 1 : epoch] if epoch else ()
                engine.run_epoch(loop, epoch, _Given(engine.spark, [(source, parts) for source in sources]))
        finally:
            loop.close()
            shutil.rmtree(Path(local_folder(), loop.settings.flow), ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["warm_up"]
