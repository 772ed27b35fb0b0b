"""Commands to the flow: the controller at the single root of the dataflow, as a pure function of records and commands.

A command is a record of the control log like any other: durable before it is obeyed, and obeyed in the same epoch after a crash.
One that makes no sense is refused with a sentence and leaves everything as it was; commands of one epoch are obeyed in the order
of their names.

Rules of commands that meet:

L1  A drain reads what there is, then ends the input; a second one changes nothing.
L2  A stop ends the run it was given to, and nothing else. It withdraws a drain, and an end that has not come yet: the later command
    counts. For a run that has ended meanwhile it is too late, and is refused.
L3  Only a run that has read its input to the end may end it: an end of an earlier run counts only if rows of it were given out.
L4  A command is open from the epoch that obeys it until it is carried out. One that wants something else of the same thing
    replaces it, and so do a load and the end of the input; the record says of each what replaced it.

Read next: `penstock.protocol.ends`, then `penstock.protocol.rescale.machine`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from penstock.protocol.ends import Ends, Told
from penstock.protocol.rescale import Held, Limits, Placement, ended_hold, pinned, scaled

MOST_WORKERS: Final = 4096
MOST_PLACED: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Command = Mapping[str, Any]


def text_of(command: Command) -> str:
    """What a command to load says, as a key."""
    return f"{command.get('name')}/{bool(command.get('keep_output'))}"


@dataclass(frozen=True)
class Copied:
    """A key on hold whose state is ready: the hold that ends, and the file (plain values) that holds the state."""

    region: str
    held: Held
    file: dict[str, Any]


@dataclass
class Decided:
    """What an epoch's commands have come to.

    Attributes:
        controls: By region, its placement with the commands obeyed.
        copied: Holds that end in this epoch.
        snapshots: Names of snapshots to take at the end of this epoch.
        told: Whether the flow was told to end, and how.
        load: The command to go back to a snapshot after this epoch; empty: there is none.
        taken: Names of the commands that were looked at: those after a load wait until the flow has gone back, but for an ``end``,
            which was about input that will be read again.
        refused: By command's name, why it makes no sense.
        open: By name, commands that are obeyed and not carried out yet.
        replaced: By name, which command took the place of one that was open.
    """

    controls: dict[str, Placement]
    copied: list[Copied] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    load: Command = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    open: dict[str, Command] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)


def why_not(
    command: Command, controls: Mapping[str, Placement], snapshots: Sequence[str], unloadable: Mapping[str, str] = NOTHING
) -> str:
    """Why a command makes no sense; empty: it does.

    Args:
        command: The command.
        controls: By region, its placement.
        snapshots: Names of the snapshots there are.
        unloadable: By command's text, why the flow cannot go back to that snapshot.
    """
    kind = command.get("command")
    region = command.get("region")
    there = ", ".join(controls) or "none: the flow is stateless"
    if kind in ("scale", "move") and region is not None and region not in controls:
        return f"There is no region {region!r} to {kind}; there are {there}."
    if kind == "scale":
        workers = command.get("workers")
        if not controls:
            return "The flow has no region, so there is nothing to scale; only keyed stages have workers."
        if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MOST_WORKERS:
            return f"A region cannot have {workers!r} workers; give a whole number from 1 to {MOST_WORKERS}."
    if kind == "move":
        return _why_not_move(command, controls)
    if kind == "load":
        if command.get("name") not in snapshots:
            return f"There is no snapshot {command.get('name')!r}; there are {', '.join(snapshots) or 'none'}."
        return unloadable.get(text_of(command), "")
    if kind == "snapshot":
        name = command.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return f"{name!r} cannot be a snapshot's name; use letters, digits, dots, dashes and underscores, 100 at most."
        if name in snapshots:
            return f"There is a snapshot {name!r} already; choose another name."
    known = ("scale", "move", "copied", "snapshot", "load", "stop", "drain", "end", "tick")
    return "" if kind in known else f"{kind!r} is no command that this version knows."


def _why_not_move(command: Command, controls: Mapping[str, Placement]) -> str:
    if command.get("region") is None:
        return "A move names the region whose keys are to move."
    control = controls[command["region"]]
    worker, keys = command.get("worker"), command.get("keys", ())
    wanted = control.goal.workers if control.goal else control.workers
    if worker is not None and (not isinstance(worker, int) or not 0 <= worker < wanted):
        return f"Region {command['region']!r} has no worker {worker!r}; it has workers 0 to {wanted - 1}."
    if not keys or len(set(control.routing.pinned_keys) | set(keys)) > MOST_PLACED:
        return f"A region can have from 1 to {MOST_PLACED} keys placed apart, not {len(set(control.routing.pinned_keys) | set(keys))}."
    return ""


def said(command: Command) -> str:
    """A command in words."""
    kind = command.get("command")
    where = f" of region {command['region']!r}" if command.get("region") is not None else ""
    if kind == "scale":
        return f"scale to {command['workers']} worker{'s' * (command['workers'] != 1)}{where}"
    if kind == "move":
        to = "back to where they belong" if command["worker"] is None else f"to worker {command['worker']}"
        return f"move of {len(command['keys'])} key{'s' * (len(command['keys']) != 1)}{where} {to}"
    return f"{kind} of snapshot {command['name']!r}" if kind in ("load", "snapshot") else f"{kind}"


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
    open: Mapping[str, Command] = field(default_factory=dict)


def decide(
    commands: Sequence[tuple[str, Command]],
    controls: Mapping[str, Placement],
    snapshots: Sequence[str],
    limits: Limits,
    now: Now,
    unloadable: Mapping[str, str] = NOTHING,
) -> Decided:
    """Obey an epoch's commands, up to the first that goes back to a snapshot.

    Args:
        commands: By name, in order.
        controls: By region in topological order, its placement after the last epoch.
        snapshots: Names of the snapshots there are.
        limits: What bounds a step.
        now: Where the flow stands.
        unloadable: By command's text (`text_of`), why the flow cannot go back to that snapshot.
    """
    out = Decided(dict(controls), open=dict(now.open))
    for name, command in commands:
        if out.load:
            out.taken += [name] if command.get("command") == "end" else []
            continue
        out.taken.append(name)
        reason = why_not(command, out.controls, [*snapshots, *out.snapshots], unloadable)
        if reason:
            out.refused[name] = reason
        else:
            _obey(name, command, out, limits, now)
    return out


def _obey(name: str, command: Command, out: Decided, limits: Limits, now: Now) -> None:
    kind = command["command"]
    run = command.get("run")
    if kind == "scale":
        regions = [command["region"]] if command.get("region") is not None else list(out.controls)
        _replace(out, command, regions, now)
        for region in regions:
            out.controls[region] = scaled(out.controls[region], command["workers"], limits, now.epoch)
        out.open[name] = {**command, "regions": regions}
    elif kind == "move":
        region = command["region"]
        _replace(out, command, [region], now)
        out.controls[region] = pinned(out.controls[region], command["keys"], command["worker"], limits, now.epoch)
        out.open[name] = {**command, "regions": [region]}
    elif kind == "copied" and command["region"] in out.controls:
        control, held = ended_hold(out.controls[command["region"]], command["key"], command["since"])
        out.controls[command["region"]] = control
        if held is not None:
            out.copied.append(Copied(command["region"], held, command["file"]))
    elif kind == "snapshot":
        out.snapshots.append(command["name"])
    elif kind == "load":
        out.load = command
    elif kind == "drain":
        _replace(out, command, (), now)
        out.told = out.told.drained()
        out.open[name] = {**command, "regions": []}
    elif kind == "stop":
        _replace(out, command, (), now)
        late = run is not None and run < now.since
        if late:
            out.refused[name] = f"The stop was given to run {run}, which has ended; run {now.run} goes on."
        else:
            out.open[name] = {**command, "regions": []}
        out.told = out.told.stopped(late=late)
    elif kind == "end" and (run is None or run == now.run or now.given):
        out.told = out.told.ended()


def _replace(out: Decided, command: Command, regions: Sequence[str], now: Now) -> None:
    """Close the open commands that cannot be carried out any more because of a new one."""
    for name, other in list(out.open.items()):
        where = [r for r in other["regions"] if r in regions]
        if _contradicts(command, other, where):
            del out.open[name]
            part = "" if len(where) == len(other["regions"]) or not where else f" in region {where[0]!r}"
            out.replaced[name] = (
                f"The {said(other)} was replaced{part} in epoch {now.epoch} by a later command: {said(command)}."
            )


def _contradicts(new: Command, old: Command, regions: Sequence[str]) -> bool:
    """Whether a command takes the place of an open one."""
    kinds = (new["command"], old["command"])
    if kinds in (("stop", "drain"), ("drain", "stop")):
        return True
    if not regions:
        return False
    if kinds == ("scale", "scale"):
        return bool(new["workers"] != old["workers"])
    if kinds == ("move", "move"):
        return new["worker"] != old["worker"] and not set(new["keys"]).isdisjoint(old["keys"])
    # A worker that goes takes with it the wish to have a key there.
    return kinds == ("scale", "move") and old["worker"] is not None and old["worker"] >= new["workers"]


def still_open(
    commands: Mapping[str, Command], controls: Mapping[str, Placement], ends: Ends, epoch: int
) -> tuple[dict[str, Command], dict[str, str]]:
    """Which commands are still open after an epoch, and which are closed because the flow has come to its end before.

    Args:
        commands: By name, the open ones of the epoch.
        controls: By region, its placement after the epoch.
        ends: How the flow ends, if it does.
        epoch: Number of the epoch.
    """
    out: dict[str, Command] = {}
    given_up: dict[str, str] = {}
    for name, command in commands.items():
        regions = [r for r in command["regions"] if r in controls and controls[r].goal is not None]
        if regions and ends.finished:
            given_up[name] = f"The {said(command)} was given up in epoch {epoch}, in which the flow finished."
        elif regions or (command["command"] == "drain" and not ends.finished):
            out[name] = {**command, "regions": regions}
    return out, given_up


def rolled_back(commands: Mapping[str, Command], kept: Mapping[str, Command], snapshot: str) -> dict[str, str]:
    """Which open commands a going back has undone: those that the snapshot does not know.

    Args:
        commands: By name, those open when the flow went back.
        kept: Those of the snapshot, which are open again.
        snapshot: Its name.
    """
    return {
        n: f"The {said(c)} was given up when the flow went back to snapshot {snapshot!r}."
        for n, c in commands.items()
        if n not in kept
    }


__all__ = ["Copied", "Decided", "Now", "decide", "rolled_back", "said", "still_open", "text_of", "why_not"]
