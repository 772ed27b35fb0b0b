"""Which records of a source are on time and which are put aside, record by record: a part of `oracle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import recipes as r
from spelled import micros

Records = Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]]
"""By source: (epoch, record); the epoch is looked at only if the source has no event time, or if the clock matters."""
Clock = Mapping[int, tuple[int, bool, bool]]
"""By epoch, what the clock showed (µs), whether another run had the epoch before, and whether it counts as if all partitions had records."""
NEVER = 1 << 62


def judged(
    source: r.Source, records: Sequence[tuple[int, Mapping[str, Any]]], clock: Clock, stop: int = NEVER
) -> list[tuple[str, int, Mapping[str, Any]]]:
    """Each record with its epoch, and what it is: ``"on time"``, or ``"late"``: more than the lateness behind the greatest time that its partition
    showed before, or behind where the clock had brought the frontier; or ``"ahead"``: more than the bound after that time, of which it is then no
    part. Records without a time are left out.

    After the epoch `stop` the options of ``source.then`` count; what was too late before it stays so.
    """
    found = []
    greatest: dict[int, int] = {}
    floors = _floors(source, records, clock, stop)
    passed: dict[int, int] = {}
    for epoch, record in sorted(records, key=lambda e: (e[1]["p"], e[1]["o"])):
        if not source.timed:
            found.append(("on time", epoch, record))
        elif record["at"] is not None:
            time, part, now = micros(record["at"]), record["p"], at_epoch(source, epoch, stop)
            if epoch <= stop and part in greatest:
                passed[part] = greatest[part] - source.lateness_us
            if now.ahead_us is not None and time > greatest.get(part, time) + now.ahead_us:
                found.append(("ahead", epoch, record))
                continue
            least = max(greatest.get(part, time) - now.lateness_us, floors.get((epoch, part), time), passed.get(part, time))
            found.append(("late" if time < least else "on time", epoch, record))
            greatest[part] = max(time, greatest.get(part, time))
            if epoch <= stop:
                passed[part] = greatest[part] - source.lateness_us
    return found


def at_epoch(source: r.Source, epoch: int, stop: int) -> r.Source:
    """The source with the options of an epoch."""
    return source.then if source.then is not None and epoch > stop else source


def _floors(
    source: r.Source, records: Sequence[tuple[int, Mapping[str, Any]]], clock: Clock, stop: int
) -> dict[tuple[int, int], int]:
    """By epoch and partition, what the frontier had passed while the partition was idle, or by the clock while its source was silent as a whole: what
    is older is late. Idle partitions wait for no other source here.
    """
    both = [s for s in (source, source.then) if s is not None]
    if not source.timed or all(s.close_after_us is None and s.idle_after is None for s in both):
        return {}
    found: dict[tuple[int, int], int] = {}
    greatest: dict[int, int] = {}
    floors: dict[int, int] = {}
    heard: dict[int, int] = {}
    was_idle: set[int] = set()
    frontier, quiet, gone_on = None, None, False
    first = min((epoch for epoch in clock if epoch > stop), default=NEVER)
    for epoch, (now, resumed, anew) in sorted(clock.items()):
        options = at_epoch(source, epoch, stop)
        came = [(x["p"], micros(x["at"]), x["o"]) for e, x in records if e == epoch and x["at"] is not None]
        parts = {part for part, _, _ in came}
        if epoch == first and options.lateness_us > source.lateness_us:
            floors |= {p: max(floors.get(p, t), t) for p, t in _behind(greatest, source).items()}
        quiet = now if came or resumed or quiet is None else quiet
        heard = {p: now if p in parts or anew else heard.get(p, now) for p in source.partitions}
        is_idle = {p for p in heard if options.idle_after is not None and now - heard[p] > seconds(options.idle_after)}
        for part in source.partitions:
            back = part in was_idle and part not in is_idle
            if frontier is not None and (back or (gone_on and came)):
                floors[part] = max(floors.get(part, frontier), frontier)
        for part, time, _ in sorted(came, key=lambda c: c[2]):
            if options.ahead_us is None or time <= greatest.get(part, time) + options.ahead_us:
                greatest[part] = max(time, greatest.get(part, time))
        found |= {(epoch, p): floor for p, floor in floors.items()}
        behind = {p: max(t, floors.get(p, t)) for p, t in (dict(floors) | _behind(greatest, options)).items()}
        active = [behind.get(p) for p in source.partitions if p not in is_idle]
        reached = (None if None in active else min(active)) if active else max(behind.values(), default=None)
        more = 0
        if reached is not None:
            more = 0 if options.close_after_us is None else max(now - quiet - options.close_after_us, 0)
            frontier = reached + more if frontier is None else max(frontier, reached + more)
        gone_on = not came and (gone_on or more > 0)
        was_idle = is_idle
    return found


def _behind(greatest: Mapping[int, int], source: r.Source) -> dict[int, int]:
    """By partition, the greatest time less the lateness."""
    return {p: t - source.lateness_us for p, t in greatest.items()}


def seconds(text: str) -> int:
    """How many microseconds an option of whole seconds or hours has."""
    number, unit = text.split()
    return int(number) * {"second": 1, "hour": 3600}[unit.removesuffix("s")] * r.SECOND
