"""A distribution strategy that penstock does not know: where a region's keys are at first, which it pins, and what the checkpoint keeps of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from changing import Changing, counted, row

import penstock as ps
from penstock.checkpoint.shape import FlowShape
from penstock.errors import DeclarationError, OperatorError
from penstock.routing.hashing import spark_xxhash64
from penstock.routing.strategy import Strategy
from penstock.routing.table import Routing
from penstock.types import BINS, from_plain, plain


@dataclass(frozen=True)
class Few(Strategy):
    """All keys at the first workers; the others wait for a rescale."""

    most: int = 1

    def table(self, workers):
        return Routing.even(min(self.most, workers))


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


def by(strategy):
    return lambda s: counted(s.key_by("k", distribute=strategy))


def test_region_when_its_strategy_is_from_outside_begins_with_its_table_and_can_be_rescaled(changing):
    rows = [row(i, k=f"k{i % 7}") for i in range(40)]
    with changing.harness(by(Few())) as harness:
        harness.push("s", rows[:20])
        assert Counter(harness.epoch().regions["k"].control.routing.owners) == {0: BINS}
        harness.scale(None, 4)
        harness.settle()
        assert set(harness.record.regions["k"].control.routing.owners) == {
            0,
            2,
            3,
        }  # a rescale moves bins to the workers it adds
        harness.push("s", rows[20:])
        harness.finish()
    assert sorted((r["x"], r["n"]) for r in changing.rows()) == [(i, i // 7 + 1) for i in range(40)]


@pytest.mark.parametrize("after", [None, ps.KeyGrouping(), Few(2)])
def test_region_when_its_strategy_changed_goes_on_with_keys_where_they_lie(after, changing):
    changing.run(by(Few()), [row(i, k=f"k{i}") for i in range(9)])
    with changing.harness(by(after)) as harness:
        now = r"KeyGrouping()" if after != Few(2) else r"Few(most=2)"
        assert harness.notices == [f"Region 'k' was distributed by Few(most=1) and is now distributed by {now}."]
        harness.push("s", [row(9, k="k3")])
        assert Counter(harness.epoch().regions["k"].control.routing.owners) == {0: BINS}
        harness.finish()
    assert sorted((r["x"], r["n"]) for r in changing.rows()) == [*((i, 1) for i in range(9)), (9, 2)]


@dataclass(frozen=True)
class Favourite(Strategy):
    """One key has a worker for itself, whatever the load."""

    worker: object = 1
    report_above = 0.1

    def pin_keys(self, watch, placed):
        return watch, {int(spark_xxhash64([pa.array(["a"])])[0]): self.worker}


def test_key_when_a_strategy_from_outside_pins_it_is_alone_at_its_worker_and_rows_are_the_same(changing):
    rows = [row(i, k="abc"[i % 3]) for i in range(40)]
    with changing.harness(by(Favourite(np.int64(1)))) as harness:
        harness.push("s", rows[:20])
        harness.epoch()
        harness.settle()
        control = harness.record.regions["k"].control
        assert [control.pins[k] for k in control.watch.own] == [1]
        assert set(control.routing.owners) == {0}
        harness.push("s", rows[20:])
        harness.finish()
    assert sorted((r["x"], r["n"]) for r in changing.rows()) == [(i, i // 3 + 1) for i in range(40)]


@pytest.mark.parametrize(
    ("worker", "why"), [(2, "it pinned a key to worker 2 of 2"), (-1, "worker -1 of 2"), ("x", "ValueError")]
)
def test_epoch_when_a_strategy_from_outside_pins_to_no_worker_ends_in_a_sentence(worker, why, changing):
    with changing.harness(by(Favourite(worker))) as harness:
        harness.push("s", [row(1)])
        with pytest.raises(OperatorError, match=rf"Strategy Favourite\(.*\) failed in routing: .*{why}.*; fix the strategy"):
            harness.epoch()
        assert harness.record.epoch == -1


def test_region_when_its_strategy_is_given_as_the_default_goes_on(changing):
    changing.run(by(None), [row(1)])
    changing.run(by(ps.KeyGrouping()), [row(2)], drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows()] == [(1, 1), (2, 2)]


def test_shape_when_it_does_not_say_how_a_region_is_distributed_has_key_grouping(changing):
    with changing.harness(by(Few())) as harness:
        harness.push("s", [row(1)])
        shape = harness.epoch().shape
    assert shape.regions["k"].distribution == "Few(most=1)"
    raw = json.loads(json.dumps(shape, default=plain))
    assert from_plain(FlowShape, raw) == shape
    del raw["regions"]["k"]["distribution"]
    assert from_plain(FlowShape, raw).regions["k"].distribution == "KeyGrouping()"


def test_key_by_when_its_strategy_is_none_is_refused():
    class KeyGrouping:
        """Only its name is right."""

    stream = ps.Flow("f").source("s", ps.files("none", "k string"))
    for wrong in ("KeyGrouping", ps.KeyGrouping, KeyGrouping()):
        with pytest.raises(
            DeclarationError, match=r"key_by\(distribute=.*\) needs a distribution strategy, such as penstock.Histogram\(\)"
        ):
            stream.key_by("k", distribute=wrong)
