"""A flow with hot keys, which are divided in two regions and isolated in a third, and a program that runs it and is killed meanwhile.

``python divided_flow.py options.json`` runs it; the options are those of `run_child`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

FILES, PER_FILE, WORKERS, MARKED = 9, 2_000, 3, 7_777
SETTINGS = {"spark.driver.memory": "1g", "spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}


def write_files(folder):
    """Files in which half of the rows have one key; of each a row of that key has a value by which a kill can be timed."""
    dice, everything = random.Random(5), []
    Path(folder).mkdir()
    for number in range(FILES):
        rows = [("hot", MARKED)] + [
            ("hot" if dice.random() < 0.5 else f"k{dice.randrange(40)}", dice.randrange(100)) for _ in range(PER_FILE - 1)
        ]
        path = Path(folder, f"{number:03d}.parquet")
        pq.write_table(pa.table({"k": [k for k, _ in rows], "v": pa.array([v for _, v in rows], pa.int64())}), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        everything += rows
    return everything


def expected(rows):
    """What the tables must hold in the end."""
    n, total = Counter(k for k, _ in rows), Counter()
    for k, v in rows:
        total[k] += v
    return {
        "histogram": sorted(total.items()),
        "choices": sorted(total.items()),
        "isolated": sorted((k, i) for k, count in n.items() for i in range(1, count + 1)),
    }


def content(database):
    """What they hold."""
    with sqlite3.connect(database, timeout=60) as connection:
        read = {"histogram": "k, total", "choices": "k, total", "isolated": "k, n"}
        return {name: sorted(connection.execute(f"SELECT {columns} FROM {name}").fetchall()) for name, columns in read.items()}


class Total(ps.Aggregate):
    """A sum; the first time that it meets a marked value after `after` of them, by a file of their own, it kills a process."""

    type = "bigint"
    commutative = True

    def __init__(self, column, kill, note):
        super().__init__(column)
        self._kill, self._note = kill, note

    def describe(self):
        return "Total"

    def zero(self):
        return 0

    def add(self, state, value):
        if value == MARKED and self._kill:
            met = Path(self._note)
            with met.open("a") as file:
                file.write(".")
            whom, at = self._kill
            if len(met.read_text()) == at:
                os.kill(os.getpid() if whom == "worker" else whom, signal.SIGKILL)
                time.sleep(60)
        return state + value

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


def numbered(key, event, state):
    n = (state or 0) + 1
    return (key, n), n


def flow_of(folder, database, kill, notes):
    flow = ps.Flow("hot")
    source = flow.source("s", ps.files(str(folder), "k string, v long", max_files_per_epoch=1))
    for name, strategy in (("histogram", ps.Histogram()), ("choices", ps.WChoices())):
        mine = kill[1:] if kill and kill[0] == name else None
        keyed = source.key_by("k", name=name, distribute=strategy)
        totals = keyed.aggregate(total=Total("v", mine, f"{notes}/{name}"))
        totals.sink(ps.sql(f"sqlite:///{database}", name, mode="upsert", key="k"), name=name)
    keyed = source.key_by("k", name="isolated", distribute=ps.Isolate(rows=50))
    keyed.stateful_map(numbered, "k string, n long").sink(ps.sql(f"sqlite:///{database}", "isolated"), name="isolated")
    return flow


def watching(checkpoint, step, divided):
    """A hook that counts divided rows by region, and kills this process at a step of an epoch in which a key is on its way to a worker of its own."""
    from penstock.checkpoint.folder import Checkpoint

    opened = Checkpoint(checkpoint)

    def before(name):
        if name == "committed":
            divided.update({n: figures.divided_rows for n, figures in opened.last().figures.regions.items()})
        if name == step and opened.last().epoch >= 0 and opened.last().regions["isolated"].control.goal is not None:
            print("phase", opened.last().regions["isolated"].control.phase, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    return before


def run_child(*, folder, checkpoint, database, kill=None, master="local[2]"):
    """Run the flow to the end of its input, or until it is killed.

    Args:
        folder, checkpoint, database: Where its files, its state and its results are.
        kill: ``["isolating", step]``, or a region that divides keys, ``"driver"`` or ``"worker"``, and the number of the marked row that is the moment.
        master: Spark's.
    """
    from penstock.protocol.rescale import Limits
    from penstock.spark import dividing, engine
    from penstock.spark.session.local import session

    dividing.LEAST_ROWS = engine.LEAST_ROWS = 100
    dividing.HOT_ROWS = 32
    Path(checkpoint).mkdir(exist_ok=True)
    isolating, divided = bool(kill) and kill[0] == "isolating", Counter()
    if kill and not isolating and kill[1] == "driver":
        kill[1] = os.getpid()
    flow = flow_of(folder, database, None if isolating else kill, Path(checkpoint).parent)
    limits = Limits(first_bytes=200, least_bytes=200, most_bytes=800, hold_bytes=20_000, measure_entries=10)
    run = flow.start(
        session(master, "hot", **SETTINGS),
        checkpoint=checkpoint,
        workers=WORKERS,
        trigger="available_now",
        on_step=watching(checkpoint, kill[1] if isolating else None, divided),
        step_budget=limits,
    )
    run.await_termination()
    print("done", json.dumps({**divided, "pinned": run.regions["isolated"]["pinned_keys"]}), flush=True)


if __name__ == "__main__":
    run_child(**json.loads(Path(sys.argv[1]).read_text()))
