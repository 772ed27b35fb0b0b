"""Rows of one key on several workers: routed alike whatever happens, whoever wrote the strategy or the step."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import math
import random
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import penstock as ps
from penstock.routing.strategy import MERGING, Router, Strategy
from penstock.testing import Crash, Harness

DIVIDING = [
    ps.Histogram(), ps.PartialKeyGrouping(), ps.DChoices(), ps.WChoices(), ps.ConsistentGrouping(),
]  # fmt: skip
SCHEMA = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("v", pa.int64())])
NUMBERS = itertools.count()


@dataclass
class Reader:
    schema: pa.Schema


def name(strategy):
    return type(strategy).__name__


def totals(strategy, sink, then=lambda keyed: keyed.aggregate(n=ps.count(), v=ps.sum("v"), all=ps.collect("v"))):
    flow = ps.Flow("divided")
    source = flow.source("s", Reader(SCHEMA), position=("p", "o"), partitions=[0, 1, 2])
    then(source.key_by("k", name="k", distribute=strategy)).sink(sink, name="out")
    return flow


def some_epochs(seed=0, epochs=5, rows=60):
    """Rows by epoch; half of them have one key, and in one epoch there are none."""
    dice = random.Random(seed)
    offsets = Counter()
    out = []
    for epoch in range(epochs):
        out.append([])
        for _ in range(0 if epoch == 2 else rows):
            p = dice.randrange(3)
            out[-1].append({"p": p, "o": offsets[p], "k": dice.choice(["hot", *(f"k{i}" for i in range(9)), None] + ["hot"] * 9),
                            "v": dice.randrange(100)})  # fmt: skip
            offsets[p] += 1
    return out


def expected(epochs):
    found = defaultdict(list)
    for row in sorted(itertools.chain(*epochs), key=lambda row: (row["p"], row["o"])):
        found[row["k"]].append(row["v"])
    return {k: (len(v), sum(v), v) for k, v in found.items()}


def shown(sink):
    return {row["k"]: (row["n"], row["v"], row["all"]) for row in sink.rows()}


# ------------------------------------------------------------------------------------------------ the same routing, whatever happens


@dataclass(frozen=True)
class Watched(Strategy):
    """Another strategy, and what its router said."""

    inner: Strategy
    said: list[Any] = field(compare=False, repr=False)
    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING

    def describe(self):
        return self.inner.describe()

    def table(self, workers):
        return self.inner.table(workers)

    def router(self, workers):
        return _Watching(self.inner.router(workers), self.said)


class _Watching(Router):
    def __init__(self, inner, said):
        self.inner, self.said = inner, said

    home = property(lambda self: self.inner.home, lambda self, home: setattr(self.inner, "home", home))
    memory = property(lambda self: self.inner.memory, lambda self, memory: setattr(self.inner, "memory", memory))

    def route(self, senders):
        found = self.inner.route(senders)
        self.said.append({sender: workers.tolist() for sender, workers in found.items()})
        return found

    def finished(self, times_ms):
        self.inner.finished(times_ms)


def routed_by_epoch(strategy, epochs, *, crash_at=None, again="the same harness", folder=None, workers=5, commands=None):
    """Of each committed epoch what the router said and remembers; and all names of steps. A crash comes in the fourth epoch."""
    said, steps, sink = [], [], ps.memory(f"routed{next(NUMBERS)}")
    out = []
    begun = itertools.count()

    def on_step(step):
        if step == "decide":
            said.clear()
            next(begun)
        steps.append(step)
        if step == crash_at and len(out) == 3 and not crashed:
            crashed.append(step)
            raise Crash

    crashed = []

    def opened():
        return Harness(totals(Watched(strategy, said), sink), workers=workers, checkpoint=folder, on_step=on_step)

    harness = opened()
    for number, rows in enumerate(epochs):
        given = (commands or {}).get(number, [])
        for row in rows:
            harness.push("s", [row])
        try:
            harness.epoch(*given)
        except Crash:
            if again == "the same harness":
                harness.restart()
                harness.resume()
            else:
                harness.close()
                harness = opened()
                if harness.record.epoch < number:
                    harness.push("s", rows)
                    harness.epoch(*given)
        assert harness.record.epoch == number
        out.append((list(said), harness.record.regions["k"].routers))
    harness.close()
    assert shown(sink) == expected(epochs)
    assert bool(crashed) == (crash_at is not None)
    return out, steps


@pytest.mark.parametrize("strategy", DIVIDING[:4:3], ids=name)
def test_epoch_when_it_runs_again_after_a_crash_at_any_step_is_routed_alike(strategy, tmp_path):
    epochs = some_epochs()
    calm, steps = routed_by_epoch(strategy, epochs)
    assert all(said for rows, (said, _) in zip(epochs, calm, strict=True) if rows)
    assert len({workers for said, _ in calm for senders in said for to in senders.values() for workers in to}) == 5
    names = dict.fromkeys(steps)
    assert len(names) > 5
    for number, step in enumerate(names):
        for again in ("the same harness", "another one")[number % 2 :][:1]:
            found, _ = routed_by_epoch(strategy, epochs, crash_at=step, again=again, folder=str(tmp_path / f"{number}"))
            assert found[4:] == calm[4:], step
            assert found[3][1] == calm[3][1], step


@pytest.mark.parametrize("strategy", DIVIDING, ids=name)
def test_epoch_when_its_rows_come_in_another_order_is_routed_alike(strategy):
    epochs = some_epochs(3)
    calm, _ = routed_by_epoch(strategy, epochs)
    for seed in range(3):
        mixed = [random.Random(seed).sample(rows, len(rows)) for rows in epochs]
        assert routed_by_epoch(strategy, mixed)[0] == calm


@pytest.mark.parametrize("strategy", DIVIDING[1:], ids=name)
def test_rows_that_a_frontier_triggered_are_routed_alike_whatever_workers_they_come_from(strategy):
    """Windows of one key that close together have one position, and differ in their time."""
    schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
    rows = [row | {"at": dt.datetime.fromtimestamp(n // 2, dt.UTC)} for n, row in enumerate(itertools.chain(*some_epochs(2)))]
    found = []
    for workers in (1, 2, 7):
        said = []
        flow = ps.Flow("chained")
        source = flow.source("s", Reader(schema), time="at", lateness="1 hour", position=("p", "o"), partitions=[0, 1, 2])
        closed = source.key_by("k", name="first").window(ps.tumbling("5 seconds")).aggregate(v=ps.last("v"))
        again = closed.select(j="v % 3").key_by("j", name="second", distribute=Watched(strategy, said))
        again.aggregate(n=ps.count(), all=ps.collect("j")).sink(ps.memory(f"chained{next(NUMBERS)}"))
        with Harness(flow, workers={"first": workers, "second": 5}) as harness:
            for row in rows:
                harness.push("s", [row])
            harness.finish()
        found.append(said)
    assert sum(len(to) for senders in found[0] for to in senders.values()) > 50
    assert found == [found[0]] * 3


@pytest.mark.parametrize("strategy", DIVIDING[1:], ids=name)
def test_router_when_the_number_of_workers_changes_begins_anew(strategy):
    epochs = some_epochs(5, 8, 80)
    scales = {n: [{"command": "scale", "region": "k", "workers": w}] for n, w in ((1, 49), (4, 50))}
    found, _ = routed_by_epoch(strategy, epochs, workers=50, commands=scales)
    numbers = [{r.workers for r in routers.values()} for _, routers in found]
    assert {49} in numbers[1:5]
    assert numbers[0] == numbers[-1] == {50}
    for _, together in itertools.groupby(range(len(epochs)), key=numbers.__getitem__):
        rows = [(row, epoch) for epoch in together for row in sorted(epochs[epoch], key=lambda row: (row["p"], row["o"]))]
        said = [to for epoch in dict.fromkeys(e for _, e in rows) for senders in found[epoch][0] for to in senders.values()]
        senders, at = [row["p"] for row, _ in rows], [epoch for _, epoch in rows]
        (workers,) = numbers[at[0]]
        alone = ps.route(strategy, pa.array([row["k"] for row, _ in rows]), workers=workers, senders=senders, epochs=at)
        assert list(itertools.chain(*said)) == alone.tolist()


REMEMBERING = """
import sys
sys.path.insert(0, sys.argv[1])
from test_divided_keys import digest
print(digest())
"""


def digest():
    """Of all that is routed and remembered of some rows."""
    found = [repr(routed_by_epoch(strategy, some_epochs(7, 3))[0]) for strategy in DIVIDING[1:3]]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def test_routing_does_not_depend_on_the_seed_of_hashes():
    child = subprocess.run(
        [sys.executable, "-c", REMEMBERING, __file__.rpartition("/")[0]], env={"PYTHONHASHSEED": "4711", "PATH": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert child.stdout.strip() == digest()


# ------------------------------------------------------------------------------------------------ keys of every type

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
KEYS = {
    pa.float64(): [None, math.nan, OTHER_NAN, 0.0, -0.0, 1.5, math.inf],
    pa.float32(): [None, math.nan, 0.0, -0.0, 0.25],
    pa.decimal128(38, 4): [None, Decimal(0), Decimal("-0.0"), Decimal("1.5"), Decimal("1.5000"), Decimal(10**33)],
    pa.timestamp("us", "UTC"): [None, dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)],
    pa.binary(): [None, b"", b"\0", b"\0\0", b"\xff" * 60],
    pa.string(): [None, "", "a", "é", "e\N{COMBINING ACUTE ACCENT}", "x" * 300],
    pa.bool_(): [None, True, False],
    pa.date32(): [None, dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    pa.int64(): [None, 0, -(2**63), 2**63 - 1],
    pa.int8(): [None, 0, -128, 127],
}


def as_sql(value):
    """A value that is equal to what SQL holds equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@pytest.mark.parametrize("strategy", DIVIDING[:2], ids=name)
def test_keys_of_every_type_when_divided_meet_where_sql_holds_them_equal(strategy):
    dice = random.Random(11)
    for kinds in [*((kind,) for kind in KEYS), *itertools.combinations(list(KEYS), 2), tuple(KEYS)][
        :: 3 if len(DIVIDING) > 1 else 1
    ]:
        names = [f"k{i}" for i in range(len(kinds))]
        schema = pa.schema([*zip(names, kinds, strict=True), ("v", pa.int64())])
        few = [tuple(dice.choice(KEYS[kind]) for kind in kinds) for _ in range(7)]
        rows = [(*dice.choice(few), n) for n in range(90)]
        flow, sink = ps.Flow("types"), ps.memory(f"types{next(NUMBERS)}")
        keyed = flow.source("s", Reader(schema)).key_by(*names, distribute=strategy)
        keyed.aggregate(n=ps.count(), v=ps.sum("v")).sink(sink)
        with Harness(flow, workers=7) as harness:
            for at in range(0, 90, 30):
                harness.push("s", pa.table([pa.array(c, t) for c, t in zip(zip(*rows[at : at + 30], strict=True), schema.types, strict=True)],
                                           schema=schema))  # fmt: skip
                harness.epoch()
            harness.finish()
        wanted = defaultdict(lambda: [0, 0])
        for *key, v in rows:
            found = wanted[tuple(map(as_sql, key))]
            found[0] += 1
            found[1] += v
        got = [(tuple(as_sql(row[n]) for n in names), [row["n"], row["v"]]) for row in sink.rows()]
        assert len(got) == len(wanted), kinds
        assert dict(got) == wanted, kinds
