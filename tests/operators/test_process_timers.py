"""Timers and time to live of a user's own operator, example by example: turns, what is refused, what is stored."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ChangedFlowError, DeclarationError, OperatorError
from penstock.operators.timed_process import in_turns
from penstock.protocol.rescale import Limits
from penstock.rows.keys import biased
from penstock.testing import Harness

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
OUT = "k string, n long, at timestamp"
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
MINUTE = 60_000_000
NUMBERS = itertools.count()


@dataclass
class Reader:
    schema: pa.Schema = SCHEMA


def run(operator, *epochs, end=True, checkpoint=None, name=None, time="at", **about):
    """The rows (key, n, minute) that an operator gives, which gets rows (minute, key) epoch by epoch."""
    flow, out, offsets = ps.Flow("timers"), ps.memory(name or f"process timers {next(NUMBERS)}"), itertools.count()
    source = flow.source("s", Reader(), time=time, position=("p", "v"), partitions=[0])
    source.key_by("k").process(operator, **about).sink(out)
    with Harness(flow, checkpoint=checkpoint) as harness:
        for rows in epochs:
            pushed = [{"p": 0, "k": k, "v": next(offsets), "at": BEGIN + dt.timedelta(minutes=m)} for m, k in rows]
            harness.push("s", pa.Table.from_pylist(pushed, schema=SCHEMA))
            harness.epoch()
        if end:
            harness.finish()
    return sorted((row["k"], row["n"], (row["at"] - BEGIN) / dt.timedelta(minutes=1)) for row in out.rows())


class Silent(ps.Operator):
    """Counts a key's rows, and tells the number when none has come for ten minutes."""

    schema = OUT
    timer_lead = "10 minutes"

    def __init__(self):
        self.calls = []

    def on_data(self, rows, state):
        names, sizes = state.names(rows.keys), np.diff(rows.starts)
        self.calls.append(len(rows))
        counts = [(n or 0) + more for n, more in zip(state.get_objects(names), sizes.tolist(), strict=True)]
        state.put_objects(names, counts, rows.order.time[rows.starts[1:] - 1] + 10 * MINUTE)

    def on_timer(self, fired, state):
        counts = state.get_objects(fired.names)
        at = pa.array(fired.at).cast(pa.timestamp("us", "UTC"))
        return fired.emit({"k": fired.keys.columns[0], "n": pa.array(counts), "at": at})


class Hasty(Silent):
    timer_lead = 0


ROWS = [(0, "a"), (5, "a"), (5, "a"), (16, "a"), (26, "a"), (27, "b")]
TOLD = [("a", 3, 15), ("a", 4, 26), ("a", 5, 36), ("b", 1, 37)]


@pytest.mark.parametrize("operator", [Silent, Hasty])
@pytest.mark.parametrize("epochs", [[ROWS], [[row] for row in ROWS], [ROWS[:3], ROWS[3:]]], ids=["one", "each", "two"])
def test_timers_of_an_operator_fire_between_its_rows_whatever_the_epochs(operator, epochs):
    assert run(operator(), *epochs) == TOLD


def test_rows_that_no_timer_can_come_between_are_given_together():
    silent, hasty = Silent(), Hasty()
    run(silent, ROWS), run(hasty, ROWS)
    assert silent.calls == [3, 1, 1, 1]  # the last one waits for the end
    assert hasty.calls == [1, 2, 1, 1, 1]


def test_state_with_a_time_to_live_is_forgotten_with_all_of_its_entries():
    class Entries(ps.Operator):
        schema = OUT

        def on_data(self, rows, state):
            out = []
            for name, key, begin, end in zip(
                state.names(rows.keys), rows.keys.values(), rows.starts[:-1], rows.starts[1:], strict=True
            ):
                for i in range(begin, end):
                    state.put([name + bytes([rows.column("v")[i].as_py()])], [b"x"])
                    out.append((key, len(state.scan(name)), rows.column("at")[i].as_py()))
            return rows.emit(pa.RecordBatch.from_arrays([pa.array(c) for c in zip(*out, strict=True)], names=["k", "n", "at"]))

    rows = [(0, "a"), (5, "a"), (14, "a"), (24, "a"), (25, "a")]
    given = [("a", 1, 0), ("a", 2, 5), ("a", 3, 14), ("a", 1, 24), ("a", 2, 25)]
    assert run(Entries(), rows, ttl="10 minutes") == sorted(given)


@pytest.mark.parametrize(("ttl", "told"), [("10 minutes", TOLD), ("9 minutes 59 seconds", [])])
def test_timer_fires_at_the_end_of_the_time_to_live_and_not_after_it(ttl, told):
    assert sorted(at for *_, at in run(Silent(), ROWS, ttl=ttl)) == [at for *_, at in told]


def test_timer_that_is_not_after_its_row_fires_a_microsecond_later_and_once():
    class Past(Hasty):
        def on_data(self, rows, state):
            state.put_objects(state.names(rows.keys), [1] * len(rows.keys), rows.order.time[rows.starts[1:] - 1] - MINUTE)

    assert [(k, round(at * MINUTE) % MINUTE) for k, _, at in run(Past(), [(0, "a"), (3, "a")])] == [("a", 1)] * 2


def test_timers_of_several_entries_at_one_moment_give_rows_that_are_numbered():
    class Several(ps.Operator):
        schema = OUT

        def on_data(self, rows, state):
            names = state.names(rows.keys, np.zeros(3, np.int64), [b"a", b"b", b"c"])
            state.put_objects(names, [1, 2, 3], np.full(3, rows.order.time[0] + MINUTE))

        def on_timer(self, fired, state):
            assert fired.subs == [b"a", b"b", b"c"]
            rows = {"k": ["a"] * 4, "n": [1, 2, 2, 3], "at": [BEGIN] * 4}
            given = fired.emit(pa.RecordBatch.from_pydict(rows, schema=self.context.output), np.array([0, 1, 1, 2]))
            assert given.order.sub.tolist() == [0, 1, 2, 3]
            return given

    assert [n for _, n, _ in run(Several(), [(0, "a")])] == [1, 2, 2, 3]


def test_timer_that_sets_one_that_is_not_later_is_refused():
    class Again(Silent):
        def on_timer(self, fired, state):
            state.put_objects(fired.names, [1] * len(fired.names), fired.at)

    with pytest.raises(OperatorError) as refused:
        run(Again(), [(0, "a")])
    assert str(refused.value) == (
        "Operator Again of region 'k' set a timer to 2024-01-01 00:10:00 in on_timer, which is not after the one that fired, "
        "2024-01-01 00:10:00; set it to a later time, or to none."
    )


def test_timer_that_is_nearer_than_promised_is_refused():
    class Near(Silent):
        timer_lead = "1 hour"

    with pytest.raises(OperatorError) as refused:
        run(Near(), [(0, "a")])
    assert str(refused.value) == (
        "Operator Near of region 'k' set a timer to 2024-01-01 00:10:00, which is less than its timer_lead of 3600 s after a row that "
        "was given with others; give a smaller timer_lead."
    )


def test_timer_that_fails_names_the_operator():
    class Failing(Silent):
        def on_timer(self, fired, state):
            raise ValueError("no")

    with pytest.raises(OperatorError, match=r"Operator Failing of region 'k' failed in on_timer: .*no.*; fix the operator\."):
        run(Failing(), [(0, "a")])


def test_timers_that_come_to_a_flow_fire_though_they_were_set_before(tmp_path):
    """An operator gets `on_timer` in a changed flow: what it set before and was never told fires at the frontier of the change."""

    class Setting(ps.Operator):
        schema, kind = OUT, "silent"
        on_data = Silent.on_data
        calls = ()

        def __init__(self):
            self.calls = []

    class Telling(Silent):
        kind = "silent"

    about = {"checkpoint": str(tmp_path / "checkpoint"), "name": f"process timers {next(NUMBERS)}"}
    assert run(Setting(), [(0, "a"), (20, "b")], [(40, "c")], end=False, **about) == []
    assert run(Telling(), [(41, "c")], **about)[:2] == [("a", 1, 40), ("b", 1, 40)]


def times_ten(n):
    return n * 10


def test_entries_with_timers_and_a_time_to_live_go_through_a_migration_and_the_time_to_live_does_not(tmp_path):
    about = {"checkpoint": str(tmp_path / "checkpoint"), "name": f"process timers {next(NUMBERS)}", "ttl": "1 hour"}
    assert run(Silent(), [(0, "a"), (1, "a")], [(5, "b")], end=False, **about) == []
    assert run(Silent(), [(6, "b")], migrate=times_ten, **about) == [("a", 20, 11), ("b", 2, 16)]


def test_time_to_live_when_it_is_another_one_is_refused(tmp_path):
    about = {"checkpoint": str(tmp_path / "checkpoint"), "end": False}
    run(Silent(), [(0, "a"), (1, "a")], ttl="1 hour", **about)
    with pytest.raises(ChangedFlowError, match="time to live"):
        run(Silent(), ttl="2 hours", **about)


def test_state_with_a_time_to_live_is_shown_with_when_its_key_was_last_seen():
    step = in_turns(Silent(), "1 hour", timed=True)
    assert step.show_state(b"\xffps" + b"".join(biased(np.array([MINUTE]))) + b"\0") == {"last row": "1970-01-01 00:01:00"}
    assert step.show_state(pickle.dumps(3)) == 3


class Unordered(Silent):
    ordered = False


class AtTheFrontier(Silent):
    def on_frontier(self, t, state):
        return None


@pytest.mark.parametrize(
    ("operator", "about", "said"),
    [
        (Silent(), {"ttl": 0}, "process(ttl=0) would forget everything at once; give a positive duration."),
        (Silent(), {"time": None}, "on_timer needs an event time; declare it: flow.source(..., time='column')."),
        (ps.Operator(), {"time": None, "ttl": "1 s"}, "ttl= needs an event time; declare it: flow.source(..., time='column')."),
        (
            Unordered(),
            {},
            "Unordered has ordered = False, and on_timer needs its rows in the order of event time; leave it True.",
        ),
        (
            AtTheFrontier(),
            {},
            "AtTheFrontier has on_timer and on_frontier, which comes once in an epoch, after its rows; do in on_timer what is due at a time.",
        ),
    ],
)
def test_operator_whose_rows_and_timers_have_no_order_is_refused(operator, about, said):
    with pytest.raises(DeclarationError) as refused:
        run(operator, **about)
    assert str(refused.value) == said


LIMITS = Limits(first_bytes=40, least_bytes=40, most_bytes=80, hold_bytes=60, measure_entries=20)


def test_timer_of_before_fires_where_the_hold_of_its_key_began_if_the_key_comes_off_hold_as_the_operator_gets_timers(tmp_path):
    """The rows that the key gives then come at or after what the region has said will come."""

    class Untimed(Silent):
        kind = "Silent"
        on_timer = ps.Operator.on_timer

    def begun(operator):
        flow = ps.Flow("off hold")
        source = flow.source("s", Reader(), time="at", position=("p", "v"), partitions=[0])
        out, windows = (ps.memory(f"off hold {tmp_path} {what}") for what in ("out", "windows"))
        fired = source.key_by("k", name="first").process(operator)
        fired.sink(out)
        fired.key_by("n", name="second").window(ps.tumbling("1 minute")).aggregate(m=ps.count()).sink(windows)
        harness = Harness(flow, workers=1, checkpoint=str(tmp_path / "checkpoint"), limits=LIMITS)
        return harness, out, windows

    def push(harness, *rows):
        pushed = [{"p": 0, "k": k, "v": v, "at": BEGIN + dt.timedelta(minutes=m)} for v, m, k in rows]
        harness.push("s", pa.Table.from_pylist(pushed, schema=SCHEMA))

    heavy = [f"{i}" + "x" * 300 for i in range(8)]
    harness, *_ = begun(Untimed())
    push(harness, *((i, 0, key) for i, key in enumerate(heavy)), (10, 1, "z"), (11, 60, "z"))
    harness.epoch()
    harness.epoch({"command": "scale", "region": "first", "workers": 3})
    for _ in range(100):
        harness.epoch()
        if holds := harness.record.regions["first"].control.held:
            break
    push(harness, (12, 90, "z"))
    harness.epoch()
    again, out, windows = begun(Silent())
    assert holds
    again.epoch(*again.copy())
    again.settle()
    again.finish()
    times = {(row["at"] - BEGIN) / dt.timedelta(minutes=1) for row in out.rows() if row["k"] != "z"}
    assert times <= {60.0, 90.0}
    assert 60.0 in times
    assert {row["window_start"] for row in windows.rows()} == {row["at"] for row in out.rows()}
