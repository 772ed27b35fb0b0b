"""Deadlines at a real server, by its own clock."""

from __future__ import annotations

import time

import pytest

from penstock.group.store import RedisStore
from penstock.protocol.group.document import Document, Entry
from penstock.redis_client.group_server import GroupServer
from penstock.testing.group.store import ModelStore
from servers import KINDS, url_of, valkey

LEASE_MS = 200


@pytest.mark.parametrize("kind", KINDS)
def test_who_misses_its_deadline_is_dead_but_not_if_nobody_has_beaten_for_a_lease(kind):
    with valkey(kind=kind) as server:
        store = RedisStore(GroupServer(url_of(server), "orders", "g", timeout_s=5))
        both = {"a": Entry("a1", 1), "b": Entry("b1", 1)}
        only = {"a": Entry("a1", 1)}
        document = Document(0, 2).edited(1, "a1", both, "g")
        assert store.edit(0, document, LEASE_MS)
        assert store.beat("a1", LEASE_MS).dead == ()
        assert store.beat("x1", LEASE_MS).known is False
        time.sleep(2.5 * LEASE_MS / 1000)  # the server was away, as far as it can tell
        first = store.beat("a1", LEASE_MS)
        assert (first.known, first.dead) == (True, ())
        assert 0 < first.next_s <= LEASE_MS / 1000
        assert not store.edit(1, document.edited(2, "a1", only, "g"), LEASE_MS)  # b1 may still beat
        end, last = time.monotonic() + 0.9 * LEASE_MS / 1000, first
        while time.monotonic() < end + 0.3 * LEASE_MS / 1000 and not last.dead:
            time.sleep(0.04)
            last = store.beat("a1", LEASE_MS)
        assert last.dead == ("b1",)
        assert store.edit(1, document.edited(2, "a1", only, "g"), LEASE_MS)
        assert store.beat("b1", LEASE_MS).known is False
        assert store.beat("a1", LEASE_MS).next_s is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_deadline_that_starts_anew_is_by_its_own_members_lease(kind):
    """At the server and in the model: a member with a short lease joins, then finds that nobody has beaten for that long."""
    document = Document(0, 2).edited(1, "a1", {"a": Entry("a1", 1, lease_ms=60_000)}, "g")
    both = document.edited(2, "b1", {**document.members, "b": Entry("b1", 2, lease_ms=LEASE_MS)}, "g")
    with valkey(kind=kind) as server:
        model = ModelStore(lambda: int(time.monotonic() * 1000), lambda _: None)
        for store in (RedisStore(GroupServer(url_of(server), "orders", "g", timeout_s=5)), model):
            assert store.edit(0, document, 60_000)
            assert store.beat("a1", 60_000).known
            assert store.edit(1, both, LEASE_MS)
            assert 59 < store.beat("b1", LEASE_MS).next_s <= 60
            assert 0 < store.beat("a1", 60_000).next_s <= LEASE_MS / 1000
            time.sleep(1.5 * LEASE_MS / 1000)
            found = store.beat("b1", LEASE_MS)  # nobody has beaten for a lease of this one
            assert (found.known, found.dead) == (True, ())
            assert 59 < found.next_s <= 60
            again = both.edited(3, "b1", {**both.members, "a": Entry("a2", 3, lease_ms=60_000)}, "g")  # as after a loss of data
            assert store.edit(2, again, LEASE_MS)
            assert 59 < store.beat("b1", LEASE_MS).next_s <= 60
