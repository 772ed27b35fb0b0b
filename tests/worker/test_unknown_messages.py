"""A message that the receiver does not know is an error: it would have been an order, and the epoch would commit without it."""

from __future__ import annotations

import dataclasses

import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.protocol.messages import Barrier, Frontier
from penstock.state.worker import MemoryState
from penstock.testing import Harness
from penstock.testing.schedule import Command, draw
from penstock.testing.simulated_worker import Stage, State, Worker
from penstock.testing.simulator import World
from penstock.types import MAX_TIME, MIN_TIME
from penstock.worker.task import run_region_task


@dataclasses.dataclass(frozen=True)
class Pause:
    """No message of this version."""

    epoch: int


ORDERS = (Frontier(MIN_TIME, MAX_TIME), Pause(3), Barrier(3))
WHY = r"^Worker 1 was given Pause\(epoch=3\), which is no message that this version knows\.$"


def test_worker_when_it_is_given_a_message_it_does_not_know_refuses_it():
    flow = ps.Flow("unknown")
    flow.source("a", ps.files("none", "k string, v long")).key_by("k").aggregate(n=ps.count()).sink(ps.memory("unknown"))
    with Harness(flow, workers=2) as harness:
        spec = harness._compiled.regions["k"].spec
        with pytest.raises(PenstockError, match=WHY):
            run_region_task(spec, 1, 3, ORDERS, [], MemoryState())


def test_simulated_worker_when_it_is_given_a_message_it_does_not_know_refuses_it():
    stage = Stage(0, 3, timed=False, inputs=1, frontier=MAX_TIME, bins=64, sizes={})
    with pytest.raises(PenstockError, match=WHY):
        Worker(stage, 1, State()).run(ORDERS, (), ())


def test_simulator_when_it_is_given_a_command_it_does_not_know_refuses_it():
    world = World(*draw(1))
    with pytest.raises(PenstockError, match=r"^'dance' is no command that this version knows\.$"):
        world.commanded(1, [Command("dance", 0, 1, ())])
