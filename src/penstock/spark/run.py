"""Start a flow over Spark, and the handle of a running one."""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.folder import CONTROL, Checkpoint
from penstock.checkpoint.record import EpochRecord, outcome_of, progress_of
from penstock.driver.background import Background
from penstock.driver.commands import Commander, CommandHandle
from penstock.driver.compile import CompiledFlow, compile_flow
from penstock.driver.epoch import EpochDriver
from penstock.driver.opener import RunOpener
from penstock.errors import DeclarationError, FencedError, FinishedError, PenstockError
from penstock.protocol.commands import Copied, End, Tick
from penstock.protocol.ends import Ends, Reader, supervise
from penstock.protocol.rescale import Limits
from penstock.spark.engine import SparkBackend, only_partition, partial_schema, schema_of
from penstock.spark.failures import SEEN_BY_SPARK, alone, translated
from penstock.spark.opening import open_run, opener
from penstock.spark.options import check_patterns, interval_ms, names_to_forget, query_settings, step_limits, workers_of
from penstock.spark.session.own import fit_shuffles, give_back, offer, query_session, refuse_connect, stopped
from penstock.spark.session.settings import SHUFFLE
from penstock.spark.session.ship import ship_user_code
from penstock.spark.sources.kept_input import KeptInput
from penstock.spark.sources.row_times import sources_alone
from penstock.spark.sources.slices import Slices, one_stream
from penstock.spark.sources.streams import read_control, read_stream
from penstock.spark.sources.unread import ran_out, refuse_finished, was_stopped
from penstock.spark.task import local_folder
from penstock.worker.copying import Copy
from penstock.worker.run import Assignment

if TYPE_CHECKING:
    from penstock.flow.flow import Flow


def start(
    flow: Flow,
    spark: SparkSession | None,
    checkpoint: str | os.PathLike[str],
    workers: int | Mapping[str, int] | None,
    trigger: str | dt.timedelta,
    recover: str,
    drain: bool,
    step_budget: str | dt.timedelta | Limits | None,
    forget: Sequence[str],
    on_step: Callable[[str], None] | None,
) -> Run:
    """See `Flow.start`."""
    plan = flow.plan()
    if recover != "checkpoint":
        raise DeclarationError(f"start(recover={recover!r}) is not available in this version; use 'checkpoint'.")
    if not isinstance(drain, bool):
        raise DeclarationError(f"start(drain={drain!r}) must be True or False.")
    interval = interval_ms(trigger)
    if not str(checkpoint or ""):
        raise DeclarationError("start needs checkpoint='folder', where the flow's state is kept.")
    if spark is None:
        from penstock.spark.session.local import session

        spark = session(app_name=f"penstock {plan.name}")
    elif not isinstance(refuse_connect(spark, "start"), SparkSession):
        raise DeclarationError(f"start needs a SparkSession, or none, not {spark!r}.")
    ship_user_code(plan)
    ours = query_session(spark, plan.sources)
    compiled = compile_flow(plan, schema_of(ours), partial_schema(ours), only_partition(plan))
    check_patterns(compiled, ours)
    limits = replace(step_limits(step_budget), slots=max(1, spark.sparkContext.defaultParallelism))
    opening = opener(
        compiled, ours, Checkpoint(str(checkpoint)), workers_of(plan, workers), limits, on_step, names_to_forget(forget)
    )
    return Run(compiled, ours, spark, opening, interval, drain=drain, workers_given=workers is not None)


logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)  # it prints what is raised into Spark; `Run` tells it better


class _Stopped(Exception):  # noqa: N818  (no error: the flow was told to)
    """Raised into Spark instead of an epoch after the flow, or its query, was stopped."""


class Run:
    """A running flow. Made by `Flow.start`."""

    def __init__(
        self,
        flow: CompiledFlow,
        spark: SparkSession,
        theirs: SparkSession,
        opening: RunOpener,
        interval_ms: int | None,
        *,
        drain: bool,
        workers_given: bool,
    ) -> None:
        checkpoint, self._opening = opening.checkpoint, opening
        self._flow, self._spark, self._theirs, self._checkpoint = flow, spark, theirs, checkpoint
        self._interval_ms, self._drain = interval_ms, drain
        self._error: PenstockError | None = None
        self._cause: BaseException | None = None
        self._alone = sources_alone(flow)
        offer(spark, query_settings(flow, local=self._uri().startswith("file:")))
        self._tasks = fit_shuffles(spark, sum(opening.workers.values()))
        self._query: Any = None
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._following, self._cut = interval_ms is not None, False
        self._commander = Commander(checkpoint, self._latest, lambda: self.active, self._opening.rollback_refusal)
        self._open(given=workers_given)
        self._was_finished = self._driver.last.finished
        if self._was_finished:
            self._close()
            refuse_finished(spark, flow.plan, checkpoint, self._driver.last, following=interval_ms is not None)
            return
        if interval_ms is not None and not self._driver.last.draining:  # else it was told to end before it was interrupted
            self._query = self._start_query(available_now=False)  # errors of the first plan belong to the caller
        self._thread = threading.Thread(target=self._supervise, name=f"penstock-{flow.plan.name}", daemon=True)
        self._thread.start()

    @property
    def changes(self) -> tuple[str, ...]:
        """What of the state begins empty or was forgotten because the flow has changed, a sentence each."""
        return tuple(self._opening.notices)

    def _open(self, *, given: bool) -> None:
        """Begin a run: of a start, or after going back to a snapshot."""
        spark, settings = self._spark, open_run(self._opening, given=given)
        checkpoint, self._settings = self._checkpoint, settings
        self._driver = EpochDriver(self._flow, checkpoint, settings)
        self._background = Background(checkpoint, settings, lambda copy: copy_on_executor(spark, checkpoint.uri, copy))

    def _roll_back(self) -> None:
        """Go back to the snapshot that the last epoch was told to load; the query has ended, and another one is to be started."""
        self._background.close()
        self._open(given=False)

    def _start_query(self, *, available_now: bool) -> Any:
        try:
            writer = self._stream().writeStream.foreachBatch(self._epoch)
            writer = writer.option("checkpointLocation", self._uri(self._driver.last.log))
            trigger = {"availableNow": True} if available_now else {"processingTime": f"{self._interval_ms} milliseconds"}
            return writer.trigger(**trigger).start()
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever Spark raises)
            raise alone(translated(error, plan=self._flow.plan), error) from None

    def _uri(self, *parts: str) -> str:
        """A path of the checkpoint as Spark and Hadoop write it."""
        uri = self._checkpoint.uri
        if re.match(r"^[a-z0-9]+://", uri):
            return "/".join((uri.rstrip("/"), *parts))
        return "file://" + self._checkpoint.path(*parts)

    def _stream(self) -> DataFrame:
        """The root: control log and all sources as one stream."""
        control, self._listed = read_control(self._spark, self._uri(CONTROL)), False
        return one_stream([control, *(read_stream(self._spark, source) for source in self._flow.plan.sources)])

    def _epoch(self, frame: DataFrame, epoch: int) -> None:
        """One micro-batch."""
        if self._stopping.is_set():
            raise _Stopped  # returning would let Spark count as done what was not processed
        kept, self._listed = KeptInput(self._checkpoint, epoch, self._settings.run, first=not self._listed), True
        backend: SparkBackend | None = None
        query: Any = None
        try:
            query, spark = self._running_query(), frame.sparkSession
            spark.conf.set(SHUFFLE, self._tasks)  # Spark keeps the number of a query's first start
            slices = Slices(frame, query, epoch)
            log = self._driver.last.log
            backend = SparkBackend(spark, slices, epoch, self._checkpoint, log, self._assign(epoch), self._alone, kept)
            self._background.hold_back(self._driver.last)
            self._driver.last = self._background.adopt(self._driver.last)
            again = epoch <= self._driver.last.epoch  # committed, but Spark was stopped before it could note that
            self._background.look(record := self._driver.run(epoch, backend))
            ends = record.ends
            if not again and (ends.stopped or ends.finished or record.rollback_pending or (self._following and ends.draining)):
                self._stopping.set()
        except BaseException as error:  # noqa: BLE001  (told to whoever waits, and to Spark)
            find = backend.failing_record if backend is not None else lambda *_: ""
            told = translated(error, plan=self._flow.plan, find=find)  # meanwhile another run may have taken over
            kept.failed(told)
            if type(told) is PenstockError and was_stopped(query):
                self._cut = True
                raise _Stopped from None  # whoever stopped the query interrupted the epoch: no failure of the flow
            self._error = self._error or told
            self._cause = self._cause or (error.__cause__ if error is self._error else error)
            raise self._error from None  # Spark chokes on the text of a long chain of causes
        finally:
            give_back(self._theirs)

    def _running_query(self) -> Any:
        """The Java object of the query; asked of Spark because the first epoch may run before `start` has returned."""
        active = self._spark._jsparkSession.streams().active()
        path = self._uri(self._driver.last.log)
        for query in active:
            try:
                if str(query.streamingQuery().resolvedCheckpointRoot()).endswith(path.removeprefix("file://")):
                    return query
            except Exception:  # noqa: BLE001, S112  (another version's internals; `Slices` can do without)
                continue
        return None

    def _assign(self, epoch: int) -> Any:
        settings, uri = self._settings, self._checkpoint.uri
        uri = uri if "://" in uri else self._checkpoint.root
        return lambda compiled, work: Assignment(
            uri, settings.flow, compiled.spec, epoch, settings.run, work.routing, work.messages, work.versions, local_folder()
        )

    def _supervise(self) -> None:
        """Follow the run to its end."""
        try:
            reader = Reader(self._where, self._read, self._end, self._copy, self._roll_back)
            supervise(reader, bounded=self._interval_ms is None, drain=self._drain)
            if self._driver.ended_for_another:
                refuse_finished(self._spark, self._flow.plan, self._checkpoint, self._driver.last, following=False)
        except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
            self._error = self._error or translated(error, plan=self._flow.plan)
        finally:
            self._error = self._replaced() or self._error
            self._close()

    def _close(self) -> None:
        self._background.close()
        for output in self._flow.plan.outputs:
            output.sink.close()
        self._ended.set()

    def _replaced(self) -> PenstockError | None:
        """If the query ended for no reason of its own: that a newer run took the checkpoint over, or that the session was stopped."""
        ends, _ = self._where()
        quiet = self._error is None and not (ends.stopped or ends.finished)
        if not (quiet or type(self._error) is PenstockError or str(self._error) == SEEN_BY_SPARK):
            return None
        try:
            self._checkpoint.check_owner(self._settings.run)
        except FencedError as error:
            return error
        except (OSError, PenstockError):  # what is known says more
            return None
        return stopped(self._theirs, self._flow.plan.name)

    def _where(self) -> tuple[Ends, bool]:
        return self._driver.last.ends_for(self._settings.since), bool(self._driver.last.rollback_pending)

    def _read(self, available: bool) -> bool:
        self._following = not available
        if available or self._query is None:
            self._checkpoint.check_owner(self._settings.run)  # Spark would stop the query of the run that has taken over
            self._stopping.clear()
            self._query = self._start_query(available_now=available)
        query = self._query
        self._ends(None) if available else self._watch()
        self._query = None
        self._cut = not self._stopping.is_set() and not (available and ran_out(query))
        return not self._cut

    def _end(self) -> None:
        self._checkpoint.check_owner(self._settings.run)
        self._commander.submit(End(self._settings.run))

    def _copy(self) -> None:
        known = self._driver.last.control
        self._background.wait_for_copies(lambda: bool(set(self._checkpoint.control_names()).difference(known)))

    def _ends(self, seconds: float | None) -> bool:
        """Wait for the query; that it was stopped is no failure."""
        ended = True
        try:
            ended = not seconds or bool(self._query.awaitTermination(seconds))
            if ended:  # so says Spark of a query that another one stops while its last epoch still runs
                self._query.awaitTermination()
        except Exception:
            if self._error is not None or not (self._stopping.is_set() or self._cut):
                raise
        return ended

    def _watch(self) -> None:
        """Until the query has ended, or was told to."""
        last_epoch, since, told = -1, time.monotonic(), ""
        while not self._ends(0.2):
            if self._stopping.is_set():
                self._query.stop()
                return
            quiet = time.monotonic() - since
            if self._driver.last.epoch != last_epoch:
                last_epoch, since = self._driver.last.epoch, time.monotonic()
            # Without records there is no epoch: nobody would see that a partition is idle, and a rescale would stand still.
            elif told <= max(self._driver.last.control, default="") and (  # the last one has been heard
                quiet > self._until_idle() or (self._rescaling and self._waits_for_data())
            ):
                told = self._commander.submit(Tick())

    def _until_idle(self) -> float:
        """Seconds of silence that make a source idle that is not."""
        known = self._driver.last.sources
        awake = [s for s in self._flow.plan.sources if s.name in known and not known[s.name].idle]
        return min((s.idle_after_us / 1e6 for s in awake if s.idle_after_us is not None), default=math.inf)

    @property
    def _rescaling(self) -> bool:
        return any(r.control.goal for r in self._driver.last.regions.values())

    def _waits_for_data(self) -> bool:
        return "Waiting for" in str(self._query.status["message"])

    def scale(self, region: str | None = None, workers: int | None = None) -> CommandHandle:
        """Change the number of workers of a region while the flow runs, or of all regions at the same time.

        Args:
            region: The region's name; None, or left out as in ``scale(workers=4)``: all.
            workers: The number wanted.

        Returns:
            A handle: `done`, `wait(timeout)`, `progress`.

        Raises:
            DeclarationError: There is no such region, or it cannot have so many workers. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        return self._commander.scale(region, workers)  # type: ignore[arg-type]  # None is refused there, with a sentence

    def move(self, region: str, keys: Sequence[Any], worker: int | None) -> CommandHandle:
        """Place single keys at a worker, whatever their bins do, or (None) where they belong.

        Args:
            region: The region's name.
            keys: Key values; tuples if the key has several columns.
            worker: Number of the worker, or None.

        Raises:
            DeclarationError: There is no such region or worker, or a key does not fit. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        if region not in self._flow.regions:
            raise DeclarationError(f"There is no region {region!r}; there are {', '.join(self._flow.regions)}.")
        return self._commander.move(region, keys, worker, self._flow.regions[region].spec.keys)

    def snapshot(self, name: str) -> CommandHandle:
        """Keep a named, consistent copy of all state, routing and positions as of the end of an epoch.

        Raises:
            DeclarationError: The name cannot be used, or is taken. Nothing was changed.
            FinishedError: The flow has ended.
        """
        self._ready()
        return self._commander.snapshot(name)

    def load(self, name: str, *, keep_output: bool = False) -> CommandHandle:
        """Go back to a snapshot: state, routing and positions are as they were, and the flow goes on reading from there.

        Sinks take back the rows that they were given since (`penstock.sinks.Rewinding`); in a table that is upserted or replaced the
        rows stay until the flow, which processes its input again, replaces them.

        Args:
            name: The snapshot.
            keep_output: Go back even if a sink cannot take rows back. Its rows stay, and those since the snapshot come again.

        Returns:
            A handle: `done`, `wait(timeout)`.

        Raises:
            DeclarationError: There is no such snapshot, or the flow cannot go back to it. Nothing was changed.
        """
        self._ready()
        return self._commander.load(name, keep_output=keep_output)

    def _latest(self) -> EpochRecord:
        """The last record; raises what the flow failed with."""
        if self._error is not None:
            raise alone(self._error, self._cause)
        return self._driver.last

    def _ready(self) -> None:
        """Wait for the first epoch: before it there is nothing to command."""
        while self._driver.last.epoch < 0 and not self._ended.wait(0.05):
            pass
        if self._error is not None:
            raise alone(self._error, self._cause)

    def shutdown(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """End the flow.

        Args:
            drain: True: what the sources hold now is processed, the frontier goes to MAX, everything is given out, and the flow is
                finished for good. False: stop after the epoch that sees the command; the flow can be started again, and a drain that
                was under way is withdrawn.
            timeout: Seconds to wait; None: as long as it takes.

        Returns:
            Whether the flow has ended as asked: with `drain` also False if a later stop came first, or a load.

        Raises:
            PenstockError: The flow failed meanwhile.
        """
        if not self._ended.is_set():
            with suppress(FinishedError):
                self._commander.stop(drain=drain, run=self._settings.run)
        ended = self.await_termination(timeout)
        return ended and (self._driver.last.finished or not drain)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end.

        Args:
            timeout: Seconds; None: as long as it takes.

        Returns:
            Whether the flow has ended.

        Raises:
            PenstockError: It failed; the error says why.
        """
        ended = self._ended.wait(timeout)
        if self._error is not None:
            raise alone(self._error, self._cause)
        return ended

    @property
    def outcome(self) -> str:
        """How the run has ended, in a sentence; empty while it runs."""
        if self.active:
            return ""
        known = outcome_of(self._driver.last, self._settings.since, before=self._was_finished, cut=self._cut)
        return str(self._error or known)

    @property
    def exception(self) -> PenstockError | None:
        """Why the flow failed; None if it did not."""
        return self._error

    @property
    def active(self) -> bool:
        """Whether the flow is running."""
        return not self._ended.is_set()

    @property
    def progress(self) -> dict[str, Any]:
        """Figures of the last epoch."""
        return progress_of(self._driver.last)

    @property
    def regions(self) -> dict[str, dict[str, Any]]:
        """By region: workers, frontier, rows, bytes and files of state."""
        return dict(self.progress["regions"])

    def routing(self, region: str) -> list[int]:
        """The worker of every key group of a region, 4096 of them.

        Raises:
            DeclarationError: There is no such region.
        """
        if region not in self._settings.workers:
            raise DeclarationError(f"There is no region {region!r}; there are {', '.join(self._settings.workers)}.")
        return list(self._driver.placements()[region].routing.owners)


def copy_on_executor(spark: SparkSession, uri: str, copy: Copy) -> Copied:
    """Carry a copy out in a Spark job of its own, which runs beside those of the epochs."""
    found: list[Copied] = spark.sparkContext.parallelize([copy], 1).map(lambda one: one.carry_out(Checkpoint(uri))).collect()
    return found[0]


__all__ = ["DataFrame", "Run", "SparkSession", "progress_of", "start"]
