"""Patterns: the kernel alone, end to end from Parquet, in a flow, and enumeration; ratios measured in one run.

    python benchmarks/cer.py                      all, twenty minutes
    python benchmarks/cer.py kernel batch         some

The floor of `batch` is the same Spark plan with an identity task: read, repartition by key, mapInArrow; beside it, what it takes when
Spark sorts by (key, time) as well. Before anything is timed, each query of `kernel`, `enumeration` and `batch` is asked of a few events,
and of the reference; they must agree on the number of matches. Of the heavy query arithmetic tells it.
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
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

import penstock as ps
from penstock.patterns.algebra import Everything, Window
from penstock.patterns.automaton.build import build
from penstock.patterns.automaton.determine import Determiniser
from penstock.patterns.recogniser.recogniser import Batch, Recogniser
from penstock.patterns.recogniser.tables import Tables
from penstock.patterns.reference import Seen, evaluate
from penstock.patterns.result_columns import list_of
from penstock.spark.session.local import session

REPEATS = 5
BEGIN_US = 1_700_000_000_000_000
CHUNK = 1 << 18
EPOCHS = 9  # of each flow
HEAVY, HEAVY_WINDOW = 24, 21  # events of the heavy query
SMALL_EPOCHS, SMALL_FILE = 60, 10_000


def median(took: list[float]) -> float:
    return statistics.median(took)


# --------------------------------------------------------------------------------------------------------------- agreement


def right(query: str, events: list[Seen], window: int | None = None) -> int:
    """How many matches there are, by the reference. `window`: so many events, where the query does not say."""
    parsed = ps.parse(query)
    within = parsed.window if window is None else Window("events", window)
    asked = replace(parsed, projection=Everything(), window=within)
    return sum(answer.count for answers in evaluate(asked, events).values() for answer in answers)


def agreed(query: str, given: int, wanted: int) -> int:
    """The number of matches, if it is right.

    Raises:
        SystemExit: It is not.
    """
    if given != wanted:
        raise SystemExit(f"{query} gives {given:,} matches of a small part of the events, but the reference {wanted:,}.")
    return given


# ------------------------------------------------------------------------------------------------------------------ kernel


def drawn(events: int, types: int) -> np.ndarray:
    """Uniformly random types of events, as numbers."""
    return np.random.default_rng(1).integers(0, types, events)


def preloaded(query: str, kinds: np.ndarray, window: int) -> tuple[Recogniser, list[Batch]]:
    """A recogniser and its events, of types T0, T1 and so on."""
    parsed = ps.parse(query)
    automaton = build(parsed)
    tables = Tables(Determiniser(automaton, parsed.strategy))
    bits = {test.type: 1 << bit for bit, test in enumerate(automaton.tests)}
    masks = np.array([bits.get(f"T{i}", 0) for i in range(kinds.max() + 1)], np.uint64)
    letters = tables.letters(masks[kinds][None])
    when = np.arange(len(kinds))
    batches = [
        Batch(
            letters[a : a + CHUNK],
            when[a : a + CHUNK],
            when[a : a + CHUNK] - window,
            np.array([0, len(letters[a : a + CHUNK])]),
            np.array([0]),
        )
        for a in range(0, len(kinds), CHUNK)
    ]
    return Recogniser(tables, consume="NONE" if parsed.consume == "NONE" else "PARTITION"), batches


def recognise(
    query: str,
    events: int,
    types: int,
    window: int,
    *,
    counting: bool = False,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, int]:
    """Seconds for all events, by a clock, and how many closing events (or matches) there were."""
    took, found = [], 0
    for _ in range(repeats):
        recogniser, batches = preloaded(query, drawn(events, types), window)
        found, start = 0, clock()
        for batch in batches:
            if counting:
                found += sum(int(c) for counts in recogniser.count(batch) for c in _whole(counts.words))
            else:
                found += sum(closings.shape[1] for closings, _ in recogniser.closings(batch))
            recogniser.keep(np.array([0]), batch.low[-1:])
        took.append(clock() - start)
    return median(took), found


def checked(query: str, kinds: np.ndarray, window: int = 60) -> int:
    """Matches of a few events, as the reference has them."""
    recogniser, batches = preloaded(query, kinds, window)
    wanted = right(query, [Seen(frozenset({f"T{i}"}), {}, n) for n, i in enumerate(kinds)], window)
    if "COUNT" in query:
        return agreed(query, sum(sum(_whole(c.words)) for c in recogniser.count(batches[0])), wanted)
    return agreed(query, sum(len(block.ends) for block in recogniser.feed(batches[0])), wanted)


def _whole(words: np.ndarray) -> list[int]:
    return [int(low) + (int(high) << 64) for low, high in words.T]


def kernel(_spark: SparkSession, _work: Path) -> dict[str, float]:
    """Events per second and core, preloaded, one key; CONSUME BY ANY."""
    found: dict[str, float] = {}
    recognise("SELECT * WHERE T0 ; T1", 1000, 3, 10)
    recognise("SELECT COUNT(*) WHERE T0 ; T1", 1000, 3, 10, counting=True)
    asked: list[tuple[str, str, int, int]] = []
    for steps, types in ((3, 9), (9, 15), (24, 30)):
        sequence = " ; ".join(f"T{i}" for i in range(steps))
        if steps < 24:
            short = f"SELECT * WHERE {' ; '.join(f'T{i % 3}' for i in range(steps))} CONSUME BY ANY"  # of few types, so there are some
            few = drawn(60 if steps == 3 else 40, 3)
        else:  # each in its turn, every third twice, and others between
            short = f"SELECT * WHERE {sequence} CONSUME BY ANY"
            few = np.array([kind for i in range(steps) for kind in ([i, i, steps + i % 6] if i % 3 == 0 else [i])])
        found[f"{steps} steps: matches as the reference has"] = checked(short, few)
        asked += [
            (f"{steps} steps, window {window}", f"SELECT * WHERE {sequence} CONSUME BY ANY", types, window)
            for window in (100, 10_000)
        ]
    rounds = [[recognise(query, 5_000_000, types, n, repeats=1) for _, query, types, n in asked] for _ in range(2 * REPEATS)]
    for (name, *_), runs in zip(
        asked, zip(*rounds, strict=True), strict=True
    ):  # in turn, so that what else the machine does meets all
        found[f"{name}: M events/s"] = 5 / median(took for took, _ in runs)
        found[f"{name}: closing events"] = runs[0][1]
    found["Kleene: matches as the reference has"] = checked("SELECT COUNT(*) WHERE T0 ; T1+ ; T2", drawn(90, 9))
    rates = [value for name, value in found.items() if name.endswith("events/s")]
    found["fastest / slowest"] = max(rates) / min(rates)
    took, matches = recognise("SELECT COUNT(*) WHERE T0 ; T1+ ; T2", 2_000_000, 9, 100, counting=True)
    found["Kleene, COUNT(*), window 100: M events/s"] = 2 / took
    found["Kleene, COUNT(*), window 100: matches"] = float(matches)
    return found


QUANTIFIED = {
    "T0{4} ; T1": "T0 ; T0 ; T0 ; T0 ; T1",
    "T0:{3} : T1": "T0 : T0 : T0 : T1",
    "T0 ; T1{1,3} ; T2": "T0 ; T1 ; T2 OR T0 ; T1 ; T1 ; T2 OR T0 ; T1 ; T1 ; T1 ; T2",
    "T0 ; T1? ; T2": "T0 ; T2 OR T0 ; T1 ; T2",
    "T0 ; T1* ; T2": "T0 ; T2 OR T0 ; T1+ ; T2",
}


def quantifiers(_spark: SparkSession, _work: Path) -> dict[str, float]:
    """CPU seconds of a quantified pattern / of the same written out, for 2 M events of 9 types, window 100; in turn, the least of each."""
    found: dict[str, float] = {}
    for short, long in QUANTIFIED.items():
        asked = [f"SELECT * WHERE {text}" for text in (short, long)]
        matches = [checked(query, drawn(60, 3), 12) for query in asked]
        found[f"{short}: matches as the reference has"] = float(agreed(asked[1], *matches))
        pairs = [
            [recognise(query, 2_000_000, 9, 100, repeats=1, clock=time.process_time)[0] for query in asked]
            for _ in range(3 * REPEATS)
        ]
        one, two = (min(took) for took in zip(*pairs, strict=True))
        found[f"{short}: CPU s"] = one
        found[f"{short}: CPU / written out"] = one / two
    return found


# ------------------------------------------------------------------------------------------------------------- enumeration


def enumeration(spark: SparkSession, _work: Path) -> dict[str, float]:
    """Matches per second and core as Arrow, five events each; and how a heavy query spreads."""
    query, n = "SELECT * WHERE T0 ; T1 ; T2 ; T3 ; T4", 4_000
    few = checked(query, drawn(90, 9), 40)
    events = pa.record_batch({"t": np.arange(n), "v": np.random.default_rng(2).random(n)})
    took, told = [], 0
    for _ in range(2):
        recogniser, batches = preloaded(query, drawn(n, 9), 250)
        start, told = time.perf_counter(), 0
        for block in recogniser.feed(batches[0]):
            told += len(block.ends)
            list_of(events, ("t", "v"), block.positions, block.offsets)
        took.append(time.perf_counter() - start)
    found = {"matches as the reference has": float(few), "matches": float(told), "M matches/s/core": told / min(took) / 1e6}
    matched = heavy(spark)
    per_task = [r["n"] for r in matched.groupBy(F.spark_partition_id().alias("p")).agg(F.count("*").alias("n")).collect()]
    subsets = HEAVY + sum(
        (HEAVY - d) << (d - 1) for d in range(1, HEAVY_WINDOW + 1)
    )  # by the distance of the first and the last
    found["heavy query, matches"] = agreed("the heavy query", sum(per_task), subsets)
    for cores in (1, 2):
        command = [sys.executable, __file__, "heavy", str(cores)]
        found[f"heavy query, s on {cores}"] = float(
            subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split()[-1]
        )
    found["heavy query, 1 core / 2 cores"] = found["heavy query, s on 1"] / found["heavy query, s on 2"]
    found["balance (max / mean of tasks)"] = max(per_task) / (sum(per_task) / len(per_task))
    return found


def heavy(spark: SparkSession) -> DataFrame:
    """Few events, of which every subset that fits into the window is a match."""
    frame = spark.range(0, HEAVY).selectExpr("id AS t", "'B' AS kind", "cast(id AS double) AS v").localCheckpoint()
    many = ps.CountedSplit(light=1000)
    return ps.match(frame, f"SELECT * WHERE B+ WITHIN {HEAVY_WINDOW} EVENTS", order_by="t", type="kind", enumerate_with=many)


def heavy_alone(cores: int) -> None:
    """Print the seconds of the heavy query where all of Spark, Java's threads too, has so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    print(timed(heavy(session(f"local[{cores}]"))))


# ---------------------------------------------------------------------------------------------------------- batch and flow


QUERIES = {
    "3 steps, consume": "SELECT * WHERE T0 ; T1 ; T2 PARTITION BY [k] WITHIN 60 SECONDS CONSUME BY PARTITION",
    "Kleene, MAX": "SELECT MAX * WHERE T0 ; T1+ ; T2 PARTITION BY [k] WITHIN 20 SECONDS CONSUME BY PARTITION",
    "contiguous": "SELECT * WHERE T0 : T1 : T2 PARTITION BY [k]",
    "Kleene, COUNT(*)": "SELECT COUNT(*) WHERE T0 ; T1+ ; T2 PARTITION BY [k] WITHIN 20 SECONDS",
}


def write_events(folder: Path, keys: int, sizes: list[int]) -> None:
    """Files of so many events each, one after the other: 10,000 events a second."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    names = np.array([f"T{i}" for i in range(9)])
    begun = 0
    for i, n in enumerate(sizes):
        at = BEGIN_US + (begun + np.arange(n)) * 100
        begun += n
        table = pa.table(
            {
                "k": rng.integers(0, keys, n),
                "at": pa.array(at.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
                "kind": names[rng.integers(0, 9, n)],
                "v": rng.random(n),
            }
        )
        path = folder / f"{i:03d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (BEGIN_US // 1_000_000 + i,) * 2)  # a flow reads files in this order


def once(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.write.format("noop").mode("append").save()
    return time.perf_counter() - start


def timed(frame: DataFrame) -> float:
    return median([once(frame) for _ in range(REPEATS)][1:])


def in_turn(frames: list[DataFrame]) -> list[list[float]]:
    """Seconds of each, run one after the other in each round; without the first round, in which the JVM still compiles.

    The machine's speed drifts within minutes: only what was run side by side is compared.
    """
    rounds = [[once(frame) for frame in frames] for _ in range(REPEATS + 1)][1:]
    return [list(of_frame) for of_frame in zip(*rounds, strict=True)]


def batch(spark: SparkSession, work: Path) -> dict[str, float]:
    """5 M events on 10 k keys, Parquet in, matches out, against the identity plan."""
    folder = work / "events"
    write_events(folder, 10_000, [625_000] * 8)
    frame = spark.read.parquet(str(folder))

    def identity(batches):
        yield from batches

    floor = frame.repartition("k")
    plans = [plan.mapInArrow(identity, plan.schema) for plan in (floor, floor.sortWithinPartitions("k", "at"))]
    found: dict[str, float] = {}
    for name, query in QUERIES.items():
        matched = ps.match(frame, query, order_by="at", type="kind")
        found[f"{name}: matches as the reference has, of a small part"] = checked_batch(frame, query)
        found[f"{name}: rows"] = float(matched.count())
        plain, in_order, ours = in_turn([*plans, matched])
        found[f"{name}: s"] = median(ours)
        found[f"{name}: identity plan s"] = median(plain)
        found[f"{name}: / identity plan"] = median([a / b for a, b in zip(plain, ours, strict=True)])
        found[f"{name}: / identity plan, sorted by Spark"] = median([a / b for a, b in zip(in_order, ours, strict=True)])
    return found


def checked_batch(frame: DataFrame, query: str) -> int:
    """Matches of the first forty seconds of a few keys, as the reference has them."""
    part = frame.where(f"k < 12 AND at < timestamp_micros({BEGIN_US + 40_000_000})").localCheckpoint()
    rows = part.orderBy("at").selectExpr("k", "unix_micros(at) AS at", "kind").collect()
    wanted = right(query, [Seen(frozenset({row.kind}), {"k": row.k}, row.at) for row in rows])
    matched = ps.match(part, query, order_by="at", type="kind")
    told = matched.agg(F.sum("matches")).first()[0] if "matches" in matched.columns else matched.count()
    return agreed(query, int(told or 0), wanted)


def streaming(spark: SparkSession, work: Path) -> dict[str, float]:
    """The same queries in a flow, event time, against batch over as many events as an epoch has; just begun, and after 60 small epochs."""
    found: dict[str, float] = {}
    for millions in (1.25, 5):
        file = int(millions * 5e5)
        for small in (0, SMALL_EPOCHS):
            folder = work / f"stream{millions}-{small}"
            write_events(folder, 10_000, [SMALL_FILE] * 2 * small + [file] * 2 * EPOCHS)
            for query, text in QUERIES.items():
                epoch, ratio = beside_batch(spark, folder, text, work / f"{millions} {query} {small}", small)
                name = f"epochs of {millions} M, {query}{', just begun' * (not small)}"
                found |= {f"{name}: M events/s": millions / epoch, f"{name}: / batch": ratio}
            shutil.rmtree(folder)
    return found


def beside_batch(spark: SparkSession, folder: Path, query: str, checkpoint: Path, small: int) -> tuple[float, float]:
    """Seconds of a flow's epoch that reads two files, one per core, from commit to commit; and batch / epoch. After `small` others.

    Between each two epochs the same query runs in batch, over two files as well: the machine's speed drifts, so an epoch is compared
    with what was run right before and after it. Medians of all but the first two. The JVM goes on compiling what the driver does for
    about as many epochs as `SMALL_EPOCHS`: a flow that has just begun is slower.
    """
    part = spark.read.parquet(*(str(folder / f"{2 * small + i:03d}.parquet") for i in range(2)))
    matched = ps.match(part, query, order_by="at", type="kind")
    flow = ps.Flow("flow")
    source = ps.files(folder, "k long, at timestamp, kind string, v double", max_files_per_epoch=2)
    events = flow.source("events", source, time="at", lateness="1 second")
    events.key_by("k").match(query, type="kind").sink(ps.noop())
    epochs: list[float] = []
    batches: list[float] = []
    begun, before_these = 0.0, small

    def before(step: str) -> None:
        nonlocal begun, before_these
        if step == "committed":
            before_these -= 1
            if before_these < 0:
                epochs.append(time.perf_counter() - begun)
                batches.append(once(matched))
            begun = time.perf_counter()

    run = flow.start(spark, checkpoint=checkpoint, workers=2, trigger="0 seconds", on_step=before)
    while run.active and len(batches) < EPOCHS:
        time.sleep(0.02)
    run.shutdown(drain=False, timeout=120)
    around = [(a + b) / 2 for a, b in pairwise(batches[:EPOCHS])]
    ratios = [batch / epoch for batch, epoch in zip(around, epochs[1:EPOCHS], strict=True)]
    return median(epochs[2:EPOCHS]), median(ratios[1:])


PARTS = {"kernel": kernel, "quantifiers": quantifiers, "enumeration": enumeration, "batch": batch, "streaming": streaming}


def main() -> None:
    if sys.argv[1:2] == ["heavy"]:  # a process of its own, see `enumeration`
        heavy_alone(int(sys.argv[2]))
        return
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise SystemExit(f"There is no part {unknown[0]!r}; there are {', '.join(PARTS)}.")
    spark = session("local[2]")
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}"
    results: dict[str, object] = {"machine": machine, "commit": head}
    try:
        for name in chosen:
            print(f"== {name}: {PARTS[name].__doc__}")
            results[name] = found = PARTS[name](spark, work)
            for key, value in found.items():
                print(f"  {key:55} {value:16,.3f}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / ("cer.json" if chosen == list(PARTS) else f"cer-{'-'.join(chosen)}.json")).write_text(
        json.dumps(results, indent=2) + "\n"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
