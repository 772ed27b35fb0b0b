"""Numbers of matches are exact up to 38 digits, and an error beyond."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import OperatorError
from penstock.patterns.automaton.build import TypeIs
from penstock.patterns.batch import matches_of
from penstock.patterns.plan import ready
from penstock.patterns.result_columns import summed
from penstock.types import MASK

LIMIT = 10**38
TOO_MANY = "One event closes more matches than a decimal\\(38\\) can count; use a smaller window."

counts = st.one_of(
    st.integers(0, 2**66), st.integers(LIMIT // 2 - 3, LIMIT // 2 + 3), st.integers(0, 2**128 - 1), st.just(LIMIT)
)
closed = st.lists(st.tuples(st.integers(0, 3), counts), max_size=8).map(lambda pairs: sorted(pairs, key=lambda pair: pair[0]))


def words(numbers):
    return np.array([[n % 2**64 for n in numbers], [n >> 64 for n in numbers]], np.uint64).reshape(2, -1)


@given(closed)
def test_sums_are_those_of_whole_numbers(pairs):
    wanted = {end: sum(n for _, n in group) for end, group in itertools.groupby(pairs, key=lambda pair: pair[0])}
    given_words = np.array([end for end, _ in pairs], np.int64), words([n for _, n in pairs])
    if any(total >= LIMIT for total in wanted.values()):
        with pytest.raises(OperatorError, match=TOO_MANY):
            summed(*given_words)
        return
    ends, totals = summed(*given_words)
    assert ends.tolist() == list(wanted)
    assert totals.type == pa.decimal128(38, 0)
    assert [int(n) for n in totals.to_pylist()] == list(wanted.values())


def number(firsts, others):
    """Matches that the last event closes: one of the As and any of the Bs, but the last always."""
    pattern = ready(ps.parse("SELECT COUNT(*) WHERE A ; B+"), ("at",), order=("at",), keys=())
    bits = {test.type: 1 << bit for bit, test in enumerate(pattern.automaton.tests) if isinstance(test, TypeIs)}
    masks = [bits["A"]] * firsts + [bits["B"]] * others
    table = pa.record_batch({"at": np.arange(len(masks)), f"{MASK}0": np.array(masks)})
    return int(
        [n for found in matches_of(pattern, table.schema, iter([table])) for n in found.column("matches").to_pylist()][-1]
    )


def test_the_largest_number_is_of_38_digits():
    assert number(2, 126) == 2 * 2**125
    assert number(1, 127) == 2**126


@pytest.mark.parametrize(("firsts", "others"), [(3, 126), (1, 128), (2, 200), (1, 300)])
def test_one_that_has_more_digits_is_refused(firsts, others):
    with pytest.raises(OperatorError, match=TOO_MANY):
        number(firsts, others)
