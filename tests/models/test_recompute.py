"""Any flow, whose checkpoint or sinks are lost in any way and again: what one sequential pass gives, or a refusal that changes nothing.

Read next: `recomputing`.
"""

from __future__ import annotations

import random
from collections import Counter

import drawing
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recomputing import Life
from test_against_oracle import compare, examples

COUNTED: Counter[str] = Counter()


def check(recipe, records, seed) -> None:
    """Live a life, and compare every sink with the oracle."""
    lived = Life(recipe, records, random.Random(seed)).run()
    COUNTED["cases"] += 1
    COUNTED["recomputed"] += lived.recomputed
    COUNTED["crashed"] += lived.crashed
    if lived.refusal:
        COUNTED[lived.refusal[:200]] += 1
        for node, found in lived.contents.items():
            compare(f"refused ({lived.refusal}), {type(node).__name__} {node}", found, lived.before.get(node, Counter()))
        return
    expected = oracle.Oracle(recipe, records, lived.markers)
    for node, found in lived.contents.items():
        compare(f"{type(node).__name__} {node}", found, expected.content(node))


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_flow_that_is_computed_anew_gives_what_one_sequential_pass_gives(data):
    recipe = data.draw(drawing.recipes(steps=5))
    check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=20_000)
@given(data=st.data())
def test_twenty_thousand_flows_that_are_computed_anew_give_what_one_sequential_pass_gives(data):
    recipe = data.draw(drawing.recipes(steps=5))
    check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))
