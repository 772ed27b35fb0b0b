"""One large epoch into PostgreSQL: rows that tasks store where they are, rows that the driver collects, and a plain COPY of the same rows.

    python benchmarks/sinks.py                    all, some minutes
    python benchmarks/sinks.py 2                  millions of rows in an epoch, for the memory of the driver

The server is that of the tests. The three ways take turns, three rounds; each flow runs in a process of its own, after a smaller flow that
warms it up. Time: from before the output is computed, so with reading it from Parquet files, until its rows and mark are committed.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.sinks.sql import PostgresSink
from penstock.spark.session.local import session

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
import servers  # type: ignore[import-not-found]  # noqa: E402

SCHEMA = "id long, k string, at timestamp, v double, amount decimal(12, 2)"
ROUNDS = 3
PER_FILE = 500_000


def write_rows(folder: Path, rows: int) -> None:
    """Files of `PER_FILE` rows."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    for first in range(0, rows, PER_FILE):
        n = min(PER_FILE, rows - first)
        ids = np.arange(first, first + n)
        cents = rng.integers(-(10**9), 10**9, n)
        wide = pa.py_buffer(np.stack([cents, cents >> 63], axis=1).tobytes())  # 128 bits each
        table = pa.table(
            {
                "id": ids,
                "k": [f"key {k}" for k in rng.integers(0, 100_000, n)],
                "at": pa.array((1_700_000_000_000_000 + ids * 1009).astype("datetime64[us]"), pa.timestamp("us", "UTC")),
                "v": rng.standard_normal(n),
                "amount": pa.Array.from_buffers(pa.decimal128(12, 2), n, [None, wide]),
            }
        )
        pq.write_table(table, folder / f"{first:09d}.parquet")


def peak_mb(pid: int | str) -> float:
    """The most memory that a process has had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def child(options: dict[str, str]) -> dict[str, float]:
    """Run the flow; how long its output took, and how much memory the driver has had."""
    if options["way"] == "collected":
        del PostgresSink.stager
    spark = session("local[2]", "sinks", **{"spark.driver.memory": "2g"})
    found = {}
    for name in ("small", "large"):
        took = {}
        flow = ps.Flow(name)
        flow.source("rows", ps.files(options[name], SCHEMA)).sink(
            ps.sql(options["url"], f"{options['table']}_{name}"), name="out"
        )
        run = flow.start(
            spark,
            checkpoint=f"{options['work']}/checkpoint-{options['table']}-{name}",
            trigger="available_now",
            on_step=lambda step, took=took: took.setdefault(step, time.perf_counter()),
        )
        run.await_termination()
        found["seconds"] = took["stored out"] - took["compute out"]
        java = spark.sparkContext._gateway.proc.pid  # noqa: SLF001
        found[f"python_mb_{name}"], found[f"java_mb_{name}"] = peak_mb("self"), peak_mb(java)
    spark.stop()
    return found


def run_child(way: str, url: str, work: Path, rows: int, number: int) -> dict[str, float]:
    options = {"way": way, "url": url, "work": str(work), "table": f"{way}_{number}"}
    options |= {"small": str(work / f"rows-{PER_FILE}"), "large": str(work / f"rows-{rows}")}
    done = subprocess.run(
        [sys.executable, __file__, "child", json.dumps(options)], stdout=subprocess.PIPE, check=True, text=True
    )
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {way}_{number}_large").fetchone() == (rows, rows)
    return json.loads(done.stdout.splitlines()[-1])


def plain_copy(url: str, table: str, binary: bool) -> float:
    """COPY of the rows of a table into another one, in the form that the server gives them, out of this process's memory."""
    form = "(FORMAT binary)" if binary else ""
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.cursor().copy(f"COPY {table} TO STDOUT {form}") as copy:
            blocks = [bytes(b) for b in copy]
        text = b"".join(blocks)
        blocks = [text[i : i + (1 << 20)] for i in range(0, len(text), 1 << 20)]
        connection.execute("DROP TABLE IF EXISTS plain")
        connection.execute(f"CREATE TABLE plain (LIKE {table})")
        started = time.perf_counter()
        with connection.cursor().copy(f"COPY plain FROM STDIN {form}") as copy:
            for block in blocks:
                copy.write(block)
        return time.perf_counter() - started


def main() -> None:
    millions = [int(a) for a in sys.argv[1:]] or [2, 20]
    rows = millions[0] * 1_000_000
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    results: dict[str, object] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "commit": git.stdout.strip(),
        "rows": rows,
        "rounds": ROUNDS,
    }
    try:
        with servers.postgres_url() as url:
            for n in {PER_FILE, *(m * 1_000_000 for m in millions)}:
                write_rows(work / f"rows-{n}", n)
            took: dict[str, list[float]] = {}
            memory: dict[str, dict[str, float]] = {}
            for number in range(ROUNDS):
                for way in ("staged", "collected"):
                    found = run_child(way, url, work, rows, number)
                    took.setdefault(way, []).append(found.pop("seconds"))
                    memory[f"{way}, {rows:,} rows"] = found
                for form in ("text", "binary"):
                    took.setdefault(f"plain COPY, {form}", []).append(
                        plain_copy(url, f"staged_{number}_large", form == "binary")
                    )
                print({way: round(seconds[-1], 2) for way, seconds in took.items()}, flush=True)
                with psycopg.connect(url, autocommit=True) as connection:
                    for way in ("staged", "collected"):
                        connection.execute(f"DROP TABLE {way}_{number}_large, {way}_{number}_small")
            for more in millions[1:]:
                found = run_child("staged", url, work, more * 1_000_000, ROUNDS)
                results[f"seconds, staged, {more} M rows"] = found.pop("seconds")
                memory[f"staged, {more * 1_000_000:,} rows"] = found
    finally:
        shutil.rmtree(work, ignore_errors=True)
    seconds = {way: statistics.median(s) for way, s in took.items()}
    results["rows per second"] = {way: round(rows / s) for way, s in seconds.items()}
    results["of a plain COPY"] = {way: round(seconds["plain COPY, text"] / s, 2) for way, s in seconds.items()}
    results["driver, MB at most"] = memory
    print(json.dumps(results, indent=2))
    (HERE / "results" / "sinks.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(child(json.loads(sys.argv[2]))))
    else:
        main()
