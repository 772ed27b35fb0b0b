"""Each source of an epoch is read by its own branch of Spark's plan; where Spark does not give the plan, the rows are the same.

Branches that read files are planned together with what follows.
"""

from __future__ import annotations

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps
from penstock.spark.engine import SparkBackend
from penstock.spark.internals import plans as internal_plans
from penstock.spark.sources import slices
from penstock.spark.sources.slices import Slices

pytestmark = pytest.mark.spark

NESTED = pa.schema([("k", pa.int64()), ("a b", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])))])
FLAT = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def run(spark, folder, name):
    """Sources of several kinds: files, a frame with columns that are never null, and one that is a union itself."""
    sinks = {n: ps.memory(f"{name}.{n}") for n in ("files", "frame", "union")}
    frame = spark.readStream.schema("k long, v double").parquet(str(folder / "flat"))
    flow = ps.Flow(name)
    flow.source("files", ps.files(str(folder / "nested"), "k long, `a b` array<struct<x:int,y:string>>")).sink(sinks["files"])
    flow.source("frame", frame.selectExpr("coalesce(k, 0L) as k", "struct(1 as one, v) as s")).sink(sinks["frame"])
    flow.source("union", frame.union(frame).selectExpr("k", "v is null as lacks")).sink(sinks["union"])
    flow.start(spark, checkpoint=str(folder / name), trigger="available_now").await_termination(600)
    return {n: sorted(map(str, sink.rows())) for n, sink in sinks.items()}


def test_sources_are_read_by_branches_of_their_own(spark, tmp_path, monkeypatch):
    fr.write_parquet(tmp_path / "nested", [{"k": 1, "a b": [{"x": 1, "y": "é"}, None]}, {"k": None, "a b": None}], NESTED, 0)
    fr.write_parquet(tmp_path / "flat", [{"k": 1, "v": 0.5}, {"k": None, "v": None}], FLAT, 0)
    cut, branches = slices.branches_of, []
    files_of, files = Slices.files, []
    monkeypatch.setattr(slices, "branches_of", lambda *given: branches.append(cut(*given)) or branches[-1])
    monkeypatch.setattr(Slices, "files", lambda *given: files.append(files_of(*given)) or files[-1])
    found = run(spark, tmp_path, "branches")
    assert {len(b) for b in branches} == {4}  # that of the control log, and one for each source
    # None of the other sources' files; and none in an epoch that the control log alone brings about.
    assert sorted({tuple(f.uri.partition(str(tmp_path))[2] for f in known.files) for known in files}) == [
        (),
        ("/nested/f000.parquet",),
    ]
    files.clear()
    monkeypatch.setattr(slices, "branches_of", lambda *_: [])
    assert run(spark, tmp_path, "whole") == found
    assert files
    assert all(known is None for known in files)
    assert [len(rows) for rows in found.values()] == [2, 2, 4]


def test_files_are_read_by_the_columns_that_are_needed(spark, tmp_path, monkeypatch):
    fr.write_parquet(tmp_path / "flat", [{"k": k, "v": k / 2} for k in range(4)], FLAT, 0)
    given, plans = Slices.rows, []

    def rows(*arguments):
        frame = given(*arguments)
        plans.append(frame.select("k")._jdf.queryExecution().executedPlan().toString())
        return frame

    def run(name):
        sink = ps.memory(f"{name} {tmp_path}")
        flow = ps.Flow(name)
        flow.source("flat", ps.files(str(tmp_path / "flat"), "k long, v double")).where("v > 0.5").sink(sink)
        flow.start(spark, checkpoint=str(tmp_path / name), trigger="available_now").await_termination(600)
        return sorted((row["k"], row["v"]) for row in sink.rows())

    monkeypatch.setattr(Slices, "rows", rows)
    assert run("batch") == [(2, 1.0), (3, 1.5)]
    assert any("ReadSchema: struct<k:bigint" in plan for plan in plans)
    assert not any("v:double" in plan for plan in plans)
    monkeypatch.setattr(internal_plans.Branch, "as_batch", lambda _: None)
    plans.clear()
    assert run("stream") == [(2, 1.0), (3, 1.5)]
    assert not any("ReadSchema" in plan for plan in plans)


def test_positions_are_computed_of_the_rows_that_a_filter_leaves(spark, tmp_path, monkeypatch):
    fr.write_parquet(tmp_path / "flat", [{"k": k, "v": k / 2} for k in range(4)], FLAT, 0)
    given, plans = SparkBackend.region, []

    def region(*arguments):
        frame = given(*arguments)
        plans.append(str(frame._jdf.queryExecution().optimizedPlan().toString()))
        return frame

    monkeypatch.setattr(SparkBackend, "region", region)
    flow, sink = ps.Flow("filtered"), ps.memory(f"filtered {tmp_path}")
    events = flow.source("flat", ps.files(str(tmp_path / "flat"), "k long, v double")).where("v > 0.5")
    events.key_by("k").stateful_map(lambda k, e, s: (e.v, s), "v double", "n long").sink(sink)
    flow.start(spark, checkpoint=str(tmp_path / "c"), trigger="available_now").await_termination(600)
    assert sorted(row["v"] for row in sink.rows()) == [1.0, 1.5]
    steps = plans[0].split("\n")
    offset, filtered, numbered = (
        next(i for i, s in enumerate(steps) if word in s) for word in ("shiftleft", "Filter", "AS __ps_file_row")
    )
    assert offset < filtered < numbered  # what comes first is done last; a filter below the numbers would change them
