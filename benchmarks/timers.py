"""What a time to live and timers add to `stateful_map`, as ratios of CPU time measured in one run.

    python benchmarks/timers.py           all, several minutes
    python benchmarks/timers.py 40000     with so many events per epoch

Epochs of one worker in this process, state in LMDB as Spark's tasks have it. The steps take turns, epoch by epoch, so that whatever else the machine
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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.spark.sources.file_times import CHUNK_BITS
from penstock.testing import Harness, engine

EPOCHS, WARM_UP, ROUNDS = 4, 4, 8
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


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    found: dict[str, Any] = {}
    for keys in (rows // 5, rows // 100):
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
    text = json.dumps(about | found, indent=2)
    print(text)
    (Path(__file__).parent / "results" / "timers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
