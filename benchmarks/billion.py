"""A pattern of a thousand million matches, each with its five events: how long it takes, and how much memory.

    python benchmarks/billion.py           five minutes
    python benchmarks/billion.py N         of N events

The matches are counted first, without making them. Then all are made and handed to Spark, which stores nothing.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Self

from pyspark.sql import functions as F  # noqa: N812  (Spark's custom)

import penstock as ps
from penstock.spark.session.local import session

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
QUERY = "SELECT {} WHERE T0 ; T1 ; T2 ; T3 ; T4 WITHIN 250 EVENTS"


class Peaks:
    """The most memory (MiB, resident) that any Python worker and the JVM had, looked at every half second."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_text()
                    pages = int((process / "statm").read_text().split()[1])
                except OSError:  # it has ended
                    continue
                kind = "Python worker" if "pyspark.daemon" in command else "JVM" if "SparkSubmit" in command else None
                if kind is not None:
                    used = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
                    self.seen[kind] = max(self.seen.get(kind, 0.0), used)


def main() -> None:
    spark = session("local[2]")
    events = spark.range(0, EVENTS).selectExpr(
        "id AS t", "concat('T', pmod(xxhash64(id), 5)) AS kind", "cast(id AS double) AS v"
    )
    events = events.localCheckpoint()
    counts = ps.match(events, QUERY.format("COUNT(*)"), order_by="t", type="kind")
    begun = time.perf_counter()
    matches, most = counts.agg(F.sum("matches"), F.max("matches")).first()
    counted = time.perf_counter() - begun
    found = ps.match(events, QUERY.format("*"), order_by="t", type="kind", max_matches_per_event=10**9)
    begun = time.perf_counter()
    with Peaks() as peaks:
        found.write.format("noop").mode("append").save()
    took = time.perf_counter() - begun
    results: dict[str, object] = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, Spark {spark.version}",
        "matches": int(matches),
        "matches of one event, at most": int(most),
        "counted without making them: s": counted,
        "made: s": took,
        "M matches/s": int(matches) / took / 1e6,
        **{f"{kind}, at most: MiB": used for kind, used in sorted(peaks.seen.items())},
    }
    text = json.dumps(results, indent=2)
    print(text)
    if len(sys.argv) == 1:
        (Path(__file__).parent / "results" / "billion.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
