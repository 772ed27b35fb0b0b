"""Functions that fail on a state which no pass over the whole log has: a replay from the middle meets such states, and must give what it gives without failures.

Read next: `test_recompute`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drawing
import oracle
import pytest
import recipes as r
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from recomputing import Life
from test_against_oracle import always_the_same, examples
from test_recompute import COUNTED, check

from penstock.driver import recompute
from penstock.driver.loop import Loop
from penstock.errors import OperatorError

MET: set[str] = set()
"""What one pass over the whole log has given to functions."""
STRICT = [False]
COMPARED = ("k", "j", "v", "s")
"""Not x, which may be a sum of floating-point numbers."""


def strict(name: str, fn: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """The function, which fails on what it is not given in one pass."""

    def call(key: Any, event: Any, state: Any) -> Any:
        told = repr((name, [getattr(event, c) for c in COMPARED], None if state is None else (state[0], state[1])))
        if not STRICT[0]:
            MET.add(told)
        elif told not in MET:
            COUNTED["failed in a replay"] += 1
            raise ValueError("this never was")
        return fn(key, event, state)

    return call


def strictly(run: Callable[[Life], Any]) -> Callable[[Life], Any]:
    """A life in which functions are strict, and are not when the oracle asks them."""

    def lived(life: Life) -> Any:
        STRICT[0] = True
        try:
            return run(life)
        finally:
            STRICT[0] = False

    return lived


def bounded(recipe: r.Recipe) -> bool:
    return any(isinstance(n, r.Map) and n.fn in r.FUNCTIONS and (n.window or n.ttl_us) for n in recipe.nodes)


def check_strict(data: Any) -> None:
    """Live the life of a flow with a function whose state ends with a window, or with its time to live."""
    recipe = data.draw(drawing.recipes(steps=4).filter(bounded))
    records = data.draw(drawing.records(recipe, most=50))
    MET.clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, fn in [*r.FUNCTIONS.items()]:
            patch.setitem(r.FUNCTIONS, name, strict(name, fn))
        patch.setattr(Life, "run", strictly(Life.run))
        patch.setattr(recompute, "FIRST_REACH", 1)  # so that short logs are replayed from the middle
        whole = oracle.Oracle(recipe, records, {})
        for node in recipe.nodes:
            if not isinstance(node, r.Late | r.Ahead):
                whole.rows(node)
        check(recipe, records, data.draw(st.integers(0, 1 << 32)))


@pytest.mark.slow
@examples(25)
@given(data=st.data())
def test_flow_whose_functions_fail_on_what_a_replay_lacks_is_computed_anew_as_if_they_did_not(data):
    check_strict(data)


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=2_000)
@given(data=st.data())
def test_two_thousand_flows_whose_functions_fail_on_what_a_replay_lacks_are_computed_anew_as_if_they_did_not(data):
    check_strict(data)


def test_search_when_a_replay_does_not_begin_anew_because_of_a_failure_finds_it(monkeypatch):
    monkeypatch.setattr(Loop, "_gives_up", lambda *_: False)

    @seed(310)
    @settings(always_the_same(25), derandomize=False)
    @given(st.data())
    def differ(data):
        check_strict(data)

    with pytest.raises(OperatorError, match="this never was"):
        differ()
