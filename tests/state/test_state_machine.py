"""Everything that can happen to a worker's state between epochs, against a plain dict."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.state import LocalStore, MemoryState, Metadata, Version, compact, iterate, recent_changes, write_file
from penstock.types import MAX_TIME, MIN_TIME

KEYS = [bytes([0, b, op]) + tail for b in range(3) for op in (1, 2) for tail in (b"", b"a", b"\xff", b"ab")]
TIMES = [MIN_TIME, -5, 0, 7, 256, MAX_TIME - 1, MAX_TIME]
key, time = st.sampled_from(KEYS), st.sampled_from(TIMES)
put = st.tuples(st.just("put"), st.lists(st.tuples(key, st.binary(max_size=3), time), min_size=1, max_size=6), st.booleans())
delete = st.tuples(st.just("delete"), st.lists(key, min_size=1, max_size=4), st.none())
read = st.tuples(st.just("read"), key, time)
work = st.lists(st.one_of(put, delete, read), max_size=6)


def due(model, operator, upto):
    return [
        (k, v)
        for t, k, v in sorted((t, k, v) for k, (v, t) in model.items() if k[2] == operator and t < upto and t != MAX_TIME)
    ]


def check(state, model):
    assert state.scan(b"") == [(k, model[k][0]) for k in sorted(model)]
    assert state.get_many(KEYS) == [model[k][0] if k in model else None for k in KEYS]
    values, timers = state.get_timed(KEYS)
    assert (values, timers.tolist()) == tuple(map(list, zip(*(model.get(k, (None, MAX_TIME)) for k in KEYS), strict=True)))
    for operator in (1, 2):
        assert state.due(operator, MAX_TIME) == due(model, operator, MAX_TIME)


def check_sizes(state, model, entries):
    """Of the committed version, a few entries at a time."""
    found, at, steps = {}, 0, 0
    while at < 1 << 16:
        part, at = state.measure(at, 1 << 16, entries)
        found, steps = found | dict(part), steps + 1
    wanted = Counter()
    for k, (v, _) in model.items():
        wanted[k[0] << 8 | k[1]] += len(k) + len(v) + 8
    assert found == wanted
    assert steps >= len(wanted) / (2 * entries)


def perform(state, model, steps):
    for what, argument, extra in steps:
        if what == "put":
            keys, values, times = (list(column) for column in zip(*argument, strict=True))
            state.put_many(keys, values, np.array(times, np.int64) if extra else None)
            model.update((k, (v, t if extra else MAX_TIME)) for k, v, t in argument)
        elif what == "delete":
            state.delete_many(argument)
            for k in argument:
                model.pop(k, None)
        else:
            assert state.get_many([argument, argument]) == [model.get(argument, (None,))[0]] * 2
            for prefix in (argument[:2], argument[:3], argument):
                assert state.scan(prefix) == [(k, model[k][0]) for k in sorted(model) if k.startswith(prefix)]
            assert state.due(argument[2], extra) == due(model, argument[2], extra)
            mine = [k for k in KEYS if k[2] == argument[2]]
            values, timers = state.get_timed(mine, (argument[2], extra))
            assert values == [model.get(k, (None,))[0] for k in mine]
            for k, timer in zip(mine, timers.tolist(), strict=True):
                wanted = model.get(k, (None, MAX_TIME))[1]
                assert timer == wanted or (timer == MAX_TIME and wanted >= extra)


class StateOfOneWorker(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="penstock-state-"))
        self.fs = pafs.LocalFileSystem()
        self.model = {}
        self.version = Version()
        self.history = [(self.version, {})]
        self.memory = MemoryState()
        self.files = 0
        self.elsewhere = dict.fromkeys((0, 1))  # by host, what the other process holds over the store

    def teardown(self):
        for host in (0, 1):
            LocalStore.open(self.host(host), "me", "boot", 1 << 26).close()
        shutil.rmtree(self.root)
        for host in (0, 1):
            recent_changes.evict(self.host(host))

    def host(self, number):
        return f"{self.root}/host-{number}"

    def store(self, host, identity="me", boot="boot"):
        return LocalStore.open(self.host(host), identity, boot, 1 << 26)

    def path(self, kind):
        self.files += 1
        return f"{kind}/{self.files}"

    @rule(host=st.integers(0, 1), attempts=st.lists(work, min_size=1, max_size=2), commit=st.sampled_from([None, 0, -1]))
    def epoch(self, host, attempts, commit):
        number = self.version.version + 1
        written = []
        for steps in attempts:
            with self.store(host).at(self.fs, self.root, self.version) as state:
                model = dict(self.model)
                check(state, model)
                check_sizes(state, model, 1)
                check_sizes(state, model, 3)
                perform(state, model, steps)
                check(state, model)
                changes = state.changes()
            ref = write_file(self.fs, self.root, self.path("delta"), [changes], Metadata("delta", "me", number), "s")
            written.append((ref, model, changes))
        perform(self.memory, dict(self.model), attempts[0])
        if commit is None:
            self.memory.discard()
        else:
            ref, self.model, changes = written[commit]
            self.version = self.version.with_delta(ref, number)
            self.history.append((self.version, self.model))
            self.memory.apply(changes)

    @rule()
    def another_process_runs_the_tasks(self):
        mine = {host: recent_changes.held(self.host(host)) for host in (0, 1)}
        for host, layer in self.elsewhere.items():
            recent_changes.evict(self.host(host))
            if layer is not None:
                recent_changes.hold(self.host(host), layer)
        self.elsewhere = mine

    @rule()
    def process_is_replaced(self):
        for host in (0, 1):
            recent_changes.evict(self.host(host))

    @rule()
    def epoch_without_changes(self):
        self.version = self.version.with_delta(None, self.version.version + 1)

    @rule(host=st.integers(0, 1), back=st.integers(1, 4))
    def task_of_an_older_epoch_comes_back(self, host, back):
        version, model = self.history[-back:][0]
        with self.store(host).at(self.fs, self.root, version) as state:
            check(state, model)

    @rule(back=st.integers(1, 3))
    def compaction(self, back):
        version = self.history[-back:][0][0]
        base = compact(self.fs, self.root, version, self.path("base"), Metadata("base", "me", version.version), "s")
        if base.lineage in self.version.lineages():  # else an even newer base is in place already
            before = self.version.lineage()
            self.version = self.version.with_base(base)
            assert self.version.lineage() == before
            self.history[-1] = (self.version, self.model)

    @rule(host=st.integers(0, 1))
    def local_store_is_deleted(self, host):
        shutil.rmtree(self.host(host), ignore_errors=True)

    @rule(host=st.integers(0, 1), identity=st.sampled_from(["me", "you"]), boot=st.sampled_from(["boot", "other"]))
    def local_store_was_used_by_another(self, host, identity, boot):
        changes = MemoryState()
        changes.put_many(KEYS, [b"wrong"] * len(KEYS), np.zeros(len(KEYS), np.int64))
        ref = write_file(self.fs, self.root, self.path("other"), [changes.changes()], Metadata("delta", identity, 0), "s")
        self.store(host, identity, boot).at(self.fs, self.root, Version().with_delta(ref, 0)).close()

    @rule(host=st.integers(0, 1), how=st.sampled_from(["half", "empty", "page", "garbage"]))
    def local_data_is_damaged(self, host, how):
        data = Path(self.host(host), "data.mdb")
        if data.exists():
            raw = data.read_bytes()
            short = {"half": raw[: len(raw) // 2], "empty": b"", "page": raw[:-4096], "garbage": b"\xa5" * len(raw)}
            data.write_bytes(short[how])

    @invariant()
    def files_hold_what_was_committed(self):
        rows = [row for batch in iterate(self.fs, self.root, self.version) for row in batch.to_pylist()]
        assert [(row["key"], (row["value"], row["timer"])) for row in rows] == sorted(self.model.items())
        check(self.memory, self.model)


TestStateOfOneWorker = StateOfOneWorker.TestCase
TestStateOfOneWorker.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
