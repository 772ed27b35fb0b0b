"""Records that lie too far ahead, over Spark: looked at by the driver where statistics of chunks do not say it, and told apart from the others.

Read next: `penstock.progress.ahead`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.progress.ahead import Aside
from penstock.progress.lateness import ChunkId
from penstock.spark.sources.file_times import CHUNK_BITS
from penstock.types import OFFSET, PART, TIME

FEW: Final = 64
"""So many ranges are written out in an expression; more are joined, for Spark compiles a long one slowly or not at all."""


def times_in(rows: DataFrame, chunks: Collection[ChunkId]) -> list[Any]:
    """Partition, offset and time (µs) of the records of some chunks, int64 arrays of shape (n,). A job, if there are any.

    Args:
        rows: The epoch's records with hidden columns.
        chunks: The chunks.
    """
    if not chunks:
        return [np.empty(0, np.int64)] * 3
    whole = [Aside(part, number << CHUNK_BITS, ((number + 1) << CHUNK_BITS) - 1, 0) for part, number in sorted(chunks)]
    found: Any = within_ranges(rows.select(PART, OFFSET, TIME), whole, "leftsemi", timed=False).toArrow()
    return [column.to_numpy() for column in found.columns]


def told_apart(rows: DataFrame, asides: Sequence[Aside]) -> tuple[DataFrame, DataFrame | None]:
    """The records that are not put aside, and those that are (None: there are none).

    Args:
        rows: The epoch's records with hidden columns.
        asides: From `penstock.progress.ahead.put_aside`.
    """
    if not asides:
        return rows, None
    return within_ranges(rows, asides, "leftanti", timed=True), within_ranges(rows, asides, "leftsemi", timed=True)


def within_ranges(rows: DataFrame, ranges: Sequence[Aside], how: str, *, timed: bool) -> DataFrame:
    """The records within ranges (`leftsemi`) or outside of them (`leftanti`); `timed`: within means after the bound, too."""
    if len(ranges) <= FEW:
        after = (f" and {TIME} > {one.bound}L" if timed else "" for one in ranges)
        each = (
            f"({PART} = {one.part}L and {OFFSET} between {one.first}L and {one.last}L{more})"
            for one, more in zip(ranges, after, strict=True)
        )
        among = f"coalesce({' or '.join(each)}, false)"
        return rows.where(among if how == "leftsemi" else f"not {among}")
    table = [(one.part, one.first, one.last, one.bound) for one in ranges]
    known = rows.sparkSession.createDataFrame(table, "__ps_in long, __ps_first long, __ps_last long, __ps_bound long")
    within = f"{PART} = __ps_in and {OFFSET} between __ps_first and __ps_last" + (f" and {TIME} > __ps_bound" if timed else "")
    return rows.join(F.broadcast(known), F.expr(within), how)


__all__ = ["FEW", "times_in", "told_apart", "within_ranges"]
