"""The state of a region as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.driver.inspect import view_region
from penstock.spark.columns import spark_schema


def read_state(spark: SparkSession, checkpoint: str | os.PathLike[str], region: str, snapshot: str | None = None) -> DataFrame:
    """The state of a region.

    Args:
        spark: The session.
        checkpoint: Folder or URI of the checkpoint. The flow may be running.
        region: The region's name.
        snapshot: Name of a snapshot; None: the last committed epoch.

    Returns:
        One row per entry: the key columns, ``operator``, ``worker``, ``bin``, ``entry`` (a window's start, or empty) and
        ``state`` (JSON).

    Raises:
        CheckpointError: There is no such checkpoint, region or snapshot.

    Example:
        >>> def counted(tail, flight, state):
        ...     return None, ((state.n if state else 0) + 1,)
        >>> stored = flights.key_by("tail").stateful_map(counted, "tail string", state="n bigint").sink(ps.noop())
        >>> flow.start(spark, checkpoint="checkpoint", trigger="available_now").await_termination()
        True
        >>> ps.read_state(spark, "checkpoint", "tail").count()
        1
    """
    view = view_region(checkpoint, region, snapshot)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            workers: list[Any] = batch.column(0).to_pylist()
            for worker in workers:
                yield from view.rows(worker)

    count = len(view.versions)
    names = [f"c{i}" for i in range(len(view.schema))]
    plain = pa.schema([pa.field(n, f.type) for n, f in zip(names, view.schema, strict=True)])

    def renamed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(batches):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=plain)

    return spark.range(0, count, 1, count).mapInArrow(renamed, spark_schema(plain)).toDF(*view.schema.names)
