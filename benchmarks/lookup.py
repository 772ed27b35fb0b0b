"""What a lookup adds to a flow: CPU seconds with a table of 10 and of 100,000 rows, and without one, in this process and over Spark.

    python benchmarks/lookup.py           some twenty minutes

Per epoch a million records of 100,000 keys; the flow counts and sums by key. CPU time is that of this process and all below it (JVM, Python workers),
of whole runs, the first of each flow not counted, in turns. Over Spark a run has 24 epochs: Java spends a tenth to a fifth of one of 8 on compiling itself,
and how much differs from run to run by more than a lookup costs. Asserts nothing: it writes JSON under benchmarks/results.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cpu import cpu_s  # type: ignore[import-not-found]  # beside this script

import penstock as ps
from penstock.spark.session.local import session
from penstock.testing import Harness

HERE = Path(__file__).parent
ROWS, KEYS, ROUNDS = 1_000_000, 100_000, 5
EPOCHS = {"in_process": 8, "over_spark": 24}
COLUMNS = "k long, g long, v long, at timestamp"
TABLES = {"without": 0, "10 rows": 10, "100,000 rows": KEYS}


def records(epoch: int) -> pa.Table:
    random = np.random.default_rng(epoch)
    begin = int(dt.datetime(2024, 1, 1, tzinfo=dt.UTC).timestamp() * 1e6) + epoch * 10_000_000
    k = random.integers(0, KEYS, ROWS)
    at = pa.array(begin + np.sort(random.integers(0, 10_000_000, ROWS)), pa.timestamp("us", "UTC"))
    return pa.table({"k": k, "g": k % 10, "v": random.integers(0, 100, ROWS), "at": at})


def declared(source: Any, rows: int) -> ps.Flow:
    flow = ps.Flow("lookups")
    stream = flow.source("s", source, time="at", lateness="1 second")
    if rows:
        on = "g" if rows == TABLES["10 rows"] else "k"
        stream = stream.lookup(pa.table({on: np.arange(rows), "weight": np.arange(rows) % 7}), on)
    summed = "weight" if rows else "v"
    counted = stream.key_by("k").window(ps.tumbling("5 seconds")).aggregate(n=ps.count(), w=ps.sum(summed))
    counted.sink(ps.noop())
    return flow


def in_process(rows: int, folder: Path) -> None:
    with Harness(declared(ps.files(folder, COLUMNS), rows), workers=2) as harness:
        for epoch in range(EPOCHS["in_process"]):
            harness.push("s", records(epoch))
            harness.epoch()


def over_spark(rows: int, folder: Path) -> None:
    source = ps.files(folder, COLUMNS, max_files_per_epoch=1)
    with tempfile.TemporaryDirectory() as checkpoint:
        run = declared(source, rows).start(session(), checkpoint=checkpoint, workers=2, trigger="available_now")
        run.await_termination()


def measured(run: Any, folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in TABLES}
    for turn in range(ROUNDS + 1):
        for name, rows in TABLES.items():
            before, began = cpu_s(), time.monotonic()
            run(rows, folder)
            if turn:
                found[name].append(cpu_s() - before)
            print(f"{run.__name__:12} {name:14} CPU {cpu_s() - before:6.1f} s, {time.monotonic() - began:6.1f} s", flush=True)
    return found


def main() -> None:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as work:
        for epoch in range(EPOCHS["over_spark"]):
            pq.write_table(records(epoch), f"{work}/{epoch}.parquet")
            os.utime(f"{work}/{epoch}.parquet", (1_700_000_000 + epoch,) * 2)
        for run in (in_process, over_spark):
            found = measured(run, Path(work))
            floor = float(np.median(found["without"]))
            for name, seconds in found.items():
                figures[f"{run.__name__}: {name}, CPU s per million records"] = float(np.median(seconds)) / EPOCHS[run.__name__]
                figures[f"{run.__name__}: {name}, speed / without"] = floor / float(np.median(seconds))
                figures[f"{run.__name__}: {name}, speed / without, by the least of the runs"] = min(found["without"]) / min(
                    seconds
                )
    for name, value in figures.items():
        print(f"{name:75} {value:.3f}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    about = {"machine": platform.platform(), "cpus": os.cpu_count(), "commit": commit}
    (HERE / "results" / "lookup.json").write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
