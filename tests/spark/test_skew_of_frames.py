"""`penstock.skew` of a Spark DataFrame."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import DeclarationError
from penstock.routing.skew import COMPARED

pytestmark = pytest.mark.spark


def test_skew_of_a_frame_equals_that_of_its_keys_in_the_same_order(spark):
    frame = spark.range(5_000).selectExpr("if(id % 2 = 0, 0L, id % 97) AS k", "cast(id % 3 AS string) AS `o p`").coalesce(1)
    table = frame.toArrow()
    assert ps.skew(frame, "k", workers=5).equals(ps.skew(table["k"], workers=5))
    assert ps.skew(frame, ["k", "o p"], workers=5, senders=2).equals(ps.skew(table, workers=5, senders=2))
    assert len(ps.skew(frame.where("k < 0"), "k", workers=5)) == len(COMPARED)


def test_skew_of_a_frame_without_a_key_or_with_an_unknown_one_is_refused(spark):
    with pytest.raises(DeclarationError, match="skew needs key="):
        ps.skew(spark.range(3), workers=2)
    with pytest.raises(DeclarationError, match=r"skew's key names column 'ip', which does not exist; there are id\."):
        ps.skew(spark.range(3), "ip", workers=2)
