"""Timers of `stateful_map`, example by example: when they fire, what they see, what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import DeclarationError, OperatorError
from penstock.testing import Harness

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
OUT = "k string, what string, at timestamp"
NUMBERS = itertools.count()


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def minute(n: float) -> dt.datetime:
    return BEGIN + dt.timedelta(minutes=n)


def minutes(n: float) -> dt.timedelta:
    return dt.timedelta(minutes=n)


class Timed:
    """A flow of one step, which is given rows (minute, key) epoch by epoch; maybe on a checkpoint that others had."""

    def __init__(self, folder=None) -> None:
        self.checkpoint = None if folder is None else str(folder / "checkpoint")
        self.name, self.offsets = f"timers {next(NUMBERS)}", itertools.count()

    def run(self, fn, on_timer, *epochs, end=False, schema=OUT, **more):
        flow = ps.Flow("timers")
        source = flow.source("s", Reader(), time="at", position=("p", "v"))
        step = source.key_by("k").stateful_map(fn, schema, on_timer=on_timer, **more)
        sink = ps.memory(self.name)
        step.sink(sink)
        with Harness(flow, checkpoint=self.checkpoint) as harness:
            for rows in epochs:
                found = [{"p": 0, "k": k, "v": next(self.offsets), "at": minute(at)} for at, k in rows]
                harness.push("s", pa.Table.from_pylist(found, schema=SCHEMA))
                harness.epoch()
            if end:
                harness.finish()
        return [(row["what"], (row["at"] - BEGIN) / minutes(1)) for row in sink.rows()]


def alive(key, event, state):
    return None, None, event.at + minutes(10)


def silent(key, state, at):
    return (key, "silent", at), state


def hourly(key, event, state):
    hour = event.at.replace(minute=0, second=0, microsecond=0)
    return None, (state or 0) + 1, hour + minutes(60)


def summary(key, state, at):
    return (key, f"{state or 0}", at), 0, at + minutes(60)


def test_timer_when_nothing_comes_fires_once_the_frontier_has_passed_it():
    given = Timed().run(alive, silent, [(0, "a"), (5, "a")], [(8, "b"), (15, "b")], [(15.5, "b")])
    assert given == [("silent", 15)]


def test_timer_when_an_event_comes_at_its_time_fires_before_it():
    assert Timed().run(alive, silent, [(0, "a"), (10, "a"), (11, "a")]) == [("silent", 10)]


def test_timer_when_set_again_or_not_is_replaced_or_stays():
    def only_first(key, event, state):
        return (None, 1, event.at + minutes(3)) if state is None else (None, state + 1)

    def told(key, state, at):
        return (key, f"{state} events", at), state

    assert Timed().run(only_first, told, [(0, "a"), (1, "a"), (2, "a"), (5, "a")], end=True) == [("3 events", 3)]


@pytest.mark.parametrize("left", [(None, 1, None), (None, None)])
def test_timer_when_taken_back_or_its_key_is_forgotten_never_fires(left):
    def then(key, event, state):
        return (None, 1, event.at + minutes(3)) if event.at == BEGIN else left

    assert Timed().run(then, silent, [(0, "a"), (1, "a"), (9, "a")], end=True) == []


def test_timer_that_sets_the_next_one_goes_on_while_others_have_events_and_ends_with_the_input():
    given = Timed().run(hourly, summary, [(10, "a"), (70, "a")], [(200, "b")], end=True)
    assert sorted(given) == sorted([("1", 60), ("1", 120), ("0", 180), ("0", 240), ("1", 240)])


def test_timer_when_all_comes_at_once_fires_as_in_many_epochs():
    rows = [(10, "a"), (70, "a"), (200, "b"), (201, "a"), (330, "b")]
    at_once = Timed().run(hourly, summary, rows, end=True)
    assert sorted(Timed().run(hourly, summary, *[[row] for row in rows], end=True)) == sorted(at_once)


def test_timer_that_is_past_fires_a_microsecond_after_its_event():
    def past(key, event, state):
        return (key, "event", event.at), None, event.at - minutes(5)

    (what, at), *_ = [row for row in Timed().run(past, silent, [(7, "a"), (7, "a"), (9, "a")]) if row[0] == "silent"]
    assert (what, round((at - 7) * 60e6)) == ("silent", 1)


@pytest.mark.parametrize("later", [minutes(0), minutes(-1)])
def test_timer_that_sets_one_that_is_not_later_is_refused(later):
    with pytest.raises(OperatorError) as refused:
        Timed().run(alive, lambda key, state, at: (None, state, at + later), [(0, "a")], end=True)
    when = (minute(10) + later).strftime("%Y-%m-%d %H:%M:%S")
    assert str(refused.value) == (
        "stateful_map(alive) of region 'k' failed on key 'a' at its timer of 2024-01-01 00:10:00: it set the next timer to "
        f"{when}, which is not after the one that fired, 2024-01-01 00:10:00; fix on_timer, or leave such timers out with "
        'on_error="skip".'
    )


@pytest.mark.parametrize("skipped", [True, False])
def test_timer_that_raises_is_left_out_with_what_it_did_to_the_state(skipped):
    def counted(key, event, state):
        return None, [*(state or []), "event"], event.at + minutes(1)

    def failing(key, state, at):
        state.append("timer")
        if at == minute(1) and skipped:
            raise ValueError("no")
        return (key, " ".join(state), at), state

    errors = ps.memory(f"errors {next(NUMBERS)}")
    given = Timed().run(counted, failing, [(0, "a"), (5, "a")], [(9, "a")], end=True, on_error=errors)
    whole = ["event timer", "event timer event timer", "event timer event timer event timer"]
    left = ["event event timer", "event event timer event timer"]
    assert [what for what, _ in given] == (left if skipped else whole)
    assert [(row["key"], row["position"], row["error"]) for row in errors.rows()] == (
        [("'a'", "timer of 2024-01-01 00:01:00", "ValueError: no")] if skipped else []
    )


def test_row_of_a_timer_that_does_not_fit_is_named():
    with pytest.raises(
        OperatorError, match=r"failed on key 'a' at its timer of 2024-01-01 00:10:00: it returned a value for column 'at'"
    ):
        Timed().run(alive, lambda key, state, at: (key, "x", "y") and ((key, "x", "y"), None), [(0, "a"), (30, "a")])
    errors = ps.memory(f"errors {next(NUMBERS)}")
    wrong = lambda key, state, at: ((key, "x", at if key == "b" else "y"), None)  # noqa: E731
    assert Timed().run(alive, wrong, [(0, "a"), (0, "b"), (30, "a"), (30, "b")], on_error=errors) == [("x", 10)]
    assert [row["key"] for row in errors.rows()] == ["'a'"]


@pytest.mark.parametrize(
    ("timer", "said"),
    [
        (10, "returned the timer 10, which is not a datetime; return event time + datetime.timedelta(...)"),
        (dt.date(2024, 1, 1), "returned the timer datetime.date(2024, 1, 1), which is not a datetime"),
        ((1, 2), "returned the timer (1, 2), which is not a datetime"),
    ],
)
def test_timer_that_is_no_time_is_refused(timer, said):
    with pytest.raises(OperatorError) as refused:
        Timed().run(lambda key, event, state: (None, 1, timer), silent, [(0, "a")], [(1, "a")])
    assert said in str(refused.value)


def test_two_timers_are_refused():
    with pytest.raises(OperatorError, match=r"it returned 4 values; return \(outputs, state\), or \(outputs, state, timer\)"):
        Timed().run(lambda key, event, state: (None, 1, None, None), silent, [(0, "a")], [(1, "a")])


def test_timer_without_a_zone_is_utc_and_one_in_another_zone_the_same_moment():
    naive = lambda key, event, state: (None, 1, event.at.replace(tzinfo=None) + minutes(2))  # noqa: E731
    zone = dt.timezone(dt.timedelta(hours=5))
    elsewhere = lambda key, event, state: (None, 1, (event.at + minutes(2)).astimezone(zone))  # noqa: E731
    assert (
        Timed().run(naive, silent, [(0, "a")], end=True)
        == Timed().run(elsewhere, silent, [(0, "a")], end=True)
        == [("silent", 2)]
    )


def test_timer_without_on_timer_says_what_is_missing():
    with pytest.raises(OperatorError, match=r"a third value is the key's timer, which needs on_timer="):
        Timed().run(alive, None, [(0, "a")], [(1, "a")])


@pytest.mark.parametrize(("ttl", "fires"), [(9, []), (10, [("silent", 10)]), (11, [("silent", 10)])])
@pytest.mark.parametrize("then", [[(30, "b")], [(30, "a")]])
def test_timer_fires_at_most_the_time_to_live_after_the_last_event(ttl, fires, then):
    for epochs in ([[(0, "a")], then], [[(0, "a"), *then]]):
        assert Timed().run(alive, silent, *epochs, [(30.5, "b")], ttl=minutes(ttl)) == fires


def test_timers_do_not_make_a_state_live_longer():
    each = lambda key, state, at: ((key, "tick", at), state, at + minutes(1))  # noqa: E731
    first = lambda key, event, state: (None, 1, event.at + minutes(1))  # noqa: E731
    given = Timed().run(first, each, [(0, "a")], [(30, "b")], end=True, ttl=minutes(3))
    assert sorted(at for _, at in given) == [1, 2, 3, 31, 32, 33][:4]


def counting(key, event, state):
    return (key, f"event {state or 0}", event.at), (state or 0) + 1


@pytest.mark.parametrize("ttl", [None, minutes(100)])
def test_step_may_get_timers_and_lose_them_when_the_flow_is_changed(tmp_path, ttl):
    timed = Timed(tmp_path)

    def with_timer(key, event, state):
        return (key, f"event {state or 0}", event.at), (state or 0) + 1, event.at + minutes(10)

    def stateless(key, event, state):
        return (None, None, event.at + minutes(10))

    more = {} if ttl is None else {"ttl": ttl}
    timed.run(counting, None, [(0, "a"), (1, "b")], [(2, "z")], **more)
    timed.run(with_timer, silent, [(3, "a"), (4, "z")], [(5, "z")], **more)
    timed.run(counting, None, [(6, "z"), (20, "z")], [(21, "a"), (22, "z")], **more)  # the timer of `a` at 13 does not fire
    timed.run(stateless, silent, [(23, "a")], [(24, "z")], **more)
    given = timed.run(counting, None, [(40, "a"), (41, "z")], end=True, **more)
    assert [what for what, _ in given if "silent" in what] == []
    assert sorted(row for row in given if row[1] in (0, 1, 3, 21, 40)) == [
        ("event 0", 0), ("event 0", 1), ("event 0", 40), ("event 1", 3), ("event 2", 21),
    ]  # fmt: skip


def test_timers_need_an_event_time_and_a_function_of_three():
    flow = ps.Flow("untimed")
    with pytest.raises(DeclarationError, match="on_timer= needs an event time; declare it"):
        flow.source("a", Reader()).key_by("k").stateful_map(alive, OUT, on_timer=silent)
    keyed = flow.source("b", Reader(), time="at").key_by("k", name="timed")
    with pytest.raises(DeclarationError, match=r"on_timer\(key, state, at\)"):
        keyed.stateful_map(alive, OUT, on_timer=lambda key, at: None)


def test_state_with_a_timer_alone_is_shown_as_none():
    from penstock.operators.timed_map import TimedMap

    assert TimedMap(alive, SCHEMA).show_state(b"") is None


def test_timer_has_the_zone_object_of_events_as_python_compares_such_times_fast():
    zones = []

    def later(key, event, state):
        zones.append(event.at.tzinfo)
        return None, 1, event.at + minutes(1)

    def fires(key, state, at):
        zones.append(at.tzinfo)
        return (key, "fired", at), state

    assert Timed().run(later, fires, [(0, "a")], [(5, "b")]) == [("fired", 1)]
    assert len(zones) == 2
    assert all(zone is zones[0] for zone in zones)


@pytest.mark.parametrize(
    "epochs", [[[(0, "a"), (1, "a"), (2, "b")]], [[(0, "a")], [(1, "a")], [(2, "b")]]], ids=["one epoch", "three"]
)
def test_timer_that_is_no_time_is_refused_also_if_the_next_event_would_set_another(epochs):
    def missing(key, event, state):
        return None, 1, pd.NaT if event.at == minute(0) else event.at + minutes(1)

    with pytest.raises(OperatorError, match="NaT"):
        Timed().run(missing, silent, *epochs, [(9, "c")])


def test_event_of_the_last_moment_of_all_fires_no_timer_that_was_not_set():
    seen = []

    def keep(key, event, state):
        seen.append(event.at)
        return None, 1

    rows = [{"p": 0, "k": "a", "v": i, "at": at} for i, at in enumerate([BEGIN, dt.datetime.max.replace(tzinfo=dt.UTC)])]
    flow = ps.Flow("timers")
    source = flow.source("s", Reader(), time="at", position=("p", "v"))
    sink = ps.memory("the last moment")
    source.key_by("k").stateful_map(keep, OUT, on_timer=silent).sink(sink)
    with Harness(flow) as harness:
        harness.push("s", pa.Table.from_pylist(rows, schema=SCHEMA))
        harness.epoch()
        harness.finish()
    assert len(seen) == 2
    assert list(sink.rows()) == []


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize(
    "at", [dt.datetime.max.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=5)))]
)
def test_timer_at_or_after_the_last_moment_of_all_fires_once_at_the_end_of_input(at, skipped, epochs):
    called = []

    def fn(key, event, state):
        return [], (state or 0) + 1, at

    def on_timer(key, state, fired):
        called.append(fired)
        if skipped:
            raise ValueError
        return (key, str(state), BEGIN), None

    rows = [(0, "a"), (1, "a"), (2, "a")]
    cut = [rows] if epochs == 1 else [[row] for row in rows]
    out = Timed().run(fn, on_timer, *cut, end=True, on_error="skip" if skipped else "fail")
    assert out == ([] if skipped else [("3", 0.0)])
    assert set(called) == {dt.datetime.max.replace(tzinfo=dt.UTC)}


def test_timer_that_is_past_at_the_last_moment_of_all_fires_after_its_events():
    last = (dt.datetime.max.replace(tzinfo=dt.UTC) - BEGIN) / minutes(1)

    def fn(key, event, state):
        return [], (state or 0) + 1, event.at

    def on_timer(key, state, fired):
        return (key, str(state), fired), state

    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    flow, sink = ps.Flow("last"), ps.memory("last")
    source = flow.source("s", Reader(schema), time="at")
    source.key_by("k").stateful_map(fn, OUT, on_timer=on_timer).sink(sink)
    with Harness(flow) as harness:
        at = [dt.datetime.max.replace(tzinfo=dt.UTC)] * 2
        harness.push("s", pa.table({"k": ["a", "a"], "at": at}, schema=schema))
        harness.finish()
    assert [(row["what"], (row["at"] - BEGIN) / minutes(1)) for row in sink.rows()] == [("2", last)]


@pytest.mark.parametrize("mixed", [False, True], ids=["of one class", "of two classes"])
def test_timer_without_a_zone_costs_no_second_call_of_the_function(mixed):
    calls = []

    def naive(key, event, state):
        calls.append(event.v)
        at = event.at.replace(tzinfo=None) + minutes(2)
        return None, 1, pd.Timestamp(at) if mixed and event.v % 2 else at

    fires = lambda key, state, at: ((key, "fired", at), state)  # noqa: E731
    found = Timed().run(naive, fires, [(0, "a"), (1, "a"), (5, "a"), (5, "b")], [(6, "a"), (20, "b")])
    assert sorted(found) == [("fired", 3), ("fired", 7), ("fired", 8)]
    assert len(calls) == len(set(calls)) >= 5
