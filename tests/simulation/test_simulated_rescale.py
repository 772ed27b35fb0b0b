"""Live rescaling in random worlds: every property, in forty thousand schedules, a million in the soak. A failure names the seed that shows it again."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from penstock.testing.checkers import check
from penstock.testing.simulator import simulate

SCHEDULES = 40_000
CHUNK = 2_500

KINDS = {
    "JSON round trip",
    "all at once",
    "back and forth at once",
    "bin moved",
    "command in the first epoch",
    "command refused",
    "copy reported twice",
    "crash after advanced",
    "crash after commands",
    "crash after commit",
    "crash after committed",
    "crash after orders",
    "crash after sink",
    "crash after task",
    "crash during hold",
    "crash during interrogate",
    "crash during move",
    "empty epochs",
    "endless new keys",
    "event time",
    "hold",
    "hold in interrogate",
    "hold of a placed key",
    "hold out of a bin",
    "input ends during hold",
    "input ends while interrogate",
    "input ends while move",
    "isolated key goes home",
    "isolated key moved",
    "isolated key moved home",
    "joined inputs",
    "key isolated at its worker",
    "key isolated elsewhere",
    "key moved",
    "load in interrogate",
    "load in move",
    "load in settled",
    "load into hold",
    "load into interrogate",
    "load into move",
    "load into settled",
    "many workers",
    "no event time",
    "refused held collected",
    "refused held released",
    "refused late",
    "refused lost",
    "refused reordered",
    "refused twice",
    "rescale ended",
    "rescale of empty state",
    "retarget during hold",
    "retarget during split",
    "retarget in interrogate",
    "retarget in move",
    "scale below an isolated key",
    "scale beside an isolated key",
    "scale down",
    "scale up",
    "split",
    "two regions",
    "waiting records moved",
    "waiting records queued",
    "worker opened again",
}


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
    spawn = multiprocessing.get_context("spawn")
    # Modules are set aside: no collection visits them.
    with ProcessPoolExecutor(2, mp_context=spawn, initializer=gc.freeze) as pool:
        for those, wrong in pool.map(play, chunks):
            assert wrong is None, wrong
            seen += those
    return seen


@pytest.mark.slow
def test_every_property_holds_when_anything_happens():
    seen = search(0, SCHEDULES)
    rare = {kind: seen[kind] for kind in KINDS if seen[kind] < SCHEDULES // 500}
    assert not rare, f"The search says little about {rare}."
    assert seen.keys() == KINDS


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_property_holds_in_a_million_schedules_when_anything_happens():
    search(10_000_000, 1_000_000)


def test_first_schedules_hold_every_property_when_there_is_little_time():
    _, wrong = play(range(20_000_000, 20_002_000))
    assert wrong is None, wrong


def test_run_is_the_same_when_the_process_has_another_hash_seed():
    ask = "from penstock.testing.simulator import simulate; print([simulate(s).emitted for s in range(20)])"
    path = os.pathsep.join(sys.path)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", ask], env={"PYTHONHASHSEED": salt, "PYTHONPATH": path}, capture_output=True, check=True
        ).stdout
        for salt in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].decode() == f"{[simulate(s).emitted for s in range(20)]}\n"


def test_trace_tells_every_epoch_when_asked():
    lines = []
    outcome = simulate(7, trace=lines.append)
    assert sum(line.startswith("--- epoch") for line in lines) == len(outcome.epochs)
