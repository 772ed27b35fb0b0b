"""Producers and consumers against a real server, in one process; processes that are killed are in tests/faults."""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict

import pytest
import xxhash

import penstock as ps
from penstock.errors import DeclarationError, GroupError, OperatorError
from penstock.redis_client.connection import connect
from servers import url_of, valkey

LEASE = "400 ms"


@pytest.fixture(scope="module")
def server():
    with valkey() as running:
        yield running


@pytest.fixture
def stream(request):
    return f"s{zlib.crc32(request.node.name.encode())}"


class Running:
    """A consumer in a thread, and what its handler got."""

    def __init__(self, server, stream, partitions=4, handler=None, grace="2 s", **options):
        self.got, self.error = defaultdict(list), None
        self.consumer = ps.Consumer(ps.Group(url_of(server), "g", lease=LEASE, grace=grace), stream, partitions, **options)
        self.handler = handler or (lambda p, es: self.got[p].extend((e.id, e.fields) for e in es))
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            self.consumer.run(self.handler)
        except Exception as error:  # noqa: BLE001  (compared later)
            self.error = error

    def leave(self, grace=None):
        self.consumer.leave(grace)
        self.thread.join(5)

    def numbers(self):
        return sorted(int(fields["n"]) for each in self.got.values() for _, fields in each)


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def position(server, stream, partition):
    found = connect(url_of(server)).hget(f"{{{stream}:{partition}}}:g", "position")
    return (found or b"0-0").decode()


def test_producer_when_it_has_a_key_puts_its_entries_by_xxh64_into_one_partition_in_order(server, stream):
    with ps.Producer(url_of(server), stream, 4, key="user") as producer:
        sent = producer.send_many({"user": f"u{i % 10}", "n": i, "none": None, "ok": True} for i in range(2500))
        one = producer.send(user="ü", n=1.5)
    assert one[0] == xxhash.xxh64_intdigest("ü".encode()) % 4
    assert [p for p, _ in sent] == [xxhash.xxh64_intdigest(f"u{i % 10}".encode()) % 4 for i in range(2500)]
    entries = connect(url_of(server)).xrange(f"{{{stream}:{sent[0][0]}}}")
    assert [e.decode() for e, _ in entries][: len(sent)] == [e for p, e in [*sent, one] if p == sent[0][0]]
    assert entries[0][1] == {b"user": b"u0", b"n": b"0", b"ok": b"true"}


def test_producer_without_a_key_takes_partitions_in_turn(server, stream):
    with ps.Producer(url_of(server), stream, 3) as producer:
        assert [producer.send(n=n)[0] for n in range(5)] == [0, 1, 2, 0, 1]
        assert connect(url_of(server)).xlen(f"{{{stream}:2}}") == 1
        with pytest.raises(DeclarationError, match="Field 'n' is a object, which has no text form here"):
            producer.send(n=object())


def test_producer_that_is_wrong_is_refused_in_a_sentence(server, stream):
    with (
        ps.Producer(url_of(server), stream, 3, key="user") as producer,
        pytest.raises(DeclarationError, match="has no field 'user'"),
    ):
        producer.send_many([{"user": "a"}, {"n": 1}])
    assert not connect(url_of(server)).exists(f"{{{stream}:0}}", f"{{{stream}:1}}", f"{{{stream}:2}}")
    with pytest.raises(GroupError, match="has 3 partitions, not 4; give partitions=3"):
        ps.Producer(url_of(server), stream, 4)
    with pytest.raises(DeclarationError, match="cannot have 0 partitions"):
        ps.Producer(url_of(server), stream, 0)
    with pytest.raises(GroupError, match=r"The server .* at redis://127.0.0.1:1 cannot be used"):
        ps.Producer("redis://127.0.0.1:1", stream, 4)


def test_consumers_when_members_come_and_go_handle_each_entry_in_order_and_once_acked(server, stream):
    with ps.Producer(url_of(server), stream, 4, key="key") as producer:
        consumers, sent = [Running(server, stream)], 0
        for step in range(6):
            producer.send_many({"key": k, "n": sent + k} for k in range(100))
            sent += 100
            if step % 2 == 0:
                consumers.append(Running(server, stream))
            else:
                consumers[step // 2].leave()
            time.sleep(0.1)
        until(lambda: sum(len(c.numbers()) for c in consumers) >= sent)
    assert sorted(n for c in consumers for n in c.numbers()) == list(range(sent))  # all leave in peace: nothing comes twice
    for c in consumers:
        assert all(
            ids == sorted(ids, key=lambda e: tuple(map(int, e.split("-"))))
            for ids in ([e for e, _ in got] for got in c.got.values())
        )
        c.leave()
        assert c.error is None
    last = {p: connect(url_of(server)).xrevrange(f"{{{stream}:{p}}}", count=1)[0][0].decode() for p in range(4)}
    assert {p: position(server, stream, p) for p in range(4)} == last


def test_handler_that_is_stuck_delays_only_its_own_partition_and_not_the_hand_over_of_others(server, stream):
    free = threading.Event()
    got = defaultdict(list)

    def handler(partition, entries):
        if partition == 2:
            free.wait(20)
        got[partition].extend(entries)

    with ps.Producer(url_of(server), stream, 4) as producer:
        first = Running(server, stream, handler=handler, grace="300 ms")
        producer.send_many({"n": n} for n in range(400))
        until(lambda: sorted(got) == [0, 1, 3] and all(len(got[p]) == 100 for p in (0, 1, 3)))
        second = Running(server, stream, grace="300 ms")
        until(lambda: len(second.consumer.owned) == 2 and len(first.consumer.owned) == 2)
        producer.send_many({"n": n} for n in range(400, 800))
        until(lambda: sum(map(len, got.values())) + len(second.numbers()) >= 300 + 300)
        began = time.monotonic()
        first.leave()
        assert time.monotonic() - began < 1.5
        until(lambda: len(second.consumer.owned) == 4)
        until(lambda: len([n for n in second.numbers() if n % 4 == 2]) == 200)
        free.set()
        second.leave()
    assert position(server, stream, 2) == connect(url_of(server)).xrevrange(f"{{{stream}:2}}", count=1)[0][0].decode()


def test_leave_when_a_handler_needs_less_than_the_grace_waits_for_it_and_acks(server, stream):
    began, done = threading.Event(), threading.Event()

    def handler(partition, entries):
        began.set()
        time.sleep(0.6)  # longer than the lease
        done.set()

    with ps.Producer(url_of(server), stream, 1) as producer:
        one = Running(server, stream, 1, handler)
        _, entry = producer.send(n=1)
        assert began.wait(5)
        one.leave()
        assert done.is_set()
        assert position(server, stream, 0) == entry


def test_leave_at_once_does_not_wait_and_the_entries_come_again(server, stream):
    began, release = threading.Event(), threading.Event()

    def handler(partition, entries):
        began.set()
        release.wait(10)

    with ps.Producer(url_of(server), stream, 1) as producer:
        one = Running(server, stream, 1, handler)
        producer.send(n=1)
        assert began.wait(5)
        start = time.monotonic()
        one.leave(0)
        assert time.monotonic() - start < 1.0
        release.set()
        assert position(server, stream, 0) == "0-0"
        two = Running(server, stream, 1)
        until(lambda: two.numbers() == [1])
        two.leave()


def test_handler_that_raises_by_default_stops_the_consumer_and_another_gets_the_entries(server, stream):
    def handler(partition, entries):
        raise ValueError("no")

    with ps.Producer(url_of(server), stream, 1) as producer:
        one = Running(server, stream, 1, handler)
        _, entry = producer.send(n=7)
        one.thread.join(5)
        assert isinstance(one.error, OperatorError)
        assert str(one.error) == (
            f"The handler failed at partition 0, entries {entry}: ValueError: no (test_consumer.py, line "
            f"{handler.__code__.co_firstlineno + 1}); they are not acked and come again."
        )
        two = Running(server, stream, 1)
        until(lambda: two.numbers() == [7])
        two.leave()


def test_handler_that_has_raised_gets_no_later_entries_of_its_partition(server, stream):
    seen, free = [], threading.Event()

    def handler(partition, entries):
        seen.extend(e.id for e in entries)
        free.wait(5)  # until the others are read ahead
        raise ValueError("no")

    with ps.Producer(url_of(server), stream, 1) as producer:
        ids = [entry for _, entry in producer.send_many({"n": n} for n in range(3))]
        one = Running(server, stream, 1, handler, batch=1)
        until(lambda: seen)
        time.sleep(0.1)
        free.set()
        one.thread.join(5)
    assert seen == ids[:1]
    assert position(server, stream, 0) == "0-0"


def test_handler_that_raises_with_retry_is_called_again_and_only_its_partition_waits(server, stream):
    tries, got = [], defaultdict(list)

    def handler(partition, entries):
        if partition == 1 and len(tries) < 3:
            tries.append(partition)
            raise ValueError("not yet")
        got[partition].extend(entries)

    with ps.Producer(url_of(server), stream, 2) as producer:
        one = Running(server, stream, 2, handler, on_error="retry")
        producer.send_many({"n": n} for n in range(4))
        until(lambda: len(got[0]) == 2 and len(got[1]) == 2)
        assert len(tries) == 3
        one.leave()
        assert one.error is None


def test_entries_that_fail_with_dead_letters_are_put_aside_and_all_others_are_handled(server, stream):
    got = []

    def handler(partition, entries):
        if any(e.fields["n"] == "5" for e in entries):
            raise ValueError("five")
        got.extend(int(e.fields["n"]) for e in entries)

    with ps.Producer(url_of(server), stream, 1) as producer:
        ids = [entry for _, entry in producer.send_many({"n": n} for n in range(10))]
        one = Running(server, stream, 1, handler, on_error="dead_letters", retries=1)
        until(lambda: position(server, stream, 0) == ids[-1])
        one.leave()
    assert got == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    [(_, letter)] = connect(url_of(server)).xrange(f"{{{stream}:0}}:g:dead")
    assert letter[b"n"] == b"5"
    assert letter[b"penstock:id"].decode() == ids[5]
    assert letter[b"penstock:error"].startswith(b"ValueError: five (test_consumer.py, line ")


def test_loop_over_a_consumer_gives_entries_and_acks_them_and_its_end_leaves(server, stream):
    with ps.Producer(url_of(server), stream, 2) as producer:
        producer.send_many({"n": n} for n in range(20))
    consumer, seen = ps.Consumer(ps.Group(url_of(server), "g", lease=LEASE), stream, 2, batch=3), []
    for partition, entries in consumer:
        assert len(entries) <= 3
        assert consumer.owned <= {0, 1}
        assert consumer.epoch >= 1
        seen += [int(e.fields["n"]) for e in entries]
        with pytest.raises(DeclarationError, match=f"no such entries of partition {1 - partition} in hand"):
            consumer.ack(1 - partition, entries)
        if len(seen) < 20:
            assert consumer.ack(partition, entries)
        else:
            break  # without an ack
    assert sorted(seen) == list(range(20))
    again = Running(server, stream, 2)
    until(again.numbers)
    assert again.numbers() == sorted(seen[-len(again.numbers()) :])
    again.leave()
    with pytest.raises(DeclarationError, match="has run already"):
        next(iter(consumer))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "A consumer's batch is 0"),
        ({"on_error": "skip"}, "A consumer's on_error is 'skip'; give 'stop', 'retry' or 'dead_letters'"),
        ({"retries": -1}, "A consumer's retries are -1"),
    ],
)
def test_consumer_with_a_wrong_option_is_refused(server, options, message):
    with pytest.raises(DeclarationError, match=message):
        ps.Consumer(ps.Group(url_of(server), "g"), "orders", 4, **options)
