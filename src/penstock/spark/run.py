"""Start a flow over Spark, and Spark as the engine of a run: it reads by streaming queries that call for epochs."""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.folder import CONTROL, Checkpoint
from penstock.checkpoint.group_folder import GroupFolder, GroupIdentity
from penstock.checkpoint.record import EpochRecord
from penstock.driver.background import LOOK_S
from penstock.driver.compile import CompiledFlow, CompiledRegion, compile_flow, undivided
from penstock.driver.engine import EpochOrders
from penstock.driver.group_run import GroupRun
from penstock.driver.input_files import InputFile
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.recompute import recompute_of
from penstock.driver.run import Run
from penstock.errors import DeclarationError, FencedError, PenstockError, RecoveryError, without_trace
from penstock.flow import plan as p
from penstock.flow.shared import of_partition, output_name, shared_by
from penstock.group.settings import Group
from penstock.operators.base import ERROR_SCHEMA
from penstock.protocol.commands import Copied, Tick
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.spark import logs
from penstock.spark.dividing import LEAST_ROWS
from penstock.spark.engine import SparkBackend, only_partition, partial_schema, schema_of
from penstock.spark.failures import translated
from penstock.spark.internals.queries import RunningQuery, for_each_batch, was_stopped
from penstock.spark.job_descriptions import JobDescriptions
from penstock.spark.log_lines import log_end, log_epoch, log_start
from penstock.spark.options import check_patterns, interval_ms, names_to_forget, query_settings, step_limits, workers_of
from penstock.spark.reading import DriverReading, PlannedLog, Reading, SparkReading, Stopped
from penstock.spark.session.complaining import complain
from penstock.spark.session.connected import refuse_connect
from penstock.spark.session.own import fit_shuffles, give_back, offer, query_session, stopped
from penstock.spark.session.settings import SHUFFLE
from penstock.spark.session.ship import ship_user_code
from penstock.spark.sources.file_frames import read_control
from penstock.spark.sources.kept_input import KeptInput
from penstock.spark.sources.planned import Planned
from penstock.spark.sources.readers import reader_of
from penstock.spark.sources.row_times import sources_alone
from penstock.spark.sources.slices import Slices, one_stream
from penstock.spark.sources.unread import unread_files
from penstock.spark.task import boot_id, local_folder
from penstock.spark.warm_up import warm_up
from penstock.state.files import location_of
from penstock.types import MAX_TIME, MIN_TIME, Duration, Refusal
from penstock.worker.audit import audited_epochs, run_twice
from penstock.worker.copying import Copy
from penstock.worker.run import Assignment
from penstock.worker.task import run_region_task

if TYPE_CHECKING:
    from penstock.flow.flow import Flow


def start(
    flow: Flow,
    spark: SparkSession | None,
    checkpoint: str | os.PathLike[str],
    workers: int | Mapping[str, int] | None,
    trigger: Duration,
    again: tuple[str, str | dt.datetime | None, Mapping[str, str | None] | None],
    drain: bool,
    step_budget: Duration | Limits | None,
    forget: Sequence[str],
    audit: bool | int,
    on_step: Callable[[str], None] | None,
    group: Group | None = None,
    label: str | None = None,
) -> Run | GroupRun:
    """See `Flow.start`. `label`: the flow in the log and in Spark's web interface; its name if not given."""
    recompute = recompute_of(*again)
    if not isinstance(drain, bool):
        raise DeclarationError(f"start(drain={drain!r}) must be True or False.")
    interval, audited = interval_ms(trigger), audited_epochs(audit)
    folder = location_of(checkpoint)
    if group is not None:
        options = (1 if workers is None else workers, trigger, again, drain, step_budget, forget, audit, on_step)
        return _in_group(flow, spark, folder, group, options)
    limits, forgotten = step_limits(step_budget), names_to_forget(forget)
    more = (limits, on_step or (lambda _: None), forgotten, audited, recompute)
    loop, engine = opened(flow, _session(flow, spark), folder, workers, interval, more, complain)
    engine.label = label or flow.name
    told = complain if workers is not None else lambda _: None  # where the numbers that the user gave do not count
    return Run(loop, told, bounded=interval is None, drain=drain, ended=partial(log_end, engine.label))


def opened(
    flow: Flow,
    spark: SparkSession,
    checkpoint: str,
    workers: int | Mapping[str, int] | None,
    interval: int | None = None,
    more: tuple[Any, ...] = (ALL_AT_ONCE, lambda _: None),
    complain: Callable[[str], None] = lambda _: None,
) -> tuple[Loop, SparkEngine]:
    """Compile a flow, and make what runs it on a checkpoint. Nothing has begun.

    Args:
        flow: The flow.
        spark: The user's session.
        checkpoint: The checkpoint's folder.
        workers: As `Flow.start` has it.
        interval: How often an epoch begins, in milliseconds; None: the flow only reads what there is.
        more: Further arguments of `RunOpener`, the first of them the bounds of a step.
        complain: Called with a sentence for each strategy that divides nothing.
    """
    plan = flow.plan()
    ship_user_code(plan)
    ours = query_session(spark)
    for source in plan.sources:
        for sentence in reader_of(source).check(spark, source):
            complain(sentence)
    compiled = compile_flow(plan, schema_of(ours), partial_schema(ours), only_partition(plan))
    check_patterns(compiled, ours)
    for sentence, matters in undivided(compiled):
        if matters:
            complain(sentence)
    limits = replace(more[0], slots=max(1, spark.sparkContext.defaultParallelism))
    at, by_region = Checkpoint(checkpoint), workers_of(plan, workers)
    engine = SparkEngine(compiled, ours, spark, at, interval, sum(by_region.values()))
    return Loop(RunOpener(compiled, at, engine, by_region, limits, *more[1:])), engine


def _session(flow: Flow, spark: SparkSession | None) -> SparkSession:
    """The user's session, or one of its own."""
    if spark is None:
        from penstock.spark.session.local import session

        return session(app_name=f"penstock {flow.name}")
    refuse_connect(spark, "start")
    if not isinstance(spark, SparkSession):
        raise DeclarationError(f"start needs a SparkSession, or none, not {spark!r}.")
    return spark


def _in_group(flow: Flow, spark: SparkSession | None, checkpoint: str, group: Group, options: tuple[Any, ...]) -> GroupRun:
    """Join a group with a flow."""
    from penstock.group.agent import Agent

    if not isinstance(group, Group):
        raise DeclarationError(f"group={group!r} is none; write group=penstock.Group('redis://localhost:6379', 'name').")
    shared, (workers, trigger, again, *rest) = shared_by(flow), options
    workers_of(of_partition(flow, 0).plan(), workers)  # what is wrong with all of them is said at once
    if interval_ms(trigger) is None:
        raise DeclarationError(
            "A flow in a group reads on, so that others can take its partitions over; leave out trigger='available_now', and end it with "
            "run.shutdown()."
        )
    recover, since, follow = again
    session = _session(flow, spark)
    folder = GroupFolder(checkpoint)
    folder.create(GroupIdentity(flow.name, group.name, shared.stream, shared.partitions))

    def begin(number: int) -> Run:
        followed = None if follow is None else {output_name(o, number): f and output_name(f, number) for o, f in follow.items()}
        part, label = of_partition(flow, number), f"{flow.name}@{number}"
        drain, step_budget, forget, audit, on_step = rest
        mine = drain, step_budget, forget, audit, on_step
        run = start(part, session, folder.partition(number), workers, trigger, (recover, since, followed), *mine, label=label)
        assert isinstance(run, Run)
        return run

    run = GroupRun(flow.name, folder, begin, group.lease_ms / 1000, warm_up(flow, session, workers, opened))
    run.join(Agent(group, shared.stream, shared.partitions, run))
    return run


logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)  # it prints what is raised into Spark; `Run` tells it better


_PROCESS = uuid.uuid4().hex
"""This process; its number may be that of another one before or after it."""
_CHECKED_EVERY_S: Final = 1.0
"""How often a run without input looks whether it is still the one that owns the checkpoint."""


class SparkEngine:
    """Spark as the engine of one start of a flow.

    Args:
        flow: The flow.
        spark: The session of its queries.
        theirs: The user's session.
        checkpoint: The checkpoint.
        interval_ms: How often an epoch begins; None: the flow only reads what there is.
        workers: Number of workers that it begins with.

    Attributes:
        label: The flow in the log and in Spark's web interface; empty: nothing is said of it.
    """

    label: str = ""
    beside: bool = True
    divides_from: int = LEAST_ROWS
    inserts: bool = False
    dump = staticmethod(cloudpickle.dumps)  # the one in which `ship_user_code` registers modules

    def __init__(
        self,
        flow: CompiledFlow,
        spark: SparkSession,
        theirs: SparkSession,
        checkpoint: Checkpoint,
        interval_ms: int | None,
        workers: int,
    ) -> None:
        self.identity: str = uuid.uuid4().hex
        self.by: Mapping[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "boot": boot_id(), "process": _PROCESS}
        self._flow, self.spark, self._theirs, self._checkpoint = flow, spark, theirs, checkpoint
        self._interval_ms = interval_ms
        self._alone = sources_alone(flow)
        offer(spark, query_settings(flow, local=self._uri().startswith("file:")))
        self._tasks = fit_shuffles(spark, workers)
        self._give = schema_of(spark)
        self._query: Reading | None = None
        self.stopping: threading.Event = threading.Event()
        self._between, self._busy = threading.Lock(), False
        self._available, self._cut, self._listed, self._said = interval_ms is None, False, False, False

    def clock_us(self) -> int:
        return time.time_ns() // 1000

    def schema(self, node: p.Node) -> pa.Schema:
        if not isinstance(node, p.RegionOutput):
            return self._give(node, {id(i): self.schema(i) for i in p.inputs_of(node)})
        if node.errors:
            return ERROR_SCHEMA
        if node.operator >= 0:
            return self._flow.regions[node.region.name].spec.steps[node.operator].out_schema
        return self.schema(node.region.inputs[-1 - node.operator])

    def has_begun(self, log: str, epoch: int = 0) -> bool:
        return logs.has_begun(self._checkpoint, log, epoch)

    def input_refusal(self, last: EpochRecord, kept: EpochRecord) -> Refusal | None:
        return logs.refusal(self._checkpoint, last, kept)

    def rewrite_offset_log(self, last: EpochRecord, kept: EpochRecord, epoch: int) -> str:
        every = self.spark.conf.get(logs.COMPACT_INTERVAL, str(logs.COMPACT_EVERY))
        return logs.rewrite_offset_log(self._checkpoint, last, kept, epoch, int(every or logs.COMPACT_EVERY))

    def interrupt(self) -> None:
        self.stopping.set()
        query = self._query
        if query is not None:
            query.stop()

    def copy(self, copy: Copy) -> Copied:
        JobDescriptions(self.spark.sparkContext, self.label).begin(f"region {copy.region}", "copy of a key on hold")
        return copy_on_executor(self.spark, self._checkpoint.uri, copy)

    def files_of(self, source: p.SourceNode) -> Sequence[InputFile] | None:
        if source.position is None and not source.connector.steady:
            raise RecoveryError(
                f"The state of flow {self._flow.plan.name!r} cannot be computed from the log: positions of source {source.name!r} are local to an epoch, so "
                "nothing tells which of its records the sinks know; declare position= in flows that are to be recomputed. Nothing was changed."
            )
        listed = reader_of(source).listed(self.spark, source)
        if listed is None and source.time is None:
            raise RecoveryError(
                f"The state of flow {self._flow.plan.name!r} cannot be computed from the log: source {source.name!r} has no event time, so the sinks' marks "
                "do not say how far its partitions were read; declare time= in flows that are to be recomputed. Nothing was changed."
            )
        return listed

    def begin_log(self, read: Mapping[str, Sequence[InputFile]], epoch: int) -> str:
        return logs.begin(self._checkpoint, [read.get(s.name, ()) for s in self._flow.plan.sources], epoch)

    def translated(self, error: BaseException) -> PenstockError:
        return translated(error, plan=self._flow.plan)

    def lost(self) -> PenstockError | None:
        return stopped(self._theirs, self._flow.plan.name)

    def unread(self, last: EpochRecord) -> dict[str, int]:
        return unread_files(self.spark, self._flow.plan, self._checkpoint, last)

    def begin(self, loop: Loop, *, available: bool = False) -> None:
        self._available, self._listed = available, False
        if self.label and not self._said:
            self._said = True
            log_start(self.label, loop, self.spark.sparkContext.uiWebUrl)
        planned = [reader_of(source).planned(source) for source in self._flow.plan.sources]
        if all(planned):
            self._query = self._by_driver(loop, [p for p in planned if p is not None])
            return
        try:
            log = self._uri(loop.last.log)
            running = RunningQuery(self.spark, log)
            run = partial(self.run_epoch, loop)
            writer = for_each_batch(self._stream(loop.last.log).writeStream, self.spark, partial(self._batch, running), run)
            writer = writer.option("checkpointLocation", log)
            writer = writer.queryName(self.label) if self.label.strip() else writer
            trigger = {"availableNow": True} if available else {"processingTime": f"{self._interval_ms} milliseconds"}
            self._query = SparkReading(writer.trigger(**trigger).start())
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever Spark raises)
            raise without_trace(self.translated(error), error) from None

    def _by_driver(self, loop: Loop, sources: list[Planned]) -> Reading:
        """Read without a query of Spark's: the driver plans each epoch's input."""
        run, log, checked = loop.settings.run, loop.last.log, [0.0]

        def check() -> None:
            now = time.monotonic()
            if now - checked[0] > _CHECKED_EVERY_S:
                checked[0] = now
                self._checkpoint.check_owner(run)
                if (lost := self.lost()) is not None:
                    raise lost

        def run_epoch(epoch: int, slices: Slices) -> None:
            self.run_epoch(loop, epoch, slices, lambda: reading.stopped)

        every = None if self._available else (self._interval_ms or 0) / 1000
        reading = DriverReading(
            self.spark, PlannedLog(self._checkpoint, log, len(sources)), sources, loop, run_epoch, self.stopping, every, check
        )
        reading.start()
        return reading

    def _uri(self, *parts: str) -> str:
        """A path of the checkpoint as Spark and Hadoop write it."""
        uri = self._checkpoint.uri
        if re.match(r"^[a-z0-9]+://", uri):
            return "/".join((uri.rstrip("/"), *parts))
        return "file://" + self._checkpoint.path(*parts)

    def _stream(self, log: str) -> DataFrame:
        """The root: control log and all sources as one stream."""
        control = read_control(self.spark, self._uri(CONTROL), moved=logs.has_moved(self._checkpoint, log))
        return one_stream([control, *(reader_of(source).stream(self.spark, source) for source in self._flow.plan.sources)])

    def _batch(self, running: RunningQuery, frame: DataFrame, epoch: int) -> tuple[int, Slices, Callable[[], bool]]:
        """Of a micro-batch of a query of Spark's, what `run_epoch` is given besides."""
        query = running.find()
        return epoch, Slices(frame, query, epoch, len(self._flow.plan.sources)), lambda: was_stopped(query)

    def run_epoch(self, loop: Loop, epoch: int, slices: Slices, was_stopped: Callable[[], bool] = lambda: False) -> None:
        """Run one epoch.

        Args:
            loop: The flow.
            epoch: Its number.
            slices: Its input.
            was_stopped: Whether somebody has ended the reading meanwhile.
        """
        with self._between:
            if self.stopping.is_set():
                raise Stopped  # returning would let Spark count as done what was not processed
            self._busy = True
        kept, self._listed = KeptInput(self._checkpoint, epoch, loop.settings.run, first=not self._listed), True
        backend: SparkBackend | None = None
        try:
            spark, assign = slices.session, self._assign(loop, epoch)
            spark.conf.set(SHUFFLE, self._tasks)  # Spark keeps the number of a query's first start
            twice = loop.settings.audits(epoch)
            before = loop.last
            last_ms = before.figures.epoch_ms
            backend = SparkBackend(
                spark,
                slices,
                epoch,
                self._checkpoint,
                before.log,
                assign,
                self._alone,
                kept,
                label=self.label,
                twice=twice,
                last_ms=last_ms,
            )
            if loop.epoch(epoch, backend, available=self._available):
                self.stopping.set()
            if self._said and epoch > before.epoch:
                log_epoch(self.label, before, loop.last)
        except BaseException as error:  # noqa: BLE001  (told to whoever waits, and to Spark)
            find = backend.failing_record if backend is not None else lambda *_: ""
            told = translated(error, plan=self._flow.plan, find=find)  # meanwhile another run may have taken over
            kept.failed(told)
            if type(told) is PenstockError and was_stopped():
                self._cut = True
                raise Stopped from None  # whoever stopped the query interrupted the epoch: no failure of the flow
            raise loop.fail(told, error) from None  # Spark chokes on the text of a long chain of causes
        finally:
            self._busy = False
            give_back(self._theirs)

    def _assign(self, loop: Loop, epoch: int) -> Callable[[CompiledRegion, EpochOrders], Assignment]:
        settings, uri = loop.settings, self._checkpoint.uri
        uri = uri if "://" in uri else self._checkpoint.root
        compute = run_twice if settings.audits(epoch) else run_region_task
        return lambda compiled, work: Assignment(
            uri,
            settings.flow,
            compiled.spec,
            epoch,
            settings.run,
            work.routing,
            work.messages,
            work.versions,
            local_folder(),
            compute,
        )

    def read(self, loop: Loop, available: bool) -> bool:
        if available or self._query is None:
            self._checkpoint.check_owner(loop.settings.run)  # Spark would stop the query of the run that has taken over
            self.stopping.clear()
            self.begin(loop, available=available)
        query = self._query
        assert query is not None
        self._ends(query, loop, None) if available else self._watch(query, loop)
        self._query = None
        self._cut = not self.stopping.is_set() and not (available and query.ran_out())
        return not self._cut

    def _ends(self, query: Reading, loop: Loop, seconds: float | None) -> bool:
        """Wait for the query; that it was stopped is no failure."""
        ended = True
        try:
            ended = query.ended(seconds)
        except Exception:
            if loop.error is not None or not (self.stopping.is_set() or self._cut):
                raise
        return ended

    def _watch(self, query: Reading, loop: Loop) -> None:
        """Until the query has ended, or was told to."""
        last_epoch, since, told = -1, time.monotonic(), ""
        looked = since
        while not self._ends(query, loop, LOOK_S):
            with self._between:  # no epoch begins after it was seen that none is under way
                fenced = None
                if not self._busy and time.monotonic() - max(looked, since) > _CHECKED_EVERY_S:
                    looked, fenced = time.monotonic(), self._fenced(loop)
                if fenced or (loop.leaving and not self._busy):
                    self.stopping.set()
            if fenced:  # without records no epoch would say so
                with suppress(Exception):  # Java may be gone
                    query.stop()
                raise fenced
            if self.stopping.is_set():
                query.stop()
                return
            record, quiet = loop.last, time.monotonic() - since
            if record.epoch != last_epoch:
                last_epoch, since = record.epoch, time.monotonic()
            # Without records there is no epoch: nobody would see that a partition is idle, and a rescale would stand still.
            elif told <= max(record.control, default="") and (  # the last one has been heard
                quiet > self._until_due(record) or (any(r.control.goal for r in record.regions.values()) and query.waits())
            ):
                told = loop.submit(Tick())

    def _fenced(self, loop: Loop) -> PenstockError | None:
        """What to tell of a run that was replaced or has lost its session; None: neither, or the checkpoint does not answer."""
        try:
            self._checkpoint.check_owner(loop.settings.run)
        except (OSError, PenstockError) as error:
            return error if isinstance(error, FencedError) else None
        return self.lost()

    def _until_due(self, record: EpochRecord) -> float:
        """Seconds without an epoch after which the clock has a say: a source becomes idle that is not, or its frontier goes on by the clock."""
        known = {s: record.sources[s.name] for s in self._flow.plan.sources if s.name in record.sources}
        idle = [s.idle_after_us for s, state in known.items() if not state.idle]
        closing = [s.close_after_us for s, state in known.items() if MIN_TIME < state.frontier < MAX_TIME]
        return min((us / 1e6 for us in (*idle, *closing) if us is not None), default=math.inf)


def copy_on_executor(spark: SparkSession, uri: str, copy: Copy) -> Copied:
    """Carry a copy out in a Spark job of its own, which runs beside those of the epochs."""
    found: list[Copied] = spark.sparkContext.parallelize([copy], 1).map(lambda one: one.carry_out(Checkpoint(uri))).collect()
    return found[0]


__all__ = ["DataFrame", "SparkEngine", "SparkSession", "start"]
