"""The default strategy: every key has one worker."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.routing.strategy import Strategy


@dataclass(frozen=True)
class KeyGrouping(Strategy):
    """Every key has one worker; the default, and right for every operator.

    Example:
        >>> keys = pa.array(["hot"] * 600 + [f"k{i}" for i in range(400)])
        >>> np.bincount(ps.route(ps.KeyGrouping(), keys, workers=4)).tolist()
        [709, 104, 97, 90]
    """
