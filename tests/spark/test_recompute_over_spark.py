"""State computed anew over Spark, from sources, sinks and sessions of all kinds: the sinks hold what a clean run gives, or it is refused."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import recomputed

import penstock as ps
from penstock import cli
from penstock.errors import RecoveryError
from penstock.sinks import parts

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def twice(key, event, state):
    """Two rows for each record."""
    n = (state or 0) + 1
    return [(key, n, event.v), (key, -n, event.v)], n


def in_two(one, other):
    """Sinks of `recomputed.chained` in two SQLite files; the long windows are in the other."""
    return lambda name: ps.sql(f"sqlite:///{other if name == 'long' else one}", name)


def both(folder):
    return recomputed.held(folder / "one.db") | recomputed.held(folder / "other.db")


@pytest.fixture(scope="module")
def lost(spark, tmp_path_factory):
    """A log, sinks that are one epoch apart, an older copy of one of them, what a clean run gives; the checkpoint is lost."""
    folder = tmp_path_factory.mktemp("lost")
    data, sinks = recomputed.records(4, 9), in_two(folder / "one.db", folder / "other.db")
    recomputed.write(folder / "in", data[:4])
    assert recomputed.run(recomputed.chained(folder / "in", sinks, most=1), spark, folder / "checkpoint", drain=False)
    shutil.copy(folder / "other.db", folder / "older.db")
    recomputed.write(folder / "in", data[4:7], 4)
    stop = {"drain": False, "on_step": recomputed.stop_at(("stored short", 3))}
    assert recomputed.run(recomputed.chained(folder / "in", sinks, most=1), spark, folder / "checkpoint", **stop) is None
    recomputed.write(folder / "in", data[7:], 7)
    shutil.copytree(folder / "in", folder / "kept")
    (folder / "clean").mkdir()
    clean = recomputed.chained(folder / "in", in_two(folder / "clean" / "one.db", folder / "clean" / "other.db"), most=None)
    assert recomputed.run(clean, spark, folder / "clean" / "checkpoint")
    return folder


@pytest.fixture
def case(lost, tmp_path):
    """Copies of the sinks, and the log as it was."""
    recomputed.copied(lost / "kept", lost / "in")
    for name in ("one.db", "other.db"):
        shutil.copy(lost / name, tmp_path / name)
    return tmp_path


def again(lost, case, spark, most=None, **options):
    flow = recomputed.chained(lost / "in", in_two(case / "one.db", case / "other.db"), most=most)
    return recomputed.recompute(flow, spark, case / "checkpoint", **options)


def test_checkpoint_when_lost_and_one_sink_older_and_the_log_trimmed_is_computed_from_what_is_needed(lost, case, spark):
    shutil.copy(lost / "older.db", case / "other.db")
    for path in sorted((lost / "in").iterdir())[:6]:
        path.unlink()
    sinks = (case / "one.db").read_bytes(), (case / "other.db").read_bytes()
    with pytest.raises(RecoveryError) as refused:
        again(lost, case, spark)
    found = re.search(
        r"source 'events' is needed from its file (\d) on, and of the 7 files .* the first 6 are gone", str(refused.value)
    )
    assert found, refused.value
    assert ((case / "one.db").read_bytes(), (case / "other.db").read_bytes()) == sinks
    assert not (case / "checkpoint").exists() or not any((case / "checkpoint").iterdir())
    needed = int(found[1])
    assert needed > 1
    for number in range(needed - 1, 6):
        shutil.copy2(lost / "kept" / f"{number:03d}.parquet", lost / "in")
    run = again(lost, case, spark, most=2)
    assert run.recovery["partitions"]["events"] == {"start": needed - 1, "now": 7, "mark": 4, "end": 7}
    assert both(case) == both(lost / "clean")


def _replaced(folder):
    path = folder / "005.parquet"
    was, rows = path.stat(), recomputed.records(99, 1, 21)[0]
    pq.write_table(pa.Table.from_pylist(rows, schema=recomputed.ARROW), path)
    os.utime(path, (was.st_atime, was.st_mtime))


def _dated_anew(folder):
    os.utime(folder / "005.parquet", (1_700_000_005.5, 1_700_000_005.5))


def _one_more(folder):
    shutil.copy(folder / "005.parquet", folder / "0041.parquet")
    os.utime(folder / "0041.parquet", (1_700_000_004.5, 1_700_000_004.5))


CHANGES = {
    "replaced": (_replaced, r"from file:///.*/005\.parquet on: they have another name, size or time"),
    "renamed": (
        lambda f: (f / "005.parquet").rename(f / "5.parquet"),
        r"from file:///.*/5\.parquet on: they have another name",
    ),
    "dated anew": (_dated_anew, r"from file:///.*/005\.parquet on: they have another name, size or time"),
    "one more": (_one_more, r"1 more than then have a time before that of the last one read"),
    "one gone": (lambda f: (f / "005.parquet").unlink(), r"the files of source 'events' are not those"),
}


def test_log_when_it_is_not_the_one_that_the_sinks_rows_came_from_is_refused_before_the_first_output(lost, case, spark):
    found = {}
    for name, (change, _) in CHANGES.items():
        recomputed.copied(lost / "kept", lost / "in")
        change(lost / "in")
        with pytest.raises(RecoveryError, match="Nothing was changed") as refused:
            again(lost, case, spark)
        found[name] = str(refused.value)
        assert both(case) == both(lost), name
    assert {n for n, (_, said) in CHANGES.items() if not re.search(said, found[n])} == set(), found
    recomputed.copied(lost / "kept", lost / "in")
    assert again(lost, case, spark)
    assert both(case) == both(lost / "clean")


def test_recomputation_when_it_follows_its_source_goes_on_with_new_files_and_drains(lost, case, spark):
    last = (lost / "in" / "008.parquet").rename(lost / "008.parquet")
    flow = recomputed.chained(lost / "in", in_two(case / "one.db", case / "other.db"), most=2)
    run = flow.start(spark, checkpoint=str(case / "checkpoint"), workers=2, trigger="1 second", recover="recompute")
    files = lambda: run.progress["sources"].get("events", {}).get("files", 0)  # noqa: E731
    _until(lambda: not run.recovery["active"] and files() == 8, run)
    last.rename(lost / "in" / "008.parquet")
    _until(lambda: files() == 9, run)
    assert run.shutdown(drain=True, timeout=120)
    assert run.exception is None
    assert both(case) == both(lost / "clean")


def _until(true, run):
    deadline = time.monotonic() + 120
    while not true():
        assert run.exception is None, run.exception
        assert time.monotonic() < deadline
        time.sleep(0.1)


APP = """
import penstock as ps

flow = ps.Flow("chained")
events = flow.source("events", ps.files("FOLDER/in", "k string, at timestamp, v long"), time="at", lateness="5 seconds")
short = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
short.sink(ps.sql("sqlite:///one.db", "short"), name="short")
long = short.key_by("k", name="long").window(ps.sliding("40 seconds", "20 seconds")).aggregate(total=ps.sum("total"))
long.sink(ps.sql("sqlite:///other.db", "long"), name="long")
events.late.sink(ps.sql("sqlite:///one.db", "late"), name="late")
"""


def test_command_when_told_to_recompute_says_why_and_where_and_does_so(lost, case, spark, monkeypatch, capfd):
    monkeypatch.chdir(case)
    Path("app.py").write_text(APP.replace("FOLDER", str(lost)))
    command = ["run", "app.py:flow", "--checkpoint", "ckpt", "--trigger", "available_now"]
    assert cli.main(command) == 1
    assert "another flow or checkpoint" in " ".join(capfd.readouterr().err.split())
    told = [*command, "--recover", "recompute"]
    assert cli.main([*told, "--since", "never"]) == 2
    assert "'never'" in capfd.readouterr().err
    assert cli.main([*told, "--since", "2026-01-01T00:00"]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "State is computed anew from the log: Checkpoint" in said
    assert "since=2026-01-01" in said
    assert both(case) == both(lost / "clean")


# ------------------------------------------------------------------------------------------------------------ other sources


def text(kind, rows, number):
    """Records as text, and between them some that are none."""
    lines = []
    for i, row in enumerate(rows):
        at = row["at"].strftime("%Y-%m-%dT%H:%M:%S.000Z")
        lines.append(f"{row['k']},{at},{row['v']}" if kind == "csv" else json.dumps({**row, "at": at}))
        if i % 9 == number:
            lines.append("a,soon,x" if kind == "csv" else '{"k": "a", "at": "soon"')
    return "\n".join((["k,at,v"] if kind == "csv" else []) + lines) + "\n"


@pytest.mark.parametrize(("kind", "bad"), [("csv", True), pytest.param("json", False, marks=pytest.mark.soak)])
def test_text_files_with_malformed_records_in_a_session_of_the_users_own_are_recomputed(spark, tmp_path, kind, bad):
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    own.conf.set("spark.sql.ansi.enabled", "false")
    (tmp_path / "in").mkdir()

    def flow(name, most):
        sink = recomputed.sqlite(tmp_path / name)
        made = ps.Flow("text")
        given = ps.files(str(tmp_path / "in"), recomputed.SCHEMA, kind, max_files_per_epoch=most)
        events = made.source("events", given, time="at", lateness="5 seconds", on_error=sink("bad") if bad else "skip")
        events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v")).sink(sink("short"))
        return made

    def add(numbers):
        for i in numbers:
            path = tmp_path / "in" / f"{i}.{kind}"
            path.write_text(text(kind, data[i], i))
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))

    data = recomputed.records(7, 5)
    add(range(4))
    stop = recomputed.stop_at(("commit", 3))
    assert recomputed.run(flow("half.db", 1), own, tmp_path / "lost", drain=False, on_step=stop) is None
    add([4])
    run = recomputed.recompute(flow("half.db", None), own, tmp_path / "checkpoint")
    assert run.recovery["partitions"]["events"]["end"] == 3
    assert recomputed.run(flow("clean.db", None), own, tmp_path / "clean")
    found = recomputed.held(tmp_path / "half.db")
    assert found == recomputed.held(tmp_path / "clean.db")
    assert not bad or len(found["bad"]) > 5
    assert own.conf.get("spark.sql.session.timeZone") == "America/New_York"


def frames(place, spark, files):
    """Writes files of records with positions; gives a function that makes a source of so many of them per micro-batch."""
    schema = "p string, o long, k string, at timestamp, v long"
    arrow = pa.schema([("p", pa.string()), ("o", pa.int64()), *recomputed.ARROW])
    offsets, rows = {"x": itertools.count(), "y": itertools.count()}, []
    for row in itertools.chain(*recomputed.records(5, files)):
        partition = "xxy"[row["v"] % 3]
        rows.append({"p": partition, "o": next(offsets[partition]), **row})
    place.mkdir()
    for i in range(files):
        path = place / f"{i}.parquet"
        pq.write_table(pa.Table.from_pylist(rows[20 * i : 20 * i + 20], schema=arrow), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
    return lambda most: spark.readStream.schema(schema).option("maxFilesPerTrigger", most).parquet(str(place))


def test_frame_with_positions_when_the_mark_falls_into_a_micro_batch_is_cut_there(spark, tmp_path):
    frame = frames(tmp_path / "in", spark, 6)

    def flow(name, most):
        made, sink = ps.Flow("frame"), recomputed.sqlite(tmp_path / name)
        order = {"position": ("p", "o"), "partitions": ("x", "y")}
        events = made.source("events", frame(most), time="at", lateness="5 seconds", **order)
        windows = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
        windows.sink(sink("short"), name="short")
        events.late.sink(sink("late"), name="late")
        return made

    stop = recomputed.stop_at(("stored short", 3))  # the sinks' marks are behind the second file and the third
    assert recomputed.run(flow("half.db", 1), spark, tmp_path / "lost", drain=False, on_step=stop) is None
    run = recomputed.recompute(flow("half.db", 4), spark, tmp_path / "checkpoint")
    assert {n: p["end"] for n, p in run.recovery["partitions"].items()} == {"events/x": 39, "events/y": 19}
    assert recomputed.run(flow("clean.db", 6), spark, tmp_path / "clean")
    assert recomputed.held(tmp_path / "half.db") == recomputed.held(tmp_path / "clean.db")


def test_running_total_when_its_sink_is_older_and_the_log_is_trimmed_begins_with_a_snapshot(spark, tmp_path):
    def flow(name):
        made = ps.Flow("running")
        events = made.source("events", ps.files(str(tmp_path / "in"), recomputed.SCHEMA, max_files_per_epoch=1), time="at")
        sink = ps.sql(f"sqlite:///{tmp_path / name}", "running", mode="upsert", key=["k"])
        events.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")).sink(sink, name="running")
        return made

    data = recomputed.records(8, 6)
    recomputed.write(tmp_path / "in", data[:3])
    run = flow("half.db").start(spark, checkpoint=str(tmp_path / "c"), workers=1, trigger="100 milliseconds")
    _until(lambda: run.progress["sources"].get("events", {}).get("files") == 3, run)
    assert run.snapshot("kept").wait(60)
    assert run.shutdown(drain=False, timeout=60)
    recomputed.write(tmp_path / "in", data[3:4], 3)
    assert recomputed.run(flow("half.db"), spark, tmp_path / "c", drain=False)
    shutil.copy(tmp_path / "half.db", tmp_path / "older.db")
    recomputed.write(tmp_path / "in", data[4:], 4)
    assert recomputed.run(flow("half.db"), spark, tmp_path / "c", drain=False)
    right = recomputed.held(tmp_path / "half.db")
    shutil.copy(tmp_path / "older.db", tmp_path / "half.db")
    assert recomputed.held(tmp_path / "half.db") != right
    (tmp_path / "in" / "000.parquet").unlink()  # no longer needed
    run = recomputed.recompute(flow("half.db"), spark, tmp_path / "c", drain=False)
    assert "It begins with the state of snapshot 'kept'" in run.recovery["why"]
    assert run.recovery["partitions"]["events"] == {"start": 3, "now": 4, "mark": 4, "end": 4}
    assert recomputed.held(tmp_path / "half.db") == right


# ---------------------------------------------------------------------------------------------------------- sinks of all kinds


def into_all(place, postgres):
    """Sinks by output, in PostgreSQL and Parquet, which stage their rows, and in SQLite and DuckDB, which do not."""
    return {
        "twice": ps.sql(postgres, "twice"),
        "short": ps.sql(f"sqlite:///{place}/s.db", "short"),
        "long": ps.sql(f"duckdb:///{place}/d.duckdb", "long"),
        "late": ps.parquet(place / "late"),
    }


def in_all(place, postgres):
    """What they hold."""
    with psycopg.connect(postgres) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        found = {"twice": connection.execute("SELECT k, n, v FROM twice").fetchall()}
    with duckdb.connect(f"{place}/d.duckdb", read_only=True) as connection:
        found["long"] = connection.execute("SELECT k, cast(window_start AS text), total FROM long").fetchall()
    found["late"] = [tuple(row.values()) for row in pq.read_table(place / "late").to_pylist()]
    return {n: sorted(map(repr, rows)) for n, rows in found.items()} | recomputed.held(place / "s.db")


def test_sinks_of_all_kinds_when_the_run_stops_between_two_hold_each_row_once(
    spark, tmp_path, postgres, postgres_database, monkeypatch
):
    monkeypatch.setattr(parts, "INLINE_BYTES", 0)
    clean_database = f"{postgres_database.partition('?')[0]}_clean?{postgres_database.partition('?')[2]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {clean_database.partition('?')[0].rpartition('/')[2]}")

    def flow(place, url, most):
        place.mkdir(exist_ok=True)
        sinks, made = into_all(place, url), ps.Flow("all")
        given = ps.files(str(tmp_path / "in"), recomputed.SCHEMA, max_files_per_epoch=most)
        events = made.source("events", given, time="at", lateness="5 seconds")
        by_key = events.key_by("k")
        by_key.stateful_map(twice, "k string, n long, v long").sink(sinks["twice"], name="twice")
        short = by_key.window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
        short.sink(sinks["short"], name="short")
        long = short.key_by("k", name="long").window(ps.tumbling("40 seconds")).aggregate(total=ps.sum("total"))
        long.sink(sinks["long"], name="long")
        events.late.sink(sinks["late"], name="late")
        return made

    recomputed.write(tmp_path / "in", recomputed.records(6, 5))
    half = tmp_path / "half"
    stop = {"drain": False, "on_step": recomputed.stop_at(("stored twice", 3))}
    assert recomputed.run(flow(half, postgres_database, 1), spark, tmp_path / "lost", **stop) is None
    for name in ("stored short", "during long", "computed late"):
        hook = recomputed.stop_at((name, 1))
        assert recomputed.recompute(flow(half, postgres_database, 2), spark, tmp_path / "checkpoint", on_step=hook) is None, (
            name
        )
    assert recomputed.recompute(flow(half, postgres_database, 1), spark, tmp_path / "checkpoint")
    assert recomputed.run(flow(tmp_path / "clean", clean_database, None), spark, tmp_path / "c")
    found, right = in_all(half, postgres_database), in_all(tmp_path / "clean", clean_database)
    assert len(right["twice"]) > 100
    assert found == right
    with psycopg.connect(postgres_database) as connection:
        assert not connection.execute(r"SELECT relname FROM pg_class WHERE relname LIKE 'penstock\_part\_%'").fetchall()
