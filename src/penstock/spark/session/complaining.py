"""Warnings that point at the user's own line, whichever way led here."""

from __future__ import annotations

import sys
import warnings


def complain(sentence: str) -> None:
    """Warn of something that is not as asked, with the place where penstock was called."""
    level, frame = 1, sys._getframe()  # noqa: SLF001  (warnings can leave modules out by name only from Python 3.12)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "penstock":
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, UserWarning, stacklevel=level)
