"""Which worker a key group belongs to: equal ranges of bins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.types import BINS


def worker_of(bins: npt.NDArray[np.int64], workers: int) -> npt.NDArray[np.int64]:
    """The worker of each bin.

    Example:
        >>> worker_of(np.array([0, 2047, 2048, 4095]), 2)
        array([0, 0, 1, 1])
    """
    return bins * workers // BINS
