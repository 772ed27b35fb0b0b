"""Patterns in whole flows, without Spark: random queries, epochs, crashes and rescales against the reference; and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from ceql_enriching import enriched
from ceql_judging import judged
from ceql_running import DEFINE, SCHEMA, SQL_COLUMNS, answers_in, complaint, pattern_of, records_of, suitable

import penstock as ps
from penstock.errors import DeclarationError, QueryError
from penstock.testing import Crash, Harness

STEPS = ["decide", "compute ", "stored ", "commit", "committed"]
RUNS = itertools.count()


def stream(name, keys, **source):
    flow = ps.Flow(f"patterns{next(RUNS)}")
    records = flow.source("events", ps.files(name, SQL_COLUMNS), time="at", lateness="0 seconds", **source)
    return flow, records.key_by(*keys)


def answered(case, seed):
    """What a flow gives: cut into epochs somewhere, killed somewhere, with its workers changed somewhere."""
    rng, keys = random.Random(seed), [group[0] for group in case.query.partition_by]
    flow, keyed = stream("nowhere", keys)
    found = ps.memory(f"found{next(RUNS)}")
    keyed.match(str(case.query), define=DEFINE, strategy_scope=case.scope).sink(found)
    rows = records_of(case)
    killed, asked, moved = [], [None], False

    def before(step):
        if asked[0] is not None and step.startswith(asked[0]):
            killed.append(asked[0])
            asked[0] = None
            raise Crash

    with Harness(flow, workers=rng.randint(1, 3), on_step=before) as harness:
        for low, high in itertools.pairwise([0, *case.cuts, len(rows)]):
            for partition in (0, 1):
                part = [row for row in rows[low:high] if row["p"] % 2 == partition]
                harness.push("events", pa.Table.from_pylist(part, SCHEMA), partition)
            asked[0] = rng.choice(STEPS) if rng.random() < 0.3 else None
            workers = rng.choice(sorted({1, 2, 3, 4} - {region.workers for region in harness.record.regions.values()}))
            there = placed(harness)
            scaled = rng.random() < (0.8 if there else 0.2)
            commands = [{"command": "scale", "region": None, "workers": workers}] if scaled else []
            try:
                harness.epoch(*commands)
            except Crash:
                harness.restart()
                harness.resume()
            asked[0] = None
            if scaled and there and rng.random() < 0.8:  # else it goes on while events come
                harness.settle()
                after = placed(harness)
                moved |= any(after.get(key, worker) != worker for key, worker in there.items())
        harness.finish()
    return found.table(), len(killed), moved


def placed(harness):
    """The worker of each key of which something is remembered."""
    routing = {name: region.control.routing for name, region in harness.record.regions.items()}
    return {(name, key): table.worker_of(key) for name, table in routing.items() for key in harness.keys(name)}


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, 1, *(pytest.param(b, marks=pytest.mark.soak) for b in range(2, 40))])
def test_flow_answers_as_the_reference_whatever_happens_to_it(block):
    tried = killed = rescaled = 0
    for seed in range(block * 220, (block + 1) * 220):
        case = suitable(seed)
        if case is None or not (case.cuts or seed % 4 == 0):  # few of one epoch only
            continue
        case = enriched(case, seed, streams=False)
        table, crashes, moved = answered(case, seed)
        wrong = complaint(case, [row for batch in table.to_batches() for row in answers_in(case, pattern_of(case), batch)])
        assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"
        tried, killed, rescaled = tried + 1, killed + crashes, rescaled + moved
    assert tried > 80
    assert killed > 15
    assert rescaled > 8  # with open runs of keys that went to other workers, and events after that


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, *(pytest.param(b, marks=pytest.mark.soak) for b in range(1, 40))])
def test_flow_of_quantifiers_gaps_and_conditions_answers_as_the_reference_whatever_happens_to_it(block):
    tried = killed = rescaled = 0
    for seed in range(block * 120, (block + 1) * 120):
        case = replace(judged(seed, keyed=True, whole=True), events_window="key")
        table, crashes, moved = answered(case, seed)
        wrong = complaint(case, [row for batch in table.to_batches() for row in answers_in(case, pattern_of(case), batch)])
        assert wrong is None, f"seed {seed}: {case.query}\n{case}\n{wrong}"
        tried, killed, rescaled = tried + 1, killed + crashes, rescaled + moved
    assert tried == 120
    assert killed > 15
    assert rescaled > 5


@pytest.mark.parametrize("clause", ["LIMIT 2", "ANY", "COUNT"])
def test_which_matches_are_told_does_not_depend_on_where_the_stream_is_cut(clause):
    query = {
        "LIMIT 2": "SELECT * WHERE A+ ; B LIMIT 2",
        "ANY": "SELECT ANY * WHERE A+ ; B",
        "COUNT": "SELECT COUNT(*) WHERE A+ ; B",
    }[clause]
    rng = random.Random(5)
    rows = [
        {"p": i, "at": dt.datetime.fromtimestamp(i, dt.UTC), "types": rng.choice("AAABC"), "n": i, "k": i % 2}
        for i in range(24)
    ]
    results = []
    for cuts in ([], [7], [3, 4, 5, 6, 20], range(1, 24)):
        flow, keyed = stream("nowhere", ["k"])
        found = ps.memory(f"found{next(RUNS)}")
        keyed.match(query, define=DEFINE).sink(found)
        with Harness(flow, workers=1 + len(results)) as harness:
            for low, high in itertools.pairwise([0, *cuts, len(rows)]):
                harness.push("events", pa.Table.from_pylist(rows[low:high], SCHEMA))
                harness.epoch()
            harness.finish()
        results.append(sorted(map(str, found.table().to_pylist())))
    assert len(results[0]) > 3
    assert all(result == results[0] for result in results)


def test_matches_go_on_to_another_region():
    flow, keyed = stream("nowhere", ["k"])
    found = ps.memory(f"found{next(RUNS)}")
    matches = keyed.match("SELECT b WHERE A ; B AS b WITHIN 10 SECONDS", define=DEFINE)
    last = matches.stateful_map(lambda k, row, n: ((k, row.b[0]["v"], (n or 0) + 1), (n or 0) + 1), "k long, v long, nth long")
    last.key_by("v").aggregate(n=ps.count(), most=ps.max("nth")).sink(found)
    with Harness(flow) as harness:
        for i, (kind, v) in enumerate([("A", 1), ("B", 2), ("B", 3), ("A", 4), ("B", 2)]):
            row = {"at": dt.datetime.fromtimestamp(i, dt.UTC), "types": kind, "v": v, "k": 7}
            harness.push("events", pa.Table.from_pylist([row], SCHEMA))
            harness.epoch()
        harness.finish()
    assert sorted((r["v"], r["n"], r["most"]) for r in found.rows()) == [(2, 3, 4), (3, 1, 2)]


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT * WHERE A ; B CONSUME BY ANY", {}, "line 1, column 22: CONSUME BY ANY lets a match of one key end those of all keys, but a flow runs key by"),
        ("SELECT * WHERE A PARTITION BY [j]", {}, "line 1, column 18: PARTITION BY names j, but the stream is keyed by k; name the same, or none."),
        ("SELECT * FROM S, T WHERE A", {}, "line 1, column 18: the query reads streams S, T, but these rows are one stream, those of a source or of a region;"),
        ("SELECT * WHERE D", {}, "line 1, column 16: event type 'D' is not defined; define= has A, B, C."),
        ("SELECT * WHERE A FILTER A[x > 1]", {}, "line 1, column 27: the filter A[x > 1] names column 'x', which does not exist"),
        ("SELECT * WHERE A FILTER A[t > 1]", {}, "line 1, column 29: the filter A[t > 1] compares a string with a number"),
        ("SELECT * WHERE A WITHIN 1 MINUTE 3 EVENTS", {}, "line 1, column 36: a window is measured in EVENTS or in time, not in both."),
        ("SELECT COUNT(*) WHERE A AS x ; B WITHIN 1 MINUTES", {"on_timeout": "x"}, "line 1, column 8: on_timeout needs events to show, and SELECT COUNT(*)"),
        ("SELECT * WHERE A AS x ; B", {"on_timeout": "x"}, "on_timeout needs a window that closes: WITHIN a time."),
        ("SELECT * WHERE A AS x ; B WITHIN 3 EVENTS", {"on_timeout": "x"}, "line 1, column 27: on_timeout needs a window that closes: WITHIN a time."),
        ("SELECT STRICT * WHERE A AS x ; B WITHIN 1 MINUTE", {"on_timeout": "x"}, "line 1, column 8: on_timeout cannot be combined with"),
        ("SELECT * WHERE A AS x ; B WITHIN 1 MINUTE CONSUME BY PARTITION", {"on_timeout": "x"}, "line 1, column 43: on_timeout cannot be"),
        ("SELECT * WHERE A AS k ; B", {}, "line 1, column 21: the result would have two columns 'k'; name the variable differently with AS."),
        ("SELECT * WHERE A AS K ; B", {}, "line 1, column 21: the result would have two columns 'k' and 'K', which are the same to SQL; name the variable"),
        ("SELECT * WHERE A AS x ; B AS X", {}, "line 1, column 30: the result would have two columns 'x' and 'X', which are the same to SQL; name the variable"),
        ("SELECT * WHERE A AS x ; B WITHIN 1 MINUTES", {"on_timeout": "y"}, "line 1, column 8: on_timeout names 'y', which is no variable of the result (x)"),
        ("SELECT * WHERE A", {"max_matches_per_event": 0}, "max_matches_per_event must be from 1 to 65,536 in a flow, not 0."),
    ],
)  # fmt: skip
def test_query_that_a_flow_cannot_answer_is_refused_when_it_is_declared(query, options, message):
    _, keyed = stream("nowhere", ["k"])
    with pytest.raises(QueryError if "max_matches" not in message else DeclarationError) as refused:
        keyed.match(query, define=DEFINE, **options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("match", ".match(...) cannot follow .window(...): a pattern's window is written in its query, such as WITHIN 10 MINUTES; leave "),
        *((step, f".{step} cannot follow .window(...) directly; .aggregate(...) or .stateful_map(...) must come between.")
          for step in ("where", "deduplicate", "join", "sink", "key_by", "process", "window", "timeouts")),
    ],
)  # fmt: skip
def test_step_of_a_keyed_stream_when_it_is_asked_of_a_window_is_refused_with_what_to_do(step, message):
    windowed = stream("nowhere", ["k"])[1].window(ps.tumbling("1 hour"))
    with pytest.raises(DeclarationError) as refused:
        getattr(windowed, step)
    assert str(refused.value).startswith(message)
    assert not hasattr(windowed, "no_such_step")
