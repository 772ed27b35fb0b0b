"""Any flow whose sources close after a silence, whatever happens: what one sequential pass gives that is told the clock times of the epochs.

What the clock showed in an epoch, and whether another run had the epoch before, is all that is taken from the product: as its checkpoint kept it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import drawing
import oracle
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, compare, examples, row
from trails import clocks

import penstock as ps
from penstock.driver import epoch as epoch_module
from penstock.errors import PenstockError
from penstock.progress import lateness

SEEN: Counter[str] = Counter()
CLOSING = {"close_after_us": [None, r.SECOND, r.SECOND, 5 * r.SECOND]}
IDLE = {"idle_after": [None, "1 second", "2 seconds", "2 seconds", "1 hour"]}


@st.composite
def flows(draw) -> r.Recipe:
    """Any flow whose sources close; partitions of a source that is alone become idle, too: otherwise they go by the other sources."""
    if draw(st.booleans()):
        return draw(drawing.recipes(options=CLOSING, changing=True))
    return draw(drawing.recipes(options={**CLOSING, **IDLE}, changing=True, sources=(1,)))


@st.composite
def courses(draw) -> drawing.Course:
    """What happens, and how much time passes before each epoch. What is read again after going back comes in other epochs than it came in first."""
    return replace(draw(drawing.courses), jumps=draw(st.integers(0, 99)))


def check(recipe: r.Recipe, data: oracle.Records, course: drawing.Course) -> None:
    with clocks() as clock:
        ran = drawing.run(recipe, data, course)
    data, clock = ran.trail.records(data), ran.trail.clock(clock)
    expected = oracle.Oracle(recipe, data, ran.markers, clock, ran.trail)
    asleep = oracle.Oracle(recipe, data, ran.markers, trail=ran.trail)
    for node, found in ran.contents.items():
        compare(f"{type(node).__name__} {node}", found, expected.content(node))
        SEEN["gone back"] += any(k.back_us is not None for k in ran.trail.epochs.values())
        SEEN["late by the clock"] += isinstance(node, r.Late) and expected.content(node) != asleep.content(node)
    SEEN["flows"] += 1


@pytest.mark.slow
@examples(90)
@given(data=st.data())
def test_results_of_sources_that_close_equal_one_sequential_pass_that_knows_the_clock(data):
    recipe = data.draw(flows())
    check(recipe, data.draw(drawing.records(recipe, edges=True)), data.draw(courses()))


def test_silence_when_a_flow_has_gone_back_counts_anew():
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0,), close_after_us=r.SECOND)
    recipe = r.Recipe([source, late := r.Late(source)], [source, late])
    built = r.build(recipe, "silent and gone back", lambda name, _: ps.memory(name))
    with drawing.Harness(built.flow) as harness:
        harness.push("a", r.table(source, [row(0, 10)]))
        harness.epoch()
        harness.snapshot("before")
        harness.epoch(advance_us=1000 * r.SECOND)
        harness.load("before")
        harness.epoch()
        harness.push("a", r.table(source, [row(1, 10)]))
        harness.finish()
    assert [len(built.sinks[node].rows()) for node in (source, late)] == [2, 0]


def test_idleness_when_a_flow_has_gone_back_counts_anew():
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1), idle_after="10 seconds")
    recipe = r.Recipe([source, late := r.Late(source)], [source, late])
    built = r.build(recipe, "idle and gone back", lambda name, _: ps.memory(name))
    with drawing.Harness(built.flow) as harness:
        harness.push("a", r.table(source, [row(0, 10), row(0, 10, p=1)]))
        harness.epoch()
        harness.snapshot("before")
        harness.epoch(advance_us=1000 * r.SECOND)
        harness.load("before")
        harness.push("a", r.table(source, [row(1, 50)]))
        harness.epoch()  # a partition that is idle in it does not hold the frontier
        harness.push("a", r.table(source, [row(1, 20, p=1)]))
        harness.finish()
    assert [len(built.sinks[node].rows()) for node in (source, late)] == [4, 0]


def a_flow() -> r.Recipe:
    """A closing source of two partitions, windows over windows, late records."""
    source = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1), close_after_us=r.SECOND)
    first = r.KeyBy(source, ("k",), "first")
    told = r.Map(first, "history")
    windows = r.Totals(first, (("v", "sum", "v"), ("s", "concat", "s")), r.Window("tumbling", 5 * r.SECOND))
    late = r.Late(source)
    return r.Recipe([source, first, told, windows, late], [source, told, windows, late])


def search() -> None:
    @always_the_same(80)
    @given(st.data())
    def differ(data):
        recipe = a_flow()
        check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(courses()))

    differ()


# ------------------------------------------------------------------------------------------------------------- broken variants


def what_the_clock_has_passed_is_on_time(monkeypatch):
    monkeypatch.setattr(lateness, "_floor", lambda known, _: known.late_floor)


def only_the_partition_with_records_is_judged_by_the_frontier(monkeypatch):
    whole = lateness.check_lateness

    def judged(before, chunks, **about):
        found = whole(before, chunks, **about)
        for name, known in found.state.partitions.items():
            if name in before.partitions and name not in {c.partition for c in chunks}:
                known.late_floor = before.partitions[name].late_floor
        return found

    monkeypatch.setattr(epoch_module, "check_lateness", judged)


def silence_of_a_partition_taken_for_that_of_the_source(monkeypatch):
    whole = lateness.check_lateness

    def judged(before, chunks, **about):
        asleep = len({c.partition for c in chunks}) < len(before.partitions)
        found = whole(before, chunks, **about)
        found.state.quiet_us = before.quiet_us if asleep else found.state.quiet_us
        return found

    monkeypatch.setattr(epoch_module, "check_lateness", judged)


def frontier_goes_on_by_all_of_the_silence(monkeypatch):
    whole = lateness.check_lateness

    def judged(before, chunks, **about):
        found = whole(before, chunks, **about)
        if found.state.closed:
            found.state.frontier += about["close_after_us"]
        return found

    monkeypatch.setattr(epoch_module, "check_lateness", judged)


MUTANTS = [
    what_the_clock_has_passed_is_on_time,
    only_the_partition_with_records_is_judged_by_the_frontier,
    silence_of_a_partition_taken_for_that_of_the_source,
    frontier_goes_on_by_all_of_the_silence,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_closing_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search()


@pytest.mark.slow
def test_search_when_closing_is_whole_finds_none_and_has_seen_records_late_by_the_clock():
    SEEN.clear()
    search()
    assert SEEN["late by the clock"] > 5
