"""Any flow, on any data, cut into any epochs, on any number of workers, with any crashes: what one sequential pass gives."""

from __future__ import annotations

import drawing
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def check(recipe, data, course, **how):
    ran = drawing.run(recipe, data, course, **how)
    expected = oracle.Oracle(recipe, data, ran.markers)
    for node, found in ran.contents.items():
        wanted = expected.content(node)
        assert found == wanted, f"{node}: missing {wanted - found}, too many {found - wanted}"


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    monkeypatch.setattr("penstock.state.files._force", lambda *_: None)


SETTINGS = settings(suppress_health_check=list(HealthCheck), max_examples=200)


@SETTINGS
@given(st.data())
def test_results_when_anything_happens_equal_one_sequential_pass(data):
    recipe = data.draw(drawing.recipes())
    check(recipe, data.draw(drawing.records(recipe)), data.draw(drawing.courses))
