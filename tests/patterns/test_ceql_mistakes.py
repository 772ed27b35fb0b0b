"""Queries with mistakes in quantifiers, gaps and conditions between events: whatever was written, the error is one sentence with its place."""

from __future__ import annotations

import random
import re

import pytest

import penstock as ps
from penstock.errors import QueryError

RIGHT = [
    "SELECT * WHERE A{2,4} ; B",
    "SELECT MAX * WHERE (A ; B?){1,3} AS x : C:* ; A WITHIN 5 MINUTES",
    "SELECT * WHERE A{2,}[WITHIN 2 MINUTES] ;[WITHIN 1 MINUTE] B",
    "SELECT a, b WHERE A AS a ;[WITHIN 1 HOURS 30 SECONDS] B+ AS b FILTER b.v - a.v > 5 AND b[v > 1]",
    "SELECT * WHERE A+ AS a FILTER a.v >= PREV(a.v) * 1.1 OR a.v < -(PREV(a.w) + 2) LIMIT 3",
    "SELECT * WHERE (A AS a ; B AS b FILTER S>b.v = a.v){2} PARTITION BY [k] WITHIN 10 EVENTS",
]
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\s+|.")
ODD = [
    *"{}[]()+*?:;,.<>=-'`/%", "{0}", "{3,1}", "{1,1000000}", "{,}", "{-1}", "{1.5}", "{1e2}", "{2}{3}", "{100}", "[WITHIN 0 SECONDS]",
    "[WITHIN -1 SECONDS]", "[WITHIN 3 EVENTS]", "[WITHIN 1e400 DAYS]", "[WITHIN]", "[within 1 minute 1 minute]", "PREV", "PREV(", "PREV(a)",
    "PREV(PREV(a.v))", "LAST(a.v)", "a.v", "nobody.v", "a.", ".v", "1", "1e999", "9" * 50, "'x'", "NOT(A)", "FILTER", "WITHIN", "AND", "AS",
    "a", "A", "é", "\\", "\n", "--", "WHERE",
]  # fmt: skip
SENTENCE = re.compile(r"line \d+, column \d+: [^\n]+\.\n  [^\n]*\n +\^")


def with_mistakes(rng: random.Random) -> str:
    tokens = TOKEN.findall(rng.choice(RIGHT))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(tokens))
        match rng.randrange(4):
            case 0:
                del tokens[at]
            case 1:
                tokens[at] = rng.choice(ODD)
            case 2:
                tokens.insert(at, rng.choice(ODD))
            case _:
                other = rng.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
        tokens = tokens or [""]
    return "".join(tokens)


def refusal(text: str) -> str | None:
    try:
        ps.parse(text)
    except QueryError as error:
        return str(error)
    return None


def test_whatever_is_written_is_understood_or_refused_in_one_sentence_with_its_place():
    rng, refused, said = random.Random(44), 0, set()
    for _ in range(6_000):
        text = with_mistakes(rng)
        complaint = refusal(text)
        if complaint is None:
            query = ps.parse(text)
            assert ps.parse(str(query)) == query, text
            ps.explain(text)
            continue
        refused += 1
        assert SENTENCE.fullmatch(complaint), (text, complaint)
        assert len(complaint.split("\n")[0]) < 500, (text, complaint)
        said.add(re.sub(r"\d+|'[^']*'", "", complaint.split("\n")[0])[:60])
    assert refused > 3_000
    assert len(said) > 60


@pytest.mark.parametrize("text", RIGHT[:3] + RIGHT[4:5])
def test_query_without_mistakes_is_understood(text):
    assert ps.parse(text)
