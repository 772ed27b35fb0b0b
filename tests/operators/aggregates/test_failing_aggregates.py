"""An aggregate of a user's own that raises is named with its function, the key and, while rows are added, the position."""

from __future__ import annotations

import datetime as dt

import pytest

import penstock as ps
from penstock.errors import OperatorError
from penstock.testing import Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Broken(ps.Aggregate):
    """A sum that raises where it is told to, at the value 6."""

    type = "long"

    def __init__(self, column, fails):
        super().__init__(column)
        self.fails = fails

    def reach(self, place, value):
        if self.fails == place and value == 6:
            raise ZeroDivisionError("by nothing")
        return value

    def zero(self):
        return 0

    def add(self, state, value):
        return state + self.reach("add", value)

    def merge(self, a, b):
        return self.reach("merge", a + b)

    def finish(self, state):
        return "six" if self.fails == "type" and state == 6 else self.reach("finish", state)


def grouped(stream, how):
    kinds = {"tumbling": ps.tumbling("1 hour"), "sliding": ps.sliding("2 hours", "1 hour"), "session": ps.session("30 minutes")}
    return stream.key_by("k").window(kinds[how]) if how in kinds else stream.key_by("k")


def failed(how, fails, epochs):
    flow = ps.Flow("f")
    stream = flow.source("s", ps.files("none", "k string, at timestamp, v long"), time="at")
    grouped(stream, how).aggregate(n=ps.count(), total=Broken("v", fails)).sink(ps.noop())

    def run(harness):
        for rows in epochs:
            harness.push("s", [{"k": k, "at": BEGIN + dt.timedelta(minutes=at), "v": v} for k, at, v in rows])
            harness.epoch()
        harness.finish()

    with Harness(flow, workers=1) as harness, pytest.raises(OperatorError) as caught:
        run(harness)
    assert isinstance(caught.value.__cause__, Exception)
    return str(caught.value).removeprefix("session ")


LINE = Broken.reach.__code__.co_firstlineno + 2
AFTER = f"ZeroDivisionError: by nothing (test_failing_aggregates.py, line {LINE}); fix the aggregate, or leave such records out before it with where(...)."


@pytest.mark.parametrize("how", ["running", "tumbling", "sliding", "session"])
def test_aggregate_when_adding_raises_names_key_and_position(how):
    rows = [("a", 0, 1), ("b", 1, 2), ("b", 2, None), ("b", 3, 6), ("c", 4, 3)]
    assert failed(how, "add", [rows]) == (
        f"aggregate(n, total) of region 'k' failed in Broken.add on key 'b' at position s/0 @ 3: {AFTER}"
    )


@pytest.mark.parametrize("how", ["running", "tumbling", "session"])
def test_aggregate_when_merging_raises_names_the_key(how):
    epochs = [[("a", 0, 1), ("b", 1, 2), ("c", 2, 9)], [("b", 3, 4), ("c", 9, 9)]]
    assert failed(how, "merge", epochs) == f"aggregate(n, total) of region 'k' failed in Broken.merge on key 'b': {AFTER}"


def test_aggregate_when_merging_the_panes_of_a_sliding_window_raises_names_the_key():
    rows = [("a", 0, 1), ("b", 1, 2), ("b", 61, 4), ("c", 62, 3)]
    assert failed("sliding", "merge", [rows]).startswith(
        "aggregate(n, total) of region 'k' failed in Broken.merge on key 'b': "
    )


@pytest.mark.parametrize("how", ["running", "tumbling", "sliding", "session"])
def test_aggregate_when_finishing_raises_or_gives_another_type_names_the_key(how):
    rows = [("a", 0, 1), ("b", 1, 6), ("c", 2, 3)]
    assert failed(how, "finish", [rows]) == f"aggregate(n, total) of region 'k' failed in Broken.finish on key 'b': {AFTER}"
    told = failed(how, "type", [rows])
    assert told.startswith("aggregate(n, total) of region 'k' failed in Broken.finish on key 'b': Arrow")
    assert "six" in told
