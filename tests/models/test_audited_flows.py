"""The audit accuses no flow that is deterministic: random flows, whatever happens to them, with every epoch, or one in n, computed twice.

`tests/worker/test_audit.py` shows that it accuses those that are not.
"""

from __future__ import annotations

from functools import partial

import drawing
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import check, examples

from penstock.testing import Harness


@pytest.fixture(autouse=True)
def _audited(monkeypatch):
    """Flows are audited, as `check_audited` draws."""
    monkeypatch.setattr(drawing, "Harness", Harness)


def check_audited(data, recipe, course):
    drawing.Harness = partial(Harness, audit=data.draw(st.sampled_from([True, True, 2, 5])))
    check(recipe, data.draw(drawing.records(recipe, edges=True)), course)


@examples(34)
@given(data=st.data())
def test_random_flows_when_audited_give_the_same_and_are_never_accused(data):
    recipe = data.draw(drawing.recipes(changing=True))
    check_audited(data, recipe, data.draw(drawing.courses))


@examples(20)
@given(data=st.data())
def test_random_flows_without_event_time_when_audited_are_never_accused(data):
    recipe = data.draw(drawing.recipes(timed=False, changing=True))
    check_audited(data, recipe, data.draw(drawing.courses))


@examples(5)
@given(data=st.data())
def test_random_flows_with_state_on_disk_when_audited_are_never_accused(data):
    recipe = data.draw(drawing.recipes(steps=4, changing=True))
    course = data.draw(drawing.courses)
    course.lmdb, course.workers = True, min(course.workers, 2)
    check_audited(data, recipe, course)
