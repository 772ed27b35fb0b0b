"""Between Spark's types and Arrow's, and the columns that every record carries."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)
from pyspark.sql.types import StructType

from penstock.arrow.columns import UTC
from penstock.errors import DeclarationError
from penstock.spark.internals.arrow_types import to_arrow, to_spark
from penstock.spark.internals.plans import frame_without_rows
from penstock.sql_text.schema import quoted
from penstock.types import ORDER, visible


def own_columns(frame: DataFrame) -> list[str]:
    """SQL of the columns that are not hidden."""
    return [quoted(name) for name in visible(frame.columns)]


def arrow_schema(schema: StructType) -> pa.Schema:
    """A Spark schema in Arrow's types, timestamps in UTC; the columns that say where a record is left out.

    Raises:
        DeclarationError: A column has a type that Arrow cannot carry (interval, variant…).
    """
    try:
        found = to_arrow(schema)
    except Exception as error:
        raise DeclarationError(f"A column has a type that cannot leave the JVM: {error}; cast it to another.") from error
    return pa.schema([pa.field(f.name, f.type) for f in found if f.name not in ORDER])


def case_counts(spark: SparkSession) -> bool:
    """Whether the session distinguishes names that differ only in case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def spark_schema(schema: pa.Schema) -> StructType:
    """An Arrow schema in Spark's types."""
    return to_spark(pa.schema([pa.field(f.name, f.type, nullable=True) for f in schema]))


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A DataFrame without rows."""
    return frame_without_rows(spark, spark_schema(schema))


def array_sql(numbers: Iterable[int], kind: str = "bigint") -> str:
    """Whole numbers as an array in Spark SQL: one text, which Spark parses quickly and folds once.

    Unlike literals, an array is not part of the code that Spark generates, so other numbers need no new code.
    """
    return f"cast(split('{','.join(map(str, numbers))}', ',') as array<{kind}>)"


def named(name: str) -> Column:
    """A column by its name, whatever characters it has."""
    return F.col(quoted(name))


def to_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Timestamps in UTC, whatever the session's time zone."""
    arrays = [c.cast(UTC) if pa.types.is_timestamp(c.type) and c.type.tz and c.type.tz != "UTC" else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
