"""Sessions, `deduplicate(within=)`, `stateful_map(ttl=)` and `process(ttl=)`, also with timers, whose state is computed anew from the middle of the log: a chain of records that reaches further back is noticed.

A replay begins some links back from what is needed. Where a result hangs on older records, it begins anew, from further back, and no sink was given anything.

Read next: `recomputing`, `penstock.operators.base`.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from dataclasses import replace
from typing import Any

import oracle
import pytest
import recipes as r
from recomputing import Store
from table_versions import Again
from test_against_oracle import compare
from test_recompute import check

from penstock.driver import recompute
from penstock.driver.recovery import Start
from penstock.errors import PenstockError
from penstock.operators import lifetimes, stateful_map
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.session import SessionStep
from penstock.operators.stateful_map import StatefulMap
from penstock.operators.timed_calls import Timers
from penstock.operators.timed_process import TimedProcess, Turns
from penstock.testing import Harness
from penstock.types import MAX_TIME, MIN_TIME

NUMBERS = itertools.count()
COUNTED: Counter[str] = Counter()
KINDS = (
    "sessions", "distinct", "distinct, sessions", "lives", "distinct, lives", "timers", "timers, read", "operator", "operator, read",
)  # fmt: skip


def a_flow(dice: random.Random, kinds: tuple[str, ...], again: Again | None = None) -> r.Recipe:
    """Sessions, deduplication, one behind the other, or a function whose state has a time to live, and what reads them.

    `again`: how a table is read again that stands before them.
    """
    source = r.Source("a", lateness_us=dice.choice([0, 2]) * r.SECOND, partitions=(0, 1))
    nodes: list[r.Node] = [source]
    sinks: list[r.Node] = [source]
    if again is not None:
        sinks = nodes = [
            source,
            r.Lookup(source, "k", "t", (("a", 1), ("b", 2), ("c", 3)), dice.choice(["left", "inner"]), again=again),
        ]
    last = keyed = r.KeyBy(nodes[-1], ("k",), "first")
    nodes = [*nodes, keyed]
    kind = dice.choice(kinds)
    if "distinct" in kind:
        last = r.Distinct(keyed, dice.choice([(), ("v",)]), dice.choice([2, 3, 5]) * r.SECOND)
        nodes, sinks = [*nodes, last], [*sinks, last]
        keyed = r.KeyBy(last, ("k",), "middle")
    if "sessions" in kind:
        columns = (("v", "sum", "v"), ("j", "max", "j"), ("x", "max", "x"), ("s", "max", "s"))
        if again is not None:
            columns = (*columns, ("t", "sum", "t"))
        last = r.Totals(keyed, columns, r.Window("session", dice.choice([2, 3]) * r.SECOND))
        nodes, sinks = [*nodes, *([keyed] if keyed not in nodes else []), last], [*sinks, last]
    if "operator" in kind:
        last = r.Process(keyed, dice.choice([*r.TIMED_OPERATORS]), dice.choice([2, 3]) * r.SECOND)
        nodes, sinks = [*nodes, last], [*sinks, last]
    if "lives" in kind or "timers" in kind:
        last = r.Map(
            keyed,
            dice.choice(["quiet", "often"]) if "timers" in kind else "history",
            None,
            dice.choice([True, False]),
            dice.choice([2, 3]) * r.SECOND,
        )
        nodes, sinks = [*nodes, *([keyed] if keyed not in nodes else []), last], [*sinks, last]
    if "read" in kind or (dice.random() < 0.5 and not isinstance(last, r.Map | r.Process)):
        again = r.KeyBy(last, ("k",), "second")
        window = dice.choice([r.Window("sliding", 12 * r.SECOND, 6 * r.SECOND), r.Window("session", 4 * r.SECOND)])
        long = r.Totals(again, (("v", "sum", "v"), ("j", "count", None)), window)
        nodes, sinks = [*nodes, again, long], [*sinks, long]
    late = r.Late(source)
    return r.Recipe([*nodes, late], [*sinks, late])


def a_log(dice: random.Random) -> oracle.Records:
    """Bursts and pauses of several kinds."""
    time, rows, offsets = 0, [], [0, 0]
    pauses = dice.choice([[0, 1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3], [0, 1, 1, 5]])
    keys = dice.choice(["a", "ab", "abc"])
    for i in range(dice.choice([30, 60])):
        time += dice.choice(pauses)
        p, at = dice.randrange(2), r.moment(max(0, time - dice.choice([0, 0, 0, 0, 1, 4])) * r.SECOND)
        rows.append(
            (i, {"p": p, "o": offsets[p], "k": dice.choice(keys), "j": i, "v": dice.randrange(2), "x": 0.5, "s": "a", "at": at})
        )
        offsets[p] += 1
    return {"a": rows}


def bursts(dice: random.Random, kind: str) -> tuple[r.Recipe, oracle.Records]:
    """Short bursts of one key, a timer behind each, and windows that read what timers give: they need rows of long before the first mark."""
    source = r.Source("a", lateness_us=0, partitions=(0,))
    keyed = r.KeyBy(source, ("k",), "first")
    ttl = 3 * r.SECOND
    step = r.Map(keyed, "quiet", None, False, ttl) if kind == "bursts" else r.Process(keyed, "quiet", ttl)
    again = r.KeyBy(step, ("k",), "second")
    totals = r.Totals(again, (("v", "sum", "v"), ("j", "count", None)), r.Window("sliding", 12 * r.SECOND, r.SECOND))
    time, rows = 0, []
    for i in range(30):
        time += dice.choice([1, 2, 2, 4])
        rows.append((i, {"p": 0, "o": i, "k": "a", "j": i, "v": 1, "x": 0.5, "s": "a", "at": r.moment(time * r.SECOND)}))
    return r.Recipe([source, keyed, step, again, totals], [source, step, totals]), {"a": rows}


def live(recipe: r.Recipe, data: oracle.Records, dice: random.Random, *, least: int = 10, most: int = 4) -> None:
    """Lose the checkpoint after so many records at `least`, in epochs of less than `most`; compute anew to the end, and compare."""
    log = [(n, x) for _, n, x in sorted(((e, n, x) for n, rows in data.items() for e, x in rows), key=lambda one: one[:2])]
    sinks: dict[r.Node, Store] = {}
    name, markers = f"chains {next(NUMBERS)}", {}

    def sink(table: str, node: r.Node) -> Store:
        sinks[node] = Store(table)
        return sinks[node]

    with tempfile.TemporaryDirectory(prefix="penstock-chains-") as folder:
        for checkpoint, some, end in (("lost", log[: dice.randrange(least, len(log))], most), ("new", log, 30)):
            built = r.build(recipe, name, sink)
            harness, markers = Harness(built.flow, checkpoint=f"{folder}/{checkpoint}", recover="recompute"), built.markers()
            at = 0
            while at < len(some):
                size = dice.randrange(1, end)
                for source in recipe.sources():
                    if here := [x for n, x in some[at : at + size] if n == source.name]:
                        harness.push(source.name, r.table(source, here))
                at += size
                harness.epoch()
        harness.finish()
    expected = oracle.Oracle(recipe, data, markers)
    for node, made in sinks.items():
        compare(type(node).__name__, oracle.multiset(made.rows()), expected.content(node))


def counting(patch: pytest.MonkeyPatch) -> None:
    """Count where recomputations begin."""
    recovery_of = recompute.recovery_of

    def counted(*args: Any, **about: Any) -> Any:
        start = recovery_of(*args, **about)
        if isinstance(start, Start):
            COUNTED["in the middle"] += bool(start.recovery.chains)
            COUNTED["anew"] += about["reach"] > recompute.FIRST_REACH
        return start

    patch.setattr(recompute, "recovery_of", counted)


def search(monkeypatch: pytest.MonkeyPatch, seeds: range, kinds: tuple[str, ...] = KINDS) -> None:
    """Raise for the first difference."""
    with monkeypatch.context() as patch:
        counting(patch)
        for seed in seeds:
            dice = random.Random(seed)
            patch.setattr(recompute, "FIRST_REACH", dice.choice([1, 1, 2, 4]))
            flow, log = (a_flow(dice, kinds), a_log(dice)) if "bursts" not in kinds[0] else bursts(dice, *kinds)
            live(flow, log, dice)


@pytest.mark.slow
def test_flow_of_chains_that_is_computed_anew_gives_what_one_sequential_pass_gives(monkeypatch):
    COUNTED.clear()
    search(monkeypatch, range(20))
    assert COUNTED["in the middle"] > 12
    assert COUNTED["anew"] > 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bursts", "bursts of an operator"])
def test_timers_behind_bursts_that_are_computed_anew_give_what_one_sequential_pass_gives(monkeypatch, kind):
    COUNTED.clear()
    search(monkeypatch, range(12), (kind,))
    assert COUNTED["anew"] > 3


@pytest.mark.slow
def test_flow_of_chains_that_loses_its_checkpoint_again_and_again_gives_what_one_sequential_pass_gives():
    for seed in range(8):
        dice = random.Random(seed)
        check(a_flow(dice, KINDS), a_log(dice), seed)


@pytest.mark.soak
def test_two_thousand_flows_of_chains_that_are_computed_anew_give_what_one_sequential_pass_gives(monkeypatch):
    search(monkeypatch, range(1000, 3000))


# ------------------------------------------------------------------------------------------------------------- broken variants


def state_of_sessions_is_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStep, "sure", lambda *_: True)


def state_of_deduplication_is_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deduplicate, "sure", lambda *_: True)


def states_with_a_time_to_live_are_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatefulMap, "sure", lambda *_: True)


def first_records_of_a_replay_are_taken_to_be_the_first_of_all(patch: pytest.MonkeyPatch) -> None:
    def living(*given: Any) -> Any:
        held, doubt = lifetimes.living(*given[:-1], replace(given[-1], missing=MIN_TIME, needed=MAX_TIME))
        return held, doubt

    patch.setattr(stateful_map, "living", living)


def what_timers_give_is_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    init = Timers.__init__
    patch.setattr(Timers, "__init__", lambda self, at, upto, once, doubt: init(self, at, upto, once, doubt & False))


def what_timers_of_operators_give_is_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    fire = Turns.fire

    def sure(self: Turns, *given: Any) -> Any:
        kept, self.doubt = self.doubt, self.doubt & False
        out = list(fire(self, *given))
        self.doubt = kept
        return iter(out)

    patch.setattr(Turns, "fire", sure)


def states_of_operators_are_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimedProcess, "sure", lambda *_: True)


MUTANTS = {
    what_timers_give_is_taken_to_be_sure: ("bursts",),
    what_timers_of_operators_give_is_taken_to_be_sure: ("bursts of an operator",),
    states_of_operators_are_taken_to_be_sure: ("operator",),
    state_of_sessions_is_taken_to_be_sure: ("sessions", "distinct, sessions"),
    state_of_deduplication_is_taken_to_be_sure: ("distinct", "distinct, sessions"),
    states_with_a_time_to_live_are_taken_to_be_sure: ("lives",),
    first_records_of_a_replay_are_taken_to_be_the_first_of_all: ("lives",),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_chains_are_not_noticed_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search(monkeypatch, range(60), MUTANTS[mutant])
