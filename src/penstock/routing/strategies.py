"""How rows of a region are spread over its workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyGrouping:
    """Every key has one worker; the default, and right for every operator."""
