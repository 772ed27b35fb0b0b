"""Logs whose records overtake one another, computed anew from the middle: windows, joins, deduplication, states with a time to live, one behind the other.

Of such records a replay reads some that are older than the oldest time that it has whole. Partitions and sources go at different speeds.

Read next: `test_recompute_chains`, `penstock.driver.recovery`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import drawing
import oracle
import pytest
import recipes as r
from own_aggregates import ORDERED_AGGREGATES
from test_recompute import check
from test_recompute_chains import live

from penstock.driver import recompute, replay
from penstock.driver.recovery import Start
from penstock.errors import PenstockError
from penstock.operators.stateful_map import StatefulMap

COUNTED: Counter[str] = Counter()
KINDS = ("window", "window", "window", "distinct", "join", "join", "asof", "lives", "state in a window")


class Flow:
    """Draws a flow of one to three steps, none of which remembers without end.

    Args:
        dice: What is drawn.
        kinds: Of `KINDS`, what the steps are.
    """

    def __init__(self, dice: random.Random, kinds: tuple[str, ...] = KINDS) -> None:
        self.dice, self.recipe = dice, r.Recipe([])
        self.sources = [
            r.Source(name, lateness_us=dice.choice([0, 2, 4]) * r.SECOND, partitions=tuple(range(dice.choice([1, 2, 2, 3]))))
            for name in "ab"
        ]
        self.tied, self.deep, self.other_read = False, 0, False
        self.last = self.add(self.sources[0])
        self.add(self.sources[1])
        steps = [self.dice.choice(kinds) for _ in range(dice.choice([1, 2, 2, 3]))]
        for number, kind in enumerate(steps):
            if number == 0 or dice.random() < 0.6:
                self.last = self.add(r.KeyBy(self.last, (dice.choice("kkj"),), f"r{number}"))
            self.step(kind)
            self.recipe.sinks.append(self.last)
        if not self.other_read:
            del self.sources[1], self.recipe.nodes[1]
        for source in self.sources:
            self.recipe.sinks.append(self.add(r.Late(source)))

    def add(self, node: r.Node) -> Any:
        self.recipe.nodes.append(node)
        return node

    def seconds(self, *choices: int) -> int:
        return self.dice.choice(choices) * r.SECOND

    def step(self, kind: str) -> None:
        dice, before = self.dice, self.last
        joins = kind in ("join", "asof")
        if joins and self.other_read:
            kind = "window"  # rows of one source that meet twice share a place
        if kind == "window" or self.tied or self.deep > 2:
            return self.window()
        self.deep += 1
        if kind == "distinct":
            self.last = r.Distinct(before, dice.choice([(), ("v",), ("j",)]), self.seconds(0, 2, 3, 5))
        elif kind == "lives":
            self.last = dice.choice([self.state, self.operator])()
        elif kind == "state in a window":
            self.last = self.state_in_a_window() if "window_start" not in oracle.columns(before) else self.state()
        else:
            self.join(kind)
        self.add(self.last)
        return None

    def state(self) -> r.Node:
        functions = [*r.FUNCTIONS, *r.TIMED_FUNCTIONS]
        return r.Map(self.last, self.dice.choice(functions), None, self.dice.random() < 0.5, self.seconds(1, 2, 3))

    def state_in_a_window(self) -> r.Node:
        fits = [w for w in drawing.WINDOWS if w.kind != "session"]
        return r.Map(self.last, self.dice.choice([*r.FUNCTIONS]), self.dice.choice(fits), self.dice.random() < 0.5)

    def operator(self) -> r.Node:
        return r.Process(self.last, self.dice.choice(["previous", *r.TIMED_OPERATORS]), self.seconds(1, 2, 3))

    def join(self, kind: str) -> None:
        self.other_read = True
        other: r.Node = self.add(r.Standard(self.sources[1]))
        if self.dice.random() < 0.5:
            other = self.add(r.KeyBy(other, oracle.region_of(self.last).keys, "other"))
        how = "asof" if kind == "asof" else self.dice.choice(["inner", "left", "right", "full"])
        self.last = r.Join(self.last, other, self.seconds(0, 1, 2, 5), how)
        self.tied = how not in ("inner", "asof")

    def window(self) -> None:
        dice, keys = self.dice, oracle.region_of(self.last).keys
        kinds = {
            name: [c for c in fit if not self.tied or c[0] not in ORDERED_AGGREGATES] for name, fit in drawing.REST.items()
        }
        chosen = tuple((name, *dice.choice(fit)) for name, fit in kinds.items() if name not in keys and fit)
        self.last = self.add(r.Totals(self.last, chosen, dice.choice(drawing.WINDOWS)))
        self.tied, self.deep = False, 0


def a_log(dice: random.Random, recipe: r.Recipe) -> oracle.Records:
    """Partitions with speeds, pauses and bursts of their own, whose records come late by up to the lateness and more."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    keys = dice.choice(["a", "ab", "ab", "abc"])
    for source in recipe.sources():
        found[source.name] = []
        for p in source.partitions:
            pauses = dice.choice([[0, 1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3], [0, 1, 1, 5], [0, 0, 0, 0, 9]])
            behind = dice.choice([[0], [0, 0, 0, 1, 4], [0, 0, 1, 2], [0, 0, 0, 2, 6]])
            epoch, most, time = dice.choice([0, 0, 5, 15]), dice.choice([1, 1, 2, 3]), dice.choice([0, 0, 5])
            for i in range(dice.choice([25, 40])):
                epoch, time = epoch + dice.randrange(most + 1), time + dice.choice(pauses)
                at = r.moment(max(0, time - dice.choice(behind)) * r.SECOND)
                record = {
                    "p": p,
                    "o": i,
                    "k": dice.choice(keys),
                    "j": dice.randrange(4),
                    "v": dice.randrange(6),
                    "x": 0.5,
                    "s": dice.choice("ab"),
                }
                found[source.name].append((epoch, {**record, "at": at}))
    return found


def search(monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int], kinds: tuple[str, ...] = KINDS) -> None:
    """Raise for the first difference."""
    recovery_of = recompute.recovery_of

    def counted(*args: Any, **about: Any) -> Any:
        start = recovery_of(*args, **about)
        if isinstance(start, Start):
            COUNTED["in the middle"] += any(k.offset >= 0 for s in start.sources.values() for k in s.partitions.values())
            COUNTED["at the beginning"] += not any(s.partitions for s in start.sources.values())
        return start

    with monkeypatch.context() as patch:
        patch.setattr(recompute, "recovery_of", counted)
        for seed in seeds:
            dice = random.Random(seed)
            patch.setattr(recompute, "FIRST_REACH", dice.choice([1, 1, 2, 4]))
            recipe = Flow(dice, kinds).recipe
            log = a_log(dice, recipe)
            if dice.random() < 0.8:
                live(recipe, log, dice, least=sum(map(len, log.values())) * 2 // 3, most=dice.choice([8, 24]))
            else:
                check(recipe, log, seed)


@pytest.mark.slow
def test_flow_whose_records_overtake_one_another_is_computed_anew_from_the_middle_and_gives_what_one_sequential_pass_gives(
    monkeypatch,
):
    COUNTED.clear()
    search(monkeypatch, range(14))
    assert COUNTED["in the middle"] > 5, COUNTED


def test_copy_of_a_checkpoint_that_was_computing_anew_does_not_give_the_sinks_rows_that_another_one_gave_them(monkeypatch):
    search(monkeypatch, [5009])


@pytest.mark.soak
def test_two_thousand_flows_whose_records_overtake_one_another_give_what_one_sequential_pass_gives(monkeypatch):
    search(monkeypatch, range(1000, 3000))


# ------------------------------------------------------------------------------------------------------------- broken variants


def greatest_time_of_a_waypoint_is_that_of_its_last_records(patch: pytest.MonkeyPatch) -> None:
    of_chunks = replay.trail.of_chunks

    def of_last(before: Any, chunks: Iterable[Any]) -> Any:
        chunks = list(chunks)
        return [replace(w, latest=chunk.greatest) for w, chunk in zip(of_chunks(before, chunks), chunks, strict=True)]

    patch.setattr(replay.trail, "of_chunks", of_last)


def windows_of_states_are_shorter_than_they_are(patch: pytest.MonkeyPatch) -> None:
    span = StatefulMap.span
    patch.setattr(StatefulMap, "span", lambda self: self.window and span(self) // 2)


MUTANTS = {
    greatest_time_of_a_waypoint_is_that_of_its_last_records: (KINDS, range(35, 60)),
    windows_of_states_are_shorter_than_they_are: (("state in a window",), range(40, 60)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_a_replay_does_not_reach_back_far_enough_finds_a_difference(monkeypatch, mutant):
    kinds, seeds = MUTANTS[mutant]
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search(monkeypatch, seeds, kinds)
