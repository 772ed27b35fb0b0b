"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings


def complain(sentence: str) -> None:
    """Warn, with the line of the user's that called penstock."""
    level, frame = 1, sys._getframe()  # noqa: SLF001  (warnings can leave modules out by name only from Python 3.12)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "penstock":
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, UserWarning, stacklevel=level)
