"""Speed as ratios measured in one run: penstock, the same Spark plan with an identity task, Spark's own stateful Python.

    python benchmarks/run.py                      all, a few minutes
    python benchmarks/run.py epoch throughput     some

Each figure is the median of at least five epochs of one streaming query, after warm-up epochs. The floor is what any stateful
Python on Spark must pay: repartitionById, sort by (key, time, position), mapInArrow with an identity task.
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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

import penstock as ps
from penstock.spark.session.local import session

WARM_UP = 3
SCHEMA = "k long, at timestamp, v double"


class Difference(ps.Operator):
    """An ordered, vectorised operator: each value less the key's value before."""

    schema = "k long, at timestamp, difference double"

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        values = rows.column("v").to_numpy()
        before = np.empty(len(rows))
        before[1:] = values[:-1]
        stored = state.get(names)
        before[rows.starts[:-1]] = np.frombuffer(b"".join(s or bytes(8) for s in stored))
        raw = values[rows.starts[1:] - 1].tobytes()
        state.put(names, [raw[i : i + 8] for i in range(0, len(raw), 8)])
        return rows.emit({"k": rows.column("k"), "at": rows.column("at"), "difference": pa.array(values - before)})


def count_events(key, event, state):
    """The Python function of `stateful_map` and of Spark's own."""
    n, total = state or (0, 0.0)
    n, total = n + 1, total + event.v
    return (key, n, total), (n, total)


def write_epochs(folder: Path, epochs: int, rows: int, keys: int, files: int = 4) -> None:
    """One epoch is `files` files."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    for epoch in range(epochs):
        start = 1_700_000_000_000_000 + epoch * 60_000_000
        at = (start + np.arange(rows) * 60_000_000 // rows).astype("datetime64[us]")
        table = pa.table(
            {"k": rng.integers(0, keys, rows), "at": pa.array(at, pa.timestamp("us", "UTC")), "v": rng.random(rows)}
        )
        for i in range(files):
            part = table.slice(i * rows // files, rows // files)
            pq.write_table(part, folder / f"{epoch:05d}-{i}.parquet")


def run_plan(spark: SparkSession, folder: Path, files: int, plan: Callable[[DataFrame, int], None], work: Path) -> list[float]:
    """Durations (s) of the epochs of a plain streaming query."""
    took: list[float] = []
    ends: list[float] = []

    def epoch(frame: DataFrame, number: int) -> None:
        start = time.perf_counter()
        plan(frame, number)
        took.append(time.perf_counter() - start)
        ends.append(time.perf_counter())

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(folder))
    checkpoint = tempfile.mkdtemp(dir=work)
    stream.writeStream.foreachBatch(epoch).option("checkpointLocation", checkpoint).trigger(
        availableNow=True
    ).start().awaitTermination()
    return list(np.diff(ends))  # a whole period: Spark's own logs included


def floor(spark: SparkSession, folder: Path, files: int, work: Path, *, sort: bool = True) -> list[float]:
    """The floor's epochs."""

    def identity(batches):
        yield from batches

    def plan(frame: DataFrame, _: int) -> None:
        rows = frame.withColumn("id", F.monotonically_increasing_id())
        rows = rows.repartitionById(2, F.pmod(F.xxhash64("k"), F.lit(2)).cast("int"))
        if sort:
            rows = rows.sortWithinPartitions("k", "at", "id")
        rows.mapInArrow(identity, rows.schema).write.format("noop").mode("append").save()

    return run_plan(spark, folder, files, plan, work)


def ours(
    spark: SparkSession, folder: Path, files: int, declare: Callable[[ps.Stream], None], work: Path, *, timed: str | None
) -> list[float]:
    """Our epochs' periods (s). `timed`: the lateness of event time; None: without event time."""
    flow = ps.Flow("bench")
    time_of = {"time": "at", "lateness": timed} if timed else {}
    declare(flow.source("events", ps.files(str(folder), SCHEMA, max_files_per_epoch=files), **time_of))
    ends: list[float] = []
    run = flow.start(
        spark,
        checkpoint=tempfile.mkdtemp(dir=work),
        workers=2,
        trigger="available_now",
        drain=False,
        on_step=lambda step: ends.append(time.perf_counter()) if step == "committed" else None,
    )
    run.await_termination()
    return list(np.diff(ends))


def median(took: list[float]) -> float:
    return statistics.median(took[WARM_UP - 1 :])


def throughput(spark: SparkSession, work: Path) -> dict[str, float]:
    """2 M events on 100 k keys per epoch against the floor."""
    rows, files = 2_000_000, 4
    folder = work / "events"
    write_epochs(folder, WARM_UP + 6, rows, 100_000, files)
    base = median(floor(spark, folder, files, work))
    unsorted = median(floor(spark, folder, files, work, sort=False))
    cases = {
        "aggregate(count, sum)": (lambda s: s.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop()), None),
        "window aggregate(count, sum), event time": (
            lambda s: s.key_by("k").window(ps.tumbling("1 minute")).aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop()),
            "5 seconds",
        ),
        "ordered vectorised operator": (lambda s: s.key_by("k").process(Difference()).sink(ps.noop()), None),
        "ordered vectorised operator, event time": (lambda s: s.key_by("k").process(Difference()).sink(ps.noop()), "5 seconds"),
        "ordered vectorised operator, event time, lateness 0": (
            lambda s: s.key_by("k").process(Difference()).sink(ps.noop()),
            "0 seconds",
        ),
    }
    found = {"floor s": base, "floor without sort s": unsorted}
    for name, (declare, timed) in cases.items():
        took = median(ours(spark, folder, files, declare, work, timed=timed))
        found[f"{name} s"] = took
        found[f"{name} / floor"] = base / took
    return found


def spark_stateful(spark: SparkSession, work: Path) -> dict[str, float]:
    """2 M events on 100 k keys per epoch against Spark's own stateful Python (half an hour, nearly all of it Spark's).

    Speed of a shared machine drifts in that time, so ours is measured before and after each of Spark's, and compared with both.
    """
    from benchmarks import native  # noqa: PLC0415  (found once the path is set)

    files, folder = 4, work / "large"
    write_epochs(folder, WARM_UP + 4, 2_000_000, 100_000, files)
    short = work / "short"  # Spark's epochs take a minute or two: one to warm up is enough
    short.mkdir()
    for path in sorted(folder.iterdir())[: 6 * files]:
        (short / path.name).symlink_to(path)
    cases = {
        "aggregate(count, sum)": lambda s: s.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop()),
        "ordered vectorised operator": lambda s: s.key_by("k").process(Difference()).sink(ps.noop()),
        "stateful_map": lambda s: s.key_by("k").stateful_map(count_events, "k long, n long, total double").sink(ps.noop()),
    }

    def all_cases() -> dict[str, list[float]]:
        took = {name: ours(spark, folder, files, declare, work, timed=None)[WARM_UP - 1 :] for name, declare in cases.items()}
        print("  ours:", {name: [round(float(t), 2) for t in every] for name, every in took.items()}, flush=True)
        return took

    found: dict[str, float] = {}
    before = all_cases()
    for other in ("transformWithState", "applyInPandasWithState"):
        took = native.run(spark, other, short, SCHEMA, files, tempfile.mkdtemp(dir=work))
        print(f"  {other}: {[round(float(t), 1) for t in took]}", flush=True)
        found[f"{other} s"] = statistics.median(took)
        after = all_cases()
        for name in cases:
            found[f"{name} s, beside {other}"] = beside = statistics.median(before[name] + after[name])
            found[f"{name} × {other}"] = found[f"{other} s"] / beside
        before = after
    return found


def epoch(spark: SparkSession, work: Path) -> dict[str, float]:
    """Steady small epochs of 1,000 events against the identity plan's."""
    folder = work / "tiny"
    write_epochs(folder, 25, 1_000, 500, 1)
    base = median(floor(spark, folder, 1, work))
    found = {"identity plan s": base}
    cases = {
        "aggregate": (lambda s: s.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop()), None),
        "ordered operator": (lambda s: s.key_by("k").process(Difference()).sink(ps.noop()), None),
        "stateful_map": (
            lambda s: s.key_by("k").stateful_map(count_events, "k long, n long, total double").sink(ps.noop()),
            None,
        ),
        "ordered operator, event time": (lambda s: s.key_by("k").process(Difference()).sink(ps.noop()), "5 seconds"),
    }
    for name, (declare, timed) in cases.items():
        took = median(ours(spark, folder, 1, declare, work, timed=timed))
        found[f"{name} s"] = took
        found[f"{name} / identity"] = took / base
    return found


def main() -> None:
    parts = {"epoch": epoch, "throughput": throughput, "spark": spark_stateful}
    chosen = sys.argv[1:] or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        raise SystemExit(f"There is no part {unknown[0]!r}; there are {', '.join(parts)}.")
    spark = session("local[2]")
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    results: dict[str, object] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    try:
        for name in chosen:
            print(f"== {name}: {parts[name].__doc__}")
            results[name] = found = parts[name](spark, work)
            for key, value in found.items():
                print(f"  {key:55} {value:8.3f}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{'-'.join(chosen)}.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
