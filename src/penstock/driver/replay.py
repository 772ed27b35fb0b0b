"""What an epoch has to do with trails and replays: bounds of what it reads, the trail of what it has read, stops that it comes by.

Read next: `penstock.checkpoint.recovery`, `penstock.progress.trail`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.checkpoint.record import EpochRecord
from penstock.checkpoint.recovery import Recovery, with_floors_of
from penstock.driver.engine import Bounds, Scan
from penstock.errors import PenstockError, RecoveryError, SinkAheadError
from penstock.flow import plan as p
from penstock.progress import trail
from penstock.progress.lateness import Chunk
from penstock.progress.source_state import SourceState
from penstock.protocol.messages import Missing
from penstock.protocol.rescale import Placement
from penstock.types import Mark, Refusal

MOST_STALLED: Final = 32
"""After so many epochs in a row that have only records behind the next stop nothing else is expected to come."""


def bounded(source: p.SourceNode, last: EpochRecord) -> tuple[SourceState, Bounds | None]:
    """A source before an epoch, and which of its records a replay reads in it."""
    before, recovery = last.sources.get(source.name, SourceState()), last.recovery
    if recovery is None:
        return before, None
    limits = recovery.limits(source.name, before)
    there = recovery.stops[0].sources.get(source.name) if recovery.stops else None
    return with_floors_of(before, there), Bounds(limits[0], not recovery.stops, limits[1])


def extend_trail(state: SourceState, before: SourceState, scan: Scan) -> None:
    """Add an epoch to the trail of a source; `state` is changed."""
    if scan.places:
        prints = [trail.file_print(uri, size, at) for (at, uri), size in zip(scan.places, scan.sizes, strict=True)]
        new = trail.of_files(before, scan.chunks, prints)
        state.trail, state.digest = trail.extended(state.trail, new), new[-1].digest
        state.reached, state.strays = trail.placed(before, scan.places)
        return
    came: dict[str, list[Chunk]] = {}
    for chunk in sorted(scan.chunks, key=lambda c: c.number) if not state.files else ():
        came.setdefault(chunk.partition, []).append(chunk)
    for name, chunks in came.items():
        known = state.partitions[name]
        known.trail = trail.extended(known.trail, trail.of_chunks(before.partitions.get(name), chunks))


def advanced(
    plan: p.Plan, last: EpochRecord, states: dict[str, SourceState], left: Mapping[str, bool], now_us: int, *, ended: bool
) -> tuple[dict[str, SourceState], Recovery]:
    """A replay's part of what an epoch decides: whether it has come to a stop, and what was decided there.

    Args:
        plan: The flow.
        last: The record before the epoch; it has a recovery.
        states: The sources after what the epoch reads.
        left: By source, whether there are records behind its bounds.
        now_us: Clock time.
        ended: Whether the input ends with the epoch.

    Returns:
        The sources after the epoch, and how far the recomputation is.

    Raises:
        RecoveryError: The log is another one than that from which the sinks' rows came, or shorter. Nothing of the epoch was stored.
    """
    recovery = last.recovery
    assert recovery is not None
    passed = recovery.reached(states)
    read = sum(s.rows - last.sources.get(n, SourceState()).rows for n, s in states.items())
    refused = (
        recovery.difference(states, plan.position_name)
        if passed
        else recovery.overrun(states, left, plan.position_name)
        if recovery.active
        else None
    )
    stalls = any(left.values()) and not (passed or read)
    if refused is None and recovery.active and stalls and recovery.stalled >= MOST_STALLED:
        refused = Refusal(
            f"{recovery.missing(states, plan.position_name)}; records from before the mark are gone, or the source gives too few per epoch to come by the marks of all sinks: "
            "put them back, or let it give more"
        )
    if refused is not None:
        raise RecoveryError(
            f"Flow {plan.name!r} cannot go on with its recomputation: {refused.sentence}. No sink was given anything in this epoch."
        )
    after = recovery.after(passed=passed, again=any(left.values()), stalls=stalls, rows=read, now_us=now_us)
    if ended:
        refuse_short_log(plan, after, states)
    return recovery.at_stop(states, now_us) if passed else recovery.before_stop(states), after


def refuse_short_log(plan: p.Plan, recovery: Recovery, states: Mapping[str, SourceState]) -> None:
    """The input has ended: refuse it if a replay has not come by the marks.

    Raises:
        RecoveryError: It has not. Nothing was stored.
    """
    if recovery.active:
        raise RecoveryError(
            f"Flow {plan.name!r} has read all there is and has not come by the marks of its sinks: {recovery.missing(states, plan.position_name)}; "
            "the log is shorter than the one from which their rows came. The sinks with these marks were given nothing."
        )


def missing_in(region: p.Region, last: Recovery | None, now: Recovery | None) -> tuple[Missing, ...]:
    """What the steps of a region must tell of records that a replay lacks.

    Args:
        region: The region.
        last: The recomputation before an epoch.
        now: The recomputation after it.
    """
    if last is None or not last.chains:
        return ()
    names = [region.step_name(i) for i in range(len(region.steps))]
    ends = now is None or not now.chains
    here = [c for c in last.chains if c.region == region.name and c.step in names]
    return tuple(Missing(names.index(c.step), c.before, c.needed, ends) for c in here)


def too_short(recovery: Recovery, step: str) -> Recovery:
    """A recomputation that must begin anew, from further back.

    Args:
        recovery: As it was before the epoch that showed it.
        step: The step whose results hang on older records.
    """
    return replace(
        recovery, short=f"Records of {step} hold together in chains of more than {recovery.reach} links.", again=False
    )


def failed(recovery: Recovery, error: PenstockError) -> Recovery:
    """A recomputation in which a function of the user's failed, perhaps on what lacks older records: it must begin anew, with the first ones.

    Args:
        recovery: As it was before that epoch.
        error: How it failed.
    """
    return replace(recovery, short=f"A replay from the middle of the log failed: {error}", reach=0, again=False)


def trail_text(plan: p.Plan, sources: Mapping[str, SourceState], controls: Mapping[str, Placement], *, finished: bool) -> str:
    """The trail that an epoch's marks carry."""
    held = {n: [h.key for h in c.held] for n, c in controls.items() if c.held}
    return trail.Trail.of(plan.name, sources, held, [o.name for o in plan.outputs], finished=finished).to_text()


def refuse_other_input(held: Mark | None, mark: Mark) -> None:
    """Refuse to run an epoch that a sink holds again with other input: the sink would skip rows that it does not hold.

    Args:
        held: The mark that the sink held when the run began, if it was ahead.
        mark: The mark that the epoch would store.

    Raises:
        SinkAheadError: The input is another one. Nothing was stored.
    """
    if held is None or held.epoch != mark.epoch or trail.same_input(held, mark):
        return
    raise SinkAheadError(
        f"Output {mark.output!r} holds epoch {mark.epoch}, which is not committed, and the epoch has other input now than it had then, as when parts of "
        'the checkpoint were restored from a copy; start on a new checkpoint with recover="recompute".'
    )


__all__ = ["advanced", "bounded", "extend_trail", "failed", "missing_in", "refuse_other_input", "too_short", "trail_text"]
