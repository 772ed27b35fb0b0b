"""The delta of a task is written while its rows are taken; a task ends only when it is there."""

from __future__ import annotations

import time

import pytest

import penstock as ps
from penstock.errors import StateError
from penstock.testing import Harness
from penstock.worker import run

write_file = run.write_file


def counting(out):
    flow = ps.Flow("beside")
    rows = flow.source("rows", ps.files("rows", "k string"))

    def count(key, row, state):
        return [{"k": key, "n": (state or 0) + 1}], (state or 0) + 1

    rows.key_by("k").stateful_map(count, "k string, n long").sink(out)
    return Harness(flow, workers=2)


def push(harness):
    harness.push("rows", [{"k": k} for k in "abcd"])
    harness.epoch()


def test_task_when_the_delta_takes_longer_than_the_rows_waits_for_it(monkeypatch):
    def slow(*given):
        time.sleep(0.2)
        return write_file(*given)

    monkeypatch.setattr(run, "write_file", slow)
    out = ps.memory("slow deltas")
    harness = counting(out)
    push(harness)
    push(harness)
    assert sorted((row["k"], row["n"]) for row in out.rows()) == sorted((k, n) for k in "abcd" for n in (1, 2))


def test_task_when_the_delta_cannot_be_written_fails_and_the_epoch_can_run_again(monkeypatch):
    def full(*_):
        raise StateError("The disk is full.")

    out = ps.memory("no deltas")
    harness = counting(out)
    push(harness)
    monkeypatch.setattr(run, "write_file", full)
    with pytest.raises(StateError, match="disk is full"):
        push(harness)
    monkeypatch.undo()
    harness.epoch()
    assert sorted((row["k"], row["n"]) for row in out.rows()) == sorted((k, n) for k in "abcd" for n in (1, 2))
