"""Patterns over columns that a table has given: the matches are those of events that had the columns from the start, whatever happens to the flow."""

from __future__ import annotations

import datetime as dt
import itertools
import random

import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import Crash, Harness

RUNS = itertools.count()
TYPES = pa.table({"code": [1, 2, 3], "kind": ["fail", "ok", "fail"], "weight": [1.5, 2.0, None]})
PLAIN, WHOLE = "k long, n long, code long, at timestamp", "k long, n long, code long, at timestamp, kind string, weight double"
QUERIES = [
    "SELECT * WHERE fail ; ok WITHIN 5 SECONDS",
    "SELECT MAX * WHERE fail{2,} ; ok WITHIN 9 SECONDS CONSUME BY PARTITION",
    "SELECT * WHERE fail AS a ; fail AS b FILTER b[weight > 1] WITHIN 3 SECONDS",
    "SELECT * WHERE fail AS a : ok AS b FILTER b.weight > a.weight",
]


def matches(query, rows, cuts, looked_up, rng):
    """What a flow gives: its events cut into epochs, killed and rescaled somewhere. The events have the columns of the table, or look them up."""
    flow, found, armed = ps.Flow(f"after lookup {next(RUNS)}"), ps.memory(f"after lookup {next(RUNS)}"), [False]
    events = flow.source("events", ps.files("nowhere", PLAIN if looked_up else WHOLE), time="at", lateness="0 seconds")
    if looked_up:
        events = events.lookup(TYPES, "code")
    events.key_by("k").match(query, type="kind").select("k", "events").sink(found)

    def before(step):
        if armed[0] and step.startswith("stored "):
            armed[0] = False
            raise Crash

    with Harness(flow, workers=rng.randint(1, 3), on_step=before) as harness:
        for low, high in itertools.pairwise([0, *cuts, len(rows)]):
            harness.push("events", rows[low:high])
            armed[0] = rng.random() < 0.2
            try:
                harness.epoch(*[{"command": "scale", "region": None, "workers": rng.randint(1, 3)}] * (rng.random() < 0.3))
            except Crash:
                harness.restart()
                harness.resume()
            armed[0] = False
        harness.finish()
    return sorted((row["k"], tuple(event["n"] for event in row["events"])) for row in found.rows())


@pytest.mark.parametrize("query", QUERIES)
def test_matches_over_looked_up_columns_are_those_of_events_that_have_them(query):
    given = {row["code"]: row for row in TYPES.to_pylist()}
    some = 0
    for seed in range(12):
        rng = random.Random(f"{seed} {query}")
        rows, second = [], 0
        for n in range(rng.randint(0, 60)):
            second += rng.choice([0, 0, 1, 2])
            at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
            rows.append({"k": rng.randint(0, 1), "n": n, "code": rng.choice([1, 1, 2, 3, 4, None]), "at": at})
        whole = [row | {name: given.get(row["code"], {}).get(name) for name in ("kind", "weight")} for row in rows]
        cuts = sorted(rng.sample(range(len(rows) + 1), min(4, len(rows))))
        wanted = matches(query, whole, [], False, rng)
        assert matches(query, rows, cuts, True, rng) == wanted, (seed, cuts)
        some += len(wanted)
    assert some > 10
