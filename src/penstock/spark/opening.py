"""Open a checkpoint and its sinks for a run, and finish a going back to a snapshot that is under way.

Read next: `penstock.spark.run`.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint, Identity
from penstock.checkpoint.record import EpochRecord
from penstock.driver.compile import CompiledFlow
from penstock.driver.epoch import Settings
from penstock.driver.rollback import Engine, ahead, commit_intent, roll_back, rollback_refusal
from penstock.driver.shape import sources_of
from penstock.driver.succession import check_sources
from penstock.driver.takeover import check_ahead, same_sink, take_over
from penstock.errors import CheckpointError, SinkError
from penstock.flow import plan as p
from penstock.protocol.commands import Load
from penstock.protocol.rescale import Limits
from penstock.spark import logs
from penstock.spark.engine import schema_of
from penstock.spark.options import check_regions
from penstock.state.files import delete_quietly
from penstock.types import Mark, Refusal
from penstock.worker.spec import ERROR_SCHEMA


class RunOpener:
    """Makes runs of one flow on one checkpoint: one at the start, and one more each time the flow goes back to a snapshot.

    Args:
        flow: The flow.
        spark: The session.
        checkpoint: The checkpoint.
        workers: Number of workers by region; what the checkpoint says takes its place.
        limits: Bounds of a step of a rescale.
        on_step: Called with the name of each step before it.
        forget: Regions (``"k"``) and steps (``"k/name"``) whose state may be forgotten.

    Attributes:
        checkpoint: The checkpoint.
        workers: Number of workers by region.
        notices: Of the last `open`, a sentence for each thing that begins empty or is forgotten.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        spark: SparkSession,
        checkpoint: Checkpoint,
        workers: dict[str, int],
        limits: Limits,
        on_step: Callable[[str], None] | None,
        forget: Collection[str] = (),
    ) -> None:
        self._flow, self._spark = flow, spark
        self.checkpoint: Checkpoint = checkpoint
        self._forget = forget
        self.notices: list[str] = []
        self.workers: dict[str, int] = workers
        self._limits, self._on_step = limits, on_step or (lambda _: None)
        every = int(
            spark.conf.get("spark.sql.streaming.fileSource.log.compactInterval", str(logs.COMPACT_EVERY)) or logs.COMPACT_EVERY
        )
        self._since = 0
        self._engine = Engine(
            lambda last, kept: logs.refusal(checkpoint, last, kept),
            lambda last, kept, epoch: logs.rewrite_offset_log(checkpoint, last, kept, epoch, every),
        )

    def rollback_refusal(self, record: EpochRecord, command: Load) -> Refusal | None:
        """Why the flow cannot go back to a snapshot, if it cannot."""
        return rollback_refusal(self.checkpoint, record, command, self._flow, self._engine, self._forget)

    def open(self, *, given: bool) -> Settings:
        """Claim checkpoint and sinks for a new run; go back first if the flow is on its way.

        Args:
            given: Whether the numbers of workers were given by the user.
        """
        checkpoint, plan = self.checkpoint, self._flow.plan
        identity = checkpoint.create(Identity(uuid.uuid4().hex, plan.name))
        if identity.name != plan.name:
            raise CheckpointError(
                f"Checkpoint {checkpoint.uri} belongs to flow {identity.name!r}, not {plan.name!r}; use another folder."
            )
        last = checkpoint.last()
        found = ahead(checkpoint, last, self.rollback_refusal)
        goes_on = found.kept if found else last
        if last.epoch < 0 and logs.has_begun(checkpoint, last.log):
            check_sources(checkpoint.sources(), sources_of(plan), checkpoint.uri)
        self.notices = take_over(self._flow, goes_on, checkpoint.uri, self._forget)
        plan = self._flow.plan
        if last.epoch < 0:  # from then on the records say it
            checkpoint.keep_sources(sources_of(plan))
        check_regions(goes_on, plan, self.workers, checkpoint.uri, given=given)
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        run = checkpoint.claim({"host": socket.gethostname(), "pid": os.getpid(), "started": now, "plan": plan.describe()})
        self._since = self._since or run
        specs = {n: c.spec for n, c in self._flow.regions.items()}
        checkpoint.keep_specs(run, cloudpickle.dumps(specs))  # type: ignore[no-untyped-call]  # PySpark does not type it
        last = commit_intent(checkpoint, last, found, run) if found else last
        marks = {}
        for output in plan.outputs:
            mark = marks[output.name] = output.sink.open(
                Mark(identity.flow, output.name, run, last.epoch), self._schema(output.node)
            )
            if mark is not None or same_sink(last, output):  # another sink that is empty begins now
                _check_mark(output, mark, last)
        check_ahead(checkpoint, self._flow, last, {} if found else marks)
        if found:
            roll_back(
                checkpoint, plan, found, self._engine, flow=identity.flow, run=run, now_us=_clock_us(), on_step=self._on_step
            )
            delete_quietly(checkpoint.fs, checkpoint.path(last.log))
        checkpoint.fs.create_dir(checkpoint.path("control"))
        return Settings(
            identity.flow, run, self.workers, _clock_us, self._on_step, self._limits, self.rollback_refusal, self._since
        )

    def _schema(self, node: p.Node) -> pa.Schema:
        if isinstance(node, p.RegionOutput):
            if node.errors:
                return ERROR_SCHEMA
            if node.operator >= 0:
                return self._flow.regions[node.region.name].spec.steps[node.operator].out_schema
            return self._schema(node.region.inputs[-1 - node.operator])
        give = schema_of(self._spark)
        return give(node, {id(i): self._schema(i) for i in p.inputs_of(node)})


def _clock_us() -> int:
    return time.time_ns() // 1000


def _check_mark(output: p.Output, mark: Mark | None, last: EpochRecord) -> None:
    """A durable sink must hold what the checkpoint says it was given."""
    given = last.outputs.get(output.name)
    if output.sink.durable and given is not None and (mark is None or mark.epoch < given):
        raise SinkError(
            f"Output {output.name!r} was given the rows of epoch {given}, but its sink {output.sink!r} holds "
            f"{'nothing' if mark is None else f'only epoch {mark.epoch}'}; restore the sink, or begin with a new checkpoint."
        )
