"""From one Redis stream to another on a real server, at random: what is stored is one sequential pass, whatever crashes or runs twice.

Drawn: entries of a few keys, epochs of few entries, crashes before any step, lost local state, a second run beside the first, rescales. Once, the server is
killed and started again.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter

import pytest

import penstock as ps
from penstock.errors import FencedError
from penstock.redis_client.connection import connect
from penstock.testing import Crash, Harness
from servers import url_of, valkey

_names = (f"flows-{n}" for n in itertools.count())
PARTITIONS = 2
STEPS = ("decide", "compute", "during", "computed", "stored", "commit", "committed")


def numbered(key, event, state):
    number, total = state or (0, 0)
    state = number + 1, total + event.v
    return (key, *state, event.v), state


class Search:
    """One flow, and all that happens to it."""

    def __init__(self, url, folder, seed):
        self.url, self.folder, self.dice, self.name = url, str(folder / f"of-{seed}"), random.Random(seed), next(_names)
        self.client, self.sent, self.crash_at = connect(url), ([], []), None
        self.fired, self.fenced = Counter(), 0
        self.most = self.dice.choice([4, 8, 1000])
        self.harness = self.started()

    def flow(self):
        flow = ps.Flow("redis")
        source = ps.redis_streams(self.url, self.name, PARTITIONS, "k string, v long", max_rows_per_epoch=self.most)
        rows = (
            flow.source("events", source, partitions=[0, 1])
            .key_by("k")
            .stateful_map(numbered, "k string, n long, total long, v long")
        )
        rows.sink(ps.redis_stream(self.url, f"{self.name}-out", 3, key="k"), name="out")
        return flow

    def before(self, step):
        if step.split(" ")[0] == self.crash_at:
            self.fired[self.crash_at] += 1
            self.crash_at = None
            raise Crash(step)

    def started(self):
        """A run on the checkpoint, which may crash at its start, too."""
        while True:
            try:
                return Harness(self.flow(), checkpoint=self.folder, workers=self.dice.randint(1, 3), on_step=self.before)
            except Crash:
                continue

    def add(self):
        for _ in range(self.dice.randint(1, 6)):
            key, v = self.dice.choice(["a", "b", "ü", None]), len(self.sent[0]) + len(self.sent[1])
            partition = 0 if key in {"a", None} else 1
            self.sent[partition].append((key, v))
            self.client.xadd(f"{{{self.name}:{partition}}}", {"v": v} | ({} if key is None else {"k": key}))

    def guarded(self, work):
        """Do something; after a crash a new run goes on, in this process or with what another one would know."""
        try:
            work()
        except Crash:
            self.again()
        except FencedError:
            self.fenced += 1
            self.again()

    def again(self):
        """A new run on the checkpoint, with the state that this process has or without."""
        done = False
        while not done:
            try:
                self.harness.restart(forget_local_state=self.dice.random() < 0.5)
                self.harness.resume()
                done = True
            except Crash:
                continue

    def beside(self):
        """A second run takes over; the first one goes on, and must not store."""
        self.again()  # what it has begun only a harness itself knows
        old, self.harness = self.harness, self.started()
        if self.dice.random() < 0.5:
            self.guarded(self.harness.epoch)
        self.add()
        try:
            old.epoch()
        except FencedError:
            self.fenced += 1

    def step(self):
        match self.dice.choice(["add", "add", "epoch", "epoch", "crash", "crash", "again", "beside", "scale"]):
            case "add":
                self.add()
            case "epoch":
                self.guarded(self.harness.epoch)
            case "crash":
                self.crash_at = self.dice.choice(STEPS)
                self.add()
                self.guarded(self.harness.epoch)
                self.crash_at = None
            case "again":
                self.again()
            case "beside":
                self.beside()
            case "scale":
                self.guarded(lambda: self.harness.scale("k", self.dice.randint(1, 3)))

    def run(self, steps=12):
        for _ in range(steps):
            self.step()
        self.crash_at = None
        for _ in range(200):
            self.harness.epoch()
            if len(self.stored()) >= len(self.sent[0]) + len(self.sent[1]):
                break
        self.harness.epoch()
        return self.stored(), self.wanted()

    def stored(self):
        rows = ps.redis_streams(self.url, f"{self.name}-out", 3, "k string, n long, total long, v long").records({})
        return [] if rows is None else [tuple(r.values()) for r in rows.select(["k", "n", "total", "v"]).to_pylist()]

    def wanted(self):
        found, totals = [], {}
        for key, v in itertools.chain(*self.sent):
            number, total = totals.get(key, (0, 0))
            totals[key] = number + 1, total + v
            found.append((key, *totals[key], v))
        return found


def searched(url, folder, seeds):
    fired, fenced = Counter(), 0
    for seed in seeds:
        search = Search(url, folder, seed)
        stored, wanted = search.run()
        assert sorted(stored, key=repr) == sorted(wanted, key=repr), f"seed {seed}"
        fired += search.fired
        fenced += search.fenced
    return fired, fenced


def test_rows_between_redis_streams_are_those_of_one_pass_whatever_happens(redis_url, tmp_path):
    fired, fenced = searched(redis_url, tmp_path, range(14))
    assert min(fired[step] for step in STEPS) > 0, fired
    assert fenced > 3


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rows_between_redis_streams_are_those_of_one_pass_in_a_long_search(redis_url, tmp_path):
    searched(redis_url, tmp_path, range(1_000, 2_500))


def test_rows_are_stored_once_when_the_server_is_killed_and_started_again(tmp_path):
    with valkey(keep=True) as server:
        search = Search(url_of(server), tmp_path, 7)
        for _ in range(3):
            search.step()
            search.add()
            os.kill(search.client.info("server")["process_id"], signal.SIGKILL)
            server.stop()
            server.start()
        stored, wanted = search.run(3)
        assert sorted(stored, key=repr) == sorted(wanted, key=repr)
