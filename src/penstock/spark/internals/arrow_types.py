"""Spark's types as Arrow's and back, by PySpark's own mapping, whose arguments differ between versions."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

_ZONE = "timezone"


def to_arrow(schema: StructType) -> pa.Schema:
    """A Spark schema in Arrow's types, timestamps in UTC.

    From 4.2 on it takes the zone of timestamps as an argument; before, they are in UTC always.
    Without PySpark's mapping penstock does not run: it is the one by which Spark itself hands rows to Python.

    Raises:
        Exception: PySpark's own, where Arrow has no such type.
    """
    mapping: Any = types.to_arrow_schema
    found: pa.Schema = mapping(schema, **_zone())
    return found


def to_spark(schema: pa.Schema) -> StructType:
    """An Arrow schema in Spark's types, timestamps without a zone as such: so they are by default from 4.2 on."""
    return types.from_arrow_schema(schema, True)  # the same place in every version


@cache
def _zone() -> dict[str, str]:
    return {_ZONE: "UTC"} if _ZONE in inspect.signature(types.to_arrow_schema).parameters else {}


__all__ = ["to_arrow", "to_spark"]
