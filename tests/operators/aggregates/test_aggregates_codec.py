"""State rows to bytes and back."""

import numpy as np
import pyarrow as pa
import pytest
from aggregate_oracle import CASES, Digest, Rows

from penstock.errors import StateError
from penstock.operators import aggregates as ps
from penstock.operators.aggregates.codec import decode, encode

FIXED = [ps.count().bind(None), ps.sum("x").bind(pa.int64()), ps.min("b").bind(pa.bool_()), ps.max("d").bind(pa.date32())]
FIXED_COLUMNS = [
    (np.array([1, 2]),),
    (np.array([-1, 3]), np.array([2**32 - 1, 0]), np.array([5, 6])),
    (np.array([True, False]), np.array([True, False])),
    (np.array([-9, 9], dtype=np.int32), np.array([False, True])),
]


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert [column.dtype for column in a] == [column.dtype for column in b]
        assert [column.tolist() for column in a] == [column.tolist() for column in b]


def test_round_trip_when_all_columns_are_fixed_then_is_the_identity():
    values = encode(FIXED, FIXED_COLUMNS)
    assert [len(value) for value in values] == [4 + 8 + 24 + 2 + 5] * 2
    same(decode(FIXED, values), FIXED_COLUMNS)


def test_round_trip_when_objects_and_fixed_columns_mix_then_is_the_identity():
    kinds = [CASES[case] for case in ("collect string", "sum exact finite", "max string", "count", "count_distinct int64")]
    bounds = [kernel.bind(kind) for kernel, kind, *_ in kinds]
    columns = []
    for bound, (_, kind, *_) in zip(bounds, kinds, strict=True):
        values = {pa.string(): ["a", None, "c"], pa.float64(): [0.1, None, -2e300], pa.int64(): [1, None, 2**62]}[kind]
        columns.append(Rows([0, 1, 1], [(0, 0, at, 0) for at in range(3)], values, kind).partial(bound)[1])
    same(decode(bounds, encode(bounds, columns)), columns)


def test_decoded_columns_when_written_to_then_nothing_is_shared():
    values = encode(FIXED, FIXED_COLUMNS)
    decode(FIXED, values)[0][0][:] = 7
    same(decode(FIXED, values), FIXED_COLUMNS)


def test_round_trip_when_there_are_no_rows_then_is_empty():
    for bounds in (FIXED, [ps.collect("x").bind(pa.int64())]):
        empty = [tuple(np.empty(0, dtype=dtype) for dtype in bound.fields) for bound in bounds]
        assert encode(bounds, empty) == []
        same(decode(bounds, []), empty)


def test_decode_when_aggregates_changed_then_is_an_error_that_names_them():
    values = encode([ps.sum("x").bind(pa.int64())], [FIXED_COLUMNS[1]])
    with pytest.raises(StateError, match=r"stored aggregate state 0 was written for other aggregates than StddevBound\(int64"):
        decode([ps.stddev("x").bind(pa.int64())], values)


def test_decode_when_version_is_another_then_is_an_error_that_names_both():
    good = encode(FIXED, FIXED_COLUMNS)
    with pytest.raises(StateError, match="stored aggregate state 1 has version 9, this penstock reads version 1"):
        decode(FIXED, [good[0], b"\x09" + good[1][1:]])


@pytest.mark.parametrize(
    "change",
    [lambda v: [v[0][:-1], v[1] + b"x"], lambda v: [v[0], v[1][:2]], lambda v: [v[0], b""], lambda v: [v[0], v[1] + b"x"]],
)
def test_decode_when_a_value_is_damaged_then_is_an_error(change):
    with pytest.raises(StateError, match="is truncated or too long"):
        decode(FIXED, change(encode(FIXED, FIXED_COLUMNS)))


def test_decode_when_a_value_with_objects_ends_before_them_then_is_an_error():
    bound = ps.sum("x", exact=True).bind(pa.float64())
    value = encode([bound], [bound.lift(pa.array([1.5]), None, 1)])[0]
    with pytest.raises(StateError, match="is truncated or too long"):
        decode([bound], [value[:9]])


def test_decode_when_a_pickle_is_cut_off_then_is_an_error():
    bound = ps.collect("x").bind(pa.int64())
    columns = bound.lift(pa.array([1]), tuple(np.zeros(1, dtype=np.int64) for _ in range(4)), 1)
    value = encode([bound], [columns])[0]
    with pytest.raises(StateError, match="cannot be unpickled"):
        decode([bound], [value[:-3]])


def test_encode_when_a_state_cannot_be_pickled_then_is_an_error():
    column = np.empty(1, dtype=object)
    column[0] = lambda: None
    with pytest.raises(StateError, match="an aggregate's state cannot be pickled"):
        encode([Digest("x").bind(pa.string())], [(column,)])
