"""A rescale balances bytes, not keys or bins; one of all regions begins everywhere in one epoch, on the source side first."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import ClassVar

import penstock as ps
from penstock.protocol.rescale import Limits
from penstock.state.compaction import iterate
from penstock.state.files import resolve
from penstock.testing import Harness

SMALL, LARGE = 100, 20_000


def sized(key, event, state):
    return (key, event.v), bytes(event.v)


def bytes_by_worker(harness, region):
    fs, root = resolve(harness.checkpoint)
    return [
        sum(len(row["key"]) + len(row["value"]) for batch in iterate(fs, root, v) for row in batch.to_pylist())
        for v in harness.record.regions[region].versions
    ]


def test_bytes_of_workers_when_keys_are_very_unequal_differ_little_though_bins_differ_much():
    flow = ps.Flow("unequal")
    flow.source("a", ps.files("none", "k long, v long")).key_by("k").stateful_map(sized, "k long, v long").sink(ps.noop())
    with Harness(flow, workers=1) as harness:
        harness.push("a", [{"k": k, "v": LARGE if k % 10 == 0 else SMALL} for k in range(400)])
        harness.epoch()
        [whole] = bytes_by_worker(harness, "k")
        for workers in (4, 6, 3):
            harness.scale(None, workers)
            harness.settle()
            shares = bytes_by_worker(harness, "k")
            assert sum(shares) == whole
            assert len(shares) == workers
            assert max(shares) - min(shares) < 2 * LARGE, shares
            assert max(shares) < 1.2 * whole / workers
            bins = Counter(harness.record.regions["k"].control.routing.owners)
            assert max(bins.values()) > 1.5 * min(bins.values()), bins


class Measured(ps.Operator):
    """Notes which region is measured when."""

    notes: ClassVar[list] = []

    def on_interrogate(self, bins, state):
        self.notes.append((self.context.region, self.context.frontier))


def test_regions_when_all_are_scaled_begin_in_one_epoch_and_the_source_side_goes_first():
    Measured.notes = []
    flow = ps.Flow("order")
    source = flow.source("a", ps.files("none", "k long, at timestamp, v long"), time="at")
    behind = source.key_by("k", name="behind")  # declared first, but fed by the next one
    front = source.key_by("k", name="front").process(Measured())
    joined = behind.join(front.local().select("k", w="v"), "1 second")
    joined.process(Measured()).sink(ps.noop())
    front.sink(ps.noop())
    with Harness(flow, workers=1, limits=Limits(measure_entries=1_000)) as harness:
        at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        for epoch in range(3):
            harness.push("a", [{"k": k, "at": at + dt.timedelta(seconds=epoch), "v": k} for k in range(20)])
            harness.epoch()
        record = harness.scale(None, 3)
        assert list(record.regions) == ["front", "behind"]
        assert [r.control.goal.started for r in record.regions.values()] == [3, 3]
        assert [region for region, _ in Measured.notes] == ["front", "behind"]
        harness.settle()
        assert [r.workers for r in harness.record.regions.values()] == [3, 3]
