"""The handles of two applications of a group, ordered about at random by a referee: what is stored is what one pass over each partition gives.

The referee plays the group, also at its worst: it may give a partition to one application while the other one still works on it. Runs, loops,
checkpoints and sinks are the real ones, in threads; `tests/faults` has the same over Spark with processes and a real server.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.checkpoint.group_folder import GroupFolder
from penstock.driver.compile import compile_flow
from penstock.driver.group_run import GroupRun
from penstock.driver.loop import Loop
from penstock.driver.opener import RunOpener
from penstock.driver.run import Run
from penstock.errors import DeclarationError, FencedError, OperatorError, PenstockError, ReplacedError
from penstock.flow.shared import of_partition
from penstock.protocol.rescale import STANDARD
from penstock.sources.base import Shared, Source
from penstock.testing.engine import LocalEngine
from penstock.types import OFFSET, PARTITION

PARTITIONS = 3
SCHEMA = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("k", pa.string())])


@dataclass(frozen=True)
class Stream(Source):
    """A partitioned stream whose records the runs are given."""

    schema: pa.Schema = SCHEMA
    position = ("p", "o")

    def shared(self):
        return Shared("orders", PARTITIONS)

    def only(self, partition):
        return self


PER_EPOCH, EPOCHS = 4, 30


def total(key, event, state):
    n = (state or 0) + event.o
    if event.k == "poison":
        raise ValueError("a record that nobody can handle")
    return (event.p, event.o, n), n


def shop(folder) -> ps.Flow:
    folder.mkdir(exist_ok=True)
    flow = ps.Flow("shop")
    keyed = flow.source("orders", Stream()).key_by("k", distribute=ps.ByPartition())
    keyed.stateful_map(total, "p long, o long, n long").sink(ps.sql(f"sqlite:///{folder}/out.db", "totals"), name="totals")
    return flow


def rows_of(partition: int, epoch: int, poison: int = -1) -> pa.Table:
    offsets = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
    keys = ["poison" if partition == poison and o == 40 else "ab"[o % 2] for o in offsets]
    return pa.table(
        {
            "p": pa.array([partition] * PER_EPOCH),
            "o": pa.array(offsets),
            "k": pa.array(keys),
            PARTITION: pa.array([partition] * PER_EPOCH),
            OFFSET: pa.array(offsets),
        }
    )


def wanted() -> list[tuple[int, int, int]]:
    found = []
    for partition in range(PARTITIONS):
        sums = {0: 0, 1: 0}
        for o in range(EPOCHS * PER_EPOCH):
            sums[o % 2] += o
            found.append((partition, o, sums[o % 2]))
    return found


class Member:
    """An application's member: what the referee tells it is so."""

    def __init__(self):
        self.epoch, self.error, self.owned, self.has_left = 0, None, {}, False
        self.ended: list[int] = []

    def start(self):
        pass

    def stopped(self, partition):
        self.ended.append(partition)

    def leave(self, grace_s=None):
        self.has_left = True
        for number in list(self.owned):
            self.run.stop(number, 5.0)
        while self.owned:
            for number in self.ended:
                self.owned.pop(number, None)
            time.sleep(0.01)

    def close(self):
        pass


def application(folder, poison: int = -1, broken: int = 0, *, commanded: bool = False) -> tuple[GroupRun, Member]:
    """One application. `poison`: a partition with a record that nobody can handle. `broken`: so often its engine fails. `commanded`: there are
    epochs without records, for commands, so what comes next is what is not stored; nobody may be killed then.
    """
    shared, breaks = GroupFolder(str(folder / "group")), iter(range(broken))

    def begin(number: int) -> Run:
        checkpoint = Checkpoint(shared.partition(number))
        compiled = compile_flow(of_partition(shop(folder), number).plan(), lambda node, _: node.schema, lambda *_: None)
        engine = LocalEngine(checkpoint, lmdb=False, most=None)
        engine.local = f"{engine.local}-{time.monotonic_ns()}"
        loop = Loop(RunOpener(compiled, checkpoint, engine, {"k": 1}, STANDARD, lambda _: None))

        def feed():
            epoch = sum(row[0] == number for row in stored(folder)) // PER_EPOCH if commanded else loop.last.epoch + 1
            if epoch >= 3 and next(breaks, None) is not None:
                raise OSError("a process did not come up")
            if epoch < EPOCHS:
                engine.pending["orders"] = [rows_of(number, epoch, poison)]
            time.sleep(0.002)

        engine.idle = feed
        return Run(loop, lambda _: None, bounded=False, drain=False)

    run = GroupRun("shop", shared, begin, 0.5)
    member = Member()
    member.run = run
    run.join(member)
    return run, member


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def stored(folder):
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as base:
        try:
            return sorted(base.execute("SELECT p, o, n FROM totals").fetchall())
        except sqlite3.OperationalError:
            return []


@pytest.mark.parametrize("seed", range(4))
def test_partitions_that_a_referee_gives_to_one_or_the_other_are_worked_on_exactly_once(tmp_path, seed):
    fate = random.Random(seed)
    apps = [application(tmp_path) for _ in range(2)]
    at = {}
    for number in range(PARTITIONS):
        at[number] = fate.randrange(2)
        apps[at[number]][1].owned[number] = 1
        apps[at[number]][0].start(number, 1, "0-0")
    for turn in range(12):
        time.sleep(fate.random() * 0.1)
        number = fate.randrange(PARTITIONS)
        (run, member), (other, its) = apps[at[number]], apps[1 - at[number]]
        how = fate.choice(["graceful", "graceful", "impatient", "at once", "both"])
        member.ended.clear()
        if how == "graceful":
            run.stop(number, 5.0)
        elif how == "impatient":
            run.stop(number, 0.001)
        elif how == "at once":
            run.abandon(number)
        if how in ("graceful", "impatient"):
            until(lambda member=member, number=number: number in member.ended)
        member.owned.pop(number, None)
        its.owned[number] = turn
        other.start(number, turn, "0-0")
        if how == "both":  # the old one hears of it later
            time.sleep(fate.random() * 0.2)
            run.abandon(number)
        at[number] = 1 - at[number]
    until(lambda: len(stored(tmp_path)) == len(wanted()) or any(run.exception for run, _ in apps))
    assert [run.exception for run, _ in apps] == [None, None]
    for run, _ in apps:
        assert run.shutdown(timeout=30)
    assert stored(tmp_path) == wanted()


def test_application_whose_partition_fails_leaves_and_says_which_and_the_other_one_can_go_on(tmp_path):
    run, member = application(tmp_path, poison=1)
    for number in range(PARTITIONS):
        member.owned[number] = 1
        run.start(number, 1, "0-0")
    with pytest.raises(OperatorError, match="a record that nobody can handle"):
        run.await_termination(30)
    assert member.has_left
    assert not run.active
    again, its = application(tmp_path)
    for number in range(PARTITIONS):
        its.owned[number] = 2
        again.start(number, 2, "0-0")
    until(lambda: len(stored(tmp_path)) == len(wanted()))
    again.shutdown(timeout=30)
    assert stored(tmp_path) == wanted()


def test_application_whose_engine_fails_a_few_times_begins_again_and_one_whose_engine_always_fails_leaves(tmp_path):
    run, member = application(tmp_path, broken=3)
    member.owned[0] = 1
    run.start(0, 1, "0-0")
    until(lambda: run.partitions and run.progress[0]["epoch"] >= EPOCHS - 1)
    run.shutdown(timeout=30)
    run, member = application(tmp_path / "other", broken=1000)
    member.owned[0] = 1
    run.start(0, 1, "0-0")
    with pytest.raises(PenstockError, match="a process did not come up"):
        run.await_termination(30)


def test_application_that_is_told_to_end_its_partitions_for_good_ends_them_and_nobody_goes_on(tmp_path):
    run, member = application(tmp_path)
    member.owned[0] = 1
    run.start(0, 1, "0-0")
    until(lambda: run.partitions and run.progress[0]["epoch"] >= EPOCHS - 1)
    assert run.shutdown(drain=True, timeout=30)
    again, its = application(tmp_path)
    its.owned[0] = 2
    again.start(0, 2, "0-0")
    assert again.await_termination(10), "nothing is left to do"


def test_application_that_lost_a_partition_to_somebody_outside_of_the_group_says_so(tmp_path):
    run, member = application(tmp_path)
    member.owned[0] = 1
    run.start(0, 1, "0-0")
    until(lambda: run.partitions and run.progress[0]["epoch"] >= 3)
    checkpoint = Checkpoint(GroupFolder(str(tmp_path / "group")).partition(0))
    checkpoint.claim({"host": "elsewhere"})
    until(lambda: 0 in run.partitions and checkpoint.newest_run() == 3)  # once can be a pause: it goes on

    def fight():
        while not run.await_termination(0.05):
            if checkpoint.newest_run() % 2:
                checkpoint.claim({"host": "elsewhere"})

    with pytest.raises(FencedError, match="was replaced by run"):
        fight()


def test_commands_go_to_all_partitions_of_an_application(tmp_path):
    run, member = application(tmp_path)
    for number in range(PARTITIONS):
        member.owned[number] = 1
        run.start(number, 1, "0-0")
    until(lambda: len(run.partitions) == PARTITIONS)
    assert run.scale(workers=2).wait(20)
    assert run.snapshot("noon").wait(20)
    assert all(part["regions"]["k"]["workers"] == 2 for part in run.progress.values())
    assert all(
        Checkpoint(GroupFolder(str(tmp_path / "group")).partition(n)).snapshot_names() == ["noon"] for n in range(PARTITIONS)
    )
    run.shutdown(timeout=30)


def test_application_whose_member_fails_ends_with_its_error(tmp_path):
    run, member = application(tmp_path)
    member.error = OperatorError("the group has another number of partitions")
    with pytest.raises(OperatorError, match="another number of partitions"):
        run.await_termination(10)
    until(lambda: not [t.name for t in threading.enumerate() if t.name.startswith(("penstock-group-shop", "penstock-shop@"))])


@pytest.mark.parametrize("seed", range(2))
def test_commands_that_are_given_while_partitions_move_are_done_refused_or_over_and_results_are_the_same(tmp_path, seed):
    fate = random.Random(100 + seed)
    apps = [application(tmp_path, commanded=True) for _ in range(2)]
    at = {number: number % 2 for number in range(PARTITIONS)}
    for number, who in at.items():
        apps[who][1].owned[number] = 1
        apps[who][0].start(number, 1, "0-0")
    handles, refused = [], []

    def command(run, name):
        try:
            how = fate.choice(["scale", "scale", "snapshot"])
            handles.append(run.scale(workers=fate.randrange(1, 4)) if how == "scale" else run.snapshot(name))
        except PenstockError as error:
            refused.append(str(error))

    for turn in range(8):
        time.sleep(fate.random() * 0.05)
        number = fate.randrange(PARTITIONS)
        (run, member), (other, its) = apps[at[number]], apps[1 - at[number]]
        member.ended.clear()
        command(run, f"before{turn}")
        run.stop(number, 5.0)
        command(run, f"amid{turn}")
        until(lambda member=member, number=number: number in member.ended)
        member.owned.pop(number, None)
        its.owned[number] = turn
        other.start(number, turn, "0-0")
        command(other, f"after{turn}")
        at[number] = 1 - at[number]
    until(lambda: len(stored(tmp_path)) == len(wanted()) or any(run.exception for run, _ in apps))
    assert [run.exception for run, _ in apps] == [None, None]
    handles.append(apps[at[0]][0].snapshot("last"))  # those before may all have met a partition that moved
    ended = Counter()
    for handle in handles:
        try:
            ended[handle.wait(10)] += 1  # False: its partition has gone
        except (DeclarationError, ReplacedError):
            ended["refused"] += 1
    assert ended[True]
    assert all("has no partition at this moment" in each for each in refused), refused
    for run, _ in apps:
        assert run.shutdown(timeout=30)
    assert stored(tmp_path) == wanted()
