"""Groups in random worlds: every property, in many schedules, a million in the soak. A failure names the seed that shows it again."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from penstock.testing.group.checkers import check
from penstock.testing.group.schedule import KINDS
from penstock.testing.group.simulator import simulate

SCHEDULES = 100_000
CHUNK = 5_000
MET = {*KINDS, "died at a command", "killed", "lock wanted", "no answer"}


def play(seeds):
    """How often each kind of thing happened, and the first wrong run."""
    seen = Counter()
    for seed in seeds:
        outcome = simulate(seed)
        seen.update(outcome.seen)
        if found := check(outcome):
            return seen, f"simulate({seed}, trace=print) shows: " + "; ".join(f"{v.property}: {v.what}" for v in found[:5])
    return seen, None


def search(first, schedules):
    """Play them on two cores."""
    chunks = [range(at, min(at + CHUNK, first + schedules)) for at in range(first, first + schedules, CHUNK)]
    seen = Counter()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for those, wrong in pool.map(play, chunks):
            assert wrong is None, wrong
            seen += those
    return seen


@pytest.mark.slow
def test_every_property_of_a_group_holds_when_anything_happens():
    seen = search(0, SCHEDULES)
    rare = {kind: seen[kind] for kind in MET if seen[kind] < SCHEDULES // 500}
    assert not rare, f"The search says little about {rare}."
    assert seen.keys() == MET


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_property_of_a_group_holds_in_a_million_schedules_when_anything_happens():
    search(10_000_000, 1_000_000)


def test_first_groups_hold_every_property_when_there_is_little_time():
    _, wrong = play(range(20_000_000, 20_003_000))
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
