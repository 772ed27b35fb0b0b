"""A table beside a stream: what is taken, what is refused in which words, and that it is a part of the flow."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.flow import tables
from penstock.flow.lookup import looked_up
from penstock.testing import Harness

COLUMNS = "k string, j long, x double, d decimal(4, 2), name string"
CITIES = pa.table({"k": ["a", "b"], "city": ["Aberdeen", "Bari"]})


def source(columns=COLUMNS):
    return ps.Flow("looked up").source("s", ps.files("none", columns))


def found(rows, *lookups, columns=COLUMNS):
    """The rows behind some lookups, each (table, on, how)."""
    flow, out = ps.Flow("looked up"), ps.memory("looked up")
    stream = flow.source("s", ps.files("none", columns))
    for table, *how in lookups:
        stream = stream.lookup(table, *how)
    stream.sink(out)
    with Harness(flow) as harness:
        harness.push("s", rows)
        harness.epoch()
        return out.rows()


def row(**values):
    return dict.fromkeys(("k", "j", "x", "d", "name")) | values


def test_row_gets_the_columns_of_its_key_or_nulls_and_inner_leaves_it_out():
    rows = [row(k="a"), row(k="c"), row(k=None), row(k="a", j=1)]
    assert [r["city"] for r in found(rows, (CITIES, "k"))] == ["Aberdeen", None, None, "Aberdeen"]
    assert [r["city"] for r in found(rows, (CITIES, "k", "inner"))] == ["Aberdeen", "Aberdeen"]


def test_null_in_the_table_is_met_by_nothing_and_may_be_there_twice():
    table = pa.table({"k": pa.array([None, None], pa.string()), "city": ["one", "two"]})
    assert [r["city"] for r in found([row(k=None)], (table, "k"))] == [None]
    pairs = pa.table({"k": ["a", "a", None], "j": [1, None, 1], "city": ["one", "no", "no"]})
    rows = [row(k="a", j=1), row(k="a"), row(j=1)]
    assert [r["city"] for r in found(rows, (pairs, ["k", "j"]))] == ["one", None, None]


def test_time_without_a_zone_is_in_utc_in_the_stream_and_in_the_table():
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
    zoned = moment.replace(tzinfo=dt.UTC)
    for times in (pa.array([moment]), pa.array([zoned], pa.timestamp("us", "Asia/Tokyo"))):
        table = pa.table({"t": times, "city": ["Aberdeen"]})
        for kind, value in (("timestamp", zoned), ("timestamp_ntz", moment)):
            assert [r["city"] for r in found([{"t": value}, {"t": None}], (table, "t"), columns=f"t {kind}")] == [
                "Aberdeen",
                None,
            ]


@pytest.mark.parametrize("how", ["left", "inner"])
def test_column_of_nothing_but_nulls_meets_nothing(how):
    flow, out = ps.Flow("looked up"), ps.memory("looked up")
    nulls = flow.source("s", ps.files("none", COLUMNS)).with_columns(nothing="null")
    nulls.lookup(CITIES, {"nothing": "k"}, how).sink(out)
    with Harness(flow) as harness:
        harness.push("s", [row(k="a")])
        harness.epoch()
    assert [r["city"] for r in out.rows()] == ([None] if how == "left" else [])


def test_numbers_are_compared_by_value_and_zeros_and_nans_are_one():
    floats = pa.table({"x": [0.0, math.nan, 0.1], "to": [*"zna"]})
    assert [r["to"] for r in found([row(x=-0.0), row(x=-math.nan), row(x=0.1)], (floats, "x"))] == [*"zna"]
    narrow = pa.table({"x": pa.array([0.1, 0.5], pa.float32()), "to": [*"ab"]})
    assert [r["to"] for r in found([row(x=0.1), row(x=0.5)], (narrow, "x"))] == [None, "b"]
    decimals = pa.table(
        {"d": pa.array([Decimal("1.500"), Decimal("1.501"), Decimal(10**20)], pa.decimal128(30, 3)), "to": [*"abc"]}
    )
    assert [r["to"] for r in found([row(d=Decimal("1.50")), row(d=Decimal("1.51"))], (decimals, "d"))] == ["a", None]
    whole = pa.table({"j": pa.array([1, 127], pa.int8()), "to": [*"ab"]})
    assert [r["to"] for r in found([row(j=1), row(j=127), row(j=383)], (whole, "j"))] == ["a", "b", None]
    wide = pa.table({"k": pa.array([1, 2**40 + 1], pa.int64()), "to": [*"ab"]})
    assert [r["to"] for r in found([{"k": 1}], (wide, "k"), columns="k tinyint")] == ["a"]


def test_columns_that_both_have_are_named_as_in_a_join():
    table = pa.table({"K": ["a"], "name": ["A"], "J": [5]})
    stream = source().lookup(table, "K")
    assert stream.columns == ["k", "j", "x", "d", "name", "name_right", "J_right"]
    assert found([row(k="a", name="own")], (table, "k"))[0]["name_right"] == "A"
    with pytest.raises(
        DeclarationError, match=r"^lookup would give two columns named 'name_right'; rename one of them before\.$"
    ):
        stream.lookup(table, "k")
    assert source().lookup(CITIES, {"name": "city"}).columns[-1] == "k_right"


def test_empty_table_gives_nulls():
    assert found([row(k="a")], (CITIES.slice(0, 0), "k"))[0]["city"] is None
    assert found([row(k="a")], (CITIES.slice(0, 0), "k", "inner")) == []


def test_file_that_changes_or_vanishes_after_the_declaration_changes_nothing(tmp_path):
    path = tmp_path / "cities.parquet"
    pq.write_table(CITIES, path)
    flow, out = ps.Flow("from a file"), ps.memory("from a file")
    flow.source("s", ps.files("none", "k string")).lookup(path, "k").sink(out)
    path.unlink()
    with Harness(flow) as harness:
        harness.push("s", [{"k": "b"}])
        harness.epoch()
    assert out.rows() == [{"k": "b", "city": "Bari"}]


def identity(table, on="k", how="left"):
    return looked_up(source().schema, table, on, how).identity()


def test_table_is_told_apart_by_its_rows_alone(tmp_path):
    pq.write_table(CITIES.take([1, 0]), tmp_path / "t.parquet", row_group_size=1)
    same = [
        CITIES,
        CITIES.take([1, 0]),
        pa.concat_tables([CITIES.slice(1), CITIES.slice(0, 1)]),
        CITIES.set_column(1, "city", CITIES.column("city").dictionary_encode()),
        pd.DataFrame({"k": ["b", "a"], "city": ["Bari", "Aberdeen"]}, index=[5, 7]),
        str(tmp_path / "t.parquet"),
        pa.concat_tables([CITIES, pa.table({"k": pa.array([None], pa.string()), "city": ["never met"]})]),
    ]
    assert len({identity(table) for table in same}) == 1
    others = [
        CITIES.slice(1),
        CITIES.set_column(1, "city", [["Aberdeen", None]]),
        CITIES.rename_columns(["k", "town"]),
        pa.table({"k": ["a", "b"], "city": ["Aberdeen", "Bar"]}),
    ]
    assert (
        len({identity(table) for table in [CITIES, *others]} | {identity(CITIES, how="inner"), identity(CITIES, {"name": "k"})})
        == 7
    )


def test_table_with_a_null_among_structs_is_the_same_from_memory_and_from_a_file(tmp_path):
    kept = pa.array([{"x": 1}, {"x": 2}])
    hidden = pa.StructArray.from_arrays(kept.flatten(), fields=list(kept.type), mask=pa.array([False, True]))
    rows = {"k": ["a", "b"], "s": [{"x": 1}, None], "l": [[None, {"x": 3}], []]}
    written = pa.table(rows)
    pq.write_table(written, tmp_path / "t.parquet")
    given = [written, tmp_path / "t.parquet", written.set_column(1, "s", hidden), written.take([1, 0])]
    assert len({looked_up(pa.schema({"k": pa.string()}), table, "k", "left").identity() for table in given}) == 1


WRONG = {
    "several rows of a key": (
        (pa.table({"k": ["a", "b", "a"], "j": [1, 2, 3]}), "k"),
        "The table of lookup has several rows for k='a', and a row of the stream can get one only; keep one row of each key, or name further",
    ),
    "two zeros": (
        (pa.table({"x": [0.0, -0.0]}), "x"),
        "The table of lookup has several rows for x=",
    ),
    "another type": (
        (pa.table({"k": [1]}), "k"),
        "lookup compares 'k' of the stream, which is string, with 'k' of the table, which is int64: values of these types never equal one",
    ),
    "whole numbers and floats": ((pa.table({"j": [1.0]}), "j"), "lookup compares 'j' of the stream, which is int64, with 'j'"),
    "no such column in the table": ((CITIES, "name"), "lookup's on, for the table, names column 'name', which does not exist"),
    "no such column in the stream": ((CITIES, "city"), "lookup names column 'city', which does not exist"),
    "no columns": ((CITIES, []), "lookup needs the columns to look up by: on='column'"),
    "how": ((CITIES, "k", "outer"), "lookup(how='outer') is not known; use 'left' or 'inner'."),
    "no table": (
        ([1, 2], "k"),
        "lookup needs a DataFrame of Spark or pandas, a pyarrow.Table, the path of Parquet files or files(…), not list.",
    ),
    "no file": (("/no/such/file", "k"), "lookup finds no file /no/such/file; give the path of a Parquet file or folder."),
    "lists as keys": ((pa.table({"k": [["a"]]}), "k"), "lookup cannot compare 'k', which is list<"),
    "two names that SQL does not tell apart": (
        (pa.table({"k": ["a"], "city": ["A"], "City": ["B"]}), "k"),
        "The table of lookup names columns 'city' and 'City', which are the same to SQL; rename one.",
    ),
    "nanoseconds": (
        (pa.table({"k": ["a"], "at": pa.array([1], pa.timestamp("ns"))}), "k"),
        "The table of lookup has a value that Spark cannot hold (",
    ),
    "a type that Spark does not have": (
        (pa.table({"k": ["a"], "n": [None]}), "k"),
        "The table of lookup has column 'n' of type null, which Spark does not have; cast it, or leave it out.",
    ),
    "values of two types": (
        (pd.DataFrame({"k": ["a", 1]}), "k"),
        "lookup cannot read the DataFrame of pandas (Conversion failed for column k with type object: ",
    ),
    "unsigned beyond": (
        (pa.table({"k": ["a"], "n": pa.array([2**63], pa.uint64())}), "k"),
        "The table of lookup has a value that Spark cannot hold (",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_looked_up_is_refused_in_a_sentence(case):
    given, sentence = WRONG[case]
    with pytest.raises(DeclarationError, match="^" + re.escape(sentence)):
        source().lookup(*given)


def test_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("k,city\na,A\n")
    with pytest.raises(
        DeclarationError,
        match=r"^lookup cannot read .*t\.csv as Parquet .* give files\(path, schema, 'csv'\) with its columns\.$",
    ):
        source().lookup(tmp_path / "t.csv", "k")


def test_table_that_is_too_large_for_every_task_is_refused(monkeypatch):
    monkeypatch.setattr(tables, "LARGEST_TABLE", 1 << 20)
    large = pa.table({"j": np.arange(200_000)})
    sentence = "The table of lookup has 1 MiB, more than 1, and every task would get a copy; make it a source and join the two streams."
    with pytest.raises(DeclarationError, match=re.escape(sentence)):
        source().lookup(large, "j")


def test_unsigned_numbers_of_the_table_are_those_that_spark_has():
    table = pa.table({"k": ["a"], "n": pa.array([2**63 - 1], pa.uint64()), "m": pa.array([200], pa.uint8())})
    assert [f"{f.name} {f.type}" for f in source().lookup(table, "k").schema][-2:] == ["n int64", "m int16"]


def test_lookup_right_after_key_by_stays_keyed_and_behind_a_step_leaves_the_region():
    keyed = source().key_by("k").lookup(CITIES, "k")
    keyed.aggregate(n=ps.count("city"))
    left = source().key_by("k").deduplicate().lookup(CITIES, "k")
    assert not hasattr(left, "aggregate")
