"""The checkers of groups are checked: each broken world must be found out, and by the property that it breaks."""

from __future__ import annotations

import pytest
from broken_agents import VARIANTS as AGENTS
from broken_groups import VARIANTS, ReadsTheStream

from penstock.testing.group.checkers import check
from penstock.testing.group.simulator import simulate

SEEDS = 5_000


@pytest.mark.parametrize(("world", "properties"), [pytest.param(*each, id=name) for name, each in (VARIANTS | AGENTS).items()])
def test_broken_group_is_found_out_when_searched(world, properties):
    found = set()
    for seed in range(SEEDS):
        found |= {v.property for v in check(simulate(seed, world))}
        if properties <= found:
            return
    pytest.fail(f"{SEEDS} seeds show {sorted(found)} broken, and should show {sorted(properties)}.")


def test_group_that_only_reads_the_control_stream_settles_when_the_stream_loses_nothing():
    accused = {seed: found for seed in range(1_000) if (found := check(simulate(seed, ReadsTheStream)))}
    assert not accused
