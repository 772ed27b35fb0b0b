"""Two applications with Spark share a stream of a real Valkey server: one joins, is killed, comes again, sleeps, leaves; the tables, in SQLite and in
PostgreSQL, are those of one pass.

Read next: `group_flow`, the application; `tests/driver/test_group_run`, the same without Spark and at random.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import psycopg
import pytest
from children import HERE, environment

import penstock as ps
from servers import url_of, valkey

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.fault]
PARTITIONS, CARDS = 2, 9
BEGIN, END = (dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2))


class Application:
    """One process of the flow."""

    def __init__(self, folder: Path, url: str, postgres: str, member: str) -> None:
        self.said = folder / f"{member}-{time.monotonic_ns()}.out"
        given = [url, str(folder / "group"), member, str(PARTITIONS), f"sqlite:///{folder}/out.db", postgres]
        with self.said.open("w") as out:
            command = [sys.executable, str(HERE / "group_flow.py"), *given]
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
            )

    def owns(self) -> list[int]:
        """The partitions that it works on, as it said last."""
        lines = [line for line in self.said.read_text().splitlines() if line.startswith("owns ")]
        return [int(n) for n in lines[-1][6:-1].split(", ") if n] if lines else []

    def tell(self, how: signal.Signals) -> None:
        """A signal to it, and to its JVM and all else that it has started, unless it is one to be obeyed."""
        if how == signal.SIGTERM:
            self.process.send_signal(how)
        else:
            os.killpg(self.process.pid, how)

    def end(self, how: signal.Signals) -> None:
        self.tell(how)
        self.process.wait(120)


class Payments:
    """What the producer has sent."""

    def __init__(self, producer: ps.Producer) -> None:
        self.producer = producer
        self.sent: list[tuple[str, dt.datetime, int]] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            i = len(self.sent)
            self.sent.append((f"c{i * 7 % CARDS}", BEGIN + dt.timedelta(seconds=i), i % 5))
        self.producer.send_many(
            {"card": card, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "amount": str(amount)} for card, at, amount in self.sent[-count:]
        )

    def end(self) -> None:
        """Records of a day later, which themselves are not given out: nothing follows them."""
        self.producer.send_many({"card": f"c{i}", "at": f"{END:%Y-%m-%dT%H:%M:%SZ}", "amount": "0"} for i in range(CARDS))

    def wanted(self) -> tuple[Counter, Counter]:
        totals, windows, sums = Counter(), defaultdict(lambda: (0, 0)), Counter()
        for card, at, amount in self.sent:
            sums[card] += amount
            totals[card, f"{at:%Y-%m-%d %H:%M:%S.%f}", sums[card]] += 1
            window = card, f"{at.replace(second=at.second // 10 * 10):%Y-%m-%d %H:%M:%S.%f}"
            n, amounts = windows[window]
            windows[window] = n + 1, amounts + amount
        return totals, Counter((*window, *figures) for window, figures in windows.items())


def stored(folder: Path) -> tuple[Counter, Counter]:
    with contextlib.closing(sqlite3.connect(folder / "out.db", timeout=30)) as base:
        try:
            totals = base.execute("SELECT card, at, total FROM totals").fetchall()
            windows = base.execute("SELECT card, window_start, n, amount FROM windows").fetchall()
        except sqlite3.OperationalError:
            return Counter(), Counter()
    return Counter(totals), Counter(windows)


def stored_in(postgres: str) -> tuple[Counter, Counter]:
    with psycopg.connect(postgres, options="-c timezone=UTC") as base:
        totals = base.execute("SELECT card, to_char(at, 'YYYY-MM-DD HH24:MI:SS.US'), total FROM totals").fetchall()
        windows = base.execute(
            "SELECT card, to_char(window_start, 'YYYY-MM-DD HH24:MI:SS.US'), n, amount FROM windows"
        ).fetchall()
    return Counter(totals), Counter(windows)


def until(condition, applications, seconds=240.0):
    """Wait; an application that ends meanwhile has failed."""
    end = time.monotonic() + seconds
    while not condition():
        for application in applications:
            assert application.process.poll() is None, application.said.read_text()[-3000:]
        assert time.monotonic() < end, [a.said.read_text()[-3000:] for a in applications]
        time.sleep(0.2)


def stop_outside_of_transactions(application: Application, folder: Path, postgres: str) -> None:
    """SIGSTOP; in a transaction of SQLite it would keep everybody out of the file for as long as it sleeps, in one of PostgreSQL out of its marks."""
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '0.4 s'"
    while True:
        with contextlib.closing(sqlite3.connect(folder / "out.db", timeout=30, isolation_level=None)) as base:
            base.execute("BEGIN IMMEDIATE")
            application.tell(signal.SIGSTOP)
            base.execute("ROLLBACK")
        time.sleep(0.5)
        with psycopg.connect(postgres) as there:
            if there.execute(idle).fetchone() == (0,):
                return
        application.tell(signal.SIGCONT)


def test_applications_that_join_die_come_again_sleep_and_leave_store_what_one_pass_gives(tmp_path, postgres):
    running: list[Application] = []
    with valkey() as server, ps.Producer(url_of(server), "payments", PARTITIONS, key="card") as producer:
        payments, url = Payments(producer), url_of(server)
        try:
            payments.send(60)
            running.append(first := Application(tmp_path, url, postgres, "first"))
            until(lambda: stored(tmp_path)[0].total() > 20, running)
            running.append(second := Application(tmp_path, url, postgres, "second"))
            until(lambda: len(first.owns()) == len(second.owns()) == 1, running)
            payments.send(60)
            rows = stored(tmp_path)[0].total()
            until(lambda: stored(tmp_path)[0].total() > rows, running)

            first.end(signal.SIGKILL)
            running.remove(first)
            payments.send(60)
            until(lambda: second.owns() == [0, 1], running)
            running.append(first := Application(tmp_path, url, postgres, "first"))
            until(lambda: len(first.owns()) == len(second.owns()) == 1, running)
            payments.send(60)

            stop_outside_of_transactions(second, tmp_path, postgres)
            until(lambda: first.owns() == [0, 1], running)
            payments.send(60)
            rows = stored(tmp_path)[0].total()
            until(lambda: stored(tmp_path)[0].total() > rows, running)
            second.tell(signal.SIGCONT)  # it believes that it has a partition, and in the midst of an epoch
            until(lambda: len(first.owns()) == len(second.owns()) == 1, running)
            payments.send(60)

            second.end(signal.SIGTERM)
            running.remove(second)
            assert "left the group" in second.said.read_text()
            payments.end()
            wanted = payments.wanted()
            until(lambda: stored(tmp_path)[1].total() >= wanted[1].total() <= stored_in(postgres)[1].total(), running)
            first.end(signal.SIGTERM)
        finally:
            for application in running:
                application.end(signal.SIGKILL)
    assert stored(tmp_path) == wanted
    assert stored_in(postgres) == wanted
