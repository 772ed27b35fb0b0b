"""The number of the checkpoint's format, and how a record of the format before is read (docs/decisions/0033).

A change of format raises `FORMAT`, replaces `_from_before` by what makes a record of the old format one of the new, and keeps a checkpoint of
either format with the tests (tests/checkpoint/kept_flow.py).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import TornFileError
from penstock.protocol.rescale import Held
from penstock.types import MIN_TIME

FORMAT: Final = 5
OLDEST: Final = 4
"""The oldest format that is read: the one before, or the same."""


def upgraded(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """A record's plain values as the present format has them; `raw` is changed.

    Raises:
        TornFileError: The record is of a newer format, or of one older than the version before. Nothing was changed.
    """
    found = raw.pop("format")
    reads = f"format {found}; this version reads {OLDEST} and {FORMAT}"
    if found > FORMAT:
        raise TornFileError(f"The epoch record {path} was written by a newer version of penstock ({reads}); use that version.")
    if found < OLDEST:
        raise TornFileError(
            f"The epoch record {path} was written by a version of penstock that is too old ({reads}); start the flow once with each version "
            "in between."
        )
    return _from_before(raw) if found < FORMAT else raw


def _from_before(raw: dict[str, Any]) -> dict[str, Any]:
    """Format 4 had figures, and commands that are open, as dicts told apart by strings, and keys on hold as lists."""
    frontier = min((s["frontier"] for s in raw["sources"].values()), default=MIN_TIME)
    figures = {**raw.pop("progress"), "frontier": frontier}
    for region in raw["regions"].values():
        region["control"]["held"] = [dict(zip(Held.__slots__, held, strict=True)) for held in region["control"]["held"]]
    opened = {name: {"regions": o.pop("regions"), "command": o} for name, o in raw.pop("open").items()}
    absent = {name: raw.pop(name) or None for name in ("shape", "rollback_pending")}
    return {**raw, **absent, "figures": figures, "open": opened}
