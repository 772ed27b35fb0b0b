"""A pattern in a flow over real Spark, rescaled live and started again: what batch gives over all events."""

from __future__ import annotations

import datetime as dt
import random

import flow_runs as fr
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("kind", pa.string()), ("v", pa.int64())])
QUERY = "SELECT MAX * WHERE open AS x ; try+ AS y ; close FILTER y[v > 2] WITHIN 20 SECONDS CONSUME BY PARTITION"
UNCLOSED = "SELECT x WHERE open AS x ; close WITHIN 10 SECONDS"


def batches(n, per_file):
    """Events in time order, no two at the same time, over keys that come and go."""
    rng = random.Random(8)
    return [
        [
            {
                "k": rng.choice(["hot", f"k{i // 4}", f"k{rng.randrange(20)}"]),
                "at": fr.BEGIN + dt.timedelta(milliseconds=2000 * i + 10 * j),
                "kind": rng.choice(["open", "try", "try", "close", "other"]),
                "v": rng.randrange(10),
            }
            for j in range(per_file)
        ]
        for i in range(n)
    ]


def flow_of(folder, name):
    flow = ps.Flow("doors")
    source = ps.files(str(folder), "k string, at timestamp, kind string, v long", max_files_per_epoch=1)
    keyed = flow.source("events", source, time="at", lateness="1 second").key_by("k")
    keyed.match(QUERY, type="kind").sink(ps.memory(f"{name} found"))
    unclosed = keyed.match(UNCLOSED, type="kind", on_timeout="x")
    unclosed.sink(ps.memory(f"{name} closed"))
    unclosed.timeouts.sink(ps.memory(f"{name} left"))
    return flow


def unclosed_in(events):
    """Opens that no close follows within ten seconds, by looking."""
    for n, event in enumerate(events):
        later = (e for e in events[n + 1 :] if e["k"] == event["k"] and e["kind"] == "close")
        after = next(later, None)
        if event["kind"] == "open" and (after is None or after["at"] - event["at"] > dt.timedelta(seconds=10)):
            yield event["k"], event["at"]


@pytest.mark.soak
def test_matches_of_a_flow_that_is_rescaled_and_started_again_are_those_of_batch(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    files, name = batches(12, 40), str(tmp_path)
    (tmp_path / "in").mkdir()
    for i, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "in" / f"{i:03d}.parquet")
        fr.stamp(tmp_path / "in" / f"{i:03d}.parquet", i)
    options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "0 seconds"}
    run = flow_of(tmp_path / "in", name).start(spark, workers=2, **options)
    run.scale(workers=4)
    while run.progress["epoch"] < 5:
        assert run.active, run.exception
    run.shutdown(drain=False, timeout=600)
    run = flow_of(tmp_path / "in", name).start(spark, **options)
    assert run.progress["epoch"] < len(files) - 2, "the test wants files to be left"
    run.scale(workers=3)
    run.shutdown(drain=True, timeout=600)
    assert {len(set(run.routing(region))) for region in run.regions} == {3}

    events = [row for rows in files for row in rows]
    frame = spark.read.parquet(str(tmp_path / "in"))
    found = ps.match(frame, QUERY.replace(" WITHIN", " PARTITION BY [k] WITHIN"), order_by="at", type="kind")
    live, batch = ps.memory(f"{name} found").table().to_pylist(), found.toArrow().to_pylist()
    assert len(batch) > 20
    assert sorted(map(str, live)) == sorted(map(str, batch))
    left = ps.memory(f"{name} left").rows()
    assert sorted((r["k"], r["match_start"]) for r in left) == sorted(unclosed_in(events))
    assert len(left) > 10
