"""The checker of recomputations is checked: each plausible mistake in them must be noticed by a small search.

The same search over the unbroken product finds nothing.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import oracle
import pytest
import recipes as r
from recomputing import Life, Lived
from test_against_oracle import compare

from penstock.checkpoint.recovery import Recovery
from penstock.driver import recompute, recovery, replay
from penstock.errors import PenstockError
from penstock.progress import lateness
from penstock.types import MIN_TIME

LIVES = 30
SOURCE = r.Source("a", lateness_us=2 * r.SECOND, partitions=(0, 1))
TOO_SMALL = "let it give more. No sink was given anything in this epoch."


def a_flow(source: r.Source = SOURCE) -> r.Recipe:
    """Records as they come, windows over windows, late records; two partitions."""
    keyed = r.KeyBy(source, ("k",), "first")
    columns = (("v", "sum", "v"), ("j", "max", "j"), ("x", "max", "x"), ("s", "max", "s"))
    small = r.Totals(keyed, columns, r.Window("tumbling", 5 * r.SECOND))
    again = r.KeyBy(small, ("k",), "second")
    long = r.Totals(again, (("v", "sum", "v"), ("j", "count", None)), r.Window("sliding", 12 * r.SECOND, 6 * r.SECOND))
    aside = [r.Late(source)] if source.ahead_us is None else [r.Ahead(source), r.Late(source)]
    return r.Recipe([source, keyed, small, again, long, *aside], [source, small, long, *aside])


def a_log(dice: random.Random, records: int, sticky: float = 0.0) -> dict[str, list]:
    time, p, rows, offsets = 0, 0, [], [0, 0]
    for i in range(records):
        time += dice.choice([0, 1, 1, 2, 3])
        p = p if dice.random() < sticky else dice.randrange(2)
        at = r.moment(max(0, time - dice.choice([0, 0, 0, 1, 2, 6])) * r.SECOND)
        rows.append(
            (i, {"p": p, "o": offsets[p], "k": dice.choice("ab"), "j": i, "v": dice.randrange(9), "x": 0.5, "s": "a", "at": at})
        )
        offsets[p] += 1
    return {"a": rows}


def compare_all(lived: Lived, recipe: r.Recipe, data: oracle.Records) -> None:
    expected = oracle.Oracle(recipe, data, lived.markers)
    for node, found in lived.contents.items():
        compare(type(node).__name__, found, expected.content(node))


def search() -> None:
    """Raise for the first difference that a few fixed lives show."""
    for seed in range(LIVES):
        dice = random.Random(seed)
        recipe, data = a_flow(), a_log(dice, 50)
        lived = Life(recipe, data, dice, rescales=False).run()
        if not lived.refusal.endswith(TOO_SMALL):
            assert not lived.refusal, lived.refusal
            compare_all(lived, recipe, data)


KINDS = ("gone", "dated anew", "added", "moved")


def another(life: Life, kind: str, at: int) -> list[tuple[str, Any]]:
    """The log with a record that is gone, dated anew, added, moved, or whose time is that of the next one of its partition and the other way round.

    Of two that are exchanged both have been read, or neither.
    """
    log = life.records
    name, record = log[at]
    if kind == "exchanged":
        marks = [-1 if m is None else m.positions.get(f"a/{record['p']}", -1) for m in life.marks()]
        other = next((i for i, (_, x) in enumerate(log) if i > at and x["p"] == record["p"]), at)
        if log[other][1]["o"] > min(marks):
            return log
        found = [*log]
        found[at], found[other] = (name, {**record, "at": log[other][1]["at"]}), (name, {**log[other][1], "at": record["at"]})
        return found
    new = {
        "gone": [],
        "dated anew": [{**record, "at": record["at"] + dt.timedelta(seconds=100)}],
        "added": [record, {**record, "o": record["o"] + 1}],
        "moved": [{**record, "o": record["o"] + 1}],
    }[kind]
    return [*log[:at], *((name, x) for x in new), *log[at + 1 :]]


def search_another_log(kinds: Sequence[str] = KINDS, seeds: Sequence[int] = range(LIVES)) -> None:
    """The log is another one when state is computed anew: refused, or what is another was not needed, or was never read."""
    for seed in seeds:
        dice = random.Random(seed)
        recipe, data = a_flow(), a_log(dice, 50)
        data = {"a": [(e, {**x, "o": 2 * x["o"]}) for e, x in data["a"]]}
        kind, at = dice.choice(kinds), dice.randrange(1, 30)
        life = Life(recipe, data, dice, rescales=False)
        life.edit = lambda _, life=life, kind=kind, at=at: another(life, kind, at)
        lived = life.run()
        if lived.refusal:
            continue
        try:
            compare_all(lived, recipe, data)
        except AssertionError:
            compare_all(lived, recipe, {"a": [*enumerate(x for _, x in life.records)]})


def search_exchanged_times() -> None:
    """As many records as before, with the same greatest time."""
    search_another_log(("exchanged",), range(11, 19))


def search_trimmed() -> None:
    """The first records, which all sinks hold, are gone when state is computed anew: refused before any output, or they were not needed."""
    for seed in range(LIVES):
        dice = random.Random(seed)
        recipe, data, gone = a_flow(), a_log(dice, 50), dice.randrange(1, 30)
        life = Life(recipe, data, dice, rescales=False)
        life.edit = life.trim(gone)
        lived = life.run()
        if lived.refusal:
            assert lived.refusal.endswith(TOO_SMALL) or "other records" in lived.refusal, lived.refusal
            assert lived.contents == lived.before
        else:
            compare_all(lived, recipe, data)


def search_idle(about: Mapping[str, Any] = MappingProxyType({"idle_after": "30 seconds"})) -> None:
    """Partitions become idle and come back late, some join late: what was late is so for all outputs alike."""
    for seed in range(LIVES):
        dice = random.Random(seed)
        declared = (0, 1) if seed % 2 else ()
        source = replace(SOURCE, partitions=declared, **about)
        recipe, data = a_flow(source), a_log(dice, 50, 0.8)
        lived = Life(recipe, data, dice, rescales=False, jumps=True, silences=source.close_after_us is not None).run()
        if lived.refusal:
            assert lived.refusal.endswith(TOO_SMALL), lived.refusal
            continue
        compare_idle(lived, recipe, data)


def search_silent() -> None:
    """Sources are silent as a whole, and what comes then is late, with and without partitions that become idle."""
    search_idle({"close_after_us": 4 * r.SECOND})
    search_idle({"close_after_us": 20 * r.SECOND, "idle_after": "30 seconds"})


SILENCES: Sequence[Mapping[str, Any]] = (
    {},
    {"idle_after": "30 seconds"},
    {"close_after_us": 4 * r.SECOND},
    {"close_after_us": 20 * r.SECOND, "idle_after": "30 seconds"},
)


def search_changed_silence(seeds: Sequence[int] = range(LIVES)) -> None:
    """What makes a partition idle, or a source silent, is declared otherwise from the second start on: what was late until a mark stays so for all outputs."""
    for seed in seeds:
        dice = random.Random(seed)
        before, after = (replace(SOURCE, partitions=(0, 1) if seed % 2 else (), **about) for about in dice.sample(SILENCES, 2))
        recipe, data = a_flow(before), a_log(dice, 50, 0.8)
        life = Life(recipe, data, dice, rescales=False, jumps=True, silences=True)

        def edit(log: list[tuple[str, Any]], life: Life = life, after: r.Source = after) -> list[tuple[str, Any]]:
            other = a_flow(after)
            life.sinks = {
                new: life.sinks[old] for old, new in zip(life.recipe.sinks, other.sinks, strict=True) if old in life.sinks
            }
            life.recipe, life.sources, life.copies, life.kept = other, {"a": after}, [], []
            return log

        life.edit = edit
        lived = life.run()
        if lived.refusal:
            assert lived.refusal.endswith(TOO_SMALL), lived.refusal
            continue
        compare_idle(lived, life.recipe, data)


def search_ahead() -> None:
    """Records lie too far ahead: a replay that begins in the middle puts the same ones aside, and gives them once."""
    for seed in range(LIVES):
        dice = random.Random(seed)
        recipe, data = a_flow(replace(SOURCE, ahead_us=6 * r.SECOND)), a_log(dice, 50)
        for _, record in dice.sample(data["a"], 8):
            record["at"] += dt.timedelta(seconds=dice.choice([7, 1_000_000]))
        lived = Life(recipe, data, dice, rescales=False).run()
        if not lived.refusal.endswith(TOO_SMALL):
            assert not lived.refusal, lived.refusal
            compare_all(lived, recipe, data)


def compare_idle(lived: Lived, recipe: r.Recipe, data: oracle.Records) -> None:
    """Each record is on time or late, and is that for all outputs; one behind its own partition is late."""
    source, late = recipe.nodes[0], recipe.nodes[-1]
    compare("records", lived.contents[source] + lived.contents[late], oracle.multiset(x for _, x in data["a"]))
    own = oracle.Oracle(recipe, data, {}).content(late)
    assert own <= lived.contents[late], "a record is on time though its own partition was ahead of it"
    on_time = {(row["p"], row["o"]) for row in map(dict, lived.contents[source])}
    free = replace(source, lateness_us=1 << 50)
    again = a_flow(free)
    whole = oracle.Oracle(again, {"a": [(e, x) for e, x in data["a"] if (x["p"], x["o"]) in on_time]}, {})
    for node, same in zip(recipe.sinks[1:-1], again.sinks[1:-1], strict=True):
        compare(type(node).__name__, lived.contents[node], whole.content(same))


# ------------------------------------------------------------------------------------------------------------- broken variants


def equal_for_at_most(patch):
    patch.setattr(Recovery, "gives", lambda self, output: self.outputs.get(output, 0) == self.passed)


def output_given_rows_one_stop_too_early(patch):
    patch.setattr(Recovery, "gives", lambda self, output: self.outputs.get(output, 0) - 1 <= self.passed)


def output_given_rows_one_stop_too_late(patch):
    patch.setattr(Recovery, "gives", lambda self, output: self.outputs.get(output, 0) < self.passed)


def early_enough_without_adding_up(patch):
    """Each step alone looks back from the frontier."""
    horizons = recovery.horizons

    def alone(plan, frontiers, *more):
        least = min(frontiers.values())
        spans = [step.operator.span() for region in plan.regions for step in region.steps]
        found = horizons(plan, frontiers, *more)
        if least == MIN_TIME or None in spans:
            return found
        return {name: replace(h, time=max(h.time, least - max(spans))) for name, h in found.items()}

    patch.setattr(recovery, "horizons", alone)


def frontier_of_the_mark_not_taken(patch):
    at_stop = Recovery.at_stop

    def own(self, states, now_us):
        found = at_stop(self, states, now_us)
        return {name: replace(state, frontier=states[name].frontier) for name, state in found.items()}

    patch.setattr(Recovery, "at_stop", own)


def greatest_time_of_the_trail_is_that_of_all_records(patch):
    whole = replay.trail.of_chunks

    def of_all(before, chunks):
        return [replace(w, latest=w.latest + 10 * r.SECOND) for w in whole(before, chunks)]

    patch.setattr(replay.trail, "of_chunks", of_all)


def fingerprint_not_compared(patch):
    patch.setattr(Recovery, "difference", lambda *_: None)


def fingerprint_is_number_and_greatest_time(patch):
    patch.setattr(lateness, "print_after", lambda *_: None)


def lateness_judged_from_the_maximum_at_the_mark(patch):
    recovery_of = recompute.recovery_of

    def too_great(*args, **about):
        start = recovery_of(*args, **about)
        (there,) = start.recovery.stops[0].sources.values()
        ((name, source),) = start.sources.items()
        partitions = {k: replace(known, latest=there.partitions[k].latest) for k, known in source.partitions.items()}
        return replace(start, sources={name: replace(source, partitions=partitions)})

    patch.setattr(recompute, "recovery_of", too_great)


def floors_of_a_silence_forgotten_at_the_mark(patch):
    at_stop = Recovery.at_stop

    def awake(self, states, now_us):
        return {name: replace(state, closed=False) for name, state in at_stop(self, states, now_us).items()}

    patch.setattr(Recovery, "at_stop", awake)


def floors_not_replayed(patch):
    patch.setattr(replay, "with_floors_of", lambda state, _: state)


def input_given_again_is_read_twice(patch):
    limits = Recovery.limits

    def whole(self, source, state):
        found, files = limits(self, source, state)
        return {name: (-1 if self.again else after, upto) for name, (after, upto) in found.items()}, files

    patch.setattr(Recovery, "limits", whole)


def first_epoch_not_above_the_marks(patch):
    patch.setattr(recompute.Needed, "epoch", property(lambda _: 0))


MUTANTS = {
    equal_for_at_most: search,
    output_given_rows_one_stop_too_early: search,
    output_given_rows_one_stop_too_late: search,
    early_enough_without_adding_up: search,
    frontier_of_the_mark_not_taken: search_idle,
    fingerprint_not_compared: search_another_log,
    fingerprint_is_number_and_greatest_time: search_exchanged_times,
    lateness_judged_from_the_maximum_at_the_mark: search,
    floors_not_replayed: search_idle,
    floors_of_a_silence_forgotten_at_the_mark: search_silent,
    greatest_time_of_the_trail_is_that_of_all_records: search_ahead,
    input_given_again_is_read_twice: search,
    first_epoch_not_above_the_marks: search,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_when_recomputing_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        MUTANTS[mutant]()


@pytest.mark.slow
@pytest.mark.parametrize(
    "find", [search, search_another_log, search_trimmed, search_idle, search_silent, search_ahead], ids=lambda f: f.__name__
)
def test_search_when_recomputing_is_whole_finds_none(find):
    find()


@pytest.mark.slow
def test_flow_whose_silence_is_declared_otherwise_gives_each_record_on_time_or_late_to_all_outputs():
    search_changed_silence(range(4))


@pytest.mark.soak
def test_three_hundred_flows_whose_silence_is_declared_otherwise_give_each_record_on_time_or_late_to_all_outputs():
    search_changed_silence(range(100, 400))
