"""What the tests of recomputation over Spark share: a small log, flows over it, and runs that stop at a step.

What a test must find in the sinks is what a clean run over the whole log gives: of the same flow in the harness, or over Spark.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

SCHEMA = "k string, at timestamp, v long"
ARROW = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Stopped(Exception):  # noqa: N818
    """Raised where a run is to stop."""


def records(seed, files, per_file=20):
    """By file, its records; some come late."""
    dice, now, out = random.Random(seed), 0, []
    for i in range(files):
        rows = []
        for j in range(per_file):
            now += dice.choice([0, 1, 1, 2, 3])
            second = max(0, now - dice.choice([0, 0, 2, 4, 9]))
            rows.append({"k": dice.choice("abc"), "at": BEGIN + dt.timedelta(seconds=second), "v": i * per_file + j})
        out.append(rows)
    return out


def write(folder, files, first=0):
    """Write records as Parquet files whose times put them in their order."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(files, first):
        path = Path(folder, f"{i:03d}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def chained(folder, sink, *, most=2, late=True):
    """Windows of ten seconds, and of them such of forty; `sink(name)` makes the sinks."""
    flow = ps.Flow("chained")
    events = flow.source("events", ps.files(str(folder), SCHEMA, max_files_per_epoch=most), time="at", lateness="5 seconds")
    short = events.key_by("k").window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
    short.sink(sink("short"), name="short")
    long = short.key_by("k", name="long").window(ps.sliding("40 seconds", "20 seconds")).aggregate(total=ps.sum("total"))
    long.sink(sink("long"), name="long")
    if late:
        events.late.sink(sink("late"), name="late")
    return flow


def sqlite(path):
    """Makes sinks in a SQLite file."""
    return lambda name: ps.sql(f"sqlite:///{path}", name)


def held(path):
    """What the tables of a SQLite file hold, without penstock's own."""
    with sqlite3.connect(path, timeout=60) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%penstock%'"
        names = [name for (name,) in connection.execute(query)]
        return {n: sorted(map(repr, connection.execute(f"SELECT * FROM {n}").fetchall())) for n in names}


def stop_at(*hits):
    """A hook that stops a run: at the step of a number, or when a step of a name comes for the nth time: ``("commit", 2)``."""
    count, seen = [0], {}

    def before(name):
        count[0] += 1
        seen[name] = seen.get(name, 0) + 1
        if count[0] in hits or (name, seen[name]) in hits:
            raise Stopped(name)

    return before


def run(flow, spark, checkpoint, **options):
    """Run a flow over its present input; gives the run, or None: its hook stopped it."""
    options = {"workers": 1, "trigger": "available_now", **options}
    try:
        running = flow.start(spark, checkpoint=str(checkpoint), **options)
        assert running.await_termination(300)
    except Exception as error:
        if any(isinstance(e, Stopped) for e in causes(error)):
            return None
        raise
    return running


def causes(error):
    """An error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def recompute(flow, spark, checkpoint, **options):
    """`run` with ``recover="recompute"``."""
    return run(flow, spark, checkpoint, recover="recompute", **options)


def copied(source, target):
    """A copy of a file or folder in place of what is there."""
    if Path(target).is_dir():
        shutil.rmtree(target)
    if Path(source).is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
