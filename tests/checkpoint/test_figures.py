"""Figures of an epoch: what is declared of each is what is documented, and what users get."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import penstock as ps
from penstock.checkpoint.figures import FIGURES, RescaleFigures
from penstock.checkpoint.record import EpochRecord, progress_of
from penstock.group.figures import FIGURES as OF_GROUPS
from penstock.progress.figures import Figure
from penstock.protocol.rescale import Limits
from penstock.testing import Harness

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
STEPS = Limits(first_bytes=300, least_bytes=300, most_bytes=600)


def test_reference_has_the_figures_that_are_declared_in_their_order():
    text = REFERENCE.read_text(encoding="utf-8").split("## Figures\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| (\w+) \| `(\w+)` \| (\w+) \| (counter|gauge) \| (.+) \|$", text, re.MULTILINE)
    declared = [
        (of, f.name, f.unit, f.kind, f.help) for of, figures in (*FIGURES.items(), *OF_GROUPS.items()) for f in figures.values()
    ]
    assert shown == declared


def test_progress_when_a_region_rescales_has_the_figures_that_are_declared():
    flow = ps.Flow("figures")
    source = flow.source("s", ps.files("none", "k string, v long"))
    summed = source.key_by("k").stateful_map(lambda k, e, s: ((k, (s or 0) + e.v), (s or 0) + e.v), "k string, v long")
    summed.sink(ps.memory("figures"), name="out")
    with Harness(flow, workers=2, limits=STEPS) as harness:
        assert not progress_of(EpochRecord())["regions"]
        harness.push("s", [{"k": f"k{i}", "v": i} for i in range(100)])
        harness.epoch()
        calm = progress_of(harness.record)
        harness.scale("k", 3)
        moving = progress_of(harness.record)
    named = {*FIGURES["region"], "phase", "first_skipped", "strategy", "worker_rows", "worker_cpu_ms", "hot_keys"}
    assert (set(calm["regions"]["k"]), set(moving["regions"]["k"])) == (named | {"last_rescale"}, named | {"rescale"})
    assert set(moving["regions"]["k"]["rescale"]) == set(FIGURES["rescale"]) == {f.name for f in fields(RescaleFigures)}
    assert set(calm["sources"]["s"]) == set(FIGURES["source"])
    assert set(FIGURES["epoch"]) <= set(calm)
    assert (calm["rows_in"], calm["rows_out"], calm["frontier"]) == (100, {"out": 100}, "1970-01-01 00:00:00")
    assert (sum(calm["regions"]["k"]["worker_rows"]), calm["regions"]["k"]["strategy"]) == (
        100,
        "KeyGrouping()",
    )
    assert (calm["sources"]["s"]["rows"], calm["regions"]["k"]["rows_in"], calm["regions"]["k"]["workers"]) == (100, 100, 2)


def test_load_when_one_key_has_all_rows_counts_the_workers_without_any():
    flow = ps.Flow("hot")
    keyed = flow.source("s", ps.files("none", "k string, v long")).key_by("k", distribute=ps.Isolate())
    keyed.stateful_map(lambda k, e, s: ((k, e.v), None), "k string, v long").sink(ps.memory("hot"))
    with Harness(flow, workers=5) as harness:
        harness.push("s", [{"k": None, "v": i} for i in range(30)])
        region = progress_of(harness.epoch())["regions"]["k"]
    assert sorted(region["worker_rows"]) == [0, 0, 0, 0, 30]
    assert region["imbalance"] == 0.8
    assert [(key["key"], key["share"]) for key in region["hot_keys"]] == [("null", 1.0)]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("bytes", 0, "0 B"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1024, "1.0 KiB"),
        ("bytes", 3 << 40, "3.0 TiB"),
        ("bytes", 5 << 50, "5120.0 TiB"),
        ("rows", 1_234_567, "1,234,567"),
        ("ms", 0, "0"),
        ("time", 0, "1970-01-01 00:00:00"),
    ],
)
def test_figure_when_it_is_shown_goes_by_its_unit(unit, value, text):
    assert Figure("gauge", unit, "").text(value) == text
