"""Runs that time out are those that a plain search over the automaton's runs finds, in any epochs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from ceql_drawing import draw
from ceql_running import Memory, key_of, mask, pattern_of, table_of

from penstock.errors import OperatorError, QueryError
from penstock.operators import timeouts
from penstock.operators.base import Context, KeyedState
from penstock.operators.timeouts import Timeouts
from penstock.patterns import algebra as s
from penstock.patterns.automaton import timeouts as stopping
from penstock.patterns.automaton.build import SKIP, build
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.recogniser.recogniser import Recogniser
from penstock.routing.hashing import spark_xxhash64
from penstock.rows.keys import KeyCodec
from penstock.rows.rows import Order, group_rows
from penstock.types import MAX_TIME


class TimedMemory(Memory):
    """With timers."""

    def __init__(self):
        super().__init__()
        self.timers = {}

    def put_many(self, keys, values, timers=None):
        super().put_many(keys, values)
        self.timers |= dict(zip(keys, (None if timers is None else timers.tolist()) or [], strict=True))

    def delete_many(self, keys):
        super().delete_many(keys)
        for key in keys:
            self.timers.pop(key, None)

    def due(self, operator, upto):
        del operator
        found = sorted((t, k) for k, t in self.timers.items() if t < upto)
        return [(k, self.values[k]) for _, k in found]


def drawn(seed):
    """A keyed case with a window of time, and one of its variables."""
    case = draw(seed, keyed=True, needs_global_order=False, judged=False)
    window = s.Window("time", seed % 7)
    query = replace(case.query, window=window, consume="NONE", strategy="ALL")
    automaton = build(query)
    names = sorted({name for kind in automaton.kinds for name in kind})
    return (replace(case, query=query, events_window="key"), names[seed % len(names)]) if names else None


def expected(case, variable):
    """(key, start, marked positions, the variables of each) of the runs that time out."""
    automaton = build(case.query)
    pattern = pattern_of(case)
    size = int(case.query.window.size)
    found = {}
    keys = {key_of(case, e) for e in case.events} - {k for k in (key_of(case, e) for e in case.events) if None in k}
    for key in keys:
        own = [(i, e.at, mask(pattern, e)) for i, e in enumerate(case.events) if key_of(case, e) == key]
        for begin, (first, at, _) in enumerate(own):
            inside = [o for o in own[begin:] if o[1] <= at + size]
            level = {(): {q: {()} for q in range(len(automaton.transitions)) if automaton.initial >> q & 1}}
            for step, (position, _, bits) in enumerate(inside):
                after = {}
                for data, states in level.items():
                    for state, labels in states.items():
                        for t in automaton.transitions[state]:
                            if t.reads(bits):
                                marks = t.choice != SKIP
                                there = after.setdefault((*data, position) if marks else data, {})
                                new = {(*way, t.choice) for way in labels} if marks else labels
                                there[t.target] = there.get(t.target, set()) | new
                level = after
                for data, states in level.items():
                    if not data or data[-1] != position:
                        continue
                    stops = [way for ways in states.values() for way in ways if variable in automaton.kinds[way[-1] - 1]]
                    if stops and times_out(automaton, set(states), inside[step + 1 :]):
                        found[key, first, data] = tuple(automaton.kinds[choice - 1] for choice in min(stops))
    return sorted((*run, bound) for run, bound in found.items())


def times_out(automaton, states, later):
    """Whether something can go on from these states at the end, and no match does on the way."""
    for bits in [None, *(o[2] for o in later)]:
        if bits is not None:
            states = {t.target for q in states for t in automaton.transitions[q] if t.reads(bits)}
        if any(automaton.final >> q & 1 for q in states):
            return False
        states = {q for q in states if automaton.transitions[q]}
    return bool(states)


def answered(case, variable, **options):
    """What the operator gives, an epoch for each stretch between cuts."""
    pattern = pattern_of(case, **options).timing_out(variable, case.query)
    table = table_of(case, pattern)
    codec = KeyCodec(pa.schema([pa.field(name, pa.int64()) for name in pattern.keys]))
    memory = TimedMemory()
    positions = table.column("p").to_numpy()
    at = {event.at: i for i, event in enumerate(case.events)}
    out = []
    for low, high in itertools.pairwise([0, *case.cuts, len(case.events) + 1]):
        frontier = case.events[high].at if high < len(case.events) else MAX_TIME
        part = table.filter(pa.array((positions >= low) & (positions < high)))
        operator = Timeouts(pattern, str(case.query))
        context = Context("r", 0, 0, codec, (table.schema,), operator.output_schema([table.schema], codec.schema))
        context.frontier = frontier
        operator.start(context)
        state = KeyedState(memory, context)
        n = part.num_rows
        p = part.column("p").to_numpy()
        order = Order(part.column("at").cast(pa.int64()).to_numpy(), np.zeros(n, np.int64), p, np.zeros(n, np.int64))
        keys = [part.column(name) for name in pattern.key_columns]
        rows = group_rows(part, order, spark_xxhash64(keys), keys, codec) if n else None
        for emitted in [operator.on_data(rows, state) if n else None, operator.on_frontier(frontier, state)]:
            if emitted is not None:
                assert (emitted.order.time < frontier).all()
                for row in emitted.data.to_pylist():
                    bound = {e["p"]: [] for b in pattern.shape.bound for e in row[b.name]}
                    for b in pattern.shape.bound:
                        for e in row[b.name] if b.variable is not None else ():
                            bound[e["p"]].append(b.variable)
                    start = at[row["match_start"].microsecond + 1_000_000 * row["match_start"].second]
                    data = tuple(sorted(bound))
                    out.append((tuple(row[name] for name in pattern.keys), start, data, tuple(tuple(bound[p]) for p in data)))
    return out, memory


def complaint(seed):
    found = drawn(seed)
    if found is None:
        return None
    case, variable = found
    given, memory = answered(case, variable)
    right = expected(case, variable)
    if sorted(given) != right:
        return f"seed {seed}: {case.query} on_timeout={variable}\n{case}\ngiven {given}\nright {right}"
    return f"seed {seed}: state is left" if memory.values else None


@pytest.mark.parametrize("block", range(4))
def test_runs_that_time_out_are_those_a_plain_search_finds(block):
    for seed in range(block * 1_500, (block + 1) * 1_500):
        wrong = complaint(seed)
        assert wrong is None, wrong


def cramped(*args, **options):
    """A recogniser whose memory is soon full."""
    return Recogniser(*args, **options | {"room": 300})


def test_runs_that_time_out_come_in_the_same_order_wherever_epochs_end_and_with_hardly_any_memory(monkeypatch):
    several = 0
    for seed in range(1_500):
        case, variable = drawn(seed) or (None, None)
        if case is None:
            continue
        whole, _ = answered(replace(case, cuts=()), variable)
        with monkeypatch.context() as patch:
            patch.setattr(timeouts, "Recogniser", cramped)
            in_parts, _ = answered(case, variable)
        for key in {run[0] for run in whole}:
            own = [run for run in whole if run[0] == key]
            assert [run for run in in_parts if run[0] == key] == own, f"seed {seed}: {case.query} on_timeout={variable}\n{case}"
            several += len({run[1] for run in own}) < len(own)
    assert several > 25  # of which some time out together, so that there is an order to keep


@pytest.mark.parametrize("formula", ["A AS x ; B", "A ; C AS x ; B", "A+ AS x ; B", "(A OR C)+ ; C AS x ; B"])
def test_many_open_runs_are_taken_out_of_memory_when_their_windows_close(formula, monkeypatch):
    query = parse(f"SELECT * WHERE {formula} PARTITION BY [k] WITHIN 0.000009 SECONDS")
    case = draw(0, keyed=True, needs_global_order=False)
    event = replace(case.events[0], values={**case.events[0].values, "k": 1})
    seen = tuple(replace(event, types=frozenset("ACAAC"[i % 5]), at=i) for i in range(300))
    case = replace(case, query=query, events=seen, cuts=(), events_window="key")
    given, _ = answered(case, "x")
    monkeypatch.setattr(timeouts, "Recogniser", cramped)
    parts, _ = answered(replace(case, cuts=(7, 100, 101, 250)), "x")
    assert given == parts
    assert len(given) > 150
    if formula == "A ; C AS x ; B":  # with a long one all windows close after the last event, one after the other
        long = replace(case, query=replace(query, window=s.Window("time", 500)))
        pairs = [(i, j) for i, j in itertools.combinations(range(300), 2) if "ACAAC"[i % 5] + "ACAAC"[j % 5] == "AC"]
        assert sorted(run[2] for run in answered(long, "x")[0]) == pairs
    short = replace(case, events=seen[:40])  # more would take the plain search too long
    assert sorted(answered(short, "x")[0]) == expected(short, "x")


def test_more_runs_may_be_open_than_may_time_out_together():
    case = draw(0, keyed=True, needs_global_order=False)
    formula = s.Then(s.As(s.Event("A"), "x"), s.Event("B"), contiguous=False)
    query = s.Query("ALL", s.Everything(), (), formula, (("k",),), s.Window("time", 100))
    event = replace(case.events[0], types=frozenset("A"), values={**case.events[0].values, "k": 1})
    seen = tuple(replace(event, at=i) for i in range(20))
    case = replace(case, query=query, events=(*seen, replace(event, types=frozenset(), at=500)), cuts=(), events_window="key")
    assert len(answered(case, "x", max_matches_per_event=10)[0]) == 20
    with pytest.raises(OperatorError, match="One event closes more than 10 matches"):
        answered(replace(case, events=tuple(replace(e, at=e.at // 20) for e in case.events)), "x", max_matches_per_event=10)


def test_timeouts_that_forget_matches_are_found(monkeypatch):
    sound = stopping.Stopping.step

    def step(self, node, mask, choice):
        if not node[0] and mask != self.close and choice == SKIP:
            return node, False
        return sound(self, node, mask, choice)

    monkeypatch.setattr(stopping.Stopping, "step", step)
    assert any(complaint(seed) for seed in range(2_000))


def test_a_without_b_in_time_is_told():
    case = draw(0, keyed=True, needs_global_order=False)
    query = s.Query(
        "ALL",
        s.Everything(),
        (),
        s.Then(s.As(s.Event("A"), "x"), s.Event("B"), contiguous=False),
        (("k",),),
        s.Window("time", 5),
    )
    kinds = ["A", "B", "A", "C"]
    seen = tuple(
        replace(case.events[0], types=frozenset(k), values={**case.events[0].values, "k": 1}, at=10 * i)
        for i, k in enumerate(kinds)
    )
    close = replace(case, query=query, events=seen, cuts=(2,), events_window="key")
    assert [run[:3] for run in answered(close, "x")[0]] == [((1,), 0, (0,)), ((1,), 2, (2,))]
    near = replace(close, events=(seen[0], replace(seen[1], at=5), *seen[2:]))
    assert [run[:3] for run in answered(near, "x")[0]] == [((1,), 2, (2,))]


def test_what_cannot_time_out_is_refused():
    case = draw(0, keyed=True, needs_global_order=False)
    query = s.Query("ALL", s.Everything(), (), s.As(s.Event("A"), "x"), (("k",),), s.Window("time", 5))
    for other, words in (
        (replace(query, window=None), "window that closes"),
        (replace(query, window=s.Window("events", 3)), "window that closes"),
        (replace(query, consume="PARTITION"), "CONSUME BY"),
        (replace(query, strategy="STRICT"), "STRICT"),
    ):
        with pytest.raises(QueryError, match=words):
            pattern_of(replace(case, query=other)).timing_out("x", other)
    with pytest.raises(QueryError, match="no variable of the result \\(x\\)"):
        pattern_of(replace(case, query=query)).timing_out("A", query)
