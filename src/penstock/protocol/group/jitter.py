"""How long to wait before the next try: twice as long each time, up to a bound, with jitter from a seed."""

from __future__ import annotations

from typing import Final

FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.25
_MASK: Final = (1 << 64) - 1


class Backoff:
    """Waiting times: the same for the same seed, in every process."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def after(self, tries: int) -> float:
        """Seconds until the next try, after so many: from half to one and a half of 20 ms × 2 ** tries, a quarter of a second at most."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        span = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(tries, 10))
        return span * (0.5 + (self._state >> 33) / 2**31)


__all__ = ["FIRST_RETRY_S", "LAST_RETRY_S", "Backoff"]
