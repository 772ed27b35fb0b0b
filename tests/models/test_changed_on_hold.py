"""Flows of one function over keys, with timers, times to live or none, whose code changes while keys are on hold: a rescale is under way at the stop.

The oracle says by which code each key's rows go: a key on hold goes on where it was held, not where its region had come to.
"""

from __future__ import annotations

import drawing_changes
import pytest
import recipes as r
import test_changed_recipes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_against_oracle import examples


@st.composite
def changed_functions(draw) -> drawing_changes.Change:
    """A function over keys, a window that reads what it gives, and another function, or another time to live."""
    source = r.Source("a", True, draw(st.sampled_from([0, 2])) * r.SECOND, (0, 1))
    keyed = r.KeyBy(source, draw(st.sampled_from([("k",), ("j",)])), "first")
    fn = draw(st.sampled_from([*r.FUNCTIONS, *r.TIMED_FUNCTIONS]))
    ttl = draw(st.sampled_from([None, None, r.SECOND, 5 * r.SECOND]))
    told = r.Map(keyed, fn, None, draw(st.booleans()), ttl)
    total = r.Totals(told, (("v", "sum", "v"), ("s", "collect", "s")), r.Window("tumbling", 4 * r.SECOND))
    recipe = r.Recipe([source, keyed, told, total], [told, total])
    if draw(st.integers(0, 7)):
        return drawing_changes.change_function(draw, recipe)
    return drawing_changes.change_ttl(draw, recipe, told)


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_function_that_changes_while_keys_are_on_hold_goes_on_with_each_key_where_it_was_held(data):
    test_changed_recipes.check(data, data.draw(changed_functions()), holding=True)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=2_000)
@given(data=st.data())
def test_two_thousand_functions_that_change_while_keys_are_on_hold_go_on_with_each_key_where_it_was_held(data):
    test_changed_recipes.check(data, data.draw(changed_functions()), holding=True)
