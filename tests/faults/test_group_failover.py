"""A server that fails over: a primary is killed, and the replica that takes over lacks the last second. Real servers, members in processes of their own."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack

import pytest
from children import start

import penstock as ps
from penstock.errors import GroupError
from penstock.group.describe import describe
from penstock.protocol.group.store import order
from penstock.redis_client.connection import connect
from penstock.redis_client.keys import group_partition_key, members_key
from servers import KINDS, relay, url_of, valkey

pytestmark = pytest.mark.fault
PARTITIONS, LEASE_S = 8, 1.0


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Group:
    """Members that go to one address, whoever is behind it."""

    def __init__(self, stack, folder, url):
        self.folder, self.url, self.members, self.logs = folder, url, {}, {}
        stack.callback(lambda: [m.kill() for m in self.members.values()])

    def join(self, name):
        self.logs[name] = self.folder / f"{name}.log"
        given = {"url": self.url, "stream": "orders", "partitions": PARTITIONS, "lease": f"{LEASE_S} s", "member": name}
        given |= {"log": str(self.logs[name]), "loop": True, "pause_s": 0.005}
        self.members[name], _ = start("group_member.py", given, self.folder)

    def seen(self):
        return describe(self.url, "g", "orders")

    def settled(self):
        try:
            seen = self.seen()
        except GroupError:  # the server is gone, or there is no group yet
            return False
        return {m.member for m in seen.members} == self.members.keys() and all(p.owner == p.target for p in seen.partitions)

    def committed(self):
        """By partition, the entries that a member was told are committed, in the order of each member's log."""
        found = defaultdict(list)
        for log in self.logs.values():
            for line in log.read_text().splitlines() if log.exists() else ():
                word, partition, entry = line.split()
                if word == "C":
                    found[int(partition)].append(entry)
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_group_whose_server_fails_over_without_the_last_second_converges_and_commits_nothing_twice(tmp_path, kind):
    """In the lost second a member joins, half of the partitions move, and much is acked: the replica knows of none of it."""
    with ExitStack() as stack:
        primary = stack.enter_context(valkey(kind=kind))
        replica = stack.enter_context(valkey(kind=kind, replicaof=f"127.0.0.1 {primary.port}"))
        between = stack.enter_context(relay(primary.port))
        group = Group(stack, tmp_path, between.url)
        at_primary, at_replica = connect(url_of(primary)), connect(url_of(replica))
        until(lambda: at_replica.info("replication")["master_link_status"] == "up")
        with ps.Producer(between.url, "orders", PARTITIONS, key="key") as producer:
            sent = producer.send_many({"key": f"k{i % 50}", "n": i} for i in range(2_000))
        assert at_primary.wait(1, 5_000) == 1
        group.join("one")
        until(group.settled)
        until(lambda: sum(map(len, group.committed().values())) > 200)

        at_replica.execute_command("REPLICAOF", "NO", "ONE")  # from here on it hears of nothing
        began = time.monotonic()
        before = connect(url_of(replica)).hget(members_key("orders", "g"), "epoch")
        group.join("two")
        until(group.settled)
        until(lambda: len(group.logs["two"].read_text().splitlines()) > 20)
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))
        assert group.seen().epoch > int(before)
        between.turn(None)
        primary.terminate()
        known = {p: entries[-1] for p, entries in in_order(group.committed()).items()}
        lost = [p for p, entry in known.items() if order(stored(at_replica, p)) < order(entry)]
        assert lost, "the failover lost nothing, so nothing is shown"
        between.turn(replica.port)

        until(group.settled)
        assert group.seen().epoch > int(before) + 1
        until(lambda: all(order(stored(at_replica, p)) >= order(entry) for p, entry in known.items()))
        with ps.Producer(between.url, "orders", PARTITIONS, key="key") as producer:
            sent += producer.send_many({"key": f"k{i % 50}", "n": i} for i in range(500))
        until(lambda: group.seen().lag == 0)
        assert [m.poll() for m in group.members.values()] == [None, None]
        assert [m.partitions for m in group.seen().members] == [4, 4]
        for member in group.members.values():
            member.terminate()
        assert [m.wait(20) for m in group.members.values()] == [0, 0]
        wanted = defaultdict(list)
        for partition, entry in sent:
            wanted[partition].append(entry)
        assert in_order(group.committed()) == {p: sorted(e, key=order) for p, e in wanted.items()}  # each once


def in_order(committed):
    return {p: sorted(entries, key=order) for p, entries in committed.items()}


def stored(client, partition):
    return (client.hget(group_partition_key("orders", partition, "g"), "position") or b"0-0").decode()
