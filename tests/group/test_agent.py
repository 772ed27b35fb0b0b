"""Agents against a real server: join, leave, a silent member, a server that goes away, a foreign key."""

from __future__ import annotations

import threading
import time
import zlib

import pytest

import penstock as ps
from penstock.errors import GroupError
from penstock.group.agent import Agent
from penstock.group.store import RedisStore
from penstock.protocol.group.store import Stale
from penstock.redis_client.connection import connect
from penstock.redis_client.group_server import GroupServer
from servers import KINDS, relay, url_of, valkey

LEASE_S = 0.4
LOGS = {}


class Log:
    """Work that notes what it is told, and ends at once when it should."""

    def __init__(self):
        self.told, self.agent = [], None

    def start(self, partition, token, position):
        self.told.append(("start", partition, token, position, self.agent.incarnation))

    def stop(self, partition, within_s):
        self.told.append(("stop", partition))
        self.agent.stopped(partition)

    def abandon(self, partition):
        self.told.append(("abandon", partition))
        self.agent.stopped(partition)


@pytest.fixture(scope="module", params=KINDS)
def server(request):
    with valkey(kind=request.param) as running:
        yield running


@pytest.fixture
def join(server, request):
    agents = []

    def joined(name=None, partitions=8, lease=f"{LEASE_S} s"):
        work = Log()
        agent = Agent(
            ps.Group(url_of(server), "g", member=name, lease=lease, grace="2 s"), stream_of(request), partitions, work
        )
        work.agent, LOGS[id(agent)] = agent, work
        agents.append(agent)
        agent.start()
        return agent

    yield joined
    for agent in agents:
        agent.close()


def stream_of(request):
    return f"s{zlib.crc32(request.node.name.encode())}"


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def shares(*agents):
    owned = [p for a in agents for p in a.owned]
    if len(set(owned)) != len(owned):  # not read at one moment
        time.sleep(0.02)
        owned = [p for a in agents for p in a.owned]
    assert len(set(owned)) == len(owned)
    return sorted(len(a.owned) for a in agents)


def starts(agent, partition):
    """What the work of a member was told when it began with a partition; the agent owns it a moment before."""
    return [t for t in LOGS[id(agent)].told if t[:2] == ("start", partition)]


def last_start(agents, partition):
    """The position from which the owner of a partition has begun; None: it has none."""
    begun = [t[3] for a in agents if partition in a.owned for t in starts(a, partition)]
    return begun[-1] if begun else None


def test_second_member_when_it_joins_gets_half_and_the_first_keeps_the_rest_untouched(join):
    first = join()
    until(lambda: first.settled)
    assert sorted(first.owned) == list(range(8))
    before = dict(first.owned)
    second = join()
    until(lambda: first.settled and second.settled and shares(first, second) == [4, 4])
    kept = {p: t for p, t in before.items() if p in first.owned}
    assert kept == first.owned
    moved = {p for p in before if p in second.owned}
    assert [t for t in LOGS[id(first)].told if t[0] != "start"] == [("stop", p) for p in sorted(moved)]
    second.leave()
    until(lambda: len(first.owned) == 8)
    assert all(first.owned[p] == t for p, t in kept.items())


def test_member_that_falls_silent_when_its_lease_ends_is_taken_out_and_fenced(join, server, request):
    first, second = join(), join()
    until(lambda: shares(first, second) == [4, 4])
    partition = next(iter(first.owned))
    assert first.ack(partition, "5-0")
    token = first.owned[partition]
    first.close()  # no more heartbeats, and no word to anybody
    until(lambda: len(second.owned) == 8, LEASE_S + 1)
    until(lambda: starts(second, partition))
    assert starts(second, partition)[0][3] == "5-0"
    assert not first.ack(partition, "9-0")  # by its own clock
    store = RedisStore(GroupServer(url_of(server), stream_of(request), "g", timeout_s=5))
    incarnation = starts(first, partition)[0][4]
    assert not store.ack(partition, incarnation, token, "9-0")  # by the server
    assert store.acquire(partition, "x", incarnation, 1, "", 0, "0-0") == Stale(partition, second.epoch)
    assert second.ack(partition, "6-0")


@pytest.mark.parametrize("kind", KINDS)
def test_agent_when_the_server_is_restarted_with_or_without_data_goes_on(kind):
    for keep in (True, False):
        with valkey(keep=keep, kind=kind) as server:
            work = [Log(), Log()]
            agents = [Agent(ps.Group(url_of(server), "g", lease=f"{LEASE_S} s"), "orders", 8, w) for w in work]
            for agent, each in zip(agents, work, strict=True):
                each.agent, LOGS[id(agent)] = agent, each
                agent.start()
            until(lambda: shares(*agents) == [4, 4])  # noqa: B023
            partition = next(iter(agents[0].owned))
            assert agents[0].ack(partition, "7-0")
            server.stop()
            until(lambda: not any(a.holds(p) for a in agents for p in range(8)))  # noqa: B023
            server.start()
            until(lambda: all(a.settled for a in agents) and shares(*agents) == [4, 4])  # noqa: B023
            # A machine that is slow at that moment: the other member may have had it from its beginning until the first one reported.
            until(lambda: last_start(agents, partition) == "7-0")  # noqa: B023
            until(lambda: connect(url_of(server)).hget("{orders}", "partitions") == b"8")
            for agent in agents:
                agent.close()


def test_position_that_only_a_member_knows_counts_again_though_another_member_took_the_partition_first():
    """The server comes back empty; the member that knows a position hears of it only when another one has its partitions."""
    with valkey() as server, relay(server.port) as between:
        work = [Log(), Log()]
        agents = [
            Agent(ps.Group(url, "g", lease=f"{LEASE_S} s"), "orders", 2, w)
            for url, w in zip((between.url, url_of(server)), work, strict=True)
        ]
        for agent, each in zip(agents, work, strict=True):
            each.agent, LOGS[id(agent)] = agent, each
            agent.start()
        knows, other = agents
        until(lambda: all(a.settled for a in agents) and shares(*agents) == [1, 1])
        partition = next(iter(knows.owned))
        assert knows.ack(partition, "7-0")
        between.turn(None)
        server.stop()
        until(lambda: not any(a.holds(p) for a in agents for p in range(2)))
        server.start()
        until(lambda: len(other.owned) == 2 and last_start([other], partition) == "0-0")
        between.turn(server.port)
        until(lambda: all(a.settled for a in agents) and shares(*agents) == [1, 1])
        until(lambda: last_start(agents, partition) == "7-0")
        until(lambda: any(a.ack(partition, "8-0") for a in agents))
        for agent in agents:
            agent.close()


def test_partition_whose_lock_is_a_foreign_key_waits_alone_and_is_named(join, server, request):
    client = connect(url_of(server))
    stream = stream_of(request)
    key = f"{{{stream}:3}}:g"
    client.set(key, "mine")
    agent = join()
    until(lambda: len(agent.owned) == 7 and agent.trouble is not None)
    assert agent.trouble.startswith(f"Key {key} at redis://127.0.0.1:")
    assert client.get(key) == b"mine"
    client.delete(key)
    until(lambda: agent.settled)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("partitions", "9", "has 9 partitions, not 8; give partitions=9."),
        ("protocol", "7", "speak version 7 of the protocol, and this process version 1"),
        ("hash", "crc32", "choose the partition of a key by 'crc32', and this process by \"xxh64 of the key's bytes"),
    ],
)
def test_member_that_does_not_agree_with_the_stream_is_refused_by_name(join, server, request, field, value, message):
    connect(url_of(server)).hset(f"{{{stream_of(request)}}}", field, value)
    with pytest.raises(GroupError, match=r".") as refused:
        join()
    assert message in str(refused.value)


def test_process_that_takes_a_static_name_gets_the_same_share_and_fences_the_one_before(join):
    first, other = join("one"), join("two")
    until(lambda: first.settled and other.settled and shares(first, other) == [4, 4])
    mine, theirs = set(first.owned), dict(other.owned)
    again = join("one")
    until(lambda: again.settled and set(again.owned) == mine)
    assert first.wait(5.0)
    assert "Another process has joined the group as 'one'" in str(first.error)
    assert other.owned == theirs
    assert {t[0] for t in LOGS[id(other)].told} == {"start"}


def test_twenty_members_when_they_leave_at_once_are_gone_soon(join):
    agents = [join(partitions=40) for _ in range(20)]
    until(lambda: shares(*agents) == [2] * 20)
    began = time.monotonic()
    threads = [threading.Thread(target=a.leave) for a in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 2.0 + 2
    assert all(a.error is None for a in agents)


def test_member_with_a_short_lease_never_takes_out_one_with_a_long_lease_that_beats_as_it_should():
    """Two members were started with other leases, as when one is being changed. The short one is cut off for a moment, and so are the rest."""
    with valkey() as server, relay(server.port) as between:
        work = [Log(), Log()]
        agents = [
            Agent(ps.Group(url, "g", lease=lease), "orders", 4, w)
            for url, lease, w in zip((url_of(server), between.url), ("6 s", "0.3 s"), work, strict=True)
        ]
        for agent, each in zip(agents, work, strict=True):
            each.agent, LOGS[id(agent)] = agent, each
            agent.start()
        patient, _ = agents
        until(lambda: all(a.settled for a in agents) and shares(*agents) == [2, 2])
        before, incarnation = dict(patient.owned), patient.incarnation
        for _ in range(3):
            between.turn(None)
            time.sleep(0.6)
            between.turn(server.port)
            time.sleep(0.6)
        until(lambda: all(a.settled for a in agents) and shares(*agents) == [2, 2])
        assert patient.incarnation == incarnation
        assert patient.owned == before
        for agent in agents:
            agent.close()
