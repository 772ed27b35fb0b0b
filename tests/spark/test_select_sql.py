"""Columns selected by one text are those that `selectExpr` selects."""

from __future__ import annotations

import pytest

from penstock.spark.internals.plans import select_sql

pytestmark = pytest.mark.spark

EXPRESSIONS = [
    "id",
    "id + 1 as `a,b`",
    "'it''s, \\n' as text",
    "concat('(', id,\n ')') as `two lines`",
    "array(1, 2) as list",
    "'\x02|$^.' as signs",
    "'ü€😀' as beyond",
]


@pytest.mark.parametrize("expressions", [EXPRESSIONS, EXPRESSIONS[:1], [], ["*", "*"], [*EXPRESSIONS, "'a\x01b' as apart"]])
def test_one_text_selects_what_many_do(spark, expressions):
    frame = spark.range(3)
    found, wanted = select_sql(frame, expressions), frame.selectExpr(*expressions)
    assert found.schema == wanted.schema
    assert found.toArrow().to_pydict().items() <= wanted.toArrow().to_pydict().items()
    assert [tuple(row) for row in found.collect()] == [tuple(row) for row in wanted.collect()]


def test_wrong_expression_is_told_as_spark_tells_it(spark):
    frame = spark.range(3)
    with pytest.raises(Exception, match="nowhere") as wanted:
        frame.selectExpr("nowhere", "id")
    with pytest.raises(type(wanted.value), match="nowhere"):
        select_sql(frame, ["nowhere", "id"])


def test_an_epoch_s_select_takes_two_words_with_java(spark, monkeypatch):
    frame = spark.range(3)
    select_sql(frame, EXPRESSIONS)
    said = []
    client = spark.sparkContext._gateway._gateway_client
    send = client.send_command
    monkeypatch.setattr(
        client, "send_command", lambda command, *more, **named: said.append(command) or send(command, *more, **named)
    )
    select_sql(frame, EXPRESSIONS)
    calls = [command for command in said if command.startswith("c")]
    assert len(calls) == 2
