"""Two workers for each key.

Source: M. Nasir et al., The Power of Both Choices, ICDE 2015. The less loaded worker is taken (one published text has arg max by mistake), and
the two are distinct, as otherwise a key is not split at all with probability 1/n. They are the first two of a key's `distinct_choices`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.arrow.jit import jit
from penstock.routing.choices import lesser_of_two
from penstock.routing.strategy import MERGING, Hashes, Memory, Router, Strategy, Workers


@dataclass(frozen=True)
class PartialKeyGrouping(Strategy):
    """Each key has two workers, and a message goes to the one to which its sender has sent less.

    A key with a share p1 of all messages still gives an imbalance of p1/2 - 1/n; `WChoices` and `Histogram` do not.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.PartialKeyGrouping(), keys, workers=4)).tolist()
        [166, 335, 335, 164]
    """

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING
    rests: ClassVar[bool] = True

    def router(self, workers: int) -> Router:
        """Loads are each sender's own."""
        return _Both(workers)


class _Both(Memory):
    def begin(self, sender: int) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002  (all begin alike)
        return {"loads": np.zeros(self.workers, np.int64)}

    def route_sender(self, hashes: Hashes, memory: dict[str, npt.NDArray[np.int64]], out: Workers) -> None:
        _route(hashes, memory["loads"], out)


@jit
def _route(hashes: Any, loads: Any, out: Any) -> Any:
    for at in range(len(hashes)):
        worker = lesser_of_two(hashes[at], loads, len(loads))
        loads[worker] += 1
        out[at] = worker
