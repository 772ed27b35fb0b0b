"""Live rescaling: Interrogate, Collect, Acquire. One phase one file, each with its rules by number.

Read `machine` first, then `interrogate`, `collect`, `hold`.
"""

from penstock.protocol.rescale.control import Control, Goal, Held, Phase
from penstock.protocol.rescale.machine import (
    ALL_AT_ONCE,
    STANDARD,
    TRANSITIONS,
    Limits,
    Order,
    advanced,
    ended_hold,
    orders,
    pinned,
    scaled,
)

__all__ = [
    "ALL_AT_ONCE",
    "STANDARD",
    "TRANSITIONS",
    "Control",
    "Goal",
    "Held",
    "Limits",
    "Order",
    "Phase",
    "advanced",
    "ended_hold",
    "orders",
    "pinned",
    "scaled",
]
