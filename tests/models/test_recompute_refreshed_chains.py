"""Sessions, deduplication and times to live behind a lookup whose table changes, computed anew from the middle of the log.

What a sink holds has met the tables of its epochs; what comes after its mark, and the state before, meet the table of the start, also where a replay
reaches further back than the first one.

Read next: `test_recompute_chains`, `test_recompute_changed_recipes`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import recipes as r
import test_recompute
import test_recompute_changed_recipes
from drawing_changes import Change
from hypothesis import given
from hypothesis import strategies as st
from table_versions import Again
from test_against_oracle import always_the_same
from test_recompute_chains import COUNTED, KINDS, a_flow, a_log, counting

from penstock.checkpoint.recovery import Recovery
from penstock.driver import recompute
from penstock.driver.refreshing import RefreshedTables
from penstock.errors import PenstockError
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.session import SessionStep
from penstock.operators.stateful_map import StatefulMap
from penstock.operators.timed_process import TimedProcess

OPERATORS = ("operator", "operator, read")


def search(monkeypatch: pytest.MonkeyPatch, seeds: Iterable[int], kinds: tuple[str, ...] = KINDS) -> None:
    """Raise for the first difference."""
    with monkeypatch.context() as patch:
        counting(patch)
        for seed in seeds:
            dice = random.Random(seed)
            patch.setattr(recompute, "FIRST_REACH", dice.choice([1, 1, 2, 4]))
            again = Again(dice.choice([0, 0, 5]) * r.SECOND, dice.choice([2, 3]), dice.random() < 0.3)
            change = Change(a_flow(dice, kinds, again), f"nothing, {seed}", "goes on")
            test_recompute_changed_recipes.check(change, a_log(dice), seed)


@pytest.mark.slow
def test_flow_of_chains_behind_a_table_that_changes_is_computed_anew_with_the_table_of_its_start(monkeypatch):
    for counted in (COUNTED, test_recompute_changed_recipes.COUNTED):
        counted.clear()
    search(monkeypatch, range(20))
    assert COUNTED["in the middle"] > 3, COUNTED
    assert COUNTED["anew"] > 3, COUNTED
    assert test_recompute_changed_recipes.COUNTED["recomputed"] > 3


@pytest.mark.parametrize(("seed", "kinds"), [(1404, KINDS), (1778, KINDS), (117, OPERATORS), (443, OPERATORS)])
def test_older_records_that_a_replay_reads_do_not_hide_that_newer_ones_are_missing(monkeypatch, seed, kinds):
    """Of records that overtake one another a replay reads some that are older than the oldest time it has whole."""
    search(monkeypatch, [seed], kinds)


@pytest.mark.soak
def test_two_thousand_flows_of_chains_behind_a_table_that_changes_are_computed_anew_with_the_table_of_their_start(monkeypatch):
    search(monkeypatch, range(1000, 3000))


def tables_go_on_changing(patch: pytest.MonkeyPatch) -> None:
    used = RefreshedTables.used
    patch.setattr(RefreshedTables, "used", lambda self, epoch, now_us, **_: used(self, epoch, now_us, stay=False))


def states_are_taken_to_be_sure(patch: pytest.MonkeyPatch) -> None:
    for step in (SessionStep, Deduplicate, StatefulMap, TimedProcess):
        patch.setattr(step, "sure", lambda *_: True)


def rows_meet_the_table_of_the_declaration(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RefreshedTables, "steps", lambda *_: {})


def regions_that_go_on_run_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "rests", lambda *_: False)


SEARCHES = {
    tables_go_on_changing: test_recompute.check_refreshed,
    rows_meet_the_table_of_the_declaration: test_recompute.check_refreshed,
    regions_that_go_on_run_from_the_beginning: test_recompute_changed_recipes.draw_beside,
}
"""By broken variant, the search in flows of any kind that finds it."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SEARCHES, ids=lambda m: m.__name__)
def test_search_in_any_flow_when_a_recomputation_behind_a_table_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)

    @always_the_same(40)
    @given(st.data())
    def differ(data):
        SEARCHES[mutant](data)

    with pytest.raises((AssertionError, PenstockError)):
        differ()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [tables_go_on_changing, states_are_taken_to_be_sure], ids=lambda m: m.__name__)
def test_search_when_a_recomputation_of_chains_behind_a_table_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search(monkeypatch, range(60))
