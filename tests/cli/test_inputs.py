"""The files of ``penstock match``, before Spark is started."""

from __future__ import annotations

import gzip
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.inputs import check_beginnings, found_files, local, read_by_spark
from penstock.errors import DeclarationError

NAMED = [("order_by", "at"), ("type", "kind")]
_buffer = pa.BufferOutputStream()
pq.write_table(pa.table({"at": [1], "kind": ["A"]}), _buffer)
PARQUET = _buffer.getvalue().to_pybytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_csv", ".csv").replace("_json", ".json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def test_folders_and_patterns_mean_files_at_any_depth_for_spark_too(folder):
    folder(top_csv="", sub__in_csv="", sub__deep__er_csv="", _hidden_csv="", sub___gone__x_csv="")
    everything = ["sub/deep/er.csv", "sub/in.csv", "top.csv"]
    assert sorted(found_files(["**/[!_]*.csv"])) == sorted([*everything, "sub/_gone/x.csv"])
    assert sorted(found_files(["."])) == sorted(read_by_spark(["."])) == everything
    assert read_by_spark(["sub"]) == found_files(["sub"]) == ["sub/deep/er.csv", "sub/in.csv"]
    assert read_by_spark(["*.csv"]) == ["top.csv"]


def test_folder_whose_subfolders_give_columns_is_read_as_a_whole(folder):
    folder(**{"logs__day=1__a_csv": "", "logs__day=2__a_csv": ""})
    assert read_by_spark(["logs"]) == ["logs"]
    assert found_files(["logs"]) == ["logs/day=1/a.csv", "logs/day=2/a.csv"]
    check_beginnings(["logs/day=1/a.csv"], "csv", named=[("order_by", "day")])


def test_file_whose_name_looks_like_a_pattern_is_itself(folder):
    folder(**{"a[1]_csv": "", "b{x}_csv": ""})
    assert found_files(["a[1].csv"]) == ["a[1].csv"]
    assert read_by_spark(["a[1].csv", "b*"]) == [r"a\[1\].csv", r"b\{x\}.csv"]


def test_addresses_are_left_to_spark_but_those_of_this_machine(folder):
    assert read_by_spark(["s3://bucket/*.csv"]) == found_files(["s3://bucket/*.csv"]) == ["s3://bucket/*.csv"]
    assert local("file:///a%20b.csv") == "/a b.csv"
    assert local("s3://bucket/a.csv") == "s3://bucket/a.csv"


@pytest.mark.parametrize(
    ("kind", "contents", "message"),
    [
        (
            "csv",
            ["1,A\n2,B\n"],
            "order_by names column 'at', but the first line of '0', which must name the columns with commas",
        ),
        ("csv", ["at;kind\n1;A\n"], "with commas between, is 'at;kind'; correct the one or the other."),
        ("csv", ["at,kin\n1,A\n"], "type names column 'kind', which does not exist; did you mean 'kin'?"),
        (
            "csv",
            ["at,kind\n", "kind,at\n"],
            "The first line of '1' is 'kind,at', but that of '0' names at, kind; all CSV files",
        ),
        ("csv", [b"PAR1\x15\x04"], "'0' is not a text file; give --format parquet if it is Parquet."),
        ("json", ["at,kind\n"], "'0' does not begin with a line of JSON but with 'at,kind'; put one object on each line"),
        ("json", ['{\n  "at": 1\n}\n'], "'0' does not begin with a line of JSON but with '{';"),
        ("json", ["7\n"], "'0' does not begin with a line of JSON but with '7';"),
        ("parquet", ["at,kind\n"], "'0' is not a Parquet file; give --format csv or json if it is one of these."),
        ("parquet", [""], "'0' is empty, not a Parquet file"),
        ("parquet", [PARQUET, ""], "'1' is empty, not a Parquet file, which has columns even without rows; write it again, or"),
    ],
)
def test_file_that_holds_something_else_is_told_before_spark_is_started(kind, contents, message, folder):
    folder(**{str(i): content for i, content in enumerate(contents)})
    with pytest.raises(DeclarationError, match=re.escape(message)):
        check_beginnings([str(i) for i in range(len(contents))], kind, named=NAMED)


def test_parquet_file_with_times_that_spark_does_not_read_is_told_with_what_to_do(folder):
    times = pa.array([1, 2], pa.timestamp("ns"))
    buffers = [pa.BufferOutputStream() for _ in range(2)]
    pq.write_table(pa.table({"at": times, "kind": ["A", "B"]}), buffers[0])
    pq.write_table(
        pa.table({"at": times, "kind": ["A", "B"]}), buffers[1], coerce_timestamps="us", allow_truncated_timestamps=True
    )
    folder(fine=buffers[0].getvalue().to_pybytes(), coarse=buffers[1].getvalue().to_pybytes())
    check_beginnings(["coarse"], "parquet", named=NAMED)
    check_beginnings(["fine"], "parquet")  # where --schema is given it may not be among the columns that are read
    with pytest.raises(DeclarationError) as caught:
        check_beginnings(["fine"], "parquet", named=NAMED)
    assert str(caught.value) == (
        "'fine' has times in nanoseconds in its column 'at', which Spark does not read; write them in microseconds, as pandas does with "
        "to_parquet(..., coerce_timestamps='us')."
    )


def test_header_with_quotes_is_read_in_the_dialect_of_the_file(folder):
    folder(rfc='"at","say ""kind"""\n', other='"at","say \\"kind\\""\n')
    named = [("order_by", "at"), ("type", 'say "kind"')]
    check_beginnings(["rfc"], "csv", named=named)
    check_beginnings(["other"], "csv", named=named, escape="\\")
    with pytest.raises(DeclarationError, match="type names column"):
        check_beginnings(["other"], "csv", named=named)


def test_packed_file_that_is_none_is_told(folder):
    folder(**{"a_csv.gz": "at,kind\n"})
    with pytest.raises(
        DeclarationError, match=r"^'a\.csv\.gz' cannot be read: Not a gzipped file .+; fix it, or leave it out\.$"
    ):
        check_beginnings(["a.csv.gz"], "csv", named=NAMED)


@pytest.mark.parametrize(
    ("kind", "contents"),
    [
        ("csv", ["", "\n\n", "\ufeffat,kind\n1,A\n", "at,kind\r\n", '"at","kind"\n', gzip.compress(b"at,kind\n")]),
        ("csv", ["at,kind,,x,X\n"]),
        ("json", ["", '\n{"at": 1}\n', '[{"at": 1}, {"at": 2}]\n', '{"x": "' + "x" * (1 << 20) + '"}\n', "{}\n"]),
        ("parquet", [b"PAR1..."]),
    ],
)
def test_file_that_may_be_what_it_is_taken_for_passes(kind, contents, folder):
    names = [
        f"{i}.gz" if isinstance(content, bytes) and content[:1] == b"\x1f" else str(i) for i, content in enumerate(contents)
    ]
    folder(**dict(zip(names, contents, strict=True)))
    check_beginnings(names, kind, named=NAMED)


@pytest.mark.parametrize("name", ["x3", "X4", "_c2"])
def test_columns_that_spark_names_itself_can_be_named(name, folder):
    folder(a_csv="at,kind,,x,X\n")
    check_beginnings(["a.csv"], "csv", named=[("order_by", name)])
