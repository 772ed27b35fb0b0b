"""Flows of one function over keys, with timers, times to live or none, whose code changes while keys are on hold: a rescale is under way at the stop.

The oracle says by which code each key's rows go: a key on hold goes on where it was held, not where its region had come to.
"""

from __future__ import annotations

import random
from typing import Any

import drawing_changes
import numpy as np
import oracle
import pytest
import recipes as r
import test_changed_recipes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_against_oracle import always_the_same, examples

from penstock.errors import PenstockError
from penstock.operators.base import Context


@st.composite
def changed_functions(draw) -> drawing_changes.Change:
    """A function over keys, a window that reads what it gives, and another function, or another time to live."""
    source = r.Source("a", True, draw(st.sampled_from([0, 2])) * r.SECOND, (0, 1))
    keyed = r.KeyBy(source, draw(st.sampled_from([("k",), ("j",)])), "first")
    functions = [*(draw(st.sampled_from([r.FUNCTIONS, ()]))), *r.TIMED_FUNCTIONS]  # a timer that both know is the hardest part
    fn = draw(st.sampled_from(functions))
    ttl = draw(st.sampled_from([None, None, r.SECOND, 5 * r.SECOND]))
    told = r.Map(keyed, fn, None, draw(st.booleans()), ttl)
    total = r.Totals(told, (("v", "sum", "v"), ("s", "collect", "s")), r.Window("tumbling", 4 * r.SECOND))
    recipe = r.Recipe([source, keyed, told, total], [told, total])
    if draw(st.integers(0, 7)):
        return drawing_changes.change_function(draw, recipe, functions)
    return drawing_changes.change_ttl(draw, recipe, told)


def a_log(dice: random.Random) -> oracle.Records:
    """Records of some keys, a few in each epoch, so that frontier and timers pass keys that are on hold."""
    time, rows, offsets = 0, [], [0, 0]
    for i in range(40):
        time += dice.choice([0, 1, 1, 2])
        p, at = i % 2 if i < 2 else dice.randrange(2), r.moment(max(0, time - dice.choice([0, 0, 0, 1])) * r.SECOND)
        values = {"k": dice.choice("abc"), "j": dice.randrange(4), "v": dice.choice([0, 1, 2, 3, 4, 5, 7]), "x": 0.5, "s": "a"}
        rows.append((i // 3, {"p": p, "o": offsets[p], **values, "at": at}))
        offsets[p] += 1
    return {"a": rows}


def check(data: Any) -> None:
    dice = random.Random(data.draw(st.integers(0, 1 << 32)))
    test_changed_recipes.check(data, data.draw(changed_functions()), holding=True, records=a_log(dice))


@pytest.mark.slow
@examples(12)
@given(data=st.data())
def test_function_that_changes_while_keys_are_on_hold_goes_on_with_each_key_where_it_was_held(data):
    check(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=2_000)
@given(data=st.data())
def test_two_thousand_functions_that_change_while_keys_are_on_hold_go_on_with_each_key_where_it_was_held(data):
    check(data)


# ------------------------------------------------------------------------------------------------------------- broken variants


def timers_of_released_keys_fire_where_their_region_has_come_to(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Context, "not_past", lambda self, timers, _: np.maximum(timers, self.before))


@pytest.mark.slow
def test_search_when_a_released_key_does_not_go_on_where_it_was_held_finds_a_difference(monkeypatch):
    timers_of_released_keys_fire_where_their_region_has_come_to(monkeypatch)

    @always_the_same(40)
    @given(st.data())
    def compare(data):
        check(data)

    with pytest.raises((AssertionError, PenstockError)):
        compare()
