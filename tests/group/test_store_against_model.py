"""The Lua scripts against the simulator's model of the store: the same steps in the same order have the same answers."""

from __future__ import annotations

import random

import pytest

from penstock.group.store import RedisStore
from penstock.protocol.group.document import Document, Entry
from penstock.protocol.group.store import Wanted
from penstock.redis_client.connection import connect
from penstock.redis_client.group_server import GroupServer
from penstock.testing.group.store import ModelStore
from servers import KINDS, url_of, valkey

LEASE_MS = 60_000  # no deadline passes while a test runs; deadlines have tests of their own
POSITIONS = ["0-0", "5-0", "5-9", "5-10", "9-1", "10-0", "1700000000000-0", "18446744073709551615-18446744073709551615"]


@pytest.fixture(scope="module", params=KINDS)
def server(request):
    with valkey(kind=request.param) as running:
        yield running


def drawn(rng, model, published):
    """A step: its name and arguments."""
    names = ["a", "b", "ü"]
    incarnation = f"{rng.choice(names)}{rng.randrange(3)}"
    partition, token = rng.randrange(2), rng.randrange(6)
    epoch = model.document.epoch if model.document else 0
    row = model.rows.get(partition)
    if row and rng.random() < 0.5:
        incarnation, token = row.owner or incarnation, row.token + rng.choice([0, 0, 0, 1, -1])
    position = rng.choice(POSITIONS)
    match rng.randrange(8):
        case 0:
            leases = {n: rng.choice([0, LEASE_MS, 10 * LEASE_MS]) for n in names}
            members = {n: Entry(f"{n}{rng.randrange(3)}", epoch + 1, lease_ms=leases[n]) for n in names if rng.random() < 0.7}
            proposed = Document(epoch, 2).edited(epoch + rng.choice([1, 1, 3]), incarnation, members, "g")
            return "edit", (rng.choice([epoch, epoch, epoch, 0, epoch + 1]), proposed, LEASE_MS)
        case 1:
            return "beat", (incarnation, LEASE_MS)
        case 2:
            return "read", ()
        case 3 | 4:
            instead_of = rng.choice(["", "", f"{rng.choice(names)}{rng.randrange(3)}"])
            about = max(0, epoch + rng.choice([0, 0, -1, 1]))
            return "acquire", (partition, incarnation[:-1], incarnation, about, instead_of, token, position)
        case 5:
            return "release", (partition, incarnation, max(0, token), position)
        case 6:
            return "ack", (partition, incarnation, max(0, token), position)
        case _:
            return "announce", (Wanted(partition, incarnation),)


def compared(server, seed, steps):
    """Take the steps at both; how often which answer came."""
    rng, published, seen = random.Random(seed), [], {}
    model = ModelStore(lambda: 1000, published.append)
    store = RedisStore(GroupServer(url_of(server), f"s{seed}", "g", timeout_s=5))
    connect(url_of(server)).flushall()
    for _ in range(steps):
        name, arguments = drawn(rng, model, published)
        expected, found = getattr(model, name)(*arguments), getattr(store, name)(*arguments)
        if name == "beat" and expected.known:
            assert (found.epoch, found.editor, found.known, found.dead) == (
                expected.epoch,
                expected.editor,
                expected.known,
                expected.dead,
            )
            assert (found.next_s is None) == (expected.next_s is None)
            assert found.server
        else:
            assert found == expected, (name, arguments)
        kind = f"{name} {type(found).__name__} {found if isinstance(found, bool) else ''}"
        seen[kind] = seen.get(kind, 0) + 1
    assert [message for _, message in store.changes("0-0", 1)] == published
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_scripts_take_random_steps_as_the_model_does(server, seed):
    compared(server, seed, 200)


def test_random_steps_have_every_answer_there_is(server):
    seen = {}
    for seed in range(5):
        seen |= compared(server, seed, 200)
    assert seen.keys() >= {
        "acquire Busy ",
        "acquire Granted ",
        "acquire Stale ",
        "ack bool False",
        "ack bool True",
        "release NoneType ",
        "release Raised ",
        "edit bool False",
        "edit bool True",
        "beat Beat ",
    }


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_scripts_take_many_random_steps_as_the_model_does(server, seed):
    compared(server, seed, 500)
