"""Stored rows as a source over Spark: a stream of their numbers, which tasks read page by page.

An offset of Spark's is a number of rows and the event time below which they are counted. Of both the rows follow, so an epoch that runs again, also
in another process, reads the same. The driver reads marks and positions only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.flow.plan import SourceNode
from penstock.sources.read_back import READ_NUMBER, READ_PLACE, READ_TIME, ReadBack
from penstock.spark.columns import spark_schema
from penstock.spark.internals.python_sources import ReadLimit, SupportsTriggerAvailableNow, refuse_where_not_told
from penstock.spark.sources.reader import Reader
from penstock.types import MIN_TIME

_numbers: Final = itertools.count()


class ReadBackReader(Reader):
    """See `penstock.read_back`."""

    needs = (*READ_PLACE, READ_NUMBER)

    @staticmethod
    def check(spark: SparkSession, source: SourceNode) -> Sequence[str]:
        del spark
        refuse_where_not_told(source.name, "read_back")
        return ()

    @staticmethod
    def stream(spark: SparkSession, source: SourceNode) -> DataFrame:
        name = f"penstock_stored_rows_{next(_numbers)}"
        spark.dataSource.register(data_source(name, source.connector))
        return spark.readStream.format(name).load()

    def offset(self) -> str:
        return READ_NUMBER

    def offset_bits_left(self) -> int:
        return 0


def data_source(name: str, rows: Any) -> type[DataSource]:
    """The kind of source that Spark knows by a name. What it reads is no option of it, since options are shown, and a URL may hold a password."""

    class Stored(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return spark_schema(_columns(rows))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
            del schema
            return _Stream(rows)

    return Stored


def _columns(rows: ReadBack) -> pa.Schema:
    hidden = (*((READ_TIME,) if rows.time else ()), *READ_PLACE, READ_NUMBER)
    return pa.schema([*rows.schema, *(pa.field(name, pa.int64()) for name in hidden)])


@dataclass
class _Page(InputPartition):
    """Some rows: a task's."""

    first: int
    cut: tuple[int, ...]
    rows: int
    below: int


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: ReadBack) -> None:
        self._rows = rows
        self._fixed: int | None = None
        self._all_read: tuple[int, int] | None = None
        """The frontier below which all rows have been read, and their number: until it advances there is nothing to ask for."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0, "below": MIN_TIME}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        below = self._rows.complete()
        self._fixed = MIN_TIME if below is None else below

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        del limit
        below = self._fixed if self._fixed is not None else self._rows.complete()
        if below is None:
            return start
        below = max(below, start["below"])  # a frontier that falls takes no row back, or `until` notices
        if (below, start["rows"]) == self._all_read:
            return start
        last = self._rows.until(start["rows"], below)
        if last == start["rows"]:
            self._all_read = (below, last)
        return {"rows": last, "below": below} if last > start["rows"] else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        below = end["below"]
        return [_Page(*page, below) for page in self._rows.pages(start["rows"], end["rows"], below)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        page: Any = partition
        table = self._rows.page(page.first, page.cut, page.rows, page.below)
        yield from table.combine_chunks().to_batches()


__all__ = ["ReadBackReader"]
