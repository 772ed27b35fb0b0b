"""Batches made one."""

import pyarrow as pa
import pytest

from penstock.arrow.columns import concat_batches, values_of
from penstock.errors import OperatorError


def test_more_text_than_an_array_can_address_is_refused_and_not_cut_off():
    batch = pa.RecordBatch.from_pydict({"note": pa.array(["x" * (1 << 20)] * 700)})
    with pytest.raises(OperatorError, match=r"2,100 rows that one worker gets at once have more than 2 GiB of text"):
        concat_batches([batch] * 3)


def test_batches_of_other_columns_are_not_taken_for_too_much_text():
    with pytest.raises(pa.ArrowInvalid):
        concat_batches([pa.RecordBatch.from_pydict({"a": [1]}), pa.RecordBatch.from_pydict({"b": ["x"]})])


def test_no_batches_are_no_rows_of_the_schema():
    schema = pa.schema([("a", pa.int64())])
    assert concat_batches([], schema).schema == schema
    assert concat_batches([], schema).num_rows == 0


def test_values_of_a_column_are_those_that_arrow_gives():
    times = [0, -1, 1_700_000_000_123_456, None, -62_135_596_800_000_000, 253_402_300_799_999_999]
    columns = [
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.chunked_array([pa.array(times[:2]), pa.array(times[2:])], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([], pa.timestamp("us", "UTC")),
        pa.array([None, None], pa.timestamp("us", "UTC")),
        pa.array([5, None], pa.timestamp("us", "Europe/Paris")),
        pa.array([5, None], pa.timestamp("ms", "UTC")),
        pa.array([5, None], pa.timestamp("us")),
        pa.array([1.5, None]),
        pa.array(["a", None]),
        pa.array([{"at": 5}], pa.struct([("at", pa.timestamp("us", "UTC"))])),
    ]
    for column in columns:
        found = values_of(column)
        assert found == column.to_pylist()
        assert [repr(value) for value in found] == [repr(value) for value in column.to_pylist()]


def test_time_that_python_cannot_hold_is_refused_as_arrow_does():
    column = pa.array([0, 400_000_000_000_000_000], pa.timestamp("us", "UTC"))
    with pytest.raises((OverflowError, ValueError)) as wanted:
        column.to_pylist()
    with pytest.raises(wanted.type):
        values_of(column)
