"""Begin a recomputation: see whether one is needed, plan it, take over the sinks, and commit the record that it begins with.

    look      read the sinks' marks, and the checkpoint as far as it is there; nothing is changed
    plan      `penstock.driver.recovery`; what cannot be done is refused here
    claim     a run above any that the sinks know, so that the driver before is fenced; marks that moved meanwhile are planned with once more
    commit    a record without state, or with an older one, that names the stops ahead; from then on every start goes on with it

A crash before the commit leaves the marks as they were, so the next start does all of it again.

Read next: `penstock.driver.opener`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from penstock.checkpoint.folder import Checkpoint, Identity
from penstock.checkpoint.record import EpochRecord
from penstock.checkpoint.recovery import Recovery
from penstock.driver.compile import CompiledFlow
from penstock.driver.engine import Engine
from penstock.driver.recovery import Known, Start, recovery_of
from penstock.driver.report import Report
from penstock.driver.shape import sources_of
from penstock.driver.succession import check_sources, named_as_before
from penstock.driver.takeover import compare, fed_otherwise, is_the_same
from penstock.errors import CheckpointError, DeclarationError, RecoveryError, TornFileError
from penstock.flow import plan as p
from penstock.progress.trail import Trail
from penstock.types import Mark, Refusal

FIRST_REACH: Final = 4
"""Chains of records, as in sessions, are taken to have so many links at first; the replay shows whether they have more."""
MOST_REACH: Final = 4**6
"""Where more than so many are needed, all of the log is read."""


@dataclass(frozen=True)
class Recompute:
    """What a start was told of a recomputation.

    Attributes:
        since: Event time (µs) before which no record matters, as the user knows; None: the flow says it.
        follow: For outputs whose sink keeps no mark, the output whose mark counts for them; None: they are given all rows of the replay.
    """

    since: int | None = None
    follow: Mapping[str, str | None] = field(default_factory=dict)


def recompute_of(
    recover: str, since: str | dt.datetime | None = None, follow: Mapping[str, str | None] | None = None
) -> Recompute | None:
    """What a start was told; None: nothing of a recomputation.

    Args:
        recover: ``"checkpoint"`` or ``"recompute"``.
        since: A time, as a datetime (without a zone: UTC) or in ISO form.
        follow: See `Recompute`.

    Raises:
        DeclarationError: An argument is wrong.
    """
    if recover not in ("checkpoint", "recompute"):
        raise DeclarationError(f"start(recover={recover!r}) is not known; use 'checkpoint' or 'recompute'.")
    if recover == "checkpoint":
        if since is not None or follow is not None:
            said = "since=... (--since)" if since is not None else "replay_outputs=... (--replay-output)"
            raise DeclarationError(f"{said} is about a recomputation; add recover='recompute' (--recover recompute).")
        return None
    return Recompute(None if since is None else _micros(since), dict(follow or {}))


def _micros(since: str | dt.datetime) -> int:
    try:
        at = since if isinstance(since, dt.datetime) else dt.datetime.fromisoformat(since)
    except (TypeError, ValueError):
        raise DeclarationError(
            f"start(since={since!r}) is no time; give a datetime, or text such as '2026-05-01 12:00:00'."
        ) from None
    at = at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Needed:
    """A recomputation that is needed.

    Attributes:
        why: What else would have refused the start, as a sentence.
        last: The last record, as far as it can be read.
        outputs: The outputs under the names by which their sinks know them.
        marks: What the sinks hold, by output.
        newest: The number of the newest record, readable or not.
        report: What the flow finds of the last record's state, if nothing but a change of the flow is in the way.
    """

    why: str
    last: EpochRecord
    outputs: tuple[p.Output, ...]
    marks: Mapping[str, Mark | None]
    newest: int
    report: Report | None = None

    @property
    def new(self) -> set[str]:
        """Outputs that the flow did not have when its checkpoint was written: their sinks are given the rows of later epochs."""
        had = self.last.outputs if self.report is not None else self.marks
        return {name for name, mark in self.marks.items() if mark is None and name not in had}

    @property
    def flow(self) -> str:
        """The flow's id, as the sinks know it."""
        return next(m.flow for m in self.marks.values() if m is not None)

    @property
    def epoch(self) -> int:
        """The number of the epoch that begins it: above all that were ever given out."""
        return 1 + max(self.newest, *(m.epoch for m in self.marks.values() if m is not None))

    @property
    def above(self) -> int:
        """The greatest run that a sink knows."""
        return max(m.run for m in self.marks.values() if m is not None)


def needed(
    flow: CompiledFlow, checkpoint: Checkpoint, engine: Engine, told: Recompute, forget: Collection[str] = ()
) -> Needed | None:
    """Whether a start must recompute, and why; None: the checkpoint will do, or nothing was ever given out. Nothing is changed.

    Raises:
        RecoveryError: The sinks hold rows of several flows, or one of them keeps no mark.
        DeclarationError: What the start was told of outputs is about others than those whose sinks keep no mark.
        ChangedFlowError: Positions of the checkpoint are of other sources, or the flow has changed in a way that no replay mends.
    """
    plan, identity = flow.plan, checkpoint.identity()
    try:
        last, torn = checkpoint.last(), ""
    except TornFileError as error:
        last, torn = EpochRecord(), str(error)
    if last.shape is not None:
        check_sources(last.shape.sources, sources_of(plan), checkpoint.uri)
    outputs = tuple(named_as_before(last.shape, plan.outputs, checkpoint.uri)[0])
    held = {o.name: _held(o) for o in outputs}
    marks = {name: None if mark is None or mark.epoch < 0 else mark for name, mark in held.items()}
    _check_followed(outputs, marks, told)
    if not any(marks.values()):
        return None
    flows = {m.flow: name for name, m in marks.items() if m is not None}
    if len(flows) > 1:
        first, second, *_ = flows.values()
        raise RecoveryError(
            f"Outputs {first!r} and {second!r} hold rows of two different runs of flow {plan.name!r} from its beginning (their marks name the flows "
            f"{', '.join(sorted(flows))}); recompute with the sinks of one of them."
        )
    begun = engine.has_begun(last.log, last.epoch + 1)
    short = last.recovery.short if last.recovery is not None else ""
    why, report = torn or short or _why(checkpoint, last, outputs, marks, identity, begun=begun), None
    if not why:
        report = compare(flow, last, checkpoint.uri, forget)[1]
        why = str(report.refusal() or "")
        if not why and (refused := fed_otherwise(checkpoint, flow, report.shape, last, marks)):
            why = refused.sentence
        why = why or " ".join(report.new)
        if not why:
            return None
        if lost := report.lost():
            raise lost
    marks = {**marks, **_followed(outputs, marks, told)}
    return Needed(why, last, outputs, marks, max(last.epoch, checkpoint.newest_epoch()), report)


def _held(output: p.Output) -> Mark | None:
    """What a sink holds.

    Raises:
        RecoveryError: The sink cannot say it.
    """
    if not hasattr(output.sink, "held"):
        raise RecoveryError(
            f"Output {output.name!r} goes to {output.sink!r}, which has no method held (penstock.sinks.Sink) to tell what it holds; add it."
        )
    found: Mark | None = output.sink.held(output.name)
    return found


def known_run(outputs: Sequence[p.Output]) -> int:
    """The greatest run that a sink can name: a checkpoint that is a copy, or was restored from one, may know only older ones."""
    return max((m.run for o in outputs if hasattr(o.sink, "held") and (m := _held(o)) is not None), default=0)


def _why(
    checkpoint: Checkpoint,
    last: EpochRecord,
    outputs: Sequence[p.Output],
    marks: Mapping[str, Mark | None],
    identity: Identity | None,
    *,
    begun: bool,
) -> str:
    """Why the checkpoint will not do; empty: it does."""
    if identity is None or last.epoch < 0:
        at = max(m.epoch for m in marks.values() if m is not None)
        if at > 0 or identity is None or not begun or any(m.flow != identity.flow for m in marks.values() if m is not None):
            return f"Checkpoint {checkpoint.uri} has no state, and the sinks hold rows up to epoch {at}."
        return ""  # the first epoch was stored and not committed: it is run again, with the input that was planned for it
    for name, mark in marks.items():
        if mark is not None and mark.flow != identity.flow:
            return f"Output {name!r} holds rows that another checkpoint than {checkpoint.uri} gave out."
        if mark is not None and mark.epoch > last.epoch + 1:
            return (
                f"Output {name!r} holds rows up to epoch {mark.epoch}, and checkpoint {checkpoint.uri} knows only {last.epoch}."
            )
        given = last.outputs.get(name)
        durable = next(o.sink.durable for o in outputs if o.name == name)
        if given is not None and durable and (mark is None or mark.epoch < given):
            holds = "nothing" if mark is None else f"only epoch {mark.epoch}"
            return f"Output {name!r} was given the rows of epoch {given}, and its sink holds {holds}."
        if mark is not None and of_another(last, mark, name):
            return (
                f"Output {name!r} holds rows up to epoch {mark.epoch} of another checkpoint than {checkpoint.uri}, from which it was given those up to epoch "
                f"{given}."
            )
    ahead = next((name for name, m in marks.items() if m is not None and m.epoch > last.epoch), "")
    if ahead and not begun:
        return f"Output {ahead!r} holds rows of epoch {last.epoch + 1}, and checkpoint {checkpoint.uri} no longer knows the input of that epoch."
    lost = checkpoint.lost_state(last)
    return f"The state file {lost} of checkpoint {checkpoint.uri} is missing." if lost else ""


def of_another(last: EpochRecord, mark: Mark, output: str) -> bool:
    """Whether a sink's last epoch is of another checkpoint, with other input, as where this one was restored from a copy."""
    given, recovery = last.outputs.get(output), last.recovery
    if given is None or mark.epoch < given or last.rollback_pending is not None:
        return False
    there = last.sources if given == last.epoch else {}
    ahead = 0 if recovery is None else recovery.outputs.get(output, 0) - recovery.passed  # stops until it is given rows
    if recovery is not None and ahead > 0:
        there = recovery.stops[ahead - 1].sources
    if mark.epoch > given:
        return ahead > 0 or mark.epoch <= last.epoch
    return bool(there and mark.positions) and mark.positions != {
        f"{n}/{k}": p.offset for n, s in there.items() for k, p in s.partitions.items()
    }


def resting_regions(plan: p.Plan, report: Report | None, last: EpochRecord) -> tuple[str, ...]:
    """Regions whose state goes on as it is in the last record, because a replay would come to the same.

    They, and all regions before them, are unchanged, or load what a replay would give; no key of theirs is on its way; and no region that is computed anew reads them.
    """
    kept = report.same & last.regions.keys() if report is not None else set()
    before = {r.name: {n.region.name for n in p.upstream_of(p.RegionOutput, *r.inputs)} for r in plan.regions}
    found = {
        r.name
        for r in plan.regions
        if r.name in kept
        and before[r.name] <= kept
        and (c := last.regions[r.name].control).goal is None
        and not (c.held or last.regions[r.name].copies)
    }
    while read := {n for r, names in before.items() if r not in found for n in names} & found:
        found -= read
    return tuple(r.name for r in plan.regions if r.name in found)


def _check_followed(outputs: Sequence[p.Output], marks: Mapping[str, Mark | None], told: Recompute) -> None:
    """Refuse names that are wrong whether or not there is anything to compute anew: a start that needs nothing must not hide a slip.

    Raises:
        DeclarationError: Something was said of an output that is none or keeps a mark, or of one by an output without a mark.
    """
    marked = [o.name for o in outputs if o.sink.durable or marks[o.name] is not None]
    for name, other in told.follow.items():
        output = next((o for o in outputs if o.name == name), None)
        if output is None or output.sink.durable:
            what = "which is no output of the flow" if output is None else f"whose sink keeps a mark: {output.sink!r}"
            without = ", ".join(o.name for o in outputs if not o.sink.durable) or "no other"
            raise DeclarationError(
                f"replay_outputs (--replay-output) names {name!r}, {what}; it is for outputs whose sinks keep none, here {without}; leave it out."
            )
        if other is not None and other not in marked:
            there = ", ".join(n for n in marked if n != name)
            raise DeclarationError(
                f"replay_outputs (--replay-output) follows {other!r} for {name!r}, which is no output with a mark; "
                + (f"there are {there}." if there else "there is none: say None.")
            )


def _followed(outputs: Sequence[p.Output], marks: Mapping[str, Mark | None], told: Recompute) -> dict[str, Mark | None]:
    """Marks of outputs whose sinks keep none.

    Raises:
        RecoveryError: What becomes of one of them was not said.
        DeclarationError: One follows an output that holds nothing yet.
    """
    found: dict[str, Mark | None] = {}
    for output in outputs:
        name = output.name
        if marks[name] is not None or output.sink.durable:
            continue
        if name not in told.follow:
            raise RecoveryError(
                f"Output {name!r} goes to {output.sink!r}, which does not remember what it was given; say what becomes of it in a recomputation with "
                f"replay_outputs={{{name!r}: 'another output'}} (--replay-output {name}=OTHER), whose mark then counts for it (what lies between two epochs is "
                f"lost or given twice), or replay_outputs={{{name!r}: None}} (--replay-output {name}=), and it is given all rows of the replay again."
            )
        other = told.follow[name]
        if other is not None and marks[other] is None:
            holding = ", ".join(n for n, m in marks.items() if m is not None)
            raise DeclarationError(
                f"replay_outputs (--replay-output) follows {other!r} for {name!r}, which holds nothing yet; there are {holding}."
            )
        found[name] = None if other is None else replace(marks[other], output=name)  # type: ignore[type-var]
    return found


def planned(
    flow: CompiledFlow, checkpoint: Checkpoint, engine: Engine, found: Needed, told: Recompute, marks: Mapping[str, Mark | None]
) -> tuple[Start, EpochRecord | None]:
    """Where it starts, and the record whose state it begins with, if it does.

    Args:
        flow: The flow.
        checkpoint: The checkpoint.
        engine: The engine.
        found: Why it is needed.
        told: What the start was told.
        marks: What the sinks hold, by output.

    Raises:
        RecoveryError: It cannot be done. Nothing was changed.
    """
    plan = replace(flow.plan, outputs=found.outputs)
    records = {f"epoch {found.last.epoch}": found.last} if found.last.epoch >= 0 else {}
    for name in checkpoint.snapshot_names():
        try:
            records[f"snapshot {name!r}"] = checkpoint.read_snapshot(name)
        except TornFileError:
            continue
    usable = {what: r for what, r in records.items() if _usable(flow, checkpoint, r)}
    known = [Known(what, r.sources) for what, r in usable.items()]
    repeated = {name for name, other in told.follow.items() if other is None and marks[name] is None}
    counting = {n: m for n, m in marks.items() if n not in repeated | found.new}
    resting = resting_regions(plan, found.report, found.last)
    rest = found.last.sources if resting else None
    renamed = _renamed_refusal(counting)
    files = {s.name: engine.files_of(s) for s in plan.sources}
    whole = replace(plan, outputs=tuple(o for o in plan.outputs if o.name in counting))
    before = found.last.recovery if found.last.begins_anew else None
    failed = before is not None and not before.reach
    begin = partial(
        recovery_of, whole, counting, files, since=told.since, known=known, resting=resting, rest=rest, now_us=engine.clock_us()
    )
    start = renamed or begin(reach=0 if found.report is not None else _reach(before), failed=failed)
    gone = failed and renamed is None and isinstance(start, Refusal)
    if gone:  # the first records: what fails in the middle is an error from now on
        start = begin(reach=FIRST_REACH)
    if isinstance(start, Start) and (gone or (before is not None and not before.cut)):
        start = replace(start, recovery=replace(start.recovery, cut=False))
    if isinstance(start, Refusal):
        raise RecoveryError(
            f"The state of flow {plan.name!r} cannot be computed from the log: {start.sentence}. {_otherwise(found)}Nothing was changed."
        )
    if found.new:
        every = start.recovery.passed + len(start.recovery.stops)
        given = {**start.recovery.outputs, **dict.fromkeys(found.new, every)}
        start = replace(start, recovery=replace(start.recovery, outputs=given))
    return start, usable[start.known.what] if start.known else None


def _otherwise(found: Needed) -> str:
    """What else can be done, where nothing but what is new asks for it."""
    if found.report is None or found.why != " ".join(found.report.new):
        return ""
    return "A start without recover='recompute' goes on, and what is new starts empty. "


def _reach(before: Recovery | None) -> int:
    """Of so many links chains are taken to be: four times as many as when that was too few, and finally of any number."""
    if before is None:
        return FIRST_REACH
    return 4 * before.reach if before.reach < MOST_REACH else 0


def _renamed_refusal(marks: Mapping[str, Mark | None]) -> Refusal | None:
    """A mark that is missing may be there under a name that the output had before."""
    had = {o for m in marks.values() if m is not None and (t := Trail.from_text(m.trail)) for o in t.outputs}
    lost, new = had.difference(marks), [n for n, m in marks.items() if m is None and n not in had]
    if lost and new:
        return Refusal(
            f"output {new[0]!r} holds nothing under this name, and the flow had an output {min(lost)!r}, which it has no longer; if it is the same, name it "
            f"as before: .sink(..., name={min(lost)!r})"
        )
    return None


def _usable(flow: CompiledFlow, checkpoint: Checkpoint, record: EpochRecord) -> bool:
    """Whether a replay can begin with a record's state."""
    if record.finished or any(r.control.held for r in record.regions.values()):
        return False
    if record.goes_back or (record.recovery is not None and record.recovery.active):
        return False
    return not checkpoint.lost_state(record) and is_the_same(flow, record, checkpoint.uri)


def adopt(checkpoint: Checkpoint, found: Needed, name: str) -> Identity:
    """Make the checkpoint that of the flow which the sinks know.

    Raises:
        CheckpointError: It has state of another flow. Nothing was changed.
    """
    known = checkpoint.create(Identity(found.flow, name))
    if known.flow == found.flow:
        return known
    if found.last.epoch >= 0:
        raise CheckpointError(
            f"Checkpoint {checkpoint.uri} has state of another flow than the one whose rows the sinks hold; recompute on a new checkpoint."
        )
    return checkpoint.adopt(Identity(found.flow, name))


def first_record(
    flow: CompiledFlow,
    engine: Engine,
    found: Needed,
    start: Start,
    state: EpochRecord | None,
    run: int,
    commands: Sequence[str],
) -> EpochRecord:
    """The record that a recomputation begins with; the log of input is written, and nothing refers to it yet."""
    log = engine.begin_log(start.read, found.epoch)
    begun = state or EpochRecord(regions={n: found.last.regions[n] for n in start.recovery.resting})
    return replace(
        begun,
        epoch=found.epoch,
        run=run,
        sources=start.sources,
        outputs={name: mark.epoch for name, mark in found.marks.items() if mark is not None},
        control=sorted({*found.last.control, *(() if found.last.begins_anew else commands)}),
        ending=False,
        finished=False,
        stopped=False,
        draining=found.last.draining and found.last.begins_anew,
        log=log,
        input="",
        rollback_pending=None,
        shape=flow.shape,
        open={},
        tables={},  # the replay meets what they are at this start
        recovery=start.recovery,
    )


__all__ = ["Needed", "Recompute", "adopt", "first_record", "known_run", "needed", "of_another", "planned", "recompute_of"]
