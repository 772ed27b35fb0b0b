"""A query on one line: what the check for a changed pattern compares. The grammar's own lexer says which words a text has."""

from __future__ import annotations

from importlib.resources import files

from hypothesis import assume, given
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import UnexpectedInput

from penstock.patterns.source_locations import query_on_one_line

GRAMMAR = Lark(files("penstock.patterns.ceql").joinpath("ceql.lark").read_text("utf-8"), start="query", parser="lalr")
PLAIN = ["a", "b", "AS", ";", ":", "FILTER", "-", "--1", "1", "=", "(", ")", "["]
QUOTED = [
    "'a  b'",
    "'a b'",
    "'a\n b'",
    "'--  '",
    r"'\'  '",
    '"a  b"',
    '" \' "',
    "`a  b`",
    "`a b`",
    "`a``  b`",
    "`'  `",
    "`--  `",
]
WHOLE = st.sampled_from(PLAIN + QUOTED)
WORDS = st.sampled_from([*PLAIN, *QUOTED, "'", '"', "`"])
BETWEEN = st.sampled_from([" ", "  ", "\n", "\t ", "", "-- a 'b\n", " --\n", '-- `\n  -- "a  b"\n ', "--  x"])


@st.composite
def texts(draw, words):
    return "".join(word + draw(BETWEEN) for word in words)


def words_of(text):
    try:
        return [(token.type, str(token)) for token in GRAMMAR.lex(text)]
    except UnexpectedInput:
        return None


@given(st.data())
def test_two_queries_are_the_same_query_on_one_line_only_where_their_words_are(data):
    words = data.draw(st.lists(WORDS, max_size=6))
    one, other = data.draw(texts(words)), data.draw(texts(words))
    assume(words_of(one) is not None and words_of(other) is not None)
    assert words_of(query_on_one_line(one)) == words_of(one)
    assert query_on_one_line(query_on_one_line(one)) == query_on_one_line(one)
    if query_on_one_line(one) == query_on_one_line(other):
        assert words_of(one) == words_of(other)


@given(st.lists(WHOLE, max_size=6), st.data())
def test_white_space_and_comments_between_words_make_no_other_query(words, data):
    one, other = (
        " ".join(word + data.draw(st.sampled_from(["", "  ", "\n", " -- a 'b\n"])) for word in words) for _ in range(2)
    )
    assume(words_of(one) is not None)
    assert query_on_one_line(one) == query_on_one_line(other)


def test_comment_that_takes_in_a_clause_makes_another_query():
    assert query_on_one_line("WHERE a -- as before\nWITHIN 5 EVENTS") == "WHERE a WITHIN 5 EVENTS"
    assert query_on_one_line("WHERE a -- as before WITHIN 5 EVENTS") == "WHERE a"
