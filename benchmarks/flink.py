"""`ps.match` beside Flink SQL MATCH_RECOGNIZE, on the same events and queries that both can say; whole jobs, in one run.

    python benchmarks/flink.py ENVIRONMENT      a virtual environment with PyPI's apache-flink; `make bench-flink` makes one

    python benchmarks/flink.py ENVIRONMENT N    N events; writes no JSON file

Both make the events themselves from their numbers, in the JVM, by the same formula: 5 M events, 10 k keys, 9 types. Both use all cores
of this machine, give the three events of each match, and store nothing. Both must give as many matches, or there is no result.

Beside each whole job stands what Spark needs to hand the same events to Python, one row of each batch coming back: as they come, and
by key and sorted. No recogniser that Spark calls in Python can take less than the first, nor one that leaves shuffle and sort to Spark less
than the second.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

import penstock as ps
from penstock.spark.java import ensure_java
from penstock.spark.session import session

EVENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000
WORKERS = os.cpu_count() or 2
FORMULAS = {
    "k": "MOD(MOD(id * 22695477 + 1, 4294967296) / 65536, 10000)",
    "kind": "MOD(MOD(id * 1103515245 + 12345, 2147483648) / 65536, 9)",
}
DEFINED = "DEFINE A AS A.kind = 0, B AS B.kind = 1, C AS C.kind = 2"
SHOWN = "MEASURES A.id AS a, B.id AS b, C.id AS c ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW"
QUERIES = {
    "right after one another": (
        f"{SHOWN} PATTERN (A B C) {DEFINED}",
        "SELECT a[id], b[id], c[id] WHERE zero AS a : one AS b : two AS c PARTITION BY [k] CONSUME BY PARTITION",
    ),
    "with gaps": (
        f"{SHOWN} PATTERN (A X*? B Y*? C) WITHIN INTERVAL '10' MINUTE {DEFINED}",
        "SELECT NEXT a[id], b[id], c[id] WHERE zero AS a ; one AS b ; two AS c PARTITION BY [k] WITHIN 599999 [id] CONSUME BY PARTITION",
    ),
}
KINDS = {"zero": "kind = 0", "one": "kind = 1", "two": "kind = 2"}


def first_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 1)


def timed(frame: DataFrame) -> float:
    took = []
    for _ in range(3):
        start = time.perf_counter()
        frame.write.format("noop").mode("append").save()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def ours() -> dict[str, float]:
    spark = session(f"local[{WORKERS}]")
    whole = {name: sql.replace("/ 65536", "div 65536") for name, sql in FORMULAS.items()}
    events = spark.range(0, EVENTS, 1, 4 * WORKERS).selectExpr("id", f"{whole['k']} AS k", f"{whole['kind']} AS kind")
    found: dict[str, float] = {}
    for name, (_, query) in QUERIES.items():
        matched = ps.match(events, query, order_by="id", define=KINDS)
        found[f"{name}: matches"] = matched.count()
        found[f"{name}: s"] = timed(matched)
    together = events.repartition("k").sortWithinPartitions("k", "id")
    for name, frame in (("as they come", events), ("by key, sorted", together)):
        found[f"events handed to Python {name}: s"] = timed(frame.mapInArrow(first_rows, events.schema))
    spark.stop()
    return found


def theirs(environment: Path) -> dict[str, float]:
    given = json.dumps([EVENTS, WORKERS, FORMULAS, {name: pattern for name, (pattern, _) in QUERIES.items()}])
    ensure_java()
    words = [str(environment / "bin" / "python"), str(Path(__file__).with_name("flink_side.py")), given]
    answered = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(answered.strip().splitlines()[-1])


def main() -> None:
    flink, own = theirs(Path(sys.argv[1])), ours()
    for name in QUERIES:
        key = f"{name}: matches"
        if flink[key] != own[key] or not own[key]:
            raise SystemExit(f"{name}: Flink gives {flink[key]:,} matches, penstock {own[key]:,}.")
    results: dict[str, object] = {"machine": f"{WORKERS} cores, {platform.machine()}", "flink": flink, "penstock": own}
    results["matches that both give"] = {name: own[f"{name}: matches"] for name in QUERIES}
    for name in QUERIES:
        results[f"{name}: × Flink"] = flink[f"{name}: s"] / own[f"{name}: s"]
    print(json.dumps(results, indent=2, ensure_ascii=False))
    folder = Path(__file__).parent / "results"
    if len(sys.argv) > 2:
        return
    (folder / "flink.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
