"""Over Spark as in process: values at the edge of their types, as keys, in windows, sums, states and joins, in one epoch or many."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import flow_runs as fr
import pyarrow as pa
import pytest

import penstock as ps

pytestmark = pytest.mark.spark

MOST = Decimal(10**38 - 1)
HALF = Decimal(6 * 10**37)
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
COLUMNS = "n long, k string, x double, v long, d decimal(38, 0), at timestamp"
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("k", pa.string()),
        ("x", pa.float64()),
        ("v", pa.int64()),
        ("d", pa.decimal128(38, 0)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
ROWS = [
    dict(zip(SCHEMA.names, (n, *row), strict=True))
    for n, row in enumerate(
        [
            ("x" * 400, math.nan, 2**62, HALF, FIRST),
            ("x" * 400, -math.nan, 2**62, HALF, FIRST),
            ("x" * 400, 0.0, -(2**62), HALF.copy_negate(), FIRST),
            (None, -0.0, 2**63 - 1, MOST, fr.moment(0)),
            (None, math.inf, None, None, fr.moment(1)),
            ("", -math.inf, -(2**63), MOST.copy_negate(), fr.moment(2)),
            ("", None, 0, Decimal(0), fr.moment(3)),
            ("a", 5e-324, 2**62, HALF, LAST),
            ("a", None, 2**62, HALF, LAST),
            ("a", 1.5, -(2**62), HALF.copy_negate(), LAST),
        ]
    )
]


def seen(key, event, state):
    return (key, event.n, event.at, None if state is None else state.d), (event.d, event.at)


def declared(source):
    """A flow whose sink and source are given."""

    def declare(sink):
        flow = ps.Flow("edges over spark")
        rows = source(flow)
        sums = {"total": ps.sum("d"), "average": ps.mean("d"), "whole": ps.sum("v"), "n": ps.count()}
        keyed = rows.key_by("k")
        keyed.window(ps.tumbling("1 day")).aggregate(**sums).sink(sink("windows"))
        keyed.stateful_map(
            seen, "k string, n long, at timestamp, before decimal(38, 0)", "d decimal(38, 0), at timestamp"
        ).sink(sink("states"))
        rows.key_by("k", name="running").aggregate(**sums).sink(sink("running"))
        rows.key_by("x").aggregate(n=ps.count(), last=ps.last("n")).sink(sink("doubles"))
        left, right = rows.where("n % 2 = 0").key_by("k", name="left"), rows.where("n % 2 = 1").key_by("k", name="right")
        left.join(right, "1 hour", "full").local().select("n", "n_right").sink(sink("pairs"))
        return flow

    return declare


def test_values_at_their_edges_are_over_spark_what_they_are_in_process_in_one_epoch_or_many(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", str(tmp_path / "local"))
    for i in range(4):
        fr.write_parquet(tmp_path / "in", ROWS[3 * i : 3 * i + 3], SCHEMA, i)

    def files(per_epoch):
        made = ps.files(str(tmp_path / "in"), COLUMNS, max_files_per_epoch=per_epoch)
        return lambda flow: flow.source("s", made, time="at", lateness="100000 days")

    wanted = fr.in_harness(declared(files(9)), {"s": ROWS}, workers=2)
    windows = [dict(row) for row in wanted["windows"]]
    assert {(w["k"], w["total"], w["whole"]) for w in windows} >= {
        ("x" * 400, HALF, 2**62),
        ("a", HALF, 2**62),
        (None, MOST, 2**63 - 1),
    }
    assert sorted(dict(row)["n"] for row in wanted["doubles"]) == [1, 1, 1, 1, 2, 2, 2]
    for per_epoch in (9, 1):
        found = fr.over_spark(spark, tmp_path / f"c{per_epoch}", declared(files(per_epoch)), workers=2)
        assert not fr.difference(found, wanted), per_epoch
