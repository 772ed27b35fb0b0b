"""The audit over Spark: in tasks, before anything of the epoch is stored."""

from __future__ import annotations

import datetime as dt
import json
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.errors import AuditError

pytestmark = pytest.mark.spark
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SCHEMA = "k string, at timestamp, v long, x double"
WORKERS = 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for n in range(3):
        rows = [
            {
                "k": f"k{i % 11}",
                "at": f"{BEGIN + dt.timedelta(minutes=10 * n, seconds=i):%Y-%m-%d %H:%M:%S}",
                "v": i,
                "x": 0.1 * i,
            }
            for i in range(200)
        ]
        (tmp_path / "in" / f"{n}.json").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def total(key, event, state):
    n = (state or 0) + event.v
    return (key, float(n)), n


def by_chance(key, event, state):
    return (key, random.random()), None


def by_set(batch):
    found = [max({f"{k}-{i}" for i in range(50)}, key=len) for k in batch.column("k").to_pylist()]
    return batch.set_column(0, "k", pa.array(found))


def doubled(batch):
    return batch.set_column(2, "v", pc.multiply(batch.column("v"), 2))


def run(spark, folder, declare, checkpoint="ckpt", **options):
    flow = ps.Flow("audited over spark")
    source = flow.source("a", ps.files(str(folder / "in"), SCHEMA, "json", max_files_per_epoch=1), time="at")
    sinks = [ps.memory(f"{folder}/{checkpoint}/{i}") for i in range(2)]
    for made, sink in zip(declare(source), sinks, strict=True):
        made.sink(sink)
    run = flow.start(spark, checkpoint=str(folder / checkpoint), workers=WORKERS, trigger="available_now", **options)
    try:
        run.await_termination()
    finally:
        run.shutdown(drain=False)
    return [sorted(map(repr, sink.rows())) for sink in sinks]


def good(source):
    stream = source.map_batches(doubled, SCHEMA)
    keyed = stream.key_by("k")
    yield keyed.stateful_map(total, "k string, y double")
    yield (
        stream.key_by("k", name="windows")
        .window(ps.tumbling("1 minute"))
        .aggregate(n=ps.count(), x=ps.sum("v"), m=ps.collect("x"))
    )


def test_flow_when_audited_over_spark_gives_the_same(spark, folder):
    first = run(spark, folder, good, "once")
    assert first[0]
    assert run(spark, folder, good, "twice", audit=True) == first


def test_function_of_a_region_over_spark_is_named_before_another_output_is_stored(spark, folder):
    def bad(source):
        yield source.select("k", "v")
        yield source.key_by("k").stateful_map(by_chance, "k string, y double")

    with pytest.raises(
        AuditError, match=r"epoch 0, region 'k': stateful_map\(by_chance\) is .* for key 'k\d+' at a: 0.json row \d+ first"
    ):
        run(spark, folder, bad, audit=True)
    assert not ps.memory(f"{folder}/ckpt/0").rows()


def test_function_over_frames_is_named_with_its_record_and_only_if_it_is_not_deterministic(spark, folder):
    def frames(fn):
        def declare(source):
            yield source.transform(fn, schema="k string, v long, x double")
            yield source.select("k", "v")

        return declare

    def plain(frame):
        hidden = [name for name in frame.columns if name.startswith("__ps")]
        return frame.select("k", "v", F.lit(float("nan")).alias("x"), *hidden)

    def drawn(frame):
        return plain(frame).withColumn("x", F.rand())

    assert run(spark, folder, frames(plain), "plain", audit=True)[0]
    with pytest.raises(
        AuditError, match=r"transform\(drawn\) is not .* for the record at a: 0.json row 1 first {.*} and then {"
    ):
        run(spark, folder, frames(drawn), audit=True)
    assert not ps.memory(f"{folder}/ckpt/1").rows()


def test_stateless_function_over_spark_is_named_with_its_record(spark, folder):
    def bad(source):
        yield source.map_batches(by_set, SCHEMA)
        yield source.select("k", "v")

    with pytest.raises(AuditError, match=r"map_batches\(by_set\) is not .* for the record at a: 0.json row 1 first"):
        run(spark, folder, bad, audit=True)
    assert not ps.memory(f"{folder}/ckpt/1").rows()
