"""Flows in a group over Spark: how long partitions stand still when an application joins, leaves or is killed, and whether the others notice.

    python benchmarks/group_flows.py           about four minutes

A Valkey server on the loopback, a producer of some 400 records a second, two applications as processes, each with a driver and a JVM of its own, four
partitions. An epoch's commit is the moment at which its record appears in the partition's checkpoint. Asserts nothing: it prints what is needed
and what is reached, and writes JSON under benchmarks/results.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.spark.session.local import session

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from servers import url_of, valkey  # type: ignore[import-not-found]  # noqa: E402

PARTITIONS, RATE = 4, 400
LEASE = "2 seconds"


def total(card: Any, event: Any, state: Any) -> Any:
    n = (state or 0) + event.amount
    return (card, n), n


def application(url: str, folder: str, member: str) -> None:
    """One application, until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    flow = ps.Flow("cards")
    payments = flow.source(
        "payments", ps.redis_streams(url, "payments", PARTITIONS, "card string, at timestamp, amount long"), time="at"
    )
    cards = payments.key_by("card", distribute=ps.ByPartition())
    cards.stateful_map(total, "card string, total long").sink(ps.sql(f"sqlite:///{folder}/out.db", "totals"))
    group = ps.Group(url, "bench", member=member, lease=LEASE)
    spark = session(master="local[2]")
    run = flow.start(spark, checkpoint=f"{folder}/group", group=group, trigger="200 milliseconds")
    while not (ended.wait(0.05) or run.await_termination(0)):
        Path(folder, f"{member}.new").write_text(json.dumps([n for n, part in run.partitions.items() if part.active]))
        Path(folder, f"{member}.new").replace(Path(folder, f"{member}.owns"))
    run.shutdown(timeout=60)


class Commits(threading.Thread):
    """By partition, the moments at which epochs were committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.at, self.done = folder, defaultdict(dict), False

    def run(self) -> None:
        while not self.done:
            now = time.monotonic()
            for record in self.folder.glob("group/partitions/*/epochs/*.json"):
                self.at[int(record.parts[-3])].setdefault(record.name, now)
            time.sleep(0.01)

    def gaps(self, partition: int, begin: float, end: float) -> list[float]:
        """Seconds between commits, of those after which at least one lies in a time."""
        moments = sorted(self.at[partition].values())
        return [b - a for a, b in itertools.pairwise(moments) if b >= begin and a <= end]


def measure(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with valkey() as server, ps.Producer(url_of(server), "payments", PARTITIONS, key="card") as producer:
        url, feeding = url_of(server), True

        def feed() -> None:
            i = 0
            while feeding:
                rows = [(i + n, f"c{(i + n) % 101}") for n in range(RATE // 10)]
                producer.send_many(
                    {
                        "card": c,
                        "at": f"2026-01-{1 + n // 86400:02d}T{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}Z",
                        "amount": "1",
                    }
                    for n, c in rows
                )
                i += len(rows)
                time.sleep(0.1)

        def begin(member: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, __file__, "application", url, str(folder), member]
            return subprocess.Popen(command, start_new_session=True, stderr=(folder / f"{member}.err").open("w"))

        def owns(member: str) -> list[int]:
            try:
                return list(json.loads((folder / f"{member}.owns").read_text()))
            except (OSError, ValueError):
                return []

        def until(condition: Any) -> float:
            end = time.monotonic() + 180
            while not condition():
                assert time.monotonic() < end, "it takes too long"
                time.sleep(0.02)
            return time.monotonic()

        commits = Commits(folder)
        commits.start()
        threading.Thread(target=feed, daemon=True).start()
        first = begin("first")
        until(lambda: len(owns("first")) == PARTITIONS and all(len(commits.at[p]) > 5 for p in range(PARTITIONS)))
        mark = time.monotonic()
        time.sleep(15)
        steady = [gap for p in range(PARTITIONS) for gap in commits.gaps(p, mark, time.monotonic())]
        found["one application: epoch to epoch, p50 s"] = float(np.median(steady))
        found["one application: epoch to epoch, p99 s"] = p99 = float(np.quantile(steady, 0.99))

        def runs(moved: list[int]) -> dict[int, int]:
            """How often each partition was claimed."""
            return {p: len(list(folder.glob(f"group/partitions/{p}/runs/*.json"))) for p in moved}

        def taken_over(moved: list[int], before: dict[int, int]) -> float:
            """Wait until each has been claimed by another run, and has committed an epoch since."""
            until(lambda: all(n > before[p] for p, n in runs(moved).items()))
            since = time.monotonic()
            return until(lambda: all(any(at > since for at in commits.at[p].values()) for p in moved))

        def disturbed(what: str, moved: list[int], begun: float, before: dict[int, int]) -> None:
            end = taken_over(moved, before) + 3
            time.sleep(3)
            kept = [p for p in range(PARTITIONS) if p not in moved]
            found[f"{what}: moved partitions stand still, s"] = max(max(commits.gaps(p, begun, end)) for p in moved)
            if kept:
                longest = max(max(commits.gaps(p, begun, end)) for p in kept)
                found[f"{what}: kept partitions, longest epoch to epoch, s"] = longest
                found[f"{what}: the same / p99 of one application"] = longest / p99

        before = runs(list(range(PARTITIONS)))
        second = begin("second")
        until(lambda: len(owns("first")) == 2)
        begun = time.monotonic() - 1
        until(lambda: len(owns("second")) == 2)
        disturbed("join", owns("second"), begun, before)
        time.sleep(5)

        moved, begun = owns("second"), time.monotonic()
        before = runs(moved)
        second.send_signal(signal.SIGTERM)
        until(lambda: len(owns("first")) == PARTITIONS)
        disturbed("leave", moved, begun, before)
        second.wait(60)

        before = runs(list(range(PARTITIONS)))
        second = begin("second")
        until(lambda: len(owns("first")) == len(owns("second")) == 2)
        taken_over(owns("second"), before)
        time.sleep(5)
        moved, begun = owns("second"), time.monotonic()
        before = runs(moved)
        os.killpg(second.pid, signal.SIGKILL)
        until(lambda: len(owns("first")) == PARTITIONS)
        disturbed(f"kill -9, lease {LEASE}", moved, begun, before)
        feeding, commits.done = False, True
        first.send_signal(signal.SIGTERM)
        first.wait(60)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as work:
        found = measure(Path(work))
    for name, value in found.items():
        print(f"{name:70} {value:.3f}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    about = {"machine": platform.platform(), "cpus": os.cpu_count(), "commit": commit}
    (HERE / "results" / "group_flows.json").write_text(json.dumps({**about, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["application"]:
        application(*sys.argv[2:])
    else:
        main()
