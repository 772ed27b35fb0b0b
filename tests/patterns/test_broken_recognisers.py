"""Each deliberately broken recogniser is found by the comparison with the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ceql_drawing import draw
from ceql_running import complaint, in_batch, in_epochs

from penstock.operators import match as operator
from penstock.patterns import batch, memory
from penstock.patterns.automaton import build, determine
from penstock.patterns.recogniser import kernel, recogniser

CASES = 4_000


def found(run, **kind):
    for seed in range(CASES):
        case = draw(seed, **kind)
        try:
            wrong = complaint(case, run(case))
        except (IndexError, AssertionError, KeyError) as error:
            wrong = repr(error)
        if wrong:
            return wrong
    return None


def epochs(case):
    return in_epochs(case)[0]


def test_sound_recogniser_is_not_complained_of():
    assert found(in_batch) is None


def test_window_that_excludes_its_end_is_found(monkeypatch):
    sound = batch.earliest
    monkeypatch.setattr(batch, "earliest", lambda *a: sound(*a) + 1)
    assert found(in_batch)


def test_waiting_loop_on_the_reading_state_is_found(monkeypatch):
    sound = build._Builder.chain

    def chain(self, first, second, by, states):
        sound(self, first, second, replace(by, contiguous=True), states)
        if not by.contiguous:
            for state in second.initial:
                self.readings.append(build._Reading(state, 0, 0, frozenset(), state))

    monkeypatch.setattr(build._Builder, "chain", chain)
    assert found(in_batch)


def test_filter_that_is_not_limited_to_its_part_is_found(monkeypatch):
    sound = build._Builder.filtered

    def filtered(self, inner, condition):
        part = sound(self, inner, condition)
        part.states |= set(range(self.count))
        return part

    monkeypatch.setattr(build._Builder, "relabel", _relabel_all)
    monkeypatch.setattr(build._Builder, "filtered", filtered)
    assert found(in_batch)


def _relabel_all(builder, part, name):
    builder.readings[:] = [replace(t, labels=t.labels | {name} if t.labels else t.labels) for t in builder.readings]
    return part


@pytest.mark.parametrize("strategy", ["MAX", "NEXT", "LAST"])
def test_strategy_without_rivals_is_found(monkeypatch, strategy):
    sound = determine.Determiniser._rivals

    def rivals(self, own, mask, *, marks):
        after, better = sound(self, own, mask, marks=marks)
        return after, 0 if self.strategy == strategy else better

    monkeypatch.setattr(determine.Determiniser, "_rivals", rivals)
    _compare_no_starts(monkeypatch, strategy)
    assert found(in_batch)


def _compare_no_starts(monkeypatch, strategy):
    sound = recogniser.Recogniser._emit_matches

    def emit_matches(self, closings, lows):
        return self._walk(closings, lows, None, self._too_many) if self._strategy == strategy else sound(self, closings, lows)

    monkeypatch.setattr(recogniser.Recogniser, "_emit_matches", emit_matches)


@pytest.mark.parametrize("strategy", ["MAX", "NEXT", "LAST"])
def test_starts_that_are_not_compared_are_found(monkeypatch, strategy):
    _compare_no_starts(monkeypatch, strategy)
    assert found(in_batch)


def test_labels_without_preference_are_found(monkeypatch):
    sound = determine.Determiniser.step

    def step(self, node, mask, choice):
        after, accepts = sound(self, (node[0], 0, *node[2:]), mask, choice)
        return None if after is None else (after[0], 0, *after[2:]), accepts

    monkeypatch.setattr(determine.Determiniser, "step", step)
    assert found(in_batch)


def test_consumption_that_is_forgotten_is_found(monkeypatch):
    monkeypatch.setattr(recogniser, "_CONSUME", {**recogniser._CONSUME, "ANY": kernel.CONSUME_KEY})
    assert found(in_batch, keyed=True)


def test_runs_that_do_not_outlive_a_chunk_are_found(monkeypatch):
    sound = recogniser.Recogniser.keep
    monkeypatch.setattr(recogniser.Recogniser, "keep", lambda self, rows, lows, now=None: sound(self, rows[:0], lows[:0]))
    monkeypatch.setattr(operator, "dump", lambda r, events, owner, nexts, check, always: [None] * len(nexts))
    assert found(in_batch, keyed=False)


def test_events_numbered_by_another_key_are_found(monkeypatch):
    sound = memory._grouped
    monkeypatch.setattr(memory, "_grouped", lambda owner, count: (np.arange(len(owner)), sound(owner, count)[1]))
    assert found(epochs, keyed=True, needs_global_order=False)


def test_place_that_starts_anew_in_each_epoch_is_found(monkeypatch):
    sound = operator.load

    def load(*given):
        loaded = sound(*given)
        return memory.Loaded(loaded.events, loaded.owner, np.zeros_like(loaded.places))

    monkeypatch.setattr(operator, "load", load)

    def run(case):
        return epochs(case) if case.events_window == "key" else []

    for seed in range(CASES):
        case = draw(seed, keyed=True, needs_global_order=False)
        if case.events_window == "key" and complaint(case, epochs(case)):
            return
    pytest.fail("not found")
