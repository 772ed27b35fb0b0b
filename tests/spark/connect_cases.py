"""Random events and queries, by a seed: the same in a session of Spark Connect and in a classic one."""

from __future__ import annotations

import random

import penstock as ps

QUERIES = [
    "SELECT * WHERE a ; b+ ; c PARTITION BY [k] WITHIN 10 EVENTS",
    "SELECT * WHERE a ; c PARTITION BY [`odd name`]",
    "SELECT MAX * WHERE a ; b+ PARTITION BY [k]",
    "SELECT COUNT(*) WHERE a ; b ; c",
    "SELECT x, y WHERE (a AS x ; c AS y) FILTER x[text LIKE 'é[0-3]']",
    "SELECT NONE WHERE a ; b PARTITION BY [k] WITHIN 3 SECONDS",
]
DEFINE = {"a": "v % 3 = 0", "b": "v > 1", "c": "hour(at) > 11 or v is null"}
COLUMNS = "id long, k int, `odd name` string, v int, text string, at timestamp"


def rows_of(seed):
    """Rows, with nulls among the keys and values."""
    drawn = random.Random(seed)
    some = lambda values: drawn.choice([*values, None])  # noqa: E731
    return [
        (
            i,
            some(range(3)),
            some(["x", "y"]),
            some(range(6)),
            some([f"é{n}" for n in range(5)]),
            1_772_928_000 + drawn.randrange(86_400),
        )
        for i in range(drawn.choice([0, 24, 40, 40, 40]))
    ]


def answer(spark, seed):
    """The matches of a seed, as text in order."""
    drawn = random.Random(-seed)
    typed = COLUMNS.replace("at timestamp", "at long")
    events = spark.createDataFrame(rows_of(seed), typed).selectExpr("*", "timestamp_seconds(at) as t").drop("at")
    events = events.withColumnRenamed("t", "at")
    query = QUERIES[seed % len(QUERIES)]
    options = {
        "enumerate_with": drawn.choice([None, ps.CountedSplit(1)]),
        "where": drawn.choice([None, lambda match: match.match_end != 7]),
    }
    order = ["at", "id"] if "SECONDS" in query else "id"
    found = ps.match(events, query, order_by=order, define=DEFINE, **options)
    return sorted(str(row) for row in found.toArrow().to_pylist())
