"""Any flow, whose checkpoint or sinks are lost in any way and again: what one sequential pass gives, or a refusal that changes nothing.

Read next: `recomputing`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import drawing
import oracle
import pytest
import recipes as r
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recomputing import Life
from test_against_oracle import compare, examples

COUNTED: Counter[str] = Counter()


def upstream(*nodes: Any) -> list[Any]:
    """Nodes and all that their rows come through."""
    found = list(nodes)
    for node in found:
        of = getattr(node, "of", None)
        found += [n for n in (*(of if isinstance(of, tuple) else (of,)), getattr(node, "other", None)) if n and n not in found]
    return found


def check(recipe: r.Recipe, records: oracle.Records, seed: int, *, by_epoch: bool = False) -> None:
    """Live a life, and compare every sink with the oracle; `by_epoch`: results depend on epochs, so no start may compute them anew."""
    lived = Life(recipe, records, random.Random(seed)).run()
    COUNTED["cases"] += 1
    COUNTED["recomputed"] += lived.recomputed
    COUNTED["crashed"] += lived.crashed
    if lived.refusal:
        COUNTED[re.sub(r"'[^']*'|[0-9]+", "…", lived.refusal)] += 1
        if "let it give more" in lived.refusal:  # after the first mark, whose sink has been given rows
            return
        for node, found in lived.contents.items():
            compare(f"refused ({lived.refusal}), {type(node).__name__} {node}", found, lived.before.get(node, Counter()))
        return
    if by_epoch:
        assert not lived.recomputed
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


@pytest.mark.slow
@examples(25)
@given(data=st.data())
def test_flow_without_event_time_that_is_computed_anew_goes_by_offsets_or_is_refused(data):
    """Without event time the order of rows from several partitions is that of the epochs they came in, which a replay does not know."""
    recipe = data.draw(drawing.recipes(timed=False, steps=4))
    records = data.draw(drawing.records(recipe, most=20))
    at_once = {name: [(0, x) for _, x in rows] for name, rows in records.items()}
    ordered = [n for n in upstream(*recipe.sinks) if isinstance(n, r.Map | r.Distinct | r.Process)]
    mixed = [n for n in ordered if sum(len(s.partitions) for s in upstream(n) if isinstance(s, r.Source)) > 1]
    check(recipe, at_once, data.draw(st.integers(0, 1 << 32)), by_epoch=bool(mixed))


@pytest.mark.soak
@settings(suppress_health_check=list(HealthCheck), max_examples=20_000)
@given(data=st.data())
def test_twenty_thousand_flows_that_are_computed_anew_give_what_one_sequential_pass_gives(data):
    recipe = data.draw(drawing.recipes(steps=5))
    check(recipe, data.draw(drawing.records(recipe, most=30)), data.draw(st.integers(0, 1 << 32)))
