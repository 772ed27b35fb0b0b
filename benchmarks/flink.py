"""`ps.match` beside Flink SQL MATCH_RECOGNIZE, on the same events and queries that both can say; whole jobs, in one run.

    python benchmarks/flink.py ENVIRONMENT      a virtual environment with PyPI's apache-flink; `make bench-flink` makes one

    python benchmarks/flink.py ENVIRONMENT N    N events; writes no JSON file

Each query runs in both in turn, nine times or for four minutes, as the speed of a machine may drift; what counts is the median of the ratios.
What takes a second or two runs three times in each turn, and the median counts, as a single run of it says little.
Both are warm: their processes are there, and each has run the query for as long as Flink takes for it once, or a quarter of a minute, so
that the compilers of both JVMs have seen as much of it.

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
from penstock.spark.session.java import ensure_java
from penstock.spark.session.local import session

EVENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000
WORKERS = os.cpu_count() or 2
ROUNDS, LONGEST_S = 9, 240.0
IN_A_TURN, WARM_S = 3, 15.0
ROWS = 10_000  # that cross to Python at a time: Spark's own number, and the advice of the guide to patterns for small rows
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


def once(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.write.format("noop").mode("append").save()
    return time.perf_counter() - start


class Flink:
    """Flink in a process of its own, which does what it is asked to do, and nothing else meanwhile."""

    def __init__(self, environment: Path) -> None:
        given = json.dumps([EVENTS, WORKERS, FORMULAS, {name: pattern for name, (pattern, _) in QUERIES.items()}])
        words = [str(environment / "bin" / "python"), str(Path(__file__).with_name("flink_side.py")), given]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name: str | None, what: str) -> float:
        """The number of matches, or the seconds that a query takes; of no query: reading the events."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, what]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"answer"'):
                return json.loads(line)["answer"]
        raise SystemExit("Flink ended.")


def side_by_side(flink: Flink, name: str, frames: dict[str, DataFrame]) -> dict[str, float]:
    """Seconds of Flink and of each frame, in turn; medians, and that of the ratios."""
    matches, own = flink.ask(name, "matches"), frames["penstock"].count()
    if matches != own or not own:
        raise SystemExit(f"{name}: Flink gives {matches:,} matches, penstock {own:,}.")
    warm_s = min(flink.ask(name, "s"), WARM_S)
    for frame in frames.values():
        begun = time.perf_counter()
        while time.perf_counter() < begun + warm_s:
            once(frame)
    rounds: list[dict[str, float]] = []
    begun = time.perf_counter()
    while len(rounds) < ROUNDS and time.perf_counter() < begun + LONGEST_S:
        took = {"Flink": flink.ask(name, "s")}
        once(frames["penstock"])  # Spark has ended its Python workers if that took a minute, and Flink's are never ended
        rounds.append(took | {of: statistics.median(once(frame) for _ in range(IN_A_TURN)) for of, frame in frames.items()})
        print(name, rounds[-1], file=sys.stderr)
    found: dict[str, float] = {"matches that both give": own, "rounds": len(rounds)}
    found |= {f"{of}: s": statistics.median(row[of] for row in rounds) for of in rounds[0]}
    found["Flink / penstock"] = statistics.median(row["Flink"] / row["penstock"] for row in rounds)
    return found


def main() -> None:
    ensure_java()
    flink = Flink(Path(sys.argv[1]))
    spark = session(f"local[{WORKERS}]", **{"spark.sql.execution.arrow.maxRecordsPerBatch": ROWS})
    whole = {name: sql.replace("/ 65536", "div 65536") for name, sql in FORMULAS.items()}
    events = spark.range(0, EVENTS, 1, 4 * WORKERS).selectExpr("id", f"{whole['k']} AS k", f"{whole['kind']} AS kind")
    together = events.repartition("k").sortWithinPartitions("k", "id")
    handed = {
        "events handed to Python as they come": events.mapInArrow(first_rows, events.schema),
        "events handed to Python by key and sorted": together.mapInArrow(first_rows, events.schema),
    }
    results: dict[str, object] = {
        "machine": f"{WORKERS} cores, {platform.machine()}",
        "Flink's source alone: s": flink.ask(None, "s"),
    }
    for name, (_, query) in QUERIES.items():
        results[name] = side_by_side(flink, name, {"penstock": ps.match(events, query, order_by="id", define=KINDS), **handed})
    print(json.dumps(results, indent=2, ensure_ascii=False))
    if len(sys.argv) == 2:
        path = Path(__file__).parent / "results" / "flink.json"
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
