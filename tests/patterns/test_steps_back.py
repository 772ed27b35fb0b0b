"""Windows of a column whose values decrease: refused while a run is open, of no account otherwise, wherever epochs and chunks end."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from ceql_drawing import Case, draw
from ceql_running import answers_in, in_epochs, key_of, mask, pattern_of, table_of

from penstock.errors import OperatorError, RecordError
from penstock.patterns import algebra as s
from penstock.patterns.batch import matches_of
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.plan import WHEN
from penstock.patterns.reference import Seen, evaluate
from penstock.patterns.windows import earliest, times

CASES = 600


def stepping(seed: int) -> Case:
    """A drawn case with a window of `n`, which goes up and down."""
    rng = random.Random(seed)
    case = draw(seed, keyed=True, needs_global_order=False)
    window = s.Window("attribute", rng.choice([0, 1, Decimal("1.5"), 2]), "n")
    query = replace(case.query, window=window, strategy="ALL", consume=rng.choice(["NONE", "NONE", "PARTITION"]), limit=None)
    n, events = 5, []
    for event in case.events:
        n += rng.choice([0, 1, 1, 2, 3, 3, -1, -4])
        events.append(replace(event, values={**event.values, "n": n}))
    case = replace(case, query=query, events=tuple(events), events_window="key")
    pattern = pattern_of(case)  # events of which it knows that they mean nothing are not even shuffled
    return replace(case, events=tuple(e for e in case.events if not pattern.patient or mask(pattern, e) != 0))


def batch_outcome(case: Case, cuts: tuple[int, ...]):
    pattern = pattern_of(case)
    table = table_of(case, pattern)
    edges = [0, *[c for c in cuts if c < table.num_rows], table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]
    try:
        found = list(matches_of(pattern, table.schema, iter(pieces), chunk_rows=1))
    except RecordError as error:
        assert "do not decrease within a key" in str(error)  # noqa: PT017
        return "refused"
    return {row for batch in found for row in answers_in(case, pattern, batch)}


def flow_outcome(case: Case, cuts: tuple[int, ...]):
    try:
        found, _ = in_epochs(replace(case, cuts=cuts))
    except OperatorError as error:
        assert "do not decrease within a key" in str(error)  # noqa: PT017
        return "refused"
    return set(found)


def right(case: Case):
    """What the reference answers, without what an event between has left the window of."""
    found = evaluate(case.query, case.events, scope=case.scope, events_window="key")
    keys, size = [key_of(case, event) for event in case.events], case.query.window.size
    n = [event.values["n"] for event in case.events]
    return {
        (key, m)
        for (key, _), answers in found.items()
        for answer in answers
        for m in answer.matches
        if all(n[q] - n[m.start] <= size for q in range(m.start, m.end + 1) if keys[q] == key)
    }


def test_values_that_decrease_are_refused_or_of_no_account_and_cuts_do_not_matter():
    refused = answered = stepped = 0
    for seed in range(50_000, 50_000 + CASES):
        case = stepping(seed)
        rng = random.Random(seed)
        outcome = batch_outcome(case, ())
        for cuts in [case.cuts, tuple(range(1, 10)), (rng.randint(1, 5),)]:
            assert batch_outcome(case, cuts) == outcome, f"seed {seed}, in chunks {cuts}: {case.query}"
            assert flow_outcome(case, cuts) == outcome, f"seed {seed}, in epochs {cuts}: {case.query}"
        assert flow_outcome(case, ()) == outcome, f"seed {seed}: {case.query}"
        if outcome == "refused":
            refused += 1
            continue
        if case.query.consume == "NONE":
            assert outcome == right(case), f"seed {seed}: {case.query}"
            answered += bool(outcome)
            stepped += bool(outcome) and any(a.values["n"] > b.values["n"] for a, b in itertools.pairwise(case.events))
    assert min(refused, answered, stepped) > CASES // 20


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2)])
def test_what_has_left_its_window_does_not_come_back(cuts):
    query = parse("SELECT * WHERE A ; B FILTER B[v = 1] PARTITION BY [k] WITHIN 5 [n]")
    values = {"v": 1, "w": 0, "t": "a", "k": 1, "j": 0}
    events = [Seen(frozenset(kind), {**values, "n": n}, at) for at, (kind, n) in enumerate([("A", 0), ("C", 10), ("B", 1)])]
    case = Case(query, tuple(events), (), "end", "key")
    assert batch_outcome(case, cuts) == flow_outcome(case, cuts) == set()


# -------------------------------------------------------------------------------------------------------------- what is measured


def pattern_within(size: str | int):
    query = s.Query("ALL", s.Everything(), (), s.Event("A"), window=s.Window("attribute", Decimal(size), "n"))
    return pattern_of(Case(query, (), (), "end", "key"))


def least(size: str | int, column) -> list[int]:
    pattern, chunk = pattern_within(size), pa.RecordBatch.from_pydict({WHEN: column})
    when = times(pattern, chunk, np.arange(len(column)), missing=lambda row: RecordError(str(row)))
    return earliest(pattern, chunk, when).tolist()


def test_window_of_decimals_is_measured_exactly():
    column = pa.array([Decimal("-1.25"), Decimal("0.10"), Decimal("12345678901234.99")], pa.decimal128(18, 2))
    assert least("0.1", column) == [-135, 0, 1234567890123489]
    assert least("0.109", column.slice(1)) == [0, 1234567890123489]


def test_window_of_floats_is_as_wide_as_their_difference_says():
    values = np.append(np.arange(-40, 41) / 10, [-2.8e-17, 5e-324, 1e17, 1e-9])
    for size in ("1", "1.5", "0.1", "0", "0.3"):
        pattern, chunk = pattern_within(size), pa.RecordBatch.from_pydict({WHEN: values})
        when = times(pattern, chunk, np.arange(len(values)), missing=lambda row: RecordError(str(row)))
        inside = when[None, :] >= earliest(pattern, chunk, when)[:, None]
        assert (inside == (values[:, None] - values[None, :] <= float(size))).all(), size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_no_difference_can_be_taken_of_is_no_value_of_a_window(value):
    with pytest.raises(RecordError, match="1"):
        times(
            pattern_within(1), pa.RecordBatch.from_pydict({WHEN: [0.0, value]}), np.arange(2), lambda row: RecordError(str(row))
        )


def test_what_passes_a_condition_but_is_of_no_type_of_the_query_is_not_looked_at():
    query = parse("SELECT * WHERE A ; B FILTER B[v = 1] AND A[w = 2] WITHIN 5 [n]")
    pattern = pattern_of(Case(query, (), (), "end", "key"))
    bits = {str(test): 1 << bit for bit, test in enumerate(pattern.automaton.tests)}
    types = sum(bit for test, bit in bits.items() if "TypeIs" in test)
    assert (len(bits), pattern.row_filter) == (4, f"(__ps_mask0 & {types}) <> 0")


def test_window_that_is_wider_than_all_numbers_leaves_nothing_out():
    bottom, top = -(2**63), 2**63 - 1
    column = pa.array([bottom, 0, top], pa.int64())
    assert least(2**64, column) == [bottom] * 3
    assert least(2**63, column) == [bottom, bottom, -1]
    assert least(0, column) == [bottom, 0, top]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.decimal128(10, 1)])
def test_event_without_a_value_of_the_windows_column_is_an_error(kind):
    pattern, chunk = pattern_within(1), pa.RecordBatch.from_pydict({WHEN: pa.array([1, None, 3], kind)})
    with pytest.raises(RecordError, match="1"):
        times(pattern, chunk, np.arange(3), lambda row: RecordError(str(row)))
