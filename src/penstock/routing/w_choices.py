"""All workers for a hot key, and two for the others.

Source: M. Nasir et al., When Two Choices Are Not Enough, ICDE 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.routing.d_choices import HotKeys, check_share
from penstock.routing.strategy import MERGING, Router, Strategy


@dataclass(frozen=True)
class WChoices(Strategy):
    """A key with more than a share `theta` of its sender's messages goes to the least loaded of all workers, every other key to one of two.

    Args:
        theta: From which share on a key is hot; None: 1/(5n) with n workers.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.WChoices(), keys, workers=4)).tolist()
        [250, 251, 249, 250]
    """

    theta: float | None = None

    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING
    rests: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_share(self.theta, "theta", self)

    def router(self, workers: int) -> Router:
        """Loads and the sketch are each sender's own."""
        return HotKeys(workers, self.theta, 1.0, workers)
