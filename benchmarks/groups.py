"""Groups over Redis: how long it takes to join, to leave, to take over, and what stands still meanwhile.

    python benchmarks/groups.py                all figures, about five minutes
    python benchmarks/groups.py --only join    one of them

A Valkey server on the loopback and members as processes, each a `ps.Consumer`. Asserts nothing: it prints what is needed and what is reached, and
writes JSON under benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

import penstock as ps
from penstock.protocol.group.store import order
from penstock.redis_client.connection import connect
from penstock.redis_client.keys import group_partition_key

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from servers import relay, url_of, valkey  # type: ignore[import-not-found]  # noqa: E402

DEFAULTS = {"lease": "10 seconds", "grace": "8 seconds"}


# ---------------------------------------------------------------------------------------------------------- a member


def member(options: dict[str, Any]) -> None:
    """Members in this process; each writes what it has (O), and each entry it handles (E), with the time."""
    with Path(options["log"]).open("a", buffering=1) as log:
        threads = [
            threading.Thread(target=one, args=(options, number, log), daemon=True)
            for number in range(1, options.get("members", 1))
        ]
        for thread in threads:
            thread.start()
        one(options, 0, log)
        for thread in threads:
            thread.join(5)


def one(options: dict[str, Any], number: int, log: Any) -> None:
    group = ps.Group(options["url"], "g", member=options.get("member"), lease=options["lease"], grace=options["grace"])
    consumer = ps.Consumer(group, "orders", options["partitions"], batch=options.get("batch", 100))
    log.write(f"S {time.monotonic()}\n")

    def watch() -> None:
        before: set[int] | None = None
        while True:
            now = consumer.owned
            if now != before:
                log.write(f"O {time.monotonic()} {number} {','.join(map(str, sorted(now)))}\n")
                before = now
            time.sleep(0.002 if options.get("members", 1) == 1 else 0.02)

    threading.Thread(target=watch, daemon=True).start()
    counted = [0]

    def handle(partition: int, entries: list[Any]) -> None:
        now = time.monotonic()
        if options.get("count"):
            counted[0] += len(entries)
            if counted[0] >= options["count"]:
                log.write(f"N {now} {counted[0]}\n")
            return
        log.write("".join(f"E {now} {partition} {e.fields['at']}\n" for e in entries))
        if options.get("pause_s"):
            time.sleep(options["pause_s"])

    consumer.run(handle)
    log.write(f"X {time.monotonic()}\n")


# --------------------------------------------------------------------------------------------------------- the bench


class Bench:
    """A server and members."""

    def __init__(self, stack: ExitStack, partitions: int = 8, *, keep: bool = False) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-groups-")))
        self.server = stack.enter_context(valkey(keep=keep))
        self.between = stack.enter_context(relay(self.server.port))  # what members of `failover` go through
        self.url, self.partitions = url_of(self.server), partitions
        self.client = connect(self.url)
        self.producer = stack.enter_context(ps.Producer(self.url, "orders", partitions))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.logs: list[Path] = []
        stack.callback(self.kill)

    def join(self, **options: Any) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.logs)}.log"
        log.touch()
        given = {"url": self.url, "partitions": self.partitions, "log": str(log), **DEFAULTS, **options}
        process = subprocess.Popen([sys.executable, __file__, "--member", json.dumps(given)])
        self.processes.append(process)
        self.logs.append(log)
        return process

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def lines(self, kind: str, at: int | None = None) -> list[list[str]]:
        logs = self.logs if at is None else [self.logs[at]]
        found = [line.split() for log in logs for line in log.read_text().splitlines() if line.startswith(kind)]
        return [words for words in found if len(words) >= 2]

    def owned(self, at: int) -> dict[int, set[int]]:
        """By member of a process, its partitions."""
        return {int(w[2]): {int(p) for p in w[3].split(",")} if len(w) > 3 else set() for w in self.lines("O", at)}

    def shares(self) -> list[int]:
        alive = [i for i, p in enumerate(self.processes) if p.poll() is None]
        return sorted(len(o) for i in alive for o in self.owned(i).values())

    def until(self, condition: Callable[[], bool], seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"shares are {self.shares()}")
            time.sleep(0.02)

    def last_change(self) -> float:
        return max(float(w[1]) for w in self.lines("O"))

    def feed(self, per_s: int, stop: threading.Event) -> threading.Thread:
        def send() -> None:
            due = time.monotonic()
            while not stop.is_set():
                self.producer.send_many([{"at": time.monotonic()} for _ in range(per_s // 100)])
                due += 0.01
                time.sleep(max(0.0, due - time.monotonic()))

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        return thread

    def gaps(self, partitions: set[int], since: float, until: float) -> list[float]:
        """Times between entries handled, per partition, in seconds."""
        found = []
        for p in partitions:
            times = sorted(float(w[1]) for w in self.lines("E") if int(w[2]) == p and since <= float(w[1]) <= until)
            found += [b - a for a, b in pairwise(times)]
        return found


def join(stack: ExitStack) -> dict[str, Any]:
    bench = Bench(stack)
    bench.join()
    bench.until(lambda: bench.shares() == [8])
    alone_s = bench.last_change() - float(bench.lines("S")[0][1])
    stop = threading.Event()
    feeding = bench.feed(1000, stop)
    time.sleep(4)
    bench.join()
    bench.until(lambda: bench.shares() == [4, 4])
    began, settled = float(bench.lines("S", 1)[0][1]), bench.last_change()
    time.sleep(3)
    kept, moved = bench.owned(0)[0], bench.owned(1)[0]
    leaving = time.monotonic()
    bench.processes[1].terminate()
    bench.until(lambda: bench.shares() == [8])
    left = bench.last_change()
    time.sleep(1)
    stop.set()
    feeding.join()
    usual = bench.gaps(kept | moved, began - 3, began - 0.5)
    around = (began - 0.2, settled + 1)
    return {
        "one member owns 8 partitions, s": alone_s,
        "a second one joins: settled, s": settled - began,
        "usual gap p99, ms": quantiles(usual, n=100)[98] * 1000,
        "usual gap longest, ms": max(usual) * 1000,
        "kept partitions: longest gap, ms": max(bench.gaps(kept, *around)) * 1000,
        "moved partitions: longest gap, ms": max(bench.gaps(moved, *around)) * 1000,
        "graceful leave: others have all, s": left - leaving,
    }


def kill(stack: ExitStack) -> dict[str, Any]:
    bench = Bench(stack)
    bench.join(), bench.join()
    bench.until(lambda: bench.shares() == [4, 4])
    killed = time.monotonic()
    bench.processes[0].kill()
    bench.until(lambda: bench.shares() == [8])
    return {"SIGKILL, lease 10 s: taken over after, s": bench.last_change() - killed}


def static(stack: ExitStack) -> dict[str, Any]:
    bench = Bench(stack)
    bench.join(member="one"), bench.join(member="two")
    bench.until(lambda: bench.shares() == [4, 4])
    stop = threading.Event()
    feeding = bench.feed(200, stop)
    time.sleep(1)
    mine, changes = bench.owned(0)[0], len(bench.lines("O", 1))
    killed = time.monotonic()
    bench.processes[0].kill()
    bench.join(member="one")
    bench.until(lambda: {int(w[2]) for w in bench.lines("E", 2)} == mine)
    goes_on = max(min(float(w[1]) for w in bench.lines("E", 2) if int(w[2]) == p) for p in mine)
    stop.set()
    feeding.join()
    return {
        "static name, SIGKILL, started at once: changes of the other": len(bench.lines("O", 1)) - changes,
        "static name: all its partitions go on after, s": goes_on - killed,
        "of which start of the process, s": float(bench.lines("S", 2)[0][1]) - killed,
    }


def many(stack: ExitStack) -> dict[str, Any]:
    bench = Bench(stack, 1000)
    for _ in range(5):
        bench.join(members=10)
    bench.until(lambda: bench.shares() == [20] * 50, 180)
    began, settled = max(float(w[1]) for w in bench.lines("S")), bench.last_change()
    time.sleep(5)
    before, idle_s = commands(bench.client), 20.0
    time.sleep(idle_s)
    rate = (commands(bench.client) - before) / idle_s / 50
    owner = {p: (i, n) for i in range(5) for n, o in bench.owned(i).items() for p in o}
    bench.join()
    bench.until(lambda: sum(bench.shares()) == 1000 and len(bench.shares()) == 51 and min(bench.shares()) == 19)
    more, more_settled = float(bench.lines("S", 5)[0][1]), bench.last_change()
    after = {p: (i, n) for i in range(6) for n, o in bench.owned(i).items() for p in o}
    return {
        "50 members, 1,000 partitions: settled after the last join, s": settled - began,
        "one more: settled, s": more_settled - more,
        "one more: partitions moved": sum(after[p] != owner[p] for p in owner),
        "idle commands per second and member": rate,
    }


def commands(client: Any) -> int:
    """Commands that members have sent: scripts and reads."""
    stats = client.info("commandstats")
    sent = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_xread", "cmdstat_ping", "cmdstat_client|unblock")
    return sum(stats[name]["calls"] for name in sent if name in stats)


def terms(stack: ExitStack) -> dict[str, Any]:
    bench = Bench(stack, 40)
    for _ in range(20):
        bench.join(grace="2 seconds", pause_s=0.5)
    bench.until(lambda: bench.shares() == [2] * 20, 120)
    bench.producer.send_many([{"at": time.monotonic()} for _ in range(400)])
    time.sleep(0.2)
    began = time.monotonic()
    for process in bench.processes:
        process.terminate()
    for process in bench.processes:
        process.wait(30)
    left = max(float(w[1]) for w in bench.lines("X"))
    return {
        "20 members get SIGTERM, handlers need 0.5 s, grace 2 s: all have left after, s": left - began,
        "20 members get SIGTERM: all processes gone after, s": time.monotonic() - began,
    }


def rate(stack: ExitStack) -> dict[str, Any]:
    bench, count = Bench(stack), 200_000
    bench.producer.send_many([{"at": 1.0, "n": n, "text": "some text"} for n in range(count)])
    bench.join(count=count, batch=500)
    bench.until(lambda: bool(bench.lines("N")))
    begun = float(bench.lines("O", 0)[0][1])
    return {"entries per second of one member, 8 partitions": count / (float(bench.lines("N")[0][1]) - begun)}


def servers(stack: ExitStack) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keep in (True, False):
        bench = Bench(stack, keep=keep)
        bench.join(lease="2 seconds"), bench.join(lease="2 seconds")
        bench.until(lambda: bench.shares() == [4, 4])  # noqa: B023
        bench.server.stop()
        time.sleep(3)
        bench.server.start()
        back = time.monotonic()
        time.sleep(0.2)
        bench.until(lambda: bench.shares() == [4, 4])  # noqa: B023
        found[f"server restarted {'with' if keep else 'without'} its data: settled, s"] = max(
            0.0, bench.last_change() - back
        )  # the server answers before it is said to run
        if keep:
            pid = bench.client.info("server")["process_id"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(5)
            held = bench.shares()
            os.kill(pid, signal.SIGCONT)
            back = time.monotonic()
            bench.until(lambda: bench.shares() == [4, 4])  # noqa: B023
            found["server paused for 5 s, lease 2 s: partitions worked on at its end"] = sum(held)
            found["server paused: settled after it, s"] = bench.last_change() - back
        found["processes that died"] = found.get("processes that died", 0) + sum(p.poll() is not None for p in bench.processes)
    return found


def failover(stack: ExitStack) -> dict[str, Any]:
    """A replica takes over that lacks the last second of acks."""
    bench = Bench(stack)
    replica = stack.enter_context(valkey(replicaof=f"127.0.0.1 {bench.server.port}"))
    there = connect(url_of(replica))
    bench.until(lambda: there.info("replication")["master_link_status"] == "up")
    for _ in range(2):
        bench.join(url=bench.between.url, lease="2 seconds")
    bench.until(lambda: bench.shares() == [4, 4])
    stop = threading.Event()
    feeding = bench.feed(1_000, stop)
    time.sleep(2)
    there.execute_command("REPLICAOF", "NO", "ONE")
    time.sleep(1)
    stop.set()
    feeding.join()
    time.sleep(0.1)
    known = positions(bench.client, bench.partitions)
    lost = sum(a < b for a, b in zip(positions(there, bench.partitions), known, strict=True))
    bench.between.turn(None)
    bench.server.terminate()
    bench.between.turn(replica.port)
    back = time.monotonic()
    bench.until(lambda: all(a >= b for a, b in zip(positions(there, bench.partitions), known, strict=True)))
    restored = time.monotonic() - back
    time.sleep(1)
    bench.until(lambda: bench.shares() == [4, 4])
    return {
        "failed over without the last second: positions that went back": lost,
        "the same: all positions are where they were, s": restored,
        "the same: settled, s": max(0.0, bench.last_change() - back),
        "the same: processes that died": sum(p.poll() is not None for p in bench.processes),
    }


def positions(client: Any, partitions: int) -> list[tuple[int, int]]:
    return [
        order((client.hget(group_partition_key("orders", p, "g"), "position") or b"0-0").decode()) for p in range(partitions)
    ]


PARTS = {f.__name__: f for f in (join, kill, static, many, terms, rate, servers, failover)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--member")
    parser.add_argument("--only", choices=sorted(PARTS))
    given = parser.parse_args()
    if given.member:
        member(json.loads(given.member))
        return
    figures: dict[str, Any] = {}
    for name, part in PARTS.items():
        if given.only in (None, name):
            with ExitStack() as stack:
                figures |= part(stack)
            print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}, indent=2), flush=True)
    if given.only is None:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
        ).stdout.strip()
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "groups.json").write_text(
            json.dumps({"commit": commit, "machine": machine, "figures": figures}, indent=2)
        )


if __name__ == "__main__":
    main()
