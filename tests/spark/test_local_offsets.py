"""Offsets of records whose source tells no position: they ascend from epoch to epoch, and say so when there are no more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.flow.plan import SourceNode
from penstock.sources.base import Streaming
from penstock.spark.sources import reader
from penstock.spark.sources.slices import ROW
from penstock.spark.sources.streaming import StreamingReader

pytestmark = pytest.mark.spark

LAST = 2**27 - 1


def offsets(spark, epoch, rows=8, partitions=3):
    node = SourceNode(pa.schema([]), False, name="numbers", connector=Streaming(None, pa.schema([])), time=None)
    sql = StreamingReader(None, node, 0, epoch).offset()
    read = spark.range(0, rows, 1, partitions).selectExpr(f"monotonically_increasing_id() as {ROW}")
    return read.selectExpr(f"{sql} as offset")


def test_offsets_ascend_by_epoch_partition_and_row(spark):
    told = [row.offset for epoch in (0, 1, 2, LAST - 1, LAST) for row in offsets(spark, epoch).collect()]
    assert told == sorted(set(told))
    assert len(told) == 5 * 8
    assert told[0] >= 0
    assert told[-1] < 2**63


def test_source_that_was_read_in_too_many_epochs_is_refused(spark):
    with pytest.raises(PenstockError, match=r"'numbers' has been read in 134,217,728 epochs, .* declare position="):
        offsets(spark, LAST + 1)


@pytest.mark.parametrize(("rows", "partitions"), [(5, 5), (17, 1)], ids=["partitions", "records"])
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_epoch_with_more_than_can_be_told_apart_is_refused(spark, monkeypatch, rows, partitions, ansi):
    monkeypatch.setattr(reader, "_PARTS_BITS", 2)
    monkeypatch.setattr(reader, "_ROWS_BITS", 4)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        fewer = rows - 1, max(partitions - 1, 1)
        assert len({row.offset for row in offsets(spark, LAST, *fewer).collect()}) == rows - 1
        with pytest.raises(Exception, match="Source 'numbers' has more than 4 partitions or 16 records of one partition"):
            offsets(spark, LAST, rows, partitions).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
