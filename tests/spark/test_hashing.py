"""Keys are hashed before the shuffle by the JVM, after it in Python: both must find the same, of every value of every type."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DeclarationError
from penstock.routing.hashing import spark_xxhash64

LONGS = [0, 1, -1, 2**63 - 1, -(2**63), 1 << 33]
INTS = [0, 1, -1, 2**31 - 1, -(2**31)]
FLOATS = [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, 5e-324]
TEXTS = [
    "",
    "a",
    "é",
    "tail",
    "1234567",
    "12345678",
    "123456789012",
    *("x" * n for n in (31, 32, 33, 63, 64, 100, 1000)),
    "N\0N",
]
DECIMALS = ["0", "0.01", "-0.01", "1.28", "1.27", "-1.28", "-1.29", "327.68", "-327.68", "99999.99"]
LARGE = [*DECIMALS, "1" * 20 + ".25", "-" + "9" * 30, str(2**63), str(-(2**63)), str(2**64), str(-(2**71))]
MOMENTS = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC)]
COLUMNS = {
    "bigint": (pa.int64(), LONGS),
    "int": (pa.int32(), INTS),
    "smallint": (pa.int16(), [0, 7, -7]),
    "tinyint": (pa.int8(), [0, 7, -7]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("us", "UTC"), MOMENTS),
    "timestamp_ntz": (pa.timestamp("us"), [m.replace(tzinfo=None) for m in MOMENTS]),
    "float": (pa.float32(), FLOATS),
    "double": (pa.float64(), FLOATS),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), [t.encode() for t in TEXTS]),
    "decimal(9,2)": (pa.decimal128(9, 2), [Decimal(d) for d in DECIMALS]),
    "decimal(18,2)": (pa.decimal128(18, 2), [Decimal(d) for d in DECIMALS]),
    "decimal(38,4)": (pa.decimal128(38, 4), [Decimal(d) for d in LARGE]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_one_column_is_hashed_as_spark_does(spark, kind):
    arrow, values = COLUMNS[kind]
    column = pa.array([None, *values, None, *values], arrow)
    table = pa.table({"k": column, "i": pa.array(range(len(column)))})
    rows = spark.createDataFrame(table).selectExpr("i", f"xxhash64(cast(k as {kind})) as h").orderBy("i").collect()
    assert spark_xxhash64(column).tolist() == [row.h for row in rows]
    assert spark_xxhash64(column.slice(3)).tolist() == [row.h for row in rows][3:]
    assert spark_xxhash64(column.drop_null()).tolist() == [
        row.h for row, v in zip(rows, column.to_pylist(), strict=True) if v is not None
    ]


def test_several_columns_are_hashed_as_spark_does(spark):
    rng = np.random.default_rng(5)
    table = pa.table(
        {
            str(i): pa.array([v if rng.random() > 0.2 else None for v in rng.permutation([*values] * 9)[:60].tolist()], arrow)
            for i, (arrow, values) in enumerate(
                [(pa.int64(), [1, 2, 3, 4, 5, 6, 7]), (pa.string(), TEXTS), (pa.float64(), FLOATS), (pa.int32(), INTS * 2)]
            )
        }
    )
    rows = spark.createDataFrame(table).selectExpr("xxhash64(*) as h").collect()
    assert spark_xxhash64(table.columns).tolist() == [row.h for row in rows]


@given(st.lists(st.binary(max_size=150), min_size=1))
def test_bytes_are_hashed_as_the_reference_does(values):
    wanted = [xxhash.xxh64_intdigest(v, 42) for v in values]
    for arrow in (pa.binary(), pa.large_binary()):
        assert spark_xxhash64(pa.array(values, arrow)).view(np.uint64).tolist() == wanted


def test_dictionaries_are_hashed_as_their_values():
    column = pa.array(["a", None, "b", "a"])
    assert spark_xxhash64(column.dictionary_encode()).tolist() == spark_xxhash64(column).tolist()


def test_columns_without_rows_and_without_values():
    for arrow, _ in COLUMNS.values():
        assert spark_xxhash64(pa.array([], arrow)).tolist() == []
        assert spark_xxhash64(pa.nulls(2, arrow)).tolist() == [42, 42]
    assert spark_xxhash64(pa.nulls(2)).tolist() == [42, 42]


def test_types_without_a_hash_are_refused():
    with pytest.raises(DeclarationError, match="cannot be of type list"):
        spark_xxhash64(pa.array([[1]]))
