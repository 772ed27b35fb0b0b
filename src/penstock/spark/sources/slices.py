"""One stream of all sources, and each cut out of it again.

All sources and the control log are one streaming DataFrame, a union of one branch each: a tag, and per source a struct that is null
for the others' rows. In an epoch every source is cut out of it again, so that reading one does not run the others, nor does its plan
depend on whether they have rows, and only the columns that are needed are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.columns import named
from penstock.spark.internals.found_files import Found, found_in
from penstock.spark.internals.plans import FILES, Branch, as_rdd, frame_of, select_sql
from penstock.spark.internals.queries import branches_of
from penstock.sql_text.schema import quoted

ROW: Final = "__ps_file_row"
"""Spark's own id of a row: the number of its partition of the scan, and its place there."""


def one_stream(frames: Sequence[DataFrame]) -> DataFrame:
    """All in one: of a row the tag is the number of the frame that it comes from.

    Args:
        frames: Streaming DataFrames.
    """
    empty = [F.lit(None).cast(frame.schema) for frame in frames]
    branches = []
    for tag, frame in enumerate(frames):
        row = F.struct(*(named(c) for c in frame.columns))
        columns = [row if other == tag else none for other, none in enumerate(empty)]
        branches.append(frame.select(F.lit(tag).alias("tag"), *(c.alias(f"s{n}") for n, c in enumerate(columns))))
    return reduce(DataFrame.union, branches)


class Slices:
    """One epoch's input, source by source.

    Spark hands ``foreachBatch`` a DataFrame that can only be run as a whole. The plan behind it, with this epoch's offsets, is
    asked of the running query, so that each source can be read alone and by the columns that are needed. Where Spark does not
    give it (another version), the whole DataFrame is used: slower, the same rows.

    Args:
        frame: What ``foreachBatch`` got.
        query: The running query (its Java object), or None.
        epoch: Number of the epoch; a plan of another one is not used.
        sources: How many there are, without the control log.
    """

    def __init__(self, frame: DataFrame, query: Any, epoch: int, sources: int) -> None:
        self._frame = frame
        self._plans = [] if query is None else branches_of(query, epoch, sources + 1)
        self._branches: dict[int, Branch] = {}
        self._instead: dict[int, DataFrame] = {}

    @property
    def session(self) -> SparkSession:
        """The query's own session."""
        return self._frame.sparkSession

    def rows(self, tag: int, columns: Sequence[str] | None = None) -> DataFrame:
        """Rows of one source as a batch DataFrame.

        Args:
            tag: The source's tag.
            columns: Its columns; None: all.

        Returns:
            The columns, and `ROW`. No filter can move across that, but across what is computed of it, which then is only of the rows left.
        """
        of = "" if tag in self._instead else f"s{tag}."
        chosen = [f"{of}*"] if columns is None else [f"{of}{quoted(c)}" for c in columns]
        chosen.append(f"monotonically_increasing_id() as {ROW}")
        if tag in self._instead:
            return select_sql(self._instead[tag], chosen)
        branch = self._branch(tag)
        if branch is None:
            return select_sql(self._frame.where(f"tag = {tag}"), chosen)
        batch = branch.as_batch()
        whole = select_sql(frame_of(branch.plan if batch is None else batch, self.session), chosen)
        return as_rdd(whole) if batch is None and branch.plan.isStreaming() else whole

    def _branch(self, tag: int) -> Branch | None:
        """The plan of one source; None: Spark does not give it."""
        if self._plans and tag not in self._branches:
            self._branches[tag] = Branch(self._plans[tag])
        return self._branches.get(tag)

    def files(self, tag: int) -> Found | None:
        """The files that one source reads in this epoch, without planning anything; None: Spark does not tell.

        Args:
            tag: The source's tag.
        """
        branch = self._branch(tag)
        if branch is not None and branch.kind == FILES:
            return found_in(self.session, branch)
        without_new = branch is not None and branch.kind == "LocalRelation"  # so Spark puts a source without new files
        return Found() if without_new else None

    def few(self, tag: int) -> pa.Table | None:
        """All rows of one source, where these are few and known without a job; None: they are not.

        Args:
            tag: The source's tag.
        """
        del tag
        return None

    def read_instead(self, tag: int, frame: DataFrame) -> None:
        """Take other rows for those of one source.

        Args:
            tag: The source's tag.
            frame: The rows of files as a batch, in the same columns.
        """
        self._instead[tag] = frame
