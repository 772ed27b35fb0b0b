"""What the harness calls, and how often: a step of a region once per epoch, hooks at their moment."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import ClassVar

import pytest

import penstock as ps
from penstock.protocol.rescale import Limits
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def rows(epoch, keys=12):
    return [{"k": f"k{i}", "at": BEGIN + dt.timedelta(seconds=10 * epoch + i / 100), "v": 100 * epoch + i} for i in range(keys)]


@pytest.mark.parametrize("sinks", [1, 2, 3])
def test_function_when_several_sinks_hang_on_its_step_is_called_once_per_record(sinks):
    called = Counter()

    def noted(key, event, state):
        called[event.v] += 1
        return (key, event.v), (state or 0) + 1

    flow = ps.Flow("once")
    keyed = flow.source("a", ps.files("none", "k string, at timestamp, v long"), time="at").key_by("k")
    mapped = keyed.stateful_map(noted, "k string, v long")
    outs = [ps.memory(f"once.{i}") for i in range(sinks)]
    for out, step in zip(outs, (mapped, mapped.where("v % 2 = 0"), mapped.local().select("v")), strict=False):
        step.sink(out)
    if sinks == 3:  # and another step of the region, and a region behind it
        keyed.deduplicate("v").sink(ps.memory("once.beside"))
        mapped.local().key_by("v", name="behind").aggregate(n=ps.count()).sink(ps.memory("once.behind"))
    with Harness(flow, workers=2) as harness:
        for epoch in range(3):
            harness.push("a", rows(epoch))
            harness.epoch()
        harness.finish()
    wanted = {r["v"] for epoch in range(3) for r in rows(epoch)}
    assert called == dict.fromkeys(wanted, 1)
    for out, kept in zip(outs, (wanted, {v for v in wanted if v % 2 == 0}, wanted), strict=False):
        assert sorted(r["v"] for r in out.rows()) == sorted(kept)


class Heard(ps.Operator):
    """Notes its hooks; outside of its state, because this is a test."""

    ordered = False
    notes: ClassVar[list] = []

    def on_data(self, rows, state):
        self.notes.append(("data", len(rows)))
        state.put_objects(state.names(rows.keys), ["there"] * len(rows.keys))

    def on_interrogate(self, bins, state):
        self.notes.append(("interrogate", len(bins)))

    def on_barrier(self, epoch, state):
        self.notes.append(("barrier", epoch))

    def on_shutdown(self, state):
        self.notes.append(("shutdown", len(state.scan(b""))))


@pytest.fixture
def heard():
    """A harness around the operator, one worker."""
    Heard.notes = []
    flow = ps.Flow("heard")
    flow.source("a", ps.files("none", "k string, at timestamp, v long"), time="at").key_by("k").process(Heard()).sink(ps.noop())
    with Harness(flow, workers=1, limits=Limits(measure_entries=5)) as harness:
        harness.push("a", rows(0))
        harness.epoch()
        yield harness


def test_shutdown_hook_when_the_flow_ends_is_called_once_and_last(heard):
    heard.push("a", rows(1))
    heard.epoch("stop")  # a stop is no end: the flow may go on
    assert "shutdown" not in dict(Heard.notes)
    heard.restart()
    heard.finish()
    assert [what for what, _ in Heard.notes].count("shutdown") == 1
    assert Heard.notes[-2:] == [("barrier", 2), ("shutdown", 12)], "its state is still there"


def test_interrogate_hook_when_a_region_is_measured_is_called_each_time_with_the_bins_still_to_measure(heard):
    heard.scale(None, 3)
    asked = [n for what, n in Heard.notes if what == "interrogate"]
    assert asked == [4096]
    heard.epoch()
    heard.epoch()
    asked = [n for what, n in Heard.notes if what == "interrogate"]
    assert 4096 == asked[0] > asked[1] > asked[2], "5 of 12 keys are measured per epoch"
    heard.settle()
    assert [n for what, n in Heard.notes if what == "interrogate"] == asked
    moved = len(Heard.notes)
    heard.push("a", rows(1))
    heard.epoch()
    assert {what for what, _ in Heard.notes[moved:]} == {"data", "barrier"}
