"""What the guard costs, and how long it takes to compute state anew.

    python benchmarks/recovery.py                  all; 50 M events (half an hour)
    python benchmarks/recovery.py guard            what marks' trails cost: on and off, small epochs and large ones
    python benchmarks/recovery.py long 10          state computed anew from the last hours of a day of so many million events

The guard is off where an epoch neither extends the sources' trails nor writes them into marks: by a patch, as penstock has no such switch.
On and off take turns, so that a busy machine is unfair to neither; CPU time, of Python and Java together, is beside wall time. Writes JSON
under benchmarks/results and a plot under docs/images.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cpu import cpu_s  # type: ignore[import-not-found]  # beside this script
from pyspark.sql import SparkSession

import penstock as ps
from penstock.driver import epoch as driver_epoch
from penstock.spark.session.local import session

SCHEMA = "k long, at timestamp, v double"
BEGIN_S, HOURS, KEYS = 1_700_006_400, 24, 10_000
PER_FILE = 500_000
FILES = 2  # of an epoch of the long log
SPANS = (1, 2, 4, 8)  # hours before the marks


def write(folder: Path, number: int, rows: int, begin_us: int, span_us: int, keys: int) -> None:
    """A file of events that are spread evenly over a time."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, path = np.random.default_rng(number), folder / f"{number:06d}.parquet"
    at = (begin_us + np.arange(rows) * span_us // rows).astype("datetime64[us]")
    table = pa.table({"k": rng.integers(0, keys, rows), "at": pa.array(at, pa.timestamp("us", "UTC")), "v": rng.random(rows)})
    pq.write_table(table, path)
    os.utime(path, (BEGIN_S + number, BEGIN_S + number))


def flow_of(folder: Path, sink: Path, files: int, window: str) -> ps.Flow:
    flow = ps.Flow("recovery")
    source = ps.files(str(folder), SCHEMA, max_files_per_epoch=files)
    events = flow.source("events", source, time="at", lateness="5 seconds")
    windows = events.key_by("k").window(ps.tumbling(window)).aggregate(n=ps.count(), total=ps.sum("v"))
    windows.sink(ps.parquet(sink), name="windows")
    return flow


def run(spark: SparkSession, flow: ps.Flow, work: Path, **options: Any) -> dict[str, Any]:
    """Run a flow over its present input: ends of its epochs, time and CPU time, and the run."""
    ends: list[float] = []
    started, cpu = time.perf_counter(), cpu_s()
    running = flow.start(
        spark,
        checkpoint=tempfile.mkdtemp(dir=work),
        workers=2,
        trigger="available_now",
        drain=False,
        on_step=lambda step: ends.append(time.perf_counter()) if step == "committed" else None,
        **options,
    )
    running.await_termination()
    took = time.perf_counter() - started
    return {"run": running, "periods": list(np.diff(ends)), "wall_s": took, "cpu_s": cpu_s() - cpu}


@contextmanager
def guarded(*, on: bool) -> Iterator[None]:
    """With the guard, or without."""
    if on:
        yield
        return
    with (
        mock.patch.object(driver_epoch, "trail_text", return_value=""),
        mock.patch.object(driver_epoch, "extend_trail"),
    ):
        yield


def guard(spark: SparkSession, work: Path) -> dict[str, Any]:
    """The cost of marks' trails."""
    found: dict[str, Any] = {}
    for name, epochs, rows, keys, turns in (("small epochs", 80, 5_000, 100, 4), ("large epochs", 10, 1_500_000, 10_000, 4)):
        folder = work / name
        for i in range(epochs):
            write(folder, i, rows, (BEGIN_S + 10 * i) * 1_000_000, 10_000_000, keys)
        periods: dict[bool, list[float]] = {True: [], False: []}
        cpu: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(-1, 2 * turns):
            on = turn % 4 in (0, 3)  # on, off, off, on
            with guarded(on=on):
                figures = run(spark, flow_of(folder, work / f"{name} {turn}", 1, "10 seconds"), work)
            if turn >= 0:  # the first one warms up
                periods[on] += figures["periods"][2:]
                cpu[on].append(figures["cpu_s"])
        on_s, off_s = (statistics.median(periods[on]) for on in (True, False))
        on_cpu, off_cpu = (sum(cpu[on]) for on in (True, False))
        found[name] = {
            "rows_per_epoch": rows,
            "epochs": len(periods[True]),
            "on_ms": float(1000 * on_s),
            "off_ms": float(1000 * off_s),
            "on_p10_ms": 1000 * float(np.quantile(periods[True], 0.1)),
            "off_p10_ms": 1000 * float(np.quantile(periods[False], 0.1)),
            "on_cpu_s": on_cpu,
            "off_cpu_s": off_cpu,
            "cost": float(on_s / off_s - 1),
            "cpu_cost": on_cpu / off_cpu - 1,
        }
        shutil.rmtree(folder)
        print(name, found[name], flush=True)
    return found


def long(spark: SparkSession, work: Path, millions: int) -> dict[str, Any]:
    """A day of events, computed once; then the checkpoint is lost again and again, and so many hours are computed anew."""
    folder, sink, rows = work / "day", work / "windows", millions * 1_000_000
    files = rows // PER_FILE
    span_us = HOURS * 3_600_000_000 // files
    for i in range(files):
        write(folder, i, PER_FILE, BEGIN_S * 1_000_000 + i * span_us, span_us, KEYS)
    clean = run(spark, flow_of(folder, sink, FILES, "1 hour"), work)
    epoch_rows = FILES * PER_FILE
    normal = epoch_rows / statistics.median(clean["periods"][2:])
    print(f"{rows:,} events computed in {clean['wall_s']:.1f} s, {normal:,.0f} per second in the median epoch", flush=True)
    recoveries = []
    for hours in (None, *SPANS):
        since = (
            {}
            if hours is None
            else {"since": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BEGIN_S + 3600 * (HOURS - hours)))}
        )
        again = run(spark, flow_of(folder, sink, FILES, "1 hour"), work, recover="recompute", **since)
        told = again["run"].recovery
        recoveries.append(
            {
                "hours": hours or "of the flow's own window",
                "rows": told["rows_replayed"],
                "recovery_s": told["seconds"],
                "wall_s": again["wall_s"],
                "cpu_s": again["cpu_s"],
                "rows_per_s": epoch_rows / statistics.median(again["periods"]) if len(again["periods"]) > 3 else None,
            }
        )
        print(recoveries[-1], flush=True)
    spans = recoveries[1:]
    slope, first = np.polyfit([r["rows"] for r in spans], [r["recovery_s"] for r in spans], 1)
    fit = float(np.corrcoef([r["rows"] for r in spans], [r["recovery_s"] for r in spans])[0, 1] ** 2)
    cpu_slope, _ = np.polyfit([r["rows"] for r in spans], [r["cpu_s"] for r in spans], 1)
    return {
        "rows": rows,
        "normal_wall_s": clean["wall_s"],
        "normal_cpu_s": clean["cpu_s"],
        "normal_rows_per_s": normal,
        "recoveries": recoveries,
        "line_rows_per_s": 1 / slope,
        "line_begins_s": first,
        "line_r2": fit,
        "throughput_ratio": statistics.median(r["rows_per_s"] for r in spans if r["rows_per_s"]) / normal,
        "cpu_ratio": clean["cpu_s"] / rows / cpu_slope,
    }


def plot(found: dict[str, Any], path: Path) -> None:
    """Recovery time against the span that is replayed."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axis = plt.subplots(figsize=(9, 3.6))
    spans = found["recoveries"][1:]
    rows = np.array([r["rows"] / 1e6 for r in spans])
    axis.plot(rows, [r["recovery_s"] for r in spans], "o", color="#20639b", label="recompute with since=")
    line = np.array([0, rows.max()])
    label = f"a straight line (r² = {found['line_r2']:.3f})"
    axis.plot(line, found["line_begins_s"] + line * 1e6 / found["line_rows_per_s"], color="#20639b", linewidth=0.8, label=label)
    own = found["recoveries"][0]
    axis.plot([own["rows"] / 1e6], [own["recovery_s"]], "s", color="#ed553b", label="recompute, a window of 1 hour")
    axis.set_title(
        f"{found['rows'] // 1_000_000} M events of {HOURS} hours; all of them: {found['normal_wall_s']:.0f} s", fontsize=10
    )
    axis.set_xlabel("events replayed, millions")
    axis.set_ylabel("recovery, s")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    millions = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    spark = session("local[2]", "bench", **{"spark.driver.memory": "3g"})
    here = Path(__file__).parent
    kept = here / "results" / "recovery.json"
    git = ["git", "rev-parse", "--short", "HEAD"]
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}",
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "load": os.getloadavg()[0],
    }
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for name, measure in (("guard", lambda work: guard(spark, work)), ("long", lambda work: long(spark, work, millions))):
        if part not in ("all", name):
            continue
        work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        try:
            results[name] = {**about, **measure(work)}
        finally:
            shutil.rmtree(work, ignore_errors=True)
        kept.write_text(json.dumps(results, indent=2) + "\n")
    if "long" in results:
        plot(results["long"], here.parent / "docs" / "images" / "recovery.png")


if __name__ == "__main__":
    main()
