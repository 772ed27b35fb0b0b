"""Patterns with quantifiers, gaps and conditions between events over Spark, with values at the edges of their types: as the reference, and as Spark SQL compares."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.patterns.reference import evaluate

sys.path.append(str(Path(__file__).parent.parent / "patterns"))  # random queries and how to judge answers
from ceql_judging import EDGES, judged
from ceql_running import DEFINE, answers_in, complaint, pattern_of

pytestmark = pytest.mark.spark

BEGIN = dt.datetime(2024, 3, 10, tzinfo=dt.UTC)
NAMES = {str(kind): name for name, (kind, _) in EDGES.items()}


def frame(spark, case):
    kinds = {name: NAMES[str(kind)] for name, kind in case.kinds}
    schema = f"p long, at timestamp, types string, v {kinds['v']}, w {kinds['w']}, t string, n long, k long, j long"
    rows = [
        (p, BEGIN + dt.timedelta(microseconds=e.at), "".join(sorted(e.types)), *(e.values[name] for name in "vwtnkj"))
        for p, e in enumerate(case.events)
    ]
    return spark.createDataFrame(rows[::-1], schema)


def drawn(count):
    """Cases with matches, each of other types."""
    found, kinds = [], set()
    for seed in range(20_000, 30_000):
        case = judged(seed)
        fresh = str(case.kinds) not in kinds
        if fresh and len(evaluate(case.query, case.events, scope=case.scope, events_window=case.events_window)) > 1:
            found.append((seed, case))
            kinds.add(str(case.kinds))
        if len(found) == count:
            return found
    raise AssertionError("too few")


def test_drawn_pattern_over_spark_is_answered_as_by_the_reference(spark):
    for seed, case in drawn(8):
        options = {"strategy_scope": case.scope, "events_window": case.events_window}
        table = (
            ps.match(frame(spark, case), str(case.query), order_by="at", define=DEFINE, **options).toArrow().combine_chunks()
        )
        found = [answer for batch in table.to_batches() for answer in answers_in(case, pattern_of(case), batch)]
        assert complaint(case, found) is None, (seed, str(case.query), case)


@pytest.mark.parametrize(("one", "other"), [("double", "long"), ("decimal(38,0)", "double"), ("decimal(10,2)", "long"), ("int", "long"), ("string", "string")])  # fmt: skip
def test_values_at_the_edges_of_types_are_compared_as_spark_sql_compares_them(spark, one, other):
    left, right = ([*EDGES[name][1], None] for name in (one, other))
    rows = [("A", v, None) for v in left] + [("B", None, w) for w in right]
    frame = spark.createDataFrame([(p, *row) for p, row in enumerate(rows)], f"p int, kind string, v {one}, w {other}")
    frame.createOrReplaceTempView("edges")
    for op in ("<", "<=", "=", "!="):
        found = ps.match(frame, f"SELECT a, b WHERE A AS a ; B AS b FILTER a.v {op} b.w", order_by="p", type="kind")
        pairs = sorted((row.a[0].p, row.b[0].p) for row in found.collect())
        wanted = spark.sql(
            f"SELECT a.p, b.p FROM edges a, edges b WHERE a.kind = 'A' AND b.kind = 'B' AND a.v {op} b.w"
        ).collect()
        assert pairs == sorted(map(tuple, wanted)), op


@pytest.mark.parametrize("calculated", ["a.v * a.v", "a.v - b.w", "-a.v + 0.1", "a.v * 1.1"])
@pytest.mark.parametrize("kind", ["float", "double", "int", "decimal(10, 2)"])
def test_calculations_are_those_of_spark_sql(spark, kind, calculated):
    numbers = [0.1, 0.2, 0.3, 1.0, 2.0, 3.3, -0.5]
    rows = [(p, "A", x, None) for p, x in enumerate(numbers)] + [(p + 50, "B", None, x) for p, x in enumerate(numbers)]
    frame = spark.createDataFrame(rows, "p int, kind string, x double, y double")
    frame = frame.selectExpr("p", "kind", f"CAST(x AS {kind}) AS v", f"CAST(y AS {kind}) AS w")
    frame.createOrReplaceTempView("numbers")
    found = ps.match(frame, f"SELECT a, b WHERE A AS a ; B AS b FILTER {calculated} <= b.w", order_by="p", type="kind")
    wanted = spark.sql(f"SELECT a.p, b.p FROM numbers a, numbers b WHERE a.kind = 'A' AND b.kind = 'B' AND {calculated} <= b.w")
    assert sorted((row.a[0].p, row.b[0].p) for row in found.collect()) == sorted(map(tuple, wanted.collect()))
