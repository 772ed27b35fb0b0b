"""Which records of a source are on time and which are put aside, record by record: a part of `oracle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import recipes as r
from spelled import micros

Clock = Mapping[int, tuple[int, bool]]
"""By epoch, what the clock showed (µs) and whether another run had the epoch before."""


def judged(
    source: r.Source, records: Sequence[tuple[int, Mapping[str, Any]]], clock: Clock
) -> list[tuple[str, int, Mapping[str, Any]]]:
    """Each record with its epoch, and what it is: ``"on time"``, or ``"late"``: more than the lateness behind the greatest time that its partition
    showed before, or behind where the clock had brought the frontier; or ``"ahead"``: more than the bound after that time, of which it is then no
    part. Records without a time are left out.
    """
    found = []
    greatest: dict[int, int] = {}
    floors = _floors(source, records, clock)
    for epoch, record in sorted(records, key=lambda e: (e[1]["p"], e[1]["o"])):
        if not source.timed:
            found.append(("on time", epoch, record))
        elif record["at"] is not None:
            time, part = micros(record["at"]), record["p"]
            if source.ahead_us is not None and time > greatest.get(part, time) + source.ahead_us:
                found.append(("ahead", epoch, record))
                continue
            least = max(greatest.get(part, time) - source.lateness_us, floors.get(epoch, time))
            found.append(("late" if time < least else "on time", epoch, record))
            greatest[part] = max(time, greatest.get(part, time))
    return found


def _floors(source: r.Source, records: Sequence[tuple[int, Mapping[str, Any]]], clock: Clock) -> dict[int, int]:
    """By epoch, where the frontier of a source that has records again had gone by the clock: what is older is late, in whatever partition."""
    if source.close_after_us is None or not source.timed:
        return {}
    found: dict[int, int] = {}
    greatest: dict[int, int] = {}
    frontier, floor, quiet, gone_on = None, None, None, False
    for epoch, (now, resumed) in sorted(clock.items()):
        came = [(x["p"], micros(x["at"]), x["o"]) for e, x in records if e == epoch and x["at"] is not None]
        quiet = now if came or resumed or quiet is None else quiet
        if came and gone_on:
            floor, gone_on = frontier, False
        for part, time, _ in sorted(came, key=lambda c: c[2]):
            if source.ahead_us is None or time <= greatest.get(part, time) + source.ahead_us:
                greatest[part] = max(time, greatest.get(part, time))
        if floor is not None:
            found[epoch] = floor
        if set(greatest) == set(source.partitions):
            reached = min(t - source.lateness_us for t in greatest.values())
            reached = reached if floor is None else max(reached, floor)
            more = max(now - quiet - source.close_after_us, 0)
            gone_on = not came and (gone_on or more > 0)
            frontier = reached + more if frontier is None else max(frontier, reached + more)
    return found
