"""Rows of groups as bytes come back as they were, nulls included."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow.rowbytes import decode_rows, encode_rows

VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us", "UTC"): st.integers(-(10**15), 10**15).map(
        lambda us: dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)
    ),
    pa.decimal128(20, 2): st.decimals(-1000, 1000, places=2).map(decimal.Decimal),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
}


@st.composite
def batches(draw):
    """A batch of up to four columns, in up to five groups, of which some are empty; it may be a part of a larger one."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=5))
    begin, rows = draw(st.integers(0, 2)), sum(sizes)
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=begin + rows, max_size=begin + rows)), kind) for kind in kinds
    ]
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(begin), np.array(sizes, np.int64)


@given(batches(), st.binary(max_size=3))
def test_groups_of_rows_come_back_from_their_bytes(drawn, between):
    rows, sizes = drawn
    values = encode_rows(rows, np.concatenate([[0], np.cumsum(sizes)])).to_pylist()
    assert len(values) == len(sizes)
    raw = b"".join(between + value for value in values)
    lengths = np.array([len(between) + len(value) for value in values], np.int64)
    at = np.cumsum(lengths) - lengths + len(between)
    found = decode_rows(rows.schema, np.frombuffer(raw, np.uint8), at, sizes)
    assert found.to_pylist() == rows.to_pylist()
    assert at.tolist() == np.cumsum(lengths).tolist()
