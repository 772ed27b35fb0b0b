"""Opening a run over Spark: the session's part of `penstock.driver.opener`.

Read next: `penstock.spark.run`.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Collection

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import CompiledFlow
from penstock.driver.epoch import Settings
from penstock.driver.opener import RunOpener
from penstock.driver.rollback import Engine
from penstock.flow import plan as p
from penstock.operators.base import ERROR_SCHEMA
from penstock.protocol.rescale import Limits
from penstock.spark import logs
from penstock.spark.engine import schema_of
from penstock.spark.session.complaining import complain


def opener(
    flow: CompiledFlow,
    spark: SparkSession,
    checkpoint: Checkpoint,
    workers: dict[str, int],
    limits: Limits,
    on_step: Callable[[str], None] | None,
    forget: Collection[str] = (),
) -> RunOpener:
    """What opens the runs of a flow over Spark; see `RunOpener` for the arguments."""
    interval = spark.conf.get(logs.COMPACT_INTERVAL, str(logs.COMPACT_EVERY))
    every = int(interval or logs.COMPACT_EVERY)
    engine = Engine(
        lambda last, kept: logs.refusal(checkpoint, last, kept),
        lambda last, kept, epoch: logs.rewrite_offset_log(checkpoint, last, kept, epoch, every),
        lambda log: logs.has_begun(checkpoint, log),
        cloudpickle.dumps,  # the one in which `ship_user_code` registers modules
    )
    return RunOpener(
        flow, checkpoint, workers, limits, engine, _schemas(flow, spark), _clock_us, on_step or (lambda _: None), forget
    )


def open_run(opening: RunOpener, *, given: bool) -> Settings:
    """Open a run of this process; `given`: the user gave the numbers of workers, and is told where they do not count."""
    by = {"host": socket.gethostname(), "pid": os.getpid()}
    return opening.open(uuid.uuid4().hex, by, complain if given else lambda _: None)


def _schemas(flow: CompiledFlow, spark: SparkSession) -> Callable[[p.Node], pa.Schema]:
    give = schema_of(spark)

    def schema(node: p.Node) -> pa.Schema:
        if not isinstance(node, p.RegionOutput):
            return give(node, {id(i): schema(i) for i in p.inputs_of(node)})
        if node.errors:
            return ERROR_SCHEMA
        if node.operator >= 0:
            return flow.regions[node.region.name].spec.steps[node.operator].out_schema
        return schema(node.region.inputs[-1 - node.operator])

    return schema


def _clock_us() -> int:
    return time.time_ns() // 1000


__all__ = ["open_run", "opener"]
