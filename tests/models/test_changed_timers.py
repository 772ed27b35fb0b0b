"""Flows whose operators get, lose or change timers, times to live and migrations, or whose sources other options, between two runs.

They are those of `test_changed_recipes`, of few steps, so that a small search finds what is broken.
"""

from __future__ import annotations

from dataclasses import replace

import drawing_changes
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, examples
from test_changed_recipes import check

from penstock.driver import epoch
from penstock.errors import PenstockError
from penstock.operators.migration import MigratedView
from penstock.operators.timed_process import TimedProcess
from penstock.progress import lateness


@st.composite
def changed_operators(draw) -> drawing_changes.Change:
    """An operator of a user's own, what reads it, and a change of it."""
    source = r.Source("a", True, draw(st.sampled_from([0, 2])) * r.SECOND, (0, 1))
    keyed = r.KeyBy(source, ("k",), "first")
    operator = draw(st.sampled_from(["previous", *r.TIMED_OPERATORS]))
    own = r.Process(keyed, operator, draw(st.sampled_from([None, None, r.SECOND, 5 * r.SECOND])))
    total = r.Totals(own, (("v", "sum", "v"), ("s", "collect", "s")), r.Window("tumbling", 4 * r.SECOND))
    recipe = r.Recipe([source, keyed, own, total], [own, total])
    if draw(st.integers(0, 5)):
        return drawing_changes.change_process(draw, recipe)
    return drawing_changes.change_ttl(draw, recipe, own)


@st.composite
def changed_sources(draw) -> drawing_changes.Change:
    """A source, its late records and those ahead, what reads it, and a change of its options."""
    source = r.Source("a", partitions=(0, 1))
    keyed = r.KeyBy(source, ("k",), "first")
    told = r.Map(keyed, draw(st.sampled_from(["history", "quiet", "often"])))
    total = r.Totals(keyed, (("v", "sum", "v"), ("s", "concat", "s")), r.Window("tumbling", 5 * r.SECOND))
    recipe = r.Recipe([source, keyed, told, total, late := r.Late(source)], [source, told, total, late])
    return drawing_changes.change_options(draw, recipe, stops_closing=draw(st.booleans()))


def search(changes: st.SearchStrategy[drawing_changes.Change], n: int) -> None:
    @always_the_same(n)
    @given(st.data())
    def differ(data):
        check(data, data.draw(changes))

    differ()


@pytest.mark.slow
@examples(90)
@given(data=st.data())
def test_operator_that_changes_between_two_runs_is_refused_or_gives_what_both_versions_give(data):
    check(data, data.draw(changed_operators()), holding=data.draw(st.booleans()))


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_source_whose_options_change_between_two_runs_gives_what_both_versions_give(data):
    check(data, data.draw(changed_sources()))


# ------------------------------------------------------------------------------------------------------------- broken variants


def time_to_live_of_an_operator_means_nothing(patch):
    patch.setattr(TimedProcess, "meaning", lambda self, *given: self._user.meaning(*given))


def state_goes_through_a_migration_again_and_again(patch):
    patch.setattr(MigratedView, "put_many", lambda self, *given: self._view.put_many(*given))


def source_that_no_longer_closes_forgets_that_it_was_closed(patch):
    whole = lateness.check_lateness

    def judged(before, chunks, **about):
        return whole(before if about["close_after_us"] else replace(before, closed=False), chunks, **about)

    patch.setattr(epoch, "check_lateness", judged)


def another_lateness_counts_for_what_came_before(patch):
    patch.setattr(epoch, "with_floors", lambda record, _: record)


MUTANTS = {
    time_to_live_of_an_operator_means_nothing: changed_operators(),
    state_goes_through_a_migration_again_and_again: changed_operators(),
    another_lateness_counts_for_what_came_before: changed_sources(),
    source_that_no_longer_closes_forgets_that_it_was_closed: changed_sources(),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_taking_over_operators_and_sources_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError, TypeError, ValueError)):
        search(MUTANTS[mutant], 300)
