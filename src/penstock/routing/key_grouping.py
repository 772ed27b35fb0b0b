"""The default strategy: every key has one worker."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.routing.strategy import Strategy


@dataclass(frozen=True)
class KeyGrouping(Strategy):
    """Every key has one worker; the default, and right for every operator."""
