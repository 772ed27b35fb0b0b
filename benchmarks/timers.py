"""What a time to live and timers add to `stateful_map`, as ratios of CPU time measured in one run.

    python benchmarks/timers.py           all, some twenty minutes
    python benchmarks/timers.py 40000     with so many events per epoch
    python benchmarks/timers.py spark     over Spark only

Over Spark: whole runs of a flow in turns, the first of each not counted; the CPU time of this process, of Java and of Spark's Python workers.

In this process: epochs of one worker, state in LMDB as Spark's tasks have it. The steps take turns, epoch by epoch, so that whatever else the machine
does meets all of them. The figure is the CPU time of the process per epoch over all epochs of a round, the least of the rounds: of 5 events per key
the store is written in every fourth epoch only, which a median of epochs would leave out. So a round has four.

What it hides and exaggerates: the harness reads times in chunks of 4 records, so that tests meet the edges of chunks, and that took 40 % of an epoch. Here
it has chunks as large as Spark's. There is no JVM and no shuffle, which a flow over Spark has with timers and without, so its ratios are lower than these.
The function's own share is beside it: one that works out the time of a timer and sets none.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cpu import cpu_s  # type: ignore[import-not-found]  # beside this script

import penstock as ps
from penstock.spark.session.local import session
from penstock.spark.sources.file_times import CHUNK_BITS
from penstock.testing import Harness, engine

EPOCHS, WARM_UP, ROUNDS, SPARK_ROUNDS = 4, 4, 8, 5
SECONDS_PER_EPOCH = 60
SCHEMA = pa.schema(
    [("p", pa.int64()), ("o", pa.int64()), ("k", pa.int64()), ("v", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
OUT = "k long, n long, total double"
HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)


@dataclass(frozen=True)
class Reader:
    """In place of a connector: records are pushed."""

    schema: pa.Schema = SCHEMA


def count(key: Any, event: Any, state: Any) -> Any:
    n, total = state or (0, 0.0)
    n, total = n + 1, total + event.v
    return (key, n, total), (n, total)


def count_and_know(key: Any, event: Any, state: Any) -> Any:
    """The same; the function works out the time, and sets no timer: its own share of what a timer costs."""
    n, total = state or (0, 0.0)
    n, total = n + 1, total + event.v
    return (key, n, total) if event.at + HOUR else None, (n, total)


def count_and_set(key: Any, event: Any, state: Any) -> Any:
    """The same; each event puts the timer off, so that it never fires."""
    n, total = state or (0, 0.0)
    n, total = n + 1, total + event.v
    return (key, n, total), (n, total), event.at + HOUR


def count_each_minute(key: Any, event: Any, state: Any) -> Any:
    """The same; the key's timer fires once in each epoch."""
    n, total = state or (0, 0.0)
    n, total = n + 1, total + event.v
    return (key, n, total), (n, total), event.at.replace(second=0, microsecond=0) + MINUTE


def fired(key: Any, state: Any, _: dt.datetime) -> Any:
    return (key, *state), state


STEPS: dict[str, dict[str, Any]] = {
    "stateful_map": {"fn": count},
    "stateful_map, the time worked out": {"fn": count_and_know},
    "with ttl": {"fn": count, "ttl": "1 hour"},
    "with ttl, state typed": {"fn": count, "ttl": "1 hour", "state": "n long, total double"},
    "stateful_map, state typed": {"fn": count, "state": "n long, total double"},
    "a timer per event": {"fn": count_and_set, "on_timer": fired},
    "a timer per event, and ttl": {"fn": count_and_set, "on_timer": fired, "ttl": "1 hour"},
    "timers that fire once per key and epoch": {"fn": count_each_minute, "on_timer": fired},
}


def records(epoch: int, rows: int, keys: int) -> pa.Table:
    rng = np.random.default_rng(epoch)
    start = (1_700_000_040 + epoch * SECONDS_PER_EPOCH) * 1_000_000
    at = start + np.arange(rows) * SECONDS_PER_EPOCH * 1_000_000 // rows
    columns = [np.zeros(rows, np.int64), np.arange(rows) + epoch * rows, rng.integers(0, keys, rows), rng.random(rows), at]
    return pa.Table.from_arrays([pa.array(c).cast(f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def measure(rows: int, keys: int) -> dict[str, float]:
    """The CPU time (s) of an epoch of each step."""
    engine.CHUNK_ROWS = 1 << CHUNK_BITS
    harnesses = {}
    for name, about in STEPS.items():
        flow = ps.Flow("timers")
        source = flow.source("s", Reader(), time="at", position=("p", "o"), partitions=[0])
        source.key_by("k").stateful_map(schema=OUT, **about).sink(ps.noop())
        harnesses[name] = Harness(flow, lmdb=True)
    took: dict[str, list[float]] = {name: [] for name in STEPS}
    for epoch in range(WARM_UP + ROUNDS * EPOCHS):
        pushed = records(epoch, rows, keys)
        for name, harness in harnesses.items():
            harness.push("s", pushed)
            gc.collect()  # what one step leaves is not another's
            began = time.process_time()
            harness.epoch()
            took[name].append(time.process_time() - began)
    for harness in harnesses.values():
        harness.close()
    rounds = range(WARM_UP, WARM_UP + ROUNDS * EPOCHS, EPOCHS)
    return {name: min(sum(t[a : a + EPOCHS]) / EPOCHS for a in rounds) for name, t in took.items()}


def over_spark() -> dict[str, list[float]]:
    """CPU seconds of each run of each step."""
    found: dict[str, list[float]] = {name: [] for name in STEPS if "typed" not in name}
    rows, keys = 500_000, 100_000
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as work:
        for epoch in range(EPOCHS):
            pq.write_table(records(epoch, rows, keys), f"{work}/{epoch}.parquet")
            os.utime(f"{work}/{epoch}.parquet", (1_700_000_000 + epoch,) * 2)
        for turn in range(SPARK_ROUNDS + 1):
            for name, seconds in found.items():
                flow = ps.Flow("timers")
                files = ps.files(work, "p long, o long, k long, v double, at timestamp", max_files_per_epoch=1)
                flow.source("s", files, time="at").key_by("k").stateful_map(schema=OUT, **STEPS[name]).sink(ps.noop())
                before = cpu_s()
                with tempfile.TemporaryDirectory() as checkpoint:
                    flow.start(
                        session(), checkpoint=checkpoint, workers=2, trigger="available_now", drain=False
                    ).await_termination()
                if turn:
                    seconds.append(cpu_s() - before)
                print(f"{name:44} {cpu_s() - before:6.1f} s", flush=True)
    return found


def main() -> None:
    only = sys.argv[1:]
    rows = 100_000 if only in ([], ["spark"]) else int(only[0])
    found: dict[str, Any] = {}
    if only in ([], ["spark"]):
        runs = over_spark()
        floor = float(np.median(runs["stateful_map"]))
        found["over Spark, 500,000 events per epoch, 100,000 keys"] = {
            "CPU seconds of a run": {n: [round(s, 1) for s in seconds] for n, seconds in runs.items()},
            "ratio": {n: round(float(np.median(seconds)) / floor, 3) for n, seconds in runs.items()},
        }
    for keys in () if only == ["spark"] else (rows // 5, rows // 100):
        seconds = measure(rows, keys)
        ratios = {
            name: round(s / seconds["stateful_map, state typed" if "typed" in name else "stateful_map"], 3)
            for name, s in seconds.items()
        }
        found[f"{rows:,} events, {keys:,} keys"] = {
            "CPU seconds": {n: round(s, 3) for n, s in seconds.items()},
            "ratio": ratios,
        }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    about = {"commit": commit, "python": platform.python_version(), "cpus": os.cpu_count()}
    results = Path(__file__).parent / "results" / "timers.json"
    kept = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}  # of what did not run this time
    text = json.dumps(kept | {name: about | figures for name, figures in found.items()}, indent=2)
    print(text)
    results.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
