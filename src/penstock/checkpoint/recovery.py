"""A recomputation under way, as the epoch record keeps it: where it began, and the marks of sinks that it must come by.

At each of these marks, a *stop*, an epoch of the replay ends, so that a sink is given nothing before its own mark and everything after it. What
was decided until there and is no function of the log (where the frontier stood, which partitions were idle) is taken from the mark.

Read next: `penstock.driver.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.progress.source_state import PartitionState, SourceState, floor_at
from penstock.types import Refusal

_FAR: Final = (1 << 63) - 1
Told = Callable[[str, int], str]
"""What a position of a source is called, for people."""


def _number(_: str, position: int) -> str:
    """A position as its number."""
    return str(position)


@dataclass(frozen=True)
class Stop:
    """A mark that a replay must come by.

    Attributes:
        sources: By name, the sources as they were there; without their trails.
        finished: Whether the end of the input was given out there.
    """

    sources: dict[str, SourceState]
    finished: bool = False


@dataclass(frozen=True)
class Chain:
    """A step whose records hold together in chains (`penstock.operators.base.Operator.link`), in a replay that began in the middle of the log.

    Attributes:
        region: Its region.
        step: Its name there.
        before: Event time (µs) before which it lacks records.
        needed: Event time (µs) from which on its results matter.
    """

    region: str
    step: str
    before: int
    needed: int


@dataclass(frozen=True)
class Recovery:
    """See the module.

    Attributes:
        starts: By ``"source/partition"``, the offset after which the replay reads; of files their number.
        ends: Likewise, up to where it reads before all sinks are given rows again.
        stops: Those that are ahead.
        marks: Likewise, where the sink that is least far stood.
        outputs: By output, after how many stops it is given rows.
        resting: By region whose state goes on, after how many stops it runs again: where that state stands.
        why: A sentence: what made it begin where it began.
        passed: Number of stops that are behind.
        again: Whether the next epoch is given input once more that has been read in part.
        stalled: Epochs in a row that had only records behind the next stop.
        rows: Records read so far.
        began_us: Clock time at which it began.
        ended_us: Clock time at which the last stop was passed; 0: it has not been.
        reach: Of so many links at most chains were taken to be when it was planned; 0: of any number.
        chains: Steps that must say, until the first stop, whether a chain was longer than that.
        short: A sentence: such a one was found, or a user's function failed. It begins anew, from further back.
        cut: Whether it began in the middle of the log without a state: functions may meet what lacks older records, and fail on it.
    """

    starts: dict[str, int]
    ends: dict[str, int]
    stops: list[Stop]
    outputs: dict[str, int]
    resting: dict[str, int] = field(default_factory=dict)
    why: str = ""
    marks: dict[str, int] = field(default_factory=dict)
    passed: int = 0
    again: bool = False
    stalled: int = 0
    rows: int = 0
    began_us: int = 0
    ended_us: int = 0
    reach: int = 0
    chains: list[Chain] = field(default_factory=list)
    short: str = ""
    cut: bool = False

    @property
    def active(self) -> bool:
        """Whether a stop is ahead."""
        return bool(self.stops)

    def gives(self, output: str) -> bool:
        """Whether an output is given the rows of the next epoch."""
        return self.outputs.get(output, 0) <= self.passed

    def rests(self, region: str) -> bool:
        """Whether a region does not run in the next epoch, because its state stands where the replay has not come yet."""
        return self.resting.get(region, 0) > self.passed

    def limits(self, source: str, state: SourceState) -> tuple[dict[str, tuple[int, int]], int | None]:
        """Which records of a source the next epoch reads: by partition after which offset and up to which, and up to how many files (None: all).

        A source that cannot begin in the middle gives its records from the beginning, so those that are behind it are left out from now on.

        Args:
            source: Its name.
            state: The source after the epoch before.
        """
        there = self.stops[0].sources.get(source, SourceState()) if self.stops else None
        names = {**state.partitions, **(there.partitions if there else {})}
        found = {}
        for name in names:
            known = state.partitions.get(name)
            after = -1 if known is None else known.offset
            upto = _FAR
            if there is not None:
                end = there.partitions.get(name)
                upto = -1 if end is None else end.offset
                changes = [at for at, _ in end.floors if after < at < upto] if end else []
                upto = min([upto, *changes])
            found[name] = (after, upto)
        return found, None if there is None else there.files

    def reached(self, states: Mapping[str, SourceState]) -> bool:
        """Whether sources are where the next stop is."""
        return bool(self.stops) and all(_reached(states[n], there) for n, there in self.stops[0].sources.items())

    def difference(self, states: Mapping[str, SourceState], told: Told = _number) -> Refusal | None:
        """Why the log that led to the next stop is not the one from which the sink's rows came; None: it is, as far as can be told."""
        for name, there in self.stops[0].sources.items():
            state = states[name]
            if state.digest != there.digest:
                return Refusal(
                    f"the files of source {name!r} up to file {there.files} are not those from which the sinks' rows came: another name, size or time"
                )
            for key, end in there.partitions.items():
                now = state.partitions.get(key, PartitionState(end.part))
                known = not there.files and None not in (now.print, end.print)
                if (now.rows, now.latest) != (end.rows, end.latest) or (known and now.print != end.print):
                    start, more = self.starts.get(f"{name}/{key}", -1), now.rows - end.rows
                    what = (
                        f"{abs(more):,} {'more' if more > 0 else 'fewer'}" if more else "as many, with other positions or times"
                    )
                    return Refusal(
                        f"partition {key!r} of source {name!r} has other records after position {told(name, start)} and up to {told(name, end.offset)} than those from which the "
                        f"sinks' rows came ({what}); another ahead= would do that too"
                    )
        return None

    def missing(self, states: Mapping[str, SourceState], told: Told = _number) -> str:
        """Where the sources are and where the next stop is, for people."""
        found = []
        for name, there in self.stops[0].sources.items():
            state = states.get(name, SourceState())
            if there.files > state.files:
                found.append(f"source {name!r} has {state.files:,} files of {there.files:,}")
            for key, end in there.partitions.items():
                known = state.partitions.get(key, PartitionState(end.part))
                if not there.files and known.offset < end.offset:
                    found.append(
                        f"partition {key!r} of source {name!r} ends at position {told(name, known.offset)}, and the mark stands at {told(name, end.offset)}"
                    )
        return "; ".join(found)

    def overrun(self, states: Mapping[str, SourceState], left: Mapping[str, bool], told: Told = _number) -> Refusal | None:
        """Why the next stop cannot be reached any more: a partition has records behind it, and lacks the last one before it."""
        for name, there in self.stops[0].sources.items():
            lacks = [
                k for k, p in there.partitions.items() if (n := states[name].partitions.get(k)) is None or n.offset < p.offset
            ]
            if left.get(name) and lacks and len(there.partitions) == 1:
                return Refusal(
                    f"partition {lacks[0]!r} of source {name!r} has no record at position {told(name, there.partitions[lacks[0]].offset)}, at which the sinks' mark "
                    "stands, and has later ones"
                )
        return None

    def before_stop(self, states: dict[str, SourceState]) -> dict[str, SourceState]:
        """The sources on the way to the next stop: rows that the sink of its mark lacks must not be given out before, as with less lateness."""
        there = self.stops[0].sources if self.stops else {}
        return {n: replace(s, frontier=min(s.frontier, there[n].frontier)) if n in there else s for n, s in states.items()}

    def at_stop(self, states: Mapping[str, SourceState], now_us: int) -> dict[str, SourceState]:
        """The sources at the next stop, with what was decided until there."""
        found = dict(states)
        for name, there in self.stops[0].sources.items():
            state = states[name]
            partitions = dict(state.partitions)
            for key, end in there.partitions.items():
                known = partitions.get(key, PartitionState(end.part))
                partitions[key] = replace(
                    known, latest=end.latest, late_floor=end.late_floor, floors=end.floors, heard_us=now_us, idle=end.idle
                )
            found[name] = replace(
                state,
                frontier=there.frontier,
                partitions=partitions,
                heard_us=now_us,
                quiet_us=now_us,
                closed=there.closed,
                idle=there.idle,
            )
        return found

    def after(self, *, passed: bool, again: bool, rows: int, now_us: int, stalls: bool = False) -> Recovery:
        """After an epoch."""
        stops = self.stops[1:] if passed else self.stops
        ended = now_us if passed and not stops else self.ended_us
        rows = self.rows + rows * self.active
        stalled = self.stalled + 1 if stalls else 0
        chains = [] if passed else self.chains
        return replace(
            self,
            stops=stops,
            passed=self.passed + passed,
            again=again,
            stalled=stalled,
            rows=rows,
            ended_us=ended,
            chains=chains,
        )


def with_floors_of(state: SourceState, there: SourceState | None) -> SourceState:
    """A source before an epoch of a replay, with the floors that held in the first run for the records that come next.

    Partitions that have not come yet are there too: each joins with the floor that it joined with, and the frontier waits for it. A replay cuts the
    log otherwise, and by its own frontier a record would be late that was not, or the other way round.
    """
    if there is None:
        return state
    partitions = dict(state.partitions)
    for name, end in there.partitions.items():
        known = partitions.get(name, PartitionState(end.part))
        partitions[name] = replace(known, late_floor=max(known.late_floor, floor_at(end.floors, known.offset)))
    return replace(state, partitions=partitions)


def _reached(state: SourceState, there: SourceState) -> bool:
    if there.files:
        return state.files >= there.files
    return all((n := state.partitions.get(k)) is not None and n.offset >= p.offset for k, p in there.partitions.items())


__all__ = ["Chain", "Recovery", "Stop", "with_floors_of"]
