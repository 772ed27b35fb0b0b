"""Deadlines at a real server, by its own clock."""

from __future__ import annotations

import time

from penstock.group.store import RedisStore
from penstock.protocol.group.document import Document, Entry
from penstock.redis_client.group_server import GroupServer
from servers import url_of, valkey

LEASE_MS = 200


def test_who_misses_its_deadline_is_dead_but_not_if_nobody_has_beaten_for_a_lease():
    with valkey() as server:
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
