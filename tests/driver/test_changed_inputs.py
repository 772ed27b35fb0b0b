"""Steps that come to wait for the frontier, or no longer do, or read another input, while rows wait for a step beside them."""

from __future__ import annotations

import pytest
from changing import Changing, Last, counted, row

import penstock as ps
from penstock.errors import ChangedFlowError


def flow(prepare=lambda keyed: keyed, beside=lambda keyed: keyed, **aggregates):
    """An aggregate beside a step that waits, each with something between it and the key."""

    def declare(stream):
        keyed = stream.key_by("k")
        steps = counted(beside(keyed))
        return steps, prepare(keyed).window(ps.tumbling("1 hour")).aggregate(**({"n": ps.count()} | aggregates))

    return declare


def unique(keyed):
    return keyed.deduplicate("id")


@pytest.fixture
def changing(tmp_path):
    return Changing(tmp_path)


def totals(changing):
    return [r["n"] for r in changing.rows() if "n" in r and "window_start" in r], [r["n"] for r in changing.rows() if "x" in r]


WAITS = {"has an aggregate in order": flow(last=Last("v")), "is behind a step in order": flow(unique)}


@pytest.mark.parametrize("after", WAITS)
def test_aggregate_that_comes_to_wait_for_rows_that_it_has_counted_is_refused(after, changing):
    changing.run(flow(), [row(1), row(2)])
    with pytest.raises(
        ChangedFlowError,
        match=r"Rows waiting at the start of region 'k' .* step 'aggregate' has seen them .* and would see them again",
    ):
        changing.run(WAITS[after])
    changing.run(flow(), [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])


@pytest.mark.parametrize("before", WAITS)
def test_aggregate_that_no_longer_waits_for_rows_that_wait_is_refused(before, changing):
    changing.run(WAITS[before], [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match=r"they wait for step '[a-z]+', and would not come to it now"):
        changing.run(flow())
    changing.run(WAITS[before], [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])


def test_aggregate_in_order_when_it_is_a_step_of_its_own_goes_on(changing):
    def more(stream):
        keyed = stream.key_by("k")
        hour = keyed.window(ps.tumbling("1 hour"))
        return counted(keyed), hour.aggregate(n=ps.count(), name="aggregate"), hour.aggregate(last=Last("v"), name="last")

    changing.run(flow(), [row(1), row(2)])
    changing.run(more, [row(3)], drain=True)
    assert totals(changing) == ([3], [1, 2, 3])
    assert [r["last"] for r in changing.rows() if "last" in r] == [3]


def test_step_that_comes_to_read_another_input_while_rows_wait_for_it_is_refused(changing):
    def seen(key, event, state):
        n = (0 if state is None else state[0]) + 1
        return (event.v, n), (n,)

    def declare(behind):
        def both(stream):
            keyed = stream.key_by("k")
            other = keyed.where("x > 0").deduplicate("id") if behind else keyed
            return counted(keyed), other.stateful_map(seen, "v long, n long", "n long", name="seen")

        return both

    changing.run(declare(False), [row(1), row(2)])
    with pytest.raises(ChangedFlowError, match="they wait for step 'seen', and would not come to it now"):
        changing.run(declare(True))
    changing.run(declare(False), [row(3)], drain=True)
    assert [(r["v"], r["n"]) for r in changing.rows() if "v" in r] == [(1, 1), (2, 2), (3, 3)]


def test_steps_that_change_places_behind_one_input_go_on(changing):
    def chained(stream):
        return counted(unique(stream.key_by("k")), name="c")

    def beside(stream):
        keyed = stream.key_by("k")
        return counted(keyed, name="c"), unique(keyed)

    changing.run(chained, [row(1), row(2, id=1)])
    changing.run(beside, [row(3, 20), row(4, 31)])
    changing.run(chained, [row(5, 60, id=3)], drain=True)
    assert [(r["x"], r["n"]) for r in changing.rows() if "n" in r] == [(1, 1), (2, 2), (3, 3), (4, 4)]


BEHIND = {
    "where": lambda stream: stream.where("v <> 2"),
    "a column": lambda stream: stream.with_columns(u="v + 1"),
    "a function": lambda stream: stream.map_batches(lambda rows: rows.select(["k", "v"]), "k string, v long"),
}


def without_a_step(behind, step):
    return lambda stream: behind(step(stream.key_by("k")))


@pytest.mark.parametrize("behind", BEHIND)
def test_step_that_goes_when_what_followed_the_region_comes_to_stand_before_it_is_refused(behind, changing):
    changing.run(without_a_step(BEHIND[behind], unique), [row(1), row(2)])
    with pytest.raises(
        ChangedFlowError,
        match=r"they wait for step 'deduplicate', which is gone, and would leave the region without what stands before it now",
    ):
        changing.run(without_a_step(BEHIND[behind], lambda keyed: keyed))
    changing.run(without_a_step(BEHIND[behind], unique), [row(3)], drain=True)
    changing.rows()


def test_step_that_goes_when_nothing_else_changes_lets_the_waiting_rows_out(changing):
    changing.run(without_a_step(lambda stream: stream, unique), [row(1), row(2)])
    changing.run(without_a_step(lambda stream: stream, lambda keyed: keyed), [row(2)], drain=True)
    assert sorted(r["v"] for r in changing.rows()) == [1, 2, 2]
