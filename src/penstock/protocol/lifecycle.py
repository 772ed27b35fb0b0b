"""Commands to the flow: the controller at the single root of the dataflow, as a pure function of records and commands.

A command is a record of the control log like any other: durable before it is obeyed, and obeyed in the same epoch after a crash.
One that makes no sense is refused with a sentence and leaves everything as it was; commands of one epoch are obeyed in the order
of their names.

Read next: `penstock.protocol.rescale.machine`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from penstock.protocol.rescale import Control, Held, Limits, ended_hold, pinned, scaled

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
        end: Whether the end of the input was asked for.
        drain: Whether the flow is to process what there is and end.
        stop: Whether it is to stop after this epoch.
        load: The command to go back to a snapshot after this epoch; empty: there is none.
        taken: Names of the commands that were looked at: those after a load wait until the flow has gone back, but for an ``end``,
            which was about input that will be read again.
        refused: By command's name, why it makes no sense.
    """

    controls: dict[str, Control]
    copied: list[Copied] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    end: bool = False
    drain: bool = False
    stop: bool = False
    load: Command = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def why_not(
    command: Command, controls: Mapping[str, Control], snapshots: Sequence[str], unloadable: Mapping[str, str] = NOTHING
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


def _why_not_move(command: Command, controls: Mapping[str, Control]) -> str:
    if command.get("region") is None:
        return "A move names the region whose keys are to move."
    control = controls[command["region"]]
    worker, keys = command.get("worker"), command.get("keys", ())
    wanted = control.goal.workers if control.goal else control.workers
    if worker is not None and (not isinstance(worker, int) or not 0 <= worker < wanted):
        return f"Region {command['region']!r} has no worker {worker!r}; it has workers 0 to {wanted - 1}."
    if not keys or len(set(control.routing.apart) | set(keys)) > MOST_PLACED:
        return (
            f"A region can have from 1 to {MOST_PLACED} keys placed apart, not {len(set(control.routing.apart) | set(keys))}."
        )
    return ""


def decide(
    commands: Sequence[tuple[str, Command]],
    controls: Mapping[str, Control],
    snapshots: Sequence[str],
    limits: Limits,
    epoch: int,
    unloadable: Mapping[str, str] = NOTHING,
) -> Decided:
    """Obey an epoch's commands, up to the first that goes back to a snapshot.

    Args:
        commands: By name, in order.
        controls: By region in topological order, its placement after the last epoch.
        snapshots: Names of the snapshots there are.
        limits: What bounds a step.
        epoch: Number of the epoch.
        unloadable: By command's text (`text_of`), why the flow cannot go back to that snapshot.
    """
    out = Decided(dict(controls))
    for name, command in commands:
        if out.load:
            out.taken += [name] if command.get("command") == "end" else []
            continue
        out.taken.append(name)
        reason = why_not(command, out.controls, [*snapshots, *out.snapshots], unloadable)
        if reason:
            out.refused[name] = reason
        else:
            _obey(command, out, limits, epoch)
    return out


def _obey(command: Command, out: Decided, limits: Limits, epoch: int) -> None:
    kind = command["command"]
    if kind == "scale":
        for region in [command["region"]] if command.get("region") is not None else list(out.controls):
            out.controls[region] = scaled(out.controls[region], command["workers"], limits, epoch)
    elif kind == "move":
        region = command["region"]
        out.controls[region] = pinned(out.controls[region], command["keys"], command["worker"], limits, epoch)
    elif kind == "copied" and command["region"] in out.controls:
        control, held = ended_hold(out.controls[command["region"]], command["key"], command["since"])
        out.controls[command["region"]] = control
        if held is not None:
            out.copied.append(Copied(command["region"], held, command["file"]))
    elif kind == "snapshot":
        out.snapshots.append(command["name"])
    elif kind == "load":
        out.load = command
    out.end |= kind == "end"
    out.drain |= kind == "drain"
    out.stop |= kind in ("stop", "drain")


__all__ = ["Copied", "Decided", "decide", "text_of", "why_not"]
