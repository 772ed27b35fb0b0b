"""The commands of ``penstock``. Each imports what it needs when it runs."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from penstock.cli.differing import diff
from penstock.cli.grouped import group
from penstock.cli.loading import CheckpointOption, load_flow
from penstock.cli.log_output import log_to_stderr
from penstock.cli.matching import match, quiet_session
from penstock.cli.misuse import MisuseError, as_typed
from penstock.cli.shared_flows import group_folder, group_of, show_group
from penstock.cli.skewed import skew
from penstock.errors import CheckpointError, PenstockError

_STOPS_IN_S: Final = 120


def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="file.py:name of a penstock.Flow, or of a function that returns one.")],
    checkpoint: CheckpointOption,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers per region, for a new checkpoint; 2 if not given.")
    ] = None,
    trigger: Annotated[str, typer.Option(help="How often an epoch begins, or available_now.")] = "200 milliseconds",
    drain: Annotated[
        bool,
        typer.Option(
            help="With available_now: what there is is the whole input, the flow is finished then. With --no-drain it can be started again "
            "whenever there is more."
        ),
    ] = True,
    master: Annotated[str | None, typer.Option(help="Spark master; all cores of this machine if not given.")] = None,
    ui: Annotated[
        bool, typer.Option("--ui/--no-ui", envvar="PENSTOCK_UI", help="Spark's web interface; the first line says where it is.")
    ] = True,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="A region, or a step as REGION/STEP, that the flow no longer has and whose state may be forgotten."),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Compute every epoch twice, and stop where users' functions give something else.")
    ] = False,
    recover: Annotated[
        str,
        typer.Option(
            help="checkpoint, or recompute: where the checkpoint's state cannot be used, compute it anew from the sources' log and go on at the "
            "sinks' own marks."
        ),
    ] = "checkpoint",
    since: Annotated[
        str | None,
        typer.Option(help="With --recover recompute: no record before this event time matters, as 2026-05-01T12:00."),
    ] = None,
    replay_output: Annotated[
        list[str] | None,
        typer.Option(
            help="With --recover recompute, as OUTPUT=OTHER: OUTPUT, whose sink keeps no mark, goes by the mark of OTHER; as OUTPUT=: it is given all "
            "rows of the replay."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Share the partitions of the flow's stream with all applications that have this group and this checkpoint."
        ),
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="With --group: the server that the group meets at, as redis://host:6379.")
    ] = None,
    member: Annotated[
        str | None,
        typer.Option(
            help="With --group: a name of this application that stays the same, so that a quick restart moves nothing."
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(help="With --group: how long others wait for an application that is silent; 10 seconds if not given."),
    ] = None,
) -> None:
    """Run a flow until it ends, fails or is stopped (Ctrl-C and SIGTERM stop it after the epoch under way)."""
    from penstock.driver.recompute import recompute_of
    from penstock.spark.options import interval_ms
    from penstock.spark.session.settings import UI

    with as_typed():
        interval_ms(trigger)
        follow = _followed(replay_output)
        recompute_of(recover, since, follow)
        shared = group_of(group, redis, member, lease)
    flow = load_flow(target)
    options: dict[str, Any] = {"workers": workers, "trigger": trigger, "drain": drain, "forget": forget or (), "audit": audit}
    options |= {"recover": recover, "since": since, "replay_outputs": follow}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves cleanly, as after Ctrl-C
    log_to_stderr()
    session = quiet_session(context, master, **({UI: "true"} if ui else {}))
    running = flow.start(session, checkpoint=checkpoint, group=shared, **options)
    warmed = (f"Warmed up for {running.warm_up_s:.1f} s, then joined the group.",) if shared is not None else ()
    for change in (*warmed, running.last_end, *running.changes):
        if change:
            print(change, file=sys.stderr)
    from penstock.serve.terminal import watch

    try:
        watch(running)
    except KeyboardInterrupt:
        print("Stopping after this epoch; start again with the same checkpoint to go on.", file=sys.stderr)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        running.shutdown(drain=False, timeout=60)
    running.await_termination()
    print(running.outcome, file=sys.stderr)


def _followed(given: list[str] | None) -> dict[str, str | None] | None:
    """``OUTPUT=OTHER`` as `Flow.start` takes it.

    Raises:
        MisuseError: One has no ``=`` or no OUTPUT, or two are about one output.
    """
    found: dict[str, str | None] = {}
    for text in given or ():
        output, sign, other = text.partition("=")
        if not (output and sign):
            raise MisuseError(f"--replay-output {text} must be OUTPUT=OTHER, or OUTPUT= alone.")
        if output in found:
            raise MisuseError(f"--replay-output names {output!r} twice; say once what becomes of it.")
        found[output] = other or None
    return found or None


def status(
    checkpoint: CheckpointOption,
    redis: Annotated[
        str | None, typer.Option(help="Of a folder that a group shares: the server that it meets at, to show the group, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show how far a flow is."""
    if (folder := group_folder(checkpoint)) is not None:
        show_group(folder, _alive, redis, as_json=as_json)
        return
    if redis is not None:
        raise MisuseError(f"--redis is for folders that a group shares, and {checkpoint} is none; leave it out.")
    from penstock.checkpoint.record import progress_of
    from penstock.driver.inspect import read_progress
    from penstock.driver.recovery import recovery_figures

    record, about = read_progress(checkpoint)
    progress, recovery = progress_of(record), recovery_figures(record, time.time_ns() // 1000)
    alive = _alive(about) and not (record.stopped and record.run == about["run"])  # its process may continue, as in a notebook
    if as_json:
        print(json.dumps({**progress, "recovery": recovery, "about": about, "running": alive and not record.finished}))
        return
    from rich.console import Console

    from penstock.serve.terminal import progress_table, status_lines

    for line in status_lines(progress, about, alive=alive, now=dt.datetime.now(dt.UTC), recovery=recovery):
        print(line)
    if record.epoch >= 0:
        Console(markup=False, emoji=False).print(progress_table(progress))


def stop(
    checkpoint: CheckpointOption,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", help="Process what there is and end the input: everything is given out, the flow is finished for good."
        ),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; 120 if not given, with --drain as long as it takes.")
    ] = None,
) -> None:
    """Stop a running flow after an epoch; works from another terminal."""
    from penstock.checkpoint.folder import open_checkpoint
    from penstock.checkpoint.record import progress_of
    from penstock.driver.commands import Commander
    from penstock.driver.inspect import read_progress
    from penstock.serve.terminal import follow, progress_table

    record, about = read_progress(checkpoint)
    if record.finished:
        raise CheckpointError(f"The flow of {checkpoint} has finished already.")
    if _alive(about) is False:
        raise CheckpointError(f"The flow of {checkpoint} is not running: process {about.get('pid')} has ended.")
    opened, _ = open_checkpoint(checkpoint)
    asked = Commander(opened, running=lambda: _alive(about) is not False).stop(drain=drain)
    timeout = timeout if timeout is not None or drain else _STOPS_IN_S
    follow(asked, timeout=timeout, show=lambda: progress_table(progress_of(opened.last())))
    last = opened.last()
    if asked.done:
        print(f"{'Finished' if last.finished else 'Stopped'} after epoch {last.epoch}.")
    elif asked.running():
        raise PenstockError(f"The flow did not end within {timeout:g} s; the command stays in its log and will be obeyed.")
    else:
        rest = "; it drains when it is started again" if drain else ""
        raise PenstockError(f"The flow of {checkpoint} ended after epoch {last.epoch}, before it was done{rest}.")


def scale(
    workers: Annotated[int, typer.Argument(min=1, help="Number of workers wanted.")],
    checkpoint: CheckpointOption,
    region: Annotated[str | None, typer.Option(help="Name of the region; all regions at the same time if not given.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow it to its end; without, return when it is written down.")] = True,
) -> None:
    """Change the number of workers of a running flow, live; works from another terminal."""
    _give(checkpoint, lambda commander, _: commander.scale(region, workers), f"Scaled to {workers} workers", wait=wait)


def move(
    region: Annotated[str, typer.Argument(help="Name of the region.")],
    keys: Annotated[list[str], typer.Argument(help="The keys; columns of a key of several joined by a comma.")],
    checkpoint: CheckpointOption,
    worker: Annotated[
        int | None, typer.Option(min=0, help="Number of the worker; back where they belong if not given.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow it to its end.")] = True,
) -> None:
    """Place single keys at a worker of their own, or back, while the flow runs."""
    from penstock.driver.inspect import key_schema

    def ask(commander: Any, opened: Any) -> Any:
        schema = key_schema(opened, region)
        given = [tuple(k.split(",")) if len(schema) > 1 else k for k in keys]
        return commander.move(region, given, worker, schema)

    _give(checkpoint, ask, f"Moved {len(keys)} key{'s' * (len(keys) > 1)}", wait=wait)


def snapshot(
    name: Annotated[str, typer.Argument(help="Name of the snapshot.")],
    checkpoint: CheckpointOption,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it instead; works whether or not the flow runs.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it is taken.")] = True,
) -> None:
    """Keep a named, consistent copy of all state, routing and positions of a running flow, or remove one."""
    if remove:
        from penstock.checkpoint.folder import open_checkpoint

        open_checkpoint(checkpoint)[0].remove_snapshot(name)
        print(f"Removed snapshot {name}.")
        return
    _give(checkpoint, lambda commander, _: commander.snapshot(name), f"Kept snapshot {name}", wait=wait)


def load(
    name: Annotated[str, typer.Argument(help="Name of the snapshot.")],
    checkpoint: CheckpointOption,
    keep_output: Annotated[
        bool,
        typer.Option(
            "--keep-output",
            help="Go back even if a sink cannot take rows back; its rows stay, and those since the snapshot come again.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the flow has gone back.")] = True,
) -> None:
    """Go back to a snapshot. A flow that does not run goes back when it is started again, before anything else."""
    done = f"Went back to snapshot {name}"
    _give(checkpoint, lambda commander, _: commander.load(name, keep_output=keep_output), done, wait=wait)


def _give(checkpoint: str, ask: Callable[[Any, Any], Any], done: str, *, wait: bool) -> None:
    """Submit a command to a running flow and follow it."""
    from penstock.checkpoint.folder import open_checkpoint
    from penstock.driver.commands import Commander
    from penstock.driver.inspect import read_progress
    from penstock.serve.terminal import follow

    opened, _ = open_checkpoint(checkpoint)
    _, about = read_progress(checkpoint)
    asked = ask(Commander(opened, running=lambda: _alive(about) is not False), opened)
    if _alive(about) is False:
        print("The flow is not running; it obeys when it is started again.")
    elif wait:
        follow(asked)
        if not asked.done:
            raise PenstockError("The flow ended before it was done; it goes on when the flow is started again.")
        print(f"{done} after epoch {opened.last().epoch}.")


def state(
    region: Annotated[str, typer.Argument(help="Name of the region.")],
    checkpoint: CheckpointOption,
    limit: Annotated[int, typer.Option(min=0, help="At most so many entries; 0: all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what a region remembers, as of the last committed epoch."""
    from penstock.driver.inspect import view_region

    view = view_region(checkpoint, region)
    rows = (row for worker in range(len(view.versions)) for batch in view.rows(worker) for row in batch.to_pylist())
    shown = [row for _, row in zip(range(limit) if limit else iter(int, 1), rows, strict=False)]
    if as_json:
        for row in shown:
            print(json.dumps(row, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*view.schema.names)
    for row in shown:
        table.add_row(*("null" if v is None else str(v) for v in row.values()))
    Console(markup=False, emoji=False).print(table)  # text that looks like markup is data


def demo(
    which: Annotated[
        str, typer.Argument(help="flights: a flow; group: two applications that share a stream, one is killed.")
    ] = "flights",
    folder: Annotated[str | None, typer.Option(help="Where to keep the demo's files; a temporary folder if not given.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers per region, but of Newark's airlines.")] = 2,
) -> None:
    """Run a flow on real data, a year of flights from New York, checked against pandas; or, as `demo group`, share a stream between two processes."""
    if which == "group":
        from penstock.demo.group import run_demo as run_group

        run_group()
        return
    if which != "flights":
        raise MisuseError(f"There is no demo {which!r}; give flights or group.")
    from penstock.demo.flights import run_demo

    run_demo(folder, workers)


def _alive(about: dict[str, Any]) -> bool | None:
    """Whether a run's process lives; None if it is on another host."""
    import socket

    if about.get("end") is not None:
        return False
    if about.get("host") != socket.gethostname() or "pid" not in about:
        return None
    try:
        os.kill(int(about["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


COMMANDS: Final[tuple[Callable[..., Any] | typer.Typer, ...]] = (
    run,
    diff,
    status,
    scale,
    move,
    snapshot,
    load,
    stop,
    state,
    match,
    skew,
    group,
    demo,
)
"""What `penstock.cli.application` registers: functions under their names, Typer groups under theirs."""
