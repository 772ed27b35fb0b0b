"""A flow of timers and state that ends, as a function per event and as an operator; `killed_flow` runs it and kills itself at a chosen step.

``python timed_flow.py options.json`` runs it.
"""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import sys
from pathlib import Path

import killed_flow
import pyarrow as pa

import penstock as ps

WAIT, LIVES = 2, 3
COLUMNS = "k string, at timestamp, n long"
OUTPUTS = ("silent", "bulk")


def heard(_key, event, n):
    return None, (n or 0) + 1, event.at + dt.timedelta(seconds=WAIT)


def silent(key, n, at):
    return (key, at, n), n


class Silent(ps.Operator):
    """The same for many keys at once."""

    schema = COLUMNS
    timer_lead = f"{WAIT} seconds"

    def on_data(self, rows, state):
        names, sizes = state.names(rows.keys), rows.starts[1:] - rows.starts[:-1]
        counts = [(n or 0) + more for n, more in zip(state.get_objects(names), sizes.tolist(), strict=True)]
        state.put_objects(names, counts, rows.order.time[rows.starts[1:] - 1] + WAIT * 1_000_000)

    def on_timer(self, fired, state):
        at = pa.array(fired.at).cast(pa.timestamp("us", "UTC"))
        return fired.emit({"k": fired.keys.columns[0], "at": at, "n": pa.array(state.get_objects(fired.names))})


def flow_of(folder, sink, *, max_files=1):
    flow = ps.Flow("timed")
    files = ps.files(str(folder), killed_flow.SCHEMA, max_files_per_epoch=max_files)
    events = flow.source("events", files, time="at", lateness=f"{killed_flow.LATENESS} seconds")
    by_key = events.key_by("k")
    by_key.stateful_map(heard, COLUMNS, on_timer=silent, ttl=f"{LIVES} seconds").sink(sink("silent"), name="silent")
    by_key.process(Silent(), ttl=f"{LIVES} seconds").sink(sink("bulk"), name="bulk")
    return flow


def sinks_in(urls):
    return lambda output: ps.sql(urls["sqlite"], output)


def expected(files):
    """What each output must hold, computed in one pass without any of penstock."""
    on_time, newest, found = {}, None, []
    for record in (r for rows in files for r in rows):
        if newest is None or record["at"] >= newest - dt.timedelta(seconds=killed_flow.LATENESS):
            on_time.setdefault(record["k"], []).append(record["at"])
        newest = record["at"] if newest is None else max(newest, record["at"])
    for key, times in on_time.items():
        times.sort()
        n = 0
        for at, following in zip(times, [*times[1:], None], strict=True):
            n += 1
            if following is None or following >= at + dt.timedelta(seconds=WAIT):
                found.append((key, at + dt.timedelta(seconds=WAIT), n))
            if following is not None and following >= at + dt.timedelta(seconds=LIVES):
                n = 0
    return killed_flow.comparable(found)


def content(urls, output):
    """What a table holds."""
    with sqlite3.connect(urls["sqlite"].removeprefix("sqlite:///"), timeout=60) as connection:
        rows = connection.execute(f"SELECT k, at, n FROM {output}").fetchall()
    return killed_flow.comparable((k, killed_flow.utc_time(at), n) for k, at, n in rows)


if __name__ == "__main__":
    killed_flow.flow_of, killed_flow.sinks_in = flow_of, sinks_in
    killed_flow.run_child(**json.loads(Path(sys.argv[1]).read_text()))
