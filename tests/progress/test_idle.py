"""Partitions and whole sources that fall silent do not hold back the others, if they were declared so."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest

import penstock as ps
from penstock.testing import Crash, Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Watched:
    """A harness over a flow of some sources, whose rows come out in the order of time. Seconds are values."""

    def __init__(self, folder, *sources, apart=False, idle_after="5 seconds", **options):
        flow, self.outs, self.late = ps.Flow("idle"), {}, ps.memory(f"{folder} late")
        streams = [
            flow.source(s, ps.files("none", "at timestamp, v long"), time="at", idle_after=idle_after, lateness="2 seconds")
            for s in sources
        ]
        for i, stream in enumerate(streams if apart else [streams[0].union(*streams[1:])]):
            out = self.outs[i] = ps.memory(f"{folder} {i}")
            stream.key_by("v % 1 AS k", name=f"r{i}").stateful_map(lambda _, e, s: ((e.v,), s), "v long").sink(
                out, name=f"o{i}"
            )
        streams[0].late.sink(self.late, name="late")
        self.harness = Harness(flow, **options)

    def epoch(self, seconds=1, **seen):
        """One epoch, so much clock time after the one before; by source or `source_partition` the times that came."""
        for name, times in seen.items():
            source, _, partition = name.partition("_")
            rows = [{"at": BEGIN + dt.timedelta(seconds=t), "v": t} for t in times]
            self.harness.push(source, rows, partition or 0)
        self.harness.epoch(advance_us=int(seconds * 1e6))
        return self.values()

    def values(self, out=0):
        return sorted(r["v"] for r in self.outs[out].rows())


def test_partition_when_it_is_silent_for_long_does_not_hold_back_the_others(tmp_path):
    flow = Watched(tmp_path, "a")
    assert flow.epoch(a_0=[1, 20], a_1=[2, 10]) == [1, 2]
    assert flow.epoch(5, a_0=[30]) == [1, 2]
    assert flow.epoch(1, a_0=[40]) == [1, 2, 10, 20, 30]
    assert flow.epoch(1, a_1=[37, 38]) == [1, 2, 10, 20, 30]  # it is back: 37 is late, 38 is where the frontier is
    assert [r["v"] for r in flow.late.rows()] == [37]
    assert flow.epoch(1, a_0=[60]) == [1, 2, 10, 20, 30]
    assert flow.epoch(1, a_1=[61]) == [1, 2, 10, 20, 30, 38, 40]


def test_source_when_it_is_silent_for_long_does_not_hold_back_another(tmp_path):
    flow = Watched(tmp_path, "a", "b")
    assert flow.epoch(a=[1, 10], b=[1, 3]) == []
    assert flow.epoch(5, b=[20, 25]) == [1, 1, 3]
    assert flow.epoch(1, b=[30]) == [1, 1, 3, 10, 20, 25]
    assert flow.epoch(1, a=[27, 28], b=[50]) == [1, 1, 3, 10, 20, 25]
    assert [r["v"] for r in flow.late.rows()] == [27]
    assert flow.epoch(1, a=[52]) == [1, 1, 3, 10, 20, 25, 28, 30]


def test_source_when_nothing_ever_came_from_it_is_idle_in_the_end(tmp_path):
    flow = Watched(tmp_path, "a", "b")
    assert flow.epoch(b=[1, 10]) == []
    assert flow.epoch(5, b=[20]) == []
    assert flow.epoch(1, b=[21]) == [1, 10]
    flow.epoch(1, a=[3, 19])
    assert [r["v"] for r in flow.late.rows()] == [3]
    flow.harness.finish()
    assert flow.values() == [1, 10, 19, 20, 21]


def test_frontier_when_all_are_silent_is_that_of_the_foremost(tmp_path):
    flow = Watched(tmp_path, "a", "b")
    assert flow.epoch(a_0=[1, 10], a_1=[5], b=[2]) == []
    assert flow.epoch(4, b=[20]) == [1, 2]
    assert flow.epoch(6) == [1, 2, 5, 10]


def test_source_when_it_is_not_declared_so_is_never_idle(tmp_path):
    flow = Watched(tmp_path, "a", "b", idle_after=None)
    flow.epoch(a=[1, 10])
    assert flow.epoch(3600, a=[20]) == []


def test_source_when_it_is_silent_and_alone_in_its_region_stays_where_it_is(tmp_path):
    flow = Watched(tmp_path, "a", "b", apart=True)
    flow.epoch(a=[1, 10], b=[1, 10])
    flow.epoch(6, b=[100])
    flow.epoch(1, a=[9])
    assert flow.values(0) == [1]
    assert flow.values(1) == [1, 10]
    flow.harness.finish()
    assert flow.values(0) == [1, 9, 10]  # not late


@pytest.mark.parametrize("step", ["decide", "commit"])
def test_idleness_when_an_epoch_runs_again_later_is_what_it_was(tmp_path, step):
    crashed = []

    def before(name):
        if name == step and flow.harness.record.epoch == 0 and not crashed:
            crashed.append(name)
            raise Crash(name)

    flow = Watched(tmp_path, "a", "b", on_step=before)
    flow.epoch(a=[1, 10], b=[1, 3])
    with contextlib.suppress(Crash):
        flow.epoch(4, b=[20])
    assert crashed
    flow.epoch(100, a=[9, 30], b=[30])
    assert [r["v"] for r in flow.late.rows()] == ([] if step == "commit" else [9])  # late if it came when already idle


@pytest.mark.parametrize("idle_after", [None, "5 seconds"])
def test_partition_that_was_idle_and_is_not_by_other_code_or_another_clock_stays_late_behind_the_frontier(tmp_path, idle_after):
    first = Watched(tmp_path, "a", checkpoint=str(tmp_path / "c"))
    first.epoch(a_0=[1], a_1=[1])
    first.epoch(6, a_1=[50])
    second = Watched(tmp_path, "a", checkpoint=str(tmp_path / "c"), idle_after=idle_after)  # its clock begins anew
    second.epoch(1, a_1=[51])
    second.epoch(1, a_0=[20, 52])
    second.harness.finish()
    assert [r["v"] for r in second.late.rows()] == [20]
    assert second.values() == [1, 1, 50, 51, 52]
