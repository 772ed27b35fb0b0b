"""What a running flow shows: every Spark job says what it is for, the query has the flow's name, the log has a line for what happened."""

from __future__ import annotations

import datetime as dt
import logging
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flow_runs import stamp
from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming import StreamingQueryListener

import penstock as ps
from penstock.errors import PenstockError
from penstock.redis_client.connection import connect
from penstock.spark.log_lines import EPOCHS, RUNS

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Jobs:
    """The jobs and stages that Spark has run since the first epoch began, by Spark's own records."""

    def __init__(self, spark):
        self.context, self.first = spark.sparkContext._jsc.sc(), None

    def begin(self, step):
        if self.first is None:
            self.first = max((job.jobId() for job in self._all()), default=-1) + 1
            assert step == "decide"

    def _all(self):
        self.context.listenerBus().waitUntilEmpty()
        listed = self.context.statusStore().jobsList(None)
        jobs = [listed.apply(i) for i in range(listed.size())]
        return sorted(jobs, key=lambda job: job.jobId())

    def described(self):
        """By job its description, and those of its stages that ran."""
        found = []
        for job in (job for job in self._all() if job.jobId() >= self.first):
            ids = job.stageIds()
            stages = [self._stage(ids.apply(i)) for i in range(ids.size())]
            ran = [s for s in stages if s is not None and str(s.status()) != "SKIPPED"]
            assert ran
            found.append((job.description().getOrElse(None), {s.description().getOrElse(None) for s in ran}))
        return found

    def _stage(self, number):
        """A stage; None: one that was skipped, which a session with a thousand stages forgets before all others."""
        try:
            return self.context.statusStore().lastStageAttempt(number)
        except Py4JJavaError as error:
            if "No stage with id" in str(error):
                return None
            raise


class Names(StreamingQueryListener):
    """Notes the names of queries that start."""

    def __init__(self):
        self.names = []

    def onQueryStarted(self, event):  # noqa: N802  (Spark's name)
        self.names.append(event.name)

    def onQueryProgress(self, event):  # noqa: N802
        pass

    def onQueryIdle(self, event):  # noqa: N802
        pass

    def onQueryTerminated(self, event):  # noqa: N802
        pass


def write(folder, number):
    """Twenty records of an hour, of which the last one is late."""
    folder.mkdir(exist_ok=True)
    minutes = [60 * number + 3 * i - (50 if i == 19 else 0) for i in range(20)]
    rows = {"k": [f"k{i % 3}" for i in range(20)], "at": [BEGIN + dt.timedelta(minutes=m) for m in minutes], "v": [*range(20)]}
    pq.write_table(pa.table(rows, schema=SCHEMA), folder / f"{number}.parquet")
    stamp(folder / f"{number}.parquet", number)


def flow_of(folder, name):
    """Aggregate, chained region, join, match, late records, a region that no sink reads, rows staged in tasks and rows collected."""
    flow = ps.Flow(name)
    s = flow.source("s", ps.files(folder / "in", SCHEMA, max_files_per_epoch=1), time="at", lateness="10 minutes")
    counts = s.key_by("k").window(ps.tumbling("1 hour")).aggregate(n=ps.count())
    counts.sink(ps.parquet(folder / "counts"), name="counts")
    both = counts.key_by("k", name="left").join(s.where("v > 3").key_by("k", name="right"), within="10 minutes")
    both.sink(ps.memory(f"{name}.both"), name="both")
    s.key_by("k", name="pattern").match(
        "SELECT * WHERE (a ; b) WITHIN 1 HOUR", define={"a": "v % 2 = 0", "b": "v % 2 = 1"}
    ).sink(ps.memory(f"{name}.matches"), name="matches")
    s.late.sink(ps.memory(f"{name}.late"), name="late")
    s.key_by("k", name="unread").process(ps.Operator())
    return flow


def test_every_job_of_an_epoch_says_what_it_is_for(spark, tmp_path):
    for number in range(2):
        write(tmp_path / "in", number)
    jobs = Jobs(spark)
    run = flow_of(tmp_path, "described <b>").start(
        spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="available_now", on_step=jobs.begin
    )
    run.await_termination()
    found = jobs.described()
    assert len(found) > 10
    for job, stages in found:
        assert re.fullmatch(r"described <b> · epoch \d+ · .+", job or ""), found
        assert stages == {job}
    what = {job.split(" · ", 2)[2] for job, _ in found}
    assert {
        "region k · output counts",
        "region k",  # its rows are computed apart before the join
        "region left · output both",
        "region pattern · output matches",
        "source s · output late",
        "region unread",
    } <= what
    assert {job.split(" · ")[1] for job, _ in found} >= {"epoch 0", "epoch 1"}


def test_jobs_of_epochs_that_the_driver_reads_say_what_they_are_for(spark, redis_url, tmp_path):
    flow, jobs = ps.Flow("planned"), Jobs(spark)
    rows = flow.source("orders", ps.redis_streams(redis_url, "visible", 1, "k string, v long"))
    rows.key_by("k").aggregate(n=ps.count()).sink(ps.sql(f"sqlite:///{tmp_path}/out.db", "t", mode="upsert", key="k"), name="t")
    connect(redis_url).xadd("{visible:0}", {"k": "a", "v": 1})
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), workers=1, trigger="available_now", on_step=jobs.begin)
    run.await_termination()
    found = jobs.described()
    assert {job for job, _ in found} >= {"planned · epoch 0 · region k · output t"}
    assert all(job and job.startswith("planned · epoch ") and stages == {job} for job, stages in found), found


def test_query_has_the_name_of_the_flow_and_two_flows_may_have_one_name(spark, tmp_path):
    runs, heard = [], Names()
    spark.streams.addListener(heard)
    try:
        for which in ("one", "two"):
            write(tmp_path / which, 0)
            flow = ps.Flow("same")
            flow.source("s", ps.files(tmp_path / which, SCHEMA)).sink(ps.memory(f"same.{which}"))
            runs.append(flow.start(spark, checkpoint=str(tmp_path / f"c{which}"), trigger="100 milliseconds"))
        for run in runs:
            assert run.snapshot("a").wait(120)
            assert run.shutdown(drain=False, timeout=120)
    finally:
        spark.streams.removeListener(heard)
    assert heard.names == ["same", "same"]


def test_log_has_a_line_for_the_start_for_epochs_with_something_in_them_and_for_the_end(spark, tmp_path, caplog):
    write(tmp_path / "in", 0)
    flow = ps.Flow("logged")
    source = flow.source("s", ps.files(tmp_path / "in", SCHEMA), time="at", lateness="10 minutes")
    source.key_by("k").window(ps.tumbling("10 minutes")).aggregate(n=ps.count()).sink(ps.memory("logged.n"), name="n")
    with caplog.at_level(logging.INFO, "penstock"):
        run = flow.start(spark, checkpoint=str(tmp_path / "c"), workers=2, trigger="100 milliseconds")
        assert run.snapshot("a").wait(120)
        assert run.shutdown(timeout=120)
    said = [(r.name, r.levelname, r.getMessage()) for r in caplog.records if r.name.startswith("penstock")]
    assert said[0] == (RUNS.name, "INFO", f"logged: run 1 on {tmp_path / 'c'} begins; regions k (2 workers)")
    assert said[-1][0] == RUNS.name
    assert re.fullmatch(r"logged: The flow finished in epoch \d+: its input was read to the end\.", said[-1][2])
    epochs = [message for name, _, message in said if name == EPOCHS.name]
    assert re.fullmatch(
        r"logged: epoch 0: 20 rows in, 12 rows out \(n 12\), 1 record late, frontier 2024-01-01 00:44:00, [\d,]+ ms", epochs[0]
    )
    assert "end of input" in epochs[-1]
    assert all(re.search(r"\b[1-9][\d,]* (rows? in|rows? out|records? late|commands?)\b", line) for line in epochs[:-1])


def test_log_of_a_flow_that_fails_ends_with_its_error_and_nothing_is_printed(spark, tmp_path, caplog, capfd):
    write(tmp_path / "in", 0)

    def fails(key, event, state):
        raise ValueError("no")

    flow = ps.Flow("failing")
    source = flow.source("s", ps.files(tmp_path / "in", SCHEMA), time="at", lateness="10 minutes")
    source.key_by("k").stateful_map(fails, "a long").sink(ps.memory("failing.n"))
    run = flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now")
    with pytest.raises(PenstockError) as caught:
        run.await_termination()
    (record,) = [r for r in caplog.records if r.name == RUNS.name]  # INFO is not asked for
    assert (record.levelname, record.getMessage()) == ("ERROR", f"failing: {caught.value}")
    assert "failing:" not in capfd.readouterr().err
