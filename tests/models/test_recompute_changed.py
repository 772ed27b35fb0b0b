"""State that is computed anew with other code: rows up to the mark stay, and those after it are what the new code gives over the whole log."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import oracle
import pytest
import recipes as r
from recomputing import Store
from test_against_oracle import compare
from test_recompute_mutants import a_log

from penstock.checkpoint.recovery import Recovery
from penstock.errors import PenstockError
from penstock.testing import Harness
from penstock.types import MIN_TIME

NUMBERS = itertools.count()


@dataclass(frozen=True)
class Code:
    """A version of the flow; all in seconds."""

    lateness: int
    small: int
    long: int
    aggregate: str
    large_only: bool

    def recipe(self) -> r.Recipe:
        """Records, windows of them, windows of these, windows that never change, late records."""
        source = r.Source("a", lateness_us=self.lateness * r.SECOND, partitions=(0, 1))
        read = r.Where(source, "v > 2") if self.large_only else source
        keyed = r.KeyBy(read, ("k",), "first")
        columns = (("v", self.aggregate, "v"), ("j", "max", "j"), ("x", "max", "x"), ("s", "max", "s"))
        small = r.Totals(keyed, columns, r.Window("tumbling", self.small * r.SECOND))
        again = r.KeyBy(small, ("k",), "second")
        window = r.Window("sliding", self.long * r.SECOND, self.long // 2 * r.SECOND)
        long = r.Totals(again, (("v", "sum", "v"), ("j", "count", None)), window)
        aside = r.KeyBy(source, ("k",), "aside")
        same = r.Totals(aside, (("v", "sum", "v"), *columns[1:]), r.Window("tumbling", 7 * r.SECOND))
        late = r.Late(source)
        nodes = [source, read, keyed, small, again, long, aside, same, late]
        return r.Recipe(list(dict.fromkeys(nodes)), [source, small, long, same, late])


def changed(dice: random.Random) -> tuple[Code, Code]:
    """Two versions that differ in one thing at most."""
    choices = {
        "lateness": [0, 2, 5, 9],
        "small": [3, 4, 5],
        "long": [8, 10, 12],
        "aggregate": ["sum", "max", "count_distinct"],
        "large_only": [False, True],
    }
    before = Code(**{name: dice.choice(values) for name, values in choices.items()})
    name = dice.choice([*choices])
    return before, replace(before, **{name: dice.choice(choices[name])})


def check(seed: int, folder: str, *, kept: bool = False) -> int:
    """Run the code before up to some record, and compute anew with the code after it; gives how many regions kept their state.

    Args:
        seed: What is drawn.
        folder: Where checkpoints are.
        kept: Whether the checkpoint is still there; otherwise it is lost.
    """
    dice = random.Random(seed)
    before, after = changed(dice)
    data, cut, name = (
        a_log(dice, 50, dice.choice([0, 0.8])),
        dice.randrange(1, 51),
        f"recomputed with other code {next(NUMBERS)}",
    )
    log, sinks = [x for _, x in data["a"]], {}

    def sink(table: str, _: r.Node) -> Store:
        sinks[table] = Store(table)
        return sinks[table]

    def feed(code: Code, checkpoint: str, records: list[dict]) -> Harness:
        recipe = code.recipe()
        harness = Harness(r.build(recipe, name, sink).flow, checkpoint=f"{folder}/{checkpoint}", recover="recompute")
        if harness.record.recovery is None and harness.record.sources:
            known = {p: k.offset for p, k in harness.record.sources["a"].partitions.items()}
            records = [x for x in records if x["o"] > known.get(str(x["p"]), -1)]
        while records:
            n = dice.randrange(1, 12)
            harness.push("a", r.table(recipe.sources()[0], records[:n]))
            records = records[n:]
            harness.epoch()
        return harness

    with feed(before, f"{seed} before", log[:cut]) as harness:
        there = harness.record.sources["a"]
    stored = [oracle.multiset(made.rows()) for made in sinks.values()]
    with feed(after, f"{seed} before" if kept else f"{seed} after", log) as harness:
        recovery = harness.record.recovery
        assert kept or recovery is not None
        harness.finish()
    if recovery is None:  # nothing that is state has another meaning; a plain start goes on with what was read
        assert (before.small, before.long, before.aggregate) == (after.small, after.long, after.aggregate)
        return 0
    recipe = after.recipe()
    expected = oracle.Oracle(recipe, data, {})
    reached = {int(p): known.offset for p, known in there.partitions.items()}
    for node, old, made in zip(recipe.sinks, stored, sinks.values(), strict=True):
        new = [
            row
            for row in expected.rows(node)
            if (
                row.time >= max(there.frontier, MIN_TIME)
                if isinstance(node, r.Totals)
                else row.data["o"] > reached.get(row.data["p"], -1)
            )
        ]
        what = f"seed {seed}, {before} → {after}, {type(node).__name__}"
        compare(what, oracle.multiset(made.rows()), old + oracle.multiset(row.data for row in new))
    return len(recovery.resting)


@pytest.mark.slow
def test_rows_after_the_mark_when_the_code_has_changed_and_the_checkpoint_is_there_are_those_of_the_new_code(tmp_path):
    assert sum(check(seed, str(tmp_path), kept=True) for seed in range(100, 120)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_rows_after_the_mark_when_the_code_has_changed_are_those_of_the_new_code(tmp_path, part):
    for seed in range(part * 20, part * 20 + 20):
        check(seed, str(tmp_path))


@pytest.mark.parametrize("seed", [7, 36])
def test_found_by_the_above(tmp_path, seed):
    check(seed, str(tmp_path))


def test_search_when_state_that_goes_on_is_given_the_records_of_the_replay_finds_a_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(Recovery, "rests", lambda *_: False)
    with pytest.raises((AssertionError, PenstockError)):
        sum(check(seed, str(tmp_path), kept=True) for seed in range(100, 120))


def test_search_when_less_lateness_lets_a_replay_run_ahead_of_the_mark_finds_a_difference(tmp_path, monkeypatch):
    """A replay with less lateness would pass the frontier of the mark before it comes to its stop, and rows that no sink holds would be given to none."""
    monkeypatch.setattr(Recovery, "before_stop", lambda _, states: states)
    with pytest.raises(AssertionError, match=r"lateness=5, .* → .*lateness=0, .* missing"):
        check(7, str(tmp_path))
