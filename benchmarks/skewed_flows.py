"""Flows on a stream of which one key has half of all rows: what dividing or isolating it brings, beside plain Spark.

    python benchmarks/skewed_flows.py                               all, about eight minutes on two cores
    python benchmarks/skewed_flows.py divided isolate               some of the parts: divided, isolate, spark, stage
    python benchmarks/skewed_flows.py --scale 0.2 --rounds 1        a look

Cases take turns; figures are medians of rounds, ratios those of the same round. Cases that must give the same rows are compared.
With fewer cores than workers, a worker with half of the work delays an epoch little, since all other work fits beside it: the table says what
arithmetic allows. The heaviest worker's CPU time says what an epoch would gain where every worker has a core of its own.
Asserts nothing of speed. Writes JSON under benchmarks/results.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.spark.session.local import session

SCHEMA = "k long, at timestamp, v long"
WORKERS, KEYS, VALUES, FILES = 8, 10_000, 1_000, 4
BEGIN_S, WINDOW_S = 1_700_000_000, 10
"""The rows of an epoch, which are in the order of their times, fill one window."""
WINDOW, EPOCHS = f"{WINDOW_S} seconds", 3
Declare = Callable[[ps.Stream], ps.Stream]


class Registers(ps.Aggregate):
    """A sketch in plain Python, a microsecond or two per value: the sum of 32 HyperLogLog registers."""

    type = "bigint"
    commutative = True

    def zero(self):
        return bytearray(32)

    def add(self, state, value):
        code = zlib.crc32(b"%d" % value)
        at = code & 31
        state[at] = max(state[at], 28 - (code >> 5).bit_length())
        return state

    def merge(self, a, b):
        return bytearray(map(max, a, b))

    def finish(self, state):
        return sum(state)


def count_events(key, event, state):
    """The Python function of `stateful_map`."""
    n, total = state or (0, 0)
    n, total = n + 1, total + event.v
    return (key, n, total), (n, total)


@dataclass
class Ran:
    """What is known of a run: the seconds of its epochs, its region's figures by epoch, and the rows it gave."""

    seconds: list[float]
    figures: list[Any] = field(default_factory=list)
    rows: pa.Table | None = None

    def work(self, at: int) -> np.ndarray[Any, Any]:
        """The CPU time of each worker in an epoch (ms)."""
        return np.array(self.figures[at].worker_cpu_ms, float)


class Bench:
    """A session, a folder, and the lines of the table: what, how much, and what is needed or allowed."""

    def __init__(self, spark: SparkSession, work: Path, asked: argparse.Namespace) -> None:
        self.spark, self.work, self.cores, self.scale, self.rounds = spark, work, asked.cores, asked.scale, asked.rounds
        self.lines: list[tuple[str, str, float, str]] = []
        self.part = ""

    def write(
        self, name: str, epochs: int, rows: float, hot: str = "no", files: int = FILES, *, keys: int = KEYS, close: bool = False
    ) -> Path:
        """A folder. hot: half of the rows have one key ("yes"), or are of other keys all ("no"), or are left out ("left out").

        close: A last epoch has one record that comes a day later, so that all windows before it are complete.
        """
        rng, size, folder = np.random.default_rng(7), round(rows * self.scale), self.work / name
        folder.mkdir()
        for epoch in range(epochs + close):
            count, start = (size, epoch * WINDOW_S) if epoch < epochs else (1, 86_400)
            at = ((BEGIN_S + start) * 1_000_000 + np.arange(count) * WINDOW_S * 1_000_000 // count).astype("datetime64[us]")
            half, others = rng.random(count) < 0.5, rng.integers(1, keys, count)
            columns = {"k": np.where(half & (hot == "yes"), 0, others), "at": pa.array(at, pa.timestamp("us", "UTC"))}
            table = pa.table({**columns, "v": rng.integers(0, VALUES, count)})
            table = table.filter(pa.array(~half)) if hot == "left out" else table
            each = -(-len(table) // files)
            for i, first in enumerate(range(0, len(table), each)):
                path = folder / f"{epoch:05d}-{i}.parquet"
                pq.write_table(table.slice(first, each), path, row_group_size=each)
                os.utime(path, (BEGIN_S + epoch * files + i,) * 2)
        return folder

    def flow(self, folder: Path, declare: Declare, *, files: int = FILES, timed: bool = True) -> Ran:
        """Run a flow over a folder. timed: by event time; its rows are kept."""
        checkpoint, done, ends = tempfile.mkdtemp(dir=self.work), Ran([]), [time.perf_counter()]
        flow, out = ps.Flow("skewed"), ps.memory(checkpoint)
        time_of = {"time": "at", "lateness": "1 second"} if timed else {}
        source = flow.source("s", ps.files(str(folder), SCHEMA, max_files_per_epoch=files), **time_of)
        declare(source).sink(out if timed else ps.noop())

        def note(step: str) -> None:
            if step == "committed":
                ends.append(time.perf_counter())
                done.figures += Checkpoint(checkpoint).last().figures.regions.values()

        run = flow.start(self.spark, checkpoint=checkpoint, workers=WORKERS, on_step=note, trigger="available_now", drain=False)
        run.await_termination()
        done.seconds, done.rows = np.diff(ends).tolist(), out.table() if timed else None
        return done

    def in_turn(self, cases: dict[str, Callable[[], Ran]], once: tuple[str, ...] = ()) -> dict[str, list[Ran]]:
        """The runs of each case, of some in the first round only; ends the benchmark if rows differ from those of the first run."""
        found: dict[str, list[Ran]] = {name: [] for name in cases}
        first = None
        for at, name in product(range(self.rounds), cases):
            if at and name in once:
                continue
            found[name].append(ran := cases[name]())
            print(f"    round {at + 1}, {name}: {' '.join(f'{s:.2f}' for s in ran.seconds)}", flush=True)
            if ran.rows is not None:
                rows = ran.rows.sort_by([(column, "ascending") for column in ran.rows.column_names]).combine_chunks()
                first = first or rows
                if not len(rows) or not rows.cast(first.schema).equals(first):
                    raise SystemExit(f"{name} gave other rows ({len(rows)}) than {next(iter(cases))} ({len(first)}).")
        print(f"    All gave the same {len(first)} rows." if first else "    The rows were not kept.")
        return found

    def line(self, what: str, value: float, beside: str = "") -> None:
        self.lines.append((self.part, what, value, beside))
        print(f"  {what:80} {value:9.3f}   {beside}", flush=True)


def makespan(loads: Any, cores: int) -> float:
    """How long tasks take that are started in order, each on the core that is free first."""
    free = [0.0] * cores
    for load in loads:
        heapq.heapreplace(free, free[0] + load)
    return max(free)


def epoch_s(runs: list[Ran]) -> list[float]:
    """By round: the median of the epochs, without the first one, and without those at the end that close windows."""
    return [statistics.median(ran.seconds[1:EPOCHS]) for ran in runs]


def ratio(a: list[float], b: list[float]) -> float:
    """The median over the rounds that both have."""
    return statistics.median(x / y for x, y in zip(a, b, strict=False))


def divided(bench: Bench) -> None:
    """Hot keys divided: count_distinct, quantile and a Python aggregate in windows of one epoch."""
    state = {"distinct": ps.count_distinct("v"), "q": ps.quantile("v", 0.9), "sketch": Registers("v")}
    strategies = {"KeyGrouping": ps.KeyGrouping(), "Histogram": ps.Histogram(), "WChoices": ps.WChoices()}

    def run(folder: Path, strategy: Any) -> Ran:
        return bench.flow(folder, lambda s: s.key_by("k", distribute=strategy).window(ps.tumbling(WINDOW)).aggregate(**state))

    for stream, hot in (("half", "yes"), ("uniform", "no")):
        folder, small = (
            bench.write(stream, EPOCHS, 2_000_000, hot),
            bench.write(f"{stream} small", 2, 100_000 / bench.scale, hot),
        )
        for strategy in strategies.values():
            run(small, strategy)  # compiles kernels, and starts Spark's processes; large enough to be divided
        found = bench.in_turn({name: lambda s=s, f=folder: run(f, s) for name, s in strategies.items()})
        work = {name: [ran.work(at) for ran in runs for at in range(1, EPOCHS)] for name, runs in found.items()}
        heaviest = {name: statistics.median(float(w.max()) for w in each) for name, each in work.items()}
        keyed, took = work["KeyGrouping"][0], {name: epoch_s(runs) for name, runs in found.items()}
        allowed = makespan(keyed, bench.cores) / makespan([keyed.mean()] * WORKERS, bench.cores)
        for name in strategies:
            of, splits = f"{stream}: {name}", name != "KeyGrouping"
            bench.line(f"{of}, epoch s", statistics.median(took[name]))
            even = statistics.median(float(w.max() / w.mean()) for w in work[name])
            bench.line(f"{of}, heaviest worker's CPU / mean", even, "needed <= 1.1" if splits and hot == "yes" else "")
            bench.line(f"{of}, CPU ms of all workers", statistics.median(float(w.sum()) for w in work[name]))
            if splits and hot == "yes":
                beside = f"needed >= 1.6; with {bench.cores} cores arithmetic allows {allowed:.2f}"
                bench.line(f"{of}, epoch of KeyGrouping / epoch", ratio(took["KeyGrouping"], took[name]), beside)
                gain = heaviest["KeyGrouping"] / heaviest[name]
                bench.line(f"{of}, heaviest worker's CPU with KeyGrouping / its", gain, "needed >= 1.6, a core per worker")
            elif splits:
                bench.line(f"{of}, epoch / epoch of KeyGrouping", ratio(took[name], took["KeyGrouping"]), "needed <= 1.1")


def isolate(bench: Bench) -> None:
    """A hot key isolated: stateful_map, and the CPU time of the heaviest worker that has any other key."""
    columns = "k long, n long, total long"

    def run(name: str, epochs: int, hot: str, strategy: Any) -> Callable[[], Ran]:
        folder = bench.write(name, epochs, 400_000, hot)
        declare: Declare = lambda s: s.key_by("k", distribute=strategy).stateful_map(count_events, columns)  # noqa: E731
        return lambda: bench.flow(folder, declare, timed=False)

    plain = ps.KeyGrouping()
    cases = {"KeyGrouping": ("yes", 7, plain), "Isolate": ("yes", 18, ps.Isolate()), "no hot key": ("left out", 7, plain)}
    found = bench.in_turn({name: run(name, epochs, hot, strategy) for name, (hot, epochs, strategy) in cases.items()})
    heaviest, alone = {}, []
    for name, runs in found.items():
        loads = []
        for ran, at in product(runs, range(-4, 0)):
            own = [key.worker for key in ran.figures[at].hot_keys if key.isolated]
            loads.append(float(np.delete(ran.work(at), own).max()))
            alone += [len(own) == 1 and not ran.figures[at].rescale] if name == "Isolate" else []
        heaviest[name] = statistics.median(loads)
        bench.line(f"{name}: CPU ms of the heaviest worker that has other keys", heaviest[name])
        bench.line(f"{name}: epoch s", statistics.median(s for ran in runs for s in ran.seconds[-4:]))
    bench.line("Isolate: share of these epochs in which the key was alone", sum(alone) / len(alone), "needed: 1")
    bench.line("KeyGrouping / no hot key: that worker's CPU", heaviest["KeyGrouping"] / heaviest["no hot key"])
    allowed = f"arithmetic allows {WORKERS / (WORKERS - 1):.2f}, as they have a worker fewer"
    bench.line("Isolate / no hot key: that worker's CPU", heaviest["Isolate"] / heaviest["no hot key"], allowed)


def spark(bench: Bench) -> None:
    """The exact number of distinct values per key and window, by penstock and by Spark, on the same files in one session."""
    from benchmarks import skewed_spark  # noqa: PLC0415  (found once the path is set)

    folder = bench.write("both", EPOCHS, 1_000_000, "yes", close=True, keys=KEYS // 5)  # Spark's Python takes long for each key
    bench.spark.conf.set("spark.sql.shuffle.partitions", str(WORKERS))
    state = "org.apache.spark.sql.execution.streaming.state"
    bench.spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"{state}.RocksDBStateStoreProvider")
    stream = bench.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES).parquet(str(folder))
    ways = skewed_spark.ways(stream, WINDOW_S, WORKERS)

    def native(name: str) -> Ran:
        seconds, rows = skewed_spark.run(ways[name][1], tempfile.mkdtemp(dir=bench.work))
        return Ran(seconds, rows=rows)

    def ours(strategy: Any) -> Ran:
        def declare(s: ps.Stream) -> ps.Stream:
            counted = s.key_by("k", distribute=strategy).window(ps.tumbling(WINDOW)).aggregate(n=ps.count_distinct("v"))
            return counted.local().select("k", "unix_seconds(window_start) AS w", "n")

        return bench.flow(folder, declare)

    cases: dict[str, Callable[[], Ran]] = {"penstock, KeyGrouping": lambda: ours(ps.KeyGrouping())}
    cases |= {"penstock, Histogram": lambda: ours(ps.Histogram()), **{name: lambda n=name: native(n) for name in ways}}
    took = {name: epoch_s(runs) for name, runs in bench.in_turn(cases, once=skewed_spark.SLOW).items()}
    for name, seconds in took.items():
        bench.line(f"{name}: epoch s", statistics.median(seconds), ways[name][0] if name in ways else "count_distinct")
        bench.line(f"{name}: epoch / epoch of penstock, Histogram", ratio(seconds, took["penstock, Histogram"]))


def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As an HTTP call would: 2 ms for every 100 rows."""
    time.sleep(2e-5 * batch.num_rows)
    return batch


def stage(bench: Bench) -> None:
    """A slow map_batches on one file that Spark reads in one task, without and with a stage of eight workers."""
    folder = bench.write("one file", EPOCHS, 150_000, files=1)
    cases: dict[str, Declare] = {
        "one task": lambda s: s.map_batches(wait, SCHEMA),
        "stage": lambda s: s.distribute(ps.Shuffle(), workers=WORKERS).map_batches(wait, SCHEMA),
    }
    runs = bench.in_turn({n: lambda d=d: bench.flow(folder, d, files=1, timed=False) for n, d in cases.items()})
    took = {name: epoch_s(each) for name, each in runs.items()}
    for name in cases:
        bench.line(f"{name}: epoch s", statistics.median(took[name]))
    allowed = f"arithmetic allows {min(bench.cores, WORKERS)}, the tasks at a time"
    bench.line("one task / stage: epoch", ratio(took["one task"], took["stage"]), allowed)


def main() -> None:
    parts = {"divided": divided, "isolate": isolate, "spark": spark, "stage": stage}
    options = argparse.ArgumentParser(description="Flows over Spark whose keys are skewed.")
    options.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; all if none is given")
    options.add_argument("--scale", type=float, default=1.0, help="of the rows")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cores", type=int, default=2, help="tasks at a time")
    asked = options.parse_args()
    if unknown := [name for name in asked.parts if name not in parts]:
        options.error(f"there is no part {unknown[0]!r}; there are {', '.join(parts)}")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    began, work = time.perf_counter(), Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    bench = Bench(session(f"local[{asked.cores}]", "skewed flows"), work, asked)
    on = f"Python {platform.python_version()}, Spark {bench.spark.version} on local[{asked.cores}]"
    found: dict[str, Any] = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, {on}", "commit": git.stdout.strip()}
    found |= {"rounds": asked.rounds, "scale": asked.scale}
    path = Path(__file__).parent / "results" / f"{'-'.join(['skewed_flows', *asked.parts])}.json"
    try:
        for name in asked.parts or parts:
            print(f"== {name}: {parts[name].__doc__}", flush=True)
            bench.part = name
            parts[name](bench)
            found[name] = {what: {"value": value, "beside": beside} for at, what, value, beside in bench.lines if at == name}
            path.write_text(json.dumps({**found, "seconds": round(time.perf_counter() - began)}, indent=1) + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"== all, after {time.perf_counter() - began:.0f} s")
    for at, what, value, beside in bench.lines:
        print(f"{at:8} {what:80} {value:9.3f}   {beside}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
