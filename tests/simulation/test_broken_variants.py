"""The checkers are checked: each broken world must be found out, soon, and by the property that it breaks."""

from __future__ import annotations

import pytest
from broken import VARIANTS

from penstock.testing.checkers import check
from penstock.testing.simulator import World, simulate

SEEDS = 2_000


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_world_is_found_out_when_searched(name):
    world, properties = VARIANTS[name]
    found = set()
    for seed in range(SEEDS):
        found |= {v.property for v in check(simulate(seed, world))}
        if properties <= found:
            return
    pytest.fail(f"{SEEDS} seeds show {sorted(found)} broken, and should show {sorted(properties)}.")


def test_sound_world_is_not_accused_when_searched():
    accused = {seed: found for seed in range(SEEDS) if (found := check(simulate(seed, World)))}
    assert not accused
