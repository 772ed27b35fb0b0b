"""Scales the demo's largest region up in the middle of the replay and down again, while flights arrive."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import PenstockError, ReplacedError

REGION: Final = "tailnum"
_MORE: Final = 2
POLL_S: Final = 0.1


@dataclass(frozen=True)
class Turn:
    """One rescale: numbers of workers, epochs, and what moved."""

    before: int
    after: int
    first_epoch: int
    last_epoch: int
    keys: int
    bytes: int


class Rescale:
    """Follows a run in a thread and scales `REGION` after one and two thirds of its epochs.

    Args:
        run: The run.
        epochs: Number of epochs of the replay.
    """

    def __init__(self, run: Any, epochs: int) -> None:
        self.turns: list[Turn] = []
        self.missed = ""
        self._run, self._epochs = run, epochs
        self._thread = threading.Thread(target=self._follow, name="penstock-demo-rescale", daemon=True)
        self._thread.start()

    def finish(self) -> list[Turn]:
        """Wait for the end; returns the completed rescales. If one is missing, `missed` says why."""
        self._thread.join()
        return self.turns

    def _follow(self) -> None:
        try:
            self._wait(self._epochs // 3)
            before = self._run.regions[REGION]["workers"]
            self._scale(before, before + _MORE)
            self._wait(2 * self._epochs // 3)
            self._scale(before + _MORE, before)
        except PenstockError as error:
            self.missed = str(error)
        except KeyError:
            self.missed = "The flow ended before its first epoch."

    def _wait(self, epoch: int) -> None:
        while self._run.progress["epoch"] < epoch and not self._run.await_termination(POLL_S):
            pass

    def _scale(self, before: int, after: int) -> None:
        first, asked = self._run.progress["epoch"] + 1, self._run.scale(REGION, after)
        try:
            settled = asked.wait()
        except ReplacedError:  # the flow has finished
            settled = False
        if not settled:
            raise PenstockError(f"The replay ended before {before} workers had become {after}.")
        figures = asked.progress[REGION]
        last = self._run.progress["epoch"]
        self.turns.append(Turn(before, after, first, last, figures["moved_keys"], figures["moved_bytes"]))
