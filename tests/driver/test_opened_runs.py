"""A run is opened in process as it is over Spark: what production refuses, a test refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest
from changing import Reader

import penstock as ps
from penstock.errors import CheckpointError, SinkError
from penstock.testing import Harness

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def flow_of(folder, name="opened"):
    flow = ps.Flow(name)
    flow.source("s", Reader(SCHEMA)).key_by("k").aggregate(n=ps.count()).sink(
        ps.sql(f"sqlite:///{folder / 'out.db'}", "totals", mode="upsert", key=["k"]), name="out"
    )
    return flow


def run_once(folder):
    with Harness(flow_of(folder), checkpoint=str(folder / "c")) as harness:
        harness.push("s", [{"k": "a", "v": 1}])
        return harness.epoch().epoch


def test_harness_when_a_durable_sink_has_lost_what_it_was_given_refuses_to_start(tmp_path):
    assert run_once(tmp_path) == 0
    (tmp_path / "out.db").unlink()
    with pytest.raises(SinkError, match=r"Output 'out' was given the rows of epoch 0, but its sink .* holds nothing; restore"):
        run_once(tmp_path)


def test_harness_on_the_checkpoint_of_another_flow_is_refused(tmp_path):
    run_once(tmp_path)
    with pytest.raises(CheckpointError, match="belongs to flow 'opened', not 'other'; use another folder"):
        Harness(flow_of(tmp_path, "other"), checkpoint=str(tmp_path / "c"))
