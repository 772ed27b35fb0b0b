"""The audit names what is not deterministic: region, step, key and both results; and it leaves alone what is."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import re
import threading
import time
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import AuditError, DeclarationError, OperatorError, PenstockError
from penstock.testing import Harness
from penstock.worker import audit
from penstock.worker.differences import same

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SCHEMA = "k string, at timestamp, v long, x double"
NUMBERS = itertools.count()
counter = 0
seen_by_key: dict = {}


def rows(epoch=0, n=40):
    return [
        {"k": f"k{i % 7}", "at": BEGIN + dt.timedelta(seconds=10 * epoch + i / 100), "v": i, "x": 0.1 * i} for i in range(n)
    ]


def keyed(make, *, epochs=2, **options):
    """Run a flow whose step is made of a keyed stream; the sink."""
    flow, out = ps.Flow(f"audited{next(NUMBERS)}"), ps.memory(f"audited{next(NUMBERS)}")
    source = flow.source("a", ps.files("none", SCHEMA), time="at")
    made = make(source)
    (made.local() if hasattr(made, "local") else made).sink(out)
    with Harness(flow, workers=2, audit=options.pop("audit", True), **options) as harness:
        try:
            for epoch in range(epochs):
                harness.push("a", rows(epoch))
                harness.epoch()
            harness.finish()
        except AuditError:
            assert harness.record.epoch < 1, "it was found too late"
            if harness.record.epoch < 0:
                assert not out.rows(), "rows of the epoch were stored"
            raise
    return out


def mapped(fn, schema="k string, y double"):
    return lambda source: source.key_by("k").stateful_map(fn, schema)


# ----------------------------------------------------------------------------------------- functions that must be named


def by_chance(key, event, state):
    return (key, random.random()), None


def by_clock(key, event, state):
    return (key, 1.0), time.time()


def by_uuid(key, event, state):
    return (key, 1.0), str(uuid.uuid4())


def by_set(key, event, state):
    names = set(state or ()) | {f"{event.k}-{event.v}"}
    return (key, 1.0), ",".join(names)


def by_counter(key, event, state):
    global counter  # noqa: PLW0603  (the fault)
    counter += 1
    return (key, float(counter)), None


def by_memory(key, event, state):
    """What a module remembers of a key is not given up with it, and not there after a crash."""
    seen_by_key[key] = seen_by_key.get(key, 0) + 1
    return (key, float(seen_by_key[key])), None


REGION = {
    by_chance: "it gave for key 'k",
    by_clock: "it left for key 'k",
    by_uuid: "it left for key 'k",
    by_set: "it left for key 'k",
    by_counter: "it gave for key 'k",
    by_memory: "it gave for key 'k",
}


@pytest.mark.parametrize("fn", REGION, ids=lambda fn: fn.__name__)
def test_function_of_a_region_when_not_deterministic_is_named_with_region_step_and_key(fn):
    with pytest.raises(AuditError) as found:
        keyed(mapped(fn))
    text = str(found.value)
    assert text.startswith(
        f"In epoch 0, region 'k': stateful_map({fn.__name__}) is not deterministic: computed twice from the same"
    )
    assert REGION[fn] in text
    assert re.search(" first .* and then .*; docs/guide-determinism.md lists", text)
    if "it gave" in REGION[fn]:
        assert "at a/0 @ " in text


def test_function_when_it_reads_a_file_that_changes_is_named(tmp_path):
    file = str(tmp_path / "changes")

    def by_file(key, event, state):
        with open(file, "a") as appended:  # noqa: PTH123  (the function goes to another process)
            appended.write("x")
        return (key, float(os.stat(file).st_size)), None  # noqa: PTH116

    with pytest.raises(AuditError, match=r"region 'k': stateful_map\(by_file\) is not deterministic: .* gave for key 'k"):
        keyed(mapped(by_file))


class SumOfBatch(ps.Operator):
    """Adds up what it is given at once: other keys, so other numbers, wherever keys are at another worker."""

    schema = "k string, y double"

    def on_data(self, rows, state):
        total = pc.sum(rows.column("x")).as_py()
        return rows.emit({"k": rows.column("k"), "y": pa.array([total] * len(rows))})


class SizeOfBatch(ps.Operator):
    schema = "k string, y long"

    def on_data(self, rows, state):
        return rows.emit({"k": rows.column("k"), "y": pa.array([len(rows)] * len(rows))})


class KeepsInItself(ps.Operator):
    """What it remembers outside of its state goes with the process."""

    schema = "k string, y long"
    total: dict = {}  # noqa: RUF012  (that is the fault)

    def on_data(self, rows, state):
        for v in rows.column("k").to_pylist():
            self.total[v] = self.total.get(v, 0) + 1
        return rows.emit({"k": rows.column("k"), "y": pa.array([self.total[k] for k in rows.column("k").to_pylist()])})


@pytest.mark.parametrize("operator", [SumOfBatch, SizeOfBatch, KeepsInItself])
def test_operator_when_it_depends_on_its_batch_is_named(operator):
    with pytest.raises(AuditError, match=f"region 'k': {operator.__name__} is not deterministic: .* gave for key 'k"):
        keyed(lambda source: source.key_by("k").process(operator()))


def test_step_behind_one_that_is_not_deterministic_is_not_blamed():
    def good(key, event, state):
        return (key, event.y), event.y

    with pytest.raises(AuditError, match=r"stateful_map\(by_chance\) is not"):
        keyed(lambda source: mapped(by_chance)(source).stateful_map(good, "k string, y double"))
    with pytest.raises(AuditError, match=r"stateful_map\(by_chance\) is not"):
        keyed(lambda source: mapped(good_columns)(source).stateful_map(by_chance, "k string, y double"))


def good_columns(key, event, state):
    return (key, event.x), (state or 0) + 1


def sometimes(key, event, state):
    if random.random() < 0.5:
        raise ValueError("sometimes")
    return None, None


def test_function_when_it_fails_now_and_then_is_named():
    skipped = ps.memory("audited.skipped")
    with pytest.raises(AuditError, match=r"stateful_map\(sometimes\) is not deterministic: .* it failed for key "):
        keyed(lambda source: source.key_by("k").stateful_map(sometimes, "k string, y double", on_error=skipped))


def test_function_when_it_fails_only_the_second_time_is_named(monkeypatch):
    def seeded(key, event, state):
        if "PYTHONHASHSEED" in os.environ:
            raise ValueError("only there")
        return (key, 1.0), None

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(AuditError, match=r"computed a second time .* failed: .*stateful_map\(seeded\) .*only there"):
        keyed(mapped(seeded))


class Drawn(ps.Aggregate):
    """An aggregate of a user's that adds something else each time."""

    type = "double"

    def zero(self):
        return 0.0

    def add(self, state, value):
        return state + random.random()

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


def test_aggregate_of_a_user_when_not_deterministic_is_named():
    def totals(source):
        return source.key_by("k").window(ps.tumbling("1 second")).aggregate(y=Drawn("x"))

    with pytest.raises(AuditError, match=r"region 'k': aggregate\(y\) is not deterministic: .*key 'k"):
        keyed(totals)


def test_difference_is_found_before_an_output_that_comes_first_is_stored():
    flow, first = ps.Flow("audited twice"), ps.memory("audited.first")
    source = flow.source("a", ps.files("none", SCHEMA), time="at")
    source.select("k", "v").sink(first)
    mapped(by_chance)(source).sink(ps.memory("audited.second"))
    with Harness(flow, audit=True) as harness:
        harness.push("a", rows())
        with pytest.raises(AuditError):
            harness.epoch()
    assert not first.rows()


# ---- stateless


def running_sum(batch):
    return pa.record_batch({"k": batch.column("k"), "y": pc.cumulative_sum(batch.column("x"))})


def size(batch):
    return pa.record_batch({"k": batch.column("k"), "y": pa.array([float(batch.num_rows)] * batch.num_rows)})


def arrival(batch):
    return pa.record_batch({"k": batch.column("k"), "y": pa.array([float(i) for i in range(batch.num_rows)])})


def chance(batch):
    return pa.record_batch({"k": batch.column("k"), "y": pa.array([random.random() for _ in range(batch.num_rows)])})


def names(batch):
    words = [{f"{k}-{i}" for i in range(9)} for k in batch.column("k").to_pylist()]
    return pa.record_batch({"k": [",".join(w) for w in words], "y": batch.column("x")})


def total_of_floats(batch):
    """A sum of floating-point numbers in the order of arrival, to the last bit."""
    total = 0.0
    for x in batch.column("x").to_pylist():
        total += x * 1e-3 + 1e9 * (x > 2)
    return pa.record_batch({"k": batch.column("k"), "y": pa.array([total] * batch.num_rows)})


@pytest.mark.parametrize("fn", [running_sum, size, arrival, chance, names, total_of_floats], ids=lambda fn: fn.__name__)
def test_stateless_function_when_not_deterministic_is_named_with_its_record(fn):
    with pytest.raises(AuditError) as found:
        keyed(lambda source: source.map_batches(fn, "k string, y double"))
    text = str(found.value)
    assert text.startswith(
        f"map_batches({fn.__name__}) is not deterministic: computed twice from the same rows, in other batches"
    )
    assert "it gave for the record at a/0 @ 0 first {'k': " in text


# ------------------------------------------------------------------------------------------ functions that must not


class Unlike:
    """State without a comparison of its own."""

    def __init__(self, n):
        self.n, self.tags = n, {f"tag{i}" for i in range(n)}


def objects(key, event, state):
    return (key, float(event.v)), Unlike(event.v)


def not_a_number(key, event, state):
    return (key, float("nan")), float("nan")


def sets(key, event, state):
    return (key, float(len(state or ()))), set(state or ()) | {f"{event.k}{event.v}"}


def twice_each(batch):
    n = batch.num_rows
    at = [i for i in range(n) for _ in range(2)]
    return pa.record_batch(
        {"k": batch.column("k").take(pa.array(at)), "y": pa.array([float(i % 2) for i in range(2 * n)]), "_row": at}
    )


@pytest.mark.parametrize("fn", [objects, not_a_number, sets], ids=lambda fn: fn.__name__)
def test_function_that_is_deterministic_is_not_accused(fn):
    assert len(keyed(mapped(fn)).rows()) == 80


def test_stateless_function_that_is_deterministic_is_not_accused():
    assert len(keyed(lambda source: source.map_batches(twice_each, "k string, y double")).rows()) == 160


def test_function_when_it_cannot_be_pickled_after_it_ran_is_audited_all_the_same():
    made = []

    def with_a_lock(key, event, state):
        made or made.append(threading.Lock())  # as a connection that is made once
        with made[0]:
            return (key, 1.0), None

    assert len(keyed(mapped(with_a_lock)).rows()) == 80


def test_hash_seed_when_it_is_that_of_the_second_process_is_another(monkeypatch):
    def seed(key, event, state):
        return (key, float(os.environ["PYTHONHASHSEED"])), None

    for own in "12":
        audit.second_process().close()
        monkeypatch.setenv("PYTHONHASHSEED", own)
        with pytest.raises(AuditError, match=f"'y': {own}.0}} and then .*'y': {3 - int(own)}.0}}"):
            keyed(mapped(seed))


def test_function_when_it_fails_both_times_is_told_as_without_audit():
    def wrong(key, event, state):
        raise ValueError("always")

    for wanted in (True, False):
        with pytest.raises(OperatorError, match=r"stateful_map\(wrong\) of region 'k' failed on key 'k\d' .*always"):
            keyed(mapped(wrong), audit=wanted)


# ---------------------------------------------------------------------------------------------------------- the option


def test_epochs_when_one_in_n_is_audited_are_that_many(monkeypatch):
    audited = []
    monkeypatch.setattr("penstock.testing.engine.run_twice", lambda *a, **b: audited.append(a[2]) or audit.run_twice(*a, **b))
    keyed(mapped(good_columns), epochs=6, audit=3)
    assert sorted(set(audited)) == [0, 3, 6]


def test_process_when_there_is_no_audit_is_not_started(monkeypatch):
    monkeypatch.setattr(audit, "second_process", lambda: pytest.fail("started"))
    keyed(lambda source: mapped(good_columns)(source.map_batches(lambda batch: batch, SCHEMA)), audit=False)


def test_process_when_it_dies_is_told_and_started_anew(monkeypatch):
    def deadly(key, event, state):
        if "PYTHONHASHSEED" in os.environ:
            os._exit(9)
        return (key, 1.0), None

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(PenstockError, match="The audit's second process has ended with code 9"):
        keyed(mapped(deadly))
    keyed(mapped(good_columns))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "yes", None])
def test_option_when_it_is_no_number_of_epochs_is_refused(wrong):
    with pytest.raises(DeclarationError, match=r"start\(audit=.*\) must be True, False, or a number n from 1"):
        audit.audited_epochs(wrong)


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (1, 1, True),
        (1, True, False),
        (float("nan"), float("nan"), True),
        ({"a": [1, {2}]}, {"a": [1, {2}]}, True),
        ({"a": 1}, {"a": 2}, False),
        ([1], [1, 2], False),
        ([1, 2], [2, 1], False),
        (Unlike(3), Unlike(3), True),
        (Unlike(3), Unlike(4), False),
        (dt.date(2024, 1, 1), dt.date(2024, 1, 2), False),
    ],
)
def test_values_are_the_same_by_what_they_consist_of(a, b, alike):
    assert same(a, b) is alike
