"""Where a key is in a table: as keys encoded as bytes say, for all types and several columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.tables import read_table
from penstock.rows.keys import KeyCodec

VALUES = {
    pa.float64(): [0.0, -0.0, math.nan, 1.5, -math.inf, 5e-324, None],
    pa.float32(): [0.0, -0.0, math.nan, 1.5, None],
    pa.string(): ["", "a", "b", "é", None],
    pa.int64(): [0, 1, -1, 2**63 - 1, -(2**63), None],
    pa.bool_(): [True, False, None],
    pa.binary(): [b"", b"\0", None],
    pa.date32(): [dt.date(2024, 1, 1), dt.date(1969, 12, 31), None],
    pa.decimal128(10, 2): [Decimal("1.00"), Decimal("-2.50"), None],
    pa.timestamp("us", "UTC"): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC), None],
}


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_row_of_a_key_is_the_one_with_the_same_bytes(data):
    kinds = data.draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3))
    rows = st.lists(st.tuples(*(st.sampled_from(VALUES[kind]) for kind in kinds)), max_size=12)
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    codec = KeyCodec(schema)

    def columns(rows):
        return [pa.chunked_array([pa.array([row[i] for row in rows], kind)]) for i, kind in enumerate(kinds)]

    given_rows = data.draw(rows)
    bodies = codec.bodies(columns(given_rows))
    once = [row for i, row in enumerate(given_rows) if bodies[i] not in bodies[:i]]
    table = read_table(pa.table(columns(once), schema=schema), tuple(schema.names))
    wanted = columns(data.draw(rows))
    known = {key: i for i, key in enumerate(codec.bodies([table.rows.column(name) for name in schema.names]))}
    assert table.at(wanted, schema).tolist() == [known.get(key, -1) for key in codec.bodies(wanted)]
