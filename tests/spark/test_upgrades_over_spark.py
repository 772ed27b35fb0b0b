"""Wider columns and migrations over Spark: state that one version left, partial results and waiting rows among it, goes on in the next."""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa
import pytest
from flow_runs import write_parquet

import penstock as ps

pytestmark = pytest.mark.spark
NUMBERS = itertools.count()
BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def schema(kind):
    return pa.schema([("k", pa.string()), ("x", kind), ("at", pa.timestamp("us", "UTC"))])


def remember(key, event, state):
    total = (0 if state is None else state.total) + event.x
    return (event.x, total), {"total": total}


def remember_more(key, event, state):
    total = (0 if state is None else state.total) + event.x
    return (event.x, total), {"total": total, "told": (state.told if state else "") + "."}


def to_more(state):
    return {"total": state.total * 1000, "told": "m"}


def rows(*seconds, x=1):
    return [{"k": k, "x": x, "at": BEGIN + dt.timedelta(seconds=s)} for s in seconds for k in "abc"]


def declared(folder, sinks, kind, fn, state, **options):
    made = ps.Flow("upgraded")
    s = made.source("s", ps.files(folder / "data", schema(kind)), time="at", lateness="10 seconds")
    keyed = s.key_by("k")
    keyed.stateful_map(fn, "x bigint, total bigint", state, **options).sink(ps.memory(sinks[0]), name="state")
    window = s.key_by("k", name="w").window(ps.tumbling("1 minute"))
    window.aggregate(most=ps.max("x"), last=ps.last("x"), n=ps.count_distinct("x"), sum=ps.sum("x")).select(
        "k", "n", most="cast(most as bigint)", last="cast(last as bigint)", sum="cast(sum as bigint)"
    ).sink(ps.memory(sinks[1]), name="window")
    return made


def test_state_when_columns_become_wider_and_a_function_gets_other_state_goes_on_over_spark(spark, tmp_path):
    sinks = [f"upgraded {next(NUMBERS)}", f"upgraded {next(NUMBERS)}"]
    large = 2**40

    def run(made, number, values, *, drain=False):
        write_parquet(tmp_path / "data", values[0], schema(values[1]), number)
        running = made.start(spark, checkpoint=str(tmp_path / "checkpoint"), trigger="available_now", drain=drain, workers=2)
        running.await_termination()
        return running.changes

    run(declared(tmp_path, sinks, pa.int32(), remember, "total int"), 1, (rows(1, 2, 20), pa.int32()))
    assert run(declared(tmp_path, sinks, pa.int64(), remember, "total bigint"), 2, (rows(30, x=-large), pa.int64())) == ()
    changes = run(
        declared(tmp_path, sinks, pa.int64(), remember_more, "total bigint, told string", migrate=to_more),
        3,
        (rows(40), pa.int64()),
        drain=True,
    )
    assert changes == ("State of step 'stateful_map' of region 'k' goes through to_more when it is first read.",)
    # by when the frontier passed them: 1, 2 in the first run, 20 in the second (30 − 10 is 20, not passed) or later
    found = sorted((r["x"], r["total"]) for r in ps.memory(sinks[0]).rows())
    one = [(1, 1), (1, 2), (1, 2001), (-large, 2001 - large), (1, 2002 - large)]
    assert found == sorted(one * 3)
    assert sorted(tuple(r.values()) for r in ps.memory(sinks[1]).rows()) == [(k, 2, 1, 1, 4 - large) for k in "abc"]
