from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.sinks import sql_columns


def test_copy_text_when_arrays_are_slices_then_only_their_rows_are_written():
    names = pa.array(["skipped", "a", None, ""], pa.large_string()).slice(1)
    blobs = pa.array([b"skipped", b"\x00\xff", None, b""], pa.large_binary()).slice(1)
    text = sql_columns.copy_text([names, blobs], ["text", "binary"])
    assert text == b"a\t\\\\x00ff\n\\N\t\\N\n\t\\\\x\n"


def test_copy_text_when_one_column_is_null_then_its_line_is_not_empty():
    assert sql_columns.copy_text([pa.array([None, 1], pa.int64())], ["int"]) == b"\\N\n1\n"
    assert sql_columns.copy_text([pa.array([], pa.int64())], ["int"]) == b""


@pytest.mark.parametrize(
    ("arrow", "declared", "database", "expected"),
    [
        (pa.int64(), "INTEGER", "sqlite", True),
        (pa.int64(), "interval", "postgresql", False),
        (pa.int64(), "numeric", "postgresql", True),
        (pa.float64(), "numeric(10,2)", "postgresql", False),
        (pa.float32(), "real", "postgresql", True),
        (pa.float64(), "FLOAT", "duckdb", False),
        (pa.string(), "character varying", "postgresql", True),
        (pa.string(), "jsonb", "postgresql", False),
        (pa.list_(pa.int8()), "jsonb", "postgresql", True),
        (pa.timestamp("us", "UTC"), "timestamp without time zone", "postgresql", False),
        (pa.timestamp("us"), "timestamp with time zone", "postgresql", False),
        (pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE", "duckdb", True),
        (pa.timestamp("us", "UTC"), "DATETIME", "sqlite", True),
        (pa.decimal128(9, 2), "NUMERIC", "sqlite", False),
        (pa.decimal128(9, 2), "numeric(9,2)", "postgresql", True),
        (pa.int64(), "", "sqlite", True),
        (pa.null(), "uuid", "postgresql", True),
    ],
)
def test_fits_when_column_exists_then_only_types_that_change_nothing(arrow, declared, database, expected):
    assert sql_columns.fits(pa.field("c", arrow), declared, database) is expected
