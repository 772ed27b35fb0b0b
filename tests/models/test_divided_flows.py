"""Any flow of aggregates whose regions divide the rows of a key, on any data and with anything happening: what one sequential pass gives.

Read next: `oracle`, `drawing`.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from dataclasses import replace
from typing import Any

import changes
import drawing
import oracle
import own_aggregates
import pytest
import recipes as r
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_against_oracle import check, compare, examples
from trails import Trail, trailed

import penstock as ps
from penstock.protocol.rescale import Limits
from penstock.testing import Crash, Harness

NUMBERS = itertools.count()
WAIT = r.AGGREGATES | {
    "said": type(
        "Said", (own_aggregates.Said,), {"commutative": False, "__qualname__": "Said", "__module__": own_aggregates.__name__}
    )
}
"""Before a user's aggregate said that it is commutative: rows wait for it."""


def run_in_versions(
    recipe: r.Recipe, data: oracle.Records, course: drawing.Course, stops: list[int], waiting: int = 0
) -> tuple[dict[Any, Any], Any, Trail]:
    """Run a flow whose regions have the strategies of the next version after each epoch of `stops`, on one checkpoint.

    In the first `waiting` versions no aggregate of users says that it is commutative, so that rows wait for it.
    """
    name, seen, shuffle = f"divided{next(NUMBERS)}", itertools.count(), random.Random(course.seed)
    sources = {s.name: s for s in recipe.sources()}
    last = max((epoch for rows in data.values() for epoch, _ in rows), default=0)
    step, hold = course.limits
    limits = Limits(first_bytes=step, least_bytes=step, most_bytes=2 * step, hold_bytes=hold, measure_entries=20)

    def before(_: str) -> None:
        if next(seen) in course.crashes:
            raise Crash

    def to_the_end(harness: Harness) -> None:
        drawing.survive(harness, course, ["end"])
        for _ in range(drawing.MOST_EPOCHS):
            if harness.record.finished:
                return
            drawing.survive(harness, course, harness.copy() if harness.record.ending else ["end"])
        raise AssertionError("the flow does not come to its end")

    begins = [0, *(stop + 1 for stop in stops)]
    with tempfile.TemporaryDirectory(prefix="penstock-divided-") as folder, trailed(recipe) as trail:
        for version, (begin, end) in enumerate(itertools.pairwise([*begins, last + 1])):
            built = r.build(recipe, name, lambda name, _: ps.memory(name), version, WAIT if version < waiting else r.AGGREGATES)
            with changes.made_again(built.flow, course.workers, folder, before, limits, lmdb=course.lmdb) as harness:
                for epoch in range(begin, end):
                    for source, rows in data.items():
                        here = [record for e, record in rows if e == epoch]
                        shuffle.shuffle(here)
                        if here:
                            harness.push(source, r.table(sources[source], here))
                    drawing.survive(harness, course, drawing.steer(harness, course, epoch, back=drawing.goes_back(recipe)))
                if end == last + 1:
                    to_the_end(harness)
                while any(region.control.held for region in harness.record.regions.values()):
                    drawing.survive(harness, course, harness.copy())  # until then inputs cannot change
    return {node: oracle.multiset(sink.rows()) for node, sink in built.sinks.items()}, built.markers(), trail


many_workers = st.sampled_from([1, 2, 3, 5, 8, 50])


@pytest.mark.parametrize("timed", [True, False])
@examples(4)
@given(data=st.data())
def test_results_when_keys_are_divided_and_anything_happens_equal_one_sequential_pass(timed, data):
    check(*any_flow(data, timed=timed))


def check_in_versions(data: Any, recipe: r.Recipe, records: oracle.Records, course: drawing.Course) -> None:
    """Run a flow in which strategies change up to three times, and compare every sink with the oracle."""
    steering = {epoch: [c for c in commands if c[0] in ("scale", "move")] for epoch, commands in course.steering.items()}
    course = replace(course, steering=steering, back=None)
    last = max((epoch for rows in records.values() for epoch, _ in rows), default=0)
    stops = sorted(data.draw(st.sets(st.integers(0, last), max_size=3)))
    waiting = data.draw(st.integers(0, len(stops) + 1))
    found, markers, trail = run_in_versions(recipe, records, course, stops, waiting)
    expected = oracle.Oracle(recipe, records, markers, trail=trail)
    for node, rows in found.items():
        compare(f"{type(node).__name__} {node}", rows, expected.content(node))


def any_flow(data: Any, *, timed: bool, steps: int = 5) -> tuple[r.Recipe, oracle.Records, drawing.Course]:
    recipe = data.draw(drawing.recipes(timed=timed, steps=steps, divided=True, changing=True))
    course = replace(data.draw(drawing.courses), workers=data.draw(many_workers))
    return recipe, data.draw(drawing.records(recipe, most=30, edges=True)), course


@pytest.mark.parametrize("timed", [True, False])
@examples(4)
@given(data=st.data())
def test_results_when_strategies_change_between_runs_equal_one_sequential_pass(timed, data):
    check_in_versions(data, *any_flow(data, timed=timed))


# ------------------------------------------------------------------------------------------------ keys on hold while they are divided

EVERY = (
    ("n", "count", None), ("v", "sum", "v"), ("x", "fsum", "x"), ("mean", "mean", "x"), ("least", "min", "s"), ("most", "max", "s"),
    ("first", "first", "v"), ("last", "last", "s"), ("all", "collect", "v"), ("distinct", "count_distinct", "s"), ("said", "said", "j"),
)  # fmt: skip


@st.composite
def restless(draw: Any, *, timed: bool) -> tuple[r.Recipe, oracle.Records, drawing.Course]:
    """Few keys with much state, which are put on hold again and again, and every aggregate."""
    source = r.Source("a", timed, 2 * r.SECOND, (0, 1, 2))
    strategies = tuple(draw(st.lists(st.sampled_from(drawing.STRATEGIES), min_size=1, max_size=2)))
    keyed = r.KeyBy(source, ("k",), "first", (), strategies)
    some = draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=11, unique=True))
    windows = draw(st.lists(st.sampled_from(drawing.WINDOWS if timed else [None]), min_size=1, max_size=2))
    steps = [r.Totals(keyed, tuple(some), window, "update" if window is None else "final") for window in windows]
    nodes: list[r.Node] = [source, keyed, *steps]
    sinks = [*steps, *([keyed] if draw(st.booleans()) else [])]
    if timed:
        late = r.Late(source)
        running = r.Totals(keyed, tuple(some), draw(st.sampled_from([None, drawing.WINDOWS[1]])), "update")
        nodes += [late, running]
        sinks += [late, running]
    recipe = r.Recipe(nodes, sinks)
    epochs = draw(st.integers(4, 10))
    dice = random.Random(draw(st.integers(0, 1 << 30)))
    names = dice.sample(["a", "b", "", None, "x" * 390, "long key " * 9, "é"], dice.choice([1, 2, 4]))
    rows = []
    for p in source.partitions:
        offset = 0
        for epoch in range(epochs):
            for _ in range(dice.choice([0, 0, 1, 3, 9])):
                time = r.SECOND * epoch + dice.randrange(-4 * r.SECOND, r.SECOND)
                rows.append((epoch, {
                    "p": p, "o": offset, "k": dice.choice(names[: dice.choice([1, 7])]), "j": dice.choice([0, 1, None]),
                    "v": dice.choice([None, *range(9)]), "x": dice.choice([*drawing.PLAIN, *drawing.EDGES[:5]]),
                    "s": dice.choice(["a", "ü" * 40, None, ""]),
                } | ({"at": r.moment(time)} if timed else {})))  # fmt: skip
                offset += dice.choice([1, 3])
    steering = {
        epoch: [("scale", None, dice.choice([1, 2, 3, 7]))] * dice.choice([0, 0, 1])
        + [("move", 0, dice.randrange(9), dice.choice([None, 0, 1, 2]))] * dice.choice([0, 1])
        for epoch in range(epochs)
    }
    return recipe, {"a": rows}, drawing.Course(
        dice.choice([1, 2, 3, 50]), {dice.randrange(200): dice.choice([True, False]) for _ in range(dice.choice([0, 2]))},
        dice.randrange(99), drain_last=dice.choice([True, False]), steering=steering,
        limits=(dice.choice([40, 300]), dice.choice([60, 400])), copy_every=dice.choice([2, 3, 4]),
    )  # fmt: skip


@pytest.mark.parametrize("timed", [True, False])
@examples(4)
@given(data=st.data())
def test_results_when_divided_keys_are_put_on_hold_equal_one_sequential_pass(timed, data):
    recipe, records, course = data.draw(restless(timed=timed))
    check(recipe, records, course)


@pytest.mark.parametrize("timed", [True, False])
@examples(4)
@given(data=st.data())
def test_results_when_strategies_change_while_keys_are_put_on_hold_equal_one_sequential_pass(timed, data):
    check_in_versions(data, *data.draw(restless(timed=timed)))


@pytest.mark.soak
@pytest.mark.parametrize("timed", [True, False])
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_of_large_divided_flows_in_several_versions_equal_one_sequential_pass(timed, data):
    check_in_versions(data, *any_flow(data, timed=timed, steps=12))


@pytest.mark.soak
@pytest.mark.parametrize("timed", [True, False])
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_of_restless_divided_flows_in_several_versions_equal_one_sequential_pass(timed, data):
    check_in_versions(data, *data.draw(restless(timed=timed)))
