"""Redis streams are read without a query of Spark's: interrupted epochs, takeovers, both ways to read, and a query's checkpoints, from a real server."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import time
from collections import Counter

import pytest

import penstock as ps
from penstock.checkpoint.folder import Checkpoint
from penstock.errors import FencedError, PenstockError
from penstock.redis_client.connection import connect
from penstock.spark.sources import redis_streams
from penstock.spark.sources.redis_streams import RedisStreamsReader

pytestmark = pytest.mark.spark
_names = itertools.count()
PARTITIONS, LATENESS_S, AHEAD_S, FAR_S = 2, 20, 3_000, 3_599


@pytest.fixture
def stream():
    return f"by driver {next(_names)}"


def number(key, event, n):
    n = (n or 0) + 1
    return (event.v, n), n


def slow(key, event, n):
    time.sleep(30)
    return (event.v, 1), n


def flow_of(url, stream, place, bad="skip", fn=number, timed=None, **options):
    flow = ps.Flow("rows")
    source = ps.redis_streams(url, stream, PARTITIONS, "k string, v long, at timestamp", **options)
    rows = flow.source("orders", source, on_error=bad, **(timed or {}))
    rows.key_by("k").stateful_map(fn, "v long, n long").sink(ps.sql(f"sqlite:///{place}.db", "rows"))
    return flow


def add(url, stream, partition, rows):
    """Rows as (key, value, second); a second of None: an entry without time."""
    for k, v, second in rows:
        at = {} if second is None else {"at": f"2024-01-01 00:{second // 60:02d}:{second % 60:02d}Z"}
        connect(url).xadd(f"{{{stream}:{partition}}}", {"k": k, "v": v, **at})


def read(spark, flow, checkpoint, workers=2, **options):
    run = flow.start(spark, checkpoint=checkpoint, workers=workers, trigger="available_now", drain=False, **options)
    run.await_termination()
    return run


def held(place):
    with contextlib.closing(sqlite3.connect(f"{place}.db")) as database:
        return Counter(database.execute("SELECT v FROM rows").fetchall())


def random_rows(dice, value, far=0):
    """Some rows; a few are late, a few are malformed, and times stand still or jump; `far`: so many of a hundred are far ahead."""
    second, made = dice.randint(0, 60), []
    for _ in range(dice.choice([0, 1, 5, 40])):
        second += dice.choice([0, 0, 1, 7, -3, -LATENESS_S - 5])
        second = max(0, second)
        v = next(value) if dice.random() > 0.1 else "none"
        at = FAR_S if far and dice.random() < far / 100 else second
        made.append((dice.choice("abc"), v, at if dice.random() > 0.1 else None))
    return made


def on_time(rows):
    """The rule, of one partition."""
    latest, found = 0, Counter()
    for _, v, second in rows:
        if v == "none" or second is None:
            continue
        if second == FAR_S:
            continue
        if second >= latest - LATENESS_S:
            found[v,] += 1
        latest = max(latest, second)
    return found


@pytest.mark.parametrize(("seed", "far"), [(1, 0), (2, 0), (3, 20)])
def test_random_entries_read_by_the_driver_and_by_tasks_give_what_the_rule_says(
    seed, far, spark, redis_url, stream, tmp_path, monkeypatch
):
    dice, value = random.Random(seed), itertools.count()
    most = dice.choice([6, 30, 1000])
    sent = {p: [] for p in range(PARTITIONS)}
    for n in range(3):
        for p in sent:
            # Both partitions begin at once, as one that comes later may not be older than what was given out. The last rows only follow the others.
            rows = [("a", -1, 0 if n == 0 else 3_000)] if n in (0, 2) else random_rows(dice, value, far)
            sent[p] += rows
            add(redis_url, stream, p, rows)
        for few in (0, 5_000):
            monkeypatch.setattr(redis_streams, "FEW_ENTRIES", few)
            place, timed = (
                str(tmp_path / f"few{few}"),
                {"time": "at", "lateness": f"{LATENESS_S} seconds", "ahead": f"{AHEAD_S} seconds" if far else None},
            )
            flow = flow_of(redis_url, stream, place, ps.memory(f"{stream} bad {few} {n}"), timed=timed, max_rows_per_epoch=most)
            read(spark, flow, str(tmp_path / f"ckpt{few}"), workers=seed)
    found = [held(tmp_path / "few0"), held(tmp_path / "few5000"), sum((on_time(rows) for rows in sent.values()), Counter())]
    for rows in found:
        del rows[-1,]
    assert found[0] == found[1] == found[2]


def test_epoch_that_was_interrupted_reads_what_it_was_planned_to_read(spark, redis_url, stream, tmp_path):
    place, checkpoint = str(tmp_path / "out"), str(tmp_path / "ckpt")
    add(redis_url, stream, 0, [("a", v, 0) for v in range(5)])
    read(spark, flow_of(redis_url, stream, place), checkpoint)
    add(redis_url, stream, 1, [("b", v, 0) for v in range(5, 9)])

    def interrupt(step):
        if step == "commit":
            raise RuntimeError("interrupted")

    with pytest.raises(PenstockError, match="interrupted"):
        read(spark, flow_of(redis_url, stream, place), checkpoint, on_step=interrupt)
    assert set(held(place)) == {(v,) for v in range(9)}, "the sink has the rows"
    interrupted = Checkpoint(checkpoint).last().epoch + 1
    add(redis_url, stream, 0, [("c", v, 0) for v in range(9, 14)])
    read(spark, flow_of(redis_url, stream, place), checkpoint)
    assert held(place) == Counter((v,) for v in range(14))
    assert Checkpoint(checkpoint).last().epoch == interrupted + 1


def test_run_without_input_that_is_replaced_says_so(spark, redis_url, stream, tmp_path):
    place, checkpoint = str(tmp_path / "out"), str(tmp_path / "ckpt")
    add(redis_url, stream, 0, [("a", 0, 0)])
    first = flow_of(redis_url, stream, place).start(spark, checkpoint=checkpoint, trigger="100 milliseconds")
    while first.progress["epoch"] < 0:
        first.await_termination(0.05)
    second = flow_of(redis_url, stream, place).start(spark, checkpoint=checkpoint, trigger="100 milliseconds")
    with pytest.raises(FencedError, match="was replaced by run 2"):
        assert first.await_termination(20)
    add(redis_url, stream, 0, [("a", 1, 0)])
    while len(held(place)) < 2:
        assert not second.await_termination(0.05)
    second.shutdown(drain=False)
    assert held(place) == Counter([(0,), (1,)])


def test_run_that_is_abandoned_within_an_epoch_ends_at_once_and_commits_nothing(spark, redis_url, stream, tmp_path):
    place, checkpoint, begun = str(tmp_path / "out"), str(tmp_path / "ckpt"), []
    add(redis_url, stream, 0, [("a", 0, 0)])
    flow = flow_of(redis_url, stream, place, fn=slow)
    run = flow.start(spark, checkpoint=checkpoint, trigger="100 milliseconds", on_step=begun.append)
    while not any(step.startswith("compute ") for step in begun):
        time.sleep(0.05)
    time.sleep(1)  # the task sleeps
    since = time.monotonic()
    run.abandon()
    assert run.await_termination(20)
    assert time.monotonic() - since < 15
    assert Checkpoint(checkpoint).last().epoch == -1
    read(spark, flow_of(redis_url, stream, place), checkpoint)
    assert held(place) == Counter([(0,)])


def test_query_of_spark_and_driver_go_on_with_each_others_checkpoint(spark, redis_url, stream, tmp_path, monkeypatch):
    place, checkpoint, value = str(tmp_path / "out"), str(tmp_path / "ckpt"), itertools.count()
    for by_query in (True, False, True, False):
        with monkeypatch.context() as patched:
            if by_query:
                patched.setattr(RedisStreamsReader, "planned", staticmethod(lambda _: None))
            for _ in range(2):
                add(redis_url, stream, 0, [("a", next(value), 0)])
                read(spark, flow_of(redis_url, stream, place), checkpoint)
    assert held(place) == Counter((v,) for v in range(8))
