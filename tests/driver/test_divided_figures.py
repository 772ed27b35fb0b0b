"""What is shown of a region whose keys are divided: hot keys, the busiest worker, and what is said when the flow starts."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.checkpoint.record import progress_of
from penstock.serve.terminal import balance_lines, status_lines
from penstock.testing import Harness
from penstock.testing.engine import LocalEngine

HOT = [{"k": "hot", "d": None, "v": n} for n in range(60)]
OTHERS = [{"k": f"key{n}", "d": dt.date(2024, 1, 1), "v": n} for n in range(40)]


class Total(ps.Aggregate):
    type = "bigint"
    commutative = True

    def zero(self):
        return 0

    def add(self, state, value):
        return state + value

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


def flow_of(*strategies, aggregate=Total):
    flow = ps.Flow("skewed")
    source = flow.source("s", ps.files("none", "k string, d date, v long"))
    for n, strategy in enumerate(strategies):
        keyed = source.key_by("k", "d", name="xyz"[n], distribute=strategy)
        keyed.aggregate(total=aggregate("v")).sink(ps.noop(), name=f"out{n}")
    return flow


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [(ps.Histogram(), range(2, 5)), (ps.WChoices(), range(4, 5)), (ps.PartialKeyGrouping(), range(2, 3))],
)
def test_hot_key_when_it_is_divided_is_named_with_its_share_and_the_number_of_its_workers(strategy, workers):
    with Harness(flow_of(strategy), workers=4) as harness:
        harness.push("s", HOT + OTHERS)
        harness.epoch()
        progress = progress_of(harness.record)
        region = progress["regions"]["x"]
        hot = region["hot_keys"][0]
        assert (hot["key"], hot["isolated"]) == ("hot, null", False)
        assert hot["share"] == round(60 / sum(region["worker_rows"]), 4)
        assert hot["workers"] in workers
        assert len(region["hot_keys"]) <= 5
        busiest = max(region["worker_rows"]) * 4 / sum(region["worker_rows"])
        assert region["busiest"] == round(busiest, 4) >= 1
        said = (
            f"region x: {strategy!r}; busiest worker {busiest:.2f} × the mean; key hot, null has {hot['share']:.0%} of the rows"
        )
        lines = status_lines(progress, {"flow": "skewed", "run": 1}, alive=True, now=dt.datetime.now(dt.UTC))
        assert any(line.startswith(f"{said}, on {hot['workers']} workers") for line in lines)
        harness.push("s", [])
        harness.epoch()
        idle = progress_of(harness.record)
        assert balance_lines(idle) == [f"region x: {strategy!r}"]
        assert idle["regions"]["x"]["busiest"] == 1


def test_keys_when_nobody_counts_them_are_not_named():
    with Harness(flow_of(ps.KeyGrouping()), workers=4) as harness:
        harness.push("s", HOT + OTHERS)
        harness.epoch()
        progress = progress_of(harness.record)
        rows = progress["regions"]["x"]["worker_rows"]
        assert balance_lines(progress) == [f"region x: KeyGrouping(); busiest worker {max(rows) / 25:.2f} × the mean"]
        assert max(rows) >= 60


def test_lines_when_many_keys_are_pinned_name_the_hottest_and_count_the_others():
    key = {"share": 0.02, "worker": 1, "isolated": True, "workers": 1}
    isolated = [{**key, "key": f"k{n}"} for n in range(5)]
    cold = {**key, "key": "cold", "isolated": False}
    figures = {"strategy": "Isolate()", "worker_rows": (), "hot_keys": [*isolated, cold], "pinned_keys": 7}
    named = "; ".join(f"key k{n} has 2% of the rows, alone on worker 1" for n in range(3))
    assert balance_lines({"regions": {"k": figures}}) == [
        f"region k: Isolate(); {named}; 2 more hot keys; 2 keys pinned by users"
    ]


class InOrder(Total):
    commutative = False


@pytest.mark.parametrize(
    ("flow", "named"),
    [
        (flow_of(ps.Histogram()), "region 'x' (Histogram)"),
        (flow_of(ps.KeyGrouping(), ps.WChoices(), ps.DChoices()), "regions 'y' (WChoices), 'z' (DChoices)"),
        (flow_of(ps.KeyGrouping(), ps.Isolate()), None),
        (flow_of(ps.Histogram(), aggregate=InOrder), None),
    ],
    ids=["one", "several", "none divides", "not used"],
)
def test_changes_when_a_strategy_divides_say_once_that_small_epochs_stay_whole(flow, named, monkeypatch):
    def said():
        with Harness(flow) as harness:
            return [notice for notice in harness.notices if "fewer than" in notice]

    assert said() == []  # in process the size of an epoch does not matter
    monkeypatch.setattr(LocalEngine, "divides_from", 65_536)
    whole = f"In epochs with fewer than 65,536 records the keys of {named} stay whole, as it would take longer to divide them"
    assert said() == ([] if named is None else [f"{whole}; if a hot key is to be divided, let epochs be larger (trigger=)."])
