"""What is said of a mistake: whole sentences, in penstock's own words, with a place and what to do."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import DeclarationError, RecordError
from penstock.spark.options import interval_ms
from penstock.sql_text.schema import parse_schema
from penstock.testing import Harness


def events():
    return ps.Flow("f").source("s", ps.files("none", "k string, at timestamp, v long"), time="at")


@pytest.mark.parametrize("trigger", ["availableNow", "AVAILABLE_NOW", "available now", "available-now", "once", "Trigger.Once"])
def test_trigger_when_it_is_another_spelling_of_available_now_names_the_right_one(trigger):
    with pytest.raises(DeclarationError) as caught:
        interval_ms(trigger)
    assert (
        str(caught.value)
        == f"trigger={trigger!r} is not known; write 'available_now' to process what there is and then end, or how often an epoch begins, such as '200 milliseconds'."
    )


@pytest.mark.parametrize("trigger", [{"availableNow": True}, None, True, b"1 second"])
def test_trigger_when_it_is_neither_text_nor_a_duration_names_both_forms(trigger):
    with pytest.raises(DeclarationError, match=r"is not known; write 'available_now' to process"):
        interval_ms(trigger)


def test_trigger_of_nothing_is_refused_and_of_a_duration_is_taken():
    assert interval_ms("available_now") is None
    assert interval_ms("2 seconds") == 2000
    with pytest.raises(DeclarationError, match=r"trigger 'soon' is not a duration; write for example '10 minutes'"):
        interval_ms("soon")


@pytest.mark.parametrize("over", ["the key", "windows"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (ps.count(), "aggregate needs a name for each aggregate, but penstock.count() has none; write n=penstock.count()."),
        (ps.sum("v"), "aggregate needs a name for each aggregate, but penstock.sum('v') has none; write v=penstock.sum('v')."),
        ("count(*)", "aggregate needs a name for each aggregate, but penstock.count() has none; write n=penstock.count()."),
    ],
    ids=["count", "sum", "text"],
)
def test_aggregate_when_it_has_no_name_says_how_to_give_it_one(over, given, sentence):
    keyed = events().key_by("k")
    stream = keyed if over == "the key" else keyed.window(ps.tumbling("1 hour"))
    with pytest.raises(DeclarationError) as caught:
        stream.aggregate(given)
    assert str(caught.value) == sentence


def test_aggregate_when_emit_is_given_by_place_is_as_before():
    with pytest.raises(DeclarationError, match="needs at least one aggregate"):
        events().key_by("k").aggregate("update")


EXPRESSIONS = {
    "v >": "something is missing after '>' at character 3",
    "v > 1 and": "something is missing after 'and' at character 7",
    "v +\n +": "something is missing after '+' at line 2, character 2",
    "(v": "a ')' is missing at its end",
    "v)": "')' at character 2 is not expected there",
    "v = 'abc": "a quote that is opened at character 5 is not closed",
    "`v": "a quote that is opened at character 1 is not closed",
    "v 60": "'60' at character 3 is not expected there",
    "select 1": "'select' at character 1 is not expected there",
    "cast(v as foo)": "'foo' at character 11 is no type",
    "substring()": "something is missing before ')' at character 11",
    "round(v, 1, 2, 3, 4)": "a function has too many arguments before ')' at character 20",
}


@pytest.mark.parametrize("sql", EXPRESSIONS)
def test_expression_when_it_is_not_sql_says_what_is_wrong_and_where(sql):
    with pytest.raises(DeclarationError) as caught:
        events().with_columns(w=sql)
    assert str(caught.value) == f"with_columns w is not a Spark SQL expression: {sql!r}: {EXPRESSIONS[sql]}."
    assert caught.value.__cause__ is None


SCHEMAS = {
    "k strnig": "'strnig' at character 3 is not expected there",
    "k string v long": "'v' at character 10 is not expected there",
    "k decimal(": "a ')' is missing at its end",
    "k int 'x": "a quote that is opened at character 7 is not closed",
    "struct<a int, b strnig>": "'b' at character 15 is not expected there",
}


@pytest.mark.parametrize("text", SCHEMAS)
def test_schema_when_it_is_none_says_what_is_wrong_and_where(text):
    with pytest.raises(DeclarationError) as caught:
        parse_schema(text, "The schema")
    assert str(caught.value) == (
        f"The schema is not a list of columns such as 'tail string, delay double': {text!r}: {SCHEMAS[text]}."
    )
    assert caught.value.__cause__ is None


def test_schema_when_a_name_has_a_dot_asks_for_backquotes():
    assert parse_schema("`a.b` string", "The schema").names == ["a.b"]
    with pytest.raises(
        DeclarationError, match=r"has a column without a name: 'a.b string'; put a name with a dot in it between"
    ):
        parse_schema("a.b string", "The schema")


def twice(batch):
    """Of each row two: as it is, and 100 more."""
    n = batch.num_rows
    both = pa.concat_arrays([batch.column("v"), pc.add(batch.column("v"), 100)])
    at = pa.concat_arrays([batch.column("at")] * 2)
    return pa.record_batch({"v": both, "at": at, "_row": pa.array([*range(n), *range(n)])})


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_rows_of_a_record_that_come_by_several_streams_go_by_their_number_in_map_batches_and_then_by_stream(cut):
    flow = ps.Flow("f")
    source = flow.source("s", ps.files("none", "at timestamp, v long"), time="at")
    rows = source.map_batches(twice, "v long, at timestamp")
    large, small, every = rows.where("v >= 100"), rows.where("v < 100"), rows.where("v >= 0")
    out = ps.memory(f"union {cut}")
    keyed = large.union(small, every).with_columns(k="1").key_by("k")
    keyed.stateful_map(lambda k, e, n: ((n or 0, e.v), (n or 0) + 1), "n long, v long").sink(out)
    with Harness(flow) as harness:
        for v in range(0, 4, cut):
            harness.push("s", [{"at": dt.datetime(2024, 1, 1, 0, i, tzinfo=dt.UTC), "v": i} for i in range(v, v + cut)])
            harness.epoch()
        harness.finish()
    by_number = [r["v"] for r in sorted(out.rows(), key=lambda r: r["n"])]
    assert by_number == [v for x in range(4) for v in (x, x, x + 100, x + 100)]  # small, every; large, every


def harnessed(step):
    flow = ps.Flow("f")
    step(flow.source("s", ps.files("none", "k string, v long"))).sink(ps.memory("harnessed"))
    with Harness(flow) as harness:
        harness.push("s", [{"k": "a", "v": 1}, {"k": "b", "v": 0}, {"k": "c", "v": 2}])
        harness.epoch()


def test_expression_when_it_fails_on_a_record_in_the_harness_names_step_source_and_record():
    with pytest.raises(RecordError) as caught:
        harnessed(lambda s: s.with_columns(w="10 % v"))
    assert re.fullmatch(
        r"with_columns\(w='10 % v'\) failed on the record \{'k': 'b', 'v': 0\} of source 's': Division by zero in expression \(10 % v\); leave such records out "
        r"with a where\(…\) before it. The epoch was not committed.",
        str(caught.value),
    )


def test_expression_when_the_harness_cannot_run_it_says_so_and_where_to_test_it():
    with pytest.raises(DeclarationError) as caught:
        harnessed(lambda s: s.where("xxhash64(k) > 0"))
    assert str(caught.value).startswith(
        "where('xxhash64(k) > 0') cannot be run in this process, where DuckDB runs the SQL (Scalar Function with name xxhash64 does not exist)"
    )
    assert str(caught.value).endswith("; test this flow over Spark.")
