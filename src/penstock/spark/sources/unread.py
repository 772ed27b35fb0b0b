"""What a flow has not read: whether a query has read all there was, and which files Spark finds that its log of input does not name.

Read next: `penstock.spark.logs`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.flow.plan import Plan
from penstock.spark.logs import files_read
from penstock.spark.sources.found_files import normal
from penstock.spark.sources.readers import reader_of


def unread_files(spark: SparkSession, plan: Plan, checkpoint: Checkpoint, record: EpochRecord) -> dict[str, int]:
    """By source of files, how many of them the flow has not read; sources without any are left out.

    Cost: lists the folders once.
    """
    found = {}
    given = {normal(path) for path in files_read(checkpoint, record)}
    for source in plan.sources:
        state = record.sources.get(source.name)
        if unread := reader_of(source).unread(spark, source, state, given):
            found[source.name] = unread
    return found


def ran_out(query: Any) -> bool:
    """Whether a query of what there is has ended because there was nothing more, and not because somebody has stopped it.

    Where a source cannot say what there is (the rate generator, sources in Python), Spark reads all that there is in one epoch and ends.
    """
    try:
        java = query._jsq.streamingQuery()  # noqa: SLF001  (no other way to tell)
        once = "SingleBatch" in java.triggerExecutor().toString()
        return bool(java.noNewData()) or (once and query.lastProgress is not None)
    except Exception:  # noqa: BLE001  (another version's internals: then it is taken for granted)
        return True


def was_stopped(java: Any) -> bool:
    """Whether somebody has stopped a query (its Java object) while an epoch of it runs; False if there is none to ask any more."""
    try:
        return java is not None and not java.isActive()
    except Exception:  # noqa: BLE001  (with Java gone, what failed first says more)
        return False


__all__ = ["ran_out", "unread_files", "was_stopped"]
