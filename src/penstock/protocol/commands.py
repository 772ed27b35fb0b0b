"""Commands to a flow, and their JSON in the control log.

A command that this version does not know is read as `Unknown`, which the controller refuses: a newer version, or an editor, may
have written it. Adding a command: its class, and its name in `Command`.

Read next: `penstock.protocol.controller`, which obeys them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

_CONTROLLERS: Final = MappingProxyType({"judge": "controller"})
"""Marks a field of which the controller says itself what is wrong with its value, in a sentence of its own."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Give a region this number of workers; None, or left out in the log: every region."""

    region: str | None = field(metadata={"absent": None})
    workers: int = field(metadata=_CONTROLLERS)


@dataclass(frozen=True, slots=True)
class Move:
    """Place keys (hashes) of a region at a worker; None: back where they belong."""

    region: str | None
    keys: tuple[int, ...]
    worker: int | None = field(metadata=_CONTROLLERS)


@dataclass(frozen=True, slots=True)
class Copied:
    """The state of a key (hash) on hold since an epoch is ready, in this file (`penstock.state.deltas.FileRef` as plain values)."""

    region: str
    key: int
    since: int
    file: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keep the flow's state, routing and positions under a name at the end of this epoch."""

    name: str = field(metadata=_CONTROLLERS)


@dataclass(frozen=True, slots=True)
class Load:
    """Go back to a snapshot; with `keep_output` even if a sink cannot take back the rows it was given since."""

    name: str = field(metadata=_CONTROLLERS)
    keep_output: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this run after an epoch; None: whichever runs."""

    run: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Read what there is, then end the input."""


@dataclass(frozen=True, slots=True)
class End:
    """This run has read the input to its end; None: whichever runs."""

    run: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Run an epoch though no record has come."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An entry of the control log that is no command of this version; `what` names it, for the refusal."""

    what: str


Command = Scale | Move | Copied | Snapshot | Load | Stop | Drain | End | Tick | Unknown

KINDS: Final[Mapping[str, type[Command]]] = MappingProxyType(
    {cls.__name__.lower(): cls for cls in get_args(Command) if cls is not Unknown}
)


@dataclass(frozen=True, slots=True)
class Open:
    """A command that was obeyed and is not carried out yet, and the regions that have not settled."""

    command: Command
    regions: tuple[str, ...] = ()


def kind_of(command: Command) -> str:
    """A command's name in the control log and in sentences."""
    return command.what if isinstance(command, Unknown) else type(command).__name__.lower()


def encode(command: Command) -> dict[str, Any]:
    """A command as plain values for JSON; `decode` reads it."""
    return {"command": kind_of(command), **{f.name: getattr(command, f.name) for f in fields(command)}}


def decode(raw: Any) -> Command:
    """A command from JSON; `Unknown` for another kind, another field, or a value of the wrong type."""
    kind = raw.get("command") if isinstance(raw, dict) else raw
    cls: Any = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or not isinstance(raw, dict):
        return Unknown(repr(kind))
    known, types = {f.name: f for f in fields(cls)}, get_type_hints(cls)
    given = {n: f.metadata["absent"] for n, f in known.items() if "absent" in f.metadata}
    given |= {n: tuple(v) if isinstance(v, list) else v for n, v in raw.items() if n != "command"}
    wrong = [
        f"{n}={raw[n]!r}"
        for n, v in given.items()
        if n not in known or not ("judge" in known[n].metadata or _fits(v, types[n]))
    ]
    missing = [n for n, f in known.items() if n not in given and f.default is MISSING]
    if wrong or missing:
        return Unknown(f"{kind!r} " + (f"with {', '.join(wrong)}" if wrong else f"without {', '.join(missing)}"))
    command: Command = cls(**given)
    return command


def _fits(value: Any, wanted: Any) -> bool:
    origin = get_origin(wanted)
    kinds = get_args(wanted) if origin is UnionType else (origin or wanted,)
    return type(value) in kinds and (origin is not tuple or all(type(v) is int for v in value))
