"""The less loaded of two workers drawn at random.

Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001. The two are distinct, as in `partial_key_grouping`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import jit
from penstock.routing.choices import choice, lesser_of_two
from penstock.routing.strategy import STATELESS, Hashes, Memory, Router, Strategy, Workers


@dataclass(frozen=True)
class PowerOfTwoChoices(Strategy):
    """Two different workers drawn at random for each message, and the less loaded of them. Keys do not matter, so it is for steps without state.

    The draw is a hash of the sender and of the message's number, so that an epoch that runs again draws alike.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.PowerOfTwoChoices(), keys, workers=4)).tolist()
        [250, 250, 250, 250]
    """

    splits_keys: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = False
    fits: ClassVar[str] = STATELESS

    def router(self, workers: int) -> Router:
        """Each sender draws for itself."""
        return _Drawn(workers)


class _Drawn(Memory):
    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:
        return {"next": np.array([choice(sender, 0, 1 << 31)], np.int64), "loads": np.zeros(self.workers, np.int64)}

    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        _route(len(hashes), memory["next"], memory["loads"], out)


@jit
def _route(messages: Any, number: Any, loads: Any, out: Any) -> Any:
    for at in range(messages):
        worker = lesser_of_two(number[0], loads, len(loads))
        number[0] += 1
        loads[worker] += 1
        out[at] = worker
