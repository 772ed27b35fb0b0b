"""Live rescaling: Interrogate, Collect, Acquire. One phase one file, each with its rules by number.

Read `machine` first, then `interrogate`, `collect`, `hold`.
"""

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
from penstock.protocol.rescale.placement import Held, Phase, Placement, RescaleGoal

__all__ = [
    "ALL_AT_ONCE",
    "STANDARD",
    "TRANSITIONS",
    "Held",
    "Limits",
    "Order",
    "Phase",
    "Placement",
    "RescaleGoal",
    "advanced",
    "ended_hold",
    "orders",
    "pinned",
    "scaled",
]
