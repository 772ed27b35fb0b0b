"""`Sink.held`: the mark as it is stored, without a claim; and `Mark.trail`, which every sink keeps."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

import penstock as ps
from penstock import sinks
from penstock.errors import FencedError, SinkError

TRAIL = "ü ☃ '\"\\ \n:x %s {}" * 5_000
"""Some 100 KB."""


class Crash(Exception):  # noqa: N818  (it is no error of penstock's)
    """Stands for the process dying."""


def opened(rig, make, *, run=1, epoch=-1, **options):
    sink = rig.sink(**options)
    sink.open(make.mark(epoch, run=run, **{k: options.pop(k) for k in ("flow", "output") if k in options}), make.schema)
    return sink


def files(rig):
    """All that is there, where the rig keeps files."""
    root = Path(rig.url.partition(":///")[2] or rig.url).parent if rig.system in ("sqlite", "duckdb") else Path(rig.url)
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")} if rig.system != "postgresql" else {}


def test_held_when_nothing_is_there_then_is_none_and_nothing_is_made(rig):
    before = files(rig)
    assert rig.sink().held("out") is None
    assert files(rig) == before
    if rig.system.startswith("postgresql"):
        assert rig.query("SELECT to_regclass('penstock_marks'), to_regclass('results')") == [(None, None)]


def test_held_when_folder_or_file_is_missing_then_is_none(tmp_path):
    for sink in (
        sinks.sql(f"sqlite:///{tmp_path}/no/r.db", "t"),
        sinks.sql(f"duckdb:///{tmp_path}/no/r.duckdb", "t"),
        sinks.parquet(tmp_path / "no" / "p"),
    ):
        assert sink.held("out") is None
    assert list(tmp_path.iterdir()) == []


def test_held_when_only_claimed_then_is_none(rig, make):
    opened(rig, make)
    assert rig.sink().held("out") is None


def test_held_when_written_then_is_the_mark_with_all_fields_and_claims_nothing(rig, make):
    sink = opened(rig, make, epoch=3)
    written = make.mark(4, frontier=-(2**63), positions={"orders/0": 17, "ö/1": 2**62}, trail=TRAIL)
    sink.write([make.batch((1, "a"))], written)
    before = files(rig)
    for asked in (sink, rig.sink()):
        assert asked.held("out") == written
        assert asked.held("other") is None
    assert files(rig) == before
    assert sink.write([make.batch((2, "b"))], make.mark(5)) == 1
    assert rig.sink().held("out") == make.mark(5)
    sink.close()
    assert sink.held("out") == make.mark(5)


def test_held_when_another_output_was_looked_up_then_the_open_sink_writes_its_own(durable_rig, make):
    sink = opened(durable_rig, make)
    other = durable_rig.sink()
    other.open(make.mark(-1, output="other"), make.schema)
    other.write([make.batch((7, "o"))], make.mark(0, output="other", trail="theirs"))
    assert sink.held("other") == make.mark(0, output="other", trail="theirs")
    assert sink.write([make.batch((1, "a"))], make.mark(0, trail="mine")) == 1
    assert sink.held("out") == make.mark(0, trail="mine")


def test_held_when_of_another_flow_then_says_which(rig, make):
    sink = rig.sink()
    sink.open(make.mark(-1, flow="flow-b"), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0, flow="flow-b"))
    assert rig.sink().held("out") == make.mark(0, flow="flow-b")


def test_held_when_a_newer_run_has_claimed_then_has_its_run_and_the_trail_of_the_last_write(rig, make):
    old = opened(rig, make)
    old.write([make.batch((1, "a"))], make.mark(0, trail="kept"))
    new = opened(rig, make, run=5, epoch=0)
    assert rig.sink().held("out") == make.mark(0, run=5, trail="kept")
    with pytest.raises(FencedError):
        old.write([make.batch((2, "b"))], make.mark(1, trail="stale"))
    assert rig.sink().held("out") == make.mark(0, run=5, trail="kept")
    new.write([], make.mark(1, run=5, trail="new"))
    assert rig.sink().held("out") == make.mark(1, run=5, trail="new")


def test_held_when_a_write_crashed_then_is_the_mark_before(rig, make):
    sink = opened(rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0, trail="before"))

    def rows():
        yield make.batch((2, "b"))
        raise Crash

    with pytest.raises(Crash):
        sink.write(rows(), make.mark(1, trail="after"))
    assert rig.sink().held("out") == make.mark(0, trail="before")


def test_held_when_a_writer_holds_the_lock_then_is_the_mark_before_or_after_it(rig, make):
    sink = opened(rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0, trail="before"))
    found, asked = [], threading.Thread(target=lambda: found.append(rig.sink().held("out")))

    def rows():
        yield make.batch((2, "b"))
        asked.start()
        asked.join(5 if rig.system != "duckdb" else 0.2)
        yield make.batch((3, "c"))

    sink.write(rows(), make.mark(1, trail="after"))
    asked.join(30)
    # A file of DuckDB is open to one connection, so there the look waits until the epoch is stored.
    assert found == [make.mark(1, trail="after") if rig.system == "duckdb" else make.mark(0, trail="before")]


def test_held_when_a_write_to_sqlite_was_killed_then_is_the_mark_before(sqlite_rig, make, tmp_path):
    sink = opened(sqlite_rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0))
    path = Path(sqlite_rig.url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("UPDATE penstock_marks SET epoch = 1")
    connection.executemany("INSERT INTO results VALUES (?, ?)", [(n, "x" * 500) for n in range(1_000)])
    (tmp_path / "killed").mkdir()
    for file in (path, Path(f"{path}-journal")):
        shutil.copy(file, tmp_path / "killed")
    connection.close()
    assert sinks.sql(f"sqlite:///{tmp_path}/killed/{path.name}", "results").held("out") == make.mark(0)


@pytest.mark.parametrize("place", ["{}/a b%20#1.db", "{}/a.db?timeout=7", "file:{}/a%20b.db?uri=true"])
def test_held_when_the_url_of_sqlite_is_odd_then_its_file_is_found(make, tmp_path, place):
    url = f"sqlite:///{place.format(tmp_path)}"
    assert sinks.sql(url, "t").held("out") is None
    sink = sinks.sql(url, "t")
    sink.open(make.mark(-1), make.schema)
    sink.write([], make.mark(0))
    assert sinks.sql(url, "t").held("out") == make.mark(0)


def test_held_when_the_table_is_gone_then_is_refused_as_by_open(sql_rig, make):
    sink = opened(sql_rig, make)
    assert sql_rig.sink("elsewhere").held("out") is None
    sink.write([make.batch((1, "a"))], make.mark(0))
    sink.close()
    sql_rig.query("DROP TABLE results")
    with pytest.raises(SinkError, match="is gone, but its mark says that it held output 'out' up to epoch 0: restore it"):
        sql_rig.sink().held("out")


def test_held_when_storage_is_not_reachable_then_is_refused(make, tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(SinkError, match="refused to read the mark of output 'out'"):
        sinks.sql(f"sqlite:///{tmp_path}/text.db", "t").held("out")
    with pytest.raises(SinkError, match="refused to read the mark of output 'out'"):
        sinks.sql("postgresql://me:secret@127.0.0.1:1/d", "t").held("out")
    (tmp_path / "p" / "_penstock" / "out").mkdir(parents=True)
    (tmp_path / "p" / "_penstock" / "out" / "mark-0000000001-0000000001.json").write_text("{")
    with pytest.raises(SinkError, match="damaged manifest"):
        sinks.parquet(tmp_path / "p").held("out")


def test_open_when_marks_are_of_the_version_before_then_they_are_taken_over(durable_rig, make):
    if durable_rig.system == "redis":
        pytest.skip("there was no such sink then")
    sink = opened(durable_rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0, positions={"s/0": 3}, trail="unknown then"))
    sink.close()
    if durable_rig.system == "parquet":
        (manifest,) = Path(durable_rig.url, "results", "_penstock", "out").glob("mark-*-0000000001.json")
        lines = [line for line in manifest.read_text().splitlines() if "trail" not in line]
        manifest.write_text("\n".join(lines).replace('"run": 1,', '"run": 1'))
    else:
        fields = "target, output, flow, run, epoch, frontier, positions, kept"
        values = durable_rig.query(f"SELECT {fields} FROM penstock_marks")[0]
        durable_rig.query("DROP TABLE penstock_marks")
        durable_rig.query(
            "CREATE TABLE penstock_marks (target VARCHAR(255) NOT NULL, output VARCHAR(255) NOT NULL, flow VARCHAR(255) NOT NULL, "
            "run BIGINT NOT NULL, epoch BIGINT NOT NULL, frontier BIGINT NOT NULL, positions TEXT NOT NULL, kept TEXT NOT NULL, "
            "PRIMARY KEY (target, output))"
        )
        durable_rig.query(f"INSERT INTO penstock_marks ({fields}) VALUES ({', '.join(map(repr, values))})")
    assert durable_rig.sink().held("out") == make.mark(0, positions={"s/0": 3})
    again = durable_rig.sink()
    assert again.open(make.mark(0, run=2), make.schema) == make.mark(0, positions={"s/0": 3})
    assert again.write([make.batch((2, "b"))], make.mark(1, run=2, trail="now")) == 1
    assert durable_rig.sink().held("out") == make.mark(1, run=2, trail="now")


def test_rewind_then_stores_the_trail_of_its_mark(rig, make):
    options = {} if rig.system in ("memory", "parquet", "redis") else {"mode": "upsert", "key": ["n"]}
    sink = opened(rig, make, **options)
    for epoch in range(3):
        sink.write([make.batch((epoch, "a"))], make.mark(epoch, trail=f"{epoch}"))
    sink.rewind(0, make.mark(3, trail="back"))
    assert rig.sink(**options).held("out") == make.mark(3, trail="back")


def test_held_of_a_sink_in_memory_then_is_what_this_object_was_given(make):
    handed = []
    for sink in (ps.console(), ps.foreach_epoch(lambda table, epoch: handed.append(epoch))):
        assert sink.held("out") is None
        sink.open(make.mark(-1), make.schema)
        assert sink.held("out") is None
        sink.write([], make.mark(0, trail="kept"))
        assert sink.held("out") == make.mark(0, trail="kept")
        assert sink.held("other") is None
    nothing = ps.noop()
    nothing.open(make.mark(-1), make.schema)
    nothing.write([], make.mark(0))
    assert nothing.held("out") is None
