"""Patterns in a flow, epoch by epoch: when a match is shown, what is remembered until then, and that nothing is afterwards."""

from __future__ import annotations

import datetime as dt
import itertools
import random

import pytest

import penstock as ps
from penstock.errors import DeclarationError, OperatorError
from penstock.testing import Harness

COLUMNS = "at timestamp, kind string, k long, v long"
BEGIN = dt.datetime(2024, 3, 10, tzinfo=dt.UTC)
RUNS = itertools.count()


def at(second):
    return BEGIN + dt.timedelta(seconds=second)


def event(second, kind, k=1, v=0):
    return {"at": at(second), "kind": kind, "k": k, "v": v}


def watched(query, lateness="0 seconds", **options):
    """A flow with this pattern, and where its matches and its timeouts are stored."""
    flow = ps.Flow(f"by epoch {next(RUNS)}")
    records = flow.source("events", ps.files("nowhere", COLUMNS), time="at", lateness=lateness)
    found, stranded = ps.memory(f"{flow.name} found"), ps.memory(f"{flow.name} stranded")
    matched = records.key_by("k").match(query, type="kind", **options)
    matched.sink(found)
    if "on_timeout" in options:
        matched.timeouts.sink(stranded)
    return flow, found, stranded


# --------------------------------------------------------------------------------------------------- when a match is shown


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * WHERE A AS x ; B WITHIN 5 SECONDS",
        "SELECT MAX x WHERE A+ AS x ; B WITHIN 5 SECONDS",
        "SELECT NEXT x WHERE A+ AS x ; B WITHIN 5 SECONDS",
        "SELECT x WHERE A AS x : B WITHIN 5 SECONDS",
    ],
)
def test_match_is_shown_in_the_very_epoch_whose_frontier_passes_its_end_and_so_are_timeouts(query):
    (flow, *seen), (at_once, *everything) = (watched(query, "3 seconds", on_timeout="x") for _ in range(2))
    rng, shown, newest = random.Random(3), [], {0: BEGIN, 1: BEGIN}
    with Harness(flow, workers=2) as harness, Harness(at_once) as other:
        for epoch in range(30):
            for partition, before in newest.items():
                rows = [event(2 * epoch + s, rng.choice("AB"), rng.randrange(8)) for s in sorted(rng.sample(range(-2, 6), 3))]
                rows = [row for row in rows if row["at"] >= before - dt.timedelta(seconds=3)]  # nothing is late
                for each in (harness, other):
                    each.push("events", rows, partition)
                newest[partition] = max([before, *(row["at"] for row in rows)])
            record = harness.epoch()
            frontier = min(newest.values()) - dt.timedelta(seconds=3)
            assert BEGIN + dt.timedelta(microseconds=record.frontier - int(BEGIN.timestamp()) * 1_000_000) == frontier
            shown.append((frontier, *(sink.rows() for sink in seen)))
        other.finish()
    matches, stranded = (sink.rows() for sink in everything)
    for frontier, *rows in shown:
        for given, whole in zip(rows, (matches, stranded), strict=True):
            assert sorted(map(str, given)) == sorted(str(row) for row in whole if row["match_end"] < frontier)
    assert len({len(rows) for _, rows, _ in shown}) > 5, "the test wants them to come little by little"
    assert ":" in query or len({len(rows) for _, _, rows in shown}) > 5


# ------------------------------------------------------------------------------------------------------- what is remembered


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * WHERE A ; B WITHIN 5 SECONDS",
        "SELECT MAX * WHERE A+ ; B WITHIN 5 SECONDS",
        "SELECT * WHERE A : B+ WITHIN 5 SECONDS",
        "SELECT COUNT(*) WHERE A+ ; B WITHIN 5 SECONDS",
    ],
)
def test_state_when_the_windows_of_all_runs_have_closed_is_empty(query):
    flow, found, _ = watched(query)
    with Harness(flow, workers=2) as harness:
        harness.push("events", [event(k / 100, "A", k) for k in range(100)])
        harness.push("events", [event(1 + k / 100, "B", k) for k in range(0, 100, 2)])
        harness.push("events", [event(3, "other", -1)])
        harness.epoch()
        assert len(harness.keys("k")) == 100
        assert len(found.rows()) == 50
        harness.push("events", [event(5.5, "other", -1)])
        harness.epoch()
        assert 0 < len(harness.keys("k")) < 100
        harness.push("events", [event(10, "other", -1), event(11, "other", -1)])
        harness.epoch()
        assert harness.keys("k") == []


@pytest.mark.parametrize(
    "query", ["SELECT * WHERE A ; B CONSUME BY PARTITION", "SELECT * WHERE A : B", "SELECT * WHERE A+ : B WITHIN 1 EVENTS"]
)
def test_state_of_a_key_when_no_run_is_open_any_more_is_nothing_without_a_window_of_time_too(query):
    flow, found, _ = watched(query)
    with Harness(flow) as harness:
        harness.push("events", [event(0, "A", 1), event(0, "A", 2), event(1, "other", 3)])
        harness.epoch()
        assert len(harness.keys("k")) == 2
        harness.push("events", [event(2, "B", 1), event(3, "other", 1), event(3, "other", 3), event(4, "other", 3)])
        harness.epoch()
        assert len(harness.keys("k")) == 1
        assert len(found.rows()) == 1


def test_state_of_a_key_with_a_window_of_a_column_ends_with_its_runs_and_a_step_back_is_an_error_only_while_there_are_any():
    flow, found, _ = watched("SELECT * WHERE A ; B WITHIN 5 [v]")
    with Harness(flow) as harness:
        harness.push("events", [event(0, "A", 1, v=10), event(1, "A", 1, v=20), event(2, "other", 2)])
        harness.epoch()
        assert len(harness.keys("k")) == 1
        harness.push("events", [event(3, "B", 1, v=100), event(4, "other", 2)])
        harness.epoch()
        assert not harness.keys("k")
        harness.push("events", [event(5, "A", 1, v=3), event(6, "B", 1, v=8), event(7, "other", 2)])
        harness.epoch()
        harness.push("events", [event(8, "B", 1, v=7), event(9, "other", 2)])
        with pytest.raises(
            OperatorError, match="do not decrease within a key while a match is under way, but that of key 1 at"
        ):
            harness.epoch()
    assert [[e["v"] for e in row["events"]] for row in found.rows()] == [[3, 8]]


def test_event_without_a_value_of_the_windows_column_is_an_error_only_if_the_pattern_looks_at_it():
    flow, found, _ = watched("SELECT * WHERE A ; B WITHIN 5 [v]")
    with Harness(flow) as harness:
        rows = [event(0, "A", 1, v=10), event(1, "other", 1, v=None), event(2, "other", 1, v=99), event(3, "B", 1, v=11)]
        harness.push("events", [*rows, event(4, "other", 2)])
        harness.epoch()
        assert len(found.rows()) == 1
        harness.push("events", [event(5, "A", 1, v=None), event(6, "other", 2)])
        with pytest.raises(OperatorError, match=r"The event of key 1 at .* has no value of 'v', which its window needs"):
            harness.epoch()


# ---------------------------------------------------------------------------------------------------------- many conditions


def test_query_in_a_flow_when_it_has_more_conditions_than_two_words_have_bits_keeps_them_apart():
    kinds = [f"T{i}" for i in range(70)]
    either = " OR ".join(f"({kind} FILTER {kind}[v = {i}])" for i, kind in enumerate(kinds))
    flow, found, _ = watched(f"SELECT a[v], b[v] WHERE ({either}) AS a : ({either}) AS b")
    rng = random.Random(4)
    rows = [
        event(s, f"T{n}", v=rng.choice([n, n, n, (n + 62) % 70, (n + 1) % 70]))
        for s, n in enumerate(rng.choices(range(70), k=300))
    ]
    with Harness(flow) as harness:
        for begin in range(0, 300, 50):
            harness.push("events", rows[begin : begin + 50])
            harness.epoch()
        harness.finish()
    good = [row["kind"] == f"T{row['v']}" for row in rows]
    wanted = [
        (one["v"], two["v"])
        for (one, two), both in zip(itertools.pairwise(rows), map(all, itertools.pairwise(good)), strict=True)
        if both
    ]
    assert [(row["a"][0]["v"], row["b"][0]["v"]) for row in sorted(found.rows(), key=lambda row: row["match_end"])] == wanted
    assert {v for pair in wanted for v in pair} >= {0, 61, 62, 69}


# ---------------------------------------------------------------------------------------------------------- several streams


def test_events_of_two_streams_when_these_are_put_together_first_are_matched_in_order_of_time():
    flow, found = ps.Flow("two streams"), ps.memory("found in two streams")
    doors, lamps = (flow.source(n, ps.files("nowhere", COLUMNS), time="at", lateness="0 seconds") for n in ("doors", "lamps"))
    together = doors.with_columns(stream="'door'").union(lamps.with_columns(stream="'lamp'"))
    define = {"open": "stream = 'door' AND kind = 'on'", "light": "stream = 'lamp' AND kind = 'on'"}
    together.key_by("k").match("SELECT * WHERE open : light : open WITHIN 9 SECONDS", define=define).sink(found)
    with Harness(flow) as harness:
        harness.push("lamps", [event(2, "on"), event(5, "on"), event(7, "on")])
        harness.epoch()
        harness.push("doors", [event(1, "on"), event(3, "on"), event(6, "off"), event(8, "on")])
        harness.finish()
    assert [(row["match_start"], row["match_end"]) for row in found.rows()] == [(at(1), at(3))]


@pytest.mark.parametrize("query", ["SELECT * WHERE A ; B PARTITION BY [k]", "SELECT COUNT(*) WHERE A : B"])
def test_events_without_a_key_are_left_out_as_in_batch(query):
    flow, found, _ = watched(query)
    with Harness(flow) as harness:
        harness.push(
            "events", [event(i, kind, k) for i, (kind, k) in enumerate([("A", None), ("A", 1), ("B", None), ("B", 1)])]
        )
        harness.finish()
    assert [(row["k"], row["match_end"]) for row in found.rows()] == [(1, at(3))]


@pytest.mark.parametrize("window", ["9 SECONDS", "9 EVENTS"])
@pytest.mark.parametrize("cuts", list(itertools.product([False, True], repeat=3)))
def test_key_minus_zero_is_shown_as_zero_wherever_epochs_end(window, cuts):
    flow = ps.Flow(f"by epoch {next(RUNS)}")
    found, stranded = ps.memory(f"{flow.name} found"), ps.memory(f"{flow.name} stranded")
    records = flow.source("events", ps.files("nowhere", "at timestamp, kind string, k double"), time="at", lateness="0 seconds")
    closes = {"on_timeout": "A"} if "SECONDS" in window else {}
    matched = records.key_by("k").match(f"SELECT A WHERE A ; B WITHIN {window}", type="kind", **closes)
    matched.sink(found)
    if closes:
        matched.timeouts.sink(stranded)
    with Harness(flow) as harness:
        for i, (kind, k) in enumerate([("A", -0.0), ("B", 0.0), ("A", 0.0), ("B", -0.0)]):
            harness.push("events", [{"at": at(i), "kind": kind, "k": k}])
            if i < 3 and cuts[i]:
                harness.epoch()
        harness.push("events", [{"at": at(50 + i), "kind": "A", "k": -0.0} for i in range(2)])
        harness.finish()
    shown = [row["k"] for row in [*found.rows(), *stranded.rows()]]
    assert len(shown) >= 3
    assert all(str(k) == "0.0" for k in shown)


def test_window_of_the_events_of_all_keys_is_refused_in_a_flow():
    with pytest.raises(
        DeclarationError, match="in a flow WITHIN n EVENTS can only count the events of the key; leave it at 'key'"
    ):
        watched("SELECT * WHERE A ; B WITHIN 3 EVENTS", events_window="global")


def test_events_of_a_pattern_are_sent_with_no_more_columns_than_it_reads():
    flow = ps.Flow("narrow")
    events = flow.source("events", ps.files("none", "k string, at timestamp, v long, w long, x string"), time="at")
    kinds = {"A": "x = 'a'", "B": "v > 3"}
    events.key_by("k").match("SELECT COUNT(*) WHERE A ; B WITHIN 1 HOUR", kinds).sink(ps.noop())
    events.key_by("k", name="shown").match("SELECT * WHERE A AS first ; B WITHIN 1 HOUR", kinds).sink(ps.noop())
    sent = [[n for n in region.inputs[-1].schema.names if not n.startswith("__ps_")] for region in flow.plan().regions]
    assert sent == [["k", "at"], ["k", "at", "v", "w", "x"]]
