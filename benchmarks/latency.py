"""From the moment at which a file appears to its rows in SQLite, in epochs of 1,000 events: penstock and Spark's own stateful queries, in one run.

    python benchmarks/latency.py                         all, about five minutes
    python benchmarks/latency.py "stateful_map" ...      some

Files appear one at a time, each a random pause after the rows of the one before were seen in the database. Source, database and the way in which rows are
written are the same for all: Parquet files, SQLite, one transaction for each epoch. After the timed files come some that are counted: jobs, tasks, calls from
Python to Java, fsyncs and renames of the driver. CPU time, of Python, Java and Spark's Python workers, is of the timed epochs; other work hardly changes it.
Asserts nothing: it prints what is needed and what is reached, and writes JSON under benchmarks/results.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from cpu import cpu_s  # type: ignore[import-not-found]  # beside this script
from py4j.java_gateway import GatewayClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock as ps
from penstock.spark.session.local import session

EVENTS, KEYS = 1_000, 100
WARM_UP, TIMED, COUNTED = 30, 60, 5
SCHEMA = "k long, file long, v double"
OUT = "k long, file long, n long"
STORE = "spark.sql.streaming.stateStore.providerClass"
STORE_CLASSES = "org.apache.spark.sql.execution.streaming.state"
GOAL_P50_MS, GOAL_TAIL, GOAL_STATEFUL = 110, 2.0, 1.25


def count(key: Any, event: Any, n: Any) -> Any:
    n = (n or 0) + 1
    return (key, event.file, n), n


class Count(StatefulProcessor):
    """The same with Spark."""

    def init(self, handle: Any) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803  (Spark's names)
        n = self._n.get()[0] if self._n.exists() else 0
        for frame in rows:
            numbers = np.arange(n + 1, n + 1 + len(frame))
            n += len(frame)
            yield pd.DataFrame({"k": key[0], "file": frame["file"].to_numpy(), "n": numbers})
        self._n.update((n,))

    def close(self) -> None:
        """Nothing is open."""


# -- the flows


def stateless(events: Any, sink: Callable[..., Any]) -> None:
    events.select("k", "file", n="1L").sink(sink())


def stateful_map(events: Any, sink: Callable[..., Any]) -> None:
    events.key_by("k").stateful_map(count, OUT).sink(sink())


def aggregate(events: Any, sink: Callable[..., Any]) -> None:
    events.key_by("k").aggregate(file=ps.max("file"), n=ps.count()).sink(sink(mode="upsert", key="k"))


class _Times(StreamingQueryListener):
    """What Spark says of each epoch's time."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is kept."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if event.progress.numInputRows:
            for name, ms in event.progress.durationMs.items():
                self.ms[name].append(ms)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing is kept."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing is kept."""


@contextmanager
def penstocks(
    spark: SparkSession, declare: Callable[..., None], workers: int, folder: Path, work: Path
) -> Iterator[dict[str, list[tuple[str, float]]]]:
    """A flow, while it reads; gives the moments of its steps."""
    flow = ps.Flow("latency")
    events = flow.source("events", ps.files(str(folder), SCHEMA))
    declare(events, lambda **how: ps.sql(f"sqlite:///{work}/out.db", "out", **how))
    steps: list[tuple[str, float]] = []
    checkpoint = str(work / "checkpoint")
    run = flow.start(
        spark,
        checkpoint=checkpoint,
        workers=workers,
        trigger="1 millisecond",
        on_step=lambda step: steps.append((step, time.perf_counter())),
    )
    try:
        yield {"steps": steps}
        if run.exception is not None:
            raise run.exception
    finally:
        run.abandon()
        run.await_termination(60)


@contextmanager
def sparks(
    spark: SparkSession, keyed: Callable[[DataFrame], DataFrame], folder: Path, work: Path
) -> Iterator[dict[str, list[tuple[str, float]]]]:
    """A query of Spark's, while it reads."""
    upsert = "INSERT INTO out VALUES (?, ?, ?) ON CONFLICT (k) DO UPDATE SET file = excluded.file, n = excluded.n"
    by_key = keyed is spark_aggregate
    if keyed is spark_state:  # Spark refuses its usual store for it
        spark.conf.set(STORE, f"{STORE_CLASSES}.RocksDBStateStoreProvider")
    with sqlite3.connect(work / "out.db") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"CREATE TABLE out (k INTEGER{' PRIMARY KEY' * by_key}, file INTEGER, n INTEGER)")

    def store(frame: DataFrame, _: int) -> None:
        rows = frame.toArrow()
        with sqlite3.connect(work / "out.db") as database:
            database.executemany(
                upsert if by_key else "INSERT INTO out VALUES (?, ?, ?)",
                zip(*(c.to_pylist() for c in rows.columns), strict=True),
            )

    stream = spark.readStream.schema(SCHEMA).parquet(str(folder))
    writer = (
        keyed(stream)
        .writeStream.foreachBatch(store)
        .outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
    )
    query = writer.trigger(processingTime="1 millisecond").start()
    try:
        yield {"steps": []}
    finally:
        query.stop()
        spark.conf.unset(STORE)
        if query.exception() is not None:
            raise query.exception()


def spark_stateless(stream: DataFrame) -> DataFrame:
    return stream.selectExpr("k", "file", "1L as n")


def spark_aggregate(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").agg(F.max("file").alias("file"), F.count("*").alias("n"))


def spark_state(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").transformWithStateInPandas(Count(), OUT, "update", "None")


CASES: dict[str, Callable[[SparkSession, Path, Path], Any]] = {
    "stateless": lambda *a: penstocks(a[0], stateless, 2, *a[1:]),
    "stateful_map": lambda *a: penstocks(a[0], stateful_map, 2, *a[1:]),
    "aggregate": lambda *a: penstocks(a[0], aggregate, 2, *a[1:]),
    "stateful_map, 1 worker": lambda *a: penstocks(a[0], stateful_map, 1, *a[1:]),
    "aggregate, 1 worker": lambda *a: penstocks(a[0], aggregate, 1, *a[1:]),
    "Spark, stateless": lambda *a: sparks(a[0], spark_stateless, *a[1:]),
    "Spark, groupBy": lambda *a: sparks(a[0], spark_aggregate, *a[1:]),
    "Spark, transformWithStateInPandas": lambda *a: sparks(a[0], spark_state, *a[1:]),
}


# -- what is measured


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what the driver does."""
    found: Counter[str] = Counter()

    def counting(owner: Any, name: str, what: str) -> Callable[[], None]:
        before = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found[what] += 1
            return before(*args, **kwargs)

        setattr(owner, name, call)
        return lambda: setattr(owner, name, before)

    undo = [
        counting(GatewayClient, "send_command", "calls to Java"),
        counting(os, "fsync", "fsyncs"),
        counting(os, "replace", "renames"),
        counting(os, "link", "renames"),
        counting(os, "rename", "renames"),
    ]
    try:
        yield found
    finally:
        for each in undo:
            each()


def jobs(spark: SparkSession) -> list[Any]:
    """Spark's jobs so far: Java's objects, the last one first."""
    of: Any = spark.sparkContext._jsc  # noqa: SLF001  (only Java knows)
    listed = of.sc().statusStore().jobsList(None)
    return [listed.apply(i) for i in range(listed.size())]


class Files:
    """Makes files appear, and waits for their rows."""

    def __init__(self, folder: Path, database: Path) -> None:
        self._folder, self._database, self._dice = folder, database, random.Random(7)
        self._numbers = itertools.count()
        self.appeared: list[float] = []

    def one(self) -> float:
        """Seconds from the moment at which a file appears to its rows in the database."""
        number = next(self._numbers)
        rng = np.random.default_rng(number)
        columns = {"k": rng.integers(0, KEYS, EVENTS), "file": np.full(EVENTS, number), "v": rng.random(EVENTS)}
        pq.write_table(pa.table(columns), self._folder / f".{number}")
        time.sleep(self._dice.uniform(0.05, 0.15))
        began = time.perf_counter()
        (self._folder / f".{number}").rename(self._folder / f"{number:05d}.parquet")
        self._wait(number)
        self.appeared.append(began)
        return time.perf_counter() - began

    def _wait(self, number: int) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if self._database.exists():
                with sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=5) as database:
                    version = None
                    while time.monotonic() < end:
                        now = database.execute("PRAGMA data_version").fetchone()
                        if now != version and self._there(database, number):
                            return
                        version = now
                        time.sleep(0.001)
            time.sleep(0.05)
        raise SystemExit(f"The rows of file {number} did not come.")

    @staticmethod
    def _there(database: sqlite3.Connection, number: int) -> bool:
        try:
            return database.execute("SELECT 1 FROM out WHERE file = ? LIMIT 1", (number,)).fetchone() is not None
        except sqlite3.OperationalError:  # there is no table yet
            return False


def parts(steps: list[tuple[str, float]], appeared: list[float]) -> dict[str, float]:
    """Where the time of penstock's epochs goes, in ms: medians."""
    names = {
        "decide": "until the epoch begins: listing, Spark's log, its plan",
        "compute": "decide: footers, lateness, commands",
        "computed": "plan and job",
        "stored": "sink",
        "commit": "record",
        "committed": "commit",
    }
    found: dict[str, list[float]] = defaultdict(list)
    for began in appeared:
        last = began
        for step, at in steps:
            name = names.get(step.split(" ", maxsplit=1)[0])
            if at >= began and name is not None:
                found[name].append(at - last)
                last = at
                if step == "committed":
                    break
    return {name: 1000 * statistics.median(times) for name, times in found.items()}


def measure(spark: SparkSession, case: str) -> dict[str, Any]:
    work = Path(tempfile.mkdtemp(prefix="penstock-latency-"))
    folder = work / "files"
    folder.mkdir()
    listener = _Times()
    spark.streams.addListener(listener)
    try:
        with CASES[case](spark, folder, work) as about:
            files = Files(folder, work / "out.db")
            for _ in range(WARM_UP):
                files.one()
            listener.ms.clear()
            files.appeared.clear()
            cpu = cpu_s()
            took = [1000 * files.one() for _ in range(TIMED)]
            cpu = (cpu_s() - cpu) / TIMED
            appeared = list(files.appeared)
            time.sleep(1)
            said = {name: statistics.median(ms) for name, ms in listener.ms.items()}
            before = len(jobs(spark))
            with counted() as found:
                for _ in range(COUNTED):
                    files.one()
                    time.sleep(0.2)
            ran = jobs(spark)
            ran = ran[: len(ran) - before]
    finally:
        spark.streams.removeListener(listener)
        shutil.rmtree(work, ignore_errors=True)
    job_ms = [
        j.completionTime().get().getTime() - j.submissionTime().get().getTime() for j in ran if j.completionTime().isDefined()
    ]
    return {
        "p50 ms": statistics.median(took),
        "p99 ms": float(np.quantile(took, 0.99)),
        "CPU ms of an epoch": 1000 * cpu,
        "parts, median ms": parts(about["steps"], appeared),
        "Spark says, median ms": said,
        "of an epoch": {
            "jobs": len(ran) / COUNTED,
            "stages": sum(j.numCompletedStages() for j in ran) / COUNTED,
            "tasks": sum(j.numCompletedTasks() for j in ran) / COUNTED,
            "ms of jobs": sum(job_ms) / COUNTED,
            **{name: n / COUNTED for name, n in sorted(found.items())},
        },
    }


def main() -> None:
    chosen = sys.argv[1:] or list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        raise SystemExit(f"There is no case {unknown[0]!r}; there are {', '.join(CASES)}.")
    spark = session("local[2]")
    found: dict[str, dict[str, Any]] = {}
    for case in chosen:
        found[case] = one = measure(spark, case)
        line = f"{case:36} p50 {one['p50 ms']:7.1f} ms  p99 {one['p99 ms']:7.1f} ms  CPU {one['CPU ms of an epoch']:6.0f} ms"
        print(line, {k: round(v, 1) for k, v in one["of an epoch"].items()}, flush=True)
        for name, ms in {
            **one["parts, median ms"],
            **{f"Spark: {k}": v for k, v in one["Spark says, median ms"].items()},
        }.items():
            print(f"    {name:60} {ms:8.1f}")
    base = found.get("stateless", {}).get("p50 ms")
    for case, one in found.items():
        if base and not case.startswith("Spark"):
            print(
                f"{case:36} p50 {one['p50 ms']:6.1f} ms (goal {GOAL_P50_MS}), p99 / p50 {one['p99 ms'] / one['p50 ms']:.2f} (goal {GOAL_TAIL}), "
                f"/ stateless {one['p50 ms'] / base:.2f} (goal {GOAL_STATEFUL})"
            )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}"
    results = {"machine": machine, "commit": commit, "load": os.getloadavg()[0], "figures": found}
    if chosen == list(CASES):
        (Path(__file__).parent / "results" / "latency.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
