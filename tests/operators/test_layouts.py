"""Texts of layouts: which types are wider than others, columns read back from text."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.layouts import columns_of, columns_text, part_widens, scaled_by, schema_before, widens

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
FLOATS = [pa.float32(), pa.float64()]
OTHERS = [pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.list_(pa.int32()), pa.struct([("a", pa.int32())])]
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
TYPES = st.one_of(st.sampled_from([*WHOLE, *FLOATS, *OTHERS]), DECIMALS)


def extremes(kind: pa.DataType) -> list:
    if pa.types.is_integer(kind):
        return [-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1]
    if pa.types.is_floating(kind):
        return [float.fromhex("0x1.fffffep+127"), float.fromhex("0x1p-149")] if kind.bit_width == 32 else [1.7e308, 5e-324]
    digits = decimal.Decimal("9" * kind.precision)
    with decimal.localcontext(prec=80):
        return [digits.scaleb(-kind.scale), -digits.scaleb(-kind.scale)]


def family(kind: pa.DataType) -> str:
    return (
        "whole"
        if pa.types.is_integer(kind)
        else "float"
        if pa.types.is_floating(kind)
        else "decimal"
        if pa.types.is_decimal(kind)
        else "other"
    )


def holds(kind: pa.DataType, values: list) -> bool:
    """Whether a type has all of the values, as they are."""
    try:
        return pa.array(values, kind).to_pylist() == values
    except (pa.ArrowException, OverflowError, ValueError):
        return False


@given(TYPES, TYPES)
def test_type_widens_exactly_if_it_has_all_values_of_the_other_and_is_of_its_family(was, now):
    wanted = was != now and family(was) == family(now) != "other" and holds(now, extremes(was))
    assert widens(str(was), str(now)) is wanted


@given(st.lists(st.tuples(st.text("abc _1", min_size=1, max_size=4), TYPES), min_size=1, max_size=5, unique_by=lambda c: c[0]))
def test_columns_when_they_are_read_back_from_text_are_the_same(columns):
    assert columns_of(columns_text(pa.schema(columns))) == {name: str(kind) for name, kind in columns}


@pytest.mark.parametrize("text", ["any value", "", "(no type)x", "(a b, )"])
def test_columns_of_any_other_text_are_one_part(text):
    assert columns_of(text) == {"": text}


@given(TYPES)
def test_schema_before_gives_narrower_types_and_keeps_others(now):
    narrower = [was for was in (*WHOLE, *FLOATS, pa.decimal128(3, 1)) if widens(str(was), str(now))]
    for was in [*narrower, now]:
        assert schema_before({"x": str(was)}, pa.schema([("x", now)])) == pa.schema([("x", was)])


def test_part_of_an_aggregate_widens_only_if_it_is_the_same_aggregate():
    was = "sum(d) of decimal128(5, 2), kept as DecimalSum(object int64)"
    assert part_widens(was, "sum(d) of decimal128(9, 4), kept as DecimalSum(object int64)")
    assert scaled_by(was, "sum(d) of decimal128(9, 4), kept as DecimalSum(object int64)") == 100
    for other in ("mean(d) of decimal128(9, 4), kept as DecimalSum(object int64)", "sum(d) of decimal128(9, 4), kept as Other(object int64)",
                  "sum(d) of decimal128(4, 2), kept as DecimalSum(object int64)", "sum(d) of double, kept as FloatSum(float64 int64)"):  # fmt: skip
        assert not part_widens(was, other)
