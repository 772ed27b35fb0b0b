"""Live rescaling: Interrogate, Collect, Acquire. One phase one file, each with its rules by number.

Read `machine` first, then `interrogate`, `collect`, `hold`; `worker` is the workers' half, `transfer` what changes hands.
"""

from penstock.protocol.rescale.machine import (
    ALL_AT_ONCE,
    STANDARD,
    TRANSITIONS,
    Limits,
    advanced,
    ended_hold,
    messages,
    pinned,
    scaled,
)
from penstock.protocol.rescale.placement import Held, Phase, Placement, RescaleGoal

__all__ = [
    "ALL_AT_ONCE",
    "STANDARD",
    "TRANSITIONS",
    "Held",
    "Limits",
    "Phase",
    "Placement",
    "RescaleGoal",
    "advanced",
    "ended_hold",
    "messages",
    "pinned",
    "scaled",
]
