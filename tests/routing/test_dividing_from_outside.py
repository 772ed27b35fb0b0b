"""Strategies, steps and aggregates that penstock does not know, where the rows of a key are divided."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError, OperatorError
from penstock.operators.base import Parts
from penstock.routing.strategy import MERGING, ByCounts, Router, Strategy
from penstock.routing.table import Routing
from penstock.testing import Crash, Harness

DIVIDING = [
    ps.Histogram(), ps.PartialKeyGrouping(), ps.DChoices(), ps.WChoices(), ps.ConsistentGrouping(),
]  # fmt: skip
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NUMBERS = itertools.count()


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def name(strategy):
    return type(strategy).__name__


def flow_of(strategy, then, sink=None, *, time="at", lateness="0 seconds"):
    flow = ps.Flow("outside")
    made = then(flow.source("s", Reader(), time=time, lateness=lateness).key_by("k", name="k", distribute=strategy))
    made.sink(ps.memory(f"outside{next(NUMBERS)}") if sink is None else sink, name="out")
    return flow


def rows(n, seed=0):
    dice = random.Random(seed)
    keys = [*["hot"] * 6, "a", "b", None]
    return [{"k": dice.choice(keys), "v": dice.randrange(2), "at": BEGIN + dt.timedelta(seconds=i)} for i in range(n)]


def summed(keyed):
    return keyed.window(ps.tumbling("1 hour")).aggregate(n=ps.count(), v=ps.sum("v"))


def sums(rows):
    found = defaultdict(lambda: (0, 0))
    for row in rows:
        n, v = found[row["k"]]
        found[row["k"]] = n + 1, v + row["v"]
    return dict(found)


# ------------------------------------------------------------------------------------------------ users' aggregates


class Changes(ps.Aggregate):
    """How often a value is another one than that before it. Its results are often the same whichever way it is merged, and wrong."""

    type = "bigint"

    def zero(self):
        return None

    def add(self, state, value):
        return self.merge(state, (value, value, 0))

    def merge(self, a, b):
        return a or b if a is None or b is None else (a[0], b[1], a[2] + b[2] + (a[1] != b[0]))

    def finish(self, state):
        return state and state[2]


class Ones(ps.Aggregate):
    type = "bigint"
    commutative = True

    def zero(self):
        return 0

    def add(self, state, value):
        return state + value

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        return state


def windows(keyed):
    return (
        keyed.window(ps.tumbling("1 hour")),
        keyed.window(ps.sliding("1 hour", "20 minutes")),
        keyed.window(ps.session("1 hour")),
    )


@pytest.mark.parametrize("strategy", DIVIDING, ids=name)
def test_aggregate_when_it_does_not_say_that_order_is_nothing_to_it_keeps_keys_whole_and_the_flow_says_so(strategy):
    for at in range(3):
        flow = flow_of(
            strategy, lambda k, at=at: windows(k)[at].aggregate(o=Ones("v"), c=Changes("v")), ps.memory(f"said{next(NUMBERS)}")
        )
        with Harness(flow, workers=3) as harness:
            (sentence,) = harness.notices
            assert re.search(
                r"does not use .* for .*aggregate\(o, c\), so a hot key may slow down its worker; say commutative = True in Changes if its "
                r"result is the same in whatever order rows are added and merged, or use Isolate\(\)\.",
                sentence,
            )
            harness.push("s", rows(60))
            assert harness.epoch().figures.regions["k"].divided_rows == 0
    keyed = ps.Flow("f").source("s", Reader(), time="at").key_by("k", distribute=strategy)
    with pytest.raises(DeclarationError, match=r"divides them among workers; use distribute=penstock.Isolate\(\)"):
        keyed.stateful_map(lambda *_: (None, None), "v long")
    behind = keyed.window(ps.tumbling("1 hour")).aggregate(o=Ones("v"))
    behind.window(ps.tumbling("2 hours")).aggregate(c=Changes("o"))  # rows of a key are together again


@pytest.mark.parametrize("strategy", [None, ps.Isolate(), *DIVIDING])
def test_aggregate_when_order_is_something_to_it_is_right_where_keys_stay_whole(strategy):
    sink, given = ps.memory(f"order{next(NUMBERS)}"), rows(60)
    with Harness(flow_of(strategy, lambda k: windows(k)[0].aggregate(c=Changes("v")), sink), workers=3) as harness:
        harness.push("s", given)
        harness.finish()
    values = defaultdict(list)
    for row in given:
        values[row["k"]].append(row["v"])
    assert {r["k"]: r["c"] for r in sink.rows()} == {
        k: sum(a != b for a, b in itertools.pairwise(v)) for k, v in values.items()
    }


@pytest.mark.parametrize("strategy", DIVIDING, ids=name)
def test_rows_of_an_aggregate_that_says_so_do_not_wait(strategy):
    sink = ps.memory(f"said{next(NUMBERS)}")
    flow = flow_of(strategy, lambda k: windows(k)[0].aggregate("update", o=Ones("v")), sink, lateness="1 hour")
    with Harness(flow, workers=3) as harness:
        harness.push("s", rows(60))
        harness.epoch()
        assert {r["k"]: r["o"] for r in sink.rows()} == {k: v for k, (_, v) in sums(rows(60)).items()}


# ------------------------------------------------------------------------------------------------ users' steps


@dataclass
class Longest(ps.Operator):
    """The longest run of a key's even and of its odd values, kept as the greatest value of each; a pane is 0 or 1."""

    ordered = False
    updates = True
    output_key = ("odd",)
    mergeable = True
    schema = "k string, odd long, most long, n long"

    def lift(self, rows):
        return Parts(rows.keys, *self._of(rows))

    def on_data(self, rows, state):
        return self.on_parts(Parts(rows.keys, *self._of(rows)), state)

    def _of(self, rows):
        found = {}
        for group, value in zip(rows.group.tolist(), rows.column("v").to_pylist(), strict=True):
            most, n = found.get((group, value % 2), (value, 0))
            found[group, value % 2] = max(most, value), n + 1
        at = sorted(found)
        values = [b"%d %d" % found[place] for place in at]
        return np.array([g for g, _ in at], np.int64), np.array([odd for _, odd in at], np.int64), values

    def on_parts(self, parts, state):
        assert [*zip(parts.group.tolist(), parts.panes.tolist(), strict=True)] == sorted(
            zip(parts.group.tolist(), parts.panes.tolist(), strict=True)
        )
        found = {}
        for group, odd, value in zip(parts.group.tolist(), parts.panes.tolist(), parts.values, strict=True):
            most, n = map(int, value.split())
            before = found.get((group, odd), (most, 0))
            found[group, odd] = max(most, before[0]), n + before[1]
        which = np.array([group for group, _ in found], np.int64)
        names = state.names(parts.keys, which, [b"%d" % odd for _, odd in found])
        kept = [
            now if old is None else (max(now[0], old[0]), now[1] + old[1])
            for now, old in zip(found.values(), state.get_objects(names), strict=True)
        ]
        state.put_objects(names, kept)
        columns = [
            parts.keys.columns[0].take(pa.array(which)), pa.array([odd for _, odd in found], pa.int64()),
            *(pa.array(column, pa.int64()) for column in zip(*kept, strict=True)),
        ]  # fmt: skip
        times = np.zeros(len(kept), np.int64)
        data = pa.RecordBatch.from_arrays(columns, schema=self.context.output)
        return state.emit(data, parts.keys, times, which, np.arange(len(kept)))


@pytest.mark.parametrize("strategy", [*DIVIDING, None], ids=name)
def test_step_from_outside_when_keys_are_divided_gives_what_it_gives_of_whole_keys(strategy):
    for seed in range(6):
        sink, dice, wanted = ps.memory(f"step{next(NUMBERS)}"), random.Random(seed), {}
        crashes = {dice.randrange(80) for _ in range(3)}
        seen = itertools.count()

        def on_step(_, seen=seen, crashes=crashes):
            if next(seen) in crashes:
                raise Crash

        flow = flow_of(strategy, lambda keyed: keyed.process(Longest()), sink, time=None)
        with Harness(flow, workers=dice.choice([1, 2, 5, 50]), on_step=on_step) as harness:
            for epoch in range(5):
                given = [row | {"v": dice.randrange(99)} for row in rows(dice.choice([0, 1, 40]), seed * 9 + epoch)]
                for row in given:
                    most, n = wanted.get((row["k"], row["v"] % 2), (row["v"], 0))
                    wanted[row["k"], row["v"] % 2] = max(most, row["v"]), n + 1
                harness.push("s", given)
                commands = [{"command": "scale", "region": "k", "workers": dice.choice([1, 3, 8])}] * dice.randrange(2)
                try:
                    harness.epoch(*commands)
                except Crash:
                    while harness.record.epoch < epoch:
                        with contextlib.suppress(Crash):
                            harness.restart(forget_local_state=dice.choice([True, False]))
                            harness.resume()
        assert {(r["k"], r["odd"]): (r["most"], r["n"]) for r in sink.rows()} == wanted


def test_step_from_outside_when_its_parts_are_none_is_told_of_in_a_sentence():
    class Bare(ps.Operator):
        mergeable = True

    class Nothing(Bare):
        def lift(self, rows):
            return None

    class Text(Bare):
        def lift(self, rows):
            return Parts(rows.keys, np.arange(len(rows.keys)), np.arange(len(rows.keys)), ["text"])

    class Beyond(Bare):
        def lift(self, rows):
            return Parts(rows.keys, np.arange(1) + 99, np.arange(1), [b""])

    class Half(Bare):
        def lift(self, rows):
            return Parts(rows.keys, np.arange(len(rows.keys)), np.zeros(len(rows.keys), np.int64), [b""] * len(rows.keys))

    for step, where in ((Bare, "lift"), (Nothing, "lift"), (Text, "lift"), (Beyond, "lift"), (Half, "on_parts")):
        sink = ps.memory(f"bare{next(NUMBERS)}")
        with Harness(flow_of(ps.PartialKeyGrouping(), lambda k, s=step: k.process(s()), sink), workers=3) as harness:
            harness.push("s", rows(30))
            with pytest.raises(
                OperatorError, match=rf"^Operator {step.__name__} of region 'k' failed in {where}: .*; fix the operator\.$"
            ):
                harness.finish()
            assert harness.record.epoch == -1
            assert not sink.rows()


# ------------------------------------------------------------------------------------------------ users' strategies


@dataclass(frozen=True)
class Mine(Strategy):
    """The router is given."""

    how: type[Router]
    splits_keys: ClassVar[bool] = True
    fits: ClassVar[str] = MERGING

    def describe(self):
        return f"Mine({self.how.__name__})"

    def router(self, workers):
        return self.how(workers)


class Turns(Router):
    """In turn, going on from epoch to epoch."""

    def __init__(self, workers):
        self.workers, self.memory = workers, {}

    def route(self, senders):
        out = {}
        for sender, hashes in senders.items():
            known = self.memory.setdefault(sender, {"at": np.zeros(1, np.int64)})
            out[sender] = ((known["at"][0] + np.arange(len(hashes))) % self.workers).astype(np.int32)
            known["at"] = known["at"] + len(hashes)
        return out


class OneByOne(ByCounts):
    """Each message of a key with several goes to another worker."""

    def __init__(self, workers):
        super().__init__(workers, Routing.even(workers))

    def divide(self, keys, counts, loads):
        assert loads.sum() == counts.sum()
        several = [(k, c) for k, c in zip(keys.tolist(), counts.tolist(), strict=True) if c > 1]
        return {key: [(at % self.workers, 1) for at in range(count)] for key, count in several}


@pytest.mark.parametrize("how", [Turns, OneByOne])
def test_strategy_from_outside_divides_keys_and_results_are_exact(how):
    sink, given, memories = ps.memory(f"turns{next(NUMBERS)}"), rows(200), []
    with Harness(flow_of(Mine(how), summed, sink), workers=7) as harness:
        for at in range(0, 200, 50):
            harness.push("s", given[at : at + 50])
            if at == 100:
                harness.restart(forget_local_state=True)
            memories.append(harness.epoch().regions["k"].routers)
        harness.finish()
    assert {r["k"]: (r["n"], r["v"]) for r in sink.rows()} == sums(given)
    assert len(memories) == 4
    if how is Turns:
        assert len({str(m) for m in memories}) == 4


def broken(what):
    class Broken(Turns):
        def route(self, senders):
            found = super().route(senders)
            return what(found, self.workers)

    return Broken


class Raising(Turns):
    def route(self, senders):
        raise KeyError("worker")


class NoRouter(Turns):
    def __init__(self, workers):
        raise RuntimeError("no")


def remembering(memory):
    class Remembering(Turns):
        def route(self, senders):
            found = super().route(senders)
            self.memory = memory
            return found

    return Remembering


def parts(what):
    class Parted(OneByOne):
        def divide(self, keys, counts, loads):
            return {key: what(count, self.workers) for key, count in zip(keys.tolist(), counts.tolist(), strict=True)}

    return Parted


BROKEN = {
    "raises": (Raising, "KeyError"),
    "no router": (NoRouter, "RuntimeError: no"),
    "memory of text": (remembering({0: {"loads": "many"}}), "AttributeError"),
    "memory of fractions": (remembering({0: {"loads": np.array([0.5])}}), "it remembers .* of float64"),
    "memory of a table": (remembering({0: {"loads": np.zeros((2, 2), np.int64)}}), "it remembers .2, 2. of int64"),
    "memory of no sender": (remembering({"me": {"loads": np.zeros(1, np.int64)}}), "ValueError"),
    "too great": (broken(lambda to, n: {s: w + 1 for s, w in to.items()}), "it gave worker 3 of 3"),
    "negative": (broken(lambda to, n: {s: w - 1 for s, w in to.items()}), "it gave worker -1 of 3"),
    "too few": (broken(lambda to, n: {s: w[1:] for s, w in to.items()}), "for 30 messages it gave"),
    "one for all": (broken(lambda to, n: {s: np.int32(0) for s in to}), "for 30 messages it gave"),
    "no sender": (broken(lambda to, n: {}), "KeyError"),
    "none": (broken(lambda to, n: None), "TypeError"),
    "floats": (broken(lambda to, n: {s: w + 0.5 for s, w in to.items()}), "for 30 messages it gave"),
    "part elsewhere": (parts(lambda count, n: [(n, count)]), "of 3 workers, it gave|and 3 workers, it gave"),
    "part too small": (parts(lambda count, n: [(0, count - 1)]), "and 3 workers, it gave"),
    "part too great": (parts(lambda count, n: [(0, count), (1, 1)]), "and 3 workers, it gave"),
    "part below zero": (parts(lambda count, n: [(0, count + 1), (1, -1)]), "and 3 workers, it gave"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_strategy_from_outside_when_it_is_broken_is_told_of_in_a_sentence_and_nothing_is_committed(what, tmp_path):
    how, said = BROKEN[what]
    sink, given = ps.memory(f"broken{next(NUMBERS)}"), rows(30)
    sentence = rf"^Strategy Mine\({how.__name__}\) failed in routing: .*({said}).*; fix the strategy\.$"
    with Harness(flow_of(Mine(how), summed, sink), workers=3, checkpoint=str(tmp_path)) as harness:
        harness.push("s", given)
        with pytest.raises(OperatorError, match=sentence):
            harness.finish()
        assert harness.record.epoch == -1
        assert not sink.rows()
    if not what.startswith("memory"):  # which is not kept
        with pytest.raises(OperatorError, match=sentence):
            ps.route(Mine(how), pa.array([row["k"] for row in given]), workers=3)
    with Harness(flow_of(ps.Histogram(), summed, sink), workers=3, checkpoint=str(tmp_path)) as harness:
        harness.push("s", given)
        harness.finish()
    assert {r["k"]: (r["n"], r["v"]) for r in sink.rows()} == sums(given)


@dataclass(frozen=True)
class Whole(Strategy):
    """Keys stay whole; where they begin, and whom the strategy pins, is given."""

    where: ClassVar = None
    pins: ClassVar = None

    def describe(self):
        return type(self).__name__

    @property
    def report_above(self):
        return 0.1

    def table(self, workers):
        return self.where(workers) if self.where else super().table(workers)

    def pin_keys(self, watch, placed):
        return self.pins(watch, placed) if self.pins else super().pin_keys(watch, placed)


class Beyond(Whole):
    def where(self, workers):
        return Routing.even(workers + 2)


class FewBins(Whole):
    def where(self, workers):
        return Routing.even(workers, bins=64)


class NoTable(Whole):
    def where(self, workers):
        return None


class PinsBeyond(Whole):
    def pins(self, watch, placed):
        return watch, dict.fromkeys(watch.keys, placed.workers)


class PinsNothing(Whole):
    def pins(self, watch, placed):
        return None


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Beyond(), r"its table gives keys to the workers \[3, 4\] of 3"), (FewBins(), "its table has 64 bins, not 4096"), (NoTable(), "AttributeError"),
        (PinsBeyond(), "it pinned a key to worker 3 of 3"), (PinsNothing(), "TypeError"),
    ],
    ids=name,
)  # fmt: skip
def test_strategy_that_leaves_keys_whole_when_it_is_broken_is_told_of_in_a_sentence(strategy, said):
    with Harness(flow_of(strategy, summed), workers=3) as harness:
        harness.push("s", rows(30))
        with pytest.raises(
            OperatorError, match=rf"^Strategy {name(strategy)} failed in routing: .*{said}.*; fix the strategy\.$"
        ):
            harness.epoch()
        assert harness.record.epoch == -1
