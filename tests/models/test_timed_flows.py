"""Timers of `stateful_map` against the oracle: flows of timers only, so that a small search finds what is broken.

Read next: `test_against_oracle`, `penstock.operators.timed_calls`.
"""

from __future__ import annotations

from dataclasses import replace

import drawing
import numpy as np
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, check, examples

from penstock.errors import PenstockError
from penstock.operators.base import Context, KeyedState
from penstock.operators.timed_calls import TimedCalls, Timers
from penstock.operators.timed_process import TimedProcess, Turns
from penstock.state import recent_changes
from penstock.state.worker import WorkerState
from penstock.types import MAX_TIME, MIN_TIME
from penstock.worker import collect_state


@st.composite
def timed_flows(draw):
    """One or two steps with timers behind one another, functions or an operator, in one region or in two, and a window that reads what they give."""
    source = r.Source("a", True, draw(st.sampled_from([0, 2])) * r.SECOND, (0, 1))
    keyed = r.KeyBy(source, ("k",), "first")

    own = draw(st.booleans())

    def timed(of: r.Node) -> r.Node:
        ttl = draw(st.sampled_from([None, None, r.SECOND, 3 * r.SECOND, 5 * r.SECOND]))
        if of is keyed and own:
            return r.Process(of, draw(st.sampled_from([*r.TIMED_OPERATORS, "previous"])), ttl)
        return r.Map(of, draw(st.sampled_from([*r.TIMED_FUNCTIONS])), None, draw(st.booleans()), ttl)

    first = timed(keyed)
    nodes = [source, keyed, first]
    again = r.KeyBy(first, ("s",), "second") if draw(st.booleans()) else first
    second = timed(again) if draw(st.booleans()) else r.Map(again, "count")
    totals = r.Totals(first, (("v", "sum", "v"), ("s", "collect", "s")), r.Window("tumbling", 4 * r.SECOND))
    nodes += [*([again] if again is not first else []), second, totals]
    return r.Recipe(nodes, [first, second, totals])


def scales(workers: list[int]) -> dict[int, list[tuple[object, ...]]]:
    """Another number of workers in every second epoch, so that keys which are silent move while their timers are set."""
    return {2 * i: [("scale", None, n)] for i, n in enumerate(workers)}


MOVING = st.builds(
    drawing.Course,
    seed=st.integers(0, 5),
    steering=st.builds(scales, st.lists(st.integers(1, 8), min_size=4, max_size=8)),
    limits=st.just((1 << 20, 1 << 20)),
)
HOLDING = st.builds(
    drawing.Course,
    seed=st.integers(0, 5),
    steering=st.builds(scales, st.lists(st.integers(1, 8), min_size=4, max_size=8)),
    limits=st.just((40, 60)),
    copy_every=st.integers(2, 3),
)


def search(n: int, courses: st.SearchStrategy[drawing.Course] = drawing.courses) -> None:
    @always_the_same(n)
    @given(st.data())
    def compare(data):
        recipe = data.draw(timed_flows())
        check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(courses))

    compare()


@examples(20)
@given(data=st.data())
def test_timers_when_their_keys_move_again_and_again_fire_as_in_one_sequential_pass(data):
    recipe = data.draw(timed_flows())
    check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(MOVING))


@examples(20)
@given(data=st.data())
def test_timers_when_their_keys_are_put_on_hold_again_and_again_fire_as_in_one_sequential_pass(data):
    recipe = data.draw(timed_flows())
    check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(HOLDING))


@examples(60)
@given(data=st.data())
def test_timers_when_anything_happens_fire_as_in_one_sequential_pass(data):
    recipe = data.draw(timed_flows())
    check(recipe, data.draw(drawing.records(recipe, most=45)), data.draw(drawing.courses))


@examples(8)
@given(data=st.data())
def test_timers_in_a_local_store_that_has_every_epoch_fire_as_in_one_sequential_pass(data):
    recipe, course = data.draw(timed_flows()), data.draw(drawing.courses)
    course.lmdb, course.workers = True, min(course.workers, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_changes, "HELD_DELTAS", 0)
        check(recipe, data.draw(drawing.records(recipe, most=45)), course)


# ------------------------------------------------------------------------------------------------------------- broken variants


def timers_fire_after_the_events_of_their_time(patch):
    with_times(patch, lambda t: t - 1)


def timers_of_keys_with_events_fire_after_all_of_an_epoch(patch):
    """As an operator would have it that handles its rows, then the frontier."""
    with_times(patch, lambda _: MIN_TIME)


def with_times(patch, change):
    begin = TimedCalls.__init__

    def other(self, *given):
        begin(self, *given)
        self._time = [change(t) for t in self._time]

    patch.setattr(TimedCalls, "__init__", other)


def timers_at_the_end_fire_from_the_last_frontier_on(patch):
    of = Timers.of
    patch.setattr(Timers, "of", staticmethod(lambda *given: of(*given[:-1], replace(given[-1], latest=given[-1].before))))


def timers_make_a_state_live_longer(patch):
    of = Timers.of
    patch.setattr(Timers, "of", staticmethod(lambda *given: of(*given[:4], given[4] and 2 * given[4], given[5])))


def timers_do_not_move_with_their_keys(patch):
    patch.setattr(collect_state, "_batch", lambda entries, b=collect_state._batch: b([(n, v, MAX_TIME) for n, v, _ in entries]))


def timers_of_keys_that_were_on_hold_count_as_past(patch):
    patch.setattr(Context, "not_past", lambda self, timers, _: np.maximum(timers, self.before))


def timers_of_the_epoch_before_are_lost_with_an_event(patch):
    patch.setattr(WorkerState, "get_timed", lambda self, keys, due=None: (self.get_many(keys), np.full(len(keys), MAX_TIME)))


def timers_that_are_not_due_are_lost_where_a_function_keeps_them(patch):
    patch.setattr(KeyedState, "get_timed", lambda self, names: (self.get(names), np.full(len(names), MAX_TIME)))


def rows_of_operators_come_whatever_timers_they_may_set(patch):
    init = TimedProcess.__init__
    patch.setattr(TimedProcess, "__init__", lambda self, user, ttl_us, lead_us: init(self, user, ttl_us, lead_us + 2_000_000))
    patch.setattr(Turns, "too_early", lambda self, g, name, t: max(t, int(self.context.before)))


def timers_of_operators_do_not_fire_at_the_end(patch):
    patch.setattr(Turns, "fire_once", lambda _: iter(()))


def state_of_operators_outlives_its_time(patch):
    ends = Turns.ends
    patch.setattr(
        Turns, "ends", lambda self, keys: np.where((found := ends(self, keys)) < MAX_TIME, found + (self._ttl or 0), found)
    )


def rows_after_the_time_to_live_come_with_those_before(patch):
    patch.setattr(Turns, "ends_of_bursts", lambda self, _: self._rows.starts[1:] if self._rows else np.empty(0, np.int64))


MUTANTS = {
    state_of_operators_outlives_its_time: drawing.courses,
    rows_after_the_time_to_live_come_with_those_before: drawing.courses,
    timers_of_operators_do_not_fire_at_the_end: drawing.courses,
    rows_of_operators_come_whatever_timers_they_may_set: drawing.courses,
    timers_fire_after_the_events_of_their_time: drawing.courses,
    timers_of_keys_with_events_fire_after_all_of_an_epoch: drawing.courses,
    timers_at_the_end_fire_from_the_last_frontier_on: drawing.courses,
    timers_make_a_state_live_longer: drawing.courses,
    timers_do_not_move_with_their_keys: MOVING,
    timers_of_keys_that_were_on_hold_count_as_past: HOLDING,
    timers_of_the_epoch_before_are_lost_with_an_event: drawing.courses,
    timers_that_are_not_due_are_lost_where_a_function_keeps_them: drawing.courses,
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_timers_are_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search(60, MUTANTS[mutant])
