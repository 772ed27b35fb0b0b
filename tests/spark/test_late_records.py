"""Late records over Spark: the same ones however they are looked for, and at little cost in a small epoch."""

from __future__ import annotations

import random

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.spark.sources import late_records

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("p", pa.int32()), ("o", pa.int64())])


def declare(connector, other=None, **options):
    def given(sink):
        flow = ps.Flow("late")
        if other is not None:  # then the numbers of the partitions of "events" are large
            flow.source("other", other, time="at").sink(sink("other"))
        events = flow.source("events", connector, time="at", lateness="3 seconds", **options)
        events.select("k", "at", "p", "o").sink(sink("on time"))
        events.late.sink(sink("late"))
        return flow

    return given


def records(n, seed=3):
    dice, now, offsets, out = random.Random(seed), 0, [-4, 4_090], []  # across an edge of chunks
    for _ in range(n):
        now += dice.choice([0, 1, 2])
        p = dice.choice([0, 0, 1])
        offsets[p] += dice.choice([1, 2])
        out.append({"k": "k", "at": fr.moment(now - dice.choice([0, 0, 1, 5, 9])), "p": p, "o": offsets[p]})
    return out


@pytest.mark.parametrize(
    ("rows", "late"), [(1 << 18, 2_000), (1 << 18, 3), (-1, 0)], ids=["by the driver", "too many late", "too many rows"]
)
def test_late_records_however_they_are_looked_for_are_those_of_the_harness(spark, tmp_path, monkeypatch, rows, late):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(late_records, "SMALL_ROWS", rows)
    monkeypatch.setattr(late_records, "MANY_LATE", late)
    given = records(60)
    for i in range(3):
        fr.write_parquet(tmp_path / "in", given[i * 20 : i * 20 + 20], SCHEMA, i)
    fr.write_parquet(tmp_path / "other", given[:1], SCHEMA, 0)
    options = {"position": ("p", "o")}
    schema = "k string, at timestamp, p int, o long"
    other = ps.files(str(tmp_path / "other"), schema)
    made = declare(ps.files(str(tmp_path / "in"), schema, max_files_per_epoch=1), other, **options)
    found = fr.over_spark(spark, tmp_path / "c", made)
    wanted = fr.in_harness(declare(ps.files("none", schema), other, **options), {"events": given, "other": given[:1]})
    assert not fr.difference(found, wanted)
    assert sum(wanted["late"].values()) > 10


@pytest.mark.parametrize("small", [1 << 18, -1], ids=["by the driver", "by tasks"])
def test_late_record_when_its_chunk_is_spread_over_the_files_of_an_epoch_is_found(spark, tmp_path, monkeypatch, small):
    monkeypatch.setattr(late_records, "SMALL_ROWS", small)
    for i, second in enumerate([100, 50]):
        fr.write_parquet(tmp_path / "in", [{"k": "k", "at": fr.moment(second), "p": 0, "o": i}], SCHEMA, i)
    files = ps.files(str(tmp_path / "in"), "k string, at timestamp, p int, o long")
    found = fr.over_spark(spark, tmp_path / "c", declare(files, position=("p", "o")))
    assert [sum(found[name].values()) for name in ("on time", "late")] == [1, 1]


def test_epoch_with_a_late_record_when_it_is_small_takes_one_job_more_than_without(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    for i, late in enumerate([0, 0, 0, 9]):
        rows = [{"k": "k", "at": fr.moment(10 * i + at), "p": 0, "o": 0} for at in (0, 1, 2 - late)]
        fr.write_parquet(tmp_path / "in", rows, SCHEMA, i)
    count, jobs = spark._jsc.sc().dagScheduler().numTotalJobs, []
    made = declare(ps.files(str(tmp_path / "in"), "k string, at timestamp, p int, o long", max_files_per_epoch=1))
    fr.over_spark(
        spark,
        tmp_path / "c",
        made,
        drain=False,
        on_step=lambda n: jobs.append(count()) if n in ("decide", "committed") else None,
    )
    taken = [b - a for a, b in zip(jobs[::2], jobs[1::2], strict=True)]
    assert taken == [taken[0]] * 3 + [taken[0] + 1]  # the output of late records; their times have been seen
