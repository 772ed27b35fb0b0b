"""What users' functions return and keep: a value that does not fit is its record's error, wherever epochs are cut."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import OperatorError
from penstock.testing import Harness

NUMBERS = itertools.count()
SOURCE = pa.schema([("k", pa.string()), ("n", pa.int64())])


@dataclass
class Reader:
    """In place of a connector: only a schema."""

    schema: pa.Schema


def ran(fn, schema: str, records: list[tuple[str, int]], *, one_by_one: bool, state: str | None = None, on_error: Any = None):
    """Rows, and records that were left out, of a stateful_map."""
    number = next(NUMBERS)
    flow, sink = ps.Flow(f"returned{number}"), ps.memory(f"returned{number}")
    left_out = ps.memory(f"left out{number}")
    keyed = flow.source("s", Reader(SOURCE)).key_by("k")
    keyed.stateful_map(fn, schema, state, on_error=left_out if on_error is None else on_error).sink(sink)
    with Harness(flow, workers=2) as harness:
        for k, n in records:
            harness.push("s", [{"k": k, "n": n}])
            if one_by_one:
                harness.epoch()
        harness.finish()
        skipped = sum(region.skipped for region in harness.record.regions.values())
    return sink.rows(), left_out.rows(), skipped


BAD = {
    "NaT for a time": ("at timestamp", pd.NaT, "timestamp"),
    "minutes for a time": ("at timestamp", np.datetime64("2020-01-01T00:00", "m"), "Unsupported datetime64"),
    "NaT for a date": ("at date", pd.NaT, "date32"),
    "noon for a date": ("at date", dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC), "has a time of day"),
    "NA for a number": ("n long", pd.NA, "NA"),
    "text for a number": ("n long", "1", "'1' with type str"),
    "text for a float": ("x double", "x", "'x' with type str"),
    "too great a number": ("n long", 2**63, "too large"),
    "too small a number": ("n int", -(2**31) - 1, "int32"),
    "a fraction": ("n long", 1.5, "1.5 is not a whole number"),
    "a fraction in a list": ("l array<long>", [1, 1.5], "1.5 is not a whole number"),
    "a fraction in a struct": ("l struct<a: long, b: array<int>>", {"a": 1, "b": [Decimal("0.5")]}, "is not a whole number"),
    "a fraction in a map": ("l map<string, long>", {"a": 1.5}, "1.5 is not a whole number"),
    "NaN for a number": ("n long", float("nan"), "nan"),
    "too many digits": ("d decimal(5, 2)", Decimal("1234.5"), "precision"),
    "too many decimals": ("d decimal(5, 2)", Decimal("1.234"), "Rescaling"),
    "bytes that are no text": ("s string", b"\xff", "utf8 string"),
    "half a letter": ("s string", "\ud800", "surrogates"),
    "a number for text": ("s string", 1, "int"),
    "a number for true": ("b boolean", 1, "boolean"),
    "two values": ("n long", (1, 2), "of 2 values; its schema has 1"),
    "no such column": ("n long", {"m": 1}, "no column 'n'|has a column 'm'"),
}


@pytest.mark.parametrize("case", BAD)
def test_value_that_does_not_fit_is_the_error_of_its_record_wherever_epochs_are_cut(case):
    schema, value, sentence = BAD[case]
    records = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]

    def fn(key, event, state):
        n = (state or 0) + 1
        if (key, event.n) == ("a", 2):
            return value if isinstance(value, (tuple, dict)) and not schema.startswith("l ") else (value,), n
        return (None,), n

    found = [ran(fn, schema, records, one_by_one=cut) for cut in (False, True)]
    for rows, left_out, skipped in found:
        assert len(rows) == 4
        assert skipped == 1
        (about,) = left_out
        assert (about["key"], about["position"]) == ("'a'", "s/0 @ 2"), about
        assert re.search(sentence, about["error"]), about
    for cut in (False, True):
        where = re.escape("stateful_map(fn) of region 'k' failed on key 'a' at position s/0 @ 2: it returned ")
        with pytest.raises(OperatorError, match=f"{where}.*({sentence})"):
            ran(fn, schema, records, one_by_one=cut, on_error="fail")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("n long", "1"),
        ("n long", 2**63),
        ("n long, s string", (1, 2)),
        ("s string, n long", ("a", 2**63)),
        ("s string, n int", ("a", 1.5)),
        ("s string", ("a", "b")),
        ("b boolean", "yes"),
        ("x double, at timestamp", (1.0, pd.NaT)),
        ("l array<long>", ([1, "a"],)),
        ("n long", {"m": 1}),
        (None, lambda: None),
    ],
)
def test_state_that_does_not_fit_is_the_error_of_the_record_that_made_it(declared, value):
    good = {"n long": 1, None: 1, "b boolean": True, "s string": "a", "l array<long>": ([1],)}.get(declared)
    good = {"n long, s string": (1, "a"), "x double, at timestamp": (1.0, None)}.get(declared, good) or ("a", 1)
    records = [("a", 1), ("a", 2), ("b", 1), ("a", 3)]
    stays_bad = declared is None  # what cannot be pickled is seen when it is stored, so it must last

    def fn(key, event, state):
        bad = key == "a" and (event.n == 2 or (stays_bad and event.n > 2))
        return (event.n,), value if bad else good

    for cut in (False, True):
        rows, left_out, skipped = ran(fn, "n long", records, one_by_one=cut, state=declared)
        assert [(r["key"], r["position"]) for r in left_out][:1] == [("'a'", "s/0 @ 1")]
        assert "it returned" in left_out[0]["error"]
        assert skipped == len(left_out) == (2 if stays_bad else 1)
        assert len(rows) == 4 - skipped
        with pytest.raises(OperatorError, match=r"failed on key 'a' at position s/0 @ 1: it returned (the|a) state"):
            ran(fn, "n long", records, one_by_one=cut, state=declared, on_error="fail")


def test_state_that_was_changed_in_place_before_its_function_raised_is_as_it_was():
    def fn(key, event, state):
        state = [] if state is None else state
        state.append(event.n)
        if event.n % 3 == 0:
            raise ValueError(event.n)
        return (str(state),), state

    records = [("ab"[n % 2], n) for n in range(1, 13)]
    for cut in (False, True):
        rows, _, skipped = ran(fn, "seen string", records, one_by_one=cut)
        assert skipped == 4
        assert rows[-1 if cut else 3]["seen"] in ("[1, 5, 7, 11]", "[2, 4, 8, 10]")
        assert sorted(r["seen"] for r in rows) == sorted(
            str(s[: i + 1]) for s in ([1, 5, 7, 11], [2, 4, 8, 10]) for i in range(4)
        )


SHAPES = {
    "seen array<long>": lambda state: state,
    "seen struct<l: array<long>>": lambda state: {"l": state},
    "seen map<string, array<long>>": lambda state: {"l": state},
}


@pytest.mark.parametrize("schema", SHAPES)
def test_row_that_shares_a_list_with_the_state_is_as_it_was_when_it_was_returned(schema):
    def fn(key, event, state):
        state = [] if state is None else state
        state.append(event.n)
        return (SHAPES[schema](state),), state

    records = [("a", n) for n in range(3)]
    found = [str(ran(fn, schema, records, one_by_one=cut)[0]) for cut in (False, True)]
    assert found[0] == found[1]
    assert "[0]" in found[0]


def test_dict_that_is_both_row_and_state_is_as_it_was_when_it_was_returned():
    def fn(key, event, state):
        state = {"n": 0, "key": key} if state is None else state
        state["n"] += event.n
        return state, state

    found = [ran(fn, "key string, n long", [("a", 1)] * 3, one_by_one=cut)[0] for cut in (False, True)]
    assert found[0] == found[1] == [{"key": "a", "n": n} for n in (1, 2, 3)]


def test_one_bad_value_among_many_of_one_key_costs_no_look_at_each():
    """A tenth of a second for 50,000 rows, where a look at each row takes seconds."""
    calls = [0]

    def fn(key, event, state):
        calls[0] += 1
        return ("bad" if event.n == 40_000 else event.n,), (state or 0) + 1

    number = next(NUMBERS)
    flow, sink = ps.Flow(f"returned{number}"), ps.memory(f"returned{number}")
    flow.source("s", Reader(SOURCE)).key_by("k").stateful_map(fn, "n long", on_error="skip").sink(sink)
    with Harness(flow) as harness:
        harness.push("s", pa.table({"k": ["a"] * 50_000, "n": range(50_000)}, schema=SOURCE))
        harness.finish()
    assert sink.table().num_rows == 49_999
    assert calls[0] == 100_000


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [("bigint", 1.5, "is not a whole number"), ("date", pd.NaT, "NaT"), ("string", b"\xff", "utf8")],
)
def test_result_of_a_users_aggregate_that_would_be_changed_is_refused_with_its_key(kind, value, sentence):
    class Gives(ps.Aggregate):
        type = kind

        def zero(self):
            return 0

        def add(self, state, value):
            return state + value

        def merge(self, a, b):
            return a + b

        def finish(self, state):
            return value if state == 2 else None

    flow = ps.Flow("aggregates")
    flow.source("s", Reader(SOURCE)).key_by("k").aggregate(x=Gives("n")).sink(ps.memory(f"returned{next(NUMBERS)}"))
    with Harness(flow) as harness:
        harness.push("s", [{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        with pytest.raises(OperatorError, match=rf"failed in Gives.finish on key 'b': .*{sentence}"):
            harness.finish()
