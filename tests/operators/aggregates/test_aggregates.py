"""Every aggregate against its oracle, however the rows are split, ordered and merged."""

import math
import pickle
from decimal import Decimal

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from aggregate_oracle import CASES, Digest, Rows, check, heads, merge, stored, tidy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import DeclarationError, StateError
from penstock.operators import aggregates as ps
from penstock.operators.aggregates.user import UserFailed, type_of

ORDERS = st.tuples(st.integers(-2, 2), st.integers(0, 1), st.integers(0, 3), st.integers(0, 1))


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_result_when_rows_are_split_shuffled_and_merged_then_is_the_oracles(case, data):
    kernel, kind, values, _, _ = CASES[case]
    bound = pickle.loads(cloudpickle.dumps(kernel)).bind(kind)
    row = st.tuples(st.integers(0, 3), ORDERS, st.none() | values)
    rows = data.draw(st.lists(row, min_size=1, max_size=25, unique_by=lambda r: r[:2]).flatmap(st.permutations))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=5)))
    chunks = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True) if a < b]
    partials = [Rows(*zip(*chunk, strict=True), kind).partial(bound, data.draw(st.booleans())) for chunk in chunks]
    while len(partials) > 1:
        some = data.draw(st.integers(2, len(partials)))
        merged = merge(bound, partials[:some])
        partials = [*partials[some:], stored(bound, merged) if data.draw(st.booleans()) else merged]
    ids, columns = partials[0]
    assert tuple(column.dtype for column in columns) == bound.fields
    found = bound.finish(columns)
    assert found.type == bound.output_type == ps.output_field("y", bound).type
    assert found.validate(full=True) is None
    for group, got in zip(ids.tolist(), found.to_pylist(), strict=True):
        check(case, got, [(order, value) for at, order, value in rows if at == group])


@pytest.mark.parametrize("case", CASES)
def test_result_when_no_value_is_there_then_is_the_oracles(case):
    kernel, kind, _, _, _ = CASES[case]
    bound = kernel.bind(kind)
    for in_one_step in (True, False):
        rows = Rows([0, 0, 1], [(0, 0, at, 0) for at in range(3)], [None] * 3, kind)
        found = bound.finish(rows.partial(bound, in_one_step)[1]).to_pylist()
        check(case, found[0], [((0, 0, 0, 0), None), ((0, 0, 1, 0), None)])
        check(case, found[1], [((0, 0, 2, 0), None)])


@pytest.mark.parametrize("case", CASES)
def test_result_when_values_are_sliced_chunks_of_another_width_then_is_the_same(case):
    kernel, kind, _, _, _ = CASES[case]
    bound = kernel.bind(kind)
    values = pa.array([None] * 4, type=kind)
    whole = Rows([0, 0, 1, 1], [(0, 0, at, 0) for at in range(4)], [None] * 4, kind)
    chunked = pa.chunked_array([values[1:3], values[:2]])
    starts = np.array([0, 2])
    assert bound.finish(bound.lift_reduce(chunked, whole.order, 4, starts)).equals(bound.finish(whole.partial(bound)[1]))


@pytest.mark.parametrize("case", CASES)
def test_bind_when_type_is_not_known_yet_then_is_accepted(case):
    kernel, _, _, _, _ = CASES[case]
    for kind in (None, pa.null()):
        bound = kernel.bind(kind)
        rows = Rows([0, 0], [(0, 0, 0, 0), (0, 0, 1, 0)], [None, None], pa.null())
        assert bound.finish(rows.partial(bound)[1]).type == bound.output_type


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("user")])
def test_kernel_when_made_twice_then_is_equal_and_frozen(case):
    kernel = CASES[case][0]
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    with pytest.raises(AttributeError):
        kernel.column = "y"


TEXTS = pa.string()


@pytest.mark.parametrize(
    ("kernel", "kind", "message"),
    [
        (ps.sum("tail"), TEXTS, "sum needs a number: column 'tail' is string"),
        (ps.sum("b", exact=True), pa.bool_(), "sum needs a number: column 'b' is bool"),
        (ps.sum("t"), pa.timestamp("us"), r"sum needs a number: column 't' is timestamp\[us\]"),
        (ps.mean("tail"), TEXTS, "mean needs a number: column 'tail' is string"),
        (ps.stddev("tail"), TEXTS, "stddev needs a number: column 'tail' is string"),
        (ps.quantile("tail", 0.5), TEXTS, "quantile needs a number: column 'tail' is string"),
        (ps.min("xs"), pa.list_(pa.int64()), "min needs values that have an order: column 'xs' is list"),
        (ps.max("xs"), pa.struct([("a", pa.int8())]), "max needs values that have an order: column 'xs' is struct"),
        (
            ps.count_distinct("m"),
            pa.list_(pa.map_(TEXTS, TEXTS)),
            "count_distinct needs values that can be compared: column 'm'",
        ),
        (
            ps.approx_count_distinct("xs"),
            pa.list_(pa.int64()),
            "approx_count_distinct needs a value that has a hash: column 'xs'",
        ),
    ],
)
def test_bind_when_type_does_not_fit_then_names_function_column_and_type(kernel, kind, message):
    with pytest.raises(DeclarationError, match=message):
        kernel.bind(kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ps.quantile("x", 1.5), "has q 1.5"),
        (lambda: ps.quantile("x", math.nan), "has q nan"),
        (lambda: ps.quantile("x", 0.5, relative_error=0.0), "has relative_error 0.0"),
        (lambda: ps.approx_count_distinct("x", relative_error=0.001), "has relative_error 0.001"),
        (lambda: ps.approx_count_distinct("x", relative_error=0.5), "has relative_error 0.5"),
    ],
)
def test_declaration_when_argument_is_out_of_bounds_then_is_refused(make, message):
    with pytest.raises(DeclarationError, match=message):
        make()


def once(kernel, values, kind):
    bound = kernel.bind(kind)
    rows = Rows([0] * len(values), [(0, 0, at, 0) for at in range(len(values))], values, kind)
    return bound.finish(rows.partial(bound)[1]).to_pylist()[0]


def test_int_sum_when_only_partial_sums_leave_64_bits_then_is_right():
    top = 2**63 - 1
    assert once(ps.sum("x"), [top, top, -top, -top, 7], pa.int64()) == 7
    assert once(ps.sum("x"), [top, None, -1], pa.int64()) == top - 1
    assert once(ps.sum("x"), [-(2**63), 0], pa.int64()) == -(2**63)


@pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1], [2**62] * 4])
def test_int_sum_when_it_leaves_64_bits_then_is_an_error_that_names_the_column(values):
    with pytest.raises(
        StateError, match=r"the sum of column 'x' does not fit in 64 bits; cast the column to decimal\(38, 0\)."
    ):
        once(ps.sum("x"), values, pa.int64())


def test_decimal_sum_when_it_has_too_many_digits_then_is_an_error():
    with pytest.raises(StateError, match="more than the 38 digits"):
        once(ps.sum("x"), [Decimal(9 * 10**37)] * 2, pa.decimal128(38, 0))


def test_int_mean_when_sum_is_beyond_doubles_then_is_rounded_once():
    assert (
        once(ps.mean("x"), [3717808958748060383, 0, 0], pa.int64()) == 3717808958748060383 / 3 != float(3717808958748060383) / 3
    )


@pytest.mark.parametrize(("sign", "want"), [(1, Decimal("0.000313")), (-1, Decimal("-0.000313"))])
def test_decimal_mean_when_it_is_a_tie_then_is_rounded_away_from_zero(sign, want):
    assert once(ps.mean("x"), [Decimal(sign).scaleb(-2)] + [Decimal(0)] * 31, pa.decimal128(10, 2)) == want


@pytest.mark.parametrize("kernel", [ps.min("x"), ps.max("x")])
@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [-0.0]])
def test_extreme_when_zeros_have_signs_then_is_plain_zero(kernel, values):
    assert math.copysign(1, once(kernel, values, pa.float64())) == 1


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([1e16, 1.0, -1e16], 1.0),
        ([1.7e308, 1.7e308], math.inf),
        ([-1.7e308, -1.7e308], -math.inf),
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([5e-324, 5e-324], 1e-323),
        ([-0.0], 0.0),
        ([0.1] * 10, 1.0),
    ],
)
def test_exact_sum_when_plain_addition_would_err_then_is_rounded_once(values, want):
    assert tidy(once(ps.sum("x", exact=True), values, pa.float64())) == tidy(want)


@pytest.mark.parametrize("offset", [1e9, 2.0**52 + 1])
def test_stddev_when_offset_is_large_then_keeps_its_digits(offset):
    values = [None] + [offset + at * at % 10 for at in range(1001)]
    want = np.std(np.arange(1001) ** 2 % 10, ddof=1)
    assert once(ps.stddev("x"), values, pa.float64()) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_stddev_when_a_value_is_not_finite_then_is_nan(bad):
    assert math.isnan(once(ps.stddev("x"), [1.0, bad, 2.0], pa.float64()))


def test_first_when_two_columns_tie_then_the_next_decides():
    bound = ps.first("x").bind(pa.int64())
    orders = [(5, 1, 9, 9), (5, 0, 9, 9), (5, 0, 3, 1), (5, 0, 3, 0), (6, 0, 0, 0)]
    assert bound.finish(Rows([0] * 5, orders, list(range(5)), pa.int64()).partial(bound)[1]).to_pylist() == [3]


def test_collect_when_only_the_last_order_column_differs_then_it_decides():
    bound = ps.collect("x").bind(pa.int64())
    rows = Rows([0, 0], [(0, 0, 0, 1), (0, 0, 0, 0)], [1, 2], pa.int64())
    assert bound.finish(rows.partial(bound)[1]).to_pylist() == [[2, 1]]


def test_min_when_there_is_only_nan_then_is_nan():
    assert math.isnan(once(ps.min("x"), [math.nan, None], pa.float64()))


def test_count_distinct_when_nans_have_other_bits_or_zeros_other_signs_then_they_are_one_value():
    bound = ps.count_distinct("x").bind(pa.float64())
    values = pa.array(np.array([0x7FF8 << 48, (0xFFF8 << 48) + 1, 0, 1 << 63], dtype=np.uint64).view(np.float64))
    assert bound.finish(bound.lift_reduce(values, None, 4, np.array([0, 2]))).to_pylist() == [1, 1]


@pytest.mark.parametrize("values", [[[math.nan], [math.nan]], [[0.0], [-0.0]], [[None], [None]]])
def test_count_distinct_when_floats_are_nested_then_nan_is_one_value_and_zero_another(values):
    assert once(ps.count_distinct("x"), [*values, [1.0]], pa.list_(pa.float64())) == 2


@pytest.mark.parametrize("kernel", [ps.first("x"), ps.last("x"), ps.collect("x")])
def test_ordered_aggregate_when_order_is_missing_then_is_an_error(kernel):
    bound = kernel.bind(pa.int64())
    with pytest.raises(StateError, match="need the order of the records"):
        bound.lift(pa.array([1]), None, 1)


@given(st.lists(st.floats(), min_size=1, max_size=50), st.floats(0, 1), st.sampled_from([0.5, 0.05, 0.01, 1e-3, 1e-6]))
@example([1.7976931348623157e308, -1.7976931348623157e308], 1.0, 0.01)
@example([5e-324], 0.0, 0.01)
@settings(max_examples=300, deadline=None)
def test_quantile_when_values_are_any_then_is_within_its_error(values, q, error):
    got = once(ps.quantile("x", q, error), values, pa.float64())
    want = sorted(values, key=lambda v: (math.isnan(v), v))[math.floor(q * (len(values) - 1))]
    if not math.isfinite(want) or want == 0:
        assert tidy(got) == tidy(want)
    else:
        # A subnormal cannot be nearer than the next one.
        assert abs(got - want) <= error * (1 + 1e-9) * abs(want) + (5e-324 if abs(want) < 1e-300 else 0)


def test_quantile_when_integers_are_beyond_doubles_then_are_rounded():
    assert once(ps.quantile("x", 0.5), [2**63 - 1, 2**62 + 1, None], pa.int64()) == pytest.approx(2**62, rel=0.01)
    assert once(ps.quantile("x", 1.0), [Decimal("1.5"), Decimal(-3)], pa.decimal128(10, 2)) == pytest.approx(1.5, rel=0.01)


def test_quantile_when_error_is_used_up_then_bucket_is_no_wider():
    """Two values further apart than the error allows are told apart."""
    for base in (1.0, 1.4, 1.999, 3e-7):
        assert once(ps.quantile("x", 0.0, 0.01), [base, base * 1.0203], pa.float64()) < base * 1.0101


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=40), st.randoms())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kernel", [ps.quantile("x", 0.3), ps.approx_count_distinct("x", 0.2), ps.count_distinct("x")])
def test_state_bytes_when_rows_are_shuffled_and_split_then_are_the_same(kernel, values, random):
    bound = kernel.bind(pa.float64())
    orders = [(0, 0, at, 0) for at in range(len(values))]
    want = Rows([0] * len(values), orders, values, pa.float64()).partial(bound)[1][0][0]
    random.shuffle(values)
    cut = random.randrange(len(values) + 1)
    parts = [part for part in (values[:cut], values[cut:]) if part]
    partials = [Rows([0] * len(part), orders[: len(part)], part, pa.float64()).partial(bound) for part in parts]
    assert merge(bound, partials)[1][0][0] == want


@pytest.mark.parametrize("n", [0, 1, 30, 300, 5_000, 200_000])
@pytest.mark.parametrize("error", [0.0041, 0.02, 0.2])
def test_approx_count_distinct_when_sets_grow_then_stays_within_four_standard_errors(n, error):
    bound = ps.approx_count_distinct("x", error).bind(pa.int64())
    values = np.concatenate((np.arange(n), np.arange(n // 2)))
    ids = np.zeros(len(values), dtype=np.int64)
    if n == 0:
        values, ids = pa.array([None], type=pa.int64()), np.zeros(1, dtype=np.int64)
    columns = bound.lift_reduce(pa.array(values), None, len(ids), heads(ids))
    state = columns[0][0]
    assert len(state) <= 2**bound.bits
    assert bound.finish(columns).to_pylist()[0] == pytest.approx(n, rel=4 * error, abs=1)


def test_approx_count_distinct_when_dense_and_sparse_states_merge_then_is_as_of_all_rows():
    bound = ps.approx_count_distinct("x", 0.2).bind(pa.int64())
    ids = np.repeat([0, 1, 2], [2000, 3, 1000])
    values = pa.array(np.arange(3003))
    columns = bound.lift_reduce(values, None, 3003, heads(ids))
    assert {len(state) for state in columns[0]} == {32, 12}
    merged = bound.reduce(columns, np.array([0]))
    assert merged[0][0] == bound.lift_reduce(values, None, 3003, np.array([0]))[0][0]


def test_approx_count_distinct_when_a_state_merges_with_itself_then_stays_the_same():
    """States of every size, around the one where the sparse form would be as long as the dense one, sparse ones first."""
    bound = ps.approx_count_distinct("x", 0.26).bind(pa.int64())
    ids = np.repeat(np.arange(16), np.arange(1, 17))
    states = bound.lift_reduce(pa.array(np.arange(len(ids))), None, len(ids), heads(ids))[0]
    assert {len(state) for state in states} == {4, 8, 12, 16}
    assert bound.reduce((np.repeat(states, 2),), np.arange(0, 32, 2))[0].tolist() == states.tolist()


def test_user_aggregate_when_merge_is_not_commutative_then_rows_keep_their_order():
    bound = Digest("x").bind(pa.string())
    rows = Rows([0, 1, 0, 1], [(0, 0, at, 0) for at in range(4)], ["a", "b", None, "d"], pa.string())
    merged = merge(bound, [rows.partial(bound), rows.partial(bound, in_one_step=False)])
    assert bound.finish(merged[1]).to_pylist() == [{"n": 2, "text": "aa"}, {"n": 4, "text": "bdbd"}]


def test_user_aggregate_when_many_states_merge_then_earlier_ones_come_first():
    bound = Digest("x").bind(pa.string())
    lifted = bound.lift(pa.array(["a", "b", "c", "d"]), None, 4)
    assert bound.finish(bound.reduce(lifted, np.array([0, 3]))).field(1).to_pylist() == ["abc", "d"]


def test_user_aggregate_when_it_has_no_column_then_every_row_is_added():
    bound = Digest().bind(None)
    assert bound.finish(bound.lift_reduce(None, None, 3, np.array([0, 2]))).field(0).to_pylist() == [2, 1]
    assert bound.sql(None, ("t", "p", "o", "s")) is None


def test_user_aggregate_when_it_raises_then_its_error_is_the_cause_and_the_row_is_named():
    class Bad(Digest):
        def add(self, state, value):
            raise ZeroDivisionError(value)

    with pytest.raises(UserFailed) as caught:
        Bad("x").bind(pa.string()).lift(pa.array([None, "boom"]), None, 2)
    assert (caught.value.what, caught.value.row) == ("Bad.add", 1)
    assert repr(caught.value.__cause__) == "ZeroDivisionError('boom')"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("BIGINT", pa.int64()),
        ("int64", pa.int64()),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("array<decimal(3,1)>", pa.list_(pa.field("element", pa.decimal128(3, 1)))),
        ("map<string, array<int>>", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))),
        ("struct<aB: int, c: struct<d: date>>", pa.struct([("aB", pa.int32()), ("c", pa.struct([("d", pa.date32())]))])),
    ],
)
def test_type_of_when_name_is_sql_or_arrow_then_is_that_type(name, want):
    assert type_of(name) == want


@pytest.mark.parametrize("name", ["", "number", "array<", "array<>", "map<int>", "decimal(x)", "struct<a>"])
def test_type_of_when_name_is_none_then_is_an_error_that_shows_it(name):
    with pytest.raises(DeclarationError, match="is not a type; write for example 'bigint'"):
        type_of(name)


def test_values_when_arrow_array_is_a_slice_then_only_its_rows_count():
    for kind, values in (
        (pa.decimal128(38, 2), [Decimal(1), Decimal(10**30), None, Decimal(-7)]),
        (pa.bool_(), [True, False, None, True]),
    ):
        bound = ps.max("x").bind(kind)
        part = pa.array(values, type=kind)[2:]
        assert bound.finish(bound.lift(part, None, 2)).to_pylist() == values[2:]


def test_values_when_dictionary_encoded_then_are_decoded():
    words = pa.array(["b", "a", None]).dictionary_encode()
    bound = ps.min("x").bind(words.type)
    assert bound.output_type == pa.string()
    assert bound.finish(bound.lift_reduce(words, None, 3, np.array([0]))).to_pylist() == ["a"]
