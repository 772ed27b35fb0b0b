"""Latency of a live rescale, in one run: budgeted, all at once, and Spark's own way (stop, repartition the checkpoint, restart).

    python benchmarks/rescale.py                 1 M keys, then 5 M
    python benchmarks/rescale.py 1000000 offline   one size, and some of the parts: budget, doubled, at once, offline

Three workers become four under steady load, so 25 % of the state moves; and back, until there are enough epochs. Durations are
those of whole epochs, from deciding to committed. An epoch for which the host of a virtual machine took its cores away says nothing
about penstock: the ratios leave such epochs out, and beside them stand the same figures of all epochs. Writes JSON under
benchmarks/results and a plot under docs/images.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark.session.local import session
from penstock.types import BINS

SCHEMA = "k long, at timestamp, v double"
EVENTS = 20_000
WARM_UP, BEFORE, SETTLE, AFTER, DURING = 60, 50, 10, 50, 60  # epochs
STOLEN = 0.05
"""An epoch counts for the ratios if the host of this virtual machine took no more of its cores' time; ``raw_`` figures are of all."""


def write(folder: Path, number: int, keys: np.ndarray[Any, Any]) -> None:
    at = (1_700_000_000_000_000 + number * 1_000_000 + np.arange(len(keys))).astype("datetime64[us]")
    table = pa.table({"k": keys, "at": pa.array(at, pa.timestamp("us", "UTC")), "v": np.ones(len(keys))})
    hidden = folder / f".{number:06d}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"{number:06d}.parquet")
    os.utime(folder / f"{number:06d}.parquet", (1_700_000_000 + number,) * 2)


def load(folder: Path, keys: int) -> int:
    """Files that make `keys` keys, a million per file."""
    folder.mkdir(parents=True)
    size = min(keys, 1_000_000)
    for i in range(keys // size):
        write(folder, i, np.arange(i * size, (i + 1) * size))
    return keys // size


@contextmanager
def feeding(folder: Path, first: int, keys: int) -> Iterator[None]:
    """Keep a few steady files ready, so that an epoch never waits for its input."""
    done, rng = threading.Event(), np.random.default_rng(3)
    number = first

    def feed() -> None:
        nonlocal number
        while not done.is_set():
            if number - first - len(seen) < 8:
                write(folder, number, rng.integers(0, keys, EVENTS))
                number += 1
            else:
                done.wait(0.02)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


seen: list[int] = []


class Memory:
    """Greatest memory (bytes) that Spark's Python workers had together; sampled."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.5):
            total = 0
            for child in me.children(recursive=True):
                try:
                    total += child.memory_info().rss if "python" in child.name() else 0
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)

    def stop(self) -> int:
        self._done.set()
        return self.peak


def stolen_s() -> float:
    """Seconds of cores that the host of this virtual machine has kept from it so far; 0 where nothing tells."""
    stat = Path("/proc/stat")
    return int(stat.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK") if stat.exists() else 0.0


def measure(spark: SparkSession, keys: int, budget: str | None, work: Path) -> dict[str, Any]:
    """One flow that scales from 3 to 4 workers under way, and back, until enough of its epochs were left in peace."""
    folder, checkpoint = work / "in", work / "checkpoint"
    first = load(folder, keys)
    seen.clear()
    began: list[tuple[float, float]] = []
    rows: list[dict[str, Any]] = []
    held: list[Any] = []
    flow = ps.Flow("bench")
    events = flow.source("events", ps.files(str(folder), SCHEMA, max_files_per_epoch=1))
    events.key_by("k", name="k").aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop())

    def before(step: str) -> None:
        if step == "decide":
            began.append((time.perf_counter(), stolen_s()))
        elif step == "committed":
            seen.append(1)
            figures = held[0].regions.get("k", {}).get("rescale", {}) if held else {}
            took = time.perf_counter() - began[-1][0]
            lost = (stolen_s() - began[-1][1]) / took / (os.cpu_count() or 1)
            rows.append({"s": took, "stolen": lost, **figures})

    def in_peace(some: list[dict[str, Any]]) -> list[float]:
        return [row["s"] for row in some if row["stolen"] <= STOLEN]

    def steady(epochs: int) -> list[dict[str, Any]]:
        since = len(rows)
        wait(run, lambda: len(in_peace(rows[since:])) >= epochs or len(rows) >= since + 3 * epochs)
        return rows[since:]

    spans, figures = [], {}
    with feeding(folder, first, keys):
        memory = Memory()
        run = flow.start(spark, checkpoint=str(checkpoint), workers=3, trigger="0 seconds", step_budget=budget, on_step=before)
        held.append(run)
        wait(run, lambda: len(rows) >= first + WARM_UP)
        others = steady(BEFORE)
        for workers in (4, 3, 4, 3):
            begun, handle = len(rows), run.scale("k", workers)
            assert handle.wait()
            spans.append((begun, len(rows)))
            figures = figures or run.regions["k"]["last_rescale"]  # of the first
            wait(run, lambda: len(rows) >= spans[-1][1] + SETTLE)
            others += steady(AFTER)
            during = [row for a, b in spans for row in rows[a : b + 1]]
            if len(in_peace(during)) >= DURING:
                break
        run.shutdown(drain=False)
    told = {"": (in_peace(others), in_peace(during)), "raw_": tuple([row["s"] for row in some] for some in (others, during))}
    return {
        "keys": keys,
        "epochs_ms": [round(row["s"] * 1000, 1) for row in rows[first:]],
        "stolen": [round(row["stolen"], 3) for row in rows[first:]],
        "steps": [{n: r[n] for n in ("step_bytes", "cost_us", "moved_keys")} for r in rows if "step_bytes" in r],
        "rescale_epochs": [(a - first, b - first) for a, b in spans],
        "rescale_s": sum(row["s"] for row in rows[spans[0][0] : spans[0][1] + 1]),
        **{name: value for prefix, (calm, busy) in told.items() for name, value in compared(prefix, calm, busy).items()},
        "moved_keys": figures.get("moved_keys"),
        "moved_bytes": figures.get("moved_bytes"),
        "python_peak_bytes": memory.stop(),
    }


def compared(prefix: str, steady: list[float], during: list[float]) -> dict[str, float]:
    """Durations, and those during a rescale as multiples of the steady p99."""
    if not steady or not during:
        return {f"{prefix}steady_epochs": len(steady), f"{prefix}during_epochs": len(during)}
    p99 = float(np.quantile(steady, 0.99))
    return {
        **phase(f"{prefix}steady", steady),
        **phase(f"{prefix}during", during),
        f"{prefix}p99_ratio": float(np.quantile(during, 0.99)) / p99,
        f"{prefix}max_ratio": max(during) / p99,
    }


def phase(name: str, took: list[float]) -> dict[str, float]:
    """Duration of epochs: half of them, 99 % of them, and all of them took no longer."""
    p50, p99 = (1000 * float(np.quantile(took, q)) for q in (0.5, 0.99))
    return {f"{name}_epochs": len(took), f"{name}_p50_ms": p50, f"{name}_p99_ms": p99, f"{name}_max_ms": 1000 * max(took)}


def wait(run: Any, ready: Any) -> None:
    while not ready():
        if run.exception is not None:
            raise run.exception
        time.sleep(0.02)


def offline(spark: SparkSession, keys: int, work: Path) -> dict[str, Any]:
    """The equivalent native query: stop, Spark's offline repartition of the checkpoint, restart; the time without any epoch."""
    from benchmarks import native  # noqa: PLC0415  (found once the path is set)

    folder, checkpoint = work / "native", str(work / "native-checkpoint")
    first = load(folder, keys)
    rng = np.random.default_rng(3)
    for i in range(3):
        write(folder, first + i, rng.integers(0, keys, EVENTS))
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    native.run(spark, "transformWithState", folder, SCHEMA, 1, checkpoint)
    for i in range(2):
        write(folder, first + 3 + i, rng.integers(0, keys, EVENTS))
    start = time.perf_counter()
    spark._streamingCheckpointManager.repartition(checkpoint, 4)  # noqa: SLF001  (private, and the only one)
    repartitioned = time.perf_counter()
    ends = native.ends(spark, "transformWithState", folder, SCHEMA, 1, checkpoint)
    return {"repartition_s": repartitioned - start, "downtime_s": ends[0] - start}


def doubled(keys: int) -> dict[str, Any]:
    """Twice the keys over twice the bins: in a process that has a copy of penstock in which there are so many."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        copied = Path(shutil.copytree(Path(ps.__file__).parent, Path(place, "penstock")), "types.py")
        text = copied.read_text()
        assert text.count(f"BINS: Final = {BINS}\n") == 1
        copied.write_text(text.replace(f"BINS: Final = {BINS}\n", f"BINS: Final = {2 * BINS}\n"))
        program = f"import json; from benchmarks import rescale; print(json.dumps(rescale.alone({2 * keys}, {2 * BINS})))"
        paths = os.pathsep.join([place, str(Path(__file__).parent.parent)])
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return {**json.loads(ended.stdout.splitlines()[-1]), "bins": 2 * BINS}


def alone(keys: int, bins: int) -> dict[str, Any]:
    """One budgeted rescale, in a session of its own."""
    assert bins == BINS, "another penstock was imported"
    spark = session("local[2]", "bench", **{"spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as work:
        return measure(spark, keys, "50 milliseconds", Path(work))


def plot(results: dict[str, Any], path: Path) -> None:
    """Duration of every epoch before, during and after."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    shown = {n: r for n, r in results.items() if "epochs_ms" in r}
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 2.6 * len(shown)), sharey=False, squeeze=False)
    for axis, (name, r) in zip(axes[:, 0], shown.items(), strict=True):
        for i, (begin, end) in enumerate(r["rescale_epochs"]):
            label = None if i else f"rescale, {r['rescale_s']:.1f} s"
            axis.axvspan(begin, end, color="#f2c14e", alpha=0.4, label=label)
        axis.plot(r["epochs_ms"], color="#20639b", linewidth=1, marker=".", markersize=3)
        lost = [(i, r["epochs_ms"][i]) for i, share in enumerate(r.get("stolen", ())) if share > STOLEN]
        if lost:
            axis.plot(*zip(*lost, strict=True), "x", color="#999999", markersize=4, label="cores taken away")
        axis.axhline(r["steady_p99_ms"], color="#777777", linewidth=0.8, linestyle="--", label="steady p99")
        axis.set_title(f"{name}: 3 to 4 workers, {r['keys']:,} keys; max {r['max_ratio']:.2f} × steady p99", fontsize=10)
        axis.set_ylabel("epoch, ms")
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper right", fontsize=8)
    axes[-1, 0].set_xlabel("epoch")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    sizes = [int(sys.argv[1])] if len(sys.argv) > 1 else [1_000_000, 5_000_000]
    parts = sys.argv[2].split(",") if len(sys.argv) > 2 else ["budget", "doubled", "at once", "offline"]
    spark = session("local[2]", "bench", **{"spark.driver.memory": "4g"})
    results: dict[str, Any] = {}
    for keys in sizes:
        for name, budget in (("budget", "50 milliseconds"), ("at once", None)):
            if name not in parts:
                continue
            work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
            try:
                results[f"{name}, {keys:,} keys"] = r = measure(spark, keys, budget, work)
                print(f"{name}, {keys:,} keys", {k: v for k, v in r.items() if k not in ("epochs_ms", "steps")}, flush=True)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        if "doubled" in parts:
            name = f"budget, {2 * keys:,} keys, {2 * BINS:,} bins"
            results[name] = r = doubled(keys)
            print(name, {k: v for k, v in r.items() if k not in ("epochs_ms", "steps")}, flush=True)
        if "offline" in parts:
            work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
            try:
                results[f"Spark offline, {keys:,} keys"] = r = offline(spark, keys, work)
                print(f"Spark offline, {keys:,} keys", r, flush=True)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    here = Path(__file__).parent
    kept = here / "results" / "rescale.json"
    if len(sys.argv) > 2:  # some parts again: beside those there are, which keep their own machine and commit
        results = {**json.loads(kept.read_text()), **{name: {**about, **r} for name, r in results.items()}}
        about = {}
    kept.write_text(json.dumps({**about, **results}, indent=2) + "\n")
    plot({n: r for n, r in results.items() if isinstance(r, dict)}, here.parent / "docs" / "images" / "rescale.png")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
