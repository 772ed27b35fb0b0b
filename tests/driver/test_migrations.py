"""State of a user's functions that goes through migrations: each value once, wherever its key moves, whatever crashes, however old it is."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ChangedFlowError, DeclarationError, OperatorError
from penstock.operators.deduplicate import Deduplicate
from penstock.testing import Crash, Harness

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NUMBERS = itertools.count()
KEYS = "abcdef"
STATES = {"typed": ("t string", "n bigint, t string", "t string, u double", "n int"), "any": (None,) * 4, "own": (None,) * 4}
"""By kind of step, the state of each version. A value tells all that it went through: `t`, or in the last version `n`, its length."""


def trace(state):
    """What a state tells, whatever its version."""
    return state if isinstance(state, str) else state.t


def to_1(state):
    return {"n": len(trace(state)), "t": trace(state) + "<1"} if not isinstance(state, str) else state + "<1"


def to_2(state):
    assert isinstance(state, str) or state.n is not None
    return {"t": trace(state) + "<2", "u": 0.5} if not isinstance(state, str) else state + "<2"


def to_3(state):
    return len(trace(state) + "<3")


MIGRATIONS = (to_1, to_2, to_3)


def remembering(version: int, kind: str):
    """The function of a version: adds its number to what it remembers, and gives out the whole."""

    def remember(key, event, state):
        if version == 3:
            n = (0 if state is None else state if kind == "any" else state.n) + 1
            return (event.at, str(n)), n if kind == "any" else (n,)
        told = ("" if state is None else trace(state)) + str(version)
        if kind == "any":
            return (event.at, told), told
        return (event.at, told), {"t": told, **({"n": 0} if version == 1 else {}), **({"u": 1.0} if version == 2 else {})}

    return remember


class Own(ps.Operator):
    """The same with objects and timers: an entry is given out, and forgotten, once no event has come for five seconds."""

    schema = "at timestamp, told string"

    def __init__(self, version: int) -> None:
        self.version = version

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        held = state.get_objects(names)
        assert held == state.get_objects(names)
        counts = np.diff(rows.starts).tolist()
        after = [self.told(old, n) for old, n in zip(held, counts, strict=True)]
        last = rows.order.time[rows.starts[1:] - 1]
        state.put_objects(names, after, last + 5_000_000)

    def told(self, state, n):
        return (state or 0) + n if self.version == 3 else (state or "") + str(self.version) * n

    def on_frontier(self, t, state):
        due = state.due(t)
        if not due:
            return None
        names = [name for name, _ in due]
        told = [str(pickle.loads(value)) for _, value in due]
        assert told == [str(pickle.loads(value)) for name in names for _, value in state.scan(name)]
        state.delete(names)
        times = np.full(len(names), t - 1 if t < 2**62 else 0)
        data = pa.RecordBatch.from_arrays(
            [pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")), pa.array(told)], schema=self.context.output
        )
        return state.emit(data, state.keys_of(names)[0], times)


def declared(version: int, kind: str, sink: str, migrations=MIGRATIONS) -> ps.Flow:
    made = ps.Flow("migrating")
    keyed = made.source("s", ps.files("nowhere", "k string, at timestamp"), time="at", lateness="0 seconds").key_by("k")
    if kind == "own":
        out = keyed.process(Own(version), migrate=migrations[:version])
    else:
        out = keyed.stateful_map(
            remembering(version, kind), "at timestamp, told string", STATES[kind][version], migrate=migrations[:version]
        )
    out.sink(ps.memory(sink))
    return made


class Model:
    """What a key's state tells: slow and obvious."""

    def __init__(self, kind: str) -> None:
        self.kind, self.state, self.version, self.last, self.rows = kind, {}, {}, {}, []
        self.waiting: list[tuple[int, str]] = []
        self.frontier = 0.0

    def epoch(self, rows: list[tuple[int, str]], version: int, frontier: float) -> None:
        """Rows come in; those before the frontier are processed by the version that runs."""
        self.waiting += rows
        self.frontier = max(self.frontier, frontier)
        for second, key in [row for row in self.waiting if row[0] < self.frontier]:
            told = self.now(key, version)
            self.state[key] = (told or 0) + 1 if version == 3 else (told or "") + str(version)
            self.version[key], self.last[key] = version, second
            if self.kind != "own":
                self.rows.append(str(self.state[key]))
        self.waiting = [row for row in self.waiting if row[0] >= self.frontier]
        for key in [key for key in self.state if self.kind == "own" and self.last[key] + 5 < self.frontier]:
            self.rows.append(str(self.now(key, version)))
            del self.state[key]

    def now(self, key: str, version: int):
        told = self.state.get(key)
        for v in range(self.version.get(key, version) + 1, version + 1) if told is not None else ():
            told = told + f"<{v}" if v < 3 else len(told + "<3")
        return told


@st.composite
def histories(draw):
    """Versions, and what happens while each runs: events, rescales, crashes, restarts without local state."""
    kind = draw(st.sampled_from(list(STATES)))
    versions = sorted(draw(st.lists(st.integers(0, 3), min_size=2, max_size=4)))
    event = st.tuples(st.sampled_from(KEYS), st.integers(0, 3))
    step = st.one_of(st.lists(event, max_size=6), st.sampled_from(["scale 1", "scale 3", "scale 4", "restart", "settle"]))
    return kind, [
        (version, draw(st.lists(step, max_size=5)), draw(st.one_of(st.none(), st.integers(1, 40)))) for version in versions
    ]


def check(history) -> None:
    kind, parts = history
    model, sink, clock = Model(kind), f"migrated {next(NUMBERS)}", 0
    with tempfile.TemporaryDirectory() as folder:
        for version, steps, crash in parts:
            left = [crash]

            def count(name, left=left):
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] == 0:
                        left[0] = None
                        raise Crash

            with Harness(declared(version, kind, sink), checkpoint=folder, workers=2) as harness:
                harness._loop.opener._on_step = count  # not while it opens
                harness.restart()

                def surviving(run, harness=harness):
                    try:
                        run()
                    except Crash:
                        harness.restart()
                        harness.resume()

                for step in steps:
                    if isinstance(step, list):
                        clock += 4
                        rows = sorted((clock + s, k) for k, s in step)
                        harness.push("s", [{"k": k, "at": BEGIN + dt.timedelta(seconds=s)} for s, k in rows])
                        surviving(harness.epoch)
                        model.epoch(rows, version, max((second for second, _ in rows), default=0))
                    elif step == "restart":
                        harness.restart(forget_local_state=True)
                    elif step == "settle":
                        surviving(harness.settle)
                    else:
                        surviving(lambda step=step, harness=harness: harness.scale(None, int(step.split()[1])))
        with Harness(declared(3, kind, sink), checkpoint=folder, workers=2) as harness:
            harness.finish()
            model.epoch([], 3, 1e18)
    assert sorted(row["told"] for row in ps.memory(sink).rows()) == sorted(model.rows)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_state_of_any_version_goes_through_each_later_migration_once_whatever_moves_or_crashes(history):
    check(history)


@pytest.mark.soak
@settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_thousands_of_histories_of_migrations_give_what_the_model_gives(history):
    check(history)


# ------------------------------------------------------------------------------------------------ what a user may do wrong


CALLED: list[str] = []


def counted(state):
    CALLED.append(trace(state))
    return {"n": len(trace(state)), "t": trace(state)}


class Migrating:
    """One checkpoint, whose step gets other states and migrations."""

    def __init__(self, folder):
        self.folder, self.sink = str(folder / "checkpoint"), f"migrating {next(NUMBERS)}"

    def harness(self, version=0, migrate=(), *, fn=None, state="", kind="typed"):
        flow = ps.Flow("migrating")
        keyed = flow.source("s", ps.files("nowhere", "k string, at timestamp"), time="at", lateness="0 seconds").key_by("k")
        kept = state or STATES[kind][version]
        keyed.stateful_map(fn or remembering(version, kind), "at timestamp, told string", kept, migrate=migrate, name="m").sink(
            ps.memory(self.sink)
        )
        return Harness(flow, checkpoint=self.folder, workers=2)

    def push(self, harness, keys, second):
        harness.push("s", [{"k": k, "at": BEGIN + dt.timedelta(seconds=second)} for k in keys])
        harness.epoch()

    def told(self):
        return sorted(row["told"] for row in ps.memory(self.sink).rows())


@pytest.fixture
def migrating(tmp_path):
    return Migrating(tmp_path)


def begun(migrating, keys="ab"):
    with migrating.harness(0) as harness:
        migrating.push(harness, keys, 1)
        migrating.push(harness, "z", 9)
    return migrating


def test_migration_is_called_once_for_each_key_and_only_when_the_key_is_read(migrating):
    begun(migrating)
    CALLED.clear()
    with migrating.harness(1, counted) as harness:
        assert harness.notices == ["State of step 'm' of region 'k' goes through counted when it is first read."]
        for second in (20, 30, 40):
            migrating.push(harness, "a", second)
    assert CALLED == ["0"]
    with migrating.harness(1, counted) as harness:
        assert harness.notices == []
        migrating.push(harness, "a", 50)
        migrating.push(harness, "b", 60)
        harness.finish()
    assert CALLED == ["0", "0"], "b as well"


FAILS = {
    "raises": (lambda state: state.nothing, "to_1 raised AttributeError: the state has no column 'nothing'; there are t"),
    "returns nothing": (lambda state: None, "to_1 returned None; return the new state"),
    "returns too little": (lambda state: (1,), r"it returned the state \(1,\), which has not the columns n, t"),
    "returns other columns": (lambda state: {"n": 1, "x": ""}, ".*which has not the columns n, t"),
    "returns another type": (lambda state: ("one", "t"), r"it returned the state .* which is not \(n int64, t string\)"),
}


@pytest.mark.parametrize("how", FAILS)
def test_migration_that_fails_is_told_with_step_and_key_and_nothing_is_committed(how, migrating):
    begun(migrating)
    function, sentence = FAILS[how]
    function.__name__ = "to_1"
    with migrating.harness(1, function) as harness:
        migrating.push(harness, "a", 20)  # it waits
        before = harness.record.epoch
        with pytest.raises(
            OperatorError,
            match=rf"The migration of stateful_map\(remember\) of region 'k' failed on key 'a': {sentence}.*; fix the function",
        ):
            migrating.push(harness, "a", 30)
        assert harness.record.epoch == before
    with migrating.harness(1, to_1) as harness:  # the repaired one gets the state of before
        harness.resume()
        harness.finish()
    assert "0<11" in migrating.told()


def test_migrations_that_are_left_out_or_replaced_are_refused_and_further_ones_go_behind(migrating):
    begun(migrating)
    with migrating.harness(1, to_1) as harness:
        migrating.push(harness, "a", 20)
        migrating.push(harness, "z", 25)
    for wrong, shown in (((), "none"), (counted, "counted"), ((to_2,), "to_2"), ((counted, to_1), "counted, to_1")):
        with pytest.raises(
            ChangedFlowError,
            match=f"gone through the migrations to_1, and migrate= lists {shown} now; keep those that are there",
        ):
            migrating.harness(1, wrong)
    with migrating.harness(2, (to_1, to_2)) as harness:  # of a from version 1, of b from version 0
        migrating.push(harness, "ab", 30)
        harness.finish()
    assert {"0<1<22", "0<11<22"} <= set(migrating.told())


def test_state_that_has_other_columns_without_a_migration_is_refused_in_a_sentence_that_offers_one(migrating):
    begun(migrating)
    sentence = r"its state was \(t string\) and is now \(n int32\), and 't' is gone; give a function from the old state to the new one, migrate=…, or"
    with pytest.raises(ChangedFlowError, match=sentence):
        migrating.harness(3)


def test_window_of_a_step_when_it_changes_is_refused_whatever_migrates(tmp_path):
    def harness(size, migrate=()):
        flow = ps.Flow("migrating")
        s = flow.source("s", ps.files("nowhere", "k string, at timestamp"), time="at").key_by("k").window(ps.tumbling(size))
        s.stateful_map(remembering(0, "any"), "at timestamp, told string", migrate=migrate).sink(
            ps.memory(f"w {next(NUMBERS)}"), name="o"
        )
        return Harness(flow, checkpoint=str(tmp_path / "checkpoint"))

    with harness("1 minute") as first:
        first.push("s", [{"k": "a", "at": BEGIN}])
        first.epoch()
    with pytest.raises(ChangedFlowError, match="its window was of 60 s and is now of 30 s"):
        harness("30 seconds", to_1)


def test_migrations_of_a_flow_that_begins_with_them_do_not_touch_its_own_state(migrating):
    with migrating.harness(1, to_1) as harness:
        migrating.push(harness, "a", 1)
        migrating.push(harness, "a", 9)
    with migrating.harness(1, to_1) as harness:
        assert harness.notices == []
        harness.finish()
    assert migrating.told() == ["1", "11"]


def test_snapshot_of_before_a_migration_when_it_is_loaded_afterwards_goes_through_it_again(migrating):
    with migrating.harness(0) as harness:
        migrating.push(harness, "a", 1)
        migrating.push(harness, "a", 9)
        harness.snapshot("before")
    with migrating.harness(1, to_1) as harness:
        migrating.push(harness, "a", 20)
        migrating.push(harness, "a", 30)
        assert "0<11" in migrating.told()
        harness.load("before")
        harness.resume()
        harness.finish()
    assert migrating.told() == ["0", "0<11", "0<111", "0<1111"]


def test_migration_that_is_no_function_or_of_a_step_without_state_of_users_is_refused_when_it_is_declared():
    s = ps.Flow("migrating").source("s", ps.files("nowhere", "k string, at timestamp"), time="at").key_by("k")
    with pytest.raises(DeclarationError, match=r"migrate needs a function migrate\(state\), not 3"):
        s.stateful_map(remembering(0, "any"), "at timestamp, told string", migrate=3)
    with pytest.raises(DeclarationError, match=r"migrate calls its function as migrate\(state\)"):
        s.process(Own(0), migrate=[lambda: 1])
    with pytest.raises(DeclarationError, match=r"deduplicate\(\) takes no migrate="):
        s.process(Deduplicate(()), migrate=to_1)


@pytest.mark.parametrize("kind", ["typed", "own"])
def test_migration_when_epochs_are_audited_is_computed_alike_in_the_second_computation(kind, tmp_path):
    sink = f"audited {next(NUMBERS)}"
    for version in (0, 1):
        with Harness(declared(version, kind, sink), checkpoint=str(tmp_path / "checkpoint"), workers=2, audit=True) as harness:
            for second in (1, 2):
                at = BEGIN + dt.timedelta(seconds=10 * version + second)
                harness.push("s", [{"k": k, "at": at} for k in KEYS])
                harness.epoch()
            if version:
                harness.finish()
    assert {"typed": "0<1111", "own": "0<11"}[kind] in [row["told"] for row in ps.memory(sink).rows()]


class Peeking(Own):
    """Stores what it has seen first, with a timer, and then only looks at it."""

    def on_data(self, rows, state):
        names = state.names(rows.keys)
        new = [i for i, held in enumerate(state.get_objects(names)) if held is None]
        last = rows.order.time[rows.starts[1:] - 1]
        state.put_objects([names[i] for i in new], ["0"] * len(new), (last + 30_000_000)[new])


def test_migration_of_an_entry_that_is_only_looked_at_is_called_once_and_its_timer_stays(tmp_path):
    def noted(state):
        CALLED.append(state)
        return state + "<1"

    sink, second = f"peeking {next(NUMBERS)}", itertools.count(1, 4)
    CALLED.clear()
    for migrate in ((), noted):
        flow = ps.Flow("migrating")
        s = flow.source("s", ps.files("nowhere", "k string, at timestamp"), time="at", lateness="0 seconds")
        s.key_by("k").process(Peeking(0), migrate=migrate).sink(ps.memory(sink))
        with Harness(flow, checkpoint=str(tmp_path / "checkpoint"), workers=2) as harness:
            for _ in range(4):
                at = BEGIN + dt.timedelta(seconds=next(second))
                harness.push("s", [{"k": "a", "at": at}, {"k": "a", "at": at}])
                harness.epoch()
            assert ["0"] * bool(migrate) == CALLED
            assert ps.memory(sink).rows() == []
            if migrate:
                harness.push("s", [{"k": "b", "at": BEGIN + dt.timedelta(minutes=5)}])
                harness.epoch()
    assert CALLED == ["0"]
    assert [row["told"] for row in ps.memory(sink).rows()] == ["0<1"]
