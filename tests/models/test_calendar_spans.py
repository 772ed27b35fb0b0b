"""Windows of a zone whose clock is put forth and back at random, against those of the slow oracle."""

from __future__ import annotations

import numpy as np
import oracle
import recipes as r
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.zones import Zone


@st.composite
def zones(draw):
    changes = sorted(draw(st.sets(st.integers(-30, 30), max_size=4)))
    return Zone("drawn", tuple(changes), tuple(draw(st.integers(-12, 12)) for _ in range(len(changes) + 1)))


@given(
    zones(), st.integers(1, 12), st.integers(1, 12), st.integers(0, 11), st.lists(st.integers(-60, 60), min_size=1, max_size=30)
)
@settings(max_examples=400, deadline=None)
def test_windows_of_any_zone_are_those_of_the_oracle(zone, size, slide, offset, times):
    slide = min(slide, size)
    drawn = r.Window("sliding", size, slide, offset % slide, zone)
    window = drawn.declared()
    index, starts = window.spread(window.panes(np.array(times, np.int64)))
    found = sorted(zip(np.array(times)[index].tolist(), starts.tolist(), window.ends(starts).tolist(), strict=True))
    assert found == sorted((time, *span) for time in times for span in oracle.spans(drawn, time))
    places = list(zip(window.ends(starts).tolist(), window.ranks(starts).tolist(), strict=True))
    by_place = dict(zip(places, starts.tolist(), strict=True))
    assert len(by_place) == len(set(starts.tolist()))
    assert sorted(by_place.values()) == [by_place[p] for p in sorted(by_place)]
