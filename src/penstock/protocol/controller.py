"""Commands to the flow: the controller at the single root of the dataflow, as a pure function of records and commands.

A command is durable before it is obeyed, and obeyed in the same epoch after a crash. An invalid one is refused with a sentence
and changes nothing; commands of one epoch are obeyed in the order of their names.

Rules of commands that meet:

L1  A drain reads the present input, then ends it; a second one changes nothing.
L2  A stop ends the run it was submitted to, and nothing else. It withdraws a drain, and a pending end: the later command
    counts. If its run has ended meanwhile, it is refused as too late.
L3  Only a run that has read its input to the end may end it: an end of an earlier run counts only if rows of it were emitted.
L4  A command is open from the epoch that obeys it until it is carried out. A contradicting command replaces it, and so do a
    load and the end of the input; the record says what replaced it.

Read next: `penstock.protocol.ends`, then `penstock.protocol.rescale.machine`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.protocol.commands import (
    Command,
    Copied,
    Drain,
    End,
    Load,
    Move,
    Open,
    Scale,
    Snapshot,
    Stop,
    Unknown,
    kind_of,
)
from penstock.protocol.ends import Ends, Told
from penstock.protocol.rescale import Held, Limits, Placement, ended_hold, pinned, scaled
from penstock.types import Refusal

MOST_WORKERS: Final = 4096
MOST_PLACED: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

REACHABLE: Final[Mapping[Load, Refusal]] = MappingProxyType({})
"""No snapshot is refused."""


@dataclass(frozen=True)
class EndedHold:
    """A key on hold whose state is ready: the hold that ends, and the file (plain values) that holds the state."""

    region: str
    held: Held
    file: dict[str, Any]


@dataclass
class Decided:
    """The result of an epoch's commands.

    Attributes:
        controls: By region, its placement with the commands obeyed.
        copied: Holds that end in this epoch.
        snapshots: Names of snapshots to take at the end of this epoch.
        told: Whether the commands end the flow, and how.
        load: The command to go back to a snapshot after this epoch, if there is one.
        taken: Names of the commands that were decided. Those after a load wait until the rollback is done, except ``end``,
            which was about input that will be read again.
        refused: By command's name, why it is invalid.
        open: By name, commands that are obeyed and not carried out yet.
        replaced: By name, the command that replaced an open one.
    """

    controls: dict[str, Placement]
    copied: list[EndedHold] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    load: Load | None = None
    taken: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    open: dict[str, Open] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)


def refusal(
    command: Command,
    controls: Mapping[str, Placement],
    snapshots: Sequence[str],
    unreachable: Mapping[Load, Refusal] = REACHABLE,
) -> Refusal | None:
    """Why a command is invalid, if it is.

    Args:
        command: The command.
        controls: By region, its placement.
        snapshots: Names of the existing snapshots.
        unreachable: By command to load, why the flow cannot go back to that snapshot.
    """
    sentence = ""
    there = ", ".join(controls) or "none: the flow is stateless"
    match command:
        case Scale(region=str(region)) | Move(region=str(region)) if region not in controls:
            sentence = f"There is no region {region!r} to {kind_of(command)}; there are {there}."
        case Scale() if not controls:
            sentence = "The flow has no region, so there is nothing to scale; only keyed stages have workers."
        case Scale(workers=n) if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_WORKERS:
            sentence = f"A region cannot have {n!r} workers; give a whole number from 1 to {MOST_WORKERS}."
        case Move(region=None):
            sentence = "A move names the region whose keys are to move."
        case Move():
            sentence = _wrong_move(command, controls[str(command.region)])
        case Load(name=name) if name not in snapshots:
            sentence = f"There is no snapshot {name!r}; there are {', '.join(snapshots) or 'none'}."
        case Load():
            return unreachable.get(command)
        case Snapshot(name=name) if not isinstance(name, str) or not _NAME.fullmatch(name):
            sentence = f"{name!r} cannot be a snapshot's name; use letters, digits, dots, dashes and underscores, 100 at most."
        case Snapshot(name=name) if name in snapshots:
            sentence = f"There is a snapshot {name!r} already; choose another name."
        case Unknown(what=what):
            sentence = f"{what} is no command that this version knows."
    return Refusal(sentence) if sentence else None


def _wrong_move(command: Move, control: Placement) -> str:
    worker = command.worker
    wanted = control.goal.workers if control.goal else control.workers
    if worker is not None and (not isinstance(worker, int) or not 0 <= worker < wanted):
        return f"Region {command.region!r} has no worker {worker!r}; it has workers 0 to {wanted - 1}."
    pins = len({*control.routing.pinned_keys, *command.keys}.difference(control.watch.own).union(command.keys))
    if not command.keys or pins > MOST_PLACED:
        return f"A region can have from 1 to {MOST_PLACED} pinned keys, not {pins}."
    return ""


def said(command: Command) -> str:
    """A command in words."""
    match command:
        case Scale(workers=workers):
            return f"scale to {workers} worker{'s' * (workers != 1)}{_where(command)}"
        case Move(keys=keys, worker=worker):
            to = "back to where they belong" if worker is None else f"to worker {worker}"
            return f"move of {len(keys)} key{'s' * (len(keys) != 1)}{_where(command)} {to}"
        case Load(name=name) | Snapshot(name=name):
            return f"{kind_of(command)} of snapshot {name!r}"
    return kind_of(command)


def _where(command: Scale | Move) -> str:
    return f" of region {command.region!r}" if command.region is not None else ""


@dataclass(frozen=True)
class Now:
    """Where a flow stands when commands are obeyed.

    Attributes:
        epoch: Number of the epoch.
        run: Number of the run.
        since: The first run of the same start of the flow: going back to a snapshot makes a new one.
        given: Whether rows of this epoch were given out as those of the end, by a run that failed in it.
        open: By name, commands that are obeyed and not carried out yet.
    """

    epoch: int
    run: int = 0
    since: int = 0
    given: bool = False
    open: Mapping[str, Open] = field(default_factory=dict)


def decide(
    commands: Sequence[tuple[str, Command]],
    controls: Mapping[str, Placement],
    snapshots: Sequence[str],
    limits: Limits,
    now: Now,
    unreachable: Mapping[Load, Refusal] = REACHABLE,
) -> Decided:
    """Obey an epoch's commands, up to the first that goes back to a snapshot.

    Args:
        commands: By name, in order.
        controls: By region in topological order, its placement after the last epoch.
        snapshots: Names of the snapshots there are.
        limits: What bounds a step.
        now: Where the flow stands.
        unreachable: By command to load, why the flow cannot go back to that snapshot.
    """
    out = Decided(dict(controls), open=dict(now.open))
    for name, command in commands:
        if out.load:
            out.taken += [name] if isinstance(command, End) else []
            continue
        out.taken.append(name)
        refused = refusal(command, out.controls, [*snapshots, *out.snapshots], unreachable)
        if refused:
            out.refused[name] = refused.sentence
        else:
            _obey(name, command, out, limits, now)
    return out


def _obey(name: str, command: Command, out: Decided, limits: Limits, now: Now) -> None:
    match command:
        case Scale(workers=workers, region=region):
            regions = (region,) if region is not None else tuple(out.controls)
            _replace(out, command, regions, now)
            for each in regions:
                out.controls[each] = scaled(out.controls[each], workers, limits, now.epoch)
            out.open[name] = Open(command, regions)
        case Move(region=str(region)):
            _replace(out, command, (region,), now)
            out.controls[region] = pinned(out.controls[region], command.keys, command.worker, limits, now.epoch)
            out.open[name] = Open(command, (region,))
        case Copied(region=region) if region in out.controls:
            out.controls[region], held = ended_hold(out.controls[region], command.key, command.since)
            if held is not None:
                out.copied.append(EndedHold(region, held, command.file))
        case Snapshot():
            out.snapshots.append(command.name)
        case Load():
            out.load = command
        case Drain():
            _replace(out, command, (), now)
            out.told = out.told.drained()
            out.open[name] = Open(command)
        case Stop(run=run):
            _replace(out, command, (), now)
            late = run is not None and run < now.since
            if late:
                out.refused[name] = f"The stop was given to run {run}, which has ended; run {now.run} goes on."
            else:
                out.open[name] = Open(command)
            out.told = out.told.stopped(late=late)
        case End(run=run) if run is None or run == now.run or now.given:
            out.told = out.told.ended()


def _replace(out: Decided, command: Command, regions: Sequence[str], now: Now) -> None:
    """Close the open commands that a new one makes impossible."""
    for name, other in list(out.open.items()):
        where = [r for r in other.regions if r in regions]
        if _contradicts(command, other.command, where):
            del out.open[name]
            part = "" if len(where) == len(other.regions) or not where else f" in region {where[0]!r}"
            out.replaced[name] = (
                f"The {said(other.command)} was replaced{part} in epoch {now.epoch} by a later command: {said(command)}."
            )


def _contradicts(new: Command, old: Command, regions: Sequence[str]) -> bool:
    """Whether a command replaces an open one."""
    match new, old:
        case (Stop(), Drain()) | (Drain(), Stop()):
            return True
        case Scale(), Scale() if regions:
            return new.workers != old.workers
        case Move(), Move() if regions:
            return new.worker != old.worker and not set(new.keys).isdisjoint(old.keys)
        case Scale(), Move() if regions:  # a worker that goes takes with it the wish to have a key there
            return old.worker is not None and old.worker >= new.workers
    return False


def still_open(
    commands: Mapping[str, Open], controls: Mapping[str, Placement], ends: Ends, epoch: int
) -> tuple[dict[str, Open], dict[str, str]]:
    """Which commands are still open after an epoch, and which the end of the flow has closed.

    Args:
        commands: By name, the open ones of the epoch.
        controls: By region, its placement after the epoch.
        ends: How the flow ends, if it does.
        epoch: Number of the epoch.
    """
    out: dict[str, Open] = {}
    given_up: dict[str, str] = {}
    for name, each in commands.items():
        regions = tuple(r for r in each.regions if r in controls and controls[r].goal is not None)
        if regions and ends.finished:
            given_up[name] = f"The {said(each.command)} was given up in epoch {epoch}, in which the flow finished."
        elif regions or (isinstance(each.command, Drain) and not ends.finished):
            out[name] = replace(each, regions=regions)
    return out, given_up


def rolled_back(commands: Mapping[str, Open], kept: Mapping[str, Open], snapshot: str) -> dict[str, str]:
    """Which open commands a rollback has undone: those that the snapshot does not know.

    Args:
        commands: By name, those open when the flow went back.
        kept: Those of the snapshot, which are open again.
        snapshot: Its name.
    """
    return {
        n: f"The {said(c.command)} was given up when the flow went back to snapshot {snapshot!r}."
        for n, c in commands.items()
        if n not in kept
    }


__all__ = ["Decided", "EndedHold", "Now", "decide", "refusal", "rolled_back", "said", "still_open"]
