"""What a flow has not read: whether a query has read all there was, and which files Spark finds that its log of input does not name.

Read next: `penstock.spark.logs`.
"""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord
from penstock.driver.input_files import Order
from penstock.flow.plan import Plan
from penstock.sources.connectors import Files
from penstock.spark.columns import spark_schema
from penstock.spark.logs import files_read
from penstock.spark.sources.found_files import normal


def unread_files(spark: SparkSession, plan: Plan, checkpoint: Checkpoint, record: EpochRecord) -> dict[str, int]:
    """By source of files, how many of them the flow has not read; sources without any are left out.

    Cost: lists the folders once.
    """
    found = {}
    given = {normal(path) for path in files_read(checkpoint, record)}
    for source in plan.sources:
        if isinstance(source.connector, Files):
            order = Order.from_json(record.sources[source.name].order) if source.name in record.sources else Order()
            read = (given | {normal(uri) for uri in order.ahead}) - {normal(file.uri) for file in order.owed}
            unread = {normal(path) for path in _there(spark, source.connector)} - read
            if unread:
                found[source.name] = len(unread)
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


def _there(spark: SparkSession, files: Files) -> list[str]:
    """The files as Spark lists them when it follows the folder."""
    try:
        return (
            spark.read.format(files.format)
            .options(**files.options)
            .schema(spark_schema(files.schema))
            .load(files.path)
            .inputFiles()
        )
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise


__all__ = ["ran_out", "unread_files", "was_stopped"]
