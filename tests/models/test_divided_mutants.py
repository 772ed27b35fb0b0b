"""The search over divided keys is checked: break one thing at a time, and it must notice. Unbroken, `test_divided_flows` runs it.

Read next: `test_divided_flows`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import recipes as r
from hypothesis import given
from hypothesis import strategies as st
from test_against_oracle import always_the_same, check
from test_divided_flows import restless

from penstock.errors import PenstockError
from penstock.operators.aggregate import AggregateStep
from penstock.operators.base import VALUE, Parts
from penstock.operators.session import SessionStep
from penstock.rows.rows import Rows
from penstock.testing import engine
from penstock.worker import task


def search() -> None:
    """Raise for the first difference that some fixed examples show."""

    @always_the_same(60)
    @given(st.data())
    def compare(data):
        timed = data.draw(st.sampled_from([True, True, False]))
        recipe, records, course = data.draw(restless(timed=timed))
        keyed = next(n for n in recipe.nodes if isinstance(n, r.KeyBy))
        if keyed.divided:
            check(recipe, records, replace(course, crashes={}))

    compare()


def a_part_is_lost(patch):
    run = engine.run_split_task

    def first_part_lost(stage, worker, rows):
        parts, hot = run(stage, worker, rows)
        return parts.slice(worker == 1), hot

    patch.setattr(engine, "run_split_task", first_part_lost)


def parts_are_merged_twice(patch):
    for step in (AggregateStep, SessionStep):

        def twice(self, parts, state, merge=step.on_parts):
            values = [value for value in parts.values for _ in range(2)]
            return merge(self, Parts(parts.keys, np.repeat(parts.group, 2), np.repeat(parts.panes, 2), values), state)

        patch.setattr(step, "on_parts", twice)


def rows_of_a_divided_key_come_whole_too(patch):
    split = engine.LocalBackend.split
    patch.setattr(
        engine.LocalBackend,
        "split",
        lambda self, compiled, step, frame, work: (frame, split(self, compiled, step, frame, work)[1]),
    )


def panes_are_mixed_up(patch):
    for step in (AggregateStep, SessionStep):

        def mixed(self, rows, lift=step.lift):
            parts = lift(self, rows)
            return replace(parts, panes=np.roll(parts.panes, 1))

        patch.setattr(step, "lift", mixed)


def rows_that_were_merged_with_parts_come_again(patch):
    chosen = Rows.of_keys
    calls = itertools.count()
    patch.setattr(Rows, "of_keys", lambda self, keys: chosen(self, keys | bool(next(calls) % 2)))


def queued_parts_are_not_released(patch):
    ports = engine.epoch_ports
    patch.setattr(engine, "epoch_ports", lambda spec, inputs, empty, **_: ports(spec, inputs, empty, releases=False))


def parts_of_keys_on_hold_are_merged_at_once(patch):
    split = task.split_held
    patch.setattr(task, "split_held", lambda rows, *held: (rows, {}) if VALUE in rows.schema.names else split(rows, *held))


MUTANTS = [
    a_part_is_lost, parts_are_merged_twice, rows_of_a_divided_key_come_whole_too, panes_are_mixed_up,
    rows_that_were_merged_with_parts_come_again, queued_parts_are_not_released, parts_of_keys_on_hold_are_merged_at_once,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_search_over_divided_keys_when_something_is_broken_finds_a_difference(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        search()
