"""A flow whose source is silent for good after its last file, and puts records aside that are ahead; it never ends by itself.

It runs until the clock has brought its last window out, or until it kills itself at a chosen step. ``python silent_flow.py options.json`` runs it.
"""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import sys
import time
from pathlib import Path

import killed_flow

import penstock as ps

WINDOW, PATIENCE = 5, 120
HOUR = dt.timedelta(hours=1)
OUTPUTS = {"windows": ("k", "window_start", "n"), "told": ("k", "at", "n"), "late": ("k", "at", "v"), "ahead": ("k", "at", "v")}


def heard(_key, event, n):
    return None, (n or 0) + 1, event.at + dt.timedelta(seconds=WINDOW)


def told(key, n, at):
    return (key, at, n), n


def records(files=3):
    """By file, its records, an hour after those before it: no run is so slow that the clock brings the frontier there. Two are a year ahead, one late."""
    at = [killed_flow.BEGIN + i * HOUR for i in range(files)]
    rows = [[{"k": k, "at": at[i] + dt.timedelta(seconds=s), "v": i} for s, k in enumerate("abcab")] for i in range(files)]
    rows[0].append({"k": "a", "at": at[0] + 9000 * HOUR, "v": 7})
    rows[1].append({"k": "b", "at": at[0], "v": 8})
    rows[-1].append({"k": "c", "at": at[0] + 9000 * HOUR, "v": 9})
    return rows


def expected(files):
    """What each output must hold, computed in one pass without any of penstock."""
    rows = [r for file in files for r in file]
    good = [r for r in rows if r["v"] < len(files)]
    starts = [(r["k"], killed_flow.BEGIN + (r["at"] - killed_flow.BEGIN) // HOUR * HOUR) for r in good]
    last = {start: max(r["at"] for r, s in zip(good, starts, strict=True) if s == start) for start in starts}
    found = {
        "windows": [(*start, starts.count(start)) for start in set(starts)],
        "told": [
            (k, last[k, start] + dt.timedelta(seconds=WINDOW), sum(s[0] == k and s[1] <= start for s in starts))
            for k, start in set(starts)
        ],
        "late": [(r["k"], r["at"], r["v"]) for r in rows if r["v"] == 8],
        "ahead": [(r["k"], r["at"], r["v"]) for r in rows if r["v"] in (7, 9)],
    }
    return {name: killed_flow.comparable(some) for name, some in found.items()}


def flow_of(folder, url):
    flow = ps.Flow("silent")
    files = ps.files(folder, killed_flow.SCHEMA, max_files_per_epoch=1)
    events = flow.source("events", files, time="at", lateness="1 second", close_after="1 second", ahead="2 hours")
    by_key = events.key_by("k")
    windows = by_key.window(ps.tumbling(f"{WINDOW} seconds")).aggregate(n=ps.count())
    windows.select("k", "window_start", "n").sink(ps.sql(url, "windows"), name="windows")
    by_key.stateful_map(heard, "k string, at timestamp, n long", on_timer=told).sink(ps.sql(url, "told"), name="told")
    events.late.sink(ps.sql(url, "late"), name="late")
    events.ahead.sink(ps.sql(url, "ahead"), name="ahead")
    return flow


def content(url):
    """What the tables hold; a table that is not there yet holds nothing."""
    found = {}
    for name, columns in OUTPUTS.items():
        with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60) as connection:
            there = connection.execute("SELECT name FROM sqlite_master WHERE name = ?", (name,)).fetchall()
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall() if there else []
        found[name] = killed_flow.comparable(
            tuple(killed_flow.utc_time(v) if c in ("at", "window_start") else v for c, v in zip(columns, row, strict=True))
            for row in rows
        )
    return found


def run_child(*, folder, checkpoint, url, rows, kill=None):
    """Run the flow until there are so many windows and timers' rows, or until it is killed."""
    from penstock.spark.session.local import session

    spark = session("local[2]", "silent", **killed_flow.SETTINGS)
    before = killed_flow.kill_at(*kill) if kill else None
    steps = {"on_step": before} if before else {}
    run = flow_of(folder, url).start(spark, checkpoint=checkpoint, workers=2, trigger="100 milliseconds", **steps)
    until = time.monotonic() + PATIENCE
    while not run.await_termination(0.2) and time.monotonic() < until:
        there = content(url)
        if len(there["windows"]) + len(there["told"]) >= rows:
            break
    run.shutdown(timeout=60)
    print("shut down", flush=True)
    spark.stop()


if __name__ == "__main__":
    run_child(**json.loads(Path(sys.argv[1]).read_text()))
