"""Files stay bounded and memory does too, however many epochs there are."""

import datetime as dt
import gc
import json
import os
from collections import Counter

import numpy as np
import psutil
import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.record import EpochRecord, RegionState
from penstock.driver.inspect import view_region
from penstock.protocol.rescale import Placement
from penstock.state import FileRef, Version
from penstock.state.recent_changes import HELD_DELTAS
from penstock.testing import Harness


def moment(second):
    return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def count(key, event, state):
    n = state.n + 1 if state else 1
    return (key, n), (n,)


def small_flow(name):
    flow = ps.Flow(name)
    events = flow.source("events", ps.files("unused", "k long, at timestamp, v long"), time="at", lateness="3 seconds")
    events.key_by("k").stateful_map(count, "k long, n long", state="n long").sink(ps.noop())
    events.key_by("k", name="windows").window(ps.tumbling("10 seconds")).aggregate(n=ps.count()).sink(ps.noop())
    return flow


def push(harness, second):
    harness.push("events", [{"k": (second * 7 + i) % 23, "at": moment(second), "v": i} for i in range(5)])


def files_below(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


def test_files_when_many_epochs_then_bounded_and_state_right(tmp_path):
    harness = Harness(small_flow("bounded"), workers=2, checkpoint=str(tmp_path))
    most, written = 0, []
    for second in range(160):
        push(harness, second)
        harness.epoch()
        most = max(most, files_below(tmp_path))
        written.append(sum(r.delta_bytes for r in harness.record.figures.regions.values()))
    # two regions × two workers × (64 deltas and 8 that a base is not made of, a base and what waits for removal), records, runs
    assert most < 4 * (64 + HELD_DELTAS + 16 + 3) + 60, most
    bases = [v.base for r in harness.record.regions.values() for v in r.versions]
    assert any(bases)
    harness.restart(forget_local_state=True)  # the state must come back from base and deltas
    push(harness, 160)
    harness.epoch()
    assert harness.record.epoch == 160
    # an epoch writes what it has changed, not what there is: as much at the end as when all keys had been seen
    assert 0 < max(written[80:]) < 1.5 * max(written[10:40]), written
    # the frontier is three seconds behind, and a record at it has not been processed
    passed = Counter((second * 7 + i) % 23 for second in range(157) for i in range(5))
    assert remembered(tmp_path, "k", "stateful_map") == {k: {"n": n} for k, n in passed.items()}
    open_windows = Counter(((second * 7 + i) % 23, second // 10) for second in range(150, 161) for i in range(5))
    kept = remembered(tmp_path, "windows", "aggregate")
    assert {k for k, _ in open_windows} == set(kept)


def remembered(checkpoint, region, operator):
    """A step's state by key, read from the files."""
    view = view_region(str(checkpoint), region)
    rows = [row for worker in range(len(view.versions)) for batch in view.rows(worker) for row in batch.to_pylist()]
    return {row["k"]: json.loads(row["state"]) for row in rows if operator in row["operator"]}


def test_removal_when_a_base_is_adopted_but_not_committed_then_it_stays(tmp_path):
    from penstock.checkpoint.housekeeping import Compaction, adopt, remove_unused

    harness = Harness(small_flow("adopted"), workers=1, checkpoint=str(tmp_path))
    for second in range(20):
        push(harness, second)
        harness.epoch()
    record, checkpoint = harness.record, Checkpoint(harness.checkpoint)
    early = record.regions["k"].versions[0]
    base = Compaction(("k", 0), early, harness._loop.settings.flow, 1).carry_out(checkpoint)
    for second in range(20, 24):
        push(harness, second)
        harness.epoch()
    committed = harness.record
    harness._loop.driver.last = adopt(committed, {("k", 0): base})
    remove_unused(checkpoint, committed)
    assert base.path.rsplit("/", 1)[-1] in checkpoint.state_files("k")
    for delta in committed.regions["k"].versions[0].deltas:
        assert delta.path.rsplit("/", 1)[-1] in checkpoint.state_files("k")
    push(harness, 24)
    harness.epoch()
    assert harness.record.regions["k"].versions[0].base == base


@pytest.mark.parametrize("replaced", [False, True])
def test_local_store_when_a_base_is_adopted_at_once_then_is_not_filled_anew(tmp_path, monkeypatch, replaced):
    from penstock.checkpoint import housekeeping
    from penstock.state import store
    from penstock.state.store import close_stores

    filled = []
    load = store._load
    monkeypatch.setattr(store, "_load", lambda *a: filled.append(a[-1]) or load(*a))
    monkeypatch.setattr(housekeeping, "should_compact", lambda version: bool(version.deltas))
    monkeypatch.setattr(housekeeping, "TURNS", 1)
    harness = Harness(small_flow("filled"), workers=2, checkpoint=str(tmp_path), lmdb=True)
    for second in range(30):
        if replaced:  # the process of the tasks, with what it holds over the stores
            close_stores(f"{tmp_path}/local")
        push(harness, second)
        harness.epoch()
    versions = [v for r in harness.record.regions.values() for v in r.versions]
    assert all(v.base is not None and len(v.deltas) <= HELD_DELTAS + 5 for v in versions)
    assert filled == [None] * 4  # two regions of two workers, when they began


def test_bases_when_several_files_are_of_one_epoch_then_have_different_names(monkeypatch):
    from penstock.checkpoint import housekeeping

    monkeypatch.setattr(housekeeping, "should_compact", lambda version: bool(version.deltas))
    came = [FileRef(f"came{n}", 10, 100, 1, f"{n}", "", "came") for n in range(3)]
    own = [FileRef(f"own{n}", n, 100, 1, f"{n}") for n in range(10, 22)]
    made = []
    for epoch in range(18, 22):
        version = Version(epoch, None, (own[0], *came, *own[1 : epoch - 9]))
        (compaction,) = housekeeping.due(record_of(epoch, version), "flow", 1)
        made.append(compaction.version)
    assert [len(version.deltas) for version in made] == [3, 4, 5, 6]
    assert len({version.version for version in made}) == 4


def test_bases_when_deltas_are_too_large_to_be_held_then_made_of_all_but_the_last_epochs(monkeypatch):
    from penstock.checkpoint import housekeeping

    monkeypatch.setattr(housekeeping, "should_compact", lambda version: True)
    sizes = {12: 5 << 20, 14: 100, 15: 100}
    deltas = tuple(FileRef(f"d{n}", n, sizes.get(n, 3 << 20), 1, f"{n}") for n in range(10, 17))
    for epoch, last in ((16, 12), (14, 12), (13, 12), (12, 10)):
        version = Version(epoch, None, tuple(d for d in deltas if d.version <= epoch))
        (compaction,) = housekeeping.due(record_of(epoch, version), "flow", 1)
        assert compaction.version.deltas[-1].version == last


def record_of(epoch, version):
    return EpochRecord(epoch, 1, regions={"k": RegionState(Placement.fresh(1), versions=[version])})


@pytest.mark.parametrize(("turns", "together"), [(16, 1), (3, 2)])
def test_workers_that_are_due_take_turns_and_none_waits_for_long(tmp_path, monkeypatch, turns, together):
    from penstock.checkpoint import housekeeping

    done = []
    carry_out = housekeeping.Compaction.carry_out
    monkeypatch.setattr(housekeeping.Compaction, "carry_out", lambda c, *a: done[-1].append(c.place) or carry_out(c, *a))
    monkeypatch.setattr(
        housekeeping, "should_compact", lambda version: len(version.deltas) > 2
    )  # more are due than have a turn
    monkeypatch.setattr(housekeeping, "TURNS", turns)
    harness = Harness(small_flow("turns"), workers=3, checkpoint=str(tmp_path))  # six places
    most = 0
    for second in range(60):
        push(harness, second)
        done.append([])
        harness.epoch()
        most = max(most, *(len(v.deltas) for r in harness.record.regions.values() for v in r.versions))
    assert max(map(len, done)) == together
    assert len({place for places in done for place in places}) == 6
    assert most <= 6 + 6 // together + 2 + HELD_DELTAS


@pytest.mark.soak
def test_memory_when_ten_thousand_epochs_then_flat(tmp_path):
    harness = Harness(small_flow("memory"), workers=2, checkpoint=str(tmp_path), lmdb=True)
    process = psutil.Process()
    sizes = []
    for second in range(10_000):
        push(harness, second)
        harness.epoch()
        if second % 1000 == 999:
            gc.collect()
            sizes.append(process.memory_info().rss)
    assert sizes[-1] < sizes[1] * 1.1, sizes


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_when_five_million_keys_are_remembered_then_is_that_of_an_epoch(tmp_path):
    flow = ps.Flow("five million")
    events = flow.source("events", ps.files("unused", "k long, v long"))
    events.key_by("k").aggregate(n=ps.count(), total=ps.sum("v")).sink(ps.noop())
    harness = Harness(flow, workers=2, checkpoint=str(tmp_path), lmdb=True)
    process = psutil.Process()
    own = []  # without the mapped files of LMDB, which the system drops when it needs the room
    for epoch in range(20):
        keys = np.random.default_rng(epoch).permutation(250_000) + epoch * 250_000
        harness.push("events", pa.table({"k": keys, "v": np.ones(len(keys), np.int64)}))
        harness.epoch()
        gc.collect()
        memory = process.memory_info()
        own.append(memory.rss - memory.shared)
    assert max(own[5:]) < own[4] + 200_000_000, own
    view = view_region(str(tmp_path), "k")
    assert sum(batch.num_rows for worker in range(2) for batch in view.rows(worker)) == 5_000_000
