"""Which files an epoch reads: the order of Spark's batches put right, and files that were touched between two attempts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.driver.input_files import InputFile, Order, changed, choose, first_difference, gone


def file(number: int, moment: int, size: int = 10) -> InputFile:
    return InputFile(f"file:///in/f{number:03d}", size, moment)


class Listing:
    """Spark's source of files: hands them out by time, those of one moment in any order, so many at a time."""

    def __init__(self, files, most, rng):
        self.left = sorted(files, key=lambda f: (f.mtime_ms, rng.random()))
        self.most = most

    def next(self):
        batch, self.left = self.left[: self.most], self.left[self.most :]
        return batch

    def rest(self, batch, order):
        """As `penstock.spark.internals.found_files.unread` gives it."""
        last = max(f.mtime_ms for f in batch)
        known = {f.uri for f in batch} | set(order.ahead)
        after = order.reached or (0, "")
        return sorted(
            (f for f in self.left if f.mtime_ms == last and f.uri not in known and f.place > after), key=lambda f: f.place
        )[: len(batch)]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 7), st.randoms(use_true_random=False))
def test_files_when_spark_gives_those_of_a_moment_in_any_order_are_read_by_time_and_name(number, moments, most, rng):
    files = [file(i, 1_000 + rng.randrange(moments)) for i in range(number)]
    spark, order, read = Listing(files, most, rng), Order(), []
    while batch := spark.next():
        chosen, order = choose(batch, spark.rest(batch, order), Order.from_json(order.to_json()))
        assert len(chosen) <= most
        assert len(order.owed) == len(order.ahead)
        read += chosen
    assert read == sorted(files, key=lambda f: f.place)
    assert not order.owed
    assert not order.ahead


@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10), st.randoms(use_true_random=False))
def test_files_when_more_come_or_vanish_meanwhile_are_each_read_once_and_none_is_owed_in_the_end(
    number, moments, most, late, rng
):
    files = [file(rng.randrange(1_000) * 2, 1_000 + rng.randrange(moments)) for _ in range(number)]
    files = list({f.uri: f for f in files}.values())
    spark, order, read = Listing(files, most, rng), Order(), []
    more = [file(rng.randrange(1_000) * 2 + 1, 1_000 + rng.randrange(moments)) for _ in range(late)]
    more = list({f.uri: f for f in more}.values())
    expected = {f.uri for f in files}
    while True:
        if more and rng.random() < 0.3:  # a listing that is new has what has come, and not what has gone
            come, more = more[:1], more[1:]
            gone_now = {f.uri for f in spark.left if f.uri in order.ahead and rng.random() < 0.5}
            spark = Listing([f for f in [*spark.left, *come] if f.uri not in gone_now], most, rng)
            expected |= {f.uri for f in come}
        batch = spark.next()
        chosen, order = choose(batch, spark.rest(batch, order) if batch else [], order)
        read += chosen
        if not batch and not more:
            break
    assert sorted(f.uri for f in read) == sorted(expected)
    assert not order.owed


CHANGES = ("none", "touched", "grown", "shrunk", "replaced", "deleted", "renamed", "restored", "another", "younger name")


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 11)), max_size=4),
    st.randoms(use_true_random=False),
)
def test_rerun_when_files_were_changed_meanwhile_stops_at_one_that_is_not_as_it_was_and_goes_on_otherwise(number, changes, rng):
    kept = [file(i, 1_000 + rng.randrange(3), rng.randrange(1, 1_000)) for i in range(number)]
    now = {f.uri: f for f in kept}
    wrong: set[str] = set()
    for kind, which in changes:
        was = kept[which % number]
        there = now.get(was.uri)
        if kind == "another":
            other = file(100 + which, 1_000)
            now[other.uri] = other
        elif kind == "restored":
            now[was.uri] = was
            wrong.discard(was.uri)
        elif kind in ("deleted", "renamed"):
            moved = now.pop(was.uri, None)
            wrong.add(was.uri)
            if kind == "renamed" and moved is not None:
                now["file:///in/moved"] = InputFile("file:///in/moved", moved.size, moved.mtime_ms)
        elif kind != "none" and there is not None:
            size = {"touched": was.size, "grown": was.size + 1 + which, "shrunk": was.size - 1}.get(kind, was.size)
            moment = was.mtime_ms + {"touched": 1, "replaced": 5_000, "younger name": -7}.get(kind, 0)
            now[was.uri] = InputFile(was.uri, size, moment)
            wrong.add(was.uri)
    found = first_difference(kept, now)
    if found is None:
        assert not wrong
    else:
        was, there = found
        assert was.uri == next(f.uri for f in kept if f.uri in wrong)
        told = str(gone("events", 7, was.uri) if there is None else changed("events", 7, was, there))
        assert f"File {was.uri} of source 'events'" in told
        assert "epoch 7" in told
        assert told.count(". ") == 0


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(5_000, 5_000, True), (5_000, 5_999, True), (5_001, 5_999, False), (5_000, 6_000, False), (-1_000, -1_000, True)],
)
def test_times_when_a_store_tells_whole_seconds_agree_to_the_second(first, second, same):
    one, other = file(1, first), file(1, second)
    for was, now in ((one, other), (other, one)):
        assert (first_difference([was], {now.uri: now}, seconds=True) is None) is same
        assert (first_difference([was], {now.uri: now}) is None) is (first == second)


def test_many_changes_between_two_attempts_when_drawn_are_all_seen():
    """Ten thousand cases beside those of hypothesis, each with its own files: an epoch fails, files change, it runs again."""
    rng = random.Random(38)
    seen = {True: 0, False: 0}
    for _ in range(10_000):
        number, most = rng.randrange(1, 9), rng.randrange(1, 4)
        files = [file(i, 1_000 + rng.randrange(2), rng.randrange(1, 50)) for i in range(number)]
        spark, order = Listing(files, most, rng), Order()
        for _ in range(rng.randrange(0, 3)):  # epochs that were committed
            if batch := spark.next():
                _, order = choose(batch, spark.rest(batch, order), order)
        batch = spark.next()
        if not batch:
            continue
        kept, _ = choose(batch, spark.rest(batch, order), order)
        now = {f.uri: f for f in files}
        victim = rng.choice(files)
        kind = rng.choice(["touched", "grown", "deleted", "none"])
        if kind == "deleted":
            del now[victim.uri]
        elif kind != "none":
            now[victim.uri] = InputFile(victim.uri, victim.size + (kind == "grown"), victim.mtime_ms + 3 * (kind == "touched"))
        stops = first_difference(kept, now) is not None
        assert stops == (kind != "none" and victim in kept)
        seen[stops] += 1
    assert min(seen.values()) > 1_000
