"""Workers in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from penstock.routing.strategy import STATELESS, Hashes, Memory, Router, Strategy, Workers


@dataclass(frozen=True)
class Shuffle(Strategy):
    """Every worker in turn. Keys do not matter, so it is for steps without state.

    Example:
        >>> ps.route(ps.Shuffle(), pa.array(["a", "a", "a", "b"]), workers=2).tolist()
        [0, 1, 0, 1]
    """

    splits_keys: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = False
    fits: ClassVar[str] = STATELESS

    def router(self, workers: int) -> Router:
        """Each sender begins with another worker."""
        return _InTurn(workers)


class _InTurn(Memory):
    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:
        return {"next": np.array([sender % self.workers], np.int64)}

    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        begin = memory["next"][0]
        out[:] = np.arange(begin, begin + len(hashes)) % self.workers
        memory["next"][0] = (begin + len(hashes)) % self.workers
