"""A hot key gets a worker of its own over real Spark, and what the sinks hold is what it would be anyway."""

from __future__ import annotations

import random
from collections import Counter

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
FILES, ROWS, WORKERS = 14, 1_200, 3


def numbered(key, event, state):
    n = (state or 0) + 1
    return (key, n, event.v), n


def test_key_when_it_has_half_of_the_rows_is_isolated_live_and_rows_are_the_same(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    dice = random.Random(3)
    keys = []
    for file in range(FILES):
        rows = [{"k": "hot" if dice.random() < 0.5 else f"k{dice.randrange(200)}", "v": file * ROWS + i} for i in range(ROWS)]
        keys += [(r["k"], r["v"]) for r in rows]
        fr.write_parquet(tmp_path / "in", rows, SCHEMA, file)
    flow = ps.Flow("isolated")
    source = flow.source("s", ps.files(str(tmp_path / "in"), "k string, v long", max_files_per_epoch=1))
    out = ps.memory("isolated over spark")
    keyed = source.key_by("k", workers=WORKERS, distribute=ps.Isolate(rows=300))
    keyed.stateful_map(numbered, "k string, n long, v long").sink(out, name="numbered")
    run = flow.start(spark, checkpoint=tmp_path / "checkpoint", trigger="available_now", drain=False)
    assert run.await_termination(300)
    assert sorted((r["k"], r["v"]) for r in out.rows()) == sorted(keys)
    assert Counter(r["k"] for r in out.rows()) == {r["k"]: r["n"] for r in sorted(out.rows(), key=lambda r: r["n"])}
    region = run.regions["k"]
    hot = region["hot_keys"][0]
    assert (region["strategy"], region["pinned_keys"]) == ("Isolate(above=0.5, rows=300)", 1)
    assert (hot["key"], hot["isolated"], round(hot["share"], 1)) == ("hot", True, 0.5)
    assert hot["worker"] not in run.routing("k")
    assert region["worker_rows"][hot["worker"]] == round(hot["share"] * ROWS)
