"""Between Spark's types and Arrow's, and the columns that every record carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.arrow.columns import UTC
from penstock.errors import DeclarationError
from penstock.sql_text.schema import quoted
from penstock.types import ORDER, visible

_BETWEEN: Final = "\x01"
_splitters: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()  # Java's patterns that split at it


def own_columns(frame: DataFrame) -> list[str]:
    """SQL of the columns that are not hidden."""
    return [quoted(name) for name in visible(frame.columns)]


def arrow_schema(schema: StructType) -> pa.Schema:
    """A Spark schema in Arrow's types, timestamps in UTC; the columns that say where a record is left out.

    Raises:
        DeclarationError: A column has a type that Arrow cannot carry (interval, variant…).
    """
    try:
        found: Any = to_arrow_schema(schema, timezone="UTC")
    except Exception as error:
        raise DeclarationError(f"A column has a type that cannot leave the JVM: {error}; cast it to another.") from error
    return pa.schema([pa.field(f.name, f.type) for f in found if f.name not in ORDER])


def case_counts(spark: SparkSession) -> bool:
    """Whether the session distinguishes names that differ only in case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def spark_schema(schema: pa.Schema) -> StructType:
    """An Arrow schema in Spark's types."""
    return from_arrow_schema(pa.schema([pa.field(f.name, f.type, nullable=True) for f in schema]))


def empty_frame(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A DataFrame without rows. Unlike ``createDataFrame``, this leaves the active session of the process as it is."""
    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    return DataFrame(
        session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(spark_schema(schema).json())), spark
    )


def array_sql(numbers: Iterable[int], kind: str = "bigint") -> str:
    """Whole numbers as an array in Spark SQL: one text, which Spark parses quickly and folds once.

    Unlike literals, an array is not part of the code that Spark generates, so other numbers need no new code.
    """
    return f"cast(split('{','.join(map(str, numbers))}', ',') as array<{kind}>)"


def select_sql(frame: DataFrame, expressions: Sequence[str]) -> DataFrame:
    """``frame.selectExpr(*expressions)`` in one call.

    PySpark hands them to Java one by one, and searches all packages for a Spark class first. That takes 5 ms, and an epoch
    selects several times.
    """
    context = frame.sparkSession.sparkContext
    if not expressions or any(_BETWEEN in text for text in expressions):
        return frame.selectExpr(*expressions)
    if context not in _splitters:
        jvm: Any = context._jvm
        _splitters[context] = jvm.java.util.regex.Pattern.compile(_BETWEEN)
    jdf: Any = frame._jdf
    return DataFrame(jdf.selectExpr(_splitters[context].split(_BETWEEN.join(expressions))), frame.sparkSession)


def named(name: str) -> Column:
    """A column by its name, whatever characters it has."""
    return F.col(quoted(name))


def to_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Timestamps in UTC, whatever the session's time zone."""
    arrays = [c.cast(UTC) if pa.types.is_timestamp(c.type) and c.type.tz and c.type.tz != "UTC" else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
