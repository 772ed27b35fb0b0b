"""Keys on hold, hooks, and what a step counts: in the harness, with steps so small that much goes on hold."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from typing import ClassVar

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint import housekeeping
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.background import Background
from penstock.driver.inspect import view_region
from penstock.protocol.commands import kind_of
from penstock.protocol.rescale import ALL_AT_ONCE, Limits
from penstock.state import MemoryState
from penstock.testing import Harness
from penstock.types import TIME
from penstock.worker.held_rows import dequeue, enqueue
from penstock.worker.waiting_rows import HASH, Waiting

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STEPS = Limits(first_bytes=2_000, least_bytes=2_000, most_bytes=4_000, hold_bytes=4_000, measure_entries=500)
LARGE = "k3"


class Noted(ps.Operator):
    """Remembers `v` bytes per key and notes what it hears of; outside of state only because this is a test."""

    schema = "k string"
    heard: ClassVar[list] = []

    def on_data(self, rows, state):
        self.heard.append(("data", rows.keys.columns[0].to_pylist()))
        names = state.names(rows.keys)
        found = state.get_objects(names)
        values = rows.column("v").to_pylist()
        state.put_objects(names, [b or bytes(values[at]) for b, at in zip(found, rows.starts[:-1], strict=True)])
        return rows.emit({"k": rows.column("k")})

    def on_collect(self, keys, state):
        self.heard.append(("collect", keys.columns[0].to_pylist()))

    def on_acquire(self, keys, state):
        missing = [
            k for k, s in zip(keys.columns[0].to_pylist(), state.get_objects(state.names(keys)), strict=True) if s is None
        ]
        assert not missing, "the state is there before the operator hears of it"
        self.heard.append(("acquire", keys.columns[0].to_pylist()))

    def on_barrier(self, epoch, state):
        self.heard.append(("barrier", [epoch]))


def flow_of(step=lambda keyed: keyed.process(Noted()), lateness="1 second"):
    flow = ps.Flow("holds")
    source = flow.source("a", ps.files("none", "k string, at timestamp, v long"), time="at", lateness=lateness)
    step(source.key_by("k")).sink(ps.memory("holds"))
    return flow


def push(harness, epoch, keys=8, large=LARGE):
    at = BEGIN + dt.timedelta(seconds=2 * epoch)
    harness.push("a", [{"k": f"k{i}", "at": at, "v": 100_000 if f"k{i}" == large else 10} for i in range(keys)])


def scale(workers):
    return {"command": "scale", "region": "k", "workers": workers}


def until_held(harness, epoch=0):
    """Run epochs until the large key is on hold; gives the next epoch's number."""
    for i in range(epoch, epoch + 40):
        push(harness, i)
        control = harness.epoch(*([scale(1)] if i == epoch + 2 else [])).regions["k"].control
        if control.held:
            return i + 1
    raise AssertionError("no key was put on hold")


@pytest.mark.parametrize("merged", [False, True], ids=["as written", "compacted at once"])
def test_hooks_when_keys_move_with_and_without_a_hold_hear_of_each_key_before_its_first_record(monkeypatch, merged):
    if merged:
        monkeypatch.setattr(housekeeping, "should_compact", lambda version: bool(version.deltas))
        monkeypatch.setattr(housekeeping, "TURNS", 1)
    Noted.heard = []
    with Harness(flow_of(), workers=8, limits=STEPS) as harness:
        for epoch in range(30):
            push(harness, epoch)
            harness.epoch(*harness.copy(), *([scale(1)] if epoch == 3 else []))
        assert harness.record.regions["k"].control.goal is None
    told = {what: Counter(k for w, keys in Noted.heard if w == what for k in keys) for what in ("collect", "acquire")}
    assert told["collect"] == told["acquire"]
    assert told["collect"][LARGE] == 1
    task, both = {}, 0
    for what, keys in Noted.heard:
        if what == "barrier":
            task = {}
        for key in keys:
            assert not (what == "acquire" and "data" in task.get(key, ())), (
                f"{key} had rows before its operator heard that it came"
            )
            both += what == "data" and "acquire" in task.get(key, ())
            task.setdefault(key, []).append(what)
    assert both > 2


class Counting(ps.Operator):
    """Counts, per key that it has seen in an epoch, its barriers: writes at the end of the epoch."""

    schema = "k string, barriers long"

    def on_data(self, rows, state):
        self.names = state.names(rows.keys)
        found = state.get_objects(self.names)
        return rows.emit({"k": rows.column("k").take(pa.array(rows.starts[:-1])), "barriers": [n or 0 for n in found]})

    def on_barrier(self, epoch, state):
        names = getattr(self, "names", [])
        state.put_objects(names, [(n or 0) + 1 for n in state.get_objects(names)])


def test_what_an_operator_writes_at_the_barrier_moves_with_its_key():
    flow = flow_of(lambda keyed: keyed.process(Counting()), lateness="0 seconds")
    with Harness(flow, workers=1, limits=STEPS) as harness:
        for epoch in range(25):
            push(harness, epoch)
            harness.epoch(*harness.copy(), *([scale(8)] if epoch == 5 else []))
        assert harness.record.regions["k"].control.goal is None
    rows = next(o.sink for o in flow.plan().outputs).rows()
    for key in {r["k"] for r in rows}:
        assert [r["barriers"] for r in rows if r["k"] == key] == list(range(24)), key


def test_state_of_a_key_on_hold_when_it_is_read_is_shown_at_its_new_worker(tmp_path):
    with Harness(flow_of(), workers=8, limits=STEPS, checkpoint=str(tmp_path / "c")) as harness:
        epoch = until_held(harness)
        assert len(harness.keys("k")) == 8
        push(harness, epoch)
        harness.epoch({"command": "snapshot", "name": "held"})
        held = harness.record.regions["k"].control.held
        harness.epoch(*harness.copy())
        assert held
        assert not harness.record.regions["k"].control.held
        for snapshot in ("held", None):
            view = view_region(str(tmp_path / "c"), "k", snapshot)
            rows = [r for w in range(len(view.versions)) for b in view.rows(w) for r in b.to_pylist() if r["k"] == LARGE]
            assert [(r["worker"], len(r["state"]) > 100_000) for r in rows] == [(held[0].to, True)], snapshot


def test_queue_of_a_key_on_hold_when_it_reaches_its_bound_makes_the_next_epoch_wait_for_the_copy(tmp_path):
    with Harness(flow_of(), workers=8, limits=STEPS, checkpoint=str(tmp_path / "c")) as harness:
        epoch = until_held(harness)
        sizes = []
        for i in range(epoch, epoch + 3):
            push(harness, i)
            record = harness.epoch()
            sizes.append(record.regions["k"].control.held[0].queued)
        assert 0 < sizes[0] < sizes[1] < sizes[2] == record.figures.regions["k"].rescale.queued_bytes
        settings = harness._loop.settings
        go, waited = threading.Event(), threading.Event()
        settings.limits = Limits(queue_bytes=sizes[2])
        beside = Background(
            Checkpoint(harness.checkpoint),
            settings,
            lambda copy: go.wait(60) and copy.carry_out(Checkpoint(harness.checkpoint)),
        )
        beside.look(record)
        beside.hold_back(record)  # the bound is reached, not passed: nothing waits
        settings.limits = Limits(queue_bytes=sizes[2] - 1)
        waiting = threading.Thread(target=lambda: (beside.hold_back(record), waited.set()))
        waiting.start()
        assert not waited.wait(0.3)
        go.set()
        waiting.join(60)
        assert waited.is_set()
        assert [
            kind_of(Checkpoint(harness.checkpoint).read_command(n)) for n in Checkpoint(harness.checkpoint).control_names()
        ] == ["copied"]
        beside.close()


def epochs_that_move(harness):
    """How many epochs give something up until the region has settled."""
    moved, seen = 0, 0
    for _ in range(100):
        record = harness.epoch()
        rescale = record.figures.regions["k"].rescale or record.figures.regions["k"].last_rescale
        moved, seen = moved + (rescale.moved_bins > seen), rescale.moved_bins
        if record.regions["k"].control.goal is None:
            return moved
    raise AssertionError("still moving")


@pytest.mark.parametrize("by", ["rows", "state"])
def test_rescale_without_a_budget_moves_everything_in_one_step(by):
    with Harness(flow_of(lateness="1 second" if by == "state" else "1 day"), workers=1, limits=ALL_AT_ONCE) as harness:
        push(harness, 0, keys=3_000, large=None)
        harness.epoch()
        push(harness, 10, keys=1)
        harness.epoch()
        harness.scale("k", 2)
        assert epochs_that_move(harness) == 1


def test_step_when_most_of_what_moves_are_waiting_rows_is_bounded_by_them_too():
    limits = Limits(first_bytes=40_000, least_bytes=40_000, most_bytes=40_000, hold_bytes=40_000)
    with Harness(flow_of(lateness="1 day"), workers=1, limits=limits) as harness:
        for epoch in range(8):
            push(harness, epoch, keys=3_000, large=None)
            harness.epoch()
        harness.scale("k", 2)
        steps, before = [], 0
        while (goal := harness.epoch().regions["k"].control.goal) is not None:
            steps.append(goal.moved_bytes - before)
            before = goal.moved_bytes
        assert before > 300_000
        assert max(steps) < 2 * 40_000  # chunks of Arrow have some bytes of their own


def test_key_when_only_its_waiting_rows_are_many_is_put_on_hold_too_and_gives_each_row_once():
    limits = Limits(first_bytes=2_000, least_bytes=2_000, most_bytes=2_000, hold_bytes=20_000)
    flow = flow_of(lateness="1 hour")
    with Harness(flow, workers=1, limits=limits) as harness:
        rows = [{"k": "x", "at": BEGIN + dt.timedelta(seconds=i), "v": 1} for i in range(1_000)]
        harness.push("a", rows)
        harness.epoch()
        harness.push("a", [{"k": "y", "at": BEGIN + dt.timedelta(hours=1, seconds=60.5), "v": 1}])
        harness.epoch()  # in the middle of a chunk: some of its rows have been processed
        harness.epoch({"command": "scale", "region": "k", "workers": 2})
        harness.settle()
        key = _hashes("x")[0]
        to = 1 - harness.record.regions["k"].control.routing.worker_of(key)
        harness.epoch({"command": "move", "region": "k", "keys": [key], "worker": to})
        for _ in range(5):
            if harness.record.regions["k"].control.held:
                break
            harness.epoch()
        held = harness.record.regions["k"].control.held
        assert [h.key for h in held] == [key]
        assert held[0].bytes > 20_000
        harness.settle()
        assert harness.record.regions["k"].control.routing.worker_of(key) == to
        harness.finish()
        assert next(o.sink for o in flow.plan().outputs).rows() == [{"k": "x"}] * 1_000 + [{"k": "y"}]


def _hashes(*keys):
    import pyarrow as pa

    from penstock.routing.hashing import spark_xxhash64

    return spark_xxhash64([pa.array(keys, pa.string())]).tolist()


def test_rows_without_event_time_that_are_queued_in_two_regions_keep_the_order_in_which_they_came_into_the_flow():
    state = MemoryState()
    columns = pa.schema([("v", pa.int64()), (TIME, pa.int64())])
    batch = pa.record_batch([pa.array([1, 2, 3]), pa.array([0, -1, -4])], columns)
    enqueue(state, 0, 5, {7: batch})
    assert [rows.to_pydict() for rows in dequeue(state, 0, 8, [7], in_turn=True)] == [{"v": [1, 2, 3], TIME: [-3, -4, -7]}]
    assert dequeue(state, 0, 8, [7], in_turn=True) == []


def test_rows_that_an_older_penstock_left_waiting_in_wider_types_come_in_those_of_now():
    columns = [("k", pa.string()), (TIME, pa.int64()), (HASH, pa.int64())]
    state = MemoryState()
    before = Waiting(state, 0, pa.schema([("mask", pa.int64()), *columns]))
    before.keep(1, pa.record_batch({"mask": [5, 6], "k": ["a", "b"], TIME: [20, 10], HASH: [1, 2]}))
    now = pa.schema([("mask", pa.int8()), *columns])
    (found,) = Waiting(state, 0, now).release(0, 15)
    assert found.schema == now
    assert found.to_pylist() == [{"mask": 6, "k": "b", TIME: 10, HASH: 2}]
