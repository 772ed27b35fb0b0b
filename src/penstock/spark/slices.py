"""One stream of all sources, and each cut out of it again.

All sources and the control log are one streaming DataFrame: a tag, and per source a struct that is null for the others' rows. In
an epoch every source is cut out of it again, so that reading one does not run the others, and only the columns that are needed
are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark.columns import named


def one_stream(frames: Sequence[DataFrame]) -> DataFrame:
    """All in one: of a row the tag is the number of the frame that it comes from.

    Args:
        frames: Streaming DataFrames.
    """
    tagged = (
        frame.select(F.lit(tag).alias("tag"), F.struct(*(named(c) for c in frame.columns)).alias(f"s{tag}"))
        for tag, frame in enumerate(frames)
    )
    return reduce(lambda whole, frame: whole.unionByName(frame, allowMissingColumns=True), tagged)


class Slices:
    """One epoch's input, source by source.

    Spark hands ``foreachBatch`` a DataFrame that can only be run as a whole. The plan behind it, with this epoch's offsets, is
    asked of the running query, so that each source can be read alone and by the columns that are needed. Where Spark does not
    give it (another version), the whole DataFrame is used: slower, the same rows.

    Args:
        frame: What ``foreachBatch`` got.
        query: The running query (its Java object), or None.
        epoch: Number of the epoch; a plan of another one is not used.
    """

    def __init__(self, frame: DataFrame, query: Any, epoch: int) -> None:
        self._frame = frame
        self._plan = self._logical_plan(query, epoch) if query is not None else None

    def _logical_plan(self, query: Any, epoch: int) -> DataFrame | None:
        try:
            session = self._frame.sparkSession
            execution = query.streamingQuery().lastExecution()
            if int(execution.currentBatchId()) != epoch:
                return None  # a query on the same checkpoint that is just ending
            logical = execution.logical().child()
            jvm: Any = session._jvm
            return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._frame._jdf.sparkSession(), logical), session)
        except Exception:  # noqa: BLE001  (internals of Spark; the public way below gives the same rows)
            return None

    def rows(self, tag: int, columns: Sequence[str] | None = None) -> tuple[DataFrame, list[str]]:
        """Rows of one source as a batch DataFrame, and the files they come from if they come from files.

        Args:
            tag: The source's tag.
            columns: Its columns; None: all.
        """
        chosen = [f"s{tag}.*"] if columns is None else [f"s{tag}.`{c}`" for c in columns]
        if self._plan is None:
            return self._frame.where(f"tag = {tag}").select(*chosen), []
        streaming = self._plan.where(f"tag = {tag}").select(*chosen)
        jdf: Any = streaming._jdf
        files = [str(f) for f in jdf.inputFiles()]
        batch = self._frame._jdf.sparkSession().internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)
        return DataFrame(batch, self._frame.sparkSession), files
