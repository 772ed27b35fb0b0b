"""Where a flow starts again when its state is to be computed from the log: a pure function of marks, flow and log.

    mark      what a sink holds: positions, frontier, and the trail of the sources (`penstock.progress.trail`)
    horizon   event time before which no record of a source matters to any row after the marks: windows and the like, added up along the flow
    start     the last waypoint of a source's trail before its horizon

Everything before the waypoint is older than the horizon. What a replay gets wrong at its beginning, because it does not see what was before,
are rows that lie before the sinks' marks, and of these no sink is given any.

Read next: `penstock.checkpoint.recovery`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import unquote

from penstock.checkpoint.record import EpochRecord
from penstock.checkpoint.recovery import Chain, Recovery, Stop
from penstock.driver.input_files import InputFile
from penstock.flow import plan as p
from penstock.progress.source_state import PartitionState, SourceState, Waypoint, floor_at
from penstock.progress.trail import Trail, chained, file_print
from penstock.types import MAX_TIME, MIN_TIME, Mark, Refusal, seconds_text, time_text


@dataclass(frozen=True)
class Horizon:
    """Event time (µs) before which no record matters; `MAX_TIME`: none does before the marks, `MIN_TIME`: each does. And why."""

    time: int
    why: str


@dataclass(frozen=True)
class Known:
    """A state that a replay can begin with in place of none: that of the last record or of a snapshot.

    Attributes:
        what: What it is, for people.
        sources: The sources there.
    """

    what: str
    sources: Mapping[str, SourceState]


@dataclass(frozen=True)
class Start:
    """A recomputation that can begin.

    Attributes:
        recovery: What the record keeps of it.
        sources: By name, the sources as it begins.
        read: By source of files, the files that count as read.
        known: The state that it begins with; None: none.
    """

    recovery: Recovery
    sources: dict[str, SourceState]
    read: dict[str, tuple[InputFile, ...]]
    known: Known | None = None


_NOTHING = Horizon(MAX_TIME, "nothing that was read before the marks matters to what follows")


def horizons(
    plan: p.Plan,
    frontiers: Mapping[str, int],
    resting: Collection[str] = (),
    reach: int = 0,
    chains: dict[tuple[str, int], Chain] | None = None,
    passed: Mapping[str, int] | None = None,
) -> dict[str, Horizon]:
    """By source, its horizon: what the outputs need, and what the state of steps needs that feed none, or none with a mark.

    Args:
        plan: The flow.
        frontiers: By output, the frontier of its mark (µs); `MIN_TIME` of one without a mark.
        resting: Regions whose state goes on.
        reach: Chains of records (`Operator.link`) are taken to have so many links at most; 0: any number.
        chains: Is given what was taken to be so, by region and index of the step.
        passed: By source, its frontier at the first mark; without it steps that feed no output are left out.
    """
    found = {s.name: _NOTHING for s in plan.sources}
    seen: set[tuple[str, int]] = set()

    def visit(node: p.Node, need: Horizon, frontier: int) -> None:
        if isinstance(node, (p.SourceNode, p.AsideNode)):
            source = node if isinstance(node, p.SourceNode) else node.source
            if need.time < found[source.name].time:
                found[source.name] = need
        elif isinstance(node, p.RegionOutput):
            within(node.region, node.operator, need, frontier)
        else:
            for before in p.inputs_of(node):
                visit(before, need, frontier)

    def within(region: p.Region, operator: int, need: Horizon, frontier: int) -> None:
        if region.name in resting:
            for node in region.inputs:
                visit(node, need, frontier)
            return
        if region.timed and frontier < need.time:
            why = (
                f"rows wait in region {region.name!r} until the frontier has passed them, which stood at {time_text(frontier)}"
            )
            need = Horizon(frontier, why)
        if operator < 0:
            visit(region.inputs[-1 - operator], need, frontier)
            return
        seen.add((region.name, operator))
        step = region.steps[operator]
        span, link = step.operator.span(), step.operator.link()
        if link is not None and chains is not None and reach and region.timed and MIN_TIME < need.time < MAX_TIME:
            need = replace(need, time=min(need.time, *frontiers.values()))  # state is looked at where the first mark is
            span = reach * link
            name, before = region.step_name(operator), max(need.time - span, MIN_TIME)
            known = chains.get((region.name, operator), Chain(region.name, name, before, need.time))
            least = Chain(region.name, name, min(known.before, before), min(known.needed, need.time))
            chains[region.name, operator] = least
        if span is None or (span and not region.timed):
            need = Horizon(
                MIN_TIME,
                f"step {region.step_name(operator)!r} of region {region.name!r} ({step.operator.describe()}) remembers without end",
            )
        elif span and MIN_TIME < need.time < MAX_TIME:
            need = Horizon(
                max(need.time - span, MIN_TIME),
                f"step {region.step_name(operator)!r} of region {region.name!r} looks back {seconds_text(span)}, and what follows it needs rows from "
                f"{time_text(need.time)} on",
            )
        for kind, at in step.inputs:
            within(region, -1 - at if kind == "port" else at, need, frontier)

    for output in plan.outputs:
        frontier = frontiers[output.name]
        need = _NOTHING if frontier > MIN_TIME else Horizon(MIN_TIME, f"output {output.name!r} holds nothing yet")
        visit(output.node, need, frontier)
    if passed is None:
        return found
    for region in reversed(plan.regions):
        frontier = min((passed.get(s.name, MIN_TIME) for s in p.upstream_of(p.SourceNode, *region.inputs)), default=MIN_TIME)
        for operator in reversed(range(len(region.steps))):
            if (region.name, operator) not in seen:
                within(region, operator, _NOTHING, frontier)
    return found


def recovery_of(
    plan: p.Plan,
    marks: Mapping[str, Mark | None],
    files: Mapping[str, Sequence[InputFile] | None],
    *,
    since: int | None = None,
    known: Sequence[Known] = (),
    resting: Collection[str] = (),
    rest: Mapping[str, SourceState] | None = None,
    reach: int = 0,
    failed: bool = False,
    now_us: int = 0,
) -> Start | Refusal:
    """Where a recomputation starts and what each output is given, or why it cannot.

    Args:
        plan: The flow.
        marks: By output, what its sink holds; None: nothing. At least one holds something.
        files: By source of files, those that are there; None of another source.
        since: Event time (µs) to take in place of the horizons; None: none.
        known: States that it can begin with.
        resting: Regions whose state goes on, and
        rest: the sources where it stands.
        reach: See `horizons`; it is checked in the replay. Without effect where `since` is given.
        failed: Whether a function failed in a replay that began in the middle of the log: all records matter then.
        now_us: Clock time.
    """
    trails: dict[str, Trail | None] = {}
    for name, mark in marks.items():
        trails[name] = Trail.from_text(mark.trail) if mark is not None else None
        refused = None if mark is None else _mark_refusal(plan, name, trails[name])
        if refused:
            return refused
    resting_at = (
        None if rest is None else Trail(plan.name, sources=dict(rest))
    )  # a stop of its own: from there on these regions run
    holding = sorted((t for t in (*trails.values(), resting_at) if t is not None), key=_extent)
    for lower, upper in pairwise(holding):
        if not _comes_before(lower, upper):
            return Refusal("the sinks' marks are not of one history: each has read what the other has not")
    ways = [next(same) for _, same in groupby(holding, _extent)]
    place = {_extent(way): number for number, way in enumerate(ways, 1)}
    refused = _order_refusal(plan, ways[-1], resting)
    if refused:
        return refused
    frontiers = {o.name: MIN_TIME if (m := marks[o.name]) is None else m.frontier for o in plan.outputs}
    whole = since is None and any(mark is None for mark in marks.values())
    chains: dict[tuple[str, int], Chain] = {}
    passed = {name: state.frontier for name, state in ways[0].sources.items()}
    found = horizons(plan, frontiers, resting, 0 if since is not None else reach, chains, passed)
    if since is not None:  # it says where to begin if the flow does not, or earlier than the flow says
        told = Horizon(since, f"since={time_text(since)} was given")
        found = {n: told if h.time == MIN_TIME or since < h.time else h for n, h in found.items()}
    elif failed:
        found = dict.fromkeys(found, Horizon(MIN_TIME, "a replay from the middle of the log failed"))
    usable = None if whole else _usable(ways[0], known)
    starts: dict[str, SourceState] = {}
    read: dict[str, tuple[InputFile, ...]] = {}
    for source in plan.sources:
        there = ways[0].sources.get(source.name, SourceState())
        starts[source.name] = SourceState() if whole else _start(there, found[source.name].time)
    begun = {name for name, state in starts.items() if state.files or any(k.offset >= 0 for k in state.partitions.values())}
    asked = [c for (region, _), c in chains.items() if begun & _sources_of(plan, region)]
    if usable is not None and (
        any(h.time == MIN_TIME for h in found.values())
        or (asked and _comes_before(Trail("", sources=starts), Trail("", sources=dict(usable.sources))))
    ):
        starts, asked = dict(usable.sources), []
        why = f"It begins with the state of {usable.what}"
    else:
        usable = None
        first = min(plan.sources, key=lambda s: found[s.name].time)
        why = f"It begins where it does because {found[first.name].why}"
    for source in plan.sources:
        listed = files[source.name]
        if listed is not None:
            at = _files_read(
                source.name, starts[source.name], ways[-1].sources.get(source.name, SourceState()), listed, found[source.name]
            )
            if isinstance(at, Refusal):
                return at
            read[source.name] = at
            end, begin = ways[-1].sources.get(source.name, SourceState()), starts[source.name]
            reached = end.reached if begin.files == end.files else list(max((f.place for f in at), default=()))
            starts[source.name] = replace(begin, reached=reached, order={})
    stops = [Stop({n: _bare(s) for n, s in w.sources.items()}, w.finished) for w in ways]
    resumes = 0 if resting_at is None else place[_extent(resting_at)]
    outputs = {name: 0 if trail is None else place[_extent(trail)] for name, trail in trails.items()}
    ends = _positions(ways[-1].sources)
    recovery = Recovery(
        {**dict.fromkeys(ends, -1), **_positions(starts)},
        ends,
        stops,
        outputs,
        dict.fromkeys(resting, resumes),
        f"{why}.",
        marks=_positions(ways[0].sources),
        began_us=now_us,
        reach=reach if asked else 0,
        chains=asked,
        cut=bool(begun) and usable is None and since is None,
    )
    while recovery.reached(starts) and not recovery.stops[0].finished:  # else it would wait for records that need not come
        starts = recovery.at_stop(starts, now_us)
        recovery = recovery.after(passed=True, again=False, rows=0, now_us=now_us)
    return Start(recovery, starts, read, usable)


def _mark_refusal(plan: p.Plan, output: str, trail: Trail | None) -> Refusal | None:
    if trail is None:
        return Refusal(f"the mark of output {output!r} was written by a version that kept no trail of the sources in it")
    if trail.name != plan.name:
        return Refusal(f"output {output!r} holds the rows of flow {trail.name!r}, and this one is {plan.name!r}")
    names, had = {s.name for s in plan.sources}, set(trail.sources)
    if names != had:
        return Refusal(
            f"output {output!r} holds rows of the sources {', '.join(sorted(had))}, and the flow now has {', '.join(sorted(names))}"
        )
    if trail.held:
        region = min(trail.held)
        return Refusal(
            f"a key of region {region!r} was on hold for a rescale when output {output!r} was stored, so that rows of it are missing there and "
            "others are not"
        )
    return None


def _order_refusal(plan: p.Plan, end: Trail, resting: Collection[str]) -> Refusal | None:
    """Without event time, rows of several partitions are in the order of the epochs that they came in, which no log has."""
    for region in plan.regions:
        at = next((i for i, step in enumerate(region.steps) if step.operator.ordered), None)
        sources = p.upstream_of(p.SourceNode, *region.inputs)
        number = sum(max(len(end.sources[s.name].partitions), 1) for s in sources)
        if at is not None and number > 1 and not region.timed and region.name not in resting:
            return Refusal(
                f"step {region.step_name(at)!r} of region {region.name!r} depends on the order of rows, and without event time that of {number} source "
                "partitions is how they came, epoch by epoch, which the log does not tell"
            )
    return None


def _extent(trail: Trail) -> tuple[int, int, bool]:
    """Greater for a mark that comes later in one history."""
    offsets = sum(k.offset + 1 for s in trail.sources.values() for k in s.partitions.values())
    return sum(s.files for s in trail.sources.values()), offsets, trail.finished


def _comes_before(lower: Trail, upper: Trail) -> bool:
    for name, state in lower.sources.items():
        other = upper.sources[name]
        if state.files > other.files:
            return False
        for key, known in state.partitions.items():
            if known.offset > other.partitions.get(key, PartitionState(0)).offset:
                return False
    return True


def _usable(lowest: Trail, known: Sequence[Known]) -> Known | None:
    """The newest state that is not behind any mark."""
    fit = [
        k for k in known if set(k.sources) == set(lowest.sources) and _comes_before(Trail("", sources=dict(k.sources)), lowest)
    ]
    return max(fit, key=lambda k: _extent(Trail("", sources=dict(k.sources))), default=None)


def _start(there: SourceState, horizon: int) -> SourceState:
    """A source as a replay begins with it.

    Args:
        there: The source at the lowest mark.
        horizon: Its horizon (µs).
    """
    if there.files:
        point = _last_before(there.trail, horizon)
        strays = [s for s in there.strays if s[0] < point.files]
        partitions = {
            name: replace(_begin(k, point), trail=[]) for name, k in there.partitions.items() if point.latest != MIN_TIME
        }
        trail = [w for w in there.trail if w.number <= point.number]
        return SourceState(
            files=point.files, rows=point.rows, digest=point.digest, strays=strays, trail=trail, partitions=partitions
        )
    points = {name: _last_before(k.trail, horizon) for name, k in there.partitions.items()}
    partitions = {name: _begin(k, points[name]) for name, k in there.partitions.items() if points[name].offset >= 0}
    return SourceState(rows=sum(w.rows for w in points.values()), partitions=partitions)


def _begin(known: PartitionState, point: Waypoint) -> PartitionState:
    floors = [f for f in known.floors if f[0] < point.offset]
    trail = [w for w in known.trail if w.number <= point.number]
    return PartitionState(
        known.part,
        point.latest,
        point.offset,
        floor_at(known.floors, point.offset),
        rows=point.rows,
        trail=trail,
        floors=floors,
        print=point.print,
    )


def _last_before(trail: Sequence[Waypoint], horizon: int) -> Waypoint:
    """The last waypoint all records before which are older than a horizon; the beginning if there is none."""
    return next((w for w in reversed(trail) if horizon == MAX_TIME or w.latest < horizon), Waypoint(0))


def _files_read(
    source: str, start: SourceState, end: SourceState, listed: Sequence[InputFile], horizon: Horizon
) -> tuple[InputFile, ...] | Refusal:
    """The files that count as read at a start, if those up to the last mark are there and are what they were."""
    strays = {unquote(uri): number for number, uri in end.strays}
    reached = (end.reached[0], end.reached[1]) if end.reached else (-1, "")
    before = [f for f in sorted(listed, key=lambda f: f.place) if f.place <= reached or unquote(f.uri) in strays]
    ordered = [f for f in before if unquote(f.uri) not in strays]
    missing = end.files - len(before)
    for file in sorted((f for f in before if unquote(f.uri) in strays), key=lambda f: strays[unquote(f.uri)]):
        ordered.insert(max(strays[unquote(file.uri)] - missing, 0), file)
    if missing > start.files:
        return Refusal(
            f"source {source!r} is needed from its file {start.files + 1:,} on, and of the {end.files:,} files from which the sinks' rows came the first "
            f"{missing:,} are gone ({horizon.why})"
        )
    after = ordered[start.files - missing :] if missing >= 0 else ordered
    digest = start.digest
    known = {w.files: w for w in end.trail}
    since = start.files
    for number, file in enumerate(after, start.files + 1):
        digest = chained(digest, file_print(file.uri, file.size, file.mtime_ms))
        if number in known:
            if known[number].digest != digest:
                break
            since = number
    if digest != end.digest or missing < 0:
        extra = f"; {-missing:,} more than then have a time before that of the last one read" if missing < 0 else ""
        first = after[since - start.files] if since - start.files < len(after) else None
        near = f", from {unquote(first.uri)} on" if first else ""
        return Refusal(
            f"the files of source {source!r} are not those from which the sinks' rows came{near}: they have another name, size or time, or came in "
            f"another order{extra}; put them back as they were"
        )
    return tuple(ordered[: start.files - missing])


def _sources_of(plan: p.Plan, region: str) -> set[str]:
    """The sources that a region reads, through whatever."""
    return {s.name for r in plan.regions if r.name == region for s in p.upstream_of(p.SourceNode, *r.inputs)}


def _bare(state: SourceState) -> SourceState:
    """A source without its trails."""
    return replace(state, trail=[], partitions={n: replace(k, trail=[]) for n, k in state.partitions.items()})


def _positions(sources: Mapping[str, SourceState]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, state in sources.items():
        if state.files:
            found[name] = state.files
        else:
            found |= {f"{name}/{key}": known.offset for key, known in state.partitions.items()}
    return found


def recovery_figures(record: EpochRecord, now_us: int) -> dict[str, Any] | None:
    """What there is to tell of a record's recomputation; None: there was none.

    Args:
        record: The record.
        now_us: Clock time.
    """
    recovery = record.recovery
    if recovery is None:
        return None
    reached = _positions(record.sources)
    partitions = {}
    for name, end in recovery.ends.items():
        start = recovery.starts.get(name, -1)
        now = min(max(reached.get(name, start), start), end)
        partitions[name] = {"start": start, "now": now, "mark": recovery.marks.get(name, start), "end": end}
    whole = sum(p["end"] - p["start"] for p in partitions.values())
    done = sum(p["now"] - p["start"] for p in partitions.values())
    took_us = (recovery.ended_us or now_us) - recovery.began_us
    left_s = None if recovery.ended_us or not done else round(took_us / 1e6 * (whole - done) / done, 1)
    return {
        "active": recovery.active,
        "why": recovery.why,
        "partitions": partitions,
        "rows_replayed": recovery.rows,
        "outputs_suppressed": [name for name in recovery.outputs if not recovery.gives(name)],
        "seconds": round(took_us / 1e6, 1),
        "seconds_left": 0.0 if recovery.ended_us else left_s,
    }


__all__ = ["Horizon", "Known", "Start", "horizons", "recovery_figures", "recovery_of"]
