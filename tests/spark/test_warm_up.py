"""An application of a group warms up before it joins: nothing of that reaches a sink, a server, the shared folder, or stays behind."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.redis_client.connection import connect
from penstock.spark.run import opened
from penstock.spark.task import local_folder
from penstock.spark.warm_up import warm_up

pytestmark = pytest.mark.spark


def flow_of(url, place, called=None):
    def note(key, event, n):
        Path(called).write_text("called")
        return (key, 1), 1

    flow = ps.Flow("cards")
    rows = flow.source("rows", ps.redis_streams(url, "warm", 2, "k string, at timestamp, v long"), time="at")
    keyed = rows.key_by("k", distribute=ps.ByPartition())
    keyed.stateful_map(note, "k string, n long").sink(ps.sql(f"sqlite:///{place}/out.db", "totals"))
    keyed.window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).sink(ps.parquet(str(place / "windows")))
    return flow


def test_warm_up_calls_no_function_and_leaves_nothing_behind(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    (tmp_path / "out").mkdir()
    flow = flow_of("redis://127.0.0.1:1", tmp_path / "out", tmp_path / "out" / "called")  # nobody is there
    assert warm_up(flow, spark, 2, opened) > 0
    assert list((tmp_path / "out").iterdir()) == []
    assert [*Path(local_folder()).iterdir()] == []
    assert list((tmp_path / "temp").glob("*warm-up*")) == []


def test_warm_up_leaves_as_many_python_workers_that_have_imported_as_partitions_keep_busy(spark, tmp_path, monkeypatch):
    def look(batches):
        import os
        import sys
        import time

        import pyarrow as pa

        known = "penstock.worker.run" in sys.modules
        time.sleep(2)  # the others have one of their own meanwhile
        for _ in batches:
            yield pa.record_batch({"process": [os.getpid()], "known": [known]})

    # Spark keeps Python workers by their environment: these tasks have new ones.
    monkeypatch.setitem(spark.sparkContext.environment, "PENSTOCK_TEST", uuid.uuid4().hex)
    tasks = spark.sparkContext.defaultParallelism
    assert tasks > 1
    warm_up(flow_of("redis://127.0.0.1:1", tmp_path, tmp_path / "called"), spark, 1, opened)  # of either partition one task
    found = spark.range(0, tasks, 1, tasks).mapInArrow(look, "process long, known boolean").collect()
    assert len({row.process for row in found}) == tasks
    assert all(row.known for row in found), found


def test_application_that_cannot_run_the_flow_does_not_join(spark, redis_url, tmp_path):
    def broken(frame):
        raise ValueError("not here")

    flow = ps.Flow("broken")
    rows = flow.source("rows", ps.redis_streams(redis_url, "brokenwarm", 2, "k string, v long"))
    rows.transform(broken).sink(ps.sql(f"sqlite:///{tmp_path}/out.db", "rows"))
    with pytest.raises(PenstockError, match="not here"):
        flow.start(spark, checkpoint=str(tmp_path / "group"), group=ps.Group(redis_url, "brokenwarm"))
    assert list(connect(redis_url).keys("*brokenwarm*")) == []


def test_first_epoch_of_an_application_that_has_warmed_up_runs_at_once_and_says_how_long_that_took(spark, redis_url, tmp_path):
    for hour in range(2):
        connect(redis_url).xadd("{warm:0}", {"k": "a", "at": f"2026-01-01 0{hour}:00:00Z", "v": "1"})
    flow = flow_of(redis_url, tmp_path, tmp_path / "called")
    run = flow.start(spark, checkpoint=str(tmp_path / "group"), group=ps.Group(redis_url, "warm"), trigger="100 milliseconds")
    while not (tmp_path / "called").exists():
        assert not run.await_termination(0.1)
    run.shutdown()
    assert run.warm_up_s > 0
