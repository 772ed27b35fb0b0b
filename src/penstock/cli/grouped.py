"""The commands ``penstock group …``: look at a group, work as one of its members, write entries for it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.misuse import MisuseError, as_typed

if TYPE_CHECKING:
    from penstock.group.figures import GroupFigures, MemberFigures, PartitionFigures
    from penstock.progress.figures import Figure

group = typer.Typer(
    name="group",
    help="Groups of applications that share a stream over Redis or Valkey.",
    no_args_is_help=True,
    add_completion=False,
)

RedisOption = Annotated[str, typer.Option("--redis", help="Address of the server, as redis://localhost:6379.")]
PartitionsOption = Annotated[
    int | None, typer.Option(min=1, help="How many partitions the stream has; as before if it has been used before.")
]
_TOGETHER = 1000


@group.command()
def describe(
    name: Annotated[str, typer.Argument(help="The group's name.")],
    redis: RedisOption,
    stream: Annotated[str | None, typer.Option(help="The stream that it shares, if groups of this name share several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="As Prometheus reads it, for a textfile collector.")] = False,
) -> None:
    """Show who is in a group, who has which partition, and how far each is."""
    from penstock.group.describe import describe as look

    with as_typed():
        if as_json and prometheus:
            raise MisuseError("--json and --prometheus are two forms of the same; give one of them.")
        found = look(redis, name, stream)
    if prometheus:
        print("\n".join(_exposed(found)))
        return
    if as_json:
        print(json.dumps(found.to_json()))
        return
    from rich.console import Console

    pause = "" if found.last_rebalance_ms is None else f", last rebalance {found.last_rebalance_ms:,} ms"
    print(f"Group {found.group} of stream {found.stream}: epoch {found.epoch}, {found.lag:,} entries behind{pause}")
    console = Console()
    console.print(figures_table("member", found.members))
    console.print(figures_table("partition", found.partitions))


def figures_table(of: str, rows: Sequence[MemberFigures | PartitionFigures], without: Collection[str] = ()) -> Any:
    """A table of figures: a column for each field, those that are no figures by their names.

    Args:
        of: What they are of, as `penstock.group.figures.FIGURES` has it.
        rows: The figures.
        without: Fields to leave out.
    """
    from dataclasses import asdict, fields

    from rich.table import Table

    from penstock.group.figures import FIGURES

    table, figures = Table(), FIGURES[of]
    names = [f.name for f in fields(rows[0]) if f.name not in without] if rows else []
    for name in names:
        table.add_column(figures[name].title if name in figures else name, justify="right" if name in figures else "left")
    for row in rows:
        plain = asdict(row)
        table.add_row(*("" if plain[n] in {None, ""} or plain[n] is False else _text(n, plain[n], figures) for n in names))
    return table


def _text(name: str, value: Any, figures: Mapping[str, Figure]) -> str:
    return "yes" if value is True else figures[name].text(value) if name in figures else str(value)


def _exposed(found: GroupFigures) -> Iterator[str]:
    """The group's figures as Prometheus reads them."""
    from dataclasses import asdict

    from penstock.group.figures import FIGURES
    from penstock.serve.exposition import exposition

    about = {"group": found.group, "stream": found.stream}
    yield from exposition("penstock_group", FIGURES["group"], [(about, asdict(found))])
    members = [({**about, "member": m.member}, asdict(m)) for m in found.members]
    yield from exposition("penstock_group_member", FIGURES["member"], members)
    rows = [({**about, "partition": p.partition}, asdict(p)) for p in found.partitions]
    yield from exposition("penstock_group_partition", FIGURES["partition"], rows)


@group.command()
def consume(
    name: Annotated[str, typer.Argument(help="The group's name.")],
    redis: RedisOption,
    stream: Annotated[str, typer.Option(help="The stream.")],
    partitions: PartitionsOption = None,
    member: Annotated[
        str | None, typer.Option(help="A name of this process that stays the same when it is started again.")
    ] = None,
    lease: Annotated[str, typer.Option(help="How long others wait for a member that is silent.")] = "10 seconds",
    grace: Annotated[str, typer.Option(help="How long a leaving member may take to finish.")] = "8 seconds",
    batch: Annotated[int, typer.Option(min=1, help="At most so many entries at a time.")] = 100,
    handler: Annotated[
        str | None,
        typer.Option(help="file.py:name of a function of a partition and entries; if not given, entries are printed."),
    ] = None,
    on_error: Annotated[str, typer.Option(help="When the handler fails: stop, retry or dead_letters.")] = "stop",
    on_trim: Annotated[str, typer.Option(help="When entries were removed before they were read: fail or skip.")] = "fail",
) -> None:
    """Join a group, and handle or print the entries of this member's partitions until SIGTERM or Ctrl-C."""
    from penstock.group.consumer import Consumer
    from penstock.group.settings import Group

    with as_typed():
        settings = Group(redis, name, member=member, lease=lease, grace=grace)
        known = _partitions(redis, stream, partitions)
        policies = {"on_error": cast("Any", on_error), "on_trim": cast("Any", on_trim)}
        consumer = Consumer(settings, stream, known, batch=batch, **policies)
        work = _printer() if handler is None else _loaded(handler)
    consumer.run(work)


def _printer() -> Callable[[int, list[Any]], None]:
    guard = threading.Lock()

    def show(partition: int, entries: list[Any]) -> None:
        lines = [json.dumps({"partition": partition, "id": e.id, "fields": e.fields}) + "\n" for e in entries]
        with guard:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()

    return show


def _loaded(target: str) -> Callable[[int, list[Any]], object]:
    """The function that ``file.py:name`` names."""
    import runpy

    path, _, name = target.rpartition(":")
    if not path or not Path(path).is_file():
        raise MisuseError(f"--handler {target!r} names no file; give file.py:name.")
    found = runpy.run_path(path, run_name="penstock_handler").get(name)
    if not callable(found):
        raise MisuseError(f"{path} has no function {name!r}; give --handler {path}:name.")
    return cast("Callable[[int, list[Any]], object]", found)


@group.command()
def produce(
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    redis: RedisOption,
    partitions: PartitionsOption = None,
    key: Annotated[
        str | None, typer.Option(help="The field whose value chooses the partition; the partitions in turn if not given.")
    ] = None,
) -> None:
    """Write the JSON objects on standard input, one a line, as entries."""
    from penstock.group.producer import Producer

    sent = 0
    with as_typed(), Producer(redis, stream, _partitions(redis, stream, partitions), key=key) as producer:
        rest, together = _objects(), 1 if sys.stdin.isatty() else _TOGETHER
        while rows := list(islice(rest, together)):
            sent += len(producer.send_many(rows))
    print(f"{sent:,} entries written.", file=sys.stderr)


def _objects() -> Iterator[dict[str, Any]]:
    for number, line in enumerate(sys.stdin, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise MisuseError(f"Line {number} is no JSON: {error}; the lines before it may have been written.") from error
        if not isinstance(row, dict):
            raise MisuseError(f"Line {number} is no JSON object; the lines before it may have been written.")
        yield row


def _partitions(url: str, stream: str, given: int | None) -> int:
    """How many partitions a stream has."""
    if given is not None:
        return given
    from penstock.group.describe import partitions_of

    known = partitions_of(url, stream)
    if known is None:
        raise MisuseError(
            f"Nobody has used stream {stream!r} yet, so its number of partitions is yours to say; give --partitions."
        )
    return known


__all__ = ["figures_table", "group"]
