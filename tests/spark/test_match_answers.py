"""`match` over Spark gives what the slow reference gives, however its rows are spread."""

from __future__ import annotations

import datetime as dt
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.errors import DeclarationError, QueryError
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.reference import Seen, evaluate

sys.path.append(str(Path(__file__).parent.parent / "patterns"))  # random queries and how to judge answers
from ceql_drawing import Case, draw
from ceql_running import answers_in, complaint, pattern_of

pytestmark = pytest.mark.spark

BEGIN = dt.datetime(2024, 3, 10, tzinfo=dt.UTC)
SCHEMA = "p long, at timestamp, types string, v long, w long, t string, n long, k long, j long"
DEFINE = {kind: f"types LIKE '%{kind}%'" for kind in "ABC"}


def frame(spark, events, seed=0):
    """The events as a DataFrame of three partitions, in an order that says nothing."""
    rows = [
        (p, BEGIN + dt.timedelta(microseconds=e.at), "".join(sorted(e.types)), *(e.values[name] for name in "vwtnkj"))
        for p, e in enumerate(events)
    ]
    random.Random(seed).shuffle(rows)
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 3), SCHEMA)


def over_spark(spark, case, **options):
    """The rows of `match`, in a batch."""
    options = {"strategy_scope": case.scope, "events_window": case.events_window, **options}
    found = ps.match(frame(spark, case.events), str(case.query), order_by="at", define=DEFINE, **options)
    return found.toArrow().combine_chunks()


def answered(spark, case, **options):
    """The matches that Spark tells, as (key, match)."""
    pattern = pattern_of(case)
    batches = over_spark(spark, case, **options).to_batches()
    return [answer for batch in batches for answer in answers_in(case, pattern, batch)]


def closings(case):
    return evaluate(case.query, case.events, scope=case.scope, events_window=case.events_window)


def most_matches(case):
    return max((sum(answer.count for answer in answers) for answers in closings(case).values()), default=0)


def drawn(kind, count):
    """The first cases of a kind that a query can be written for and that have matches at two events or more."""
    found = []
    for seed in range(10_000):
        case = draw(seed)
        if kind(case) and len(closings(case)) > 1:
            found.append((seed, case))
        if len(found) == count:
            return found
    raise AssertionError("too few")


def events(text, **values):
    """Events such as ``A1 B C3``: a type, and v its number; the i-th is at i µs. `values`: of further columns, one per event."""
    out = []
    for i, word in enumerate(text.split()):
        number = int(word[1:]) if word[1:] else None
        own = {name: column[i] for name, column in values.items()}
        seen = {"v": number, "w": 1, "t": None, "n": i, "k": 1, "j": 1, **own}
        out.append(Seen(frozenset(word[0].replace("-", "")), seen, i))
    return tuple(out)


def check(spark, query, stream, *, scope="end", events_window="global", **options):
    """Compare with the reference; gives the sets of positions, in order."""
    case = Case(parse(query), stream, (), scope, events_window)
    found = answered(spark, case, **options)
    assert complaint(case, found) is None
    return sorted(match.data for _, match in found)


# ---------------------------------------------------------------------------------------------------------- random queries


KINDS = {
    "without key or window": (6, lambda q, _: not q.partition_by and q.window is None),
    "with a key": (4, lambda q, _: q.partition_by and q.consume == "NONE" and q.window is None),
    "consumed by a key": (3, lambda q, _: q.partition_by and q.consume == "PARTITION"),
    "consumed by any key": (3, lambda q, _: q.partition_by and q.consume == "ANY"),
    "in a time": (3, lambda q, _: kind_of_window(q) == "time"),
    "in an attribute": (3, lambda q, _: kind_of_window(q) == "attribute"),
    "in events of all": (3, lambda q, whose: q.partition_by and kind_of_window(q) == "events" and whose == "global"),
    "in events of the key": (3, lambda q, whose: q.partition_by and kind_of_window(q) == "events" and whose == "key"),
    **{name: (2, lambda q, _, name=name: q.strategy == name) for name in ("NEXT", "LAST", "MAX", "STRICT", "ANY")},
}


def kind_of_window(query):
    return query.window and query.window.kind


@pytest.mark.parametrize("name", KINDS)
def test_random_query_over_spark_is_answered_as_by_the_reference(spark, name):
    count, kind = KINDS[name]
    for seed, case in drawn(lambda case: kind(case.query, case.events_window), count):
        assert complaint(case, answered(spark, case)) is None, f"seed {seed}: {case.query}"


def test_enumeration_that_is_spread_over_workers_is_answered_as_by_the_reference(spark):
    for seed, case in drawn(lambda case: case.query.strategy in {"ALL", "STRICT"} and most_matches(case) > 3, 4):
        assert complaint(case, answered(spark, case, enumerate_with=ps.CountedSplit(1))) is None, f"seed {seed}: {case.query}"


@pytest.mark.parametrize("by", [ps.MaximalDisjoint(0), ps.Maximal(0)], ids=str)
@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("SELECT * WHERE A+ ; B+ ; C PARTITION BY [k]", 109),
        ("SELECT * WHERE A AS x ; B+ ; C FILTER B[v > 1] WITHIN 0.000006 SECONDS", 16),
    ],
)
def test_enumeration_from_maximal_matches_over_spark_is_answered_as_by_the_reference(spark, by, query, count):
    stream = events("A A1 B1 A2 B2 B3 C B2 C A A B C", k=[1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2])
    found = check(spark, query, stream, enumerate_with=by)
    assert len(found) == count


def test_limit_over_spark_gives_so_many_of_the_reference(spark):
    for seed, case in drawn(lambda case: most_matches(case) > 3, 4):
        found = answered(spark, replace(case, query=replace(case.query, limit=2)))
        right = closings(case)
        assert len(set(found)) == len(found), f"seed {seed}"
        for key, match in found:
            assert any(match in answer.matches for answer in right[key, match.end]), f"seed {seed}"
        assert Counter((key, match.end) for key, match in found) == {
            place: min(2, sum(answer.count for answer in answers)) for place, answers in right.items()
        }, f"seed {seed}"


# ----------------------------------------------------------------------------------------------------------- fixed queries


@pytest.mark.parametrize(
    ("query", "stream", "found"),
    [
        ("SELECT * WHERE A ; B", "A A B A B", [(0, 2), (0, 4), (1, 2), (1, 4), (3, 4)]),
        ("SELECT * WHERE (A ; B)+", "A B A B", [(0, 1), (0, 1, 2, 3), (0, 3), (2, 3)]),
        ("SELECT * WHERE A : (NOT(B)):+ : C", "A - C A B C A - - C", [(0, 2), (6, 9)]),
        ("SELECT MAX * WHERE A ; B+ ; C", "A B B C", [(0, 1, 2, 3)]),
        ("SELECT STRICT * WHERE A ; B+", "A B B - B", [(0, 1), (0, 1, 2)]),
        ("SELECT * WHERE A ; B CONSUME BY PARTITION", "A B B A B", [(0, 1), (3, 4)]),
        ("SELECT * WHERE A ; B WITHIN 2 EVENTS", "A - B B A B", [(0, 2), (4, 5)]),
        ("SELECT * WHERE A ; B WITHIN 0.000002 SECONDS", "A - B B A B", [(0, 2), (4, 5)]),
        ("SELECT * WHERE A ; B WITHIN 2.5 [n]", "A - B B A B", [(0, 2), (4, 5)]),
    ],
)
def test_small_check_over_spark_gives_what_the_definition_says(spark, query, stream, found):
    assert check(spark, query, events(stream)) == found


@pytest.mark.parametrize(("whose", "found"), [("global", [(5, 6)]), ("key", [(0, 3), (1, 4), (5, 6)])])
def test_window_of_events_counts_those_of_all_keys_or_of_the_key(spark, whose, found):
    stream = events("A A - B B A B", k=[1, 2, None, 1, 2, 1, 1])
    query = "SELECT * WHERE A ; B PARTITION BY [k] WITHIN 2 EVENTS"
    assert check(spark, query, stream, events_window=whose) == found


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ("A[v = 1]", [(0,), (3,)]),
        ("A[v != 1]", [(2,)]),
        ("A[NOT v = 1]", [(2,)]),
        ("A[v != 1] OR A[v = 1]", [(0,), (2,), (3,)]),
        ("A[v IN {1, 2}] AND A[t LIKE 'a.*']", [(0,)]),
        ("A[v NOT IN {2}]", [(0,), (3,)]),
        ("A[v IN ..5]", [(0,), (2,), (3,)]),
        ("A[v / w > 0]", [(0,), (2,)]),
    ],
)
def test_event_of_which_a_condition_is_unknown_does_not_match(spark, filters, found):
    stream = events("A1 A A2 A1 A", t=["ab", "ab", "b", None, None], w=[1, 1, 1, 0, None])
    assert check(spark, f"SELECT * WHERE A FILTER {filters}", stream) == found


def test_excluded_event_of_which_the_condition_is_unknown_is_not_excluded(spark):
    assert check(spark, "SELECT * WHERE A : NOT(B FILTER B[v > 1]) : C", events("A B C A B2 C A B0 C")) == [(0, 2), (6, 8)]


def test_query_with_more_conditions_than_a_word_has_bits_keeps_them_apart(spark):
    types = [f"T{i}" for i in range(70)]
    conditions = " OR ".join(f"({kind} FILTER {kind}[v % 97 = {i}])" for i, kind in enumerate(types))
    rows = [(i, v, f"T{i % 70}") for i, v in enumerate([*range(70), *range(70, 140), *range(97, 167)])]
    df = spark.createDataFrame(rows, "at long, v long, kind string")
    found = ps.match(df, f"SELECT NONE WHERE {conditions}", order_by="at", type="kind")
    pattern = parse(f"SELECT NONE WHERE {conditions}")
    stream = tuple(Seen(frozenset([kind]), {"v": v}, at) for at, v, kind in rows)
    wanted = sorted(end for _, end in evaluate(pattern, stream))
    assert sorted(row.match_end for row in found.collect()) == wanted
    assert wanted == [at for at, v, kind in rows if v % 97 == int(kind[1:])]


@pytest.mark.parametrize("tests", [7, 8])  # as many as are told by a byte, and one more
def test_events_that_pass_the_last_of_a_few_conditions_are_found(spark, tests):
    types = [f"T{i}" for i in range(tests)]
    df = spark.createDataFrame([(i, kind) for i, kind in enumerate([*types, "other"])], "at long, kind string")
    found = ps.match(df, f"SELECT NONE WHERE {' OR '.join(types)}", order_by="at", type="kind").collect()
    assert sorted(row.match_end for row in found) == list(range(tests))


def test_variables_that_differ_by_case_only_are_columns_of_their_own(spark):
    df = spark.createDataFrame([(1, "A"), (2, "B"), (3, "B"), (4, "C")], "at long, kind string")
    found = ps.match(df, "SELECT * WHERE A AS x ; (B+) AS X ; C", order_by="at", type="kind")
    assert found.columns == ["match_start", "match_end", "events", "x", "X"]
    shown = [[[e.at for e in row[i]] for i in (2, 3, 4)] for row in found.collect()]
    assert sorted(shown) == [[[1, 2, 3, 4], [1], [2, 3]], [[1, 2, 4], [1], [2]], [[1, 3, 4], [1], [3]]]


def test_event_may_be_of_several_types_or_of_none_if_types_are_conditions(spark):
    df = spark.createDataFrame([(1, 5), (2, -5), (3, 0), (4, None)], "at long, v long")
    define = {"big": "abs(v) > 1", "positive": "v > 0", "known": "v IS NOT NULL"}
    found = ps.match(df, "SELECT * WHERE positive ; big ; known", order_by="at", define=define).collect()
    assert [[e.at for e in row.events] for row in found] == [[1, 2, 3]]
    one = ps.match(df, "SELECT NONE WHERE big AS x ; known AS y", order_by="at", define=define).collect()
    assert sorted((row.match_start, row.match_end) for row in one) == [(1, 2), (1, 3), (2, 3)]


def test_type_that_must_be_quoted_is_found_in_its_column(spark):
    df = spark.createDataFrame([(1, "it's"), (2, "a\\b"), (3, None)], "at long, `the kind` string")
    found = ps.match(df, r"SELECT * WHERE `it's` ; `a\b`", order_by="at", type="the kind").collect()
    assert [[e["the kind"] for e in row.events] for row in found] == [["it's", "a\\b"]]


@pytest.mark.parametrize(
    "order",
    [lambda: ["at", "n"], lambda: (F.col("at"), F.col("n")), lambda: [F.col("AT"), "n"], lambda: ["at", F.column("n")]],
)
def test_ties_that_a_further_column_breaks_are_in_its_order(spark, order):
    df = spark.createDataFrame([(1, 2, "B"), (1, 1, "A"), (1, 3, "A"), (2, 0, "B")], "at long, n long, kind string")
    found = ps.match(df, "SELECT * WHERE A : B", order_by=order(), type="kind").collect()
    assert sorted([(e.at, e.n) for e in row.events] for row in found) == [[(1, 1), (1, 2)], [(1, 3), (2, 0)]]


def test_order_that_is_no_column_is_refused(spark):
    df = spark.createDataFrame([(1, 2, "B")], "at long, n long, kind string")
    for order in ([], F.col("n").desc(), ["at", F.col("n") + 1], ["at", F.struct("n")]):
        with pytest.raises(DeclarationError, match="order_by"):
            ps.match(df, "SELECT * WHERE A", order_by=order, type="kind")


@pytest.mark.parametrize(
    "where", ["size(events) = 2 AND events[1].v > 1", lambda row: len(row.events) == 2 and row.events[1]["v"] > 1]
)
def test_condition_on_whole_matches_keeps_those_for_which_it_is_true(spark, where):
    df = frame(spark, events("A1 A2 A3"))
    for split in (None, ps.CountedSplit(0)):
        found = ps.match(df, "SELECT * WHERE A+", order_by="at", define=DEFINE, where=where, enumerate_with=split).collect()
        assert sorted([e.v for e in row.events] for row in found) == [[1, 2], [1, 3], [2, 3]]


def test_condition_on_whole_matches_that_is_unknown_leaves_them_out(spark):
    found = ps.match(
        frame(spark, events("A A1 A2")), "SELECT * WHERE A", order_by="at", define=DEFINE, where="events[0].v <> 1"
    )
    assert [row.events[0].v for row in found.collect()] == [2]


@pytest.mark.parametrize("query", ["SELECT COUNT(*) WHERE A+", "SELECT COUNT(*) WHERE A+ PARTITION BY [k]"])
def test_count_over_spark_is_exact_beyond_any_integer(spark, query):
    df = spark.range(100).selectExpr("id AS at", "1 AS k", "'A' AS kind").repartition(3)
    found = ps.match(df, query, order_by="at", type="kind").collect()
    assert sorted((row.match_end, int(row.matches)) for row in found) == [(i, 2**i) for i in range(100)]


@pytest.mark.parametrize("options", [{}, {"enumerate_with": ps.CountedSplit(0)}])
def test_event_that_closes_more_matches_than_allowed_fails_the_query(spark, options):
    df = frame(spark, events("A A A A A"))

    def run(query, most):
        found = ps.match(df, query, order_by="at", define=DEFINE, max_matches_per_event=most, **options)
        return found.count()

    assert run("SELECT * WHERE A+", 16) == 31
    with pytest.raises(Exception, match=r"One event closes more than 15 matches; narrow the pattern or its window, use LIMIT"):
        run("SELECT * WHERE A+", 15)
    assert run("SELECT * WHERE A+ LIMIT 15", 15) == 1 + 2 + 4 + 8 + 15


def test_thousand_million_matches_over_spark_are_read_as_far_as_one_wants_counted_or_refused(spark):
    df = spark.range(31).selectExpr("id AS at", "if(id < 30, 'A', 'B') AS kind")

    def run(selected, **options):
        return ps.match(df, f"SELECT {selected} WHERE A+ ; B WITHIN 30 EVENTS", order_by="at", type="kind", **options)

    assert [int(row.matches) for row in run("COUNT(*)").collect()] == [2**30 - 1]
    first = run("A[at]", max_matches_per_event=1 << 31).selectExpr("transform(A, e -> e.at) AS A").limit(200_000)
    assert first.distinct().count() == 200_000
    with pytest.raises(Exception, match=r"One event closes more than 10,000,000 matches; narrow the pattern or its window"):
        run("A[at]").write.format("noop").mode("append").save()


# ------------------------------------------------------------------------------------------------------------- few matches


def shuffles(found):
    return found._jdf.queryExecution().executedPlan().toString().count("Exchange ")


@pytest.mark.parametrize(
    ("query", "options", "stages"),
    [
        ("A : B : C", {}, 1),
        ("A : B : C", {"where": "match_start < match_end"}, 1),
        ("A : (A OR B) : C", {"enumerate_with": ps.CountedSplit(1)}, 2),
        ("A : B : C", {"where": lambda match: len(match.events) > 1}, 2),
        ("A : B+ : C", {}, 2),
        (" : ".join(["(A OR B)"] * 7), {}, 2),
    ],
)
def test_matches_that_can_only_be_few_are_told_where_they_are_found_unless_more_is_asked(spark, query, options, stages):
    stream = events("A B C A1 B B C C A A B C B A", k=[1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1])
    text = f"SELECT * WHERE {query} PARTITION BY [k]"
    found = ps.match(frame(spark, stream), text, order_by="at", define=DEFINE, **options)
    assert shuffles(found) == stages
    check(spark, text, stream, **options)


def test_window_of_decimals_and_of_no_width(spark):
    rows = [(1, "A", "1.10"), (2, "A", "1.15"), (3, "B", "1.20"), (4, "B", "1.20")]
    df = spark.createDataFrame(rows, "at int, kind string, n string").selectExpr("at", "kind", "cast(n as decimal(18, 2)) as n")
    given = {"order_by": "at", "type": "kind"}
    found = ps.match(df, "SELECT NONE WHERE A ; B WITHIN 0.09 [n]", **given).collect()
    assert sorted((row.match_start, row.match_end) for row in found) == [(2, 3), (2, 4)]
    assert ps.match(df, "SELECT NONE WHERE B ; B WITHIN 0 [n]", **given).count() == 1
    with pytest.raises(QueryError, match=r"measures decimals of at most 18 digits, but 'n' is decimal128\(20, 2\)"):
        ps.match(df.selectExpr("at", "kind", "cast(n as decimal(20, 2)) as n"), "SELECT NONE WHERE A ; B WITHIN 1 [n]", **given)


def test_a_few_matches_are_spread_where_a_python_function_judges_each(spark):
    from pyspark import TaskContext

    def where(match):
        (places / str(TaskContext.get().partitionId())).touch()
        return match.match_start != 0

    df = spark.range(1_000).selectExpr("id as at", "if(id = 999, 'B', 'A') as kind")
    for most, tasks in ((999, 2), (200, 1)):
        with tempfile.TemporaryDirectory() as folder:
            places = Path(folder)
            of_one = df.where(f"at < {most} OR kind = 'B'")
            found = ps.match(of_one, "SELECT * WHERE A ; B", order_by="at", type="kind", where=where)
            assert found.count() == most - 1
            assert len(list(places.iterdir())) == tasks


@pytest.mark.parametrize("strategy", ["NEXT", "LAST", "MAX"])
def test_limit_of_matches_is_of_those_that_a_strategy_leaves(spark, strategy):
    df = spark.range(21).selectExpr("id as at", "if(id = 20, 'B', 'A') as kind")
    given = {"order_by": "at", "type": "kind", "max_matches_per_event": 10}
    found = ps.match(df, f"SELECT {strategy} * WHERE A ; B{' LIMIT 1' * (strategy == 'MAX')}", **given)
    assert len(found.collect()) == 1
    with pytest.raises(Exception, match="One event closes more than 10 matches"):
        ps.match(df, "SELECT MAX * WHERE A ; B", **given).collect()
