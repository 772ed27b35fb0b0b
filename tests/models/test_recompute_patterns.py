"""Patterns `WITHIN` a time, idle and undeclared partitions, `since=`: the checkpoint is lost again and again, runs are killed, and the sinks hold what a clean run gives.

The clean run over the whole log stands for the oracle, as the one pass of the other tests knows no patterns.

Read next: `recomputing`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import tempfile
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from recomputing import Store
from spelled import micros
from test_against_oracle import compare

import penstock as ps
from penstock.driver import recompute
from penstock.errors import PenstockError
from penstock.operators.match import Match
from penstock.sources.base import Source
from penstock.testing import Crash, Harness

NUMBERS = itertools.count()
COUNTED: Counter[str] = Counter()
AT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PATTERNS = [
    "SELECT * WHERE small AS a ; large AS b WITHIN {} SECONDS",
    "SELECT a, b WHERE small AS a ; (small OR large) AS b WITHIN {} SECONDS",
    "SELECT * WHERE small+ AS a ; large AS b WITHIN {} SECONDS",
    "SELECT COUNT(*) WHERE small AS a ; large AS b ; small AS c WITHIN {} SECONDS",
    "SELECT MAX * WHERE small{{2,3}} AS a ; (large AS b)? ; large WITHIN {} SECONDS",
    "SELECT * WHERE small AS a ; large AS b FILTER b.v > a.v + 3 WITHIN {} SECONDS",
    "SELECT LAST * WHERE small+[WITHIN 2 SECONDS] AS a ;[WITHIN 1 SECOND] large AS b WITHIN {} SECONDS",
]
PAUSE = 40
"""Seconds after which no session is open and no pattern waits."""


class Log(Source):
    schema = pa.schema(
        [("p", pa.int64()), ("o", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())]
    )


def content(sink: Store) -> Counter[Any]:
    """A sink's rows, which hold lists of events."""
    return Counter(repr(sorted(row.items())) for row in sink.rows())


class Case:
    """A flow and its log, drawn."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.kind = dice.choice(["pattern", "pattern", "pattern, windows", "sessions"])
        self.size, self.text = dice.randrange(2, 7), dice.choice(PATTERNS)
        matches_only = any(word in self.text for word in ("COUNT", "FILTER", "[WITHIN"))
        self.timeout = None if matches_only else dice.choice([None, "a"])
        self.declared = dice.choice([(0, 1), ()])
        self.log, time, offsets = [], 0, [0, 0]
        self.pause = dice.randrange(5, 25)
        pauses, behind = dice.choice([[0, 1, 1, 2, 3], [0, 1, 1, 1, 7], [1, 1, 2]]), dice.choice([[0, 0, 1], [0, 0, 0, 2, 4]])
        slower = dice.choice([0, 0, 3])
        for i in range(40):
            time += PAUSE if i == self.pause else dice.choice(pauses)
            p = i if i < 2 else dice.randrange(2)
            at = AT + dt.timedelta(seconds=time if i == self.pause else max(0, time - dice.choice(behind) - slower * p))
            self.log.append({"p": p, "o": offsets[p], "k": dice.choice("ab"), "at": at, "v": dice.randrange(10)})
            offsets[p] += 1
        self.since = None
        if self.kind == "sessions" and dice.random() < 0.7:
            self.since = self.log[self.pause]["at"] - dt.timedelta(seconds=10)

    def flow(self, name: str, sink: Any) -> ps.Flow:
        """The flow, with sinks by name."""
        flow = ps.Flow(name)
        source = flow.source("log", Log(), time="at", lateness="2 seconds", position=("p", "o"), partitions=self.declared)
        keyed = source.key_by("k", name="first")
        if self.kind == "sessions":
            found = keyed.window(ps.session(f"{self.size} seconds")).aggregate(n=ps.count(), total=ps.sum("v"))
        else:
            define = {"small": "v < 5", "large": "v >= 5"}
            found = keyed.match(self.text.format(self.size), define=define, on_timeout=self.timeout)
            if self.timeout:
                found.timeouts.sink(sink("timeouts"), name="timeouts")
        found.sink(sink("found"), name="found")
        if self.kind == "pattern, windows":
            windows = found.key_by("k", name="second").window(ps.sliding("8 seconds", "4 seconds"))
            windows.aggregate(n=ps.count()).sink(sink("windows"), name="windows")
        source.late.sink(sink("late"), name="late")
        return flow


class Life:
    """Starts of a case's flow, each of which finds its checkpoint lost or as it was left, until one comes to the end.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.dice, self.name = case, case.dice, f"patterns {next(NUMBERS)}"
        self.sinks: dict[str, Store] = {}
        self.steps = self.crash_at = 0

    def sink(self, table: str) -> Store:
        made = self.sinks[table] = Store(f"{self.name} {table}")
        return made

    def step(self, _: str) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash

    def passed(self) -> bool:
        """Whether all sinks have come as far as the time that a start is told: before it, older records matter."""
        marks = [made.held(table) for table, made in self.sinks.items()]
        return self.case.since is not None and all(m is not None and m.frontier >= micros(self.case.since) for m in marks)

    def run(self) -> dict[str, Counter[Any]]:
        """What the sinks hold in the end."""
        dice, case = self.dice, self.case
        starts = dice.randrange(2, 5)
        with tempfile.TemporaryDirectory(prefix="penstock-patterns-") as folder:
            checkpoint = f"{folder}/0"
            for start in range(starts + 1):
                last = start == starts
                self.steps = 0
                self.crash_at = dice.randrange(1, dice.choice([30, 90])) if 0 < start < starts and dice.random() < 0.7 else 0
                upto = len(case.log) if last else dice.randrange(case.pause + 4, len(case.log))
                try:
                    self.live(checkpoint, upto, since=case.since if start and self.passed() else None, last=last)
                except Crash:
                    COUNTED["crashed"] += 1
                if dice.random() < 0.7:
                    checkpoint = f"{folder}/{start + 1}"
        return {table: content(made) for table, made in self.sinks.items()}

    def live(self, checkpoint: str, upto: int, *, since: Any, last: bool) -> None:
        dice, case = self.dice, self.case
        flow = case.flow(self.name, self.sink)
        with Harness(flow, checkpoint=checkpoint, recover="recompute", since=since, on_step=self.step) as harness:
            records, at = case.log[:upto], 0
            if harness.record.recovery is None and harness.record.sources:
                known = {p: k.offset for p, k in harness.record.sources["log"].partitions.items()}
                records = [x for x in records if x["o"] > known.get(str(x["p"]), -1)]
            COUNTED["anew"] += harness.record.recovery is not None
            COUNTED["since"] += harness.record.recovery is not None and since is not None
            while at < len(records):
                size = dice.randrange(6 if at == 0 else 1, 20)
                harness.push("log", records[at : at + size])
                at += size
                harness.epoch(advance_us=dice.choice([1, 60]) * 1_000_000)
            if last and not harness.record.finished:
                harness.finish()


def search(seeds: range) -> None:
    """Raise for the first difference."""
    for seed in seeds:
        case = Case(seed)
        found = Life(case).run()
        clean: dict[str, Store] = {}

        def sink(table: str, clean: dict[str, Store] = clean) -> Store:
            return clean.setdefault(table, Store(f"clean {next(NUMBERS)} {table}"))

        with Harness(case.flow("clean", sink)) as harness:
            harness.push("log", case.log)
            harness.epoch()
            harness.finish()
        for table, made in clean.items():
            compare(f"seed {seed}, {case.kind}, {table}", found[table], content(made))


@pytest.mark.slow
def test_flow_of_patterns_that_is_computed_anew_gives_what_a_clean_run_gives():
    COUNTED.clear()
    search(range(14))
    assert COUNTED["anew"] > 14
    assert COUNTED["since"] > 1
    assert COUNTED["crashed"] > 1


@pytest.mark.soak
def test_two_thousand_flows_of_patterns_that_are_computed_anew_give_what_a_clean_run_gives():
    search(range(1000, 3000))


# ------------------------------------------------------------------------------------------------------------- broken variants


def pattern_looks_back_half_its_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Match, "span", lambda self: int(self.pattern.window.size) // 2)


def since_is_taken_for_later(patch: pytest.MonkeyPatch) -> None:
    recovery_of = recompute.recovery_of

    def later(*args: Any, since: int | None = None, **about: Any) -> Any:
        return recovery_of(*args, since=None if since is None else since + 30_000_000, **about)

    patch.setattr(recompute, "recovery_of", later)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [pattern_looks_back_half_its_time, since_is_taken_for_later], ids=lambda m: m.__name__)
def test_search_when_a_replay_begins_too_late_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search(range(150))
