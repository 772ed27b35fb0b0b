"""A flow that looks in a table which is another one each time it is read; it kills itself at a chosen step.

``python refreshed_flow.py options.json`` runs it, over Spark or in process.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path

import killed_flow
import pyarrow as pa

import penstock as ps
from penstock.testing import Harness

COLUMNS = "p int, v long, k string"
SCHEMA = pa.schema({"p": pa.int32(), "v": pa.int64(), "k": pa.string()})
OUTPUTS = ("direct", "running")
KEYS = "abc"


def records(epochs=4, each=6):
    """By epoch, its records."""
    return [[{"p": 0, "v": i * each + j, "k": KEYS[j % len(KEYS)]} for j in range(each)] for i in range(epochs)]


@dataclass
class Reader:
    """A source of which the harness is given the records."""

    schema: pa.Schema = SCHEMA


class Table:
    """Its rows say how often it has been read, by this process and all before it."""

    def __init__(self, counted):
        self.counted = Path(counted)

    def __call__(self):
        with self.counted.open("a") as file:
            file.write("r")
        return pa.table({"k": list(KEYS), "read": [self.counted.stat().st_size] * len(KEYS)})


def kept(_key, event, state):
    """A row per record, with what the key's records have met so far."""
    met = [*(state or []), event.read]
    return (event.v, event.read, len(met), sum(met)), met


def flow_of(source, counted, url, position=None):
    flow = ps.Flow("refreshed")
    looked = flow.source("s", source, position=position).lookup(Table(counted), "k", refresh=0)
    looked.select("v", "read").sink(ps.sql(url, "direct"), name="direct")
    running = looked.key_by("k").stateful_map(kept, "v long, read long, n long, total long")
    running.sink(ps.sql(url, "running"), name="running")
    return flow


def run_child(*, folder, checkpoint, counted, url, kill, over_spark):
    """Run the flow until its input ends, or until it is killed."""
    hook = killed_flow.kill_at(*kill) if kill else lambda _: None
    if over_spark:
        from penstock.spark.session.local import session

        spark = session("local[2]", "refreshed", **killed_flow.SETTINGS)
        source = ps.files(folder, COLUMNS, format="json", max_files_per_epoch=1)
        run = flow_of(source, counted, url).start(
            spark, checkpoint=checkpoint, workers=2, trigger="available_now", on_step=hook
        )
        run.await_termination()
    else:
        flow = flow_of(Reader(), counted, url, ("p", "v"))
        with Harness(flow, checkpoint=checkpoint, workers=2, on_step=hook) as harness:
            for file in sorted(Path(folder).iterdir())[harness.record.epoch + 1 :]:
                rows = [json.loads(line) for line in file.read_text().splitlines()]
                harness.push("s", pa.Table.from_pylist(rows, schema=SCHEMA))
                harness.epoch()
            harness.finish()


def content(url):
    """By output, its rows in the order of v."""
    found = {}
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection:
        for output in OUTPUTS:
            found[output] = connection.execute(f"SELECT * FROM {output} ORDER BY v").fetchall()
    return found


if __name__ == "__main__":
    run_child(**json.loads(Path(sys.argv[1]).read_text()))
