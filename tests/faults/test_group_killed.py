"""Members of a group as processes that are killed, paused, restarted and ended at once; a server that is restarted. Real Valkey."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest
from children import start

import penstock as ps
from penstock.group.describe import describe
from penstock.redis_client.connection import connect
from servers import url_of, valkey

pytestmark = pytest.mark.fault

LEASE_S = 0.6
PARTITIONS = 8


@pytest.fixture
def rig(tmp_path):
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


class Rig:
    """A server, a producer, and members that are ended at the end."""

    def __init__(self, stack, folder, keep=False):
        self.folder, self.server = folder, stack.enter_context(valkey(keep=keep))
        self.url = url_of(self.server)
        self.producer = stack.enter_context(ps.Producer(self.url, "orders", PARTITIONS, key="key"))
        self.members, self.sent, self.logs = {}, defaultdict(list), []
        stack.callback(lambda: [m.kill() for m in self.members.values()])

    def join(self, name, static=False, **options):
        log = self.folder / f"{name}-{len(self.logs)}.log"
        self.logs.append(log)
        given = {"url": self.url, "stream": "orders", "partitions": PARTITIONS, "lease": f"{LEASE_S} s", "log": str(log)}
        self.members[name], _ = start("group_member.py", given | options | ({"member": name} if static else {}), self.folder)
        return self.members[name]

    def send(self, count=100):
        rows = [{"key": f"k{i % 23}", "n": i} for i in range(count)]
        for row, (partition, entry) in zip(rows, self.producer.send_many(rows), strict=True):
            self.sent[row["key"]].append((partition, entry))

    def seen(self):
        return describe(self.url, "g", "orders")

    def owners(self):
        return {p.partition: (p.owner, p.epoch) for p in self.seen().partitions}

    def settled(self, *members):
        """The shares of so many members are within one, and each has what is its own."""

        def done():
            seen = self.seen()
            return len(seen.members) == len(members) and all(p.owner == p.target for p in seen.partitions)

        for member in members:
            until(lambda: member in self.members)  # noqa: B023
        until(lambda: quietly(done))

    def drained(self):
        return self.seen().lag == 0

    def logged(self, word):
        return [tuple(line.split()[1:]) for log in self.logs for line in log.read_text().splitlines() if line.startswith(word)]

    def totals_are_the_producers(self):
        client = connect(self.url)
        for key, sent in self.sent.items():
            assert sorted(e.decode() for e in client.hkeys(f"count:orders:{key}")) == sorted(e for _, e in sent)


def quietly(done):
    try:
        return done()
    except ps.PenstockError:  # there is no group yet
        return False


def until(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_member_that_is_killed_is_replaced_within_a_lease_and_a_second_and_no_entry_is_lost(rig):
    rig.join("one", static=True), rig.join("two", static=True)
    rig.settled("one", "two")
    rig.send(1000)
    kept = {p: o for p, o in rig.owners().items() if o[0] == "two"}
    assert len(kept) == 4
    rig.members["one"].kill()
    killed = time.monotonic()
    rig.send(1000)
    until(lambda: all(o == "two" for o, _ in rig.owners().values()))
    assert time.monotonic() - killed < LEASE_S + 1
    until(rig.drained)
    assert {p: rig.owners()[p] for p in kept} == kept  # the partitions that stay are not touched
    rig.totals_are_the_producers()


def test_only_member_that_is_killed_and_started_at_once_without_a_name_waits_longer_than_the_lease_and_goes_on(rig):
    rig.join("one")
    rig.settled("one")
    rig.send(100)
    rig.members["one"].kill()
    again = rig.join("again")
    rig.send(100)
    until(rig.drained)
    rig.settled("again")
    assert again.poll() is None
    rig.totals_are_the_producers()


def test_member_with_a_static_name_that_is_killed_again_and_again_moves_nothing_and_goes_on_soon(rig):
    rig.join("one", static=True, lease="3 s"), rig.join("two", static=True, lease="3 s")
    rig.settled("one", "two")
    before = rig.owners()
    for _ in range(3):
        rig.members["one"].kill()
        rig.join("one", static=True, lease="3 s")
        began = time.monotonic()
        rig.send(100)
        until(rig.drained)
        assert time.monotonic() - began < 2.0
        after = rig.owners()
        assert {p: o for p, (o, _) in after.items()} == {p: o for p, (o, _) in before.items()}
        assert {p: t for p, (o, t) in after.items() if o == "two"} == {p: t for p, (o, t) in before.items() if o == "two"}
    rig.totals_are_the_producers()


def test_member_that_is_paused_for_two_leases_commits_nothing_that_another_has_committed(rig):
    one = rig.join("one", static=True, loop=True, pause_s=0.05)
    rig.join("two", static=True, loop=True, pause_s=0.01)
    rig.settled("one", "two")
    rig.send(1000)
    until(lambda: len(rig.logged("C")) > 50)
    one.send_signal(signal.SIGSTOP)
    time.sleep(2 * LEASE_S)
    until(lambda: all(o == "two" for o, _ in rig.owners().values()))
    one.send_signal(signal.SIGCONT)
    rig.settled("one", "two")
    rig.send(500)
    until(rig.drained)
    for member in rig.members.values():
        member.terminate()
    assert [m.wait(10) for m in rig.members.values()] == [0, 0]
    assert sorted(rig.logged("C")) == sorted((str(p), e) for sent in rig.sent.values() for p, e in sent)
    for log in rig.logs:  # in order, within each partition
        for number in range(PARTITIONS):
            ids = [line.split()[2] for line in log.read_text().splitlines() if line.startswith(f"C {number} ")]
            assert ids == sorted(ids, key=lambda e: tuple(map(int, e.split("-"))))


def test_server_that_is_restarted_with_its_data_while_members_work_loses_nothing_and_no_process_dies(tmp_path):
    with ExitStack() as stack:
        rig = Rig(stack, tmp_path, keep=True)
        rig.join("one", pause_s=0.01, on_error="retry"), rig.join("two", pause_s=0.01, on_error="retry")
        rig.settled("one", "two")
        rig.send(2000)
        for _ in range(2):
            rig.server.stop()
            time.sleep(0.3)
            rig.server.start()
            rig.send(500)
        until(rig.drained)
        rig.settled("one", "two")
        assert [m.poll() for m in rig.members.values()] == [None, None]
        rig.totals_are_the_producers()


def test_twenty_members_that_get_sigterm_at_once_are_gone_within_the_grace_and_hand_all_over(rig):
    names = [f"m{i}" for i in range(20)]
    for name in names:
        rig.join(name, pause_s=0.3, grace="2 s")
    until(lambda: quietly(lambda: len(rig.seen().members) == 20), 60)
    rig.send(400)
    until(lambda: rig.logged("H"))
    began = time.monotonic()
    for name in names:
        rig.members[name].terminate()
    assert [rig.members[n].wait(20) for n in names] == [0] * 20
    assert time.monotonic() - began < 2.0 + 2.0
    assert rig.seen().members == []
    rig.join("last")
    until(rig.drained)
    rig.totals_are_the_producers()


def test_second_sigterm_ends_a_member_whose_handler_is_stuck_at_once(rig):
    one = rig.join("one", pause_s=60.0, grace="30 s")
    rig.settled("one")
    rig.send(10)
    until(lambda: rig.logged("H"))
    one.terminate()
    time.sleep(0.5)
    assert one.poll() is None
    one.terminate()
    assert one.wait(3) == 0


def disturbed(rig, steps, seed):
    """Random joins, leaves, kills, restarts under a name and pauses while entries come in."""
    rng, count = random.Random(seed), 0
    rig.join("m0", pause_s=0.01)
    for _ in range(steps):
        rig.send(rng.randrange(1, 200))
        alive = [n for n, m in rig.members.items() if m.poll() is None]
        kind = rng.choice(["join", "join", "leave", "kill", "again", "pause"]) if len(alive) > 1 else "join"
        name = rng.choice(alive)
        if kind == "join" and len(alive) < 5:
            count += 1
            rig.join(f"m{count}", static=rng.random() < 0.5, pause_s=0.01)
        elif kind == "leave":
            rig.members[name].terminate()
        elif kind in {"kill", "again"}:
            rig.members[name].kill()
            if kind == "again":
                rig.join(name, static=True, pause_s=0.01)
        elif kind == "pause":
            rig.members[name].send_signal(signal.SIGSTOP)
            time.sleep(rng.choice([0.5, 1.2, 2.0]) * LEASE_S)
            rig.members[name].send_signal(signal.SIGCONT)
        time.sleep(rng.random() * LEASE_S * 0.5)
    rig.join("last")
    until(rig.drained, 60)
    rig.totals_are_the_producers()
    for member in rig.members.values():
        assert member.poll() in {None, 0, -9, -15}  # -15: it was still starting


def test_counters_per_key_through_random_joins_leaves_kills_and_pauses_equal_the_producers(rig):
    disturbed(rig, 14, seed=42)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_counters_per_key_through_a_hundred_random_joins_leaves_kills_and_pauses_equal_the_producers(rig, seed):
    disturbed(rig, 100, seed)
