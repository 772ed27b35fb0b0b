"""What must be true of every rescale, whatever happens during it: properties P1 to P13.

    P1  no loss                                P6   in the end everything is where the table says, and nothing is elsewhere
    P2  no duplicate                           P7   a rescale ends within a bound, also under endless new keys
    P3  order per key                          P8   keys that are not on hold never wait
    P4  the chain of states is unbroken        P9   the frontier passes no unprocessed record, and waits for nothing else
    P5  one worker per key                     P10  a key on hold waits for its own copy and no longer
    P11  a worker refuses messages that are not its epoch's
    P12  a key that a user has pinned is never the strategy's; a worker of a key that the strategy has pinned has no bins in the end
    P13  the strategy changes its mind on evidence only: so many rows since it last did

The checkers see what a user could see: the input, what the sink holds, what each worker holds at the end of each epoch, how many
tasks ran, which table was in force, which frontier was announced, when a copy began and ended. They know nothing of phases, goals
and messages. The truth that they compare with is one sequential pass over the input.

Read next: `penstock.testing.outcome`, which is what they see, and `penstock.testing.simulator`, which makes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from penstock.routing.table import Routing
from penstock.testing.outcome import Outcome, RegionEpoch
from penstock.testing.schedule import Record
from penstock.testing.simulated_worker import Emitted, State, folded
from penstock.types import MAX_TIME


class Violation(NamedTuple):
    """A property that does not hold, and how that shows."""

    property: str
    what: str


def check(outcome: Outcome) -> list[Violation]:
    """What is wrong with a run.

    Args:
        outcome: What the run has shown.

    Returns:
        Nothing, if all is well.

    Example:
        >>> from penstock.testing.simulator import simulate
        >>> check(simulate(7))
        []
    """
    return [*_reruns(outcome), *_frontiers(outcome), *_records(outcome), *_places(outcome), *_own(outcome), *_ends(outcome)]


def _reruns(outcome: Outcome) -> Iterator[Violation]:
    for stored, again in outcome.reruns:
        if stored != again:
            yield Violation("P2", f"an epoch run again gives {again}, and the sink had stored {stored}")
    for epoch, fault in outcome.accepted:
        yield Violation("P11", f"a worker took messages of epoch {epoch} that were delivered {fault}")


def _frontiers(outcome: Outcome) -> Iterator[Violation]:
    """P9, of what is announced: the frontier that came in, bounded by those of the copies under way, and by nothing else."""
    for region in range(len(outcome.schedule.regions)):
        copies = [c for c in outcome.copies if c.region == region]
        frontiers = _incoming(outcome, region)
        for epoch, came in enumerate(frontiers):
            bounds = [frontiers[c.since] for c in copies if c.since < epoch < c.done]
            announced = outcome.epochs[epoch][region].announced
            if announced != min([came, *bounds]):
                yield Violation("P9", f"region {region} announces {announced} in epoch {epoch}, not {min([came, *bounds])}")


def _incoming(outcome: Outcome, region: int) -> list[int]:
    """By epoch, the frontier that a region works with."""
    if region == 0:
        return outcome.frontiers
    return [epoch[region - 1].announced for epoch in outcome.epochs]


def _records(outcome: Outcome) -> Iterator[Violation]:
    """P1, P2, P3, P4, P5, P8, P9, P10: each record, against one sequential pass."""
    arrivals = [(epoch, row) for epoch, rows in enumerate(outcome.input) for row in rows]
    second = {(row[1], row[2]): row[4] for _, row in arrivals}
    for region, plan in enumerate(outcome.schedule.regions):
        emitted = [e for e in outcome.emitted if e.region == region]
        yield from _region_records(outcome, region, plan.timed, arrivals, emitted)
        arrivals = [(e.epoch, (e.time, e.part, e.offset, second.get((e.part, e.offset), 0), 0)) for e in emitted]


def _region_records(
    outcome: Outcome, region: int, timed: bool, arrivals: list[tuple[int, Record]], emitted: list[Emitted]
) -> Iterator[Violation]:
    frontiers = _incoming(outcome, region)
    expected: dict[int, list[tuple[int, int, int]]] = {}
    arrivals.sort(key=_by_time if timed else _by_arrival)
    for arrival, row in arrivals:
        due = max(arrival, bisect_right(frontiers, row[0])) if timed else arrival
        expected.setdefault(row[3], []).append((row[1], row[2], due))
    copies: dict[int, list[tuple[int, int]]] = {}
    for copy in outcome.copies:
        if copy.region == region:
            copies.setdefault(copy.key, []).append((copy.since, copy.done))
    seen: set[tuple[int, int]] = set()
    nth: dict[int, int] = {}
    chains: dict[int, int] = {}
    tables = [Routing.even(outcome.schedule.regions[region].workers, outcome.schedule.bins)]
    tables += [epoch[region].table for epoch in outcome.epochs]
    passed = [epoch[region].announced for epoch in outcome.epochs]
    for out in emitted:
        _, key, part, offset, time, before, after, worker, epoch = out
        if (part, offset) in seen:
            yield Violation("P2", f"emitted twice: {out}")
            continue
        seen.add((part, offset))
        at = nth.get(key, 0)
        nth[key] = at + 1
        turns = expected.get(key, [])
        turn = turns[at] if at < len(turns) else None
        if turn is None or turn[:2] != (part, offset):
            yield Violation("P3", f"emitted when it was the turn of {turn}: {out}")
        chain = chains.get(key, 0)
        chains[key] = after
        if before != chain or after != folded(before, part, offset):
            yield Violation("P4", f"the chain was at {chain}: {out}")
        if tables[epoch].worker_of(key) != worker:
            yield Violation("P5", f"worker {tables[epoch].worker_of(key)} should have emitted: {out}")
        if epoch and time < passed[epoch - 1]:
            yield Violation("P9", f"the frontier had passed {passed[epoch - 1]}: {out}")
        if turn is not None and turn[2] != epoch:
            due = turn[2]
            ends = [done for since, done in copies.get(key, ()) if since < due < done]
            if not ends:
                yield Violation("P8", f"not on hold and due in epoch {due}: {out}")
            elif ends != [epoch]:
                yield Violation("P10", f"on hold, due in epoch {due} and copied in {ends}: {out}")
    if len(seen) != len(arrivals):
        lost = [row for _, row in arrivals if row[1:3] not in seen]
        yield Violation("P1", f"never emitted by region {region}: {lost}")


def _by_time(arrival: tuple[int, Record]) -> Record:
    return arrival[1]


def _by_arrival(arrival: tuple[int, Record]) -> tuple[int, int, int]:
    return arrival[0], arrival[1][1], arrival[1][2]


def _places(outcome: Outcome) -> Iterator[Violation]:
    """P5 and P6: at the end of every epoch each key is at one worker, the one that the table names."""
    for region in range(len(outcome.schedule.regions)):
        before: dict[int, State] = {}
        last: Routing | None = None
        copies = [c for c in outcome.copies if c.region == region]
        for epoch, shown in enumerate(outcome.epochs):
            states, table = shown[region].states, shown[region].table
            for copy in copies:
                if copy.since <= epoch < copy.done and any(copy.key in s.chains for s in states.values()):
                    yield Violation("P5", f"epoch {epoch}: {copy.key} is being copied and a worker has state for it")
            for worker, state in states.items():
                if table is last and before.get(worker) is state:
                    continue
                for key in state.keys():  # noqa: SIM118  (not a dict)
                    if table.worker_of(key) != worker:
                        yield Violation("P6", f"epoch {epoch}: {key} is at {worker}, the table says {table.worker_of(key)}")
                        homes = [w for w, s in states.items() if key in s.keys()]  # noqa: SIM118
                        if len(homes) > 1:
                            yield Violation("P5", f"epoch {epoch}: {key} is at workers {homes}")
            before, last = states, table


def _own(outcome: Outcome) -> Iterator[Violation]:
    """P12 and P13: keys that the strategy pins by itself."""
    rows = getattr(outcome.schedule.strategy, "rows", 0)
    for region in range(len(outcome.schedule.regions)):
        arrived, before = 0, dict[int, int]()
        for epoch, shown in enumerate(outcome.epochs):
            _, _, table, _, own, pins = shown[region]
            if own.keys() & pins.keys():
                yield Violation("P12", f"epoch {epoch}: {own} are the strategy's, and users' are {pins}")
            if len({*own.values()}) < len(own):
                yield Violation("P12", f"epoch {epoch}: {own} share a worker")
            arrived += (
                len(outcome.input[epoch]) if region == 0 else sum(e.epoch == epoch for e in outcome.emitted if e.region == 0)
            )
            if own.keys() - before.keys():
                if arrived < rows * shown[region].tasks:
                    yield Violation("P13", f"epoch {epoch}: {own} pinned after {arrived} rows")
                arrived = 0
            before = dict(own)
        if outcome.ended and own and set(own.values()) & set(table.owners) and len(own) < outcome.asked[region]:
            yield Violation("P12", f"region {region} ends with {own} pinned and {table.owners}")


def _ends(outcome: Outcome) -> Iterator[Violation]:
    """P6 and P7: the state in which a run ends, and when it came to it."""
    if not outcome.ended:
        yield Violation("P7", f"not at rest after {len(outcome.epochs)} epochs")
        return
    if outcome.epochs[-1][-1].announced != MAX_TIME:
        yield Violation("P9", "the end of the input was not announced")
    for region in range(len(outcome.schedule.regions)):
        last = outcome.epochs[-1][region]
        wanted = outcome.asked[region]
        if last.table.used > wanted or any(w >= wanted for w in last.states):
            yield Violation("P6", f"region {region} should have {wanted} workers and uses {last.table}, {list(last.states)}")
        misplaced = {k: w for k, w in outcome.pins[region].items() if last.table.worker_of(k) != w}
        misplaced |= {k: w for k, w in last.own.items() if last.table.worker_of(k) != w}
        if misplaced or last.table.splits or not last.table.pinned_keys.keys() <= {*outcome.pins[region], *last.own}:
            yield Violation("P6", f"region {region} ends with {last.table}; asked was {outcome.pins[region]}")
        settled = len(outcome.epochs)
        while settled and _table(outcome.epochs[settled - 1][region]) == _table(last):
            settled -= 1
        if last.tasks != wanted:
            yield Violation("P6", f"region {region} should have {wanted} workers and ran {last.tasks} tasks")
        if settled > bound(outcome, region):
            yield Violation("P7", f"region {region} settled in epoch {settled}; the bound is {bound(outcome, region)}")


def _table(shown: RegionEpoch) -> tuple[int, Routing]:
    return shown.tasks, shown.table


def bound(outcome: Outcome, region: int) -> int:
    """The epoch by which a region must have settled.

    Every bin is measured once, moves at most twice (on to where it was going, then to where it is wanted), and is cut at most once
    per key; each epoch does at least one of these. Holds add the time of their copies. An endless source brings up to two new keys
    per epoch while bins are measured, and while a bin is cut new keys in the parts that are still to go: (e^r − 1)/r cuts per key
    if r keys come per cut, which is below 3 for what is drawn.
    """
    bins, quiet = outcome.schedule.bins, outcome.quiet_from
    known = len({row[3] if region == 0 else row[4] for rows in outcome.input[: quiet + 1] for row in rows})
    cuts = 3 * (known + 2 * bins) if outcome.schedule.endless else 2 * known
    waits = sum(c.done - c.since for c in outcome.copies if c.region == region and c.done > quiet)
    return quiet + 3 * bins + cuts + waits + 2
