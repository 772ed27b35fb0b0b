"""Tables of `lookup` in CSV and JSON files, read by the rules of a source's files."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.flow.tables import read_table

SCHEMA = "k string, n int, x double, d decimal(6,2), yes boolean, day date, at timestamp"
CSV = '''k,n,x,d,yes,day,at
a,1,0.5,1.50,true,2024-01-02,2024-01-02 03:04:05
"b, ""b""",,NaN,,FALSE,,2024-01-02T03:04:05.25+01:00
c,-3,1e3,-2.00,,1969-12-31,2024-01-02T03:04:05Z
,4,,,,,
"",5,,,,,
'''
JSON = """{"k": "a", "n": 1, "x": 0.5, "d": "1.50", "yes": true, "day": "2024-01-02", "at": "2024-01-02 03:04:05", "more": [1]}
{"n": 2, "k": "b"}
"""
AT = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
FIRST = {"k": "a", "n": 1, "x": 0.5, "d": Decimal("1.50"), "yes": True, "day": dt.date(2024, 1, 2), "at": AT}


def rows(*given, **options):
    return read_table(ps.files(*given, **options), ("k",)).rows.to_pylist()


def test_csv_is_read_with_its_schema_and_a_null_key_is_left_out(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    found = {row["k"]: row for row in rows(tmp_path / "t.csv", SCHEMA, "csv")}
    assert [*sorted(found)] == ["a", 'b, "b"', "c"]
    assert found["a"] == FIRST
    second = found['b, "b"']
    assert (second["n"], second["d"], second["yes"], second["day"]) == (None, None, False, None)
    assert second["x"] != second["x"]
    assert second["at"] == AT - dt.timedelta(minutes=60) + dt.timedelta(milliseconds=250)
    assert (found["c"]["n"], found["c"]["yes"], found["c"]["at"]) == (-3, None, AT)


def test_json_lines_are_read_and_what_is_not_declared_is_not_looked_at(tmp_path):
    schema = "k string, n int, x double, yes boolean, at timestamp"
    (tmp_path / "t.json").write_text(JSON)
    first, second = rows(tmp_path / "t.json", schema, "json")
    assert first == {name: FIRST[name] for name in ("k", "n", "x", "yes", "at")}
    assert second == {"k": "b", "n": 2, "x": None, "yes": None, "at": None}


def test_dates_and_bytes_of_json_are_text_and_a_time_may_be_a_date(tmp_path):
    (tmp_path / "t.json").write_text('{"k": "a", "day": "1969-12-31", "raw": "AAE=", "at": "2024-01-02"}\n{"k": "b"}\n')
    first, second = rows(tmp_path / "t.json", "k string, day date, raw binary, at timestamp", "json")
    midnight = AT.replace(hour=0, minute=0, second=0)
    assert first == {"k": "a", "day": dt.date(1969, 12, 31), "raw": b"\0\1", "at": midnight}
    assert second == {"k": "b", "day": None, "raw": None, "at": None}
    (tmp_path / "t.csv").write_text("k,at\na,2024-01-02\n")
    assert rows(tmp_path / "t.csv", "k string, at timestamp", "csv") == [{"k": "a", "at": midnight}]


def test_folder_is_one_table_and_hidden_files_are_not_looked_at(tmp_path):
    (tmp_path / "1.csv").write_text("K;n\na;1\n")
    (tmp_path / "2.csv").write_text("k;N\nb;2\n")
    (tmp_path / "_SUCCESS").write_text("")
    assert rows(tmp_path, "k string, n int", "csv", sep=";") == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]


def test_parquet_is_read_with_its_schema(tmp_path):
    pq.write_table(pa.table({"more": [0], "n": pa.array([1], pa.int64()), "k": ["a"]}), tmp_path / "t.parquet")
    assert rows(tmp_path / "t.parquet", "k string, n int") == [{"k": "a", "n": 1}]
    assert rows(tmp_path / "t.parquet", "k string, z int", missing_columns="null") == [{"k": "a", "z": None}]


WRONG = {
    "no file": (None, {}, "lookup finds no file "),
    "other names": ("k,m\na,1\n", {}, "names the columns k, m, and lookup expects k, n: correct the one or the other."),
    "no number": ("k,n\na,1\nb,two\n", {}, "as csv with the declared schema ("),
    "too few fields": ("k,n\na\n", {}, "as csv with the declared schema ("),
    "beyond the type": ("k,n\na,3000000000\n", {}, "as csv with the declared schema ("),
    "twice": ("k,n\na,1\na,2\n", {}, "has several rows for k='a'"),
    "an option": (
        "k,n\na,1\n",
        {"comment": "#"},
        "lookup does not know the option comment='#' of CSV; read the files with Spark or pandas",
    ),
    "no header": ("a,1\n", {"header": False}, "lookup does not know the option header='false' of CSV"),
}


JSON_WRONG = {
    "no base 64": ("raw binary", '"a"', "bytes in JSON are text in base 64"),
    "bytes within": ("raw array<binary>", '["YQ=="]', "lookup reads bytes in JSON only in columns of their own, and 'raw' is"),
    "no date": ("raw date", "1", "as json with the declared schema ("),
    "more digits than declared": ("raw decimal(3,1)", "123", "has a value that Spark cannot hold ("),
}


@pytest.mark.parametrize("case", JSON_WRONG)
def test_json_that_does_not_fit_is_refused_in_a_sentence(tmp_path, case):
    column, value, said = JSON_WRONG[case]
    (tmp_path / "t.json").write_text(f'{{"k": "a", "raw": {value}}}\n')
    with pytest.raises(DeclarationError, match=re.escape(said)):
        rows(tmp_path / "t.json", f"k string, {column}", "json")


@pytest.mark.parametrize("case", WRONG)
def test_file_that_does_not_fit_is_refused_in_a_sentence(tmp_path, case):
    text, options, said = WRONG[case]
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DeclarationError, match=re.escape(said)):
        rows(tmp_path / "t.csv", "k string, n int", "csv", **options)
