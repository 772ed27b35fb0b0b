"""Batches made one."""

import pyarrow as pa
import pytest

from penstock.columns import whole
from penstock.errors import OperatorError


def test_more_text_than_an_array_can_address_is_refused_and_not_cut_off():
    batch = pa.RecordBatch.from_pydict({"note": pa.array(["x" * (1 << 20)] * 700)})
    with pytest.raises(OperatorError, match=r"2,100 rows that one worker gets at once have more than 2 GiB of text"):
        whole([batch] * 3)


def test_batches_of_other_columns_are_not_taken_for_too_much_text():
    with pytest.raises(pa.ArrowInvalid):
        whole([pa.RecordBatch.from_pydict({"a": [1]}), pa.RecordBatch.from_pydict({"b": ["x"]})])


def test_no_batches_are_no_rows_of_the_schema():
    schema = pa.schema([("a", pa.int64())])
    assert whole([], schema).schema == schema
    assert whole([], schema).num_rows == 0
