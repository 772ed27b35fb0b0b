"""Quantifiers, gaps and conditions between events, all in nearly each pattern, over values at the edges of types: answers as the reference has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from ceql_judging import judged
from ceql_running import complaint, in_batch, in_epochs

from penstock.patterns import algebra as s
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.reference import evaluate
from penstock.patterns.scopes import relations_in, subformulas

SEEDS = 500  # of a block


def check(case, run, seed):
    wrong = complaint(case, run(case))
    assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"


@pytest.mark.parametrize("block", [0, 1, 2, *(pytest.param(b, marks=pytest.mark.soak) for b in range(3, 200))])
def test_judged_pattern_answers_as_the_reference_in_batch_and_in_any_epochs(block):
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        check(judged(seed), in_batch, seed)
        check(replace(judged(seed, keyed=True), events_window="key"), lambda case: in_epochs(case)[0], seed)


def test_judged_pattern_reads_again_as_what_it_is():
    for seed in range(1_000):
        query = judged(seed).query
        if query.window is None or query.window.size:
            assert parse(str(query)) == query, str(query)


def test_cases_have_what_they_are_for_and_conditions_that_are_true_of_some_candidates_only():
    found = Counter()
    for seed in range(600):
        case = judged(seed)
        parts = list(subformulas(case.query.formula))
        relations = [r for part in parts for r in relations_in(part)]
        gaps = [p for p in parts if getattr(p, "gap", None) is not None]
        found["quantifiers"] += any(isinstance(part, s.Times) for part in parts)
        found["gaps"] += bool(gaps)
        found["relations"] += bool(relations)
        found["previous"] += any(value.previous for r in relations for value in r.values)
        found["calculated"] += any(isinstance(side, s.Arithmetic) for r in relations for side in (r.left, r.right))
        answers = evaluate(case.query, case.events, scope=case.scope, events_window=case.events_window)
        free = evaluate(
            replace(case.query, formula=without(case.query.formula)),
            case.events,
            scope=case.scope,
            events_window=case.events_window,
        )
        found["matches"] += bool(answers)
        found["chosen"] += bool(answers) and answers != free
    assert min(found["gaps"], found["relations"]) > 300, found
    assert found["quantifiers"] > 150, found
    assert min(found["previous"], found["calculated"], found["chosen"]) > 60, found
    assert found["matches"] > 250, found


def without(formula):
    """The formula without gaps and filters."""
    if isinstance(formula, s.Filtered):
        return without(formula.inner)
    names = [name for name in ("inner", "left", "right") if hasattr(formula, name)]
    formula = replace(formula, **{name: without(getattr(formula, name)) for name in names})
    return replace(formula, gap=None) if hasattr(formula, "gap") else formula
