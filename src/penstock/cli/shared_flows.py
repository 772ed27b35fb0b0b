"""Flows in a group on the command line: the options of ``penstock run``, and the status of the folder that applications share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.misuse import MisuseError

if TYPE_CHECKING:
    from penstock.checkpoint.group_folder import GroupFolder
    from penstock.group.figures import GroupFigures
    from penstock.group.settings import Group


_OF_CONSUMERS: Final = ("position", "lag")
"""What the server knows of consumers only: a flow's positions are in its checkpoints."""


def group_of(name: str | None, redis: str | None, member: str | None, lease: str | None) -> Group | None:
    """What ``--group`` and its companions say; None: the flow is in no group.

    Raises:
        MisuseError: One is given without the others that it needs.
        DeclarationError: One is not of its kind.
    """
    if name is None and (
        lone := next((o for o, v in {"redis": redis, "member": member, "lease": lease}.items() if v is not None), None)
    ):
        raise MisuseError(f"--{lone} is for flows in a group; add --group NAME.")
    if name is None:
        return None
    if redis is None:
        raise MisuseError("--group needs --redis URL, the server that the group meets at, as redis://localhost:6379.")
    from penstock.group.settings import Group

    return Group(redis, name, member=member, **({} if lease is None else {"lease": lease}))


def group_folder(checkpoint: str) -> GroupFolder | None:
    """The folder of a group, if it is one."""
    from penstock.checkpoint.group_folder import GroupFolder

    folder = GroupFolder(checkpoint)
    return folder if folder.identity() is not None else None


def show_group(
    folder: GroupFolder, alive: Callable[[dict[str, Any]], bool | None], redis: str | None = None, *, as_json: bool
) -> None:
    """Show how far each partition is, and who works on it.

    Args:
        folder: The folder.
        alive: Whether the process of a run lives, by the run's description of itself; None: not known.
        redis: The server that the group meets at; None: only what the folder tells is shown.
        as_json: As one JSON object.

    Raises:
        GroupError: The server knows no such group, or cannot be asked.
    """
    from penstock.checkpoint.record import progress_of
    from penstock.driver.inspect import read_progress

    identity = folder.identity()
    assert identity is not None
    group = _figures(redis, identity.group, identity.stream)
    partitions, owners = {}, {}
    for number in folder.begun():
        record, about = read_progress(folder.partition(number))
        partitions[number] = {**progress_of(record), "about": about, "running": alive(about)}
        owners[number] = _owner(about, partitions[number]["running"])
    if as_json:
        about_group = {} if group is None else {"membership": _membership(group)}
        named = {"flow": identity.flow, "group": identity.group, "stream": identity.stream}
        print(json.dumps({**named, "partitions": partitions, **about_group}))
        return
    from rich.console import Console

    from penstock.serve.group_table import partitions_table

    print(
        f"flow {identity.flow}, group {identity.group}: {len(partitions)} of {identity.partitions} partitions of stream {identity.stream} have begun"
    )
    console = Console()
    console.print(partitions_table(partitions, owners))
    if group is not None:
        from penstock.cli.grouped import figures_table

        pause = "" if group.last_rebalance_ms is None else f", last rebalance {group.last_rebalance_ms:,} ms"
        print(f"members, as the server knows them: epoch {group.epoch}{pause}")
        console.print(figures_table("member", group.members))
        console.print(figures_table("partition", group.partitions, _OF_CONSUMERS))


def _membership(group: GroupFigures) -> dict[str, Any]:
    found = {name: value for name, value in group.to_json().items() if name not in {"group", "stream", *_OF_CONSUMERS}}
    return {**found, "partitions": [{n: v for n, v in p.items() if n not in _OF_CONSUMERS} for p in found["partitions"]]}


def _figures(redis: str | None, group: str, stream: str) -> GroupFigures | None:
    if redis is None:
        return None
    from penstock.group.describe import describe

    return describe(redis, group, stream)


def _owner(about: Mapping[str, Any], running: bool | None) -> str:
    who = f"process {about.get('pid', '?')} on {about.get('host', '?')}"
    return "nobody" if running is False else who


__all__ = ["group_folder", "group_of", "show_group"]
