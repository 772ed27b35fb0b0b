"""The load of the workers that follow Newark's airlines, before hot airlines have workers of their own and after.

Read next: `penstock.demo.report`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.demo.rescale import POLL_S
from penstock.errors import PenstockError

REGION: Final = "newark"


@dataclass(frozen=True)
class Seen:
    """An epoch: the rows of each worker, whether no key was moving, and the worker of each key that has one for itself."""

    epoch: int
    rows: tuple[int, ...]
    settled: bool
    alone: Mapping[str, int]


@dataclass(frozen=True)
class Loads:
    """Epochs with rows, from the first to the last: each worker's share of the rows, and the worker of each key that has one for itself."""

    first: int
    last: int
    shares: tuple[float, ...]
    alone: Mapping[str, int] = field(default_factory=dict)


class Balance:
    """Follows a run in a thread and keeps what each worker of `REGION` got in each epoch.

    Args:
        run: The run.
    """

    def __init__(self, run: Any) -> None:
        self._run, self._seen = run, list[Seen]()
        self._thread = threading.Thread(target=self._follow, name="penstock-demo-balance", daemon=True)
        self._thread.start()

    def finish(self) -> tuple[Loads, Loads] | None:
        """Wait for the end; returns what `before_and_after` does."""
        self._thread.join()
        return before_and_after(self._seen)

    def _follow(self) -> None:
        ended = False
        while not ended:
            try:
                ended = self._run.await_termination(POLL_S)
            except PenstockError:  # raised to whoever waits for the run, too
                return
            progress = self._run.progress
            epoch, region = progress["epoch"], progress["regions"].get(REGION)
            if region and any(region["worker_rows"]) and (not self._seen or self._seen[-1].epoch < epoch):
                alone = {key["key"]: key["worker"] for key in region["hot_keys"] if key["isolated"]}
                self._seen.append(Seen(epoch, tuple(region["worker_rows"]), region["phase"] == "settled", alone))


def before_and_after(seen: Sequence[Seen]) -> tuple[Loads, Loads] | None:
    """The loads up to the first time that a key got a worker for itself, and since the last; None if that was not seen to its end.

    Args:
        seen: Epochs in order.
    """
    before = next((n for n, epoch in enumerate(seen) if epoch.alone), len(seen))
    after = len(seen)
    while after > before and seen[after - 1].settled and seen[after - 1].alone == seen[-1].alone:
        after -= 1
    after += 1  # in the first of these, rows still went the old way
    return (_loads(seen[:before]), _loads(seen[after:])) if before and after < len(seen) else None


def _loads(seen: Sequence[Seen]) -> Loads:
    rows = [sum(worker) for worker in zip(*(epoch.rows for epoch in seen), strict=True)]
    return Loads(seen[0].epoch, seen[-1].epoch, tuple(n / sum(rows) for n in rows), seen[-1].alone)
