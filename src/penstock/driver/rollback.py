"""Go back to a snapshot. It is an epoch: its number follows, and its record is the snapshot's.

    intent    a record that obeys the command to load; from then on no epoch processes anything
    log       the engine's log of input is written anew, to end where the snapshot's does; nothing refers to it yet
    sinks     each takes back the rows of later epochs and moves its mark to the new epoch, in one transaction
    commit    the snapshot's record is committed under the new epoch's number, and names the new log

The next start finishes a rollback that crashed: it finds the intent and repeats all steps. Epoch numbers never fall, so nothing
written in the discarded epochs (marks, state files, waiting rows, commands, local stores) can be mistaken for later data.

Read next: `penstock.driver.epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from penstock.checkpoint.folder import SNAPSHOTS, Checkpoint
from penstock.checkpoint.record import EpochRecord, RolledBack, newest
from penstock.driver.compile import CompiledFlow
from penstock.driver.engine import Engine
from penstock.driver.takeover import same_sink, takeover_refusal
from penstock.driver.transfer import mark_frontier
from penstock.errors import CheckpointError, TornFileError
from penstock.flow import plan as p
from penstock.protocol.commands import Command, Drain, Load, Move, Scale, Snapshot
from penstock.protocol.controller import Now, decide, rolled_back
from penstock.protocol.rescale import STANDARD
from penstock.state.files import delete_quietly
from penstock.types import Mark, Refusal

_VOID = "It was given before the flow went back to snapshot {!r} and was not carried out."


def rollback_refusal(
    checkpoint: Checkpoint,
    last: EpochRecord,
    command: Load,
    flow: CompiledFlow | None = None,
    engine: Engine | None = None,
    forget: Collection[str] = (),
) -> Refusal | None:
    """Why a flow cannot go back to an existing snapshot, if it cannot.

    Args:
        checkpoint: The flow's checkpoint.
        last: The last committed epoch's record.
        command: The command to load.
        flow: The flow, if it is known here.
        engine: The engine, if it is known here.
        forget: Regions and steps whose state may be forgotten.
    """
    name = command.name
    try:
        kept = checkpoint.read_snapshot(name) if name in checkpoint.snapshot_names() else None
    except TornFileError as torn:
        return Refusal(str(torn))
    if kept is None or kept.epoch > last.epoch:  # it is about to be taken, of this flow: only its outputs can stand in the way
        return _outputs_refusal(command, flow.plan) if flow is not None else None
    for before in last.rolled_back:
        if before.to < kept.epoch <= before.upto:
            return Refusal(
                f"Snapshot {name!r} is of epoch {kept.epoch}, which was given up when the flow went back to {before.snapshot!r}: "
                "the sinks no longer hold what it had given out; the snapshot can still be read."
            )
    if not kept.input:
        return Refusal(
            f"Snapshot {name!r} does not say where its input ends, because an older version took it; it can only be read."
        )
    if kept.finished:
        return Refusal(f"Snapshot {name!r} is of the end of the input; there is nothing to go on with from there.")
    if lost := checkpoint.lost_state(kept):
        return Refusal(f"The state file {lost} of snapshot {name!r} is missing; restore it from a copy.")
    refused = None
    if flow is not None:
        uri = f"{checkpoint.uri} in snapshot {name!r}"
        refused = takeover_refusal(flow, kept, uri, forget) or _outputs_refusal(command, flow.plan, kept)
    return refused or (engine.input_refusal(last, kept) if engine is not None else None)


def _outputs_refusal(command: Load, plan: p.Plan, kept: EpochRecord | None = None) -> Refusal | None:
    for output in plan.outputs:
        other = kept is not None and output.name in kept.outputs and not same_sink(kept, output)
        refused = Refusal("its sink was another one then") if other else _rewind_refusal(output.sink)
        if refused and not command.keep_output:
            return Refusal(
                f"Output {output.name!r} cannot go back to snapshot {command.name!r}: {refused.sentence}; with keep_output "
                "(--keep-output) its rows stay, and those since the snapshot will be there twice."
            )
    return None


def _rewind_refusal(sink: Any) -> Refusal | None:
    found: Refusal | None = sink.rewind_refusal() if _rewinds(sink) else Refusal(f"{sink!r} cannot take back rows")
    return found


def _rewinds(sink: Any) -> bool:
    """Whether a sink has the methods of `penstock.sinks.Rewinding`."""
    return hasattr(sink, "rewind_refusal") and hasattr(sink, "rewind")


def rollback_refusals(
    checkpoint: Checkpoint,
    last: EpochRecord,
    commands: list[tuple[str, Command]],
    refusal: Callable[[EpochRecord, Load], Refusal | None],
) -> dict[Load, Refusal]:
    """The commands to load among `commands` that the flow cannot carry out, and why."""
    loads = [c for _, c in commands if isinstance(c, Load)]
    there = checkpoint.snapshot_names(last.epoch) if loads else []
    taken = [c.name for _, c in commands if isinstance(c, Snapshot)]  # in the same epoch
    return {c: refused for c in loads if c.name in (*there, *taken) and (refused := refusal(last, c))}


@dataclass(frozen=True)
class Ahead:
    """A rollback that must come before any epoch.

    Attributes:
        kept: The snapshot's record.
        intent: The record with the intent; committed already if its epoch is the last one's.
    """

    kept: EpochRecord
    intent: EpochRecord


def ahead(checkpoint: Checkpoint, last: EpochRecord, refusal: Callable[[EpochRecord, Load], Refusal | None]) -> Ahead | None:
    """Whether a starting flow must go back first: a rollback is pending, or a command to load waits in the control log.

    An epoch that does nothing else obeys the command, so that a flow that fails in every epoch can go back.

    Raises:
        CheckpointError: A rollback is pending and no longer possible. Nothing was changed.
    """
    if last.rollback_pending:
        name = last.rollback_pending.name
        is_there = name in checkpoint.snapshot_names()
        refused = refusal(last, last.rollback_pending) if is_there else Refusal("there is no such snapshot any more.")
        if refused:
            raise CheckpointError(
                f"The flow of checkpoint {checkpoint.uri} is on its way back to snapshot {name!r} and cannot go on: {refused.sentence}"
            )
        return Ahead(checkpoint.read_snapshot(name), last)
    names = [n for n in checkpoint.control_names() if n not in last.control]
    commands = [(n, checkpoint.read_command(n)) for n in names]
    if not any(isinstance(c, Load) for _, c in commands):
        return None
    there = checkpoint.snapshot_names(last.epoch)
    controls = {n: r.control for n, r in last.regions.items()}
    unreachable = rollback_refusals(checkpoint, last, commands, refusal)
    run = checkpoint.newest_run() + 1  # that of the start which asks
    decided = decide(commands, controls, there, STANDARD, Now(last.epoch + 1, run, run, open=last.open), unreachable)
    if decided.load is None or decided.load.name not in there:
        return None
    name = decided.load.name
    taken = [(n, c) for n, c in commands if n in decided.taken]
    void = {n: _VOID.format(name) for n, c in taken if isinstance(c, Scale | Move | Snapshot) and n not in decided.refused}
    intent = replace(
        last,
        epoch=last.epoch + 1,
        control=[*last.control, *(n for n, _ in taken)],
        refused=newest(last.refused, {**decided.refused, **void}),
        rollback_pending=decided.load,
        open={n: c for n, c in decided.open.items() if n not in void},
        replaced=newest(last.replaced, decided.replaced),
    )
    return Ahead(checkpoint.read_snapshot(name), intent)


def commit_intent(checkpoint: Checkpoint, last: EpochRecord, found: Ahead, run: int) -> EpochRecord:
    """Commit the record with the intent to go back; returns it.

    Snapshots of an uncommitted epoch are removed: that epoch will not be run again.
    """
    if found.intent.epoch > last.epoch:
        for name in set(checkpoint.snapshot_names()) - set(checkpoint.snapshot_names(last.epoch)):
            delete_quietly(checkpoint.fs, checkpoint.path(SNAPSHOTS, f"{name}.json"))
        checkpoint.commit(replace(found.intent, run=run), run)
    return replace(found.intent, run=run)


def roll_back(
    checkpoint: Checkpoint,
    plan: p.Plan,
    found: Ahead,
    engine: Engine,
    *,
    flow: str,
    run: int,
    now_us: int,
    on_step: Callable[[str], None],
) -> EpochRecord:
    """Go back. The intent is committed, and the sinks are open for this run.

    Args:
        checkpoint: The flow's checkpoint.
        plan: The flow.
        found: The target.
        engine: The engine.
        flow: Unique id of the flow.
        run: Number of the run.
        now_us: Clock time, from which idleness and silence count anew.
        on_step: Called with the name of each step before it.

    Returns:
        The record of the rollback's epoch.

    Raises:
        PenstockError: Something failed; the next start repeats it.
    """
    last, kept = found.intent, found.kept
    assert last.rollback_pending is not None
    epoch = last.epoch + 1
    on_step("rewrite_offset_log")
    log = engine.rewrite_offset_log(last, kept, epoch)
    positions = {f"{n}/{k}": s.offset for n, source in kept.sources.items() for k, s in source.partitions.items()}
    frontier = mark_frontier(kept.sources.values(), (r.control for r in kept.regions.values()))
    for output in plan.outputs:
        on_step(f"rewind {output.name}")
        if _rewinds(output.sink):
            output.sink.rewind(kept.epoch, Mark(flow, output.name, run, epoch, frontier, positions))
    sources = {
        n: replace(
            s, heard_us=now_us, quiet_us=now_us, partitions={k: replace(x, heard_us=now_us) for k, x in s.partitions.items()}
        )
        for n, s in kept.sources.items()
    }
    again = {n: c for n, c in kept.open.items() if not isinstance(c.command, Drain)}
    name = last.rollback_pending.name
    record = replace(
        kept,
        epoch=epoch,
        run=run,
        sources=sources,
        outputs={o.name: epoch if _rewinds(o.sink) else last.outputs.get(o.name, -1) for o in plan.outputs},
        control=last.control,
        refused=last.refused,
        ending=False,
        finished=False,
        stopped=False,
        draining=False,
        log=log,
        input="",
        rollback_pending=None,
        rolled_back=[*last.rolled_back, RolledBack(name, kept.epoch, last.epoch)],
        open=again,
        replaced=newest(last.replaced, rolled_back(last.open, again, name)),
    )
    on_step("commit going back")
    checkpoint.commit(record, run)
    on_step("gone back")
    return record
