"""A run is opened in process as it is over Spark: what production refuses, a test refuses."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from changing import Reader

import penstock as ps
from penstock.errors import CheckpointError, FencedError, SinkError
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


def test_harness_on_a_copy_of_a_checkpoint_when_the_other_runs_then_fences_it(tmp_path):
    """Both would give their run the same number, and each would take the other's epochs for its own."""
    run_once(tmp_path)
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    with Harness(flow_of(tmp_path), checkpoint=str(tmp_path / "c")) as one:
        with Harness(flow_of(tmp_path), checkpoint=str(tmp_path / "copy")) as other:
            other.push("s", [{"k": "a", "v": 1}])
            assert other.epoch().epoch == 1
        one.push("s", [{"k": "b", "v": 1}])
        with pytest.raises(FencedError, match=r"Run 2 of flow .* may not write .* because run 3 of flow .* owns it now"):
            one.epoch()


def test_harness_on_a_copy_of_a_checkpoint_when_both_start_at_once_then_the_later_is_refused(tmp_path):
    run_once(tmp_path)
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    flow, opened = flow_of(tmp_path), []
    sink = flow.plan().outputs[0].sink
    plain = type(sink).held

    def held(self, output):
        found = plain(self, output)
        patch.undo()  # the other one starts between the look at the sink and the claim
        opened.append(Harness(flow_of(tmp_path), checkpoint=str(tmp_path / "c")))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sink), "held", held)
        with pytest.raises(FencedError, match=r"Run 2 may not write .* because another run 2 of the same flow has claimed it"):
            Harness(flow, checkpoint=str(tmp_path / "copy"))
    with opened[0] as harness:
        assert harness.epoch().epoch == 1
