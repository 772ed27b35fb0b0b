"""What is said of how long a rescale will still take is close to how long it then takes, from the first word on."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.protocol.rescale import Limits
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def kept(key, event, state):
    return (key,), "x" * 400


@pytest.mark.parametrize(
    ("begin", "wanted", "limits", "least_steps"),
    [
        (2, 5, Limits(first_bytes=2_000, least_bytes=2_000, most_bytes=40_000, measure_entries=200, budget_us=1 << 40), 6),
        (4, 1, Limits(first_bytes=4_000, least_bytes=4_000, most_bytes=8_000, measure_entries=1000), 6),
        (1, 3, Limits(first_bytes=1 << 20, most_items=100), 6),
        (1, 2, Limits(first_bytes=1_000, least_bytes=1_000, budget_us=1 << 40), 5),
    ],
    ids=["grows", "steady", "few bins at a time", "doubles"],
)
def test_time_left_of_a_rescale_when_it_is_first_said_is_near_the_truth(begin, wanted, limits, least_steps):
    flow = ps.Flow("f")
    source = flow.source("s", ps.files("none", "k string"))
    source.key_by("k").stateful_map(kept, "k string").sink(ps.memory(f"left-{begin}-{wanted}"))
    with Harness(flow, workers=begin, limits=limits) as harness:
        harness.push("s", [{"k": f"k{i}"} for i in range(1500)])
        harness.epoch()
        record = harness.scale(None, wanted)
        said = []
        while rescale := record.figures.regions["k"].rescale:
            said.append(rescale.left_ms)
            record = harness.epoch(advance_us=1_000_000)
        told = [(ms, 1000 * (len(said) - i)) for i, ms in enumerate(said) if ms is not None]
        assert len(told) >= least_steps
        first, truth = told[0]
        assert truth / 1.6 <= first <= truth * 1.6, told
        assert all(left - 2000 <= truth * 2 and left + 2000 >= truth / 2 for left, truth in told), told
