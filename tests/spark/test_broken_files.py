"""Files that are not as they should be, and dialects of CSV."""

from __future__ import annotations

import gzip
import os
import sqlite3
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import RecordError
from penstock.spark.patterns.match_files import FileMatches

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


def malformed(spark, tmp_path, kind, on_error, schema="k string, v long"):
    """The values that were read, and how many records were malformed."""
    flow, out = ps.Flow("broken"), ps.memory(f"{on_error!r} {tmp_path}")
    flow.source("events", ps.files(tmp_path / "in", schema, kind), on_error=on_error).sink(out)
    folder = tempfile.mkdtemp(dir=tmp_path)
    flow.start(spark, checkpoint=folder, trigger="available_now").await_termination(600)
    return sorted(r["v"] for r in out.rows()), Checkpoint(folder).last().sources["events"].malformed


def test_csv_header_when_it_is_another_stops_the_flow_or_its_records_are_malformed(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text("k,v\na,1\n")
    (folder / "2.csv").write_text('k,w\na,2\nb,"3 ""x"""\n')
    expected = (
        r"File file://.*/in/2\.csv of source 'events' does not have the declared columns: its first line names k, w, where k, v is "
        r"expected; fix or remove it, or declare on_error=\"skip\""
    )
    with pytest.raises(RecordError, match=expected):
        malformed(spark, tmp_path, "csv", "fail")
    (folder / "3 ü.csv").write_text("k,v,w\na,4,5\n")
    (folder / "4.csv").write_text("k\n")
    (folder / "5.csv").write_text("k,v\na,9\n,x\n")
    bad = ps.memory(f"bad {tmp_path}")
    assert malformed(spark, tmp_path, "csv", bad) == ([1, 9], 5)
    names = "the file does not have the declared columns: its first line names"
    assert sorted((r["position"], r["error"], r["record"]) for r in bad.rows()) == [
        ("2.csv row 1", f"{names} k, w, where k, v is expected", "a,2"),
        ("2.csv row 2", f"{names} k, w, where k, v is expected", 'b,"3 ""x"""'),
        ("3 ü.csv row 1", f"{names} k, v, w, where k, v is expected", "a,4,5"),
        ("4.csv", f"{names} k, where k, v is expected", ""),
        ("5.csv row 2", "malformed", ",x"),
    ]
    assert malformed(spark, tmp_path, "csv", "skip") == ([1, 9], 5)


def test_parquet_file_when_it_is_none_stops_the_flow_or_counts_as_malformed(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    whole = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": ["a"] * 1_000, "v": list(range(1_000))}), whole)
    data = whole.getvalue().to_pybytes()
    (folder / "0.parquet").write_bytes(data)
    (folder / "1.parquet").touch()
    for name in ("_SUCCESS", ".hidden.parquet", "_temporary.parquet"):
        (folder / name).touch()
    with pytest.raises(
        RecordError, match=r"File file://.*/in/1\.parquet of source 'events' is empty, where a Parquet file has col"
    ):
        malformed(spark, tmp_path, "parquet", "fail")
    (folder / "2.parquet").write_bytes(data[: len(data) // 2])
    (folder / "3.parquet").write_text("k,v\na,1\n")
    (folder / "4.parquet").write_text("x")
    bad = ps.memory(f"none {tmp_path}")
    assert malformed(spark, tmp_path, "parquet", bad) == (list(range(1_000)), 4)
    found = sorted((r["position"], r["error"]) for r in bad.rows())
    assert [place for place, _ in found] == ["1.parquet", "2.parquet", "3.parquet", "4.parquet"]
    assert found[0][1] == "the file is empty, where a Parquet file has columns even without rows"
    assert {why for _, why in found[1:]} == {"the file is no Parquet file, or was not written to its end"}
    (folder / "0.parquet").unlink()
    assert malformed(spark, tmp_path, "parquet", "skip") == ([], 4)
    (folder / "1.parquet").unlink()
    with pytest.raises(
        RecordError, match=r"2\.parquet of source 'events' is no Parquet file, or was not written to its end; fix or rem"
    ):
        malformed(spark, tmp_path, "parquet", "fail")


def test_file_when_it_could_not_be_read_may_be_mended_or_removed_before_the_epoch_runs_again(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"k": ["a"], "v": [1]}), folder / "1.parquet")
    (folder / "2.parquet").touch()
    (folder / "3.parquet").touch()
    flow, out = ps.Flow("mended"), ps.memory(f"mended {tmp_path}")
    flow.source("events", ps.files(folder, "k string, v long")).sink(out)

    def run():
        flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)

    with pytest.raises(RecordError, match=r"2\.parquet"):
        run()
    (folder / "2.parquet").unlink()
    with pytest.raises(RecordError, match=r"3\.parquet"):
        run()
    pq.write_table(pa.table({"k": ["a"], "v": [3]}), folder / "3.parquet")
    run()
    assert sorted(r["v"] for r in out.rows()) == [1, 3]


def test_malformed_record_that_is_not_in_utf_8_is_stored_in_any_sink(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_bytes(b'{"k": "gr\xf6\xdfe", "v": 1}\n{"k": "a", "v": 2}\n{"k": "\xc3\xa4", "v": "x"}\n')
    for name in ("sqlite", "duckdb"):
        assert malformed(spark, tmp_path, "json", ps.sql(f"{name}:///{tmp_path}/bad.{name}", "bad")) == ([2], 2)
    stored = (
        sqlite3.connect(tmp_path / "bad.sqlite").execute("SELECT position, error, record FROM bad ORDER BY position").fetchall()
    )
    assert stored == [
        ("1.json row 1", "malformed", '{"k": "gr\ufffd\ufffde", "v": 1}'),
        ("1.json row 3", "malformed", '{"k": "ä", "v": "x"}'),
    ]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_compressed_file_when_it_is_truncated_stops_the_flow_or_counts_as_malformed(spark, tmp_path, kind):
    folder = tmp_path / "in"
    folder.mkdir()
    row = "a,{}" if kind == "csv" else '{{"k": "a", "v": {}}}'
    head = ["k,v"] if kind == "csv" else []
    text = "\n".join([*head, *(row.format(i * 7919 % 100_003) for i in range(20_000))]).encode()
    (folder / f"1.{kind}.gz").write_bytes(gzip.compress(text)[:-4_000])
    (folder / f"2.{kind}").write_text("\n".join([*head, row.format(1)]) + "\n")
    with pytest.raises(RecordError, match=rf"1\.{kind}\.gz"):
        malformed(spark, tmp_path, kind, "fail")
    assert malformed(spark, tmp_path, kind, "skip") == ([1], 1)


def test_parquet_file_when_it_is_damaged_inside_stops_the_flow_and_may_be_mended_or_removed(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("1", "2"):
        pq.write_table(pa.table({"k": ["a"] * 50, "v": list(range(50))}), folder / f"{name}.parquet", compression="snappy")
        data = bytearray((folder / f"{name}.parquet").read_bytes())
        data[4:200] = bytes(196)
        (folder / f"{name}.parquet").write_bytes(data)
    flow, out = ps.Flow("damaged"), ps.memory(f"damaged {tmp_path}")
    flow.source("events", ps.files(folder, "k string, v long", max_files_per_epoch=1), on_error="skip").sink(out)

    def run():
        flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)

    with pytest.raises(RecordError, match=r"in/1\.parquet.*Fix or remove the file and start the flow again"):
        run()
    (folder / "1.parquet").unlink()
    with pytest.raises(RecordError, match=r"in/2\.parquet.*Fix or remove the file and start the flow again"):
        run()
    pq.write_table(pa.table({"k": ["a"], "v": [3]}), folder / "2.parquet")
    run()
    assert [r["v"] for r in out.rows()] == [3]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_when_some_are_none_and_names_are_odd_are_read_as_ever_with_the_columns_of_folders(spark, tmp_path, kind):
    names = ["a b", "x[1]", "y{2,3}", "z*?", "100%", "a+b", "größe", "back\\slash", "plain"]
    for i, name in enumerate(names):
        path = tmp_path / "in" / f"day={i % 2}" / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "csv":
            path.write_text("k,v\n" + f"a,{i}\n")
        else:
            pq.write_table(pa.table({"k": ["a"], "v": [i]}), path)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        bad = path.with_name(f"bad {name}.{kind}")
        bad.write_text("k,w\na,1\n")
        os.utime(bad, (1_700_000_000, 1_700_000_000))
    flow, out, bad = ps.Flow("odd"), ps.memory(f"odd {tmp_path}"), ps.memory(f"odd bad {tmp_path}")
    source = ps.files(tmp_path / "in", "k string, v long, day int", kind, max_files_per_epoch=4)
    flow.source("events", source, on_error=bad).sink(out)
    flow.start(spark, checkpoint=tmp_path / "c", trigger="available_now").await_termination(600)
    assert sorted((r["v"], r["day"]) for r in out.rows()) == [(i, i % 2) for i in range(len(names))]
    assert sorted(r["position"].removesuffix(" row 1") for r in bad.rows()) == sorted(f"bad {name}.{kind}" for name in names)
