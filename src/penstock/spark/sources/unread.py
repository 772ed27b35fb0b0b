"""What a flow has not read: which files Spark finds that its log of input does not name.

Read next: `penstock.spark.logs`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.flow.plan import Plan
from penstock.spark.internals.found_files import normal
from penstock.spark.logs import files_read
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


__all__ = ["unread_files"]
