"""Groups in random worlds: every property, in many schedules, a million in the soak. A failure names the seed that shows it again."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import pytest

from penstock.testing.group.agent import AgentWorld
from penstock.testing.group.checkers import check
from penstock.testing.group.schedule import KINDS
from penstock.testing.group.simulator import World, simulate

SCHEDULES = 92_000
OF_AGENTS = 8_000
LARGE = 200
CHUNK = 5_000
MET = {*KINDS, "died at a command", "killed", "lock wanted", "no answer"}
MET_OF_AGENTS = {*MET, "handler failed", "handler tried again"}
WORLDS = {
    # name: (world, whether runs are large, how many, how many in the soak, what they meet)
    "members": (World, False, SCHEDULES, 1_000_000, MET),
    "agents": (AgentWorld, False, OF_AGENTS, 200_000, MET_OF_AGENTS),
    "many members": (World, True, LARGE, 5_000, None),
    "many agents": (AgentWorld, True, LARGE, 5_000, None),
}


def play(seeds, world=World, large=False):
    """How often each kind of thing happened, and the first wrong run."""
    seen = Counter()
    for seed in seeds:
        outcome = simulate(seed, world, large=large)
        seen.update(outcome.seen)
        if found := check(outcome):
            told = "; ".join(f"{v.property}: {v.what}" for v in found[:5])
            return seen, f"simulate({seed}, {world.__name__}, large={large}, trace=print) shows: {told}"
    return seen, None


def search(first, schedules, world, large):
    """Play them on two cores."""
    chunks = [range(at, min(at + CHUNK, first + schedules)) for at in range(first, first + schedules, CHUNK)]
    seen = Counter()
    spawn = multiprocessing.get_context("spawn")
    # Modules are set aside: no collection visits them.
    with ProcessPoolExecutor(2, mp_context=spawn, initializer=gc.freeze) as pool:
        for those, wrong in pool.map(play, chunks, repeat(world), repeat(large)):
            assert wrong is None, wrong
            seen += those
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_every_property_of_a_group_holds_when_anything_happens(name):
    world, large, schedules, _, met = WORLDS[name]
    seen = search(0, schedules, world, large)
    rare = {kind: seen[kind] for kind in met or () if seen[kind] < schedules // 500}
    assert not rare, f"The search says little about {rare}."
    assert met is None or seen.keys() == met


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_every_property_of_a_group_holds_in_a_million_schedules_when_anything_happens(name):
    world, large, _, schedules, _ = WORLDS[name]
    search(10_000_000, schedules, world, large)


def test_first_groups_hold_every_property_when_there_is_little_time():
    for world, schedules, large in ((World, 2_500, False), (AgentWorld, 500, False), (AgentWorld, 30, True)):
        _, wrong = play(range(20_000_000, 20_000_000 + schedules), world, large)
        assert wrong is None, wrong


def test_group_is_the_same_when_the_process_has_another_hash_seed():
    ask = "from penstock.testing.group.simulator import simulate; print([simulate(s).log for s in range(40)])"
    path = os.pathsep.join(sys.path)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", ask], env={"PYTHONHASHSEED": salt, "PYTHONPATH": path}, capture_output=True, check=True
        ).stdout
        for salt in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].decode() == f"{[simulate(s).log for s in range(40)]}\n"


def test_trace_of_a_group_tells_every_disturbance_when_asked():
    lines = []
    outcome = simulate(7, trace=lines.append)
    assert sum(" --- " in line for line in lines) == len(outcome.schedule.disturbances)
