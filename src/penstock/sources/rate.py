"""A generator of test records."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.arrow.columns import UTC
from penstock.sources.base import Source
from penstock.sql_text.schema import as_number


@dataclass(frozen=True)
class Rate(Source):
    """Spark's generator: ``value`` counts from 0, ``timestamp`` is the clock."""

    rows_per_second: int
    schema: pa.Schema
    steady = True

    def meaning(self) -> dict[str, str]:
        return {"kind": "rate", "rate": f"{self.rows_per_second} rows per second"}


def rate(rows_per_second: int = 1) -> Rate:
    """A stream of test records: columns ``timestamp`` and ``value`` (0, 1, 2, …).

    Raises:
        DeclarationError: The rate is not positive.

    Example:
        >>> rate(10).schema.names
        ['timestamp', 'value']
    """
    as_number(rows_per_second, "rows_per_second of rate")
    schema = pa.schema([pa.field("timestamp", UTC), pa.field("value", pa.int64())])
    return Rate(rows_per_second, schema)
