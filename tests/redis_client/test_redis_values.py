"""Values as text of fields and back: every type, at its edges, nested, and beyond the calendar."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.redis_client.entries import to_columns
from penstock.redis_client.values import countable, decoded, encoded, refusal

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
SCALARS = [
    *INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.decimal128(10, 2),
    pa.decimal128(38, 38),
    pa.decimal128(38, 0),
]


def kinds(depth=2):
    plain = st.sampled_from(SCALARS)
    if not depth:
        return plain
    inner = kinds(depth - 1)
    return st.one_of(
        plain,
        plain,
        inner.map(pa.list_),
        st.tuples(st.sampled_from([pa.string(), pa.int64(), pa.binary()]), inner).map(lambda kv: pa.map_(*kv)),
        st.lists(inner, min_size=1, max_size=3).map(lambda of: pa.struct([(f"f {i}", kind) for i, kind in enumerate(of)])),
    )


def scaled(kind):
    most = 10**kind.precision - 1
    return st.one_of(st.sampled_from([0, 1, -1, most, -most]), st.integers(-most, most)).map(
        lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=76)) if n else Decimal(0)
    )


def whole(bits):
    edge = 2 ** (bits - 1)
    return st.one_of(st.sampled_from([0, -1, edge - 1, -edge]), st.integers(-edge, edge - 1))


TIMES = [-62_167_219_200_000_000, -62_167_219_200_000_001, 253_402_300_799_999_999, 253_402_300_800_000_000]
DAYS = [-719_528, -719_529, 2_932_896, 2_932_897]


def values(kind):
    """Values as `array_of` takes them: of times the numbers."""
    t = pa.types
    if t.is_integer(kind):
        own = whole(kind.bit_width)
    elif t.is_floating(kind):
        own = st.one_of(st.sampled_from([math.inf, -math.inf, math.nan, -0.0]), st.floats(width=kind.bit_width))
    elif t.is_boolean(kind):
        own = st.booleans()
    elif t.is_string(kind):
        own = st.text(st.characters(codec="utf-8"), max_size=8)
    elif t.is_binary(kind):
        own = st.binary(max_size=8)
    elif t.is_timestamp(kind):
        own = st.one_of(st.sampled_from(TIMES), whole(64))
    elif t.is_date32(kind):
        own = st.one_of(st.sampled_from(DAYS), whole(32))
    elif t.is_decimal128(kind):
        own = scaled(kind)
    elif t.is_list(kind):
        own = st.lists(values(kind.value_type), max_size=3)
    elif t.is_map(kind):
        keys = values(kind.key_type).filter(lambda v: v is not None)
        own = st.lists(st.tuples(keys, values(kind.item_type)), max_size=3, unique_by=lambda pair: pair[0])
    else:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        own = st.fixed_dictionaries({f.name: values(f.type) for f in fields})
    return st.one_of(st.none(), own) if not t.is_map(kind) else st.one_of(own, st.none())


def array_of(kind, found):
    return pa.array(found, countable(kind)).cast(kind)


def same(a, b):
    """Whether two arrays are the same, NaN and the signs of zeros included."""
    return repr(numbers(a)) == repr(numbers(b))


def numbers(array):
    return array.cast(countable(array.type)).to_pylist()


@st.composite
def columns(draw):
    kind = draw(kinds())
    return array_of(kind, draw(st.lists(values(kind), max_size=5)))


@given(columns())
def test_values_of_every_type_come_back_as_they_were(column):
    assert not refusal(column.type)
    texts = encoded(column)
    assert all((text is None) == (not valid) for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True))
    read, bad = decoded(pa.array(texts, pa.binary()), column.type)
    assert not bad
    assert read.type == column.type
    assert same(read, column)


@given(
    st.sampled_from(SCALARS),
    st.lists(st.one_of(st.binary(max_size=6), st.text("0123456789.-:+eExXTZ ", max_size=12).map(str.encode)), max_size=6),
)
def test_whatever_is_no_value_is_found_alone_and_the_rest_is_read(kind, texts):
    read, bad = decoded(pa.array(texts, pa.binary()), kind)
    assert len(read) == len(texts)
    for i, text in enumerate(texts):
        (alone,), none = decoded(pa.array([text], pa.binary()), kind)
        assert (i in bad) == bool(none)
        assert repr(alone) == repr(read[i])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "-12", -12),
        (pa.float64(), "1e300", 1e300),
        (pa.float64(), "inf", math.inf),
        (pa.bool_(), "true", True),
        (pa.decimal128(10, 2), "12.5", Decimal("12.50")),
        (pa.list_(pa.int64()), "[1,null]", [1, None]),
        (pa.struct([("a", pa.string()), ("b", pa.int64())]), '{"a":"x"}', {"a": "x", "b": None}),
        (pa.map_(pa.string(), pa.int64()), '{"a":1}', [("a", 1)]),
    ],
)
def test_text_as_other_programs_write_it_is_read(kind, text, value):
    (read,), bad = decoded(pa.array([text.encode()], pa.binary()), kind)
    assert not bad
    assert read.as_py() == value


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2024-01-01 00:00:00.000001Z", 1_704_067_200_000_001),
        ("2024-01-01T05:30:00+05:30", 1_704_067_200_000_000),
        ("1704067200000000", 1_704_067_200_000_000),
    ],
)
def test_time_is_read_with_a_zone_or_as_microseconds(text, us):
    read, bad = decoded(pa.array([text.encode()], pa.binary()), pa.timestamp("us", "UTC"))
    assert not bad
    assert read.cast(pa.int64()).to_pylist() == [us]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "128"),
        (pa.int64(), ""),
        (pa.int64(), "0x1F"),
        (pa.int64(), "1.0"),
        (pa.bool_(), "yes"),
        (pa.decimal128(4, 2), "1.234"),
        (pa.decimal128(4, 2), "100"),
        (pa.timestamp("us", "UTC"), "2024-01-01 00:00:00"),
        (pa.timestamp("us"), "2024-01-01 00:00:00Z"),
        (pa.date32(), "2024-13-01"),
        (pa.list_(pa.int64()), "[1.5]"),
        (pa.list_(pa.int64()), "[true]"),
        (pa.list_(pa.int64()), "{}"),
        (pa.list_(pa.int64()), "[1"),
        (pa.list_(pa.int8()), "[300]"),
        (pa.map_(pa.int64(), pa.int64()), "[[1]]"),
        (pa.map_(pa.int64(), pa.int64()), "[[null, 1]]"),
        (pa.struct([("a", pa.binary())]), '{"a":"*"}'),
        (pa.list_(pa.decimal128(4, 2)), '["x"]'),
        (pa.list_(pa.float64()), '["x"]'),
        (pa.list_(pa.string()), '["\\ud800"]'),
        (pa.list_(pa.string()), "[" * 100_000),
    ],
)
def test_text_that_is_no_value_is_malformed(kind, text):
    read, bad = decoded(pa.array([b"1", text.encode()], pa.binary()), kind)
    assert 1 in bad
    assert read[1].as_py() is None


def test_type_without_a_text_form_is_refused():
    assert "time64" in refusal(pa.list_(pa.time64("us")))
    assert refusal(pa.timestamp("ns")) == "is of type timestamp[ns], which has no text form here: cast it"


SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("ö", pa.bool_())])


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["a", "b", "ö", "c", ""]), st.sampled_from(["1", "x", "true", "\udcff"])), max_size=4
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_entries_of_any_shapes_are_read_like_each_by_itself(rows, other_fields):
    entries = [[part.encode(errors="surrogateescape") for pair in row for part in pair] for row in rows]
    found = to_columns(entries, SCHEMA, other_fields=other_fields)
    assert found.table.schema == SCHEMA
    for i, row in enumerate(rows):
        values, names = dict(row), [name for name, _ in row]
        bad = len(set(names)) < len(names) or ("c" in names and not other_fields)
        wanted = {}
        for name in SCHEMA.names:
            value = values.get(name)
            reads = {"a": {"1": 1}, "b": {"1": "1", "x": "x", "true": "true"}, "ö": {"1": True, "true": True}}[name]
            bad |= value is not None and value not in reads
            wanted[name] = reads.get(value)
        assert (i in found.malformed) == bad, row
        if not bad:
            assert found.table.slice(i, 1).to_pylist() == [wanted]
