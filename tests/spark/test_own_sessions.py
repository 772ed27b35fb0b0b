"""Sessions of users, whatever they say: results are the same, and the sessions stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

AT_NIGHT = "id,at\n1,2026-03-08 02:30:00\n2,2026-03-08 03:30:00\n3,2026-03-08 12:00:00\n"  # New York has no 02:30 on this day
SESSION = """
    from penstock.spark.session.java import ensure_java
    ensure_java()
    from pyspark.sql import SparkSession
    def users(**conf):
        built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name, value in conf.items():
            built = built.config(name.replace("_", "."), value)
        return built.getOrCreate()
"""


def run_python(code: str, cwd, python=sys.executable, **environment) -> subprocess.CompletedProcess[str]:
    """Run code as a user's script, by a python that is called by its path."""
    (cwd / "script.py").write_text(textwrap.dedent(SESSION) + textwrap.dedent(code))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    paths = [str(Path(sys.base_prefix) / "bin"), *env["PATH"].split(os.pathsep)]  # a user's functions run in the first python3
    env |= {"PATH": os.pathsep.join(p for p in paths if shutil.which("penstock", path=p) is None)}
    return subprocess.run([python, "script.py"], capture_output=True, text=True, check=False, cwd=cwd, env=env | environment)


def test_flows_and_patterns_in_a_session_of_another_zone_and_an_old_dialect_are_computed_as_in_any_other(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(AT_NIGHT)
    answer = run_python(
        """
        import penstock as ps
        from penstock.spark.patterns.match_files import FileMatches
        from penstock.spark.session.local import session

        spark = users()
        spark.conf.set("spark.sql.ansi.enabled", "false")
        spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
        spark.conf.set("spark.sql.parser.escapedStringLiterals", "true")
        spark.udf.register("plus_one", lambda x: x + 1, "long")
        before = spark.conf.getAll

        def with_names(df):
            names = df.sparkSession.createDataFrame([(1, "one"), (2, "two"), (3, "three")], "id long, name string")
            return df.join(names, "id")

        def start(name, step=lambda stream: stream):
            flow, out = ps.Flow(name), ps.memory(name)
            night = flow.source("night", ps.files("in", "id long, at timestamp", format="csv"), time="at")
            night = step(night.select("id", "at", h="hour(at)", text="cast(at as string)", next="plus_one(id)"))
            counts = night.transform(with_names, "id long, at timestamp, h int, text string, next long, name string").key_by("id").aggregate(n=ps.count(), h=ps.max("h"), name=ps.max("name"))
            counts.sink(out)
            most = []

            def note(table, epoch):
                tracker = spark.sparkContext.statusTracker()
                stages = [s for job in tracker._jtracker.getJobIdsForGroup(str(run._loop.engine._query._query.runId))
                          for s in tracker.getJobInfo(job).stageIds]
                most.append(max(tracker.getStageInfo(s).numTasks for s in stages if tracker.getStageInfo(s)))

            night.sink(ps.foreach_epoch(note))
            seen = ps.memory(name + " seen")
            night.sink(seen)
            run = flow.start(spark, checkpoint=name, trigger="available_now")
            run.await_termination(300)
            print(sorted((r["id"], r["n"], r["h"], r["name"]) for r in out.rows()))
            print(sorted((r["text"], r["next"], r["at"].strftime("%H:%M %Z")) for r in seen.rows()))
            print("few tasks", max(most) <= 4)

        start("first")
        print(session() is spark, SparkSession.getActiveSession() is spark, spark.conf.getAll == before)
        start("second")
        nights = spark.createDataFrame([(1, 7), (2, 8)], "id long, h long").selectExpr(
            "id", "timestamp_seconds(1772928000 + h * 3600) as at", "id / 0 as none")
        found = ps.match(nights, "SELECT * WHERE a ; b", order_by="at", define={"a": "hour(at) = 7", "b": "hour(at) = 8"})
        print(found.count(), found.sparkSession is spark, nights.first().none)
        files = FileMatches(spark, "SELECT NONE WHERE a ; b", ["in/a.csv"], "csv", order_by="at",
                            define={"a": "hour(at) = 2", "b": "hour(at) = 3"})
        print(list(files.lines()), spark.conf.getAll == before)
        """,
        tmp_path,
        TZ="America/New_York",
    )
    rows = "[(1, 1, 2, 'one'), (2, 1, 3, 'two'), (3, 1, 12, 'three')]\n"
    texts = [f"2026-03-08 {at}:00" for at in ("02:30", "03:30", "12:00")]
    seen = f"{[(text, i + 2, f'{text[11:16]} UTC') for i, text in enumerate(texts)]}\n"
    lines = """['{"match_start":"2026-03-08T02:30:00.000Z","match_end":"2026-03-08T03:30:00.000Z"}'] True\n"""
    each = rows + seen + "few tasks True\n"
    assert answer.stdout == f"{each}True True True\n{each}1 True None\n{lines}", answer.stderr[-3000:]


def test_workers_that_know_no_penstock_are_refused_in_a_sentence_before_anything_is_read(tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    answer = run_python(
        """
        import os
        import penstock as ps
        from penstock.errors import DeclarationError

        spark = users()
        for tried in range(2):
            try:
                if tried:
                    ps.match(spark.range(3), "SELECT * WHERE a", order_by="id", define={"a": "id > 0"})
                else:
                    flow = ps.Flow("refused")
                    flow.source("s", ps.rate(1)).sink(ps.noop())
                    flow.start(spark, checkpoint="checkpoint")
            except DeclarationError as error:
                print(error)
        print(os.path.exists("checkpoint"))
        """,
        tmp_path,
        PYSPARK_PYTHON=str(bare),
    )
    version = ".".join(map(str, sys.version_info[:2]))
    refused = (
        f"The tasks of this Spark session are run by the Python {bare}, which cannot run penstock (ModuleNotFoundError: No module "
        f"named 'penstock'); start the session with PYSPARK_PYTHON naming a Python {version} that has it, here {sys.executable}.\n"
    )
    assert answer.stdout == f"{refused}{refused}False\n", answer.stderr[-3000:]


def test_sources_that_go_by_another_zone_are_refused_and_flows_run_beside_one_another_until_the_session_stops(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(AT_NIGHT)
    answer = run_python(
        """
        import threading, time
        import penstock as ps
        from penstock.errors import DeclarationError, PenstockError

        spark = users(spark_python_worker_reuse="false")
        read = lambda **options: spark.readStream.schema("id long, at timestamp").options(header="true", **options).csv("in")
        rate = spark.readStream.format("rate").option("rowsPerSecond", 50).load()

        def flow_of(name, frame, key="value"):
            flow, out = ps.Flow(name), ps.memory(name)
            flow.source("given", frame).key_by(key).aggregate(n=ps.count()).sink(out)
            return flow, out

        for number, frame in enumerate([read(), rate.selectExpr("value", "hour(timestamp) as h"), read(timeZone="UTC")]):
            try:
                flow, out = flow_of(f"refused {number}", frame, frame.columns[0])
                flow.start(spark, checkpoint=f"refused-{number}", trigger="available_now").await_termination(300)
                print(sorted(row["n"] for row in out.rows()))
            except DeclarationError as error:
                print(error)

        given = [flow_of(f"beside {i}", rate) for i in range(2)]
        runs = [None, None]
        def start(i):
            runs[i] = given[i][0].start(spark, checkpoint=f"beside-{i}", workers=1)
        before = spark.conf.getAll
        threads = [threading.Thread(target=start, args=(i,)) for i in range(2)]
        [t.start() for t in threads], [t.join() for t in threads]
        events = spark.range(4).selectExpr("id", "timestamp_seconds(1772928000 + id * 3600) as at")
        print(ps.match(events, "SELECT * WHERE a ; b", order_by="at", define={"a": "hour(at) = 1", "b": "hour(at) > 1"}).count())
        until = time.monotonic() + 120
        while time.monotonic() < until and not all(out.rows() for _, out in given):
            time.sleep(0.2)
        print(all(out.rows() for _, out in given), spark.conf.getAll == before, SparkSession.getActiveSession() is spark)
        spark.stop()
        for run in runs:
            try:
                print(run.await_termination(60), run.active)
            except PenstockError as error:
                print(type(error).__name__, "\\n" in str(error), str(error))
        again = users()
        flow, out = flow_of("after", again.readStream.format("rate").load())
        run = flow.start(again, checkpoint="after")
        until = time.monotonic() + 60
        while time.monotonic() < until and not out.rows():
            time.sleep(0.2)
        run.shutdown(drain=False)
        print(bool(out.rows()))
        """,
        tmp_path,
        TZ="America/New_York",
    )
    lines = answer.stdout.splitlines()
    utc = "goes by the zone of its session, America/New_York, but a flow is computed in UTC; set spark.sql.session.timeZone=UTC before the DataFrame is declared."
    assert lines[0] == f"Source 'given' is a DataFrame whose step that reads times from csv {utc}", answer.stderr[-3000:]
    assert lines[1] == f"Source 'given' is a DataFrame whose step hour(timestamp) {utc}"
    assert lines[2:5] == ["[1, 1, 1]", "2", "True True True"], answer.stderr[-3000:]
    ended = "PenstockError False The Spark session was stopped while flow 'beside {}' ran; the epoch that it was in was not committed, so start the flow again in another session."
    assert lines[5:] == [ended.format(0), ended.format(1), "True"], answer.stderr[-3000:]
    assert not list(tmp_path.glob("refused-[01]"))
