"""What a user begins with: `Flow`, its sources, and the way to start it."""

from __future__ import annotations

import datetime as dt
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

import pyarrow as pa

from penstock.errors import DeclarationError
from penstock.flow import plan as p
from penstock.flow.distributed import DistributedStream
from penstock.flow.explain import explained
from penstock.flow.keyed import KeyedStream
from penstock.flow.picture import picture
from penstock.flow.spellings import FLOW, missing
from penstock.flow.stream import Stream
from penstock.protocol.rescale import Limits
from penstock.sinks.base import Sink
from penstock.sources.base import Source, as_source
from penstock.sql_text.given import as_name, known_column
from penstock.sql_text.schema import as_text
from penstock.types import NULL_PARTITION, Duration, duration_us

if TYPE_CHECKING:
    from penstock.driver.group_run import GroupRun
    from penstock.driver.run import Run
    from penstock.group.settings import Group
    from penstock.spark.run import DataFrame, SparkSession
    from penstock.sql_text.given import Expression

_P = ParamSpec("_P")
_R = TypeVar("_R")

LONGEST_NAME: Final = 200
"""Bytes of a region's name, which is that of a folder."""
MALFORMED = pa.schema([(n, pa.string()) for n in ("source", "position", "error", "record")])


def _checked(start: Callable[_P, _R]) -> Callable[_P, _R]:
    """`start`, with options that it does not have refused in a sentence; one that is None was not asked for."""
    accepted = list(inspect.signature(start).parameters)[1:]

    @wraps(start)
    def checked(*args: _P.args, **options: _P.kwargs) -> _R:
        for name in [n for n in options if n not in accepted]:
            if options.pop(name) is not None:
                shown = ", ".join(n for n in accepted if n not in ("spark", "on_step"))
                raise DeclarationError(f"start has no option {name!r} in this version; there are {shown}.")
        if "checkpoint" not in options:
            raise DeclarationError("start needs checkpoint='folder', where the flow's state is kept.")
        return start(*args, **options)

    return checked


class StartOptions(TypedDict, total=False):
    """The options of `Flow.start`, for type checkers."""

    workers: int | Mapping[str, int] | None
    trigger: Duration
    recover: Literal["checkpoint", "recompute"]
    since: str | dt.datetime | None
    replay_outputs: Mapping[str, str | None] | None
    drain: bool
    step_budget: Duration | Limits | None
    forget: Sequence[str]
    audit: bool | int
    on_step: Callable[[str], None] | None


class Flow:
    """A dataflow: sources, streams, regions, sinks.

    Args:
        name: The flow's name; it stands in messages and in the sinks' marks.

    Example:
        >>> flow = Flow("example")
    """

    def __init__(self, name: str) -> None:
        if not name or not isinstance(name, str):
            raise DeclarationError("A flow needs a name, for example Flow('flights').")
        self.name = name
        self._sources: list[p.SourceNode] = []
        self._regions: list[p.Region] = []
        self._outputs: list[p.Output] = []

    def source(
        self,
        name: str,
        source: Source | DataFrame,
        *,
        time: Expression | None = None,
        lateness: Duration = "0 seconds",
        idle_after: Duration | None = None,
        close_after: Duration | None = None,
        ahead: Duration | None = None,
        position: tuple[str, str] | None = None,
        partitions: tuple[Any, ...] | list[Any] = (),
        on_error: Literal["fail", "skip"] | Sink = "fail",
    ) -> Stream:
        """Declare where records come from.

        Args:
            name: Unique in the flow.
            source: `penstock.files`, `penstock.rate`, `penstock.read_back`, or any ``spark.readStream`` DataFrame.
            time: Column with the event time (timestamp), unless the source knows it (`penstock.read_back`). Without it records are processed as they come, per epoch in
                (partition, offset) order, and windows and joins are not possible.
            lateness: A record this far behind the greatest time of its own source partition is late.
            idle_after: A partition, or the whole source, without records for so long stops holding the frontier back. Never, unless given.
            close_after: Without records of any partition for so long, the frontier goes on by the clock, so that windows close: each so long after
                its end, if its time and the clock's pass alike. A record with an older time that comes after that is late. Never, unless given.
            ahead: A record whose time is more than this after the greatest time of its own source partition before it is put aside (`Stream.ahead`) and
                has no say in what is late. No record is, unless given. Give more than the longest time without records: what comes after a longer
                one is put aside as well.
            position: The columns (partition, offset) of a DataFrame; connectors know theirs, unless the records do. Without it positions are
                local to an epoch: ties in time may then depend on how records were cut into epochs.
            partitions: With `position`, the partitions that must be heard from before the frontier moves. A partition not
                named here is admitted when its first record comes, and judged against the frontier of that moment.
            on_error: Malformed records, and records without event time: ``"fail"`` stops the flow, ``"skip"`` counts them and
                leaves them out, a sink keeps them.

        Raises:
            DeclarationError: A name is taken, a column is missing or of a wrong type.

        Example:
            >>> flow = ps.Flow("delays")
            >>> trips = ps.files("trips", "tail string, at timestamp, delay double", "csv")
            >>> flow.source("trips", trips, time="at", lateness="10 minutes").columns
            ['tail', 'at', 'delay']
        """
        as_text(name, "The name of a source")
        if any(s.name == name for s in self._sources):
            raise DeclarationError(f"Flow {self.name!r} has two sources named {name!r}; give each its own name.")
        connector = as_source(source, name)
        schema = connector.schema
        position = connector.position if position is None else position
        what = f"Source {name!r}"
        if time is not None:
            time = known_column(
                as_name(time, f"The time column of source {name!r}"),
                schema.names,
                f"{what} takes its event time from a column it does not have: time=",
            )
            kind = schema.field(time).type
            if not pa.types.is_timestamp(kind) and not pa.types.is_null(kind):
                raise DeclarationError(
                    f"{what} takes its event time from column {time!r} of type {kind}; cast it to timestamp."
                )
        if position is not None and (not isinstance(position, (tuple, list)) or len(position) != 2):
            raise DeclarationError(f"{what} has position={position!r}; give two columns, (partition, offset).")
        if position is not None and position != connector.position:
            own = f"The position columns of source {name!r}"
            absent = f"{what} takes its positions from a column it does not have: position="
            position = (
                known_column(as_name(position[0], own), schema.names, absent),
                known_column(as_name(position[1], own), schema.names, absent),
            )
        for partition in partitions:
            if isinstance(partition, int) and abs(partition) >= NULL_PARTITION:
                raise DeclarationError(
                    f"{what} has partition {partition}; whole numbers must lie within ±2^47; declare it as text, and cast the column."
                )
        keep = on_error if not isinstance(on_error, str) else None
        if keep is None and on_error not in ("fail", "skip"):
            raise DeclarationError(f"{what} has on_error={on_error!r}; use 'fail', 'skip' or a sink.")
        time = connector.time if time is None else time
        close_after_us = None if close_after is None else duration_us(close_after, f"close_after of source {name!r}")
        if close_after_us is not None and (time is None or not close_after_us):
            wrong = "no event time, which alone can go on" if time is None else "no time to fall silent in"
            raise DeclarationError(
                f"{what} has close_after={close_after!r} and {wrong}; declare time= and a duration above 0, or leave close_after= out."
            )
        ahead_us = None if ahead is None else duration_us(ahead, f"ahead of source {name!r}")
        if ahead_us is not None and (time is None or not (position or connector.steady)):
            wrong = (
                "no event time"
                if time is None
                else "positions that are local to an epoch, so what is ahead would depend on epochs"
            )
            raise DeclarationError(
                f"{what} has ahead={ahead!r} and {wrong}; declare {'time=' if time is None else 'position='}, or leave ahead= out."
            )
        node = p.SourceNode(
            schema=schema,
            timed=time is not None,
            name=name,
            connector=connector,
            time=time,
            lateness_us=duration_us(lateness, f"the lateness of source {name!r}"),
            idle_after_us=None if idle_after is None else duration_us(idle_after, f"idle_after of source {name!r}"),
            close_after_us=close_after_us,
            ahead_us=ahead_us,
            position=position,
            partitions=tuple(partitions),
            on_error="fail" if on_error == "fail" else "skip",
        )
        self._sources.append(node)
        if keep is not None:
            Stream(self, p.MalformedNode(MALFORMED, timed=False, source=node)).sink(keep, name=f"{name}.malformed")
        return Stream(self, node)

    def plan(self) -> p.Plan:
        """The checked plan.

        Raises:
            DeclarationError: The flow has no source or no sink.

        Example:
            >>> stored = flights.key_by("tail").deduplicate().sink(ps.memory("first flights"))
            >>> [region.name for region in flow.plan().regions]
            ['tail']
        """
        return p.freeze(self.name, self._sources, self._regions, self._outputs)

    def explain(self) -> None:
        """Print the flow: sources, regions with their keys and strategies, what each step computes and remembers, outputs.

        It may be called at any time, also on a flow that has no sink yet. In a notebook, ``flow`` as the last line of a cell shows a picture of it.

        Example:
            >>> Flow("empty").explain()
            flow empty
            <BLANKLINE>
            no sink yet: end a stream with .sink(...)
        """
        print(explained(self._declared()))  # noqa: T201  (as a DataFrame's)

    def _declared(self) -> p.Plan:
        """The flow as far as it is declared."""
        return p.ordered(self.name, self._sources, self._regions, self._outputs)

    def __repr__(self) -> str:
        counts = ((len(self._sources), "source"), (len(self._regions), "region"), (len(self._outputs), "output"))
        said = ", ".join(f"{n} {what}" + "s" * (n != 1) for n, what in counts)
        return f"<Flow {self.name!r}: {said}>"

    def _repr_html_(self) -> str:
        return picture(self._declared())

    @overload
    def start(
        self,
        spark: SparkSession | None = None,
        *,
        checkpoint: str | os.PathLike[str],
        group: None = None,
        **options: Unpack[StartOptions],
    ) -> Run: ...

    @overload
    def start(
        self,
        spark: SparkSession | None = None,
        *,
        checkpoint: str | os.PathLike[str],
        group: Group,
        **options: Unpack[StartOptions],
    ) -> GroupRun: ...

    @_checked
    def start(
        self,
        spark: SparkSession | None = None,
        *,
        checkpoint: str | os.PathLike[str],
        workers: int | Mapping[str, int] | None = None,
        trigger: Duration = "200 milliseconds",
        recover: Literal["checkpoint", "recompute"] = "checkpoint",
        since: str | dt.datetime | None = None,
        replay_outputs: Mapping[str, str | None] | None = None,
        drain: bool = True,
        step_budget: Duration | Limits | None = "50 milliseconds",
        forget: Sequence[str] = (),
        audit: bool | int = False,
        group: Group | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> Run | GroupRun:
        """Start the flow.

        Args:
            spark: A session; None: a local one with the right settings is made.
            checkpoint: Folder or URI that keeps the flow's state. A flow started again on it goes on where it was.
            workers: Number of workers of every region, or by region name, for a new checkpoint; 2 if not given, in a group 1 for each partition. A
                checkpoint keeps its numbers: `Run.scale` changes them.
            trigger: How often an epoch begins, or ``"available_now"``: process what there is, then end.
            recover: ``"checkpoint"``: go on with the checkpoint's state, or refuse. ``"recompute"``: where that is not possible (the checkpoint is
                lost or older than the sinks, a sink was restored from a copy, the flow has changed so that state cannot be taken over), compute
                the state anew from the sources' log and go on at the sinks' own marks; see `Run.recovery`.
            since: For a recomputation: no record before this event time matters; a datetime (without a zone: UTC) or text in ISO form. None: the
                windows, joins and patterns of the flow say it; a step that remembers without end reads from the beginning.
            replay_outputs: For a recomputation: for each output whose sink keeps no mark (console, a function) the output whose mark counts for
                it, or None: it is given all rows of the replay.
            drain: With ``"available_now"``: whether what there is counts as the whole input, so that the frontier goes to MAX and
                windows that are open are given out. With False the flow can be started again when there is more.
            step_budget: By how much a step of a rescale may lengthen an epoch; None: everything moves in one
                step. `penstock.protocol.rescale.Limits` sets every bound.
            forget: Regions (``"k"``) and steps (``"k/name"``) of the flow before on this checkpoint whose state may be forgotten.
            audit: True: every epoch is computed twice, in another order and process, and the first difference stops the flow with an
                `penstock.errors.AuditError` that names step, key and both results; nothing of that epoch is stored. n: one epoch in n.
            group: Share the partitions of the flow's stream with other applications, each of which starts the same flow with the same group
                and checkpoint: every partition is a flow of its own there, which one of them runs at a time (`penstock.driver.group_run.GroupRun`).
            on_step: For fault tests: called with the name of each step of an epoch before it.

        Returns:
            The handle. The flow runs in the background.

        Raises:
            DeclarationError: The flow cannot run, an option is wrong. Nothing was started.
            CheckpointError: The checkpoint belongs to another flow or is damaged. Nothing was changed.
            ChangedFlowError: The flow was changed so that state of the flow before would be lost or misread. Nothing was changed.
            SinkAheadError: A sink holds what this checkpoint does not know of. Nothing was stored.
            RecoveryError: The state cannot be computed from the log: it does not reach back far enough, or is another one than that of the
                sinks' rows. Nothing was changed.

        Example:
            >>> delays = flights.key_by("origin").window(ps.tumbling("1 hour")).aggregate(mean=ps.mean("delay"))
            >>> stored = delays.sink(ps.sql("sqlite:///delays.db", "delays"))
            >>> run = flow.start(spark, checkpoint="checkpoint", trigger="available_now", workers=2)
            >>> run.await_termination()
            True
        """
        from penstock.spark.run import start  # noqa: PLC0415  (Spark loads when a flow starts)

        again = (recover, since, replay_outputs)
        return start(self, spark, checkpoint, workers, trigger, again, drain, step_budget, forget, audit, on_step, group)

    def _missing(self, attribute: str) -> Any:
        raise missing("A flow", attribute, FLOW, dir(type(self)))

    if not TYPE_CHECKING:
        __getattr__ = _missing  # a checker that saw it would let every name pass

    def _in_region(self, region: p.Region) -> KeyedStream:
        """A stream's rows where a new region begins."""
        return KeyedStream(self, self._begin(region))

    def _in_stage(self, stage: p.Region) -> DistributedStream:
        """A stream's rows where a stage of workers begins."""
        return DistributedStream(self, self._begin(stage))

    def _begin(self, region: p.Region) -> p.RegionOutput:
        if any(r.name == region.name for r in self._regions):
            raise DeclarationError(
                f"Flow {self.name!r} has two regions named {region.name!r}; give one of them a name: key_by(..., name='…')."
            )
        too_long = len(region.name.encode()) > LONGEST_NAME
        if region.name.startswith(("_", ".")) or too_long or "/" in region.name or "\0" in region.name:
            shown = f"{region.name[:40]}…" if too_long else region.name
            raise DeclarationError(f"A region cannot be named {shown!r}, because its state is kept in a folder of that name.")
        self._regions.append(region)
        return p.RegionOutput(region.inputs[0].schema, region.timed, region, -1)
