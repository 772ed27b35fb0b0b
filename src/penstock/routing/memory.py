"""What routers remember from one epoch to the next, as the epoch record keeps it.

Read next: `penstock.routing.strategy`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.routing.strategy import Router, Strategy, told
from penstock.routing.table import Routing

Arrays = dict[int, dict[str, npt.NDArray[np.int64]]]
"""By sender, `penstock.routing.strategy.Router.memory`."""


@dataclass(frozen=True)
class Remembered:
    """The memory of a region's router after an epoch.

    Attributes:
        strategy: The strategy, as `Strategy.describe` has it: another one begins anew.
        workers: For so many workers; for another number it begins anew.
        senders: By sender, its arrays (int64), packed.
    """

    strategy: str = ""
    workers: int = 0
    senders: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(strategy: Strategy, workers: int, memory: Arrays) -> Remembered:
        """What is to be kept.

        Raises:
            OperatorError: It is no memory.
        """
        with told(strategy):
            packed = {int(sender): {name: _pack(array) for name, array in arrays.items()} for sender, arrays in memory.items()}
            return Remembered(strategy.describe(), workers, packed)

    def router(self, strategy: Strategy, workers: int, home: Routing) -> Router:
        """A router that goes on from here, if it can.

        Args:
            strategy: The region's strategy.
            workers: Number of workers of the split stage.
            home: Where keys are at home.

        Raises:
            OperatorError: The strategy failed to make it.
        """
        with told(strategy):
            router = strategy.router(workers)
            router.home = home
        if (self.strategy, self.workers) == (strategy.describe(), workers):
            router.memory = {s: {name: _unpack(text) for name, text in arrays.items()} for s, arrays in self.senders.items()}
        return router


def _pack(numbers: npt.NDArray[np.int64]) -> str:
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise TypeError(f"it remembers {numbers.shape} of {numbers.dtype}, and not whole numbers one after the other")
    return base64.b64encode(zlib.compress(numbers.astype("<i8").tobytes(), 1)).decode()


def _unpack(text: str) -> npt.NDArray[np.int64]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").astype(np.int64)
