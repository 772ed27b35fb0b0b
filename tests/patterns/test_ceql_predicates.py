"""A predicate means the same to the reference, to DuckDB (the harness) and to Spark: the same value for every event, null included."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest

from penstock.errors import QueryError
from penstock.patterns import algebra as s
from penstock.patterns.ceql.parsing import parse
from penstock.patterns.predicates import check_query, filter_sql, predicate_sql
from penstock.patterns.reference import Seen, _truth, passes
from penstock.sql_text.schema import run_sql, to_duckdb

# An int, a float, a text, and a column whose name must be quoted.
SCHEMA = pa.schema([("i", pa.int64()), ("d", pa.float64()), ("t", pa.string()), ("odd `n", pa.int64())])
VALUES = {
    "i": [None, -7, -1, 0, 1, 2, 3],
    "d": [None, -2.5, -0.0, 0.0, 0.1, 0.30000000000000004, 0.5, 2.0, math.inf, -math.inf, math.nan],
    "t": [None, "", "a", "b", "ab", "a\n", "a\nb", "it's", "\\", "\\d", "é", "٣", "3", '"'],
    "odd `n": [None, -2, 0, 1, 5],
}
PATTERNS = ["a", "a|b", "a.?", "a.b", "(a|b)+", r"\d", r"\\d", r"\w", r"\\", "it's", "", ".*", "[^a]", "^a$", '"']


def arithmetic(rng, depth):
    """An operand, and its kind: "int", "decimal" or "float"."""
    match rng.randrange(6 if depth else 4):
        case 0:
            return s.Attribute("i"), "int"
        case 1:
            return s.Attribute("d"), "float"
        case 2:
            return s.Attribute("odd `n"), "int"
        case 3:
            text = rng.choice(["0", "1", "2", "3", "0.1", "0.5", "0.0", "2.25", "1e0", "5E-1", "0e0"])
            return s.Number(text), "float" if "e" in text.lower() else "decimal" if "." in text else "int"
        case 4:
            inner, kind = arithmetic(rng, depth - 1)
            return s.Minus(inner), kind
    (left, one), (right, two) = arithmetic(rng, depth - 1), arithmetic(rng, depth - 1)
    op = rng.choice("+-*/%")
    kind = "float" if "float" in (one, two) else "decimal" if "decimal" in (one, two) else "int"
    if op == "/" and kind == "decimal":  # how many digits the quotient of two decimals has is each engine's own business
        op = "*"
    return s.Arithmetic(op, left, right), "float" if op == "/" else kind


def predicate(rng, depth):
    match rng.randrange(9 if depth else 6):
        case 0 | 1:
            return s.Compare(rng.choice(["<", "<=", ">", ">=", "=", "!="]), arithmetic(rng, 2)[0], arithmetic(rng, 2)[0])
        case 2:
            return s.Compare(rng.choice(["=", "!="]), s.Attribute("t"), s.Text(rng.choice(VALUES["t"][1:])))
        case 3:
            return s.Like("t", rng.choice(PATTERNS))
        case 4:
            texts = tuple(map(s.Text, rng.sample(VALUES["t"][1:], 2)))
            numbers = tuple(map(s.Number, rng.sample(["0", "1", "-7", "0.1", "0.5", "2", "-2.5"], 3)))
            name = rng.choice(["t", "i", "d"])
            return s.In(name, texts if name == "t" else numbers, rng.random() < 0.5)
        case 5:
            low, high = rng.choice([("-1", None), (None, "0.5"), ("-2.5", "2"), ("0.1", "1e0")])
            return s.Between(rng.choice(["i", "d"]), low and s.Number(low), high and s.Number(high))
        case 6:
            return s.Negation(predicate(rng, depth - 1))
        case 7:
            return s.Both(predicate(rng, depth - 1), predicate(rng, depth - 1))
        case _:
            return s.Either(predicate(rng, depth - 1), predicate(rng, depth - 1))


def conditions(seed, count):
    rng = random.Random(seed)
    found = [s.Like("t", pattern) for pattern in PATTERNS] + [predicate(rng, 2) for _ in range(count)]
    return [*found, s.Bound("A", s.Negation(s.Compare("=", s.Attribute("i"), s.Number("1"))))]


def events(seed, count):
    rng = random.Random(seed)
    return [{name: rng.choice(VALUES[name]) for name in SCHEMA.names} for _ in range(count)]


def sql_of(condition):
    return filter_sql(condition) if isinstance(condition, s.Bound) else predicate_sql(condition)


def expected(condition, event):
    seen = Seen(frozenset("A"), event)
    return passes(condition, seen) if isinstance(condition, s.Bound) else _truth(condition, seen)


def compare(conditions, events, answers):
    for condition, answer in zip(conditions, answers, strict=True):
        for event, got in zip(events, answer, strict=True):
            assert got == expected(condition, event), f"{condition} of {event} is {got}, by {sql_of(condition)}"


def test_duckdb_and_reference_agree_on_random_predicates():
    rows, asked = events(1, 60), conditions(2, 400)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    columns = ", ".join(f"{to_duckdb(sql_of(c))} AS c{n}" for n, c in enumerate(asked))
    compare(asked, rows, [column.to_pylist() for column in run_sql(table, f"SELECT {columns} FROM t").columns])


@pytest.mark.spark
def test_spark_and_reference_agree_on_random_predicates(spark):
    rows, asked = events(3, 60), conditions(4, 300)
    df = spark.createDataFrame([tuple(r.values()) for r in rows], "i long, d double, t string, `odd ``n` long").coalesce(1)
    found = df.selectExpr(*(f"{sql_of(c)} AS c{n}" for n, c in enumerate(asked))).collect()
    compare(asked, rows, list(zip(*found, strict=True)))


# ------------------------------------------------------------------------------------------------------------- single cases


def test_unknown_is_not_true_and_its_negation_neither():
    unknown, one = Seen(frozenset("A"), {"v": None}), s.Compare("=", s.Attribute("v"), s.Number("1"))
    assert _truth(one, unknown) is None
    assert _truth(s.Negation(one), unknown) is None
    assert _truth(s.Both(one, s.Like("t", "a")), Seen(frozenset(), {"v": 2, "t": None})) is False
    assert _truth(s.Either(one, s.Like("t", "a")), Seen(frozenset(), {"v": 1, "t": None})) is True
    assert not passes(s.Bound("A", one), unknown)
    assert filter_sql(s.Bound("A", one)) == "coalesce((`v` = 1), false)"


def test_division_by_zero_is_unknown_and_the_remainder_has_the_sign_of_the_dividend():
    def value(text, **event):
        tree = parse(f"SELECT * WHERE A FILTER A[{text}]").formula.filter.predicate
        return _truth(tree, Seen(frozenset("A"), event))

    assert value("v / 0 = 1", v=1) is None
    assert value("v % w = 1", v=1, w=0) is None
    assert value("v % 3 = -1", v=-7) is True
    assert value("v % -3 = 1", v=7) is True
    assert value("v / 2 = 3.5", v=7) is True
    assert value("v * 0.1 = 0.3", v=3) is True  # decimals, not floats


@pytest.mark.parametrize(
    ("text", "word", "message"),
    [
        ("A FILTER A[x = 1]", "x", "the filter A[x = 1] names column 'x', which does not exist; there are i, d, t, odd `n."),
        ("A FILTER A[t = 1]", "=", "the filter A[t = 1] compares a string with a number: t = 1."),
        ("A FILTER A[t > i]", ">", "the filter A[t > i] compares a string with a number: t > i."),
        ("A FILTER A[t + 1 > i]", "t ", "the filter A[(t + 1) > i] calculates with t, which is a string, not a number."),
        ("A FILTER A[i LIKE 'a']", "i ", "the filter A[i LIKE 'a'] needs 'i' to be a string, but it is int64."),
        ("A FILTER A[t IN {1}]", "t ", "the filter A[t IN {1}] needs 't' to be a number, but it is string."),
        ("A FILTER A[t IN 1..]", "t ", "the filter A[t IN 1..] needs 't' to be a number, but it is string."),
        ("NOT(A FILTER A[d IN {'a'}])", "d ", "the filter A[d IN {'a'}] needs 'd' to be a string, but it is double."),
        (
            "A FILTER A[f = true]",
            "true",
            "the filter A[f = true] uses true, which is not a value here; write it in SQL with define=, as define={'Type': 'column'}.",
        ),
        (
            "A FILTER A[f = f]",
            "=",
            "the filter A[f = f] compares a bool, but only numbers and strings can be compared; say it in SQL with define=: f = f.",
        ),
        ("A FILTER A[i = 1] : B", "B", "event type 'B' is not defined; define= has A."),
        ("A PARTITION BY [i], [j]", "j", "PARTITION BY names column 'j', which does not exist; there are i, d, t, odd `n."),
        ("A PARTITION BY [i, t]", "i,", "PARTITION BY [i, t] needs attributes of one type, but they are int64 and string."),
        ("A WITHIN 3 [t]", "t", "WITHIN 3 [t] needs a column of numbers, but 't' is string."),
    ],
)
def test_query_that_does_not_fit_the_columns_is_refused_and_shows_the_place(text, word, message):
    columns = SCHEMA if "f = " not in text else SCHEMA.append(pa.field("f", pa.bool_()))
    query = f"SELECT *\nWHERE\t({text.replace(' :', ') :')}" if " : " in text else f"SELECT *\nWHERE\t{text}"
    with pytest.raises(QueryError) as caught:
        check_query(parse(query), columns, types={"A": "true"} if "B" in query[20:25] or " : " in text else None)
    first, line, caret = str(caught.value).split("\n")
    column = caret.index("^") - 1
    assert (first, line) == (f"line 2, column {column}: {message}", "  " + query.split("\n")[1])
    assert line[column + 1 :].startswith(word)


def test_query_that_was_not_parsed_has_no_place_to_show():
    query = s.Query("ALL", s.Everything(), (), s.Event("A"), (("x",),))
    with pytest.raises(QueryError, match=r"^PARTITION BY names column 'x', which does not exist"):
        check_query(query, SCHEMA, types=None)
