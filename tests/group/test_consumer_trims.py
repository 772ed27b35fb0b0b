"""Entries that were removed before a consumer read them: every one is counted, once, and none that was handled, whatever removes them and when."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import contextmanager

import pytest

import penstock as ps
from penstock.errors import DeclarationError, RecordError
from penstock.redis_client.connection import connect
from servers import url_of, valkey

_names = itertools.count()


class Stream:
    """A stream of two partitions, what was added to it, and what a handler got."""

    def __init__(self, url):
        self.url, self.name, self.client = url, f"trimmed {next(_names)}".replace(" ", "-"), connect(url)
        self.values, self.there, self.handled, self.added = itertools.count(), ({}, {}), set(), set()

    def key(self, partition):
        return f"{{{self.name}:{partition}}}"

    def add(self, partition, n=1):
        for _ in range(n):
            v = next(self.values)
            self.there[partition][self.client.xadd(self.key(partition), {"v": v})] = v
            self.added.add(v)

    def trim(self, partition, n):
        self.client.xtrim(self.key(partition), maxlen=n, approximate=False)
        for entry in list(self.there[partition])[: max(0, len(self.there[partition]) - n)]:
            del self.there[partition][entry]

    def delete(self, partition, which):
        entries = list(self.there[partition])
        if entries:
            self.client.xdel(self.key(partition), entries[which % len(entries)])
            del self.there[partition][entries[which % len(entries)]]

    def handle(self, partition, entries):
        self.handled |= {int(e.fields["v"]) for e in entries}

    @contextmanager
    def consumer(self, handle=None, **options):
        """One that runs; what it raised is raised at the end."""
        group = ps.Group(self.url, "g", lease="5 s")
        consumer, raised = ps.Consumer(group, self.name, 2, batch=3, **options), []

        def run():
            try:
                consumer.run(handle or self.handle)
            except ps.PenstockError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: len(consumer.owned) == 2 or raised)
        try:
            yield consumer
        finally:
            consumer.leave()
            thread.join()
        if raised:
            raise raised[0]

    def settle(self):
        """Everything that is there is handled."""
        until(lambda: {v for there in self.there for v in there.values()} <= self.handled)

    def lag(self):
        positions = [self.client.hget(f"{self.key(p)}:g", "position") or b"0-0" for p in (0, 1)]
        return sum(len(self.client.xrange(self.key(p), b"(" + at)) for p, at in enumerate(positions))


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def lives(url, seed, count=3):
    """Consumers one after the other, with entries removed before, between and while they work; each has handled something behind when it leaves."""
    dice, stream = random.Random(seed), Stream(url)

    def disturb():
        for _ in range(dice.randint(1, 4)):
            partition = dice.randint(0, 1)
            match dice.choice(["add", "add", "trim", "delete"]):
                case "add":
                    stream.add(partition, dice.randint(1, 7))
                case "trim":
                    stream.trim(partition, dice.choice([0, 0, 1, 2, 5]))
                case "delete":
                    stream.delete(partition, dice.randint(0, 9))

    stream.add(0), stream.add(1)
    trimmed = 0
    for life in range(count):
        with stream.consumer(on_trim="skip") as consumer:
            if not life:
                stream.settle()  # what was removed before the group knew of the stream is nobody's
            for _ in range(dice.randint(1, 3)):
                disturb()
                if dice.random() < 0.5:
                    stream.settle()
            stream.settle()
            for p in (0, 1):
                stream.add(p)  # behind every gap, so that it is acked
            stream.settle()
            until(lambda: not stream.lag())
        trimmed += consumer.figures["trimmed"]
        disturb()
    with stream.consumer(on_trim="skip") as consumer:
        stream.add(0), stream.add(1)
        stream.settle()
        until(lambda: not stream.lag())
    for p in (0, 1):  # nothing that was read is there any more: then all that was not shows
        stream.trim(p, 0)
    with stream.consumer(on_trim="skip") as last:
        until(lambda: last.figures["trimmed"] + consumer.figures["trimmed"] + trimmed >= len(stream.added - stream.handled))
        stream.add(0), stream.add(1)
        stream.settle()
    return trimmed + consumer.figures["trimmed"] + last.figures["trimmed"], stream.added - stream.handled


@pytest.mark.parametrize("seed", range(12))
def test_entries_that_were_removed_unread_are_counted_whatever_removes_them(redis_url, seed):
    counted, lost = lives(redis_url, seed)
    assert counted == len(lost)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_entries_that_were_removed_unread_are_counted_in_many_lives(redis_url, seed):
    counted, lost = lives(redis_url, seed)
    assert counted == len(lost)


def test_gap_when_another_consumer_finds_it_stops_it_in_a_sentence_and_again_until_it_is_declared(redis_url):
    stream = Stream(redis_url)
    stream.add(0, 4), stream.add(1)
    with stream.consumer():
        stream.settle()
        until(lambda: not stream.lag())
    at, first = list(stream.there[0])[-1].decode(), None
    stream.add(0, 6)
    stream.trim(0, 2)
    first = next(iter(stream.there[0])).decode()
    for _ in range(2):
        with pytest.raises(RecordError) as caught, stream.consumer() as consumer:
            until(lambda consumer=consumer: not consumer.owned)
        assert str(caught.value) == (
            f"Partition 0 of stream {stream.name!r}, read up to entry {at}, has lost 4 entries that were not read: the first one there is {first}; "
            'declare on_trim="skip" to go on without.'
        )
        assert len(stream.handled) == 5
    with stream.consumer(on_trim="skip") as consumer:
        stream.settle()
        until(lambda: not stream.lag())
        assert consumer.figures["trimmed"] == 4
    with stream.consumer() as consumer:
        stream.add(0)
        stream.settle()
    assert consumer.figures["trimmed"] == 0


def test_entries_that_were_handled_when_they_are_trimmed_are_not_missed(redis_url):
    stream = Stream(redis_url)
    for _ in range(3):
        with stream.consumer():
            for _ in range(4):
                stream.add(0, 7), stream.add(1, 2)
                stream.settle()
                until(lambda: not stream.lag())
                stream.trim(0, 0), stream.trim(1, 1)
    assert stream.handled == stream.added


def test_part_of_a_batch_when_it_is_acked_counts_to_there(redis_url):
    stream = Stream(redis_url)
    stream.add(0, 5)
    consumer = ps.Consumer(ps.Group(redis_url, "g", lease="5 s"), stream.name, 2, batch=3)
    for partition, entries in consumer:
        assert consumer.ack(partition, entries[:2])
        break
    position, added = stream.client.hmget(f"{stream.key(0)}:g", "position", "added")
    assert added == position + b" 2"
    stream.trim(0, 2)
    with pytest.raises(RecordError, match="has lost 1 entries that were not read"), stream.consumer() as other:
        until(lambda: not other.owned)


def test_entries_that_were_read_ahead_when_a_batch_is_acked_are_not_counted_in(redis_url):
    stream, second, go_on = Stream(redis_url), threading.Event(), threading.Event()
    stream.add(0, 9)

    def handle(partition, entries):
        if stream.handled:
            second.set()
            go_on.wait(10)
        else:
            time.sleep(0.1)  # so long that the next ones are read
        stream.handle(partition, entries)

    with stream.consumer(handle):
        second.wait(10)
        position, added = stream.client.hmget(f"{stream.key(0)}:g", "position", "added")
        go_on.set()
    assert (position, added) == (stream.client.xrange(stream.key(0))[2][0], position + b" 3")


def test_count_when_it_is_of_another_position_says_nothing(redis_url):
    stream = Stream(redis_url)
    stream.add(0, 4)
    with stream.consumer():
        stream.settle()
        until(lambda: not stream.lag())
    stream.add(0, 5)
    stream.client.hset(f"{stream.key(0)}:g", "position", list(stream.there[0])[-1])  # by somebody who does not count
    stream.trim(0, 0)
    with stream.consumer() as consumer:
        stream.add(0, 1)
        stream.settle()
        assert consumer.owned == {0, 1}


def test_server_that_lost_its_data_is_no_gap():
    with valkey() as server:
        stream = Stream(url_of(server))
        with stream.consumer():
            stream.add(0, 20), stream.add(1, 1)
            stream.settle()
            stream.client.flushall()
            stream.there = ({}, {})
            time.sleep(0.01)  # ids rise with the clock
            stream.add(0, 3)
            stream.settle()


def test_policy_that_there_is_not_is_refused():
    with pytest.raises(DeclarationError, match="A consumer's on_trim is 'ignore'; give 'fail' or 'skip'"):
        ps.Consumer(ps.Group("redis://localhost", "g"), "s", 1, on_trim="ignore")
