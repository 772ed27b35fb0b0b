"""An operator that penstock does not know: its class and what it says of itself are all that is added."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.driver.compile import compile_flow
from penstock.errors import DeclarationError
from penstock.operators.base import Partials
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
FILES = ps.files("none", "k string, at timestamp, lane long, v long, note string")
WANTED = {("a", 1): 7, ("a", 2): 3, ("b", 1): 4}


@dataclass
class Peak(ps.Operator):
    """The greatest value of a column per key and lane, after each epoch in which one grew."""

    lane: str
    column: str
    ordered = False
    updates = True
    reads_only = True

    def __post_init__(self):
        self.output_key = (self.lane,)

    def reads(self):
        return [self.lane, self.column]

    def output_schema(self, inputs, keys):
        return pa.schema([*keys, inputs[0].field(self.lane), pa.field("peak", pa.int64())])

    def partials(self, source):
        return Partials((f"max({self.column})",), self.lane)

    def on_data(self, rows, state):
        return self._keep(rows.keys, rows.group, rows.column(self.lane), rows.column(self.column), state)

    def on_partials(self, batch, keys, group, state):
        at = len(self.context.codec.schema)
        return self._keep(keys, group, batch.column(at), batch.column(at + 1), state)

    def _keep(self, keys, group, lanes, values, state):
        peaks = {}
        for at, lane, value in zip(group.tolist(), lanes.to_pylist(), values.to_pylist(), strict=True):
            peaks[at, lane] = max(value, peaks.get((at, lane), value))
        which = np.array([at for at, _ in peaks])
        names = state.names(keys, which, [str(lane).encode() for _, lane in peaks])
        best = [max(v, old or v) for v, old in zip(peaks.values(), state.get_objects(names), strict=True)]
        state.put_objects(names, best)
        data = [*(c.take(pa.array(which)) for c in keys.columns), pa.array([lane for _, lane in peaks]), pa.array(best)]
        times = np.zeros(len(best), np.int64)
        return state.emit(
            pa.RecordBatch.from_arrays(data, schema=self.context.output), keys, times, which, np.arange(len(best))
        )


def peaks(sink, files=FILES):
    flow = ps.Flow("peaks")
    flow.source("a", files, time="at").key_by("k").process(Peak("lane", "v")).sink(sink)
    return flow


def rows(*given):
    return [{"k": k, "at": BEGIN, "lane": lane, "v": v, "note": "left behind"} for k, lane, v in given]


def found(out):
    return {(r["k"], r["lane"]): r["peak"] for r in out.rows()}


def test_operator_from_outside_when_run_in_process_keeps_its_state_through_a_rescale():
    out = ps.memory("outside.peaks")
    with Harness(peaks(out), workers=2) as harness:
        harness.push("a", rows(("a", 1, 7), ("a", 2, 1), ("b", 1, 2)))
        harness.epoch()
        harness.scale(None, 3)
        harness.push("a", rows(("a", 1, 5), ("a", 2, 3), ("b", 1, 4)))
        harness.finish()
    assert found(out) == WANTED


def test_operator_that_reads_some_columns_is_sent_no_others():
    plan = peaks(ps.memory("outside.sent")).plan()
    [region] = compile_flow(plan, lambda node, _: node.schema, lambda *_: None).regions.values()
    assert region.spec.ports[0].schema.names == ["k", "lane", "v"]


def test_sink_when_its_key_is_not_the_one_that_the_operator_names_is_refused():
    with pytest.raises(DeclarationError, match=r"lane"):
        peaks(ps.sql("sqlite:///none.db", table="peaks", mode="upsert", key=["k"]))


def test_operator_with_partial_results_gets_one_row_per_key_and_lane():
    plan = peaks(ps.memory("outside.partials")).plan()
    offered = []

    def partial_schema(region, partials, source):
        offered.append(partials)
        return pa.schema([("k", pa.string()), ("__ps_pane", pa.int64()), ("__ps_a0", pa.int64())])

    [region] = compile_flow(plan, lambda node, _: node.schema, partial_schema).regions.values()
    assert offered == [Partials(("max(v)",), "lane")]
    assert region.spec.ports[0].partial_of == 0


def test_operators_whose_parts_merge_are_those_that_aggregate():
    flow = ps.Flow("parts")
    keyed = flow.source("a", FILES, time="at").key_by("k")
    keyed.window(ps.session("1 hour")).aggregate(n=ps.count()).sink(ps.noop())
    keyed.window(ps.tumbling("1 hour")).aggregate(n=ps.first("v"), m=ps.quantile("v", 0.5)).sink(ps.noop())
    keyed.aggregate(n=ps.count(), name="running").sink(ps.noop())
    keyed.stateful_map(lambda k, e, s: (None, s), "n long", name="map").deduplicate("n").sink(ps.noop())
    keyed.process(Peak("lane", "v"), name="peak").sink(ps.noop())
    [region] = flow.plan().regions
    merging = {region.step_name(i) for i, step in enumerate(region.steps) if step.operator.mergeable}
    assert merging == {"session aggregate", "aggregate", "running"}
