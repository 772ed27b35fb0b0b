"""A shuffle that moves pages of columns instead of rows, see `penstock.arrow.pages`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.arrow.pages import BLOCK_ROWS, PAGES, TO, decode_pages, encode_pages, is_paged, page_overhead
from penstock.routing.hashing import spark_xxhash64
from penstock.spark.columns import named, spark_schema
from penstock.spark.internals.plans import select_sql
from penstock.spark.internals.shuffle import to_partitions
from penstock.spark.memory import begin_task
from penstock.spark.session.settings import ADAPTIVE, BATCH_ROWS, SHUFFLE
from penstock.sql_text.schema import quoted

HANDED_BYTES: Final = 256 << 20
"""How much Spark may hand to a task at a time: it counts rows, and a page is one."""
_LEAST_BYTES: Final = 8 << 10
_HEADS: Final = 8  # a page has at least so many times the bytes of what it says of itself


def can_be_paged(spark: SparkSession, columns: pa.Schema) -> bool:
    """Whether rows can be shuffled in pages, with the session's number of partitions.

    Adaptive execution joins small partitions and needs a shuffle whose number of partitions it can choose.
    """
    adaptive = str(spark.conf.get(ADAPTIVE)).lower() == "true"
    return not adaptive and fits_pages(spark, columns)


def fits_pages(spark: SparkSession, columns: pa.Schema) -> bool:
    """Whether pages of such rows are worth their overhead: they are small if Spark hands over many rows at a time."""
    least = max(_LEAST_BYTES, _HEADS * page_overhead(len(columns)))
    return all(map(is_paged, columns.types)) and _page_bytes(spark) >= least


def _page_bytes(spark: SparkSession) -> int:
    rows = int(str(spark.conf.get(BATCH_ROWS)))
    return HANDED_BYTES // rows if rows > 0 else 0  # without a limit Spark hands over all at once


def by_key(frame: DataFrame, keys: Sequence[int]) -> DataFrame:
    """The rows in pages, those of a key in one partition, where `can_be_paged`.

    Args:
        frame: Its columns.
        keys: Places of key columns, of types that `penstock.routing.hashing.is_hashable`.
    """
    workers = int(str(frame.sparkSession.conf.get(SHUFFLE)))

    def worker_of(rows: pa.RecordBatch) -> Any:
        upper = spark_xxhash64([rows.column(i) for i in keys]).view(np.uint64) >> np.uint64(32)
        return (upper * np.uint64(workers)) >> np.uint64(32)  # a division would take ten times as long

    return in_pages(frame, worker_of, workers)


def in_pages(
    frame: DataFrame,
    worker_of: Callable[[pa.RecordBatch], Any],
    workers: int,
    before: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None,
) -> DataFrame:
    """The rows in pages, at their partitions; rows of one task of `frame` keep their order.

    Args:
        frame: Its columns after `before` must satisfy `fits_pages`.
        worker_of: The number of each row's partition; from columns by index, not by name. Runs in Python, because the JVM would
            have to hand over its result as another column.
        workers: The number of partitions.
        before: Applied to the rows of a task first, in Python.

    Returns:
        Rows of `PAGES`, for `penstock.arrow.pages.decode_pages`.
    """
    page_bytes = _page_bytes(frame.sparkSession)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        return encode_pages(batches if before is None else before(batches), worker_of, workers, page_bytes)

    names = frame.columns
    if names != [f"c{i}" for i in range(len(names))]:  # mapInArrow does not quote names
        frame = select_sql(frame, [f"{quoted(name)} as c{i}" for i, name in enumerate(names)])
    return to_partitions(frame.mapInArrow(run, spark_schema(PAGES)), workers, named(TO))


Placed = Callable[[Iterable[pa.RecordBatch]], Iterable[tuple[pa.RecordBatch, Any]]]
"""Gives, of the rows of a task, batches and the worker of each of their rows."""


def spread(frame: DataFrame, schema: pa.Schema, placed: Placed, workers: int) -> tuple[DataFrame, bool]:
    """Rows at their workers, each in a task of its own; in pages if they fit.

    Args:
        frame: What the tasks are given; its columns have plain names.
        schema: The columns of the rows that `placed` gives.
        placed: Runs in Python.
        workers: The number of workers.

    Returns:
        What `spread_rows` reads, and whether it is pages.
    """
    paged, page_bytes = fits_pages(frame.sparkSession, schema), _page_bytes(frame.sparkSession)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        for rows, to in placed(batches):
            for at in range(0, rows.num_rows, BLOCK_ROWS):
                some, theirs = rows.slice(at, BLOCK_ROWS), to[at : at + BLOCK_ROWS].astype(np.int32)
                if paged:
                    yield from encode_pages([some], partial(_given, theirs), workers, page_bytes)
                else:
                    yield pa.RecordBatch.from_arrays([pa.array(theirs), *some.columns], names=[TO, *some.schema.names])

    columns = PAGES if paged else pa.schema([PAGES.field(TO), *(pa.field(f"c{i}", f.type) for i, f in enumerate(schema))])
    return to_partitions(frame.mapInArrow(run, spark_schema(columns)), workers, named(TO)), paged


def _given(to: Any, _: pa.RecordBatch) -> Any:
    return to


def spread_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, paged: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows that came to one worker, with its number."""
    for batch in batches:
        if batch.num_rows:
            worker = int(batch.column(0)[0].as_py())
            if paged:
                yield from ((worker, rows) for rows in decode_pages([batch], schema))
            else:
                arrays = [c if c.type == f.type else c.cast(f.type) for c, f in zip(batch.columns[1:], schema, strict=True)]
                yield worker, pa.RecordBatch.from_arrays(arrays, schema=schema)


__all__ = ["by_key", "can_be_paged", "fits_pages", "in_pages", "spread", "spread_rows"]
