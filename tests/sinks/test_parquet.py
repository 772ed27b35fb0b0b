"""What only the Parquet sink does: files, leftovers, manifests."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
import threading
from decimal import Decimal
from types import SimpleNamespace

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock import sinks
from penstock.errors import FencedError, SinkAheadError, SinkError
from penstock.sinks import parquet_parts
from penstock.sinks.parquet import KEPT_MANIFESTS


class Crash(Exception):  # noqa: N818  (it is no error of penstock's)
    """Stands for the process dying."""


def files(path):
    return sorted(found.name for found in path.glob("*.parquet"))


def staged(path):
    return sorted(found.name for found in (path / "_penstock" / "staging").iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def sink(path, make):
    made = sinks.parquet(path)
    made.open(make.mark(-1), make.schema)
    return made


def test_write_when_epochs_then_one_named_file_each_and_readers_see_only_rows(sink, path, make):
    sink.write([make.batch((1, "a")), make.batch((2, "b"))], make.mark(0))
    sink.write([], make.mark(1))
    sink.write([make.batch((3, "c"))], make.mark(12))
    assert files(path) == ["epoch-000000000-out-000.parquet", "epoch-000000012-out-000.parquet"]
    assert pd.read_parquet(path).to_dict("records") == [{"n": 1, "word": "a"}, {"n": 2, "word": "b"}, {"n": 3, "word": "c"}]
    manifest = json.loads(max((path / "_penstock" / "out").glob("mark-*.json")).read_text())
    assert (manifest["files"], manifest["rows"]) == (["epoch-000000012-out-000.parquet"], 1)
    assert staged(path) == []


def test_write_while_rows_are_written_then_readers_see_nothing_of_them(sink, path, make):
    seen = []

    def rows():
        yield make.batch((1, "a"))
        seen.append(files(path))

    sink.write(rows(), make.mark(0))
    assert seen == [[]]
    assert len(files(path)) == 1


def crash_before_manifest(sink, make, monkeypatch, *rows, epoch=0):
    """Leaves what a process leaves that dies after the data file was moved."""
    with monkeypatch.context() as patch:
        patch.setattr(type(sink), "_commit", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            sink.write([make.batch(*rows)], make.mark(epoch))


def test_write_when_crashed_between_moves_then_rerun_replaces_the_leftover(sink, path, make, monkeypatch):
    crash_before_manifest(sink, make, monkeypatch, (1, "old"), (2, "old"))
    assert files(path) == ["epoch-000000000-out-000.parquet"]
    sink.write([make.batch((1, "new"))], make.mark(0))
    assert pd.read_parquet(path).to_dict("records") == [{"n": 1, "word": "new"}]


def test_write_when_crashed_and_rerun_is_empty_then_leftover_is_gone(sink, path, make, monkeypatch):
    crash_before_manifest(sink, make, monkeypatch, (1, "old"))
    sink.write([], make.mark(0))
    assert files(path) == []


def test_open_when_crashed_between_moves_then_leftovers_of_this_output_are_removed(sink, path, make, monkeypatch):
    sink.write([make.batch((1, "a"))], make.mark(0))
    crash_before_manifest(sink, make, monkeypatch, (2, "old"), epoch=1)
    other = sinks.parquet(path)
    other.open(make.mark(-1, output="other"), make.schema)
    other.write([make.batch((9, "other"))], make.mark(5, output="other"))
    (path / "_penstock" / "staging" / "run-1-epoch-000000001-out-000.parquet").write_bytes(b"half")
    assert sinks.parquet(path).open(make.mark(0, run=2), make.schema) == make.mark(0)
    assert files(path) == ["epoch-000000000-out-000.parquet", "epoch-000000005-other-000.parquet"]
    assert staged(path) == []


def test_write_when_batches_crash_then_nothing_is_left_in_staging(sink, path, make):
    def crashing():
        yield make.batch((1, "a"))
        raise Crash

    with pytest.raises(Crash):
        sink.write(crashing(), make.mark(0))
    assert staged(path) == []
    assert files(path) == []


def test_write_when_replaced_while_rows_are_staged_then_is_fenced(sink, path, make):
    def rows():
        yield make.batch((1, "a"))
        sinks.parquet(path).open(make.mark(-1, run=2), make.schema)

    with pytest.raises(FencedError):
        sink.write(rows(), make.mark(0))
    assert files(path) == []
    assert staged(path) == []


def test_write_when_two_runs_commit_at_once_then_local_lock_lets_one_look_at_a_time(sink, path, make, monkeypatch):
    """The old run has looked at the mark and is about to move its file when the new run opens."""
    looked, opened = threading.Event(), threading.Event()
    move = type(sink)._move

    def slow_move(self, source, target):
        if self is sink and target.endswith(".parquet"):
            looked.set()
            opened.wait(0.5)
        move(self, source, target)

    monkeypatch.setattr(type(sink), "_move", slow_move)
    old = threading.Thread(target=sink.write, args=([make.batch((1, "old"))], make.mark(0)))
    old.start()
    assert looked.wait(10)
    held = sinks.parquet(path).open(make.mark(-1, run=2), make.schema)
    opened.set()
    old.join(10)
    assert held == make.mark(0)  # without the lock: None, and the old rows would appear later


def test_open_when_files_have_no_mark_then_is_refused_and_they_stay(sink, path, make):
    sink.write([make.batch((1, "a"))], make.mark(0))
    shutil.rmtree(path / "_penstock")
    with pytest.raises(SinkAheadError, match="1 files of output 'out' but no mark"):
        sinks.parquet(path).open(make.mark(-1), make.schema)
    assert len(files(path)) == 1


def test_open_when_columns_changed_then_is_refused(sink, path, make):
    sink.write([make.batch((1, "a"))], make.mark(0))
    for schema in (pa.schema([("n", pa.string()), ("word", pa.string())]), pa.schema([("word", pa.string())])):
        with pytest.raises(SinkError, match="holds column 'n' as int64, but the output now has it as"):
            sinks.parquet(path).open(make.mark(0, run=2), schema)


def test_open_when_manifest_is_damaged_then_is_refused(sink, path, make):
    next((path / "_penstock" / "out").glob("mark-*.json")).write_text('{"mark": ')
    with pytest.raises(SinkError, match="damaged manifest"):
        sinks.parquet(path).open(make.mark(-1, run=2), make.schema)


def test_manifests_when_many_epochs_then_history_is_bounded(sink, path, make):
    for epoch in range(KEPT_MANIFESTS * 2):
        sink.write([], make.mark(epoch))
    assert len(list((path / "_penstock" / "out").glob("mark-*.json"))) == KEPT_MANIFESTS
    assert sinks.parquet(path).open(make.mark(KEPT_MANIFESTS * 2 - 1, run=2), make.schema).epoch == KEPT_MANIFESTS * 2 - 1


def test_manifest_of_an_old_run_when_written_late_then_is_not_believed(path, make):
    """On an object store nothing keeps an old run from writing its manifest; the highest run must still win."""
    old, new = sinks.parquet(path), sinks.parquet(path)
    old.open(make.mark(-1), make.schema)
    new.open(make.mark(-1, run=2), make.schema)
    text = json.loads(min((path / "_penstock" / "out").glob("mark-*.json")).read_text())
    text["mark"]["epoch"] = 9
    (path / "_penstock" / "out" / "mark-0000000001-0000000010.json").write_text(json.dumps(text))
    assert new.write([make.batch((1, "a"))], make.mark(0, run=2)) == 1


@pytest.mark.parametrize("output", ["late rows/ä", "_hidden", "a.b", "staging", "out-0"])
def test_output_when_name_is_odd_then_files_are_kept_apart(path, make, output):
    sink = sinks.parquet(path)
    sink.open(make.mark(-1, output=output), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0, output=output))
    assert len(pd.read_parquet(path)) == 1
    assert sinks.parquet(path).open(make.mark(0, run=2, output=output), make.schema) == make.mark(0, output=output)
    assert len(files(path)) == 1
    assert staged(path) == []


def test_path_when_uri_then_is_the_same_directory(sink, path, make):
    sink.write([make.batch((1, "a"))], make.mark(0))
    assert sinks.parquet(path.as_uri()).open(make.mark(0, run=2), make.schema) == make.mark(0)


def test_path_when_no_local_file_system_then_works_without_lock(tmp_path, make, monkeypatch):
    """Any other file system of pyarrow, here the one in a sub-tree, which is not LocalFileSystem."""
    other = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    # By sys.modules: the name penstock.sinks.parquet is the function.
    seen = SimpleNamespace(**vars(pafs) | {"FileSystem": SimpleNamespace(from_uri=lambda _: (other, "bucket/results"))})
    monkeypatch.setattr(sys.modules["penstock.sinks.parquet"], "fs", seen)
    sink = sinks.parquet("s3://bucket/results")
    sink.open(make.mark(-1), make.schema)
    assert sink.write([make.batch((1, "a"))], make.mark(0)) == 1
    assert sinks.parquet("s3://bucket/results").open(make.mark(0, run=2), make.schema) == make.mark(0)
    assert files(tmp_path / "bucket" / "results") == ["epoch-000000000-out-000.parquet"]
    with pytest.raises(FencedError):
        sink.write([make.batch((2, "b"))], make.mark(1))


def test_open_when_path_is_a_file_then_is_refused(tmp_path, make):
    (tmp_path / "f").write_text("x")
    with pytest.raises(SinkError, match="could not be opened"):
        sinks.parquet(tmp_path / "f").open(make.mark(-1), make.schema)


# ------------------------------------------------------------------------------------------------------------------ joining

WIDE = pa.table(
    {
        "n": pa.array([1, None, 2**62], pa.int64()),
        "text": pa.array(["", "ä" * 300, None]),
        "at": pa.array([dt.datetime(1969, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "d": pa.array([Decimal("-1.50"), None, Decimal("9.99")], pa.decimal128(10, 2)),
        "f": pa.array([float("nan"), -0.0, None]),
        "yes": pa.array([True, None, False]),
        "raw": pa.array([b"\x00", b"", None], pa.binary()),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "none": pa.array([None, None, None], pa.date32()),
    }
)


@pytest.mark.parametrize("parts", [2, 20])
def test_join_when_read_by_others_then_they_see_all_row_groups_in_order(tmp_path, parts):
    files = pafs.LocalFileSystem()
    paths = [str(tmp_path / f"part-{i}.parquet") for i in range(parts)]
    tables = [WIDE.slice(i % 3).set_column(0, "n", pa.array(range(10 * i, 10 * i + 3 - i % 3))) for i in range(parts)]
    for path, table in zip(paths, tables, strict=True):
        with parquet_parts.part_file(files, path, WIDE.schema) as writer:
            writer.write_table(table, row_group_size=2)
    joined = str(tmp_path / "joined.parquet")
    parquet_parts.join(files, paths, joined)
    expected = pa.concat_tables(tables)
    found = pq.ParquetFile(joined)
    assert found.metadata.num_rows == expected.num_rows
    assert found.metadata.num_row_groups == sum(-(-t.num_rows // 2) for t in tables)
    assert str(found.read().to_pylist()) == str(expected.to_pylist())  # as text, where NaN is NaN
    assert found.schema_arrow == WIDE.schema
    numbers = duckdb.sql(f"SELECT n, text FROM '{joined}'").fetchall()
    assert numbers == list(zip(expected["n"].to_pylist(), expected["text"].to_pylist(), strict=True))
    assert duckdb.sql(f"SELECT text FROM '{joined}' WHERE n = 10").fetchall() == [(WIDE["text"][1].as_py(),)]
