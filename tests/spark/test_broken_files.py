"""Files that are not as they should be, and dialects of CSV."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.spark.matching import FileMatches

pytestmark = pytest.mark.spark

RFC = 'k,t,v\na,"say ""hi"" now",1\na,"a, b",2\na,"""",3\na,"back\\slash\\",4\na,plain,5\n'
TEXTS = ['say "hi" now', "a, b", '"', "back\\slash\\", "plain"]
OTHER = 'k,t,v\na,"say \\"hi\\" now",1\na,"a, b",2\n'


def texts(spark, tmp_path, name, text, **options):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.csv").write_text(text)
    flow, out = ps.Flow("quotes"), ps.memory(f"{name} {tmp_path}")
    flow.source("events", ps.files(folder, "k string, t string, v long", "csv", **options)).sink(out)
    flow.start(spark, checkpoint=tmp_path / f"c {name}", trigger="available_now").await_termination(600)
    return [r["t"] for r in sorted(out.rows(), key=lambda r: r["v"])]


def test_quotes_in_csv_when_doubled_are_one_and_escaped_only_where_that_is_said(spark, tmp_path):
    assert texts(spark, tmp_path, "rfc", RFC) == TEXTS
    assert texts(spark, tmp_path, "other", OTHER, escape="\\") == ['say "hi" now', "a, b"]
    broken = 'k,t,v\na,"one\ntwo ""2""",1\na,"three",2\n'
    assert texts(spark, tmp_path, "lines", broken, multiLine=True) == ['one\ntwo "2"', "three"]


def test_quotes_in_csv_when_files_are_matched_are_read_as_in_flows(spark, tmp_path):
    def found(name, text, **dialect):
        (tmp_path / name).write_text(text)
        how = {"order_by": "v", "define": {"A": "true"}}
        return [
            r["t"]
            for (r,) in (
                row[-1]
                for row in FileMatches(spark, "SELECT * WHERE A", [str(tmp_path / name)], "csv", **dialect, **how).rows(0)
            )
        ]

    assert found("rfc.csv", RFC) == TEXTS
    assert found("other.csv", OTHER, escape="\\") == ['say "hi" now', "a, b"]
    assert found("lines.csv", 'k,t,v\na,"one\ntwo ""2""",1\na,"three",2\n', multi_line=True) == ['one\ntwo "2"', "three"]
