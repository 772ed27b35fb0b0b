"""An epoch that is run again obeys the commands of its first attempt; a flow that is stopped in a rescale goes on with it."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.commands import Commander
from penstock.driver.inspect import view_region
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=2_000, least_bytes=2_000, most_bytes=4_000, hold_bytes=4_000, measure_entries=20)


def counted(key, event, state):
    n, total = state or (0, 0)
    state = n + 1, total + event.v
    return (key, *state), state


def flow_of(out):
    flow = ps.Flow("again")
    events = flow.source("events", ps.files("none", "k long, at timestamp, v long"), time="at", lateness="2 seconds")
    keyed = events.key_by("k")
    keyed.stateful_map(counted, "k long, n long, total long").sink(out("counted"), name="counted")
    windows = keyed.window(ps.tumbling("10 seconds")).aggregate(n=ps.count())
    windows.sink(out("windows"), name="windows")
    windows.local().key_by("n", name="second").aggregate(windows=ps.count()).sink(out("second"), name="second")
    return flow


class Outs:
    """Memory sinks by output name."""

    def __init__(self, prefix="again"):
        self.prefix, self.sinks = prefix, {}

    def __call__(self, name):
        self.sinks[name] = ps.memory(f"{self.prefix}.{name}")
        return self.sinks[name]

    def rows(self):
        return {name: sorted(map(repr, sink.rows())) for name, sink in self.sinks.items()}


def push(harness, epoch):
    at = BEGIN + dt.timedelta(seconds=2 * epoch)
    harness.push("events", [{"k": (7 * epoch + i) % 90, "at": at, "v": i} for i in range(40)])


@pytest.fixture(scope="module")
def calm():
    """What the sinks hold if nobody commands anything."""
    outs = Outs()
    with Harness(flow_of(outs), workers=2, limits=STEPS) as harness:
        for epoch in range(20):
            push(harness, epoch)
            harness.epoch()
        harness.finish()
    return outs.rows()


def state_of(harness, region):
    """Its state, wherever it is."""
    view = view_region(harness.checkpoint, region)
    rows = (row for w in range(len(view.versions)) for batch in view.rows(w) for row in batch.to_pylist())
    return sorted(repr({n: v for n, v in row.items() if n != "worker"}) for row in rows)


@pytest.mark.parametrize("step", ["compute counted", "during counted", "stored second", "commit"])
@pytest.mark.parametrize("forget", [False, True], ids=["warm", "cold"])
def test_command_when_it_comes_between_a_crash_and_the_restart_waits_for_the_next_epoch(calm, tmp_path, step, forget):
    armed = []

    def before(name):
        if name == step and armed:
            armed.clear()
            raise Crash

    outs = Outs()
    with Harness(flow_of(outs), workers=2, limits=STEPS, on_step=before, checkpoint=str(tmp_path / "c")) as harness:
        commander = Commander(Checkpoint(str(tmp_path / "c")))
        for epoch in range(20):
            push(harness, epoch)
            if epoch == 5:
                first = commander.scale("k", 4)
                armed.append(step)
                with pytest.raises(Crash):
                    harness.epoch()
                second = commander.scale("k", 3)
                harness.restart(forget_local_state=forget)
                record = harness.resume()
                assert (record.epoch, record.regions["k"].control.goal.workers) == (5, 4)
                assert first.name in record.control
                assert second.name not in record.control
            else:
                record = harness.epoch()
            if epoch == 6:
                assert record.regions["k"].control.goal.workers == 3
                assert second.name in record.control
        harness.settle()
        assert {n: r.workers for n, r in harness.record.regions.items()} == {"k": 3, "second": 2}
        harness.finish()
    assert not armed
    assert outs.rows() == calm


def test_rescale_when_the_flow_is_stopped_at_once_in_every_epoch_of_it_goes_on_to_its_end(calm):
    outs, stops = Outs(), []
    with Harness(flow_of(outs), workers=2, limits=STEPS) as harness, Harness(flow_of(Outs("other")), workers=2) as other:
        for epoch in range(20):
            push(harness, epoch)
            push(other, epoch)
            other.epoch()
            under_way = harness.record.epoch >= 0 and harness.record.regions["k"].control.goal is not None
            asked = [{"command": "scale", "workers": 5}] if epoch == 4 else []
            record = harness.epoch(*asked, *harness.copy(), *(["stop"] if under_way else []))
            assert record.stopped == under_way
            if under_way:
                before = record.to_bytes()
                stops.append(str(record.regions["k"].control.phase))
                harness.restart(forget_local_state=epoch % 2 == 0)  # another process
                assert harness.record.to_bytes() == before, "a start does not change where the rescale is"
        assert set(stops) >= {"interrogate", "move"}
        assert len(stops) > 3
        harness.settle()
        assert {n: r.workers for n, r in harness.record.regions.items()} == {"k": 5, "second": 5}
        assert state_of(harness, "k") == state_of(other, "k")
        harness.finish()
    assert outs.rows() == calm
